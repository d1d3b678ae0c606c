#include "krcore/baselines/rc_pool.h"

#include <algorithm>
#include <string>
#include <utility>

#include "krcore/baselines/rc_node.h"
#include "krcore/baselines/rc_queue.h"
#include "krcore/rnic/request_form.h"

namespace krcore::baselines {
namespace {

constexpr uint32_t kMaxQueueDepth = 1u << 14;

}  // namespace

StatusCode CheckForm(const WorkRequest& wr, const queue::RequestLimits& limits) {
  if (wr.opcode == Opcode::kSend || wr.opcode == Opcode::kSendImm || wr.opcode == Opcode::kWriteImm)
    return StatusCode::kUnsupported;
  if (wr.num_sge == 0 || rnic::HasBadSges(wr, limits.max_sge) || (wr.flags & ~queue::kKnownFlags) != 0)
    return StatusCode::kInvalidArgument;
  const bool well_formed = rnic::IsWellFormed(wr, rnic::TotalLength(wr), limits.max_inline_bytes);
  return well_formed ? StatusCode::kOk : StatusCode::kInvalidArgument;
}

RcPool::RcPool(RcNode& node, const rnic::Caps& caps)
    : RingPool(node.local_regions(), {std::min(kMaxSge, caps.max_sge), std::min(kMaxInlineBytes, caps.max_inline_bytes),
                                      caps.max_message_bytes}),
      node_(node) {}

Result<std::unique_ptr<QueuePool>> RcPool::Create(RcNode& node, const QueuePoolOptions& options) {
  const rnic::Caps& caps = node.context().device->caps();
  const uint64_t cq_depth = uint64_t{options.dc_initiators} * options.sq_depth;
  if (cq_depth == 0 || cq_depth > caps.max_cqe)
    return Status(StatusCode::kInvalidArgument,
                  "dc_initiators x sq_depth, the CQ's depth, must be 1 to " + std::to_string(caps.max_cqe));
  std::unique_ptr<RcPool> pool(new RcPool(node, caps));
  if (!node.shares_links()) {
    pool->cq_depth_ = static_cast<uint32_t>(cq_depth);
    pool->link_depth_ = options.sq_depth;
    KRCORE_RETURN_IF_ERROR(pool->AddCq());
    node.context().Done(ConnectStep::kCq);
  }
  return std::unique_ptr<QueuePool>(std::move(pool));
}

RcPool::~RcPool() {
  const std::vector<RcQueue*> queues = queues_;  // a copy, because they leave the list
  for (RcQueue* queue : queues) queue->ForgetPool();
}

Node& RcPool::node() const { return node_; }

Result<std::unique_ptr<VirtualQueue>> RcPool::CreateQueue(uint32_t depth) {
  KRCORE_RETURN_IF_ERROR(NotForked());
  if (depth == 0 || depth > kMaxQueueDepth)
    return Status(StatusCode::kInvalidArgument, "queue depth must be 1 to " + std::to_string(kMaxQueueDepth));
  auto queue = std::make_unique<RcQueue>(*this, depth);
  queues_.push_back(queue.get());
  return std::unique_ptr<VirtualQueue>(std::move(queue));
}

// ---- links

Status RcPool::AddCq() {
  auto cq = node_.context().device->CreateCq(cq_depth_);
  if (!cq.ok()) return cq.status();
  cqs_.push_back({*std::move(cq)});
  return {};
}

Result<std::shared_ptr<Link>> RcPool::LinkTo(NodeId peer, uint32_t depth, Deadline deadline) {
  const auto place = [&](auto matches) { return std::find_if(links_.begin(), links_.end(), matches); };
  if (cqs_.empty()) {
    bool made = false;
    auto link = node_.SharedLink(peer, deadline, &made);
    if (!link.ok()) return link.status();
    ++(made ? stats_.metadata_lookups : stats_.metadata_hits);
    auto used = place([&](const Used& candidate) { return candidate.link == link->get(); });
    if (used == links_.end()) used = links_.insert(used, Used{link->get()});
    ++used->queues;
    return link;
  }
  depth = std::min(depth, link_depth_);
  const auto has_room = [&](const OwnCq& cq) { return depth <= cq_depth_ - cq.used; };
  size_t cq = static_cast<size_t>(std::find_if(cqs_.begin(), cqs_.end(), has_room) - cqs_.begin());
  if (cq == cqs_.size()) KRCORE_RETURN_IF_ERROR(AddCq());
  auto free = place([](const Used& candidate) { return candidate.link == nullptr; });
  if (free == links_.end()) free = links_.insert(free, Used{});
  const auto index = static_cast<uint32_t>(free - links_.begin());
  auto link = Link::Connect(node_.context(), peer, *cqs_[cq].cq, index, depth, deadline);
  if (!link.ok()) return link.status();
  ++stats_.metadata_lookups;
  *free = {link->get(), 1, cq};
  cqs_[cq].used += depth;
  return std::shared_ptr<Link>(*std::move(link));
}

void RcPool::Release(std::shared_ptr<Link> link) {
  const auto used =
      std::find_if(links_.begin(), links_.end(), [&](const Used& candidate) { return candidate.link == link.get(); });
  if (!cqs_.empty()) {
    cqs_[used->cq].used -= link->depth();
    *used = Used{};
  } else if (--used->queues == 0) {
    links_.erase(used);
  }
}

// ---- the data path

size_t RcPool::Poll() {
  if (forked()) return 0;
  Flush();
  size_t completed = std::exchange(completed_by_flush_, 0);
  for (const OwnCq& own : cqs_) {
    for (size_t count = batch_.size(); count == batch_.size();) {
      count = own.cq->Poll(batch_);
      for (size_t i = 0; i < count; ++i) completed += links_[Link::IndexOf(batch_[i])].link->Complete(batch_[i]);
    }
  }
  if (cqs_.empty()) {
    for (const Used& used : links_) {
      const auto lock = used.link->Lock();
      completed += used.link->Poll();
    }
  }
  stats_.completions += completed;
  return completed;
}

size_t RcPool::memory_bytes() const {
  size_t bytes = sizeof(*this) + common_bytes() + cqs_.size() * cq_depth_ * sizeof(Completion);
  for (const Used& used : links_)
    if (used.link != nullptr) bytes += used.link->memory_bytes();
  return bytes;
}

}  // namespace krcore::baselines
