#include "kvs/layout/hash.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace kvs {

static_assert(sizeof(Hasher::Secret) >= XXH3_SECRET_SIZE_MIN);

// Not by XXH3_generateSecret, whose outcome versions of the library need not agree upon, as programs of one store must.
Hasher::Hasher(const HashSeed& seed) : seed_(seed) {
  for (uint64_t i = 0; i < secret_.size(); i += 2) {
    const XXH128_hash_t words = XXH3_128bits_withSeed(&seed, sizeof(seed), i);
    secret_[i] = words.low64;
    secret_[i + 1] = words.high64;
  }
}

KeyHash Hasher::operator()(std::string_view key) const {
  const XXH128_hash_t hash = XXH3_128bits_withSecret(key.data(), key.size(), secret_.data(), sizeof(secret_));
  return {hash.low64, hash.high64};
}

}  // namespace kvs
