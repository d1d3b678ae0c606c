// KernelPool: the queues of one thread whose connections are the kernel's. It has none of its own: posting is a system
// call a queue, polling a look at each queue's completion ring.
#ifndef KRCORE_KERNEL_KERNEL_POOL_H_
#define KRCORE_KERNEL_KERNEL_POOL_H_

#include <memory>
#include <vector>

#include "krcore/mr/region_table.h"
#include "krcore/queue_pool.h"
#include "krcore/vqp/request_check.h"

namespace krcore::kernel {

class KernelNode;
class KernelVirtualQueue;

class KernelPool final : public QueuePool {
 public:
  explicit KernelPool(KernelNode& node);
  ~KernelPool() override;

  Result<std::unique_ptr<VirtualQueue>> CreateQueue(uint32_t depth) override;
  void Flush() override;
  size_t Poll() override;
  void SetGate(PostGate* gate) override { gate_ = gate; }
  void DiscardStaged() override;
  bool NothingPosted() const override;
  Node& node() const override;
  const QueuePoolStats& stats() const override { return stats_; }
  size_t memory_bytes() const override;

  // ---- for KernelVirtualQueue
  KernelNode& kernel_node() { return node_; }
  mr::RegionView& regions() { return regions_; }
  const vqp::RequestLimits& limits() const { return limits_; }
  QueuePoolStats& mutable_stats() { return stats_; }
  void Remove(KernelVirtualQueue* queue);

 private:
  KernelNode& node_;
  mr::RegionView regions_;
  const vqp::RequestLimits limits_;
  QueuePoolStats stats_;
  PostGate* gate_ = nullptr;
  size_t completed_by_flush_ = 0;  // found outside Poll, to be counted by the next
  std::vector<KernelVirtualQueue*> queues_;
};

}  // namespace krcore::kernel

#endif  // KRCORE_KERNEL_KERNEL_POOL_H_
