// Mover: one run that gives memory back. mover.cc has its election, the choice of chunks, and the loop over rounds.
// evacuation.cc has one round. drain.cc has a round that empties a memory node.
//
// Thread safety: the client's thread.
#ifndef KVS_UPKEEP_MOVER_H_
#define KVS_UPKEEP_MOVER_H_

#include <array>
#include <cstdint>
#include <map>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "kvs/client.h"
#include "kvs/epochs/epochs.h"
#include "kvs/layout/pool.h"
#include "kvs/table/table.h"
#include "kvs/task.h"
#include "kvs/upkeep/upkeep.h"

namespace kvs {

// One run, which goes on while the client's operations do.
class Mover : private Part {
 public:
  // `op` is not one of those that users wait for. `report` is filled in on the way.
  Mover(Epochs& epochs, Table& table, Maintenance& maintenance, SeenMover& seen, Operation& op,
        const CompactOptions& options, CompactReport* report)
      : Part(epochs.common),
        epochs_(epochs),
        table_(table),
        maintenance_(maintenance),
        seen_(seen),
        op_(op),
        thorough_(options.thorough),
        deadline_ns_(common_.clock.NowNs() + options.timeout_ms * 1'000'000),
        report_(report) {}

  // kOk: there is nothing more to gain, or what there is cannot be freed now. kRestart: another client is the mover, or
  // this one was expelled. kFull: out of time.
  Task<Step> Run();
  // Runs one round of emptying a memory node (drain.cc).
  Task<Step> RunDrain(Draining* draining);
  // Returns whether the run has looked at all of the store and found nothing that could be given back.
  bool in_vain() const { return found_.in_vain; }
  // Returns whether something was left alone because a client that is expelled and lives may know it.
  bool pinned() const { return found_.pinned; }

 private:
  using Chunk = std::pair<krcore::NodeId, uint32_t>;
  using EvacuationSlots = std::array<EvacuationWord, kEvacuationSlots>;
  // A chunk that is being emptied.
  struct Victim {
    Chunk chunk;
    ChunkWord word;
    uint64_t room = 0;        // the most that its contents may take elsewhere
    uint32_t slot = 0;        // its evacuation slot
    uint64_t references = 0;  // that the last scan found
    bool empty = false;

    EvacuationWord Evacuation() const { return {chunk.first, chunk.second, word.generation()}; }
    GlobalAddress WordAddress() const { return {chunk.first, ChunkWordOffset(chunk.second)}; }
  };
  // The blocks of a chunk.
  struct Blocks {
    uint64_t bytes = 0;
    uint64_t room = 0;  // the most that they may take elsewhere, if copied together with those of many chunks

    // The same, if copied alone: after a copy, the rest of a chunk may be too small for the next one.
    uint64_t Needed() const { return room + room / (kSmallBlocks - 1); }
  };
  // What a scan found.
  struct Census {
    std::map<Chunk, Blocks> blocks;
    std::map<Chunk, uint64_t> tables;  // subtables
    std::vector<uint32_t> sparse;      // indexes of subtables that may be merged
    // Where the empty ones of the depth at which the store began lie, by index.
    std::map<uint32_t, krcore::NodeId> empty;
  };

  // How many scans may find splits and merges under way. With the time between them they take longer than a client
  // waits before it takes over another's split.
  static constexpr int kInvalidScans = 64;
  // If this many blocks of a size fit in a chunk, they leave little of it unused.
  static constexpr uint64_t kSmallBlocks = 16;

  struct Findings {
    bool in_vain = false;
    bool pinned = false;
    bool no_room = false;   // something could not be moved for lack of room
    bool progress = false;  // something has left the memory node for good
  };

