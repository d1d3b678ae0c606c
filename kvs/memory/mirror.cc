#include "kvs/memory/mirror.h"

#include <algorithm>

#include "kvs/memory/mutation.h"

namespace kvs {

void MirroredVerb::Hopped(const Replica& replica, uint32_t chain_length) {
  const uint64_t found = result();
  if (hop == 0) {
    const bool was_mine = maybe && found == verb.desired && whose != Word::kAnyones;
    won = found == verb.expected || was_mine;
    if (!won && maybe && whose == Word::kOwn && !Mutated(Mutation::kUnknownIsLost)) {
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
  End(chain_length);
}

void MirroredVerb::End(uint32_t chain_length) {
  const bool head_only = Mutated(Mutation::kCasAtHeadOnly) && hop == 1;
  if (!is_cas() || hop == 0 || (hop < chain_length && !head_only)) return;
  state = State::kDone;
  result() = won ? verb.expected : there;
}

void MirroredVerb::GoOnAlong(const PoolChain& chain) {
  since = chain.since;
  if (!is_cas() || hop == 0) return;
  const std::span<const Replica> left(known.data(), known_count);
  if (std::ranges::find(left, chain.replicas[0]) != left.end()) {
    hop = known_count = 1;
    known[0] = chain.replicas[0];
    there = target;
    End(chain.length);
    return;
  }
  // What this CAS knows to be at the head has gone with the head. A helper's word is nobody's who would wait for it.
  maybe = won;
  won = false;
  hop = known_count = 0;
}

}  // namespace kvs
