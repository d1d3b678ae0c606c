// A session of a bare bound: the store's operations, as far as the comparison asks for them, by plain accesses of
// mapped memory. It makes the READs, WRITEs and CASes that the store makes, in the same order, of the same words
// (docs/protocol.md), and none of what brings them there: no work requests, queues, completions or coroutines. Requests
// in flight go through each step together, so that their cache misses overlap.
//
// Two things are simpler than in the store, at no cost where sessions do not meet: a session that meets another one's
// split waits for its end, and one that meets another's tentative slot of its own key begins again.
//
// The unsafe bound publishes by one CAS in a table that does not grow, and reuses blocks at once. Its Get is the same.
#ifndef BENCH_PEERS_BOUND_BARE_BOUND_H_
#define BENCH_PEERS_BOUND_BARE_BOUND_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "bench/peers/bound/bare_memory.h"
#include "bench/peers/peer.h"
#include "kvs/epochs/directory_cache.h"
#include "kvs/layout/block.h"
#include "kvs/layout/candidates.h"
#include "kvs/layout/subtable.h"

namespace peers {

class BareSession final : public Session {
 public:
  BareSession(BareMemory& memory, const Shape& shape);
  ~BareSession() override;

  void Run(Requests& requests, uint32_t in_flight) override;
  const Accesses& accesses() const { return accesses_; }
  uint64_t splits() const { return splits_; }

 private:
  static constexpr size_t kBlockBytes = 256;      // room for a block
  static constexpr uint32_t kRoundEvery = 2'048;  // requests between two rounds of epochs
  static constexpr uint32_t kHashesAtOnce = 96;   // slots, as in the store
  static constexpr uint32_t kUnsafeLooks = 1'000;

  struct Operation {
    uint32_t lane = 0;
    Request request;
    kvs::KeyHash hash;
    uint64_t table = 0;   // offset
    kvs::TableRef entry;  // of a safe bound: what the directory says of the table
    kvs::KeyPlaces places;
    uint64_t block = 0;  // of a write; 0: none yet
    bool written = false;
    // The last scan.
    bool headers_fit = false, torn = false;
    int val = -1, frz = -1, rival = -1;
    uint32_t looks = 0;  // of an unsafe bound, at a key that was not found
    // An insert whose tentative slot is in the table.
    uint64_t own = 0;
    uint32_t own_candidate = 0;
    std::array<uint8_t, kvs::kCandidates> planned;
    uint32_t planned_count = 0;
    uint32_t strangers = 0;
    std::array<uint64_t, 16> stranger;
    alignas(64) std::array<std::byte, 2 * kvs::kCombinedBytes> buckets;
    alignas(64) std::array<std::byte, kBlockBytes> found;

    std::span<const kvs::Bucket, kvs::kCandidateBuckets> candidates() const {
      return std::span<const kvs::Bucket, kvs::kCandidateBuckets>(reinterpret_cast<const kvs::Bucket*>(buckets.data()),
                                                                  kvs::kCandidateBuckets);
    }
    kvs::Slot& Candidate(uint32_t c) {
      return reinterpret_cast<kvs::Bucket*>(buckets.data())[c / kvs::kSlotsPerBucket].slots[c % kvs::kSlotsPerBucket];
    }
  };

  void Execute(Requests& requests, std::span<Operation> operations);
  void Begin(Operation& op);
  void Locate(Operation& op);
  void Resolve(Operation& op);
  void ReadBuckets(Operation& op);
  void ReadBlocks(Operation& op);
  // After a scan. False: scan again.
  bool Go(Requests& requests, Operation& op);
  bool GoOnGet(Requests& requests, Operation& op);
  bool GoOnUpdate(Requests& requests, Operation& op);
  bool GoOnInsert(Requests& requests, Operation& op);
  bool Confirm(Requests& requests, Operation& op);
  bool HeadersStillFit(Operation& op);
  bool LookAgain(Operation& op, kvs::Slot there);
  bool MayBeReused(Operation& op);
  void End(Requests& requests, Operation& op, bool ok);

  // bare_split.cc
  void Split(const kvs::TableRef& table);
  void SplitLocked(const kvs::TableRef& table);
  void ReadHashes(uint32_t depth);
  void FreezeMoving(uint64_t parent, uint32_t depth);
  kvs::Slot& ImageSlot(uint32_t slot) { return *reinterpret_cast<kvs::Slot*>(image_.data() + kvs::SlotOffset(slot)); }

  uint64_t SlotOffset(const Operation& op, uint32_t candidate) const;
  uint64_t Allocate();
  void Retire(uint64_t block);
  void Read(void* to, uint64_t offset, size_t bytes);
  uint64_t ReadWord(uint64_t offset);
  // The word that was there; `expected` if it was swapped.
  uint64_t CompareSwap(uint64_t offset, uint64_t expected, uint64_t desired);

  BareMemory& memory_;
  const bool safe_;
  const kvs::SubtableGeometry geometry_;
  const kvs::Hasher hasher_{{}};
  const uint64_t block_bytes_;
  std::atomic<uint64_t>* const announcement_;
  BareBlocks blocks_;
  kvs::DirectoryCache directory_;
  Accesses accesses_;
  uint64_t splits_ = 0;
  uint32_t until_round_ = kRoundEvery;
  std::array<Operation, kMaxInFlight> operations_;
  std::vector<std::byte> image_;  // of a subtable
  // By slot: its word when the hash of the block was READ, and whether that key moves.
  std::vector<kvs::Slot> known_;
  std::vector<bool> moves_;
};

}  // namespace peers

#endif  // BENCH_PEERS_BOUND_BARE_BOUND_H_
