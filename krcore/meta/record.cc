#include "krcore/meta/record.h"

#include <algorithm>
#include <bit>
#include <cstring>

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace krcore::meta {
namespace {

uint64_t HashKey(RecordKind kind, const void* data, size_t length) {
  const uint64_t hash = XXH3_64bits_withSeed(data, length, static_cast<uint64_t>(kind));
  return hash == 0 ? 1 : hash;
}

}  // namespace

uint64_t NodeKey(NodeId node) { return HashKey(RecordKind::kNode, &node, sizeof(node)); }
uint64_t ServiceKey(std::string_view name) { return HashKey(RecordKind::kService, name.data(), name.size()); }

uint64_t ChecksumOf(const Record& record) {
  Record copy = record;
  copy.checksum = 0;
  return XXH3_64bits(&copy, sizeof(copy));
}

uint32_t BucketsFor(uint32_t capacity) {
  const uint64_t records = 2 * uint64_t{std::max(capacity, 1u)};
  return static_cast<uint32_t>(
      std::bit_ceil(std::max<uint64_t>(kMaxProbes, (records + kRecordsPerBucket - 1) / kRecordsPerBucket)));
}

uint32_t BucketOf(uint64_t key, uint32_t probe, uint32_t buckets) {
  // An odd step visits kMaxProbes <= buckets distinct buckets of a power of two.
  const auto first = static_cast<uint32_t>(key);
  const auto step = static_cast<uint32_t>(key >> 32) | 1;
  return (first + probe * step) & (buckets - 1);
}

}  // namespace krcore::meta
