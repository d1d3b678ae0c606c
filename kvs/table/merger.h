// Merger: merges two sibling subtables into one. merge.cc begins merges and helps those that a client meets;
// merge_steps.cc has the steps. Two directory entries must change together. So both first name a record of the merge
// (kvs/layout/directory.h), from which anybody can go on. The steps are those of docs/protocol.md,
// "Merge".
//
// Thread safety: the client's thread.
#ifndef KVS_TABLE_MERGER_H_
#define KVS_TABLE_MERGER_H_

#include <array>
#include <cstdint>
#include <unordered_map>
#include <utility>

#include "kvs/epochs/epochs.h"
#include "kvs/table/directory.h"
#include "kvs/table/workbench.h"
#include "kvs/task.h"

namespace kvs {

// The purpose of a merge.
enum class MergeFor : uint8_t {
  kSpace,  // two tables that have few keys become one
  kJoin,   // the same, however many keys they have, if they fit
  kCopies  // each is replaced by a copy, which lies elsewhere
};

// Memory for new subtables, allocated before a step begins that would need it.
struct SpareTables {
  std::array<GlobalAddress, 2> tables;

  GlobalAddress Take() {
    GlobalAddress& spare = tables[tables[0].valid() ? 0 : 1];
    return std::exchange(spare, GlobalAddress{});
  }
};

class Merger : private Part {
 public:
  Merger(Epochs& epochs, Directory& directory, Workbench& workbench)
      : Part(epochs.common), epochs_(epochs), cache_(epochs.cache), directory_(directory), workbench_(workbench) {}

  // ---- meeting a merge
  // For a writer at a closed table, or at its directory entry: finishes op.merge if the client that ran it has stopped.
  // kOk: it is finished; kRestart: it goes on, or there may soon be memory for it. kFull: there is none.
  Task<Step> HelpMerge(Operation& op);
  // A split of the table of dir[ParentIndex(index)] found `entry` in dir[index], after Split 2. kOk: the
  // birth of dir[index] is over, and its table is in a merge with its own child. kRestart: it was the end of an earlier
  // merge of the two, which is done now.
  Task<Step> PassMerge(uint32_t index, DirectoryEntry entry);

  // ---- beginning one
  // A Delete emptied a slot of `table`.
  void ConsiderMerge(const Operation& op, const TableRef& table);
  // Merges the table of *index with its sibling, if both are NORMAL and, for kSpace, have few enough keys. kOk: merged;
  // *index is that of the joined table. kRestart: not now, or replaced by copies.
  Task<Step> TryMerge(Operation& op, uint32_t* index, MergeFor purpose = MergeFor::kSpace);

 private:
  Task<Step> AllocateSpares(Operation& op, uint32_t index, SpareTables* spares);
  void FreeSpares(Operation& op, SpareTables* spares);
  Task<void> MergeUpwards(uint32_t index);
  Task<Step> FindSiblings(uint32_t index, Merge* merge);
  Task<Step> CheckSparse(Merge merge);

  // ---- merge_steps.cc
  Task<Step> MergeLocked(Operation& op, Merge* merge, SpareTables* spares, GlobalAddress* record);
  Task<Step> FinishMerge(Operation& op, Merge* merge, SpareTables* spares);
  Task<Step> Settle(Merge* merge, MergeStatus wanted);
  Task<Step> DecideEngagement(Merge* merge);
  Task<Step> AbandonMerge(Merge merge);
  Task<Step> CloseTable(TableRef table, uint32_t image);
  Task<Step> CloseHeaders(TableRef table, uint32_t image);
  Task<Step> FreezeSlots(TableRef table, uint32_t image);
  Task<Step> BuildMerged(Operation& op, Merge merge, bool* fits);
  Task<Step> ReadKeyHash(Operation& op, Slot slot, KeyHash* hash);
  Task<Step> Publish(uint32_t index, DirectoryEntry expected, uint32_t depth, SpareTables* spares, bool* won);
  Task<Step> PublishCopies(Merge merge, bool parent_left, SpareTables* spares);
  Task<Step> UnlinkChild(Merge merge);
  Task<Step> RetireMerged(Merge merge);

  Epochs& epochs_;
  DirectoryCache& cache_;
  Directory& directory_;
  Workbench& workbench_;
  uint64_t deletes_ = 0;
  std::unordered_map<uint32_t, uint64_t> merge_not_before_;  // by index; a value of deletes_
};

}  // namespace kvs

#endif  // KVS_TABLE_MERGER_H_
