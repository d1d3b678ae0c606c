// A key-value block: 32 bytes of header, perhaps the time at which it expires, key, value, padded to 16 bytes. It is
// immutable from publication until every client that may hold its address has passed a quiescent point. The checksum
// finds torn reads, not reuse.
#ifndef KVS_LAYOUT_BLOCK_H_
#define KVS_LAYOUT_BLOCK_H_

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>

#include "kvs/layout/subtable.h"

namespace kvs {

// BlockHeader::flags. Between header and key are eight bytes: the time of day at which the record expires, in
// milliseconds since 1970, UTC.
inline constexpr uint16_t kExpires = 1;

struct BlockHeader {
  uint64_t checksum;  // XXH3-64 of everything after it, without the padding
  uint64_t hash;      // KeyHash::h1
  uint64_t birth_epoch;
  uint32_t value_bytes;
  uint16_t key_bytes;
  uint16_t flags;

  // Where the key begins.
  constexpr uint32_t key_offset() const;
};
static_assert(sizeof(BlockHeader) == 32 && offsetof(BlockHeader, flags) == 30);

constexpr uint32_t BlockHeader::key_offset() const {
  return sizeof(BlockHeader) + ((flags & kExpires) != 0 ? sizeof(uint64_t) : 0);
}

inline uint64_t BlockBytes(size_t key_bytes, size_t value_bytes, bool expires) {
  const size_t before_key = sizeof(BlockHeader) + (expires ? sizeof(uint64_t) : 0);
  return (before_key + key_bytes + value_bytes + kUnitBytes - 1) / kUnitBytes * kUnitBytes;
}
inline uint8_t LengthUnits(uint64_t block_bytes) {
  return block_bytes <= kMaxSmallBlockBytes ? static_cast<uint8_t>(block_bytes / kUnitBytes) : kLargeBlock;
}
// Returns how much of a block a reader can READ before it knows the length. A large block is longer than any small one.
inline uint32_t FirstReadBytes(Slot slot) {
  return slot.length_units() == kLargeBlock ? kMaxSmallBlockBytes
                                            : static_cast<uint32_t>(slot.length_units() * kUnitBytes);
}

// Fills `block`, which has BlockBytes(key, value, expires_at_ms != 0) bytes, and zeroes the padding. `expires_at_ms` 0:
// it does not expire.
void BuildBlock(std::span<std::byte> block, uint64_t hash, uint64_t birth_epoch, std::string_view key,
                std::string_view value, uint64_t expires_at_ms);

// A block in local memory, not trusted until Intact().
class BlockView {
 public:
  BlockView() = default;
  explicit BlockView(const std::byte* data) : data_(data) {}
  const BlockHeader& header() const { return *reinterpret_cast<const BlockHeader*>(data_); }
  bool expires() const { return (header().flags & kExpires) != 0; }
  uint64_t bytes() const { return BlockBytes(header().key_bytes, header().value_bytes, expires()); }
  // Returns whether it has no unknown flags, the lengths fit in `available` bytes and the checksum matches.
  bool Intact(uint64_t available) const;
  std::string_view key() const {
    return {reinterpret_cast<const char*>(data_ + header().key_offset()), header().key_bytes};
  }
  std::string_view value() const {
    const char* const begin = reinterpret_cast<const char*>(data_ + header().key_offset());
    return {begin + header().key_bytes, header().value_bytes};
  }
  // 0: never.
  uint64_t expires_at_ms() const {
    uint64_t at_ms = 0;
    if (expires()) std::memcpy(&at_ms, data_ + sizeof(BlockHeader), sizeof(at_ms));
    return at_ms;
  }

 private:
  const std::byte* data_ = nullptr;
};

}  // namespace kvs

#endif  // KVS_LAYOUT_BLOCK_H_
