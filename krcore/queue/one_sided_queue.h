// OneSidedQueue: the one-sided part of a pool's VirtualQueue: checks requests and hands them to the PhysicalQueue that
// reaches its peer. messages/ adds the rest through the calls marked "for messages/".
#ifndef KRCORE_QUEUE_ONE_SIDED_QUEUE_H_
#define KRCORE_QUEUE_ONE_SIDED_QUEUE_H_

#include <cstdint>
#include <memory>
#include <span>
#include <utility>

#include "krcore/queue/one_sided_ring.h"
#include "krcore/queue/physical_queue.h"
#include "krcore/queue/queue_state.h"
#include "krcore/queue/request_check.h"
#include "krcore/virtual_queue.h"

namespace krcore::queue {

class QueuePoolImpl;

class OneSidedQueue : public QueueWithoutMessages {
 public:
  OneSidedQueue(QueuePoolImpl& pool, uint32_t depth);
  ~OneSidedQueue() override;

  using QueueWithoutMessages::Connect;
  Status Connect(NodeId peer, Deadline deadline) override;
  NodeId peer() const final { return state_.peer ? state_.peer->target.address.node : kNoNode; }
  uint32_t peer_incarnation() const final { return state_.peer ? state_.peer->target.address.incarnation : 0; }
  std::span<const RemoteRegion> regions() const final {
    return state_.peer ? state_.peer->region_span() : std::span<const RemoteRegion>();
  }
  Status Stage(std::span<const WorkRequest> wrs, size_t* bad_index) final;
  Status Push(std::span<const WorkRequest> wrs, size_t* bad_index) final;
  void Prefetch(std::span<const WorkRequest> wrs) final {
    if (state_.standing == QueueStanding::kReady && !wrs.empty())
      physical_->Prefetch(wrs, state_.peer->ah.get(), wrs[0].rkey);
  }
  size_t Pop(std::span<Completion> out) final { return forked() ? 0 : state_.Pop(out); }
  uint32_t outstanding() const final { return forked() ? 0 : state_.outstanding(); }

  // ---- for the pool
  QueueState& state() { return state_; }
  virtual size_t memory_bytes() const { return sizeof(*this) + state_.memory_bytes(); }
  // Requests accepted from now on go through another physical queue.
  void MoveTo(PhysicalQueue& physical) { physical_ = &physical; }
  // For messages/: the pool is about to go, but still polls.
  virtual void PoolWillGo() {}
  // From now on every call but Pop fails. PoolWillGo of every queue comes first.
  void ForgetPool();

  // ---- for code that reaches a peer without a metadata server
  bool ready() const { return state_.standing == QueueStanding::kReady; }
  bool has_room() const { return physical_->free() > 0 && state_.used() < state_.depth(); }
  void Adopt(std::shared_ptr<const peers::Peer> peer) { UsePeer(std::move(peer)); }

 protected:
  // For messages/: stages a batch that contains a request that is not one-sided.
  virtual StatusCode StageMixed(std::span<const WorkRequest>, size_t* /*bad_index*/) {
    return StatusCode::kUnsupported;
  }
  Status MayConnect() const;
  Status FindPeer(NodeId peer, Deadline deadline, std::shared_ptr<const peers::Peer>* metadata);
  void UsePeer(std::shared_ptr<const peers::Peer> peer);
  // Stages a request that has passed its check, polling for room. `first`: nothing of its batch has been accepted yet.
  StatusCode StageOne(const WorkRequest& wr, bool first);
  StatusCode StandingError() const;

  QueuePoolImpl* pool_;  // null: it has gone
  PhysicalQueue* physical_ = nullptr;
  QueueState state_;

 private:
  // Pushes `wrs` in fewer steps if they would be accepted, posted and completed in one go. False: that cannot be, they
  // are not like what passed before, or something is wrong; then nothing has been done.
  bool ExecuteAtOnce(std::span<const WorkRequest> wrs);
  StatusCode Accept(std::span<const WorkRequest> wrs, size_t* bad_index);
  StatusCode StageSlowly(std::span<const WorkRequest> wrs, size_t* bad_index);
  // Returns what earlier requests that passed were like, as long as the regions are the same.
  LikeRequest* Like(const peers::RegionView& local, const peers::Peer& peer) {
    if (like_local_ != local.version() || like_peer_ != &peer) [[unlikely]] {
      like_ = {};
      like_local_ = local.version();
      like_peer_ = &peer;
    }
    return &like_;
  }

  LikeRequest like_;
  uint64_t like_local_ = 0;                 // of version 0, which no RegionView has
  const peers::Peer* like_peer_ = nullptr;  // state_.peer, or a former one since Connect, so alive
};

}  // namespace krcore::queue

#endif  // KRCORE_QUEUE_ONE_SIDED_QUEUE_H_
