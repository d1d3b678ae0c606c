// Where records lie in the metadata server's table.
//
//   table   = the services' buckets, then the nodes', then the ports'
//   bucket  = kRecordsPerBucket records, read by one READ
//   a key's probe sequence = the records of kMaxProbes buckets in a fixed order
#ifndef KRCORE_META_TABLE_H_
#define KRCORE_META_TABLE_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "krcore/message.h"
#include "krcore/meta/record.h"
#include "krcore/types.h"

namespace krcore::meta {

inline constexpr uint32_t kRecordsPerBucket = 4;
inline constexpr size_t kBucketBytes = kRecordsPerBucket * sizeof(Record);
inline constexpr uint32_t kMaxProbes = 6;  // buckets that a lookup reads at most

// What a record is found by.
struct Key {
  RecordKind kind = RecordKind::kNone;
  uint64_t value = 0;  // the node id; services: a hash of the name, never 0; ports: the node id and the port, likewise

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

  // Of a table for `capacity` nodes, and up to two thousand names of services and as many bound ports: at most half
  // full then.
  static Geometry For(uint32_t capacity);

  bool valid() const {
    return service_buckets >= kMaxProbes && node_buckets >= kMaxProbes && port_buckets >= kMaxProbes;
  }
  uint32_t buckets() const { return service_buckets + node_buckets + port_buckets; }
  // In which section a bucket's records are.
  RecordKind KindAt(size_t offset) const {
    const size_t bucket = offset / kBucketBytes;
    if (bucket < service_buckets) return RecordKind::kService;
    return bucket < service_buckets + node_buckets ? RecordKind::kNode : RecordKind::kPort;
  }
  size_t bytes() const { return size_t{buckets()} * kBucketBytes; }
  // Offset in the table of the bucket for `key`'s probe number `probe`. Different probes name different buckets.
  size_t BucketOffset(const Key& key, uint32_t probe) const;
};

// Puts a copy of `record`, as another server holds it in its section of `kind`, into a table that nobody else looks at
// yet. False: no room.
bool InsertCopy(std::span<Record> table, const Geometry& geometry, RecordKind kind, const Record& record);

}  // namespace krcore::meta

#endif  // KRCORE_META_TABLE_H_
