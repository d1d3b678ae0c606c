// What one operation in flight needs: buffers in the client's registered arena, its Batch, and the result of its
// last scan. Operations are pooled; whoever is in flight holds one.
#ifndef KVS_EPOCHS_OPERATION_H_
#define KVS_EPOCHS_OPERATION_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <span>
#include <string_view>
#include <utility>

#include "krcore/node.h"
#include "krcore/status.h"
#include "krcore/types.h"
#include "kvs/layout/block.h"
#include "kvs/layout/candidates.h"
#include "kvs/layout/directory.h"
#include "kvs/layout/hash.h"
#include "kvs/layout/subtable.h"
#include "kvs/memory/connections.h"

namespace kvs {

inline constexpr uint32_t kOperationVerbs = kCandidates + 4;  // of one round trip: a CAS, a block, a scan, its matches
inline constexpr uint32_t kMatchBytes = 8192;                 // of matching blocks, read at once

// Registered memory of one operation.
struct OperationBuffers {
  alignas(64) std::array<std::byte, 2 * kCombinedBytes> buckets;  // the two combined buckets
  alignas(64) std::array<uint64_t, 4> headers;                    // re-read headers
  std::array<uint64_t, kCandidates> cas;                          // old words
  std::array<uint64_t, 20> directory;                             // directory entries
  std::array<uint64_t, kCandidates> slots;                        // slots of the parent, while helping a migration
  alignas(64) MergeRecord merge;                                  // of a merge that it met
  alignas(64) std::array<std::byte, kMatchBytes> match;           // matching blocks
  alignas(64) std::array<std::byte, kMaxSmallBlockBytes> block;   // the block to write

  std::span<const Bucket, kCandidateBuckets> candidates() const {
    return std::span<const Bucket, kCandidateBuckets>(reinterpret_cast<const Bucket*>(buckets.data()),
                                                      kCandidateBuckets);
  }
};

// A registered buffer of an operation on a block that the arena does not hold.
struct LargeBuffer {
  struct Deleter {
    void operator()(std::byte* memory) const { ::operator delete[](memory, std::align_val_t{64}); }
  };
  // Registered memory of `bytes` or more: what it has, if that is large enough. False: there is none.
  bool Grow(krcore::Node& node, uint64_t bytes) {
    if (region && region->bytes().size() >= bytes) return true;
    region.reset();
    memory.reset(new (std::align_val_t{64}, std::nothrow) std::byte[bytes]);
    if (!memory) return false;
    auto registered = node.RegisterLocal(memory.get(), bytes);
    if (!registered.ok()) return false;
    region = std::move(*registered);
    return true;
  }

  std::unique_ptr<std::byte[], Deleter> memory;
  std::unique_ptr<krcore::Region> region;
};

// How a part of an operation ended.
enum class Step : uint8_t {
  kOk,
  kRestart,      // something changed under it: begin again with a fresh view
  kUnavailable,  // a memory node failed; what was posted last has an unknown outcome
  kFull,         // no memory, or no room in the directory
  kRun,          // not ended: its batch is to be run, or what else it waits for
};

// What beginning again waits for.
enum class Again : uint8_t {
  kElse,    // somebody else's progress (memory, a lock): at once the first time, then ever longer
  kLost,    // a race for a slot was lost: back off at once, or the same clients meet again
  kAtOnce,  // nothing: the world has moved on, and this operation looks at it as it is now
  kRoom,    // memory, which takes as long as sweeping
};

// An operation that waits for memory.
struct RoomWait {
  bool begun = false;
  int64_t begun_ns = 0;
  uint64_t compactions = 0;  // that its client had ended
  uint64_t reclaimed =
      0;                 // extents that this client will have reclaimed when all are free that waited at the beginning
  uint64_t changes = 0;  // what might have brought memory, counted
  int64_t changed_ns = 0;       // when that changed last
  uint64_t member_changes = 0;  // as its client knew them
  uint64_t rounds = 0;          // of maintenance that its client had begun
};

constexpr uint32_t MaskOf(SlotState state) { return 1u << static_cast<uint32_t>(state); }
inline constexpr uint32_t kReaderStates = MaskOf(SlotState::kVal) | MaskOf(SlotState::kFrz);
inline constexpr uint32_t kInserterStates = kReaderStates | MaskOf(SlotState::kIns);

// What a scan of a table found. Candidates count as in candidates.h.
struct Scan {
  TableRef table;
  KeyPlaces places;
  int val = -1, frz = -1;    // candidate that is VAL / FRZ with this key
  bool headers_fit = false;  // all four bucket headers match the key's hash. This and the next two mean something
  bool closed = false;       // one says that the table is out of use               ... where there is no such VAL
  bool any_pending = false;  // a candidate is PEND
  uint32_t ins_count = 0;    // candidates that are INS with this key, not counting one's own
  std::array<uint8_t, kCandidates> ins;
  BlockView block;  // of the last match, in `match` or a LargeBuffer

