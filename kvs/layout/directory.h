// Directory entries. dir[i] is the canonical entry of the subtable that was born with index i. i = 0 is the root, and
// splitting the subtable of index s at depth d makes dir[s | 1 << d]. So the ancestors of index i are i with its top
// set bits cleared one by one, and a key belongs to the deepest present dir[suffix(j)], j = 0..max depth. Entries
// are hints: bucket headers decide.
//
// While two tables merge, both their entries name the record of the merge (MergeRecord).
#ifndef KVS_LAYOUT_DIRECTORY_H_
#define KVS_LAYOUT_DIRECTORY_H_

#include <bit>
#include <cstdint>

#include "kvs/layout/subtable.h"

namespace kvs {

enum class DirectoryState : uint8_t {
  kAbsent = 0,     // the address is that of the table that a merge removed from here, if one did
  kMigrating = 1,  // published, but its split from the parent is not finished
  kNormal = 2,
  kSplitting = 3,  // the parent of a split that is not finished
  kMerging = 4,    // taken by a merge; the address is that of its record (MergeRecord)
};

// offset 34 | node 8 | depth 5 | state 3 | generation 14. Changed only by CAS, and every CAS bumps the generation.
// docs/protocol.md, "Directory entries", says which state follows which, and who may make the change.
//
// No word comes back while a client may still expect it: it names memory that this client's pin protects, and what it
// says of that memory (depth, state) does not repeat. Only an abandoned merge repeats it, and the generation tells
// that.
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

  // Returns the word that takes this one's place.
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

// The index of the subtable from which `index` (> 0) was split, and the depth with which `index` was born.
inline uint32_t ParentIndex(uint32_t index) { return index & ~std::bit_floor(index); }
inline uint32_t BirthDepth(uint32_t index) { return static_cast<uint32_t>(std::bit_width(index)); }
// The index of the subtable that a split of `index` at `depth` makes.
inline uint32_t ChildIndex(uint32_t index, uint32_t depth) { return index | 1u << depth; }

// ---- the record of a merge

enum class MergeStatus : uint64_t {
  kUndecided = 0,  // dir[s] is taken, perhaps dir[c]
  kEngaged = 1,    // both are taken: the tables get closed, their slots frozen
  kAbandoned = 2,  // dir[c] could not be taken: dir[s] goes back to what it was
  kJoin = 3,       // one table takes the place of both
  kReplace = 4,    // they do not fit in one: each is replaced by a copy
};

// The descriptor through which two directory entries change together (Harris, Fraser, Pratt,
// "A practical multi-word compare-and-swap operation", DISC'02). While a merge of the tables of dir[s] and dir[c] goes
// on, both entries name its record; the record tells every client that meets it all that there is to do.
//
// It is written before an entry names it. After that only its status changes, by CAS. It is retired when neither entry
// names it any more.
struct MergeRecord {
  uint64_t status;        // MergeStatus: UNDECIDED to ENGAGED or ABANDONED, ENGAGED to JOIN or REPLACE
  uint32_t parent_index;  // s
  uint32_t child_index;   // c = s | 1 << d
  uint64_t parent_entry;  // the two old words in whose place the record is, NORMAL and of depth d + 1
  uint64_t child_entry;
  uint64_t birth_epoch;  // as in a block
  uint64_t copies;       // 1: REPLACE even if they fit in one, to have both tables elsewhere
  uint64_t reserved[2];

  MergeStatus state() const { return static_cast<MergeStatus>(status); }
  uint32_t depth() const { return BirthDepth(child_index) - 1; }  // d, of the joined table
  DirectoryEntry parent() const { return DirectoryEntry(parent_entry); }
  DirectoryEntry child() const { return DirectoryEntry(child_entry); }
  // The words of the two entries while the record, which lies at `address`, is in them.
  DirectoryEntry parent_engaged(GlobalAddress address) const {
    return parent().Next(address, depth() + 1, DirectoryState::kMerging);
  }
  DirectoryEntry child_engaged(GlobalAddress address) const {
    return child().Next(address, depth() + 1, DirectoryState::kMerging);
  }
};
static_assert(sizeof(MergeRecord) == 64);

// ---- tables and merges as a client meets them

// A subtable, as the directory described it.
struct TableRef {
  GlobalAddress address;
  uint32_t index = 0;  // of its canonical directory entry
  DirectoryEntry entry;
  uint64_t ticket = 0;  // DirectoryCache::Ticket() (kvs/epochs/directory_cache.h) before the entry's READ was posted

  bool migrating() const { return entry.migrating(); }
};

// A merge under way, as its record describes it.
struct Merge {
  GlobalAddress record;  // none: no merge
  MergeRecord terms{};   // the status may have gone on since

  bool known() const { return record.valid(); }
  // It is not given up any more. From the moment at which the directory named it, its two tables count until they are
  // replaced.
  bool engaged() const {
    const MergeStatus status = terms.state();
    return known() &&
           (status == MergeStatus::kEngaged || status == MergeStatus::kJoin || status == MergeStatus::kReplace);
  }
  // The words of dir[s] and dir[c] while the record is in them.
  DirectoryEntry parent_word() const { return terms.parent_engaged(record); }
  DirectoryEntry child_word() const { return terms.child_engaged(record); }
  // The two tables that it takes out of use.
  TableRef parent() const { return {terms.parent().subtable(), terms.parent_index, terms.parent()}; }
  TableRef child() const { return {terms.child().subtable(), terms.child_index, terms.child()}; }
  // Returns whether keys with this hash belong to one of them.
  bool Covers(const KeyHash& hash) const { return hash.Suffix(terms.depth()) == terms.parent_index; }
  TableRef TableOf(const KeyHash& hash) const { return (hash.h1 >> terms.depth() & 1) != 0 ? child() : parent(); }
};

}  // namespace kvs

#endif  // KVS_LAYOUT_DIRECTORY_H_
