#include "kvs/layout/block.h"

#include <cstring>

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace kvs {
namespace {

uint64_t Checksum(const std::byte* block, uint64_t content_bytes) {
  return XXH3_64bits(block + sizeof(uint64_t), content_bytes - sizeof(uint64_t));
}

}  // namespace

void BuildBlock(std::span<std::byte> block, uint64_t hash, uint64_t birth_epoch, std::string_view key,
                std::string_view value) {
  BlockHeader header{0, hash, birth_epoch, static_cast<uint32_t>(value.size()), static_cast<uint16_t>(key.size()), 0};
  std::byte* out = block.data();
  std::memcpy(out, &header, sizeof(header));
  std::memcpy(out + sizeof(header), key.data(), key.size());
  if (!value.empty()) std::memcpy(out + sizeof(header) + key.size(), value.data(), value.size());
  const uint64_t content = sizeof(header) + key.size() + value.size();
  std::memset(out + content, 0, block.size() - content);
  header.checksum = Checksum(out, content);
  std::memcpy(out, &header.checksum, sizeof(header.checksum));
}

bool BlockView::Intact(uint64_t available) const {
  if (available < sizeof(BlockHeader)) return false;
  const BlockHeader& h = header();
  const uint64_t content = sizeof(BlockHeader) + uint64_t{h.key_bytes} + h.value_bytes;
  return content <= available && h.flags == 0 && h.checksum == Checksum(data_, content);
}

}  // namespace kvs
