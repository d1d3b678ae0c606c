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
  // Makes a large block's chunks FREE, which this client alone owns. `window`: registered room for their words.
  Task<Step> GiveBackRun(Batch& batch, std::span<ChunkWord> window, std::span<uint64_t> scratch, Extent run);
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

}  // namespace kvs

#endif  // KVS_EPOCHS_CHUNKS_H_
