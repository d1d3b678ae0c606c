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
  kAbsent = 0,     // the address is that of the table that was merged away from here, if there was one
  kMigrating = 1,  // published, its split from the parent not finished
  kNormal = 2,
  kSplitting = 3,  // the parent of a split that is not finished
  kMerging = 4,    // taken by a merge; the address is that of its record (kvs/layout/merge_record.h)
};

// offset 34 | node 8 | depth 5 | state 3 | generation 14. Changed only by CAS, and every CAS bumps the generation.
// Which state follows which, and who may make the change, is docs/protocol.md, "Directory entries".
//
// No word comes back while somebody may still expect it: it names memory that his pin protects, and what is said of
// that memory (depth, state) does not repeat, but for merges that were given up; those the generation tells apart.
class DirectoryEntry {
 public:
  static constexpr uint32_t kGenerations = 1u << 14;

  constexpr DirectoryEntry() = default;
  constexpr explicit DirectoryEntry(uint64_t word) : word_(word) {}
  static constexpr DirectoryEntry Make(GlobalAddress address, uint32_t depth, DirectoryState state,
                                       uint32_t generation) {
    return DirectoryEntry((address.offset / kUnitBytes) << 30 | uint64_t{address.node & 0xff} << 22 |
                          uint64_t{depth & 31} << 17 | uint64_t{static_cast<uint8_t>(state)} << 14 |
                          (generation & (kGenerations - 1)));
  }

  constexpr uint64_t word() const { return word_; }
  constexpr uint32_t depth() const { return word_ >> 17 & 31; }
  constexpr DirectoryState state() const { return static_cast<DirectoryState>(word_ >> 14 & 7); }
  constexpr uint32_t generation() const { return word_ & (kGenerations - 1); }
  constexpr bool present() const { return state() != DirectoryState::kAbsent; }
  constexpr bool migrating() const { return state() == DirectoryState::kMigrating; }
  constexpr bool splitting() const { return state() == DirectoryState::kSplitting; }
  constexpr bool merging() const { return state() == DirectoryState::kMerging; }
  // The entry names a subtable: it is present, and not merging.
  constexpr bool has_subtable() const { return present() && !merging(); }
  constexpr GlobalAddress subtable() const { return address(); }      // has_subtable()
  constexpr GlobalAddress merge_record() const { return address(); }  // merging()

  // The word that takes this one's place.
  constexpr DirectoryEntry Next(GlobalAddress address, uint32_t depth, DirectoryState state) const {
    return Make(address, depth, state, generation() + 1);
  }
  constexpr DirectoryEntry Next(uint32_t depth, DirectoryState state) const { return Next(address(), depth, state); }
  friend constexpr bool operator==(DirectoryEntry, DirectoryEntry) = default;

 private:
  constexpr GlobalAddress address() const {
    return {static_cast<krcore::NodeId>(word_ >> 22 & 0xff), (word_ >> 30) * kUnitBytes};
  }

  uint64_t word_ = 0;
};
static_assert(sizeof(DirectoryEntry) == 8);

// The index of the subtable that `index` (> 0) was split from, and the depth it was born with.
inline uint32_t ParentIndex(uint32_t index) { return index & ~std::bit_floor(index); }
inline uint32_t BirthDepth(uint32_t index) { return static_cast<uint32_t>(std::bit_width(index)); }
// The index of the subtable that a split of `index` at `depth` makes.
inline uint32_t ChildIndex(uint32_t index, uint32_t depth) { return index | 1u << depth; }

}  // namespace kvs

#endif  // KVS_LAYOUT_DIRECTORY_H_
