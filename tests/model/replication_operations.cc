// The replication model: operations on the key, and what a client does when the view changes.
#include <algorithm>

#include "tests/model/replication_stepper.h"

namespace model {

void ReplicationModel::Stepper::Clear() {
  Client fresh{};
  fresh.step = p().step;
  fresh.view = p().view;
  fresh.op = p().op;
  fresh.attempt = p().attempt;
  fresh.expelled = p().expelled;
  p() = fresh;
}

void ReplicationModel::Stepper::Fail(ReplicationError error) {
  if (b_.error == ReplicationError::kNone) b_.error = error;
}

void ReplicationModel::Stepper::WriteBlock() {
  const uint8_t members = model_.BlockView(p().view).Members(!Mutated(M::kIgnoreLearner));
  b_.holders[p().block] |= static_cast<uint8_t>(members & ~b_.dead);
}

// Needed while there is a learner, and for ever after a handover.
void ReplicationModel::Stepper::CopyBlock(uint8_t word) {
  const ChainView& blocks = model_.BlockView(p().view);
  if (!HasBlock(word) || (blocks.learner < 0 && !model_.handover_)) return;
  uint8_t& holders = b_.holders[BlockOf(word)];
  const uint8_t alive = static_cast<uint8_t>(blocks.Members() & ~b_.dead);
  if ((holders & alive) != 0) holders |= alive;
}

uint8_t ReplicationModel::Stepper::FreeWord(uint8_t from) const {
  const bool recurs = Mutated(StateOf(from) == SlotState::kVal ? M::kFreeRecursByDelete : M::kFreeRecursByKill);
  const int nonce = recurs ? kFirstId : (id_ * kOperations + p().op) * kAttempts + p().attempt;
  return MakeSlot(SlotState::kFree, nonce);
}

void ReplicationModel::Stepper::EndOperation(int result) {
  if (op().kind != OpKind::kStructural) {
    if (result == kNoEffect) {
      state_.monitor.RespondNoEffect(id_);
    } else {
      state_.monitor.Respond(id_, static_cast<uint8_t>(result));
    }
  }
  Clear();
  p().attempt = 0;
  ++p().op;
  Go(p().op == config_.programs[id_].size() ? Step::kOver : Step::kIdle);
}

void ReplicationModel::Stepper::Begin() {
  if (IsSweep()) {
    // A pass counts as the sweep if nothing late can execute any more, and everybody knows of the learner.
    bool late = false;
    for (int c = 0; c < kClients; ++c) late |= Stepper(model_, &state_, c).IsZombie();
    const bool counts = !late || Mutated(M::kPromoteWithZombies) || Mutated(M::kQuietWithVerb) || view().handover;
    b_.sync = counts && b_.active == b_.decided ? 1 : 0;
  } else if (op().kind != OpKind::kStructural) {
    Monitor::InFlight in_flight{};
    for (size_t c = 0; c < config_.programs.size(); ++c) {
      const Client& client = b_.clients[c];
      if (client.op < config_.programs[c].size()) in_flight[c] = config_.programs[c][client.op];
    }
    state_.monitor.Invoke(id_, in_flight);
  }
  BeginScan();
}

void ReplicationModel::Stepper::BeginScan() {
  Clear();
  Go(Step::kScan);
  const int attempt = Mutated(M::kReuseInsBlock) ? 0 : p().attempt;
  p().block = static_cast<uint8_t>((id_ * kOperations + p().op) * kAttempts + attempt);
  if (Writes()) WriteBlock();
}

void ReplicationModel::Stepper::Again() {
  if (p().attempt + 1 == kAttempts) return EndOperation(kNoEffect);
  ++p().attempt;
  BeginScan();
}

// `lost`: behind a kill that was lost, or whose outcome is unknown. The next kill has another nonce.
void ReplicationModel::Stepper::Rescan(bool lost) {
  if (lost && p().attempt + 1 == kAttempts) return EndOperation(kNoEffect);
  p().attempt += static_cast<uint8_t>(lost);
  Go(Step::kRescan);
  p().at = p().target = p().hop = p().known = p().won = p().maybe = p().learner = 0;
}

void ReplicationModel::Stepper::Scan() {
  if (view().handover && !Mutated(M::kHandoverReadsTail)) {
    if (!LookAtBoth()) return;
  } else {
    p().seen[p().at] = Read(p().at);
  }
  // Copy and sweep: a CAS of the tail's word to itself. A block of another pool is copied before.
  if (IsSweep() && model_.TwoPools() && !Mutated(M::kSyncWithoutBlock)) CopyBlock(p().seen[p().at]);
  if (IsSweep()) return BeginCas(Purpose::kSweep, p().at, p().seen[p().at], p().seen[p().at]);
  if (++p().at < config_.slots) return;
  step() == Step::kScan ? EndScan() : EndRescan();
}

// A READ in a handover: of the learner (hop 0), then of the tail (hop 1). Where they differ, a CAS brings the learner
// to the tail's word (hop 2), and the tail is READ again. Returns true when the slot is read.
bool ReplicationModel::Stepper::LookAtBoth() {
  if (p().hop == 0) {
    p().learner = Read(p().at);
    p().hop = 1;
    return false;
  }
  if (p().hop == 1) {
    p().target = Read(p().at);
    CopyBlock(p().target);
    if (p().target != p().learner) {
      p().hop = 2;
      return false;
    }
  } else {
    const uint8_t was = Swap(Replica(), p().at, p().learner, p().target);
    p().hop = 1;
    if (was != p().learner) {
      p().learner = was;
      return false;
    }
  }
  p().hop = 0;
  p().seen[p().at] = p().target;
  return true;
}

void ReplicationModel::Stepper::EndScan() {
  // A slot of each kind: the first. Clients with an odd number take the last FREE.
  const auto find = [&](SlotState state, bool last = false) {
    int found = -1;
    for (int i = config_.slots - 1; i >= 0; --i) {
      if (StateOf(p().seen[i]) == state && (found < 0 || !last)) found = i;
    }
    return found;
  };
  const int val = find(SlotState::kVal), frz = find(SlotState::kFrz), ins = find(SlotState::kIns);
  const int free = find(SlotState::kFree, id_ % 2 != 0);
  if (op().kind == OpKind::kGet) {
    const int at = val >= 0 ? val : frz;
    return EndOperation(at < 0 ? 0 : model_.ValueOfBlock(BlockOf(p().seen[at])));
  }
  if (IsFreeze()) {
    const uint8_t word = p().seen[0];
    if (StateOf(word) == SlotState::kVal) return BeginCas(Purpose::kFreeze, 0, word, WithState(word, SlotState::kFrz));
    if (StateOf(word) == SlotState::kIns) return BeginCas(Purpose::kKill, 0, word, FreeWord(word));
    return EndOperation(0);
  }
  if (val >= 0) {
    const uint8_t word = p().seen[val];
    if (op().kind == OpKind::kInsert) return EndOperation(0);
    const bool deletes = op().kind == OpKind::kDelete;
    return BeginCas(Purpose::kReplace, val, word, deletes ? FreeWord(word) : MakeSlot(SlotState::kVal, p().block));
  }
  if (frz >= 0) return EndOperation(kNoEffect);  // it would go on in the child
  if (op().kind != OpKind::kInsert && !Modifies()) return EndOperation(0);
  if (free >= 0) {
    return BeginCas(Purpose::kTentative, free, p().seen[free], MakeSlot(SlotState::kIns, p().block));
  }
  BeginCas(Purpose::kStarved, ins, p().seen[ins], FreeWord(p().seen[ins]));
}

// Write 6d to 6f, behind the own tentative slot.
void ReplicationModel::Stepper::EndRescan() {
  const uint8_t own = MakeSlot(SlotState::kIns, p().block);
  const int mine = p().own_slot;
  if (p().seen[mine] != own) return Again();
  if (config_.slots == 2) {
    const int other = 1 - mine;
    const uint8_t word = p().seen[other];
    const SlotState state = StateOf(word);
    if (state == SlotState::kVal || state == SlotState::kFrz) {
      BeginCas(Purpose::kTakeBack, mine, own, FreeWord(own));
      p().at = state == SlotState::kVal;
      return;
    }
    if (state == SlotState::kIns) return BeginCas(Purpose::kKill, other, word, FreeWord(word));
  }
  const uint8_t hop_old = p().hop_old;
  BeginCas(Purpose::kConfirm, mine, own, MakeSlot(SlotState::kVal, p().block));
  if (Mutated(M::kInsAtHeadOnly)) p().hop_old = hop_old;
}

int ReplicationModel::Stepper::Replica() const {
  const ChainView& v = view();
  switch (step()) {
    case Step::kLearnRead: return ReadReplica();
    case Step::kScan:
    case Step::kRescan:
      if (v.handover && !Mutated(M::kHandoverReadsTail) && p().hop != 1) return v.learner;
      return Mutated(M::kInsAtHeadOnly) && step() == Step::kRescan ? v.head() : ReadReplica();
    case Step::kHead: return Order(0);
    case Step::kHop: return Order(p().hop < v.length ? p().hop : 0);
    default: return v.learner;
  }
}

void ReplicationModel::Stepper::Execute() {
  switch (step()) {
    case Step::kScan:
    case Step::kRescan: return Scan();
    case Step::kHead: return AtHead();
    case Step::kHop: return Hop();
    case Step::kLearn: return Learn();
    case Step::kLearnRead: return LearnRead();
    case Step::kLearnFix: return LearnFix();
    default: return;
  }
}

const char* ReplicationModel::Stepper::StepName() const {
  static const char* const kNames[] = {"",
                                       "",
                                       "",
                                       "READ",
                                       "READ it again",
                                       "CAS at the head",
                                       "CAS of a hop",
                                       "CAS of the learner",
                                       "READ the tail for the learner",
                                       "CAS of the learner, again"};
  return kNames[p().step];
}

// The client adopts the newest view. None of its verbs is outstanding.
void ReplicationModel::Stepper::Acknowledge() {
  const bool ended = p().broken || !Reachable();  // its last verb ended with an error
  p().view = b_.decided;
  p().broken = 0;
  if (Mutated(M::kAckPerPool)) return;    // the pool of the words has not changed
  if (!Mutated(M::kBlockNotRewritten)) {  // a replica that is new gets its own block, and that of a word it pushes
    if (Writes()) WriteBlock();
    const bool pushes = step() >= Step::kHop && step() <= Step::kLearnFix;
    if (pushes && !Mutated(M::kHelpedNotRewritten)) CopyBlock(p().target);
  }
  if (IsSweep()) return model_.HasLearner(p().view) ? BeginScan() : EndOperation(0);
  if (step() == Step::kScan || step() == Step::kRescan) {
    p().at = p().hop = 0;
    return;
  }
  ContinueCas(ended);
}

bool ReplicationModel::Stepper::MayPost() const {
  if (p().view == b_.active) return true;
  if (p().view < b_.active) return Mutated(M::kActivateAtOnce) || Mutated(M::kQuietPosts);
  return Mutated(M::kActBeforeActive) || (Mutated(M::kAckPerPool) && InOperation());
}

// A verb of an expelled client executes. The client does not believe it.
void ReplicationModel::Stepper::LateVerb(const Emit& emit) const {
  State next = state_;
  const bool believes = (Mutated(M::kExpelledReadReturns) && step() == Step::kScan) ||
                        (Mutated(M::kExpelledHopCounts) && step() == Step::kHop);
  if (believes) {
    Stepper client(model_, &next, id_);
    client.Execute();
    if (client.p().step != p().step && client.InOperation()) client.p().expelled = 2;
    return emit(id_, "a verb executes late, and the client believes it", next);
  }
  if (!model_.ExecuteUnseen(&next, id_)) return;  // as if it never executed
  next.body.clients[id_].expelled = 2;
  emit(id_, "a verb executes late", next);
}

void ReplicationModel::Stepper::Steps(const Emit& emit) const {
  State next = state_;
  Stepper client(model_, &next, id_);
  if (step() == Step::kIdle && !p().expelled) {
    if (!MayPost() || (IsSweep() && !model_.HasLearner(p().view))) return;
    client.Begin();
    return emit(id_, "begins an operation", next);
  }
  if (!InOperation()) return;
  if (p().expelled) {
    if (p().expelled == 1 && Reachable()) LateVerb(emit);
    return;
  }
  if (Reachable() && !p().broken && MayPost()) {
    client.Execute();
    emit(id_, StepName(), next);
    const int replica = Replica();
    next = state_;
    const bool dies = (config_.mortal >> replica & 1) != 0 && step() >= Step::kHead;
    if (dies && model_.ExecuteUnseen(&next, id_)) {
      client.p().broken = 1;
      next.body.dead |= static_cast<uint8_t>(1 << replica);
      emit(id_, "a CAS executes, and the replica dies before it answers", next);
    }
  }
  if (p().view < b_.decided) {
    // Where the learner becomes a member, a CAS that has left the head comes to its end before.
    const bool midway = step() > Step::kHead && !view().handover;
    const bool waits = midway && !Mutated(M::kAckMidway) && !Mutated(M::kAckPerPool);
    if (model_.PromotesLearner(b_.decided) && waits) return;
    next = state_;
    client.Acknowledge();
    emit(id_, "acknowledges the new view", next);
  }
}

}  // namespace model
