// What a client holds of the memory nodes' memory: chunks it took and cuts blocks from, blocks that are free for
// reuse, and retired blocks that wait out their grace period. When a client ends, its Store keeps the state for the
// next one, so that workers that come and go do not leak.
//
// Reclamation (docs/kvs.md, "Reclamation"): a retired block is stamped with the global epoch read after the CAS that
// unlinked it, and is free once every registered client has announced a later epoch.
//
// Thread safety: one thread.
#ifndef KVS_SRC_MEMORY_STATE_H_
#define KVS_SRC_MEMORY_STATE_H_

#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <vector>

#include "kvs/layout/address.h"
#include "kvs/layout/slot.h"

namespace kvs {

struct Extent {
  GlobalAddress address;
  uint64_t bytes = 0;
};

// Block sizes are rounded so that large ones are reusable: exact up to the largest small block, then in steps of an
// eighth.
uint64_t RoundBlockBytes(uint64_t bytes);

class MemoryState {
 public:
  // The node that the next allocation should come from; spreads blocks over `nodes`.
  uint32_t NextTurn() { return turn_++; }

  // From the free list or the node's current chunk; false: the node's chunk must be replaced first.
  // `bytes` as RoundBlockBytes gave it; `alignment` a power of two >= 16.
  bool AllocateFreed(uint64_t bytes, GlobalAddress* block);
  bool AllocateFrom(krcore::NodeId node, uint64_t bytes, uint64_t alignment, GlobalAddress* block);
  // Fresh memory of the node: its current chunk from now on; what is left of the old one is dropped.
  void AddChunks(krcore::NodeId node, uint64_t offset, uint64_t bytes) { chunks_[node] = {offset, offset + bytes}; }
  void Free(const Extent& extent);

  // An unlinked block that readers may still hold.
  void Retire(const Extent& extent) { unstamped_.push_back(extent); }
  // ... and that a frozen slot may still name until the split that made dir[index] is finished.
  void RetireHeld(uint32_t index, const Extent& extent) { held_[index].push_back(extent); }
  bool has_held() const { return !held_.empty(); }
  // Some index with held blocks; the caller reads dir[index] and, if its split is finished, releases them.
  uint32_t AnyHeldIndex(uint32_t after) const;
  void ReleaseHeld(uint32_t index);

  // How many blocks are unstamped now; pass it to Stamp with an epoch that was read later.
  size_t unstamped() const { return unstamped_.size(); }
  void Stamp(size_t count, uint64_t epoch);
  // Frees what was stamped before `safe_epoch`. Returns how many blocks.
  size_t Reclaim(uint64_t safe_epoch);
  // Blocks are freed in the order in which they were retired, held ones from their release on. Once reclaimed() has
  // reached an earlier reading of retired(), all that was waiting then is free.
  uint64_t retired() const { return reclaimed_ + stamped_count_ + unstamped_.size(); }
  uint64_t reclaimed() const { return reclaimed_; }

 private:
  struct Chunk {
    uint64_t begin = 0, end = 0;  // what is left of it
  };
  struct Stamped {
    uint64_t epoch;
    std::vector<Extent> extents;
  };

  uint32_t turn_ = 0;
  std::array<Chunk, krcore::kMaxMemoryNode + 1> chunks_{};
  std::array<std::vector<GlobalAddress>, 256> free_small_;  // by 16-byte units
  std::map<uint64_t, std::vector<GlobalAddress>> free_large_;
  std::deque<Extent> unstamped_;
  std::deque<Stamped> stamped_;
  size_t stamped_count_ = 0;
  uint64_t reclaimed_ = 0;
  std::map<uint32_t, std::vector<Extent>> held_;
};

}  // namespace kvs

#endif  // KVS_SRC_MEMORY_STATE_H_