  // How far it has come.
  enum class Reading : uint8_t { kBuckets, kOnlyBlock, kBlocks, kLargeBlock, kHeaders };
  Reading reading = Reading::kBuckets;       // what is read now
  uint32_t states = 0;                       // asked for, of MaskOf
  Slot guess;                                // whose block was read along with the buckets; FREE: none
  std::array<uint8_t, kCandidates> planned;  // candidates whose blocks must be read: of these
  uint32_t planned_count = 0;
  uint32_t asked = 0;         // have been asked for,
  uint32_t judged = 0;        // and looked at,
  uint32_t judged_bytes = 0;  // of the present buffer
  uint64_t large_bytes = 0;
};

struct Operation {
  OperationBuffers* buffers = nullptr;
  Batch batch;
  Scan scan;
  KeyHash hash;
  std::string_view key;
  uint64_t epoch = 0;          // the client's view of the global epoch when it began
  uint32_t attempt = 0;        // restarts so far
  Again again = Again::kElse;  // the next restart's reason
  uint32_t waits = 0;          // back-offs so far
  uint32_t hurries = 0;        // restarts at once so far
  int64_t deadline_ns = 0;     // 0: not set yet (it is when something goes wrong first)
  bool in_use = false;
  bool inserts = false;     // it goes by steps, and writes a key that may be absent, which it need not show beforehand
  bool makes_room = false;  // the mover's: it may have the chunks that are kept for that, and waits for none;
  bool drains = false;      // but not while it empties a memory node
  RoomWait room_wait;
  bool torn = false;       // the last block that it read did not match its checksum
  uint64_t own_ins = 0;    // the slot word of its own tentative slot, 0: none
  uint32_t strangers = 0;  // slot words found to hold other keys, valid for the operation's life: blocks of an
  std::array<uint64_t, 16> stranger;  // operation in flight are not reused
  Merge merge;                        // that takes the key's table out of use, as the last Resolve() found it
  LargeBuffer large_read, large_write;
  // In a group: which of the keys it has, and the next one of the group.
  size_t group_index = 0;
  Operation* group_next = nullptr;

  void SetCandidate(uint32_t c, Slot slot) { const_cast<Slot&>(CandidateWord(c)) = slot; }
  Slot Candidate(uint32_t c) const { return CandidateWord(c); }
  // The slot's index in its subtable.
  uint32_t SlotIndex(uint32_t c) const {
    const CombinedBucket& place = scan.places.place[c / kCombinedSlots];
    return (FirstBucket(place) + c % kCombinedSlots / kSlotsPerBucket) * kSlotsPerBucket + c % kSlotsPerBucket;
  }
  GlobalAddress SlotAddress(uint32_t c) const {
    const uint32_t p = c / kCombinedSlots;
    const uint64_t place = scan.table.address.offset + CombinedOffset(scan.places.place[p]);
    return {scan.table.address.node, place + (SlotWord(c) * 8 - p * kCombinedBytes)};
  }

 private:
  const Slot& CandidateWord(uint32_t c) const {
    return reinterpret_cast<const Slot*>(buffers->buckets.data())[SlotWord(c)];
  }
};

// The step failed for good: not because the client was expelled, after which the operation begins again.
inline bool Failed(const Operation& operation, Step step) {
  return step == Step::kUnavailable && !operation.batch.Stale();
}
// What an operation that is out of time reports.
inline StatusCode TimeoutCode(const Operation& operation) {
  return operation.torn ? StatusCode::kCorrupt : StatusCode::kTimeout;
}
// Whether steps, of an operation or of several that share the batch, go on with what it has brought.
inline bool GoesOn(Step step, Outcome outcome, const Batch& batch) {
  return step == Step::kRun && outcome == Outcome::kOk && !batch.Stale();
}

}  // namespace kvs

#endif  // KVS_EPOCHS_OPERATION_H_
