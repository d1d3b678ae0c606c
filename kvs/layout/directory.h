// Directory entries. dir[i] is the canonical entry of the subtable that was born with index i: i = 0 is the root,
// and splitting the subtable of index s at depth d makes dir[s | 1 << d]. So the ancestors of index i are i with its
// top bits cleared one by one, and a key belongs to the deepest present dir[suffix(j)], j = 0..max depth. Entries
// are hints: bucket headers decide.
#ifndef KVS_LAYOUT_DIRECTORY_H_
#define KVS_LAYOUT_DIRECTORY_H_

#include <bit>
#include <cstdint>

#include "kvs/layout/address.h"

namespace kvs {

enum class DirectoryState : uint8_t {
  kAbsent = 0,
  kMigrating = 1,  // published, its split from the parent not finished
  kNormal = 2,
  kMerging = 3,
};

// offset 34 | node 8 | depth 5 | state 2 | generation 15.
class DirectoryEntry {
 public:
  constexpr DirectoryEntry() = default;
  constexpr explicit DirectoryEntry(uint64_t word) : word_(word) {}
  static constexpr DirectoryEntry Make(GlobalAddress subtable, uint32_t depth, DirectoryState state,
                                       uint32_t generation) {
    return DirectoryEntry((subtable.offset / kUnitBytes) << 30 | uint64_t{subtable.node & 0xff} << 22 |
                          uint64_t{depth & 31} << 17 | uint64_t{static_cast<uint8_t>(state)} << 15 |
                          (generation & 0x7fff));
  }

  constexpr uint64_t word() const { return word_; }
  constexpr GlobalAddress subtable() const {
    return {static_cast<krcore::NodeId>(word_ >> 22 & 0xff), (word_ >> 30) * kUnitBytes};
  }
  constexpr uint32_t depth() const { return word_ >> 17 & 31; }
  constexpr DirectoryState state() const { return static_cast<DirectoryState>(word_ >> 15 & 3); }
  constexpr uint32_t generation() const { return word_ & 0x7fff; }
  constexpr bool present() const { return state() != DirectoryState::kAbsent; }
  constexpr DirectoryEntry With(uint32_t depth, DirectoryState state) const {
    return Make(subtable(), depth, state, generation());
  }
  friend constexpr bool operator==(DirectoryEntry, DirectoryEntry) = default;

 private:
  uint64_t word_ = 0;
};
static_assert(sizeof(DirectoryEntry) == 8);

// The index of the subtable that `index` (> 0) was split from, and the depth it was born with.
inline uint32_t ParentIndex(uint32_t index) { return index & ~std::bit_floor(index); }
inline uint32_t BirthDepth(uint32_t index) { return static_cast<uint32_t>(std::bit_width(index)); }

}  // namespace kvs

#endif  // KVS_LAYOUT_DIRECTORY_H_
