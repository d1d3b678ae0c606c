// Allocates blocks and subtables, from what the client has or from chunks that it takes; and waits for memory.
//
// Thread safety: the client's thread.
#ifndef KVS_EPOCHS_ALLOCATOR_H_
#define KVS_EPOCHS_ALLOCATOR_H_

#include <array>
#include <cstddef>
#include <cstdint>

#include "kvs/epochs/chunks.h"
#include "kvs/epochs/common.h"
#include "kvs/epochs/home.h"
#include "kvs/epochs/memory_state.h"
#include "kvs/epochs/operation.h"
#include "kvs/epochs/operations.h"
#include "kvs/task.h"

namespace kvs {

// What an operation that waits for memory sees of the mover, whose runs make room (kvs/upkeep/upkeep.h).
struct Room {
  class Maker {
   public:
    // Begins a thorough run, unless one is under way or the client closes.
    virtual void BeginRun(int64_t timeout_ms) = 0;

   protected:
    ~Maker() = default;
  };

  Maker* maker = nullptr;
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
  // The same without waiting. kUnavailable: a node that may have room cannot be reached.
  Task<Step> AllocateNow(Operation& op, uint64_t bytes, krcore::NodeId node, GlobalAddress* address);
  // Allocates dir[index]'s subtable. Indices follow each other as the table grows, so this spreads the subtables
  // evenly.
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
