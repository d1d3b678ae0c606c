// The node and the queue pools of control plane "kernel".
#ifndef KRCORE_KERNEL_KERNEL_NODE_H_
#define KRCORE_KERNEL_KERNEL_NODE_H_

#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "krcore/kernel/kernel_queue.h"
#include "krcore/kernel/kernel_virtual_queue.h"
#include "krcore/node.h"
#include "krcore/peers/region_table.h"
#include "krcore/queue/ring_pool.h"
#include "krcore/queue_pool.h"

namespace krcore::kernel {

// KernelNode: a Node of control plane "kernel". Its connections and its fabric's metadata are the kernel module's
// (kmod/README.md). All processes' queues use connections that the kernel has made, the whole host shares what is known
// of peers, and when a node ends its own kernel says so. It exposes memory as nodes of krcore do.
class KernelNode final : public Node {
 public:
  // Ignores rnic, create_fabric, and the options about RC connections and leases: a fabric exists where its nodes are.
  // kUnavailable: no module.
  static Result<std::unique_ptr<Node>> Open(const NodeOptions& options);

  NodeId id() const override { return control_.node(); }
  uint32_t incarnation() const override { return control_.incarnation(); }
  Clock& clock() const override { return clock_; }
  // kUnsupported: a named region, because memory ends with its process.
  Result<std::unique_ptr<Region>> CreateRegion(const RegionOptions& options) override;
  Result<std::unique_ptr<Region>> RegisterLocal(void* addr, size_t length) override;
  // Does nothing: the module is the metadata server.
  Status HostMetaServer(uint32_t capacity) override;
  Status Publish(Deadline deadline) override;
  Status PublishService(std::string_view name, std::span<const std::byte> value, Deadline deadline) override;
  Result<std::vector<std::byte>> LookupService(std::string_view name, Deadline deadline) override;
  bool IsConfirmedDead(NodeId node, uint32_t incarnation) override;
  size_t PollConnections() override { return 0; }
  Result<std::unique_ptr<QueuePool>> CreateQueuePool(const QueuePoolOptions& options) override;

  // ---- for pools
  peers::RegionTable& local_regions() { return local_regions_; }
  uint64_t max_message_bytes() const { return max_message_bytes_; }
  // Makes a fresh queue with `depth` places part of this node.
  Status OpenQueue(KernelQueue& queue, uint32_t depth) const { return queue.OpenLike(control_, depth); }

  // ---- for regions
  Status Withdraw(uint32_t key, Deadline deadline);
  Status Deregister(uint32_t key);

 private:
  explicit KernelNode(Clock& clock) : clock_(clock) {}
  Status Start(const NodeOptions& options);
  // `memory`: null if the bytes are the caller's.
  Result<std::unique_ptr<Region>> Register(std::span<std::byte> bytes, uint32_t remote_rights, uint32_t tag,
                                           std::shared_ptr<void> memory);

  Clock& clock_;
  uint64_t max_message_bytes_ = 0;
  KernelQueue control_;  // owns all regions and makes the node's calls; pushes nothing
  peers::RegionTable local_regions_;

  std::mutex mutex_;  // guards what follows; held while publishing, so that what is published later is newer
  std::vector<krc_shared_region> exposed_;
  bool published_ = false;
};

// KernelPool: the queues of one thread whose connections are the kernel's. It has no connections of its own: posting is
// one system call per queue, and polling looks at each queue's completion ring.
class KernelPool final : public queue::RingPool<KernelVirtualQueue> {
 public:
  explicit KernelPool(KernelNode& node);
  ~KernelPool() override;

  Result<std::unique_ptr<VirtualQueue>> CreateQueue(uint32_t depth) override;
  size_t Poll() override;
  Node& node() const override { return node_; }
  size_t memory_bytes() const override;

  // ---- for KernelVirtualQueue
  KernelNode& kernel_node() { return node_; }

 private:
  KernelNode& node_;
};

}  // namespace krcore::kernel

#endif  // KRCORE_KERNEL_KERNEL_NODE_H_
