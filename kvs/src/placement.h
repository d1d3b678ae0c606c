// Which slot a new key takes: a FREE one of the less loaded combined bucket, main bucket before overflow (RACE, section
// 3.2). The order is worth 10 points of load factor at the first split.
#ifndef KVS_SRC_PLACEMENT_H_
#define KVS_SRC_PLACEMENT_H_

#include <array>
#include <cstdint>

#include "kvs/layout/subtable.h"

namespace kvs {

inline constexpr uint32_t kCandidates = 2 * kCombinedSlots;  // slots of a key's two combined buckets

// Candidates count 0..27: combined bucket * 14 + bucket * 7 + slot, in memory order. `is_free(c)` tells of one. -1:
// none.
template <typename IsFree>
int ChooseFreeSlot(const KeyPlaces& places, IsFree is_free) {
  std::array<uint32_t, 2> used{};
  std::array<int, 2> free_main{-1, -1}, free_overflow{-1, -1};
  for (uint32_t c = 0; c < kCandidates; ++c) {
    const uint32_t p = c / kCombinedSlots;
    const bool main = c % kCombinedSlots / kSlotsPerBucket == places.place[p].half;
    if (!is_free(c)) {
      ++used[p];
    } else if (int& first = main ? free_main[p] : free_overflow[p]; first < 0) {
      first = static_cast<int>(c);
    }
  }
  const uint32_t p = used[0] <= used[1] ? 0 : 1;
  return free_main[p] >= 0 ? free_main[p] : free_overflow[p];
}

}  // namespace kvs

#endif  // KVS_SRC_PLACEMENT_H_
