#include "krcore/rc/desk.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace krcore::rc {

uint64_t ChecksumOf(const Request& request) {
  // Seeded: never that of a place nobody has written yet.
  return XXH3_64bits_withSeed(reinterpret_cast<const std::byte*>(&request) + sizeof(request.checksum),
                              sizeof(request) - sizeof(request.checksum), 1);
}

}  // namespace krcore::rc
