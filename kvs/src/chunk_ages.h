// ChunkAges: since when chunks are what they are, as far as the clients of one Store have seen. A chunk that was FREE
// in some epoch and has the same generation still was taken after that: all that it holds is younger. So a client which
// was expelled before knows nothing of it (docs/protocol.md, E4).
//
// Thread safety: all methods from any thread.
#ifndef KVS_SRC_CHUNK_AGES_H_
#define KVS_SRC_CHUNK_AGES_H_

#include <array>
#include <cstdint>
#include <mutex>
#include <span>
#include <vector>

#include "krcore/types.h"
#include "kvs/layout/pool.h"

namespace kvs {

class ChunkAges {
 public:
  // Words of chunks from `first` on, read when the epoch was `epoch` at least.
  void Saw(krcore::NodeId node, uint64_t first, std::span<const ChunkWord> words, uint64_t epoch) {
    const std::lock_guard lock(mutex_);
    std::vector<Seen>& seen = seen_[node];
    if (seen.size() < first + words.size()) seen.resize(first + words.size());
    for (size_t i = 0; i < words.size(); ++i) {
      if (words[i].kind() == ChunkKind::kFree) seen[first + i] = {words[i].generation(), epoch};
    }
  }
  // A mover has given it up: it holds what it held, under another generation.
  void Renamed(krcore::NodeId node, uint64_t chunk, ChunkWord from, ChunkWord to) {
    const std::lock_guard lock(mutex_);
    if (chunk >= seen_[node].size()) return;
    Seen& seen = seen_[node][chunk];
    if (seen.generation == from.generation()) seen.generation = to.generation();
  }
  // Was the chunk FREE in this epoch or a later one, before it became what the word says? False: that is not known.
  bool IsYounger(krcore::NodeId node, uint64_t chunk, ChunkWord word, uint64_t epoch) {
    const std::lock_guard lock(mutex_);
    if (chunk >= seen_[node].size()) return false;
    const Seen& seen = seen_[node][chunk];
    return seen.generation == word.generation() && seen.epoch >= epoch;
  }

 private:
  struct Seen {
    uint64_t generation = 0;
    uint64_t epoch = 0;  // 0: never
  };
  std::mutex mutex_;
  std::array<std::vector<Seen>, krcore::kMaxMemoryNode + 1> seen_;  // guarded by mutex_
};

}  // namespace kvs

#endif  // KVS_SRC_CHUNK_AGES_H_
