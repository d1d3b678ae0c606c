// RingPool: a pool whose queues have a send queue each (OneSidedRing), so that it does the same with one after another.
//
// Queue has PostStaged and DiscardStaged, which return how many WRs they completed, has_staged, nothing_posted and
// memory_bytes.
#ifndef KRCORE_QUEUE_RING_POOL_H_
#define KRCORE_QUEUE_RING_POOL_H_

#include <algorithm>
#include <cstddef>
#include <vector>

#include "krcore/peers/region_table.h"
#include "krcore/queue/request_check.h"
#include "krcore/queue_pool.h"

namespace krcore::queue {

template <typename Queue>
class RingPool : public QueuePool {
 public:
  void Flush() final {
    if (forked() || (gate_ != nullptr && any_staged() && !gate_->MayPost())) return;
    for (Queue* queue : queues_) completed_by_flush_ += queue->PostStaged();
  }
  void SetGate(PostGate* gate) final { gate_ = gate; }
  void DiscardStaged() final {
    if (forked()) return;
    for (Queue* queue : queues_) completed_by_flush_ += queue->DiscardStaged();
  }
  bool NothingPosted() const final {
    return forked() ||
           std::all_of(queues_.begin(), queues_.end(), [](const Queue* queue) { return queue->nothing_posted(); });
  }
  const QueuePoolStats& stats() const final { return stats_; }

  // ---- for the queues
  const RequestLimits& limits() const { return limits_; }
  peers::RegionView& regions() { return regions_; }
  void NotePosted(size_t work_requests) {
    ++stats_.doorbells;
    stats_.work_requests += work_requests;
  }
  QueuePoolStats& mutable_stats() { return stats_; }
  void Remove(Queue* queue) { std::erase(queues_, queue); }

 protected:
  RingPool(const peers::RegionTable& regions, const RequestLimits& limits) : regions_(regions), limits_(limits) {}
  bool any_staged() const {
    return std::any_of(queues_.begin(), queues_.end(), [](const Queue* queue) { return queue->has_staged(); });
  }
  // Of the regions and the queues.
  size_t common_bytes() const {
    size_t bytes = regions_.memory_bytes();
    for (const Queue* queue : queues_) bytes += queue->memory_bytes();
    return bytes;
  }

  std::vector<Queue*> queues_;
  QueuePoolStats stats_;
  size_t completed_by_flush_ = 0;  // found outside Poll, for the next one to count

 private:
  peers::RegionView regions_;
  const RequestLimits limits_;
  PostGate* gate_ = nullptr;
};

}  // namespace krcore::queue

#endif  // KRCORE_QUEUE_RING_POOL_H_
