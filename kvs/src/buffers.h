// Registered memory of a client, and batches, for what runs beside its operations (whose own are in operation.h).
#ifndef KVS_SRC_BUFFERS_H_
#define KVS_SRC_BUFFERS_H_

#include <array>
#include <cstddef>
#include <new>
#include <span>

#include "kvs/layout/block.h"
#include "kvs/layout/directory.h"
#include "kvs/layout/pool.h"
#include "kvs/layout/subtable.h"
#include "kvs/src/connections.h"

namespace kvs {

// For registration and maintenance.
class EpochBuffers {
 public:
  static constexpr uint32_t kWindow = 1024;  // chunk words read at once
  struct alignas(64) Registered {
    uint64_t epoch = 0;
    uint64_t announcement = 0;
    uint64_t cas = 0;
    uint64_t directory = 0;
    std::array<uint64_t, 4> renewal{};
    HomeCounters counters{};
    HashSeed hash_seed{};
    std::array<uint64_t, 32> old{};  // old words of CASes that nobody looks at
    alignas(64) uint64_t evacuation[kEvacuationSlots];
    alignas(64) uint64_t members[krcore::kMaxMemoryNode + 1];
    alignas(64) ChunkWord chunks[kWindow];
    alignas(64) ClientEntry clients[kMaxClients];  // not cleared: most of it is never touched
  };

  EpochBuffers(std::byte* memory, Connections* connections, uint32_t lkey) : registered_(new (memory) Registered) {
    batch_.Attach(connections, lkey);
  }
  Registered& words() { return *registered_; }
  Batch& batch() { return batch_; }

 private:
  Registered* registered_;
  Batch batch_;
};

// Which of SplitBuffers' images is which table of a merge.
inline constexpr uint32_t kNewImage = 0, kParentImage = 1, kChildImage = 2;

// For the one split or merge that a client runs at a time.
class SplitBuffers {
 public:
  static constexpr uint32_t kWindow = 96;  // slots migrated at once
  static constexpr uint32_t kImages = 3;   // a merge's two old tables, and the new one

  static size_t Bytes(const SubtableGeometry& geometry) { return sizeof(Registered) + kImages * geometry.bytes(); }

  SplitBuffers(std::byte* memory, const SubtableGeometry& geometry, Connections* connections, uint32_t lkey)
      : registered_(new (memory) Registered), images_(memory + sizeof(Registered)), image_bytes_(geometry.bytes()) {
    batch_.Attach(connections, lkey);
  }

  struct alignas(64) Registered {
    std::array<uint64_t, kWindow> slots{};
    std::array<uint64_t, kWindow + kWindow / kSlotsPerBucket + 1> run{};  // the words of a window of slots, at most
    std::array<uint64_t, kWindow> cas{};
    std::array<BlockHeader, kWindow> blocks{};
    std::array<uint64_t, 8> words{};
    MergeRecord record{};
  };
  Registered& words() { return *registered_; }
  // A whole subtable.
  std::span<std::byte> image(uint32_t i = 0) { return {images_ + i * image_bytes_, image_bytes_}; }
  Slot& ImageSlot(uint32_t slot, uint32_t i = 0) {
    return *reinterpret_cast<Slot*>(images_ + i * image_bytes_ + SlotOffset(slot));
  }
  BucketHeader ImageHeader(uint32_t bucket, uint32_t i = 0) const {
    return *reinterpret_cast<const BucketHeader*>(images_ + i * image_bytes_ + BucketOffset(bucket));
  }
  Batch& batch() { return batch_; }

 private:
  Registered* registered_;
  std::byte* const images_;
  const size_t image_bytes_;
  Batch batch_;
};

}  // namespace kvs

#endif  // KVS_SRC_BUFFERS_H_
