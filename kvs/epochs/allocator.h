// Allocates blocks and subtables, from what the client has or from chunks that it takes; and waits for memory.
//
// Thread safety: the client's thread.
#ifndef KVS_EPOCHS_ALLOCATOR_H_
#define KVS_EPOCHS_ALLOCATOR_H_

#include <array>
#include <cstddef>
#include <cstdint>

#include "kvs/epochs/common.h"
#include "kvs/epochs/directory_cache.h"
#include "kvs/epochs/home.h"
#include "kvs/epochs/memory_state.h"
#include "kvs/epochs/operation.h"
#include "kvs/epochs/operations.h"
#include "kvs/task.h"

namespace kvs {

// Tables that were unlinked from the directory. A counter tells all clients, and only then does the grace period begin.
// A client whose announcement is younger than that has read the counter, so its directory cache does not name the
// tables.
class RetiredTables : private Part {
 public:
  RetiredTables(const Common& common, Home& home, DirectoryCache& cache, ClientMemory& memory)
      : Part(common), home_(home), cache_(cache), memory_(memory) {}

  // Adds a table that is to be reported. Until then it is not free.
  void Add(const TableRef& table) {
    cache_.Forget(table);
    tables_.push_back(table.address);
  }
  // Reports the tables. If that fails, maintenance reports them later. `scratch`: 8 registered bytes.
  Task<Step> Report(Batch& batch, uint64_t* scratch);
  // Takes the counter of retired tables, which was read after the epoch that is about to be announced.
  void SawCounter(uint64_t counter);
  // Call it when the client was expelled: what it knows of tables is void.
  void Forget() {
    cache_.Clear();
    tables_.clear();
  }

 private:
  Home& home_;
  DirectoryCache& cache_;
  ClientMemory& memory_;
  std::vector<GlobalAddress> tables_;  // those which HomeArea::retired_tables does not count yet
  uint64_t seen_ = 0;                  // that counter, as the cache knows it
};

// Chunks of the memory nodes: taking them, giving them back, and cutting subtables from those that hold subtables.
class Chunks : private Part {
 public:
  Chunks(const Common& common, Home& home, ClientMemory& memory) : Part(common), home_(home), memory_(memory) {}

  // A `node` is always one whose pool the view in use has (Connections::HasPool).

  // Takes a span of `least` bytes or more, to cut blocks from; it prefers a begun chunk to a FREE one. A client takes
  // more each time, up to a whole chunk. So one that lives for a moment takes little, and one that writes much takes
  // chunks. kFull: the node has no room.
  Task<Step> TakeSpan(Operation& op, krcore::NodeId node, uint64_t least, Span* span);
  // Takes `count` contiguous FREE chunks of the node, whose first word becomes (kind, tag). With `least`, it prefers
  // what is left of a begun chunk: at most the length of *taken, and at least `least` bytes. kFull: the node has too
  // few. For other operations than the mover's, the chunks that are kept for the mover do not count. Uses the
  // operation's buffers for matching blocks, slots and old words.
  Task<Step> TakeChunks(Operation& op, krcore::NodeId node, ChunkKind kind, uint32_t count, uint32_t tag, Span* taken,
                        uint64_t least = 0);
  // Makes chunks FREE that a claim has taken. `words` are their words before the claim. `scratch`: for old words.
  Task<Step> ReleaseChunks(Batch& batch, std::span<uint64_t> scratch, krcore::NodeId node, uint64_t first,
                           std::span<const ChunkWord> words, ChunkKind kind, uint32_t tag);
  // Makes a large block's chunks FREE, which this client alone owns. For maintenance: it uses the home's words.
  Task<Step> GiveBackRun(Extent run);
  // Takes room for a subtable in the chunk from which all clients cut them, or in a new one. kFull: no chunk is left.
  Task<Step> CutTable(Operation& op, krcore::NodeId node, GlobalAddress* table);

