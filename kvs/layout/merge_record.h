// The record of a merge: the descriptor through which two directory entries change together (Harris, Fraser, Pratt,
// "A practical multi-word compare-and-swap operation", DISC'02). While a merge of the tables of dir[s] and dir[c] goes
// on, both entries name its record; whoever meets it knows from it all that there is to do.
//
// It is written before an entry names it, and nothing but its status changes after that, by CAS. It is retired when
// neither entry names it any more.
#ifndef KVS_LAYOUT_MERGE_RECORD_H_
#define KVS_LAYOUT_MERGE_RECORD_H_

#include <cstdint>

#include "kvs/layout/directory.h"

namespace kvs {

enum class MergeStatus : uint64_t {
  kUndecided = 0,  // dir[s] is taken, perhaps dir[c]
  kEngaged = 1,    // both are: the tables are closed, their slots frozen
  kAbandoned = 2,  // dir[c] was not to be had: dir[s] goes back to what it was
  kJoin = 3,       // one table takes the place of both
  kReplace = 4,    // they do not fit in one: each is replaced by a copy
};

struct MergeRecord {
  uint64_t status;        // MergeStatus: UNDECIDED to ENGAGED or ABANDONED, ENGAGED to JOIN or REPLACE
  uint32_t parent_index;  // s
  uint32_t child_index;   // c = s | 1 << d
  uint64_t parent_entry;  // the words that the record took the place of, both NORMAL and of depth d + 1
  uint64_t child_entry;
  uint64_t birth_epoch;  // as in a block
  uint64_t copies;       // 1: REPLACE, though they may fit in one, to have both tables elsewhere
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

}  // namespace kvs

#endif  // KVS_LAYOUT_MERGE_RECORD_H_
