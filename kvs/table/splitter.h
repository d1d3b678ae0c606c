// Splitter: splits a subtable. The values that move are frozen in the old table; the new one is written with them and
// published by one CAS. Slot i moves only to slot i. So the splitter, a successor and a latecomer all write the same,
// and the first one's counts. The steps are those of docs/protocol.md, "Split".
//
// Thread safety: the client's thread.
#ifndef KVS_TABLE_SPLITTER_H_
#define KVS_TABLE_SPLITTER_H_

#include <cstdint>
#include <span>
#include <vector>

#include "kvs/epochs/epochs.h"
#include "kvs/table/directory.h"
#include "kvs/table/merger.h"
#include "kvs/table/workbench.h"
#include "kvs/task.h"

namespace kvs {

class Splitter : private Part {
 public:
  Splitter(Epochs& epochs, Directory& directory, Workbench& workbench, Merger& merger)
      : Part(epochs.common),
        epochs_(epochs),
        cache_(epochs.cache),
        directory_(directory),
        workbench_(workbench),
        merger_(merger) {}

  // kOk: `table` was split, by this client or while it looked. kRestart: another client is splitting it, or there may
  // soon be memory for it. kFull: there is none, or the directory does not go deeper.
  Task<Step> Split(Operation& op, TableRef table);
  // Finishes the split that made dir[child_index], if it is unfinished and the client that ran it has stopped. The
  // client must have an operation in flight, or a pin of its own: this reads tables, and its CASes expect words that
  // name blocks.
  Task<Step> FinishAbandonedSplit(const Batch& on_behalf_of, uint32_t child_index);

 private:
  // A split of the table dir[parent] into dir[child] whose child is published.
  struct Halves {
    TableRef parent, child;
    uint32_t depth = 0;  // of the parent before the split
  };
  Task<Step> ReadSplit(Batch& batch, std::span<uint64_t, 3> words, uint32_t child_index, Halves* halves);
  Task<Step> SplitLocked(TableRef table, GlobalAddress* spare, Merge* met);
  Task<Step> ReadHashes(uint32_t depth);
  Task<Step> MakeChild(TableRef parent, uint32_t child_index, GlobalAddress* spare);
  Task<Step> MoveHeaders(TableRef parent);
  Task<Step> FreezeMoving(TableRef parent);
  void BuildChild(uint32_t depth, uint32_t child_index);
  Task<Step> ClearFrozen(TableRef parent);
  Task<Step> FinishSplit(uint32_t child_index);

  Epochs& epochs_;
  DirectoryCache& cache_;
  Directory& directory_;
  Workbench& workbench_;
  Merger& merger_;
  // By slot of the parent: the last word whose block's hash was read, and whether that key moves.
  struct Known {
    Slot slot;
    bool moves = false;
  };
  std::vector<Known> known_;
};

}  // namespace kvs

#endif  // KVS_TABLE_SPLITTER_H_
