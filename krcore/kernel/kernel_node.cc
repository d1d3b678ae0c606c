#include "krcore/kernel/kernel_node.h"

#include <algorithm>
#include <string>
#include <utility>

#include "krcore/base/os.h"
#include "krcore/kernel/kernel_virtual_queue.h"
#include "krcore/node/region_impl.h"

namespace krcore::kernel {
namespace {

class KernelRegion final : public Region {
 public:
  KernelRegion(KernelNode& node, std::span<std::byte> bytes, uint32_t key, uint32_t remote_rights,
               std::shared_ptr<void> memory)
      : node_(node), memory_(std::move(memory)), bytes_(bytes), key_(key), remote_rights_(remote_rights) {
    node_.local_regions().Add(
        {reinterpret_cast<uint64_t>(bytes.data()), bytes.size(), key, kLocalWrite | remote_rights, rkey()});
  }
  ~KernelRegion() override { (void)End(Deadline::After(node_.clock(), 0)); }

  std::span<std::byte> bytes() const override { return bytes_; }
  uint32_t lkey() const override { return key_; }
  uint32_t rkey() const override { return remote_rights_ == 0 ? 0 : key_; }
  bool adopted() const override { return false; }
  Status CollapseToHugePages(size_t offset, size_t length) override {
    KRCORE_RETURN_IF_ERROR(NotForked());
    if (offset > bytes_.size() || length > bytes_.size() - offset)
      return {StatusCode::kInvalidArgument, "range outside the region"};
    return StatusCode::kUnsupported;  // its pages are pinned where they are
  }
  Status Deregister(Deadline deadline) override {
    KRCORE_RETURN_IF_ERROR(NotForked());
    return End(deadline);
  }

 private:
  Status End(Deadline deadline) {
    if (!live_) return {};
    Status withdrawn = remote_rights_ == 0 ? Status{} : node_.Withdraw(key_, deadline);
    live_ = false;
    node_.local_regions().Remove(key_);
    Status ended = node_.Deregister(key_);
    return withdrawn.ok() ? std::move(ended) : std::move(withdrawn);
  }

