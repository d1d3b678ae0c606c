// A key-value block: 32 bytes of header, key, value, padded to 16 bytes. It is immutable from publication until every
// client that may hold its address has passed a quiescent point. The checksum finds torn reads, not reuse.
#ifndef KVS_LAYOUT_BLOCK_H_
#define KVS_LAYOUT_BLOCK_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "kvs/layout/subtable.h"

namespace kvs {

struct BlockHeader {
  uint64_t checksum;  // XXH3-64 of everything after it: header, key and value
  uint64_t hash;      // KeyHash::h1
  uint64_t birth_epoch;
  uint32_t value_bytes;
  uint16_t key_bytes;
  // Flags tell what comes between header and key. There are none so far. (Reserved for expiry: one bit, and eight
  // bytes.) A program that sets one makes sure that all readers of the store know it: Superblock::features.
  uint16_t flags;
};
static_assert(sizeof(BlockHeader) == 32 && offsetof(BlockHeader, flags) == 30);

inline uint64_t BlockBytes(size_t key_bytes, size_t value_bytes) {
  return (sizeof(BlockHeader) + key_bytes + value_bytes + kUnitBytes - 1) / kUnitBytes * kUnitBytes;
}
inline uint8_t LengthUnits(uint64_t block_bytes) {
  return block_bytes <= kMaxSmallBlockBytes ? static_cast<uint8_t>(block_bytes / kUnitBytes) : kLargeBlock;
}
// Returns how much of a block a reader can READ before it knows the length. A large block is longer than any small one.
inline uint32_t FirstReadBytes(Slot slot) {
  return slot.length_units() == kLargeBlock ? kMaxSmallBlockBytes
                                            : static_cast<uint32_t>(slot.length_units() * kUnitBytes);
}

// Fills `block`, which has BlockBytes(key, value) bytes, and zeroes the padding.
void BuildBlock(std::span<std::byte> block, uint64_t hash, uint64_t birth_epoch, std::string_view key,
                std::string_view value);

// A block in local memory, not trusted until Intact().
class BlockView {
 public:
  BlockView() = default;
  explicit BlockView(const std::byte* data) : data_(data) {}
  const BlockHeader& header() const { return *reinterpret_cast<const BlockHeader*>(data_); }
  uint64_t bytes() const { return BlockBytes(header().key_bytes, header().value_bytes); }
  // Returns whether it has no flags, the lengths fit in `available` bytes and the checksum matches.
  bool Intact(uint64_t available) const;
  std::string_view key() const {
    return {reinterpret_cast<const char*>(data_ + sizeof(BlockHeader)), header().key_bytes};
  }
  std::string_view value() const {
    return {reinterpret_cast<const char*>(data_ + sizeof(BlockHeader) + header().key_bytes), header().value_bytes};
  }

 private:
  const std::byte* data_ = nullptr;
};

}  // namespace kvs

#endif  // KVS_LAYOUT_BLOCK_H_
