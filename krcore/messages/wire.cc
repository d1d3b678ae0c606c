#include "krcore/messages/wire.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace krcore::messages {

uint64_t ChecksumOf(const Card& card) {
  return XXH3_64bits(reinterpret_cast<const std::byte*>(&card) + sizeof(card.checksum),
                     sizeof(card) - sizeof(card.checksum));
}

uint64_t ChecksumOf(const Header& header) {
  // Never equals the checksum of a slot that nobody has written yet.
  return XXH3_64bits_withSeed(&header, offsetof(Header, checksum), 1);
}

uint64_t HashPayload(std::span<const Sge> sges) {
  if (sges.size() == 1) return XXH3_64bits(reinterpret_cast<const void*>(sges[0].addr), sges[0].length);
  XXH3_state_t state;
  XXH3_64bits_reset(&state);
  for (const Sge& sge : sges) XXH3_64bits_update(&state, reinterpret_cast<const void*>(sge.addr), sge.length);
  return XXH3_64bits_digest(&state);
}

}  // namespace krcore::messages
