#include "kvs/memory/mirror.h"

#include <algorithm>

#include "kvs/memory/mutation.h"

namespace kvs {

void MirroredVerb::Hopped(const Replica& replica, uint32_t chain_length) {
  const uint64_t found = result();
  if (hop == 0) {
    const bool was_mine = maybe && found == verb.desired && (IsOwn(whose) || whose == Word::kHint);
    won = found == verb.expected || was_mine;
    if (!won && maybe && IsOwn(whose) && !Mutated(Mutation::kUnknownIsLost)) {
      // It may have been done at a head that has left, and replaced since.
      state = State::kLost;
      return;
    }
    target = won ? verb.desired : found;
    there = target;
    known_count = 0;
    if (!won && Mutated(Mutation::kNoHelp)) hop = chain_length;
  } else {
    const bool lost = found != verb.expected;
    there = lost ? found : target;
    if (lost && won && Mutated(Mutation::kLostHopIsLoss)) won = false;
  }
  known[known_count++] = replica;
  ++hop;
}

void MirroredVerb::EndHops(const PoolChain& chain) {
  const bool head_only = Mutated(Mutation::kCasAtHeadOnly) && hop == 1;
  if (!is_cas() || state != State::kOpen || phase != Phase::kHop || hop == 0) return;
  if (hop < chain.length && !head_only) return;
  if (!chain.learner.exists() || Mutated(Mutation::kLearnerIgnored)) return End();
  phase = Phase::kPush;
}

// The learner has `expected` or `there`, or something older, which may be kUncopied. In the latter case `there` may be
// older than what the learner gets by others meanwhile, so the tail is read again: that word is newer than the one that
// the learner was found to have.
void MirroredVerb::Pushed() {
  const uint64_t found = result();
  const bool first = phase == Phase::kPush;
  if (found == (first ? verb.expected : learnt) || (first && found == there)) return End();
  learnt = found;
  phase = Phase::kReadTail;
}

void MirroredVerb::ReadTail() {
  latest = result();
  if (latest == learnt) return End();
  phase = Phase::kPushAgain;
}

void MirroredVerb::End() {
  state = State::kDone;
  result() = won ? verb.expected : there;
}

uint64_t MirroredVerb::NextWord() const {
  switch (phase) {
    case Phase::kPush: return there;
    case Phase::kPushAgain: return latest;
    default: return hop == 0 ? verb.desired : target;
  }
}

void MirroredVerb::GoOnAlong(const PoolChain& chain) {
  since = chain.since;
  copied_word = 0;
  phase = Phase::kHop;
  if (!is_cas() || hop == 0) return;
  const std::span<const Replica> left(known.data(), known_count);
  if (std::ranges::find(left, chain.replicas[0]) != left.end()) {
    hop = known_count = 1;
    known[0] = chain.replicas[0];
    there = target;
    return;
  }
  // What this CAS knows to be at the head has gone with the head. A helper's word is nobody's who would wait for it.
  maybe = won;
  won = false;
  hop = known_count = 0;
}

}  // namespace kvs