  krcore::NodeId home() const { return common_.shape.home; }
  Chunk ChunkOf(GlobalAddress address) const {
    return {address.node, static_cast<uint32_t>(address.offset / common_.shape.chunk_bytes)};
  }
  // Counts a reference to `address`. False: it is in none of the chunks that are being emptied.
  bool CountReference(GlobalAddress address) {
    for (Victim& victim : victims_) {
      if (victim.chunk != ChunkOf(address)) continue;
      ++victim.references;
      return true;
    }
    return false;
  }
  bool OutOfTime() const;
  bool OutOfPatience(int64_t begin_ns) const;

  Task<Step> Elect();
  Task<Step> LookAtMover(MoverWord word, bool* stopped);
  Task<Step> StayElected();
  Task<Step> StayElectedInTime();
  Task<void> Resign();
  void BeginAnew();
  Task<void> Wait(int64_t ns);
  Task<Step> WaitForAll(std::span<const Victim> victims = {});
  bool MayKnow(uint64_t announced, Chunk chunk, ChunkWord word) const;
  bool AllAnnounced(uint64_t epoch, std::span<const Victim> victims) const;
  Task<Step> ReadImage(GlobalAddress from, uint64_t bytes);
  Task<Step> ReadDirectory(std::vector<uint64_t>* entries, bool* behind);
  Task<Step> Help(GlobalAddress at, uint64_t word, Word whose);
  Task<Step> Scan(Census* census, bool* valid);
  Task<Step> VisitTable(uint32_t index, DirectoryEntry entry, Census* census);
  Task<Step> ReadLength(GlobalAddress block, uint64_t* bytes);
  Task<Step> Move(GlobalAddress at, Slot slot);
  Task<Step> ReadChunks(std::span<const krcore::NodeId> nodes, std::map<Chunk, ChunkWord>* chunks);
  uint64_t FreeForCopies(const std::map<Chunk, ChunkWord>& chunks) const;
  Task<Step> ClaimRoom(size_t* fit);
  Task<void> GiveBackRoom();
  void Choose(const Census& census, const std::map<Chunk, ChunkWord>& chunks);
  Task<Step> Announce();
  Task<Step> LookAgain();
  Task<Step> ReadSlots(EvacuationSlots* found);
  Task<Step> ClearSlot(uint32_t slot, EvacuationWord word);
  Task<Step> ClearSlots();
  Task<Step> Free(const Victim& victim);
  Task<Step> WaitForReaders();
  Task<void> FinishUnderWay();
  Task<bool> MergeSparse(const Census& census);
  Task<bool> SpreadEmpty(const Census& census);
  Task<Step> End(const Victim& victim, bool free);
  Task<Step> GiveUp(EvacuationWord evacuation);
  Task<Step> Evacuate();

  Task<Step> MarkDraining();
  Task<Step> TellMark();
  Task<Step> MoveTables(bool* all);
  Task<Step> MoveTable(uint32_t index);
  Task<Step> Relocate(uint32_t index);
  Task<Step> FreeOrphans(std::map<Chunk, ChunkWord>* chunks);
  Task<Step> EmptyChunks();
  void ChooseAll(const Census& census, const std::map<Chunk, ChunkWord>& chunks);

  Epochs& epochs_;
  Table& table_;
  Maintenance& maintenance_;
  SeenMover& seen_;  // what the client has seen of other movers
  Operation& op_;
  const bool thorough_;
  const int64_t deadline_ns_;
  CompactReport* const report_;
  MoverWord token_;
  int64_t stay_at_ns_ = 0;  // when to change the mover word again
  Findings found_;
  LargeBuffer image_;
  const std::byte* head_image_ = nullptr;  // in image_: what the head has of what was read last
  std::vector<Victim> victims_;            // the emptiest first
  bool scarce_ = false;                    // fewer chunks are free than are being emptied
  std::vector<uint32_t> under_way_;        // directory indexes of splits and merges that the last scan met
  std::set<Chunk> given_up_;
  Draining* drain_ = nullptr;  // what a drain knows of its memory node
};

}  // namespace kvs

#endif  // KVS_UPKEEP_MOVER_H_
