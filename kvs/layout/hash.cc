#include "kvs/layout/hash.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace kvs {

KeyHash HashKey(std::string_view key) {
  const XXH128_hash_t hash = XXH3_128bits(key.data(), key.size());
  return {hash.low64, hash.high64};
}

}  // namespace kvs
