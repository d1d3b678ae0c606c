// Registered memory and the batch of the one split or merge that a client runs at a time.
#ifndef KVS_SRC_SPLIT_BUFFERS_H_
#define KVS_SRC_SPLIT_BUFFERS_H_

#include <array>
#include <cstddef>
#include <new>
#include <span>

#include "kvs/layout/block.h"
#include "kvs/layout/directory.h"
#include "kvs/layout/subtable.h"
#include "kvs/src/connections.h"

namespace kvs {

class SplitBuffers {
 public:
  static constexpr uint32_t kWindow = 96;  // slots migrated at once

  static constexpr uint32_t kImages = 3;  // a merge's two old tables, and the new one

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
  Batch batch_{kWindow};
};

}  // namespace kvs

#endif  // KVS_SRC_SPLIT_BUFFERS_H_
