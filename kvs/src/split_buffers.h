// Registered memory and the batch of the one split that a client runs at a time.
#ifndef KVS_SRC_SPLIT_BUFFERS_H_
#define KVS_SRC_SPLIT_BUFFERS_H_

#include <array>
#include <cstddef>
#include <new>
#include <span>

#include "kvs/layout/block.h"
#include "kvs/layout/subtable.h"
#include "kvs/src/connections.h"

namespace kvs {

class SplitBuffers {
 public:
  static constexpr uint32_t kWindow = 96;  // slots migrated at once

  static size_t Bytes(const SubtableGeometry& geometry) { return sizeof(Registered) + geometry.bytes(); }

  SplitBuffers(std::byte* memory, const SubtableGeometry& geometry, Connections* connections, uint32_t lkey)
      : registered_(new (memory) Registered), image_(memory + sizeof(Registered), geometry.bytes()) {
    batch_.Attach(connections, lkey);
  }

  struct alignas(64) Registered {
    std::array<uint64_t, kWindow> slots{};
    std::array<uint64_t, kWindow> cas{};
    std::array<BlockHeader, kWindow> blocks{};
    std::array<uint64_t, 8> words{};
  };
  Registered& words() { return *registered_; }
  // A whole subtable.
  std::span<std::byte> image() { return image_; }
  Slot ImageSlot(uint32_t slot) const { return *reinterpret_cast<const Slot*>(image_.data() + SlotOffset(slot)); }
  BucketHeader ImageHeader(uint32_t bucket) const {
    return *reinterpret_cast<const BucketHeader*>(image_.data() + BucketOffset(bucket));
  }
  Batch& batch() { return batch_; }

 private:
  Registered* registered_;
  std::span<std::byte> image_;
  Batch batch_{kWindow};
};

}  // namespace kvs

#endif  // KVS_SRC_SPLIT_BUFFERS_H_
