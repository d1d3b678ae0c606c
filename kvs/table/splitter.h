// Splitter: splits a subtable, and helps with another client's split. Slot i of the parent can move only to slot i of
// the child; one CAS on the child's slot decides it for ever. So the splitter, a helper, a successor and a latecomer
// all issue the same idempotent CASes. The steps are those of docs/protocol.md, "Split".
//
// Thread safety: the client's thread.
#ifndef KVS_TABLE_SPLITTER_H_
#define KVS_TABLE_SPLITTER_H_

#include <array>
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
  // Decides the PEND candidates of the operation's last scan, which was of a child whose split is not finished.
  Task<Step> HelpMigrate(Operation& op);
  // Finishes the split that made dir[child_index], if it is unfinished and the client that ran it has stopped. The
  // client must have an operation in flight, or a pin of its own, for the tables and blocks that this reads.
  Task<Step> FinishAbandonedSplit(const Batch& on_behalf_of, uint32_t child_index);

 private:
  // A split of the table dir[parent] into dir[child] whose child is published.
  struct Migration {
    TableRef parent, child;
    uint32_t depth = 0;           // of the parent before the split
    std::vector<uint64_t> early;  // Mutation::kSlotBeforeHeader: the parent's slots as they were before; else empty
  };
  // The registered memory that MigrateSlots works with; it has room for all its slots.
  struct MigrationScratch {
    Batch* batch;
    std::span<uint64_t> slots;
    std::span<uint64_t> cas;
    std::span<BlockHeader> blocks;
    std::span<uint64_t> run{};  // for neighbouring words: those of the slots and those between them
  };
  // Where MigrateSlots stands.
  struct Migrating {
    std::span<const uint32_t> slots;
    MigrationScratch scratch;
    uint32_t todo_count = 0;
    std::array<uint32_t, Workbench::kWindow> places;    // of what is to do, in `slots`
    std::array<uint64_t, Workbench::kWindow> decision;  // the child's slot words
    bool together = false;                              // the words came by one READ
    std::span<const uint32_t> todo() const { return std::span(places).first(todo_count); }
  };
  Task<Step> ReadSplit(Batch& batch, std::span<uint64_t, 3> words, uint32_t child_index, Migration* migration);
  Task<Step> SplitLocked(TableRef table, GlobalAddress* spare, Merge* met);
  Task<Step> PublishChild(TableRef parent, uint32_t child_index, GlobalAddress* spare);
  Task<Step> FinishSplit(uint32_t child_index);
  Task<Step> MoveHeaders(const Migration& migration);
  std::span<const uint32_t> UndecidedSlots(uint32_t* next, std::span<uint32_t> window);
  Task<Step> MigrateSlots(const Migration& migration, std::span<const uint32_t> slots, MigrationScratch scratch);
  void AskForSlots(const Migration& migration, Migrating* now);
  void AskForBlocks(const Migration& migration, Migrating* now);
  void AskToSettle(const Migration& migration, Migrating* now);
  void KeepLost(Migrating* now);
  void AskToDecide(const Migration& migration, Migrating* now);

  Epochs& epochs_;
  DirectoryCache& cache_;
  Directory& directory_;
  Workbench& workbench_;
  Merger& merger_;
};

}  // namespace kvs

#endif  // KVS_TABLE_SPLITTER_H_
