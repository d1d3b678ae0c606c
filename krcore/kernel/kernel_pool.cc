#include "krcore/kernel/kernel_pool.h"

#include <algorithm>
#include <string>
#include <utility>

#include "krcore/kernel/kernel_node.h"
#include "krcore/kernel/kernel_virtual_queue.h"

namespace krcore::kernel {

KernelPool::KernelPool(KernelNode& node)
    : node_(node),
      regions_(node.local_regions()),
      limits_{KRC_MAX_SGE, KernelVirtualQueue::kMaxInlineBytes, node.max_message_bytes()} {}

KernelPool::~KernelPool() {
  for (KernelVirtualQueue* queue : queues_) queue->ForgetPool();
}

Node& KernelPool::node() const { return node_; }

Result<std::unique_ptr<VirtualQueue>> KernelPool::CreateQueue(uint32_t depth) {
  KRCORE_RETURN_IF_ERROR(NotForked());
  if (depth == 0 || depth > KRC_MAX_DEPTH)
    return Status(StatusCode::kInvalidArgument,
                  "queue depth must be 1 to " + std::to_string(KRC_MAX_DEPTH) + " with control plane kernel");
  auto queue = std::make_unique<KernelVirtualQueue>(*this, depth);
  KRCORE_RETURN_IF_ERROR(queue->Start());
  queues_.push_back(queue.get());
  return std::unique_ptr<VirtualQueue>(std::move(queue));
}

void KernelPool::Remove(KernelVirtualQueue* queue) { std::erase(queues_, queue); }

void KernelPool::Flush() {
  if (forked()) return;
  const auto has_staged = [](const KernelVirtualQueue* queue) { return queue->has_staged(); };
  if (std::none_of(queues_.begin(), queues_.end(), has_staged)) return;
  if (gate_ != nullptr && !gate_->MayPost()) return;
  for (KernelVirtualQueue* queue : queues_) completed_by_flush_ += queue->PostStaged();
}

size_t KernelPool::Poll() {
  if (forked()) return 0;
  Flush();
  size_t completed = std::exchange(completed_by_flush_, 0);
  size_t messages = 0;
  for (KernelVirtualQueue* queue : queues_) {
    completed += queue->TakeCompletions();
    messages += queue->TakeMessages();
  }
  stats_.completions += completed;
  return completed + messages;
}

void KernelPool::DiscardStaged() {
  if (forked()) return;
  for (KernelVirtualQueue* queue : queues_) completed_by_flush_ += queue->DiscardStaged();
}

bool KernelPool::NothingPosted() const {
  if (forked()) return true;
  return std::all_of(queues_.begin(), queues_.end(),
                     [](const KernelVirtualQueue* queue) { return queue->nothing_posted(); });
}

size_t KernelPool::memory_bytes() const {
  size_t bytes = sizeof(*this) + regions_.memory_bytes();
  for (const KernelVirtualQueue* queue : queues_) bytes += queue->memory_bytes();
  return bytes;
}

}  // namespace krcore::kernel
