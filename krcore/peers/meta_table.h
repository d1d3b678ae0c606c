// A metadata server's table: its records, and where each of them lies.
#ifndef KRCORE_PEERS_META_TABLE_H_
#define KRCORE_PEERS_META_TABLE_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>
#include <type_traits>

#include "krcore/message.h"
#include "krcore/node.h"
#include "krcore/rnic.h"
#include "krcore/types.h"

namespace krcore::peers {

// A record of the metadata server's table: what it holds, and who may change which part. docs/krcore.md has the
// concurrency argument.
//
// There are three kinds, each in its own section of the table:
//   node     found by its node id, which is the high half of `owner`. Only the living holder of that id writes it.
//   port     found by `binding`, the node id and the port, in a record that this node owns. Only this node writes it.
//   service  found by `binding`, the hash of its name. Any node may claim it while its owner is 0 or dead.
//
// Rules:
//   1. `owner` changes by CAS only: vacant -> owner, owner -> vacant (removal), dead owner -> new owner.
//   2. A service's `binding` changes once, by CAS from 0 to a key, at the first free record of the key's probe
//      sequence; so a key is bound to at most one record.
//   3. Everything after `binding`, and a port's `binding` too, is written by the owner alone, by WRITE. The checksum
//      covers the whole record, so that a torn body, or one left by a former owner, is not taken for a record.

enum class RecordKind : uint8_t { kNone = 0, kNode = 1, kService = 2, kPort = 3 };

struct NodePayload {
  uint64_t dc_key = 0;
  uint32_t dct_num = 0;
  uint32_t region_count = 0;
  RemoteRegion regions[kMaxRegionsPerNode] = {};
};
static_assert(sizeof(RemoteRegion) == 24);
static_assert(sizeof(NodePayload) == 136);

inline constexpr uint64_t kNeverUsed = 0;  // owner: the search for a node's or port's record ends here
inline constexpr uint64_t kVacated = 1;    // owner of such a record that was removed: free, but does not end a search

inline uint64_t PackOwner(NodeId node, uint32_t incarnation) { return uint64_t{node} << 32 | incarnation; }
inline NodeId OwnerNode(uint64_t owner) { return static_cast<NodeId>(owner >> 32); }
inline uint32_t OwnerIncarnation(uint64_t owner) { return static_cast<uint32_t>(owner); }
inline bool IsVacant(uint64_t owner) { return OwnerNode(owner) == kNoNode; }

struct Record {
  uint64_t owner = 0;     // kNeverUsed, kVacated or PackOwner()
  uint64_t binding = 0;   // services: 0 or the key; ports: the key, once written
  uint64_t checksum = 0;  // of everything else
  uint32_t sequence = 0;  // one higher each time its owner publishes it; the same at all servers
  RecordKind kind = RecordKind::kNone;
  uint8_t value_length = 0;  // services, ports: bytes of `value`
  uint8_t reserved[2] = {};
  uint8_t address_bytes[sizeof(rnic::DeviceAddress::bytes)] = {};  // of the owner
  std::byte value[sizeof(NodePayload)] = {};                       // nodes: a NodePayload

