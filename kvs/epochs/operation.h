// What one operation in flight needs: buffers in the client's registered arena, its Batch, and the result of its
// last scan. Operations are pooled; each call in flight holds one.
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
#include "kvs/layout/block.h"
#include "kvs/layout/candidates.h"
#include "kvs/layout/directory.h"
#include "kvs/layout/subtable.h"
#include "kvs/memory/connections.h"

namespace kvs {

inline constexpr uint32_t kOperationVerbs = kCandidates + 4;  // in one round trip: a CAS, a block, a scan, its matches
inline constexpr uint32_t kMatchBytes = 8192;                 // for matching blocks that are read at once

// Registered memory of one operation.
struct OperationBuffers {
  alignas(64) std::array<std::byte, 2 * kCombinedBytes> buckets;  // the two combined buckets
  alignas(64) std::array<uint64_t, 4> headers;                    // re-read headers
  std::array<uint64_t, kCandidates> cas;                          // old words
  std::array<uint64_t, 20> directory;                             // directory entries
  std::array<uint64_t, kCandidates> slots;                        // other words that it reads
  alignas(64) MergeRecord merge;                                  // of a merge that the operation met
  alignas(64) std::array<std::byte, kMatchBytes> match;           // matching blocks
  alignas(64) std::array<std::byte, kMaxSmallBlockBytes> block;   // the block to write

  std::span<const Bucket, kCandidateBuckets> candidates() const {
    return std::span<const Bucket, kCandidateBuckets>(reinterpret_cast<const Bucket*>(buckets.data()),
                                                      kCandidateBuckets);
  }
};

// An operation's registered buffer for a block that is too large for the arena.
struct LargeBuffer {
  struct Deleter {
    void operator()(std::byte* memory) const { ::operator delete[](memory, std::align_val_t{64}); }
  };
  // Provides registered memory of `bytes` or more; keeps what it has, if that is large enough. False: there is none.
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
  kRestart,      // something changed meanwhile: begin again with a fresh view
  kUnavailable,  // a memory node failed; what was posted last has an unknown outcome
  kFull,         // no memory, or no room in the directory
  kRun,          // not ended: run its batch, or wait for what else it needs
};

inline Step AsStep(Step step) { return step; }
inline Step AsStep(Outcome outcome) { return outcome == Outcome::kOk ? Step::kOk : Step::kUnavailable; }

// Ends the coroutine, which returns a Step, if `expr`, a Step or an Outcome, is not kOk. (GCC 12 must not see a
// co_await in the condition of an `if`: it then writes over the coroutine's frame.)
#define KVS_CO_RETURN_UNLESS_OK(expr)                         \
  do {                                                        \
    const auto kvs_result_ = (expr);                          \
    const ::kvs::Step kvs_step_ = ::kvs::AsStep(kvs_result_); \
    if (kvs_step_ != ::kvs::Step::kOk) co_return kvs_step_;   \
  } while (false)

// What an operation waits for before it begins again.
enum class Again : uint8_t {
  kElse,    // another's progress (memory, a lock): no wait the first time, then longer and longer
  kLost,    // a race for a slot was lost: it backs off the first time too, or the same clients meet again
  kAtOnce,  // nothing: things have moved on, and this operation looks at them as they are now
  kRoom,    // memory, which takes as long as sweeping
};

// The state of an operation that waits for memory.
struct RoomWait {
  bool begun = false;
  int64_t begun_ns = 0;
  uint64_t compactions = 0;     // the mover's runs that its client had ended at the beginning
  uint64_t reclaimed = 0;       // MemoryState::reclaimed() once all that waited at the beginning is free
  uint64_t changes = 0;         // a count of what may have brought memory
  int64_t changed_ns = 0;       // when that changed last
  uint64_t member_changes = 0;  // as its client knew them
  uint64_t rounds = 0;          // of maintenance that its client had begun at the beginning
};

constexpr uint32_t MaskOf(SlotState state) { return 1u << static_cast<uint32_t>(state); }
inline constexpr uint32_t kReaderStates = MaskOf(SlotState::kVal) | MaskOf(SlotState::kFrz);
inline constexpr uint32_t kInserterStates = kReaderStates | MaskOf(SlotState::kIns);

// What a scan of a table found. Candidates count as in candidates.h.
struct Scan {
  TableRef table;
  KeyPlaces places;
  int val = -1, frz = -1;  // candidate that is VAL / FRZ with this key
  // The next two mean something only where there is no such VAL.
  bool headers_fit = false;  // all four bucket headers match the key's hash
  bool closed = false;       // a header says that the table is out of use
  uint32_t ins_count = 0;    // candidates that are INS with this key, except the operation's own
  std::array<uint8_t, kCandidates> ins;
  BlockView block;  // of the last match, in `match` or a LargeBuffer

  // How far the scan has come.
  enum class Reading : uint8_t { kBuckets, kOnlyBlock, kBlocks, kLargeBlock, kHeaders };
  Reading reading = Reading::kBuckets;       // what is read now
  uint32_t states = 0;                       // asked for, of MaskOf
  Slot guess;                                // the word whose block was read along with the buckets; FREE: none
  std::array<uint8_t, kCandidates> planned;  // candidates whose blocks must be read
  uint32_t planned_count = 0;
  uint32_t asked = 0;         // how many of these have been asked for
  uint32_t judged = 0;        // how many have been looked at
  uint32_t judged_bytes = 0;  // how many bytes of the present buffer have been looked at
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
  int64_t deadline_ns = 0;     // 0: not set yet (that happens when something first goes wrong)
  bool in_use = false;
  bool inserts = false;     // it goes by steps and may insert its key, whose absence the steps need not prove first
  bool makes_room = false;  // the mover's: it may take the chunks that are kept for it, and never waits for memory
  bool drains = false;      // the mover's, while it drains a memory node: it may not take those chunks
  RoomWait room_wait;
  bool torn = false;     // the last block that it read did not match its checksum
  uint64_t own_ins = 0;  // the slot word of its own tentative slot, 0: none
  // Slot words found to hold other keys. They stay right: blocks are not reused while the operation is in flight.
  uint32_t strangers = 0;
  std::array<uint64_t, 16> stranger;
  Merge merge;  // the one that takes the key's table out of use, as the last Resolve() found it
  LargeBuffer large_read, large_write;
  // In a group: the index of its key, and the group's next operation.
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

// Returns whether the step failed for good. After an expulsion it did not: the operation begins again.
inline bool Failed(const Operation& operation, Step step) {
  return step == Step::kUnavailable && !operation.batch.Stale();
}
// Returns what an operation that is out of time reports.
inline StatusCode TimeoutCode(const Operation& operation) {
  return operation.torn ? StatusCode::kCorrupt : StatusCode::kTimeout;
}
// Returns whether the steps of one operation, or of several that share the batch, go on with what it has brought.
inline bool GoesOn(Step step, Outcome outcome, const Batch& batch) {
  return step == Step::kRun && outcome == Outcome::kOk && !batch.Stale();
}

}  // namespace kvs

#endif  // KVS_EPOCHS_OPERATION_H_
