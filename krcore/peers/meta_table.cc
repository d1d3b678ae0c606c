#include "krcore/peers/meta_table.h"

#include <algorithm>

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace krcore::peers {

uint64_t ChecksumOf(const Record& record) {
  Record copy = record;
  copy.checksum = 0;
  return XXH3_64bits(&copy, sizeof(copy));
}

namespace {

constexpr uint32_t kMaxNamed = 2048;  // services, and also ports

uint32_t BucketsFor(uint32_t records) {
  return std::max(kMaxProbes, (2 * records + kRecordsPerBucket - 1) / kRecordsPerBucket);
}

// Maps 32 random bits to [0, range).
uint32_t Scale(uint32_t bits, uint32_t range) { return static_cast<uint32_t>(uint64_t{bits} * range >> 32); }

}  // namespace

Key Key::Service(std::string_view name) {
  const uint64_t hash = XXH3_64bits(name.data(), name.size());
  return {RecordKind::kService, hash == 0 ? 1 : hash};
}

Geometry Geometry::For(uint32_t capacity) {
  const uint32_t named = BucketsFor(std::clamp(capacity / 2, 16U, kMaxNamed));
  return {.service_buckets = named, .node_buckets = BucketsFor(capacity), .port_buckets = named};
}

size_t Geometry::BucketOffset(const Key& key, uint32_t probe) const {
  uint32_t section = 0, buckets = service_buckets;
  if (key.kind == RecordKind::kNode) {
    section = service_buckets;
    buckets = node_buckets;
  } else if (key.kind == RecordKind::kPort) {
    section = service_buckets + node_buckets;
    buckets = port_buckets;
  }
  const uint64_t hash = XXH3_64bits(&key.value, sizeof(key.value));
  const uint32_t first = Scale(static_cast<uint32_t>(hash), buckets);
  // kMaxProbes steps go around at most once.
  const uint32_t step = 1 + Scale(static_cast<uint32_t>(hash >> 32), buckets / kMaxProbes);
  const uint64_t bucket = (uint64_t{first} + uint64_t{probe} * step) % buckets;
  return (section + bucket) * kBucketBytes;
}

bool InsertCopy(std::span<Record> table, const Geometry& geometry, RecordKind kind, const Record& record) {
  const Key key{kind, kind == RecordKind::kNode ? OwnerNode(record.owner) : record.binding};
  for (uint32_t probe = 0; probe < kMaxProbes; ++probe) {
    Record* const bucket = &table[geometry.BucketOffset(key, probe) / sizeof(Record)];
    for (uint32_t i = 0; i < kRecordsPerBucket; ++i) {
      if (bucket[i].owner != kNeverUsed && !key.Names(bucket[i])) continue;
      bucket[i] = record;
      return true;
    }
  }
  return false;
}

}  // namespace krcore::peers
