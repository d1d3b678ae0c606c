// The memory of a bare bound: one mapped shared file, in huge pages where the kernel can, laid out with the store's own
// subtables, slots and blocks. Its sessions also share where free memory begins, epochs and announcements.
#ifndef BENCH_PEERS_BOUND_BARE_MEMORY_H_
#define BENCH_PEERS_BOUND_BARE_MEMORY_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

#include "bench/peers/peer.h"
#include "krcore/rnic/sw/backing.h"
#include "kvs/layout/directory.h"
#include "kvs/layout/pool.h"
#include "kvs/layout/subtable.h"

namespace peers {

// Blocks of one size, and those that wait out their grace period. What a session leaves, the next one inherits.
struct BareBlocks {
  uint64_t cut = 0, cut_end = 0;  // what is left of a chunk
  std::vector<uint64_t> free;
  std::vector<uint64_t> unstamped;
  std::vector<std::pair<uint64_t, uint64_t>> stamped;  // epoch, offset; oldest first from `first_stamped` on
  size_t first_stamped = 0;
};

class BareMemory {
 public:
  static constexpr uint64_t kChunkBytes = uint64_t{1} << 20;
  static constexpr krcore::NodeId kNode = 1;
  static constexpr size_t kMaxSessions = 64;

  // `safe`: the directory has one subtable of the store's geometry, which grows by splits. Else the directory is not
  // used, and the one table is made for all records, three quarters full.
  static krcore::Result<std::unique_ptr<BareMemory>> Create(const Shape& shape, bool safe);

  bool safe() const { return safe_; }
  kvs::SubtableGeometry geometry() const { return geometry_; }
  std::byte* At(uint64_t offset) const { return base_ + offset; }
  std::atomic_ref<uint64_t> Word(uint64_t offset) const {
    return std::atomic_ref(*reinterpret_cast<uint64_t*>(base_ + offset));
  }
  uint64_t DirectoryOffset(uint32_t index) const { return kDirectoryOffset + uint64_t{index} * sizeof(uint64_t); }
  uint64_t table() const { return table_; }  // of an unsafe one
  uint64_t used_bytes() const { return header().next_free.load(std::memory_order_relaxed); }

  // Ends the program if there is no memory left: it is made for what the comparison puts there.
  uint64_t TakeChunk();
  // Room for a subtable: a READ and a CAS of a word that all share.
  uint64_t TakeTable(Accesses* accesses);

  // Epochs, as in the store (docs/protocol.md, "Epochs"), by plain accesses.
  std::atomic<uint64_t>* Register();
  void Unregister(std::atomic<uint64_t>* announcement);
  // One round of a session that has no operation in flight.
  void Round(std::atomic<uint64_t>* announcement, BareBlocks* blocks);

  BareBlocks TakeBlocks();
  void GiveBlocks(BareBlocks blocks);

 private:
  struct alignas(64) Line {
    std::atomic<uint64_t> word;
  };
  struct Header {
    alignas(64) std::atomic<uint64_t> next_free;
    alignas(64) std::atomic<uint64_t> next_table;
    alignas(64) std::atomic<uint64_t> epoch;
    Line announced[kMaxSessions];  // 0: no session's
  };
  static constexpr uint64_t kDirectoryOffset = 8192;
  static constexpr uint64_t kDirectoryBytes = (uint64_t{1} << kvs::kMaxDepth) * sizeof(uint64_t);
  static_assert(sizeof(Header) <= kDirectoryOffset);

  BareMemory(std::shared_ptr<krcore::rnic::sw::Mapping> mapping, bool safe, kvs::SubtableGeometry geometry);
  Header& header() const { return *reinterpret_cast<Header*>(base_); }

  const std::shared_ptr<krcore::rnic::sw::Mapping> mapping_;
  std::byte* const base_;
  const size_t bytes_;
  const bool safe_;
  const kvs::SubtableGeometry geometry_;
  uint64_t table_ = 0;
  std::mutex mutex_;
  std::vector<BareBlocks> left_;  // guarded by mutex_
};

}  // namespace peers

#endif  // BENCH_PEERS_BOUND_BARE_MEMORY_H_
