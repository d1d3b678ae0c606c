#include "krcore/queue/rc_queues.h"

#include <algorithm>
#include <span>
#include <utility>

#include "krcore/peers/meta_client.h"
#include "krcore/queue/one_sided_queue.h"
#include "krcore/queue/queue_pool_impl.h"

namespace krcore::queue {
namespace {

constexpr int64_t kTryAgainNs = 10'000'000'000;  // for a peer that gave none
constexpr int64_t kCloseNs = 100'000'000;
constexpr uint32_t kMaxCloseSpins = 1u << 14;  // bound of the same wait if a clock stands still

bool SameTarget(const peers::Target& a, const peers::Target& b) {
  return a.dc_key == b.dc_key && a.dct_num == b.dct_num;
}

}  // namespace

RcQueues::RcQueues(QueuePoolImpl& pool, uint32_t slots, uint32_t hot_wrs, int64_t patience_ns)
    : pool_(pool), hot_wrs_(hot_wrs), patience_ns_(patience_ns), slots_(slots) {}

void RcQueues::SetState(Slot& slot, State state) {
  const auto is_busy = [](State s) { return s != State::kFree && s != State::kInUse; };
  busy_ += static_cast<uint32_t>(is_busy(state)) - static_cast<uint32_t>(is_busy(slot.state));
  slot.state = state;
  slot.wait_for_idle_until_ns = 0;
}

// ---- which peers

void RcQueues::CountHeat(int64_t now_ns, uint64_t intervals) {
  peers_.clear();
  for (OneSidedQueue* queue : pool_.virtual_queues()) {
    QueueState& state = queue->state();
    const uint64_t wrs = state.TakeAccepted();
    state.heat.Add(wrs, intervals);
    if (state.standing != QueueStanding::kReady) continue;
    auto found = std::find_if(peers_.begin(), peers_.end(), [&](const PeerHeat& entry) {
      return SameTarget(entry.peer->target, state.peer->target);
    });
    if (found == peers_.end()) found = peers_.insert(found, {state.peer, 0, 0, true});
    if (found->peer->desk.length == 0) found->peer = state.peer;
    found->wrs += wrs;
    found->heat += state.heat.average();
    found->may_connect &= state.stay_on_dc_until_ns <= now_ns;
  }
}

void RcQueues::Tick(int64_t now_ns) {
  if (now_ns < due_ns_) return;
  const int64_t passed_ns = last_tick_ns_ == INT64_MIN ? kHeatIntervalNs : now_ns - last_tick_ns_;
  last_tick_ns_ = now_ns;
  due_ns_ = now_ns + kHeatIntervalNs;
  CountHeat(now_ns, std::max<uint64_t>(1, static_cast<uint64_t>(passed_ns / kHeatIntervalNs)));
  for (Slot& slot : slots_) {
    if (slot.state == State::kInUse) slot.heat = 0;
  }
  const PeerHeat* hottest = nullptr;
  for (const PeerHeat& entry : peers_) {
    const auto slot = std::find_if(slots_.begin(), slots_.end(), [&](const Slot& s) {
      return s.state != State::kFree && SameTarget(s.peer->target, entry.peer->target);
    });
    if (slot != slots_.end()) {
      slot->heat = entry.heat;
      if (entry.wrs != 0) slot->last_used_ns = now_ns;
    } else if (entry.may_connect && entry.peer->desk.length != 0 && entry.heat >= hot_wrs_ &&
               (hottest == nullptr || entry.heat > hottest->heat)) {
      hottest = &entry;
    }
  }
  if (hottest != nullptr && !Connect(hottest->peer)) {
    // The victim's slot becomes free some polls later; the next tick finds the peer hot again.
    if (Slot* const victim = LeastRecentlyUsed(); victim != nullptr && FreeSlot() == nullptr) LeaveSlot(*victim);
  }
  peers_.clear();  // so that it keeps no metadata alive
  if (!link_busy_ && pool_.context().meta != nullptr) WorkOnLink(false);
}

RcQueues::Slot* RcQueues::FreeSlot() {
  const auto free = std::find_if(slots_.begin(), slots_.end(), [](const Slot& s) { return s.state == State::kFree; });
  return free == slots_.end() ? nullptr : &*free;
}

// Returns the slot used least recently among peers that are no longer hot, so that more hot peers than slots do not
// keep taking them from one another. Null while one is already being given up.
RcQueues::Slot* RcQueues::LeastRecentlyUsed() {
  Slot* victim = nullptr;
  for (Slot& slot : slots_) {
    if (slot.state == State::kLeaving || slot.state == State::kTelling) return nullptr;
    if (slot.state != State::kInUse || slot.heat >= hot_wrs_ / 2) continue;
    if (victim == nullptr || slot.last_used_ns < victim->last_used_ns) victim = &slot;
  }
  return victim;
}

PhysicalQueue* RcQueues::Find(const peers::Target& target) const {
  for (const Slot& slot : slots_) {
    if ((slot.state == State::kInUse || slot.state == State::kLeaving) && SameTarget(slot.peer->target, target))
      return slot.queue;
  }
  return nullptr;
}

void RcQueues::Leave(NodeId peer) {
  for (Slot& slot : slots_) {
    if (slot.state == State::kInUse && slot.peer->target.address.node == peer) LeaveSlot(slot);
  }
}

uint32_t RcQueues::in_use() const {
  return static_cast<uint32_t>(
      std::count_if(slots_.begin(), slots_.end(), [](const Slot& s) { return s.state == State::kInUse; }));
}

size_t RcQueues::memory_bytes() const {
  size_t bytes = sizeof(*this) + slots_.size() * sizeof(Slot) + (connector_ ? connector_->memory_bytes() : 0);
  for (const Slot& slot : slots_) bytes += slot.own_memory ? slot.own_memory->bytes().size() : 0;
  return bytes;
}

// ---- asking for a connection

bool RcQueues::Connect(const std::shared_ptr<const peers::Peer>& peer) {
  const uint32_t node = pool_.context().self.address.node;
  if (peer->desk.length < sizeof(peers::DeskPlace) || node >> peers::kPlaceOwnerNodeBits != 0) return false;
  for (const Slot& slot : slots_) {
    if (slot.state != State::kFree && SameTarget(slot.peer->target, peer->target)) return false;
  }
  Slot* const slot = FreeSlot();
  if (slot == nullptr) return false;
  slot->peer = peer;
  slot->dc = pool_.physical().DcQueueFor(peer->target);
  slot->last_used_ns = last_tick_ns_;
  slot->heat = hot_wrs_;
  SetState(*slot, State::kAsking);
  return true;
}

Status RcQueues::NeedOwnMemory(Slot& slot) {
  if (slot.own_memory != nullptr) return {};
  auto memory = pool_.node().CreateRegion({.length = PhysicalQueue::OwnMemoryBytes(slot.queue->depth())});
  if (!memory.ok()) return memory.status();
  slot.own_memory = *std::move(memory);
  slot.queue->UseOwnMemory(slot.own_memory->bytes().data(), slot.own_memory->lkey());
  return {};
}

Status RcQueues::NeedOwnMemory() {
  for (Slot& slot : slots_) {
    if (slot.queue != nullptr) KRCORE_RETURN_IF_ERROR(NeedOwnMemory(slot));
  }
  return {};
}

Status RcQueues::MakeQueue(Slot& slot) {
  if (slot.queue == nullptr) slot.queue = pool_.physical().MakeRcQueue(LaneOf(slot));
  if (pool_.has_own_memory()) KRCORE_RETURN_IF_ERROR(NeedOwnMemory(slot));
  auto qp = pool_.physical().CreateRcQp();
  if (!qp.ok()) return qp.status();
  KRCORE_RETURN_IF_ERROR((*qp)->ToInit(0, 0));  // the peer posts nothing
  slot.qp = *std::move(qp);
  return {};
}

// Makes the local half before anything is asked for: the first time the connector, the next time the rest. False: it
// cannot be made.
bool RcQueues::BeginAsking(Slot& slot) {
  if (connector_ == nullptr) {
    auto made =
        peers::Connector::Create(*pool_.context().device, *pool_.context().pd, static_cast<uint32_t>(slots_.size()));
    if (made.ok()) connector_ = *std::move(made);
    return connector_ != nullptr;
  }
  if (!MakeQueue(slot).ok()) return false;
  peers::DeskRequest request;
  request.address = pool_.context().self.address;
  request.owner = NewOwner();
  request.qpn = slot.qp->num();
  const uint32_t first_place =
      peers::PlaceOwnerNode(request.owner) + peers::PlaceOwnerNumber(request.owner);  // peers begin at different places
  slot.handshake.Begin(*connector_, LaneOf(slot), slot.peer, request, first_place);
  return true;
}

uint64_t RcQueues::NewOwner() {
  // Relaxed: numbers tell the connections of the node apart, and pair with nothing.
  const uint32_t number = pool_.context().owners->fetch_add(1, std::memory_order_relaxed);
  const rnic::DeviceAddress& self = pool_.context().self.address;
  return peers::PlaceOwner(self.node, number, self.incarnation);
}

void RcQueues::WorkOnLink(bool may_take_a_while) {
  if (pool_.context().self.address.node >> peers::kPlaceOwnerNodeBits != 0) return;
  link_busy_ = pool_.context().meta->WorkOnLink([this] { return NewOwner(); }, may_take_a_while);
}

void RcQueues::GiveUp(Slot& slot) {
  ++pool_.mutable_stats().rc_refusals;
  slot.qp.reset();
  const int64_t until_ns = pool_.node().clock().NowNs() + kTryAgainNs;
  for (OneSidedQueue* queue : pool_.virtual_queues()) {
    QueueState& state = queue->state();
    if (state.peer != nullptr && SameTarget(state.peer->target, slot.peer->target))
      state.stay_on_dc_until_ns = until_ns;
  }
  Tell(slot);
}

// ---- moving

void RcQueues::MoveQueues(const Slot& slot, PhysicalQueue& queue) {
  for (OneSidedQueue* user : pool_.virtual_queues()) {
    const auto& peer = user->state().peer;
    if (peer != nullptr && SameTarget(peer->target, slot.peer->target)) user->MoveTo(queue);
  }
}

void RcQueues::SwitchToRc(Slot& slot, uint32_t qpn) {
  if (!slot.qp->ToRtr({.device = slot.peer->target.address, .qpn = qpn}).ok() || !slot.qp->ToRts().ok())
    return GiveUp(slot);
  ++pool_.mutable_stats().rc_connects;
  slot.queue->Connect(std::move(slot.qp));
  // WRs pushed from now on are staged in `slot.queue` until all earlier ones have completed.
  slot.marker = slot.dc->PositionBehind(slot.peer->target.dc_key);
  ++blocked_;
  SetState(slot, State::kInUse);
  pool_.physical().UseRcQueue(*slot.queue);
  MoveQueues(slot, *slot.queue);
}

void RcQueues::LeaveSlot(Slot& slot) {
  ++pool_.mutable_stats().rc_reclaims;
  if (!slot.queue->blocked()) ++blocked_;
  slot.queue->Block();
  SetState(slot, State::kLeaving);
}

size_t RcQueues::Advance() {
  size_t completed = 0;
  for (Slot& slot : slots_) {
    if (slot.state == State::kInUse && slot.queue->blocked() && slot.dc->HasPassed(slot.marker)) {
      --blocked_;
      completed += slot.queue->Unblock();
    } else if (slot.state == State::kLeaving && slot.queue->nothing_posted() && !slot.queue->broken() &&
               !slot.dc->broken()) {
      completed += slot.queue->MoveStagedTo(*slot.dc);
    }
  }
  return completed;
}

// The RC queue is idle: everything has completed or moved, so the DC initiator continues where it ended.
void RcQueues::Left(Slot& slot) {
  --blocked_;
  MoveQueues(slot, *slot.dc);
  pool_.physical().ForgetRcQueue(*slot.queue);
  slot.queue->Disconnect();
  Tell(slot);
}

void RcQueues::Recovered(PhysicalQueue& queue, uint64_t recovery) {
  for (Slot& slot : slots_) {
    if (slot.state != State::kInUse && slot.state != State::kLeaving) continue;
    if (slot.queue == &queue) {
      if (slot.state == State::kLeaving) continue;
      ++blocked_;  // Recover has blocked it
      ++pool_.mutable_stats().rc_reclaims;
      SetState(slot, State::kLeaving);
    } else if (slot.dc == &queue && slot.queue->blocked() && slot.queue->nothing_posted()) {
      slot.queue->FlushBehind(recovery);
    }
  }
}

PhysicalQueue* RcQueues::HoldsUp(PhysicalQueue& queue) {
  if (!queue.blocked() || !queue.nothing_posted()) return &queue;
  for (Slot& slot : slots_) {
    if (slot.queue == &queue) return slot.dc;
  }
  return &queue;
}

// ---- telling the peer

void RcQueues::Tell(Slot& slot) {
  SetState(slot, State::kTelling);
  slot.handshake.Close();
  FreeIfTold(slot);
}

void RcQueues::FreeIfTold(Slot& slot) {
  if (slot.handshake.state() != peers::Handshake::State::kIdle) return;
  slot.peer = nullptr;
  SetState(slot, State::kFree);
}

// ---- at each poll

bool RcQueues::MayTakeAWhile(Slot& slot, int64_t now_ns) {
  if (slot.wait_for_idle_until_ns == 0) slot.wait_for_idle_until_ns = now_ns + patience_ns_;
  if (!idle_ && now_ns < slot.wait_for_idle_until_ns) return false;
  slot.wait_for_idle_until_ns = 0;
  return true;
}

// Returns true if that may have taken a while.
bool RcQueues::WorkOn(Slot& slot, int64_t now_ns) {
  if (slot.state == State::kFree || slot.state == State::kInUse) return false;
  if (slot.state == State::kAsking && slot.qp == nullptr) {
    if (!MayTakeAWhile(slot, now_ns)) return false;
    if (!BeginAsking(slot)) GiveUp(slot);
    return true;
  }
  if (slot.state == State::kLeaving) {
    if (!slot.queue->idle() || slot.queue->broken() || !MayTakeAWhile(slot, now_ns)) return false;
    Left(slot);
    return true;
  }
  slot.handshake.Step(now_ns);
  if (slot.state == State::kTelling) {
    FreeIfTold(slot);
    return false;
  }
  if (slot.handshake.state() == peers::Handshake::State::kFailed) GiveUp(slot);
  if (slot.handshake.state() != peers::Handshake::State::kAnswered || !MayTakeAWhile(slot, now_ns)) return false;
  SwitchToRc(slot, slot.handshake.peer_qpn());
  return true;
}

void RcQueues::Work(bool idle) {
  idle_ = idle;
  if (connector_ != nullptr) connector_->Poll();
  const int64_t now_ns = pool_.node().clock().NowNs();
  for (Slot& slot : slots_) {
    if (WorkOn(slot, now_ns)) return;
  }
  if (!link_busy_) return;
  if (link_waits_until_ns_ == 0) link_waits_until_ns_ = now_ns + patience_ns_;
  const bool may_take_a_while = idle || now_ns >= link_waits_until_ns_;
  if (may_take_a_while) link_waits_until_ns_ = 0;
  WorkOnLink(may_take_a_while);
}

void RcQueues::Close() {
  for (Slot& slot : slots_) {
    if (slot.state == State::kInUse || slot.state == State::kLeaving)
      slot.queue->Disconnect();  // drops what is in flight
    slot.qp.reset();
    if (slot.state != State::kFree && slot.state != State::kTelling) Tell(slot);
  }
  Clock& clock = pool_.node().clock();
  const Deadline deadline = Deadline::After(clock, kCloseNs);
  for (uint32_t spins = 0; busy_ != 0 && spins < kMaxCloseSpins && !deadline.Passed(clock); ++spins) {
    connector_->Poll();
    for (Slot& slot : slots_) {
      if (slot.state == State::kFree) continue;
      slot.handshake.Step(clock.NowNs());
      FreeIfTold(slot);
    }
    if (busy_ != 0) clock.Relax(spins);
  }
}

}  // namespace krcore::queue