 private:
  Task<Step> CutSpan(Operation& op, krcore::NodeId node, std::span<const ChunkWord> words, uint64_t begin, Span* span,
                     uint64_t least);
  Task<Step> LookForFree(Operation& op, krcore::NodeId node, uint64_t wanted, Span* taken, uint64_t least);
  Task<Step> ClaimRun(Operation& op, krcore::NodeId node, uint64_t first, std::span<const ChunkWord> words,
                      ChunkKind kind, uint32_t tag);

  Home& home_;
  ClientMemory& memory_;
  std::array<uint32_t, krcore::kMaxMemoryNode + 1> chunk_guess_{};  // where a chunk was free last
};

// What an operation that waits for memory sees of the mover, whose runs make room (kvs/upkeep/upkeep.h).
struct Room {
  class Maker {
   public:
    // Begins a thorough run, unless one is under way or the client closes.
    virtual void BeginRun(int64_t timeout_ms) = 0;

   protected:
    ~Maker() = default;
  };

  Maker* maker = nullptr;      // null: nothing makes room
  size_t running = 0;          // 1 while a run is under way
  bool waited_for = false;     // an operation waits for the run: so the run does not wait for clients that have stopped
  uint64_t ended = 0;          // how many runs have ended, drains included
  Step last_step = Step::kOk;  // how the last one ended
  // The last run found nothing to gain. Until then there is nothing, unless a chunk was freed since, or this client's
  // free blocks have grown by a chunk's worth.
  int64_t full_until_ns = 0;
  uint64_t full_freed_chunks = 0, full_free_bytes = 0;
  int64_t pinned_until_ns = 0;  // the last run could not free what there is to gain; another client may
  uint64_t others_turns = 0;    // how often another client's mover was seen to go on
};

class Allocator : private Part {
 public:
  Allocator(const Common& common, Home& home, ClientMemory& memory, Chunks& chunks, Operations& operations, Room& room,
            OwnWork& own_work)
      : Part(common),
        home_(home),
        memory_(memory),
        chunks_(chunks),
        operations_(operations),
        room_(room),
        own_work_(own_work) {}

  // Allocates a block of `bytes`, as RoundBlockBytes gives it, on `node`, from what the client has there. False:
  // Allocate may find some.
  bool AllocateAtOnce(Operation& op, uint64_t bytes, krcore::NodeId node, GlobalAddress* address);
  // Allocates a block of `bytes`, as RoundBlockBytes gives it, on `node` if there is room, else anywhere. It waits as
  // long as there may be memory soon, and gives up the operation's pin meanwhile. kFull: every memory node is full.
  Task<Step> Allocate(Operation& op, uint64_t bytes, krcore::NodeId node, GlobalAddress* address);
  // The same without waiting. kUnavailable: a node that may have room cannot be reached. kRestart: there may be room
  // soon, for example in a pool that the view in use does not have yet.
  Task<Step> AllocateNow(Operation& op, uint64_t bytes, krcore::NodeId node, GlobalAddress* address);
  // Allocates dir[index]'s subtable; answers as AllocateNow. Indices follow each other as the table grows, so this
  // spreads the subtables evenly.
  Task<Step> AllocateTable(Operation& op, uint32_t index, GlobalAddress* table);
  // Call it when an operation found no memory. kRestart: there may be some soon; back off and look again. kFull: there
  // is none to be had.
  Step SeekRoom(Operation& op);

 private:
  Task<Step> AllocateFrom(Operation& op, krcore::NodeId node, uint64_t bytes, GlobalAddress* address);

  Home& home_;
  ClientMemory& memory_;
  Chunks& chunks_;
  Operations& operations_;
  Room& room_;
  OwnWork& own_work_;
  uint32_t turn_ = 0;  // counts through the memory nodes, for blocks without a preference
  std::array<bool, krcore::kMaxMemoryNode + 1> taking_chunk_{};
};

}  // namespace kvs

#endif  // KVS_EPOCHS_ALLOCATOR_H_
