// QueuePoolImpl: the CQ and the DC initiators of one thread.
//
// Later kinds of connection (RC for hot peers, a pool shared by the host's processes) are further PhysicalQueues
// that QueueFor may choose; VirtualQueues would not notice.
#ifndef KRCORE_POOL_QUEUE_POOL_IMPL_H_
#define KRCORE_POOL_QUEUE_POOL_IMPL_H_

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "krcore/dct/peer_directory.h"
#include "krcore/mr/region_table.h"
#include "krcore/pool/physical_queue.h"
#include "krcore/queue_pool.h"
#include "krcore/rnic/rnic.h"
#include "krcore/vqp/request_check.h"

namespace krcore::vqp {
class VirtualQueueImpl;
}

namespace krcore::pool {

// What a pool takes from its Node; outlives the pool.
struct PoolContext {
  Node* node = nullptr;
  rnic::Device* device = nullptr;
  rnic::Pd* pd = nullptr;
  const mr::RegionTable* regions = nullptr;
  dct::PeerDirectory* peers = nullptr;
};

class QueuePoolImpl final : public QueuePool {
 public:
  static Result<std::unique_ptr<QueuePool>> Create(const PoolContext& context, const QueuePoolOptions& options);
  ~QueuePoolImpl() override;

  Result<std::unique_ptr<VirtualQueue>> CreateQueue(uint32_t depth) override;
  void Flush() override;
  size_t Poll() override;
  Node& node() const override { return *context_.node; }
  const QueuePoolStats& stats() const override { return stats_; }
  size_t memory_bytes() const override;

  // ---- for VirtualQueueImpl
  dct::PeerDirectory& peers() { return *context_.peers; }
  mr::RegionView& regions() { return regions_; }
  const vqp::RequestLimits& limits() const { return limits_; }
  QueuePoolStats& mutable_stats() { return stats_; }
  // The queue through which `peer` is reached: always the same, so that requests to one peer stay in order.
  PhysicalQueue* QueueFor(NodeId peer) { return queues_[peer % queues_.size()].get(); }
  // Polls until `queue` can accept a WR with `inline_bytes`. Breaks a queue that makes no progress.
  void MakeRoom(PhysicalQueue& queue, size_t inline_bytes);
  // Returns once no buffer of `state`'s WRs is in use and no completion will be delivered to it.
  void Detach(vqp::VirtualQueueImpl* queue, QueueState* state, PhysicalQueue* physical);

 private:
  explicit QueuePoolImpl(const PoolContext& context) : context_(context), regions_(*context.regions) {}
  size_t FlushAll();
  size_t PollOnce();
  // Moves completions to their queues until the CQ is empty, then repairs what they broke.
  size_t Collect();
  // One CQ poll: returns the number of completions found and adds that of WRs completed.
  size_t Dispatch(size_t* completed);
  size_t Repair();
  void MarkBroken(const PhysicalQueue& queue);

  const PoolContext context_;
  mr::RegionView regions_;
  vqp::RequestLimits limits_;
  QueuePoolStats stats_;
  size_t completed_by_flush_ = 0;  // found outside Poll, to be counted by the next
  bool any_broken_ = false;
  std::array<Completion, 64> batch_;  // of Dispatch; a member so that it is not cleared for each poll
  std::unique_ptr<rnic::Cq> cq_;
  std::vector<std::unique_ptr<PhysicalQueue>> queues_;
  std::vector<vqp::VirtualQueueImpl*> virtual_queues_;
};

}  // namespace krcore::pool

#endif  // KRCORE_POOL_QUEUE_POOL_IMPL_H_
