// Which slot a new key takes: a FREE one of the less loaded combined bucket, main bucket before overflow (RACE, section
// 3.2). The order is worth 10 points of load factor at the first split.
#ifndef KVS_SRC_PLACEMENT_H_
#define KVS_SRC_PLACEMENT_H_

#include <bit>
#include <cstdint>

#include "kvs/layout/subtable.h"

namespace kvs {

inline constexpr uint32_t kCandidates = 2 * kCombinedSlots;  // slots of a key's two combined buckets

// Candidates count 0..27: combined bucket * 14 + bucket * 7 + slot, in memory order. `free`: bit c is candidate c's.
// -1: none is free.
inline int ChooseFreeSlot(const KeyPlaces& places, uint32_t free) {
  constexpr uint32_t kBucketMask = (1u << kSlotsPerBucket) - 1, kPlaceMask = (1u << kCombinedSlots) - 1;
  const bool first_has_more = std::popcount(free & kPlaceMask) >= std::popcount(free >> kCombinedSlots & kPlaceMask);
  const uint32_t p = first_has_more ? 0 : 1;
  const uint32_t there = free & kPlaceMask << p * kCombinedSlots;
  const uint32_t main = there & kBucketMask << (p * kCombinedSlots + places.place[p].half * kSlotsPerBucket);
  if (there == 0) return -1;  // nor in the other one
  return std::countr_zero(main != 0 ? main : there);
}

}  // namespace kvs

#endif  // KVS_SRC_PLACEMENT_H_
