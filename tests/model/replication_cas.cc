// The replication model: READ, and the CAS along the chain.
#include <cstdio>
#include <cstdlib>

#include "tests/model/replication_stepper.h"

namespace model {

using E = ReplicationError;

// The chain in the order in which a CAS goes along it.
int ReplicationModel::Stepper::Order(int hop) const {
  const ChainView& v = view();
  if (Mutated(M::kTailFirst)) return v.chain[v.length - 1 - hop];
  if (Mutated(M::kTailBeforeMiddle) && v.length == 3 && hop > 0) return v.chain[3 - hop];
  return v.chain[hop];
}

// The place of the word in the history of the slot, -1 if it has none.
int ReplicationModel::Stepper::Index(int slot, uint8_t word) const {
  for (int i = b_.length[slot] - 1; i >= 0; --i) {
    if (b_.history[slot][i] == word) return i;
  }
  return -1;
}

// A CAS of one replica's word. Returns what was there.
uint8_t ReplicationModel::Stepper::Swap(int replica, int slot, uint8_t from, uint8_t to) {
  uint8_t& word = b_.words[replica][slot];
  const uint8_t was = word;
  if (was != from || from == to) return was;
  word = to;
  if (config_.views[b_.decided].Keeps(replica)) Record(replica, slot, was, to);
  return was;
}

void ReplicationModel::Stepper::Record(int replica, int slot, uint8_t from, uint8_t to) {
  if (!model_.TwoPools() && HasBlock(to) && (b_.holders[BlockOf(to)] >> replica & 1) == 0) Fail(E::kNoBlock);
  if (!model_.checks_order_) return;
  if (replica == config_.views[b_.decided].head()) {
    if (Index(slot, to) >= 0) Fail(E::kComesBack);
    if (b_.length[slot] == kHistory) {
      std::fprintf(stderr, "a configuration with too many words in one slot\n");
      std::exit(3);
    }
    b_.history[slot][b_.length[slot]++] = to;
  } else if (from != kUncopied && Index(slot, to) < Index(slot, from)) {
    Fail(E::kBackwards);
  }
}

uint8_t ReplicationModel::Stepper::Read(int slot) {
  const int replica = Replica();
  const uint8_t word = b_.words[replica][slot];
  const int holder = model_.TwoPools() ? model_.BlockView(p().view).tail() : replica;
  if (HasBlock(word) && (b_.holders[BlockOf(word)] >> holder & 1) == 0) FailIfSeen(E::kReadsNoBlock);
  return word;
}

void ReplicationModel::Stepper::BeginCas(Purpose purpose, int slot, uint8_t old, uint8_t desired) {
  Go(Step::kHead);
  p().purpose = static_cast<uint8_t>(purpose);
  p().slot = static_cast<uint8_t>(slot);
  p().old = p().hop_old = old;
  p().desired = desired;
  p().target = p().hop = p().known = p().won = p().maybe = p().learner = 0;
}

void ReplicationModel::Stepper::AtHead() {
  const bool sweeps = purpose() == Purpose::kSweep;
  if (sweeps && Mutated(M::kSweepIgnoresHead)) {
    p().won = 1;
    p().seen[1] = p().old;
    return Go(Step::kLearn);
  }
  const int replica = Replica();
  const uint8_t was = Swap(replica, p().slot, p().old, p().desired);
  p().won = was == p().old || (p().maybe && was == p().desired);
  if (p().won) {
    p().target = p().desired;
  } else {
    if (p().maybe) return OutcomeUnknown();
    if (Mutated(M::kNoHelp)) return EndCas(false);
    p().target = was;
    if (!Mutated(M::kHelpWithoutBlock)) CopyBlock(was);
  }
  p().known = static_cast<uint8_t>(1 << replica);
  p().seen[1] = p().target;
  p().hop = p().won && sweeps ? static_cast<uint8_t>(view().length) : 1;
  NextHop();
}

void ReplicationModel::Stepper::Hop() {
  if (p().hop >= view().length) return NextHop();  // the chain has become shorter
  const int replica = Replica();
  const uint8_t was = Swap(replica, p().slot, p().hop_old, p().target);
  const bool lost = was != p().hop_old;
  p().known |= static_cast<uint8_t>(1 << replica);
  p().seen[1] = lost && !Mutated(M::kLearnerUnseenWord) ? was : p().target;  // behind the tail: it has had that
  if (lost && p().won && Mutated(M::kHopFailureIsLoss)) return EndCas(false);
  if (lost && !p().won && Mutated(M::kHelpBackwards)) (void)Swap(replica, p().slot, was, p().target);
  ++p().hop;
  NextHop();
}

void ReplicationModel::Stepper::NextHop() {
  const bool head_only = Mutated(M::kInsAtHeadOnly) && purpose() == Purpose::kTentative;
  if (p().hop < view().length && !head_only) return Go(Step::kHop);
  const bool ignored = Mutated(M::kIgnoreLearner) && purpose() != Purpose::kSweep;
  if (view().learner >= 0 && !ignored) return Go(Step::kLearn);
  EndCas(p().won);
}

void ReplicationModel::Stepper::Learn() {
  const uint8_t was = Swap(Replica(), p().slot, p().old, p().seen[1]);
  const bool sweeps = purpose() == Purpose::kSweep;
  if (was == p().old || was == p().seen[1]) return EndCas(p().won);
  if (was == kUncopied && Mutated(M::kSkipUncopied) && !sweeps) return EndCas(p().won);
  p().learner = was;
  Go(Mutated(M::kLearnerOwnWord) && !sweeps ? Step::kLearnFix : Step::kLearnRead);
}

void ReplicationModel::Stepper::LearnRead() {
  const uint8_t now = Read(p().slot);
  if (now == p().learner) return EndCas(p().won);
  if (!IsSweep() || !Mutated(M::kSyncWithoutBlock)) CopyBlock(now);
  p().seen[0] = now;
  Go(Step::kLearnFix);
}

void ReplicationModel::Stepper::LearnFix() {
  const bool own_word = Mutated(M::kLearnerOwnWord) && purpose() != Purpose::kSweep;
  const uint8_t was = Swap(Replica(), p().slot, p().learner, own_word ? p().target : p().seen[0]);
  if (was == p().learner) return EndCas(p().won);
  p().learner = was;
  Go(Step::kLearnRead);
}

void ReplicationModel::Stepper::CheckReport(bool done) {
  if (p().expelled || !model_.checks_order_ || p().view != b_.active || Mutated(M::kReadHead)) return;
  const uint8_t tail = b_.words[view().tail()][p().slot];
  if (done && Index(p().slot, tail) < Index(p().slot, p().desired)) FailIfSeen(E::kDoneTooEarly);
  if (!done && tail == p().old) FailIfSeen(E::kLostTooEarly);
}

void ReplicationModel::Stepper::EndCas(bool done) {
  CheckReport(done);
  switch (purpose()) {
    case Purpose::kReplace:
    case Purpose::kConfirm: return done ? EndOperation(Modifies() ? Replaced() : 1) : Again();
    case Purpose::kTentative:
      if (!done) return Again();
      p().own_slot = p().slot;
      return Rescan(false);
    case Purpose::kKill:
      if (IsFreeze()) return done ? EndOperation(0) : Again();
      if (!done) return Rescan(true);
      return BeginCas(Purpose::kConfirm, p().own_slot, MakeSlot(SlotState::kIns, p().block),
                      MakeSlot(SlotState::kVal, p().block));
    case Purpose::kTakeBack: return Modifies() ? Again() : EndOperation(p().at ? 0 : kNoEffect);
    case Purpose::kStarved: return Again();
    case Purpose::kFreeze: return done ? EndOperation(0) : Again();
    case Purpose::kSweep:
      p().hop = 0;
      p().at = static_cast<uint8_t>(p().slot + 1);
      if (p().at < config_.slots) return Go(Step::kScan);
      if (b_.sync == 1) b_.sync = 2;
      return EndOperation(0);
  }
}

// It can no longer be found out whether the CAS was done.
void ReplicationModel::Stepper::OutcomeUnknown() {
  switch (purpose()) {
    case Purpose::kTentative:
    case Purpose::kStarved:
    case Purpose::kFreeze: return Again();
    case Purpose::kKill: return IsFreeze() ? Again() : Rescan(true);
    case Purpose::kTakeBack: return EndCas(true);
    default: break;
  }
  if (Mutated(M::kUnknownIsLost)) return Again();
  Clear();
  Go(Step::kUnknown);
}

// The CAS goes on in a new view. `ended`: its last verb ended with an error, and may have executed.
void ReplicationModel::Stepper::ContinueCas(bool ended) {
  const int head = view().head();
  if (step() == Step::kHead) {
    p().maybe |= static_cast<uint8_t>(ended);
  } else if ((p().known >> head & 1) != 0) {
    Go(Step::kHop);
    p().hop = 1;
    p().learner = 0;
    p().seen[1] = p().target;
    if (Mutated(M::kReportBeforeActive)) return NextHop();
  } else {
    p().maybe = p().won;
    Go(Step::kHead);
    p().hop = p().target = p().known = p().won = p().learner = 0;
  }
  const bool old_there = b_.words[head][p().slot] == p().old;
  if (p().maybe && old_there && purpose() == Purpose::kReplace && Mutated(M::kNewWordAtNewHead)) Again();
}

}  // namespace model
