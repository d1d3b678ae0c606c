#include "krcore/pool/rc_queues.h"

#include <algorithm>
#include <span>
#include <utility>

#include "krcore/msg/wire.h"
#include "krcore/pool/queue_pool_impl.h"
#include "krcore/vqp/virtual_queue_impl.h"

namespace krcore::pool {
namespace {

using Outcome = rc::Connector::Outcome;

constexpr uint32_t kMaxPlaceTries = 16;    // places that may be found taken
constexpr uint32_t kMaxFailures = 8;       // of one verb
constexpr uint32_t kMaxTellFailures = 64;  // nobody waits for it, and the peer would keep its half
constexpr int64_t kFirstAskNs = 50'000;
constexpr int64_t kMaxAskNs = 50'000'000;
constexpr int64_t kAnswerNs = 5'000'000'000;     // a node answers once a second or more often
constexpr int64_t kTryAgainNs = 10'000'000'000;  // a peer that did not
constexpr int64_t kCloseNs = 100'000'000;
constexpr uint32_t kMaxCloseSpins = 1u << 14;  // bound of the same wait when a clock stands still

bool SameTarget(const dct::Target& a, const dct::Target& b) { return a.dc_key == b.dc_key && a.dct_num == b.dct_num; }

}  // namespace

RcQueues::RcQueues(QueuePoolImpl& pool, uint32_t slots, uint32_t hot_wrs, int64_t patience_ns)
    : pool_(pool), hot_wrs_(hot_wrs), patience_ns_(patience_ns), slots_(slots) {}

void RcQueues::SetState(Slot& slot, State state) {
  const auto is_busy = [](State s) { return s != State::kFree && s != State::kInUse; };
  busy_ += static_cast<uint32_t>(is_busy(state)) - static_cast<uint32_t>(is_busy(slot.state));
  slot.state = state;
  slot.tries = 0;
  slot.wait_for_idle_until_ns = 0;
}

// ---- which peers

void RcQueues::CountHeat(int64_t now_ns, uint64_t intervals) {
  peers_.clear();
  for (vqp::VirtualQueueImpl* queue : pool_.virtual_queues()) {
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
    // Its slot is free some polls later; the peer is found hot again at the next tick.
    if (Slot* const victim = LeastRecentlyUsed(); victim != nullptr && FreeSlot() == nullptr) LeaveSlot(*victim);
  }
  peers_.clear();  // keeps no metadata alive
}

RcQueues::Slot* RcQueues::FreeSlot() {
  const auto free = std::find_if(slots_.begin(), slots_.end(), [](const Slot& s) { return s.state == State::kFree; });
  return free == slots_.end() ? nullptr : &*free;
}

// Of those that are hot no more, so that more hot peers than slots do not take them from one another again and again.
// Null while one is on its way out already.
RcQueues::Slot* RcQueues::LeastRecentlyUsed() {
  Slot* victim = nullptr;
  for (Slot& slot : slots_) {
    if (slot.state == State::kLeaving || slot.state == State::kTelling) return nullptr;
    if (slot.state != State::kInUse || slot.heat >= hot_wrs_ / 2) continue;
    if (victim == nullptr || slot.last_used_ns < victim->last_used_ns) victim = &slot;
  }
  return victim;
}

PhysicalQueue* RcQueues::Find(const dct::Target& target) const {
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

bool RcQueues::Connect(const std::shared_ptr<const dct::Peer>& peer) {
  const uint32_t node = pool_.context().self.address.node;
  if (peer->desk.length < sizeof(rc::Place) || node >> msg::kOwnerNodeBits != 0) return false;
  for (const Slot& slot : slots_) {
    if (slot.state != State::kFree && SameTarget(slot.peer->target, peer->target)) return false;
  }
  Slot* const slot = FreeSlot();
  if (slot == nullptr) return false;
  slot->peer = peer;
  slot->dc = pool_.DcQueueFor(peer->target);
  // Numbers tell the connections of the node apart; pairs with nothing.
  const uint32_t number = pool_.context().senders->fetch_add(1, std::memory_order_relaxed);
  slot->owner = msg::OwnerWord(node, number, pool_.context().self.address.incarnation);
  slot->place = static_cast<uint32_t>((node + number) % (peer->desk.length / sizeof(rc::Place)));  // peers begin apart
  slot->last_used_ns = last_tick_ns_;
  slot->heat = hot_wrs_;
  SetState(*slot, State::kClaiming);
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
  if (slot.queue == nullptr) slot.queue = pool_.MakeRcQueue(LaneOf(slot));
  if (pool_.has_own_memory()) KRCORE_RETURN_IF_ERROR(NeedOwnMemory(slot));
  auto qp = pool_.CreateRcQp();
  if (!qp.ok()) return qp.status();
  KRCORE_RETURN_IF_ERROR((*qp)->ToInit(0, 0));  // the peer posts nothing
  slot.qp = *std::move(qp);
  return {};
}

// The local half, before anything is asked for; the first time the connector, the next time the rest. False: it cannot
// be made.
bool RcQueues::BeginClaim(Slot& slot) {
  if (connector_ == nullptr) {
    auto made =
        rc::Connector::Create(*pool_.context().device, *pool_.context().pd, static_cast<uint32_t>(slots_.size()));
    if (made.ok()) connector_ = *std::move(made);
    return connector_ != nullptr;
  }
  if (!MakeQueue(slot).ok()) return false;
  Claim(slot);
  return true;
}

void RcQueues::Claim(Slot& slot) {
  connector_->CompareSwap(LaneOf(slot), *slot.peer, PlaceOffset(slot) + offsetof(rc::Place, owner), 0, slot.owner);
}

void RcQueues::Claimed(Slot& slot) {
  if (connector_->outcome(LaneOf(slot)) == Outcome::kFailed) {
    // It may have been done; then the same CAS finds its own word.
    if (++slot.tries == kMaxFailures || PeerIsDead(slot)) return GiveUp(slot, false);
    return Claim(slot);
  }
  const uint64_t found = connector_->word(LaneOf(slot));
  if (found == 0 || found == slot.owner) {
    SetState(slot, State::kRequesting);
    return WriteRequest(slot);
  }
  const auto places = static_cast<uint32_t>(slot.peer->desk.length / sizeof(rc::Place));
  if (++slot.tries >= std::min(kMaxPlaceTries, places)) return GiveUp(slot, false);
  slot.place = (slot.place + 1) % places;
  Claim(slot);
}

void RcQueues::WriteRequest(Slot& slot) {
  rc::Request request;
  request.owner = slot.owner;
  request.address = pool_.context().self.address;
  request.qpn = slot.qp->num();
  request.checksum = rc::ChecksumOf(request);
  connector_->Write(LaneOf(slot), *slot.peer, PlaceOffset(slot) + offsetof(rc::Place, request),
                    std::as_bytes(std::span(&request, 1)));
}

void RcQueues::Requested(Slot& slot) {
  if (connector_->outcome(LaneOf(slot)) == Outcome::kFailed) {
    if (++slot.tries == kMaxFailures || PeerIsDead(slot)) return GiveUp(slot, true);
    return WriteRequest(slot);
  }
  SetState(slot, State::kAsking);
  const int64_t now_ns = pool_.node().clock().NowNs();
  slot.ask_at_ns = now_ns;
  slot.give_up_ns = now_ns + kAnswerNs;
}

void RcQueues::Asked(Slot& slot, int64_t now_ns) {
  const uint32_t lane = LaneOf(slot);
  const auto read = [&] {
    connector_->Read(lane, *slot.peer, PlaceOffset(slot) + offsetof(rc::Place, answer));
    slot.ask_at_ns = now_ns + std::min(kFirstAskNs << std::min(slot.tries++, 16u), kMaxAskNs);
    slot.answer_is_due = true;
  };
  if (slot.tries == 0) return read();
  const bool answered =
      connector_->outcome(lane) == Outcome::kDone && rc::IsAnswerTo(slot.owner, connector_->word(lane));
  if (answered && !MayTakeAWhile(slot, now_ns)) return;
  if (std::exchange(slot.answer_is_due, false)) {  // once a READ: whether the peer lives takes a system call
    if (connector_->outcome(lane) == Outcome::kFailed) {
      if (PeerIsDead(slot)) return GiveUp(slot, true);
    } else if (answered) {
      const uint32_t qpn = rc::AnsweredQpn(connector_->word(lane));
      return qpn == 0 ? GiveUp(slot, true) : SwitchToRc(slot, qpn);
    }
  }
  if (now_ns >= slot.give_up_ns) return GiveUp(slot, true);
  if (now_ns >= slot.ask_at_ns) read();
}

void RcQueues::GiveUp(Slot& slot, bool claimed) {
  ++pool_.mutable_stats().rc_refusals;
  slot.qp.reset();
  const int64_t until_ns = pool_.node().clock().NowNs() + kTryAgainNs;
  for (vqp::VirtualQueueImpl* queue : pool_.virtual_queues()) {
    QueueState& state = queue->state();
    if (state.peer != nullptr && SameTarget(state.peer->target, slot.peer->target))
      state.stay_on_dc_until_ns = until_ns;
  }
  if (claimed) return Tell(slot);
  slot.peer = nullptr;
  SetState(slot, State::kFree);
}

// ---- moving

void RcQueues::MoveQueues(const Slot& slot, PhysicalQueue& queue) {
  for (vqp::VirtualQueueImpl* user : pool_.virtual_queues()) {
    const auto& peer = user->state().peer;
    if (peer != nullptr && SameTarget(peer->target, slot.peer->target)) user->MoveTo(queue);
  }
}

void RcQueues::SwitchToRc(Slot& slot, uint32_t qpn) {
  if (!slot.qp->ToRtr({.device = slot.peer->target.address, .qpn = qpn}).ok() || !slot.qp->ToRts().ok())
    return GiveUp(slot, true);
  ++pool_.mutable_stats().rc_connects;
  slot.queue->Connect(std::move(slot.qp));
  // What is pushed from now on is staged there until all before it has completed.
  slot.marker = slot.dc->PositionBehind(slot.peer->target.dc_key);
  ++blocked_;
  SetState(slot, State::kInUse);
  pool_.UseRcQueue(*slot.queue);
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

// Its queue is idle: everything has completed or has moved, so the DC initiator goes on where it ended.
void RcQueues::Left(Slot& slot) {
  --blocked_;
  MoveQueues(slot, *slot.dc);
  pool_.ForgetRcQueue(*slot.queue);
  slot.queue->Disconnect();
  Tell(slot);
}

void RcQueues::Recovered(PhysicalQueue& queue, uint64_t recovery) {
  for (Slot& slot : slots_) {
    if (slot.state != State::kInUse && slot.state != State::kLeaving) continue;
    if (slot.queue == &queue) {
      if (slot.state == State::kLeaving) continue;
      ++blocked_;  // by Recover
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

bool RcQueues::PeerIsDead(const Slot& slot) const {
  return pool_.context().device->QueryPeer(slot.peer->target.address) == rnic::PeerState::kDead;
}

void RcQueues::Tell(Slot& slot) {
  SetState(slot, State::kTelling);
  WriteClosing(slot);
}

void RcQueues::WriteClosing(Slot& slot) {
  connector_->Write(LaneOf(slot), *slot.peer, PlaceOffset(slot) + offsetof(rc::Place, closing),
                    std::as_bytes(std::span(&slot.owner, 1)));
}

// A peer that cannot be told finds out when this node has closed or died.
void RcQueues::Told(Slot& slot) {
  if (connector_->outcome(LaneOf(slot)) == Outcome::kFailed && ++slot.tries < kMaxTellFailures && !PeerIsDead(slot))
    return WriteClosing(slot);
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

// True if that may have taken a while.
bool RcQueues::WorkOn(Slot& slot, int64_t now_ns) {
  if (slot.state == State::kFree || slot.state == State::kInUse) return false;
  if (slot.state == State::kClaiming && slot.qp == nullptr) {
    if (!MayTakeAWhile(slot, now_ns)) return false;
    if (!BeginClaim(slot)) GiveUp(slot, false);
    return true;
  }
  if (slot.state == State::kLeaving) {
    if (!slot.queue->idle() || slot.queue->broken() || !MayTakeAWhile(slot, now_ns)) return false;
    Left(slot);
    return true;
  }
  if (connector_->outcome(LaneOf(slot)) == Outcome::kUnderWay) return false;
  switch (slot.state) {
    case State::kClaiming: Claimed(slot); break;
    case State::kRequesting: Requested(slot); break;
    case State::kAsking: Asked(slot, now_ns); break;
    case State::kTelling: Told(slot); break;
    default: break;
  }
  return slot.state == State::kInUse;
}

void RcQueues::Work(bool idle) {
  idle_ = idle;
  if (connector_ != nullptr) connector_->Poll();
  const int64_t now_ns = pool_.node().clock().NowNs();
  for (Slot& slot : slots_) {
    if (WorkOn(slot, now_ns)) return;
  }
}

void RcQueues::Close() {
  for (Slot& slot : slots_) {
    if (slot.state == State::kInUse || slot.state == State::kLeaving) {
      slot.queue->Disconnect();  // whatever is under way there
      Tell(slot);
    } else if (slot.state == State::kClaiming) {
      slot.qp.reset();
      SetState(slot, State::kFree);  // a claim without a request does not last
    } else if (slot.state != State::kFree && slot.state != State::kTelling) {
      slot.qp.reset();
    }
  }
  Clock& clock = pool_.node().clock();
  const Deadline deadline = Deadline::After(clock, kCloseNs);
  for (uint32_t spins = 0; busy_ != 0 && spins < kMaxCloseSpins && !deadline.Passed(clock); ++spins) {
    connector_->Poll();
    for (Slot& slot : slots_) {
      if (slot.state == State::kFree || connector_->outcome(LaneOf(slot)) == Outcome::kUnderWay) continue;
      if (slot.state == State::kTelling) {
        Told(slot);
      } else {
        Tell(slot);
      }
    }
    if (busy_ != 0) clock.Relax(spins);
  }
}

}  // namespace krcore::pool
