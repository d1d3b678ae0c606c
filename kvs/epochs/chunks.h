// Chunks of the memory nodes: taking them, giving them back, and cutting subtables from those that hold subtables.
//
// Thread safety: the client's thread.
#ifndef KVS_EPOCHS_CHUNKS_H_
#define KVS_EPOCHS_CHUNKS_H_

#include <array>
#include <cstdint>
#include <span>

#include "kvs/epochs/common.h"
#include "kvs/epochs/home.h"
#include "kvs/epochs/memory_state.h"
#include "kvs/epochs/operation.h"
#include "kvs/layout/pool.h"
#include "kvs/task.h"

namespace kvs {

class Chunks : private Part {
 public:
  Chunks(const Common& common, Home& home, ClientMemory& memory) : Part(common), home_(home), memory_(memory) {}

  // Takes a span of a chunk to cut blocks from, of `least` bytes or more, and rather of a chunk that is begun than of a
  // FREE one. A client takes more each time, up to a whole chunk: one that lives for a moment takes little, and one
  // that writes much takes chunks. kFull: the node has no room.
  Task<Step> TakeSpan(Operation& op, krcore::NodeId node, uint64_t least, Span* span);
  // Takes `count` contiguous FREE chunks of the node, whose first word becomes (kind, tag). With `least`, rather what
  // is left of a chunk that is begun: at most the length of *taken, and `least` bytes at least. kFull: it has not so
  // many. So many are kept for the mover that an operation which is not its own finds the node full with as few left.
  // Uses the operation's buffers for matching blocks, slots and old words.
  Task<Step> TakeChunks(Operation& op, krcore::NodeId node, ChunkKind kind, uint32_t count, uint32_t tag, Span* taken,
                        uint64_t least = 0);
  // Makes chunks FREE that a claim has taken: `words` are those of before it. `scratch`: for old words.
  Task<Step> ReleaseChunks(Batch& batch, std::span<uint64_t> scratch, krcore::NodeId node, uint64_t first,
                           std::span<const ChunkWord> words, ChunkKind kind, uint32_t tag);
  // A large block's chunks, which this client owns alone, become FREE. `window`: registered room for their words.
  Task<Step> GiveBackRun(Batch& batch, std::span<ChunkWord> window, std::span<uint64_t> scratch, Extent run);
  // Room for a subtable in the chunk from which everybody cuts them, or in a new one. kFull: the node has no chunk
  // left.
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

}  // namespace kvs

#endif  // KVS_EPOCHS_CHUNKS_H_