  rnic::DeviceAddress address() const {
    rnic::DeviceAddress address;
    address.node = OwnerNode(owner);
    address.incarnation = OwnerIncarnation(owner);
    std::copy(std::begin(address_bytes), std::end(address_bytes), address.bytes);
    return address;
  }
  void set_address(const rnic::DeviceAddress& address) {
    owner = PackOwner(address.node, address.incarnation);
    std::copy(std::begin(address.bytes), std::end(address.bytes), address_bytes);
  }
  NodePayload node() const {
    NodePayload payload;
    std::memcpy(&payload, value, sizeof(payload));
    return payload;
  }
};
static_assert(std::is_trivially_copyable_v<Record> && kMaxServiceBytes <= sizeof(Record::value));
static_assert(sizeof(Record) == 192);
static_assert(offsetof(Record, binding) == 8 && offsetof(Record, checksum) == 16 && offsetof(Record, sequence) == 24);
static_assert(offsetof(Record, address_bytes) == 32 && offsetof(Record, value) == 56);

// Returns where the part that only the owner writes begins.
constexpr size_t BodyOffset(RecordKind kind) {
  return kind == RecordKind::kPort ? offsetof(Record, binding) : offsetof(Record, checksum);
}

uint64_t ChecksumOf(const Record& record);
inline bool ChecksumMatches(const Record& record) { return record.checksum == ChecksumOf(record); }

// Whether incarnation `a` was given out after `b`. They are given out in sequence and may wrap.
inline bool IncarnationAfter(uint32_t a, uint32_t b) { return static_cast<int32_t>(a - b) > 0; }
// Whether `a` is a newer version of the same record than `b`.
inline bool NewerThan(const Record& a, const Record& b) {
  const uint32_t x = OwnerIncarnation(a.owner), y = OwnerIncarnation(b.owner);
  return x == y ? a.sequence > b.sequence : IncarnationAfter(x, y);
}

// Where records lie in the metadata server's table.
//
//   table   = the services' buckets, then the nodes', then the ports'
//   bucket  = kRecordsPerBucket records, read by one READ
//   a key's probe sequence = the records of kMaxProbes buckets in a fixed order
inline constexpr uint32_t kRecordsPerBucket = 4;
inline constexpr size_t kBucketBytes = kRecordsPerBucket * sizeof(Record);
inline constexpr uint32_t kMaxProbes = 6;  // buckets that a lookup reads at most

// What identifies a record.
struct Key {
  RecordKind kind = RecordKind::kNone;
  uint64_t value = 0;  // the node id; services: a hash of the name, never 0; ports: the node id and port, never 0

  static Key Node(NodeId node) { return {RecordKind::kNode, node}; }
  static Key Port(NodeId node, krcore::Port port) { return {RecordKind::kPort, uint64_t{node} << 16 | port}; }
  // Two names share a key with probability 2^-64.
  static Key Service(std::string_view name);

  bool Names(const Record& record) const {
    if (kind == RecordKind::kNode) return OwnerNode(record.owner) == value;
    return record.binding == value && (kind == RecordKind::kService || OwnerNode(record.owner) == value >> 16);
  }
  friend bool operator==(const Key&, const Key&) = default;
};

struct Geometry {
  uint32_t service_buckets = 0;
  uint32_t node_buckets = 0;
  uint32_t port_buckets = 0;
  uint32_t reserved = 0;

  // Returns the geometry for `capacity` nodes, and up to two thousand service names and as many bound ports. The table
  // is then at most half full.
  static Geometry For(uint32_t capacity);

  bool valid() const {
    return service_buckets >= kMaxProbes && node_buckets >= kMaxProbes && port_buckets >= kMaxProbes;
  }
  uint32_t buckets() const { return service_buckets + node_buckets + port_buckets; }
  // Returns in which section the bucket at `offset` is.
  RecordKind KindAt(size_t offset) const {
    const size_t bucket = offset / kBucketBytes;
    if (bucket < service_buckets) return RecordKind::kService;
    return bucket < service_buckets + node_buckets ? RecordKind::kNode : RecordKind::kPort;
  }
  size_t bytes() const { return size_t{buckets()} * kBucketBytes; }
  // Returns the table offset of the bucket for `key`'s probe number `probe`. Different probes name different buckets.
  size_t BucketOffset(const Key& key, uint32_t probe) const;
};

// Puts a copy of `record`, which another server holds in its section of `kind`, into a table that nobody else looks at
// yet. False: no room.
bool InsertCopy(std::span<Record> table, const Geometry& geometry, RecordKind kind, const Record& record);

}  // namespace krcore::peers

#endif  // KRCORE_PEERS_META_TABLE_H_