  KernelNode& node_;
  const std::shared_ptr<void> memory_;  // null: the bytes are the caller's
  const std::span<std::byte> bytes_;
  const uint32_t key_, remote_rights_;
  bool live_ = true;
};

// Calls `attempt` until it returns something other than kUnavailable, or until the deadline has passed: kTimeout.
template <typename Attempt>
Status UntilAvailable(Clock& clock, Deadline deadline, Attempt attempt) {
  for (uint32_t spins = 0;; ++spins) {
    Status status = attempt();
    if (!(status == StatusCode::kUnavailable)) return status;
    if (deadline.Passed(clock)) return {StatusCode::kTimeout, std::string(status.message())};
    clock.Relax(spins);
  }
}

}  // namespace

Result<std::unique_ptr<Node>> KernelNode::Open(const NodeOptions& options) {
  std::unique_ptr<KernelNode> node(new KernelNode(options.clock != nullptr ? *options.clock : *RealClock()));
  KRCORE_RETURN_IF_ERROR(node->Start(options));
  return std::unique_ptr<Node>(std::move(node));
}

Status KernelNode::Start(const NodeOptions& options) {
  const Status started =
      control_.Start(options.rnic_port.substr(0, options.rnic_port.find(':')), 1, options.fabric, options.node, kNoNode)
          .status();
  if (started == StatusCode::kNotFound)
    return {StatusCode::kUnavailable, "control plane kernel needs the module krcore, which is not loaded here: " +
                                          std::string(started.message())};
  max_message_bytes_ = control_.max_message_bytes();
  return started;
}

// ---- memory

Result<std::unique_ptr<Region>> KernelNode::Register(std::span<std::byte> bytes, uint32_t remote_rights, uint32_t tag,
                                                     std::shared_ptr<void> memory) {
  const std::lock_guard lock(mutex_);
  if (remote_rights != 0 && exposed_.size() == kMaxRegionsPerNode) return node::TooManyRegions();
  auto key = control_.Register(bytes.data(), bytes.size(), kLocalWrite | remote_rights);
  if (!key.ok()) return key.status();
  if (remote_rights != 0) {
    exposed_.push_back({.addr = 0, .length = 0, .key = *key, .tag = tag, .access = 0, .reserved = 0});
  }
  return std::unique_ptr<Region>(std::make_unique<KernelRegion>(*this, bytes, *key, remote_rights, std::move(memory)));
}

Result<std::unique_ptr<Region>> KernelNode::CreateRegion(const RegionOptions& options) {
  KRCORE_RETURN_IF_ERROR(NotForked());
  KRCORE_RETURN_IF_ERROR(node::CheckRegionOptions(options));
  if (!options.name.empty() || options.keep_on_close)
    return Status(StatusCode::kUnsupported, "with control plane kernel memory goes with its process");
  auto memory = Pages::Map(options.length);
  if (!memory.ok()) return memory.status();
  const std::span<std::byte> bytes = (*memory)->bytes().first(options.length);
  return Register(bytes, options.remote_rights, options.tag, std::shared_ptr<Pages>(*std::move(memory)));
}

Result<std::unique_ptr<Region>> KernelNode::RegisterLocal(void* addr, size_t length) {
  KRCORE_RETURN_IF_ERROR(NotForked());
  if (addr == nullptr || length == 0) return Status(StatusCode::kInvalidArgument, "no memory named");
  return Register({static_cast<std::byte*>(addr), length}, 0, 0, nullptr);
}

Status KernelNode::Withdraw(uint32_t key, Deadline deadline) {
  const std::lock_guard lock(mutex_);
  std::erase_if(exposed_, [key](const krc_shared_region& region) { return region.key == key; });
  if (!published_) return {};
  return UntilAvailable(clock_, deadline, [&] { return control_.Publish(exposed_); });
}

Status KernelNode::Deregister(uint32_t key) { return control_.Deregister(key); }

// ---- metadata

Status KernelNode::HostMetaServer(uint32_t /*capacity*/) { return NotForked(); }

Status KernelNode::Publish(Deadline deadline) {
  KRCORE_RETURN_IF_ERROR(NotForked());
  const std::lock_guard lock(mutex_);
  const Status status = UntilAvailable(clock_, deadline, [&] { return control_.Publish(exposed_); });
  published_ |= status.ok();
  return status;
}

Status KernelNode::PublishService(std::string_view name, std::span<const std::byte> value, Deadline deadline) {
  KRCORE_RETURN_IF_ERROR(NotForked());
  if (value.size() > kMaxServiceBytes)
    return {StatusCode::kInvalidArgument, "a service's value has at most " + std::to_string(kMaxServiceBytes) +
                                              " bytes, not " + std::to_string(value.size())};
  bool published;
  {
    const std::lock_guard lock(mutex_);
    published = published_;
  }
  if (!published) KRCORE_RETURN_IF_ERROR(Publish(deadline));
  return UntilAvailable(clock_, deadline, [&] { return control_.SetService(name, value); });
}

Result<std::vector<std::byte>> KernelNode::LookupService(std::string_view name, Deadline deadline) {
  KRCORE_RETURN_IF_ERROR(NotForked());
  std::vector<std::byte> value;
  const Status status = UntilAvailable(clock_, deadline, [&]() -> Status {
    auto got = control_.GetService(name);
    if (!got.ok()) return got.status();
    value = *std::move(got);
    return {};
  });
  if (status.ok()) return value;
  if (status == StatusCode::kNotFound)
    return Status(StatusCode::kNotFound, "no node publishes a service '" + std::string(name) + "'");
  return status;
}

bool KernelNode::IsConfirmedDead(NodeId node, uint32_t incarnation) {
  if (forked()) return false;
  if (node == control_.node() && incarnation == control_.incarnation()) return false;  // perhaps not published
  const auto dead = control_.IsDead(node, incarnation);
  return dead.ok() && *dead;
}

Result<std::unique_ptr<QueuePool>> KernelNode::CreateQueuePool(const QueuePoolOptions& options) {
  KRCORE_RETURN_IF_ERROR(NotForked());
  if (options.sq_depth == 0) return Status(StatusCode::kInvalidArgument, "sq_depth must not be 0");
  return std::unique_ptr<QueuePool>(std::make_unique<KernelPool>(*this));
}

// ---- pool

KernelPool::KernelPool(KernelNode& node)
    : RingPool(node.local_regions(), {KRC_MAX_SGE, KernelVirtualQueue::kMaxInlineBytes, node.max_message_bytes()}),
      node_(node) {}

KernelPool::~KernelPool() {
  for (KernelVirtualQueue* queue : queues_) queue->ForgetPool();
}

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

size_t KernelPool::memory_bytes() const { return sizeof(*this) + common_bytes(); }

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

}  // namespace krcore::kernel
