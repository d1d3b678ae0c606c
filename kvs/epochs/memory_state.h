// What a client holds of the memory nodes' memory: spans from which it cuts blocks, blocks and subtables that are free
// for reuse, and retired ones whose grace period is not over. When a client ends, its Store keeps the state for the
// next one, so that workers that come and go do not leak.
//
// Reclamation (docs/protocol.md, "Epochs"): a retired extent is stamped with the global epoch read after the CAS that
// unlinked it, and is free once every registered client has announced a later epoch.
//
// Thread safety: one thread.
#ifndef KVS_EPOCHS_MEMORY_STATE_H_
#define KVS_EPOCHS_MEMORY_STATE_H_

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "kvs/layout/pool.h"
#include "kvs/layout/subtable.h"
#include "kvs/memory/connections.h"

namespace kvs {

struct Extent {
  GlobalAddress address;
  uint64_t bytes = 0;
  bool is_table = false;  // a subtable, aligned as one; becomes a subtable again
  uint64_t birth = 0;     // the epoch in which it was made, or an earlier one; 0 for subtables
};

// A part of a chunk that one client has taken to cut blocks from. `begin` and `end` are offsets in the chunk.
struct Span {
  uint64_t chunk = 0, generation = 0;
  uint64_t begin = 0, end = 0;
};

// Rounds block sizes so that large blocks are reusable. They are exact up to the largest small block, then go in steps
// of an eighth, and above one chunk are whole chunks.
uint64_t RoundBlockBytes(uint64_t bytes, uint64_t chunk_bytes);

class MemoryState {
 public:
  explicit MemoryState(uint64_t chunk_bytes) : chunk_shift_(static_cast<uint32_t>(std::countr_zero(chunk_bytes))) {}

  // Allocates a block of `bytes`, as RoundBlockBytes gave it, at the node: a free one, or one cut from a span. False: a
  // span must be taken first.
  bool Allocate(krcore::NodeId node, uint64_t bytes, GlobalAddress* block, bool* reused);
  // The same, from the chunks that the mover fills with copies only: operations that wait for memory must not use up
  // what the mover needs to free some.
  bool AllocateForCopy(krcore::NodeId node, uint64_t bytes, GlobalAddress* block);
  // Allocates a subtable that was retired before.
  bool AllocateTable(krcore::NodeId node, GlobalAddress* table);
  // Returns how much to take when there is too little: more each time, from a small part of a chunk to all of it.
  uint64_t NextSpan(krcore::NodeId node) { return std::max(Of(node).next_span, chunk_bytes() / kFirstSpanPart); }
  // Adds a span of the node to cut blocks from. It replaces the smallest remainder of the older spans.
  void AddSpan(krcore::NodeId node, const Span& span);
  // Adds a chunk of the node to cut copies from.
  void AddChunkForCopies(krcore::NodeId node, uint64_t chunk, uint64_t generation);
  // Returns how many bytes are left of those chunks.
  uint64_t room_for_copies() const;
  struct Chunk {
    krcore::NodeId node;
    uint64_t chunk, generation;
  };
  // Ends the copying. Returns the chunks of which nothing was used, for the caller to give back. What is left of the
  // others then serves all blocks.
  std::vector<Chunk> EndCopies();

  // ---- evacuation (docs/protocol.md, "Emptying chunks")
  // Takes the home's evacuation slots and its count of evacuations, as just read. Forgets whatever lies in a chunk that
  // is being emptied, and takes nothing of it back from now on.
  void SetEvacuating(std::span<const uint64_t> slots, uint64_t evacuations);
  bool IsEvacuating(GlobalAddress address) const;
  uint64_t evacuations() const { return evacuations_; }
  // Returns whether blocks are being cut from the chunk.
  bool IsOpen(krcore::NodeId node, uint64_t chunk) const;
  void Free(const Extent& extent);
  void FreeTable(GlobalAddress table) { Free({.address = table, .is_table = true}); }
  // Takes free blocks that have chunks of their own; the caller gives them back to their nodes.
  std::vector<Extent> TakeFreeRuns() { return std::exchange(free_runs_, {}); }
  // Bytes in free blocks, of every size.
  uint64_t free_bytes() const { return free_bytes_; }

  // Takes an unlinked extent, whose address readers may still have.
  void Retire(const Extent& extent) {
    if (IsKept(extent)) unstamped_.push_back(extent);
  }
  // The same; and a frozen slot may still name it until the split that made dir[index] is finished.
  void RetireHeld(uint32_t index, const Extent& extent) {
    if (IsKept(extent)) held_[index].push_back(extent);
  }
  bool has_held() const { return !held_.empty(); }
  size_t held() const;
  // Returns some index with held blocks. The caller reads dir[index] and, if its split is finished, releases them.
  uint32_t AnyHeldIndex(uint32_t after) const;
  void ReleaseHeld(uint32_t index);

