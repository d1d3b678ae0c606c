// The metadata server's table as it lies in memory, and what a record means. docs/krcore.md has the concurrency
// argument.
//
//   table   = buckets, a power of two
//   bucket  = kRecordsPerBucket records, read by one READ
//   a key's probe sequence = the records of kMaxProbes buckets in a fixed order
//
// Three rules:
//   1. `binding` changes once, by CAS from 0 to a key, at the first free record of the key's probe sequence. It
//      is never undone, hence a key is bound to at most one record, and a reader stops at the first free one.
//   2. `owner` changes by CAS only: 0 -> owner, owner -> 0 (removal), dead owner -> new owner.
//   3. Everything behind `owner` is written by the owner alone, by WRITE. The checksum covers binding, owner and
//      body, so that a torn body, or one left by a former owner, is not taken for a record.
#ifndef KRCORE_META_RECORD_H_
#define KRCORE_META_RECORD_H_

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>
#include <type_traits>

#include "krcore/node.h"
#include "krcore/rnic/rnic.h"

namespace krcore::meta {

enum class RecordKind : uint8_t { kNone = 0, kNode = 1, kService = 2 };

struct NodePayload {
  uint64_t dc_key = 0;
  uint32_t dct_num = 0;
  uint32_t region_count = 0;
  RemoteRegion regions[kMaxRegionsPerNode] = {};
};
static_assert(sizeof(RemoteRegion) == 24);
static_assert(sizeof(NodePayload) == 64);

struct Record {
  uint64_t binding = 0;   // 0 or the key
  uint64_t owner = 0;     // 0 or PackOwner()
  uint64_t checksum = 0;  // of everything else
  uint32_t sequence = 0;  // one higher each time the record is written
  RecordKind kind = RecordKind::kNone;
  uint8_t value_length = 0;  // services: bytes of `value`
  uint8_t reserved[2] = {};
  rnic::DeviceAddress address;             // of the owner
  std::byte value[kMaxServiceBytes] = {};  // nodes: a NodePayload

  NodePayload node() const {
    NodePayload payload;
    std::memcpy(&payload, value, sizeof(payload));
    return payload;
  }
  void set_node(const NodePayload& payload) { std::memcpy(value, &payload, sizeof(payload)); }
};
static_assert(std::is_trivially_copyable_v<NodePayload> && sizeof(NodePayload) <= kMaxServiceBytes);
static_assert(sizeof(Record) == 128);
static_assert(offsetof(Record, owner) == 8 && offsetof(Record, checksum) == 16 && offsetof(Record, sequence) == 24);
static_assert(offsetof(Record, address) == 32 && offsetof(Record, value) == 64);

inline constexpr size_t kBodyOffset = offsetof(Record, checksum);
inline constexpr size_t kBodyBytes = sizeof(Record) - kBodyOffset;
inline constexpr uint32_t kRecordsPerBucket = 8;
inline constexpr size_t kBucketBytes = kRecordsPerBucket * sizeof(Record);
inline constexpr uint32_t kMaxProbes = 6;

inline uint64_t PackOwner(NodeId node, uint32_t incarnation) { return uint64_t{node} << 32 | incarnation; }
inline NodeId OwnerNode(uint64_t owner) { return static_cast<NodeId>(owner >> 32); }
inline uint32_t OwnerIncarnation(uint64_t owner) { return static_cast<uint32_t>(owner); }

// Never 0. Two service names share a key with probability 2^-64.
uint64_t NodeKey(NodeId node);
uint64_t ServiceKey(std::string_view name);

uint64_t ChecksumOf(const Record& record);
inline bool ChecksumMatches(const Record& record) { return record.checksum == ChecksumOf(record); }

// Buckets of a table for `capacity` records, at most half full then. A power of two.
uint32_t BucketsFor(uint32_t capacity);
// The bucket of `key`'s probe number `probe`.
uint32_t BucketOf(uint64_t key, uint32_t probe, uint32_t buckets);

// Value of the fabric record "metadata server": where the table is. The bootstrap of everything else.
inline constexpr char kBootstrapName[] = "metaserver";
inline constexpr uint32_t kBootstrapMagic = 0x314D524B;  // "KRM1"
struct Bootstrap {
  uint32_t magic;
  uint32_t buckets;
  uint64_t table_addr;
  uint64_t dc_key;
  uint32_t dct_num;
  uint32_t table_rkey;
  rnic::DeviceAddress address;
};
static_assert(sizeof(Bootstrap) == 64);

}  // namespace krcore::meta

#endif  // KRCORE_META_RECORD_H_
