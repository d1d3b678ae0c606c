// RcQueues: the RC queues of a pool. Decides which peers are hot enough for one, agrees on it with the peer, and moves
// the peer's VirtualQueues to it and back. docs/krcore.md, "RC queues for hot peers".
//
// A slot goes through its states in this order; after a failure it continues with kTelling, or is free.
//
//     kFree
//     kAsking      peers/rc_handshake.h agrees with the peer
//     kInUse       the peer's VirtualQueues use it; its queue is blocked until the DC initiator has passed `marker`
//     kLeaving     its queue is blocked: what is posted completes, what is staged moves to the DC initiator
//     kTelling     ... and the peer is told that the connection is closed
//
// All queues to one incarnation of a peer move together, so that requests to one peer stay in order.
//
// Thread safety: belongs to the pool's thread. Nothing blocks, except Close.
#ifndef KRCORE_QUEUE_RC_QUEUES_H_
#define KRCORE_QUEUE_RC_QUEUES_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "krcore/clock.h"
#include "krcore/node.h"
#include "krcore/peers/peer.h"
#include "krcore/peers/rc_handshake.h"
#include "krcore/queue/physical_queue.h"
#include "krcore/rnic.h"

namespace krcore::queue {

class QueuePoolImpl;

inline constexpr int64_t kHeatIntervalNs = 10'000'000;

class RcQueues {
 public:
  RcQueues(QueuePoolImpl& pool, uint32_t slots, uint32_t hot_wrs, int64_t patience_ns);

  // ---- which peers
  // The time at which Tick is due.
  int64_t due_ns() const { return due_ns_; }
  // Counts the WRs accepted since the last call. Asks a hot peer for a connection and, if need be, takes for it the
  // slot of a peer that is hot no longer. At most one per call.
  void Tick(int64_t now_ns);
  // As if the peer were hot. False: it takes no connections, has one, or no slot is free.
  bool Connect(const std::shared_ptr<const peers::Peer>& peer);
  // Gives up the peer's RC queue.
  void Leave(NodeId peer);

  // ---- the peer's queue
  // Returns null if the peer has none.
  PhysicalQueue* Find(const peers::Target& target) const;

  // ---- at each poll
  // Whether some peer's connection is being made or given up.
  bool busy() const { return busy_ != 0; }
  // ... or the one to the metadata server.
  bool has_work() const { return busy_ != 0 || link_busy_; }
  // Works on those connections. Called by QueuePool::Poll alone, because it moves VirtualQueues. Creates, connects or
  // destroys at most one QP per call; while the pool is not `idle`, only one that has been delayed for patience_ns.
  void Work(bool idle);
  // Moves or unblocks the blocked queues whose turn it is; before each round of doorbells. Returns how many WRs
  // completed.
  size_t Advance();
  bool any_blocked() const { return blocked_ != 0; }
  // `queue` has recovered: it is the broken RC queue of a peer, or WRs staged elsewhere behind its own must be flushed.
  void Recovered(PhysicalQueue& queue, uint64_t recovery);
  // The queue that `queue` waits for, or itself.
  PhysicalQueue* HoldsUp(PhysicalQueue& queue);

  // ---- the pool's
  // Gives every queue made so far registered memory for krcore's own WRs.
  Status NeedOwnMemory();
  // Tells the peers that the connections are closed, and waits for that within a bound.
  void Close();
  uint32_t in_use() const;
  size_t memory_bytes() const;

 private:
  enum class State : uint8_t { kFree, kAsking, kInUse, kLeaving, kTelling };
  struct Slot {
    State state = State::kFree;
    std::shared_ptr<const peers::Peer> peer;
    std::unique_ptr<rnic::Qp> qp;  // until it is connected
    peers::Handshake handshake;
    int64_t wait_for_idle_until_ns = 0;  // 0: waits for nothing
    PhysicalQueue* dc = nullptr;         // how the peer is reached without it
    uint64_t marker = 0;
    int64_t last_used_ns = 0;
    uint64_t heat = 0;

    PhysicalQueue* queue = nullptr;  // the pool's; stays once made
    std::unique_ptr<Region> own_memory;
  };

  // Returns a name for the node's next connection at a desk.
  uint64_t NewOwner();
  void WorkOnLink(bool may_take_a_while);
  uint32_t LaneOf(const Slot& slot) const { return static_cast<uint32_t>(&slot - slots_.data()); }
  void SetState(Slot& slot, State state);
  void CountHeat(int64_t now_ns, uint64_t intervals);
  Slot* FreeSlot();
  Slot* LeastRecentlyUsed();
  Status MakeQueue(Slot& slot);
  Status NeedOwnMemory(Slot& slot);
  bool BeginAsking(Slot& slot);
  void SwitchToRc(Slot& slot, uint32_t qpn);
  void LeaveSlot(Slot& slot);
  void Left(Slot& slot);
  void GiveUp(Slot& slot);
  void Tell(Slot& slot);
  void FreeIfTold(Slot& slot);
  // Every VirtualQueue to the slot's peer uses `queue` from now on.
  void MoveQueues(const Slot& slot, PhysicalQueue& queue);
  // Whether the slot's next step may be one that takes a while.
  bool MayTakeAWhile(Slot& slot, int64_t now_ns);
  bool WorkOn(Slot& slot, int64_t now_ns);

  QueuePoolImpl& pool_;
  const uint64_t hot_wrs_;
  const int64_t patience_ns_;
  int64_t due_ns_ = INT64_MIN;
  int64_t last_tick_ns_ = INT64_MIN;
  uint32_t busy_ = 0;     // slots that are neither free nor steadily in use
  uint32_t blocked_ = 0;  // slots in kInUse or kLeaving whose queue may be blocked
  bool idle_ = false;     // as passed to Work
  bool link_busy_ = false;
  int64_t link_waits_until_ns_ = 0;  // for an idle Poll; 0: it does not wait
  std::vector<Slot> slots_;
  std::unique_ptr<peers::Connector> connector_;
  struct PeerHeat {
    std::shared_ptr<const peers::Peer> peer;
    uint64_t wrs, heat;
    bool may_connect;
  };
  std::vector<PeerHeat> peers_;  // for CountHeat
};

}  // namespace krcore::queue

#endif  // KRCORE_QUEUE_RC_QUEUES_H_