  // How many extents are unstamped now; pass it to Stamp with an epoch that was read later.
  size_t unstamped() const { return unstamped_.size(); }
  void Stamp(size_t count, uint64_t epoch);
  // Frees what was stamped before `safe_epoch`, the oldest announcement of a client that is not expelled. `expelled`
  // has the announcements of expelled clients; what one of them may know stays. Returns the number of extents whose
  // grace period is over.
  size_t Reclaim(uint64_t safe_epoch, std::span<const uint64_t> expelled);
  // Returns the number of extents that only expelled clients keep from being free.
  size_t pinned() const { return pinned_.size(); }
  // Extents are freed in the order in which they were retired, held ones from their release on. Once reclaimed() has
  // reached an earlier reading of retired(), all that was waiting then is free.
  uint64_t retired() const { return reclaimed_ + stamped_count_ + unstamped_.size(); }
  uint64_t reclaimed() const { return reclaimed_; }

 private:
  static constexpr uint64_t kFirstSpanPart = 32, kSpanGrowth = 4;  // the first span is this part of a chunk

  struct Range {
    uint64_t begin = 0, end = 0;
  };
  struct CopyChunk {
    Range left;
    uint64_t generation;

    uint64_t bytes() const { return left.end - left.begin; }
  };
  // Of one memory node.
  struct NodeMemory {
    uint64_t next_span = 0;
    std::array<Range, 3> open;                        // what is left of spans to cut from
    std::vector<CopyChunk> copies;                    // chunks that the mover fills
    std::array<std::vector<uint64_t>, 256> small;     // free blocks' offsets, by 16-byte units
    std::map<uint64_t, std::vector<uint64_t>> large;  // ... by bytes
    std::vector<uint64_t> tables;
  };
  struct Stamped {
    uint64_t epoch;
    std::vector<Extent> extents;
  };

  NodeMemory& Of(krcore::NodeId node) {
    if (!nodes_[node]) nodes_[node] = std::make_unique<NodeMemory>();
    return *nodes_[node];
  }
  uint64_t chunk_bytes() const { return uint64_t{1} << chunk_shift_; }
  static bool Cut(Range& range, krcore::NodeId node, uint64_t bytes, GlobalAddress* block);
  static Range& Smallest(NodeMemory& memory);
  bool IsUsable(krcore::NodeId node, uint64_t chunk, uint64_t generation);

  bool IsKept(const Extent& extent) const { return evacuating_.empty() || !IsEvacuating(extent.address); }
  void Forget();

  const uint32_t chunk_shift_;
  std::vector<EvacuationWord> evacuating_;
  uint64_t evacuations_ = 0;
  std::array<std::unique_ptr<NodeMemory>, krcore::kMaxMemoryNode + 1> nodes_;
  std::vector<Extent> free_runs_;
  uint64_t free_bytes_ = 0;
  std::deque<Extent> unstamped_;
  std::deque<Stamped> stamped_;
  size_t stamped_count_ = 0;
  std::vector<std::pair<uint64_t, Extent>> pinned_;  // with their stamps
  std::vector<uint64_t> pinned_by_;                  // the expelled clients' announcements at the last Reclaim
  uint64_t reclaimed_ = 0;
  std::map<uint32_t, std::vector<Extent>> held_;
};

// A client's memory under its present registration. What an operation of an earlier one holds must not get into its
// lists.
class ClientMemory {
 public:
  explicit ClientMemory(uint64_t chunk_bytes) : chunk_bytes_(chunk_bytes) {}

  MemoryState* operator->() const { return present_.get(); }
  MemoryState& Of(const Batch& batch) const { return batch.Stale() ? *void_ : *present_; }
  void Set(std::unique_ptr<MemoryState> memory) { present_ = std::move(memory); }
  // Takes the memory away. Null: there was none.
  std::unique_ptr<MemoryState> Take() { return std::move(present_); }
  // Forgets everything; sweeping finds what it held.
  void Renew() { present_ = std::make_unique<MemoryState>(chunk_bytes_); }
  // The same. What earlier operations free from now on belongs to nobody.
  void RenewAfterExpulsion() {
    Renew();
    void_ = std::make_unique<MemoryState>(chunk_bytes_);
  }

 private:
  const uint64_t chunk_bytes_;
  std::unique_ptr<MemoryState> present_;
  std::unique_ptr<MemoryState> void_;
};

}  // namespace kvs

#endif  // KVS_EPOCHS_MEMORY_STATE_H_
