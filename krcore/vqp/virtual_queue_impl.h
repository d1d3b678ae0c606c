// VirtualQueueImpl: checks requests and hands them to the PhysicalQueue that reaches its peer.
#ifndef KRCORE_VQP_VIRTUAL_QUEUE_IMPL_H_
#define KRCORE_VQP_VIRTUAL_QUEUE_IMPL_H_

#include <cstdint>
#include <span>

#include "krcore/pool/physical_queue.h"
#include "krcore/pool/queue_state.h"
#include "krcore/virtual_queue.h"

namespace krcore::pool {
class QueuePoolImpl;
}

namespace krcore::vqp {

class VirtualQueueImpl final : public VirtualQueue {
 public:
  VirtualQueueImpl(pool::QueuePoolImpl& pool, uint32_t depth) : pool_(&pool), state_(depth) {}
  ~VirtualQueueImpl() override;

  Status Connect(NodeId peer, Deadline deadline) override;
  NodeId peer() const override { return state_.peer ? state_.peer->target.address.node : kNoNode; }
  std::span<const RemoteRegion> regions() const override {
    return state_.peer ? state_.peer->region_span() : std::span<const RemoteRegion>();
  }
  Status Stage(std::span<const WorkRequest> wrs, size_t* bad_index) override;
  Status Push(std::span<const WorkRequest> wrs, size_t* bad_index) override;
  size_t Pop(std::span<Completion> out) override { return state_.Pop(out); }
  uint32_t outstanding() const override { return state_.outstanding(); }

  // ---- for the pool
  pool::QueueState& state() { return state_; }
  size_t memory_bytes() const { return sizeof(*this) + state_.memory_bytes(); }
  // The pool is about to go: from now on every call but Pop fails.
  void ForgetPool();

 private:
  StatusCode StageSlowly(std::span<const WorkRequest> wrs, size_t* bad_index);
  StatusCode StandingError() const;

  pool::QueuePoolImpl* pool_;
  pool::PhysicalQueue* physical_ = nullptr;
  pool::QueueState state_;
};

}  // namespace krcore::vqp

#endif  // KRCORE_VQP_VIRTUAL_QUEUE_IMPL_H_
