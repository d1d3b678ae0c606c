// Where a key goes. One 128-bit XXH3 of the key, keyed by the store's seed, gives everything, from disjoint bits: h1's
// low bits (the suffix) choose the subtable, h1's high half the first combined bucket and h2's high half the second;
// h2's low byte is the fingerprint. So the place within a subtable does not depend on the suffix, and a split keeps
// every slot's index.
#ifndef KVS_LAYOUT_HASH_H_
#define KVS_LAYOUT_HASH_H_

#include <array>
#include <cstdint>
#include <string_view>

namespace kvs {

struct KeyHash {
  uint64_t h1 = 0;  // stored in the key's block
  uint64_t h2 = 0;

  uint8_t fingerprint() const { return static_cast<uint8_t>(h2); }
  // The directory index at `depth`.
  uint32_t Suffix(uint32_t depth) const { return static_cast<uint32_t>(h1 & ((uint64_t{1} << depth) - 1)); }
};

// A store's seed, for its life. Whoever does not know it cannot compute keys that collide (docs/protocol.md).
struct HashSeed {
  uint64_t low, high;
  friend bool operator==(const HashSeed&, const HashSeed&) = default;
};

// Hashes the keys of one store: XXH3-128 with a secret that follows from the seed.
class Hasher {
 public:
  explicit Hasher(const HashSeed& seed);
  const HashSeed& seed() const { return seed_; }
  KeyHash operator()(std::string_view key) const;
  using Secret = std::array<uint64_t, 24>;
  const Secret& secret() const { return secret_; }

 private:
  alignas(64) Secret secret_;
  HashSeed seed_;
};

// A main bucket together with its group's overflow bucket: 128 contiguous bytes, one READ.
struct CombinedBucket {
  uint32_t group = 0;
  uint32_t half = 0;  // 0: main bucket 0 and overflow; 1: overflow and main bucket 1
};

// The two combined buckets of a key in a subtable of `groups` >= 2 groups. They are never in one group, so their slots
// are disjoint.
struct KeyPlaces {
  CombinedBucket place[2];
};

inline KeyPlaces PlacesOf(const KeyHash& hash, uint32_t groups) {
  KeyPlaces places;
  const uint64_t first = ((hash.h1 >> 32) * (uint64_t{groups} * 2)) >> 32;
  places.place[0] = {static_cast<uint32_t>(first >> 1), static_cast<uint32_t>(first & 1)};
  const uint64_t second = ((hash.h2 >> 32) * (uint64_t{groups - 1} * 2)) >> 32;
  uint32_t group = places.place[0].group + 1 + static_cast<uint32_t>(second >> 1);
  if (group >= groups) group -= groups;
  places.place[1] = {group, static_cast<uint32_t>(second & 1)};
  return places;
}

}  // namespace kvs

#endif  // KVS_LAYOUT_HASH_H_
