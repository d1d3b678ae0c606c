// The pool: the one region that a memory node exposes. All nodes have one layout; the home area is in use at one
// node of the store, its home.
//
//   0         Superblock           what the pool is, and the allocator's word
//   4 KiB     HomeArea             members, epoch, clients, (home only)
//   64 KiB    directory            2^kMaxDepth entries (home only)
//   ...       chunks               handed out by FETCH_ADD on Superblock::next_chunk; subtables and blocks live here
//
// After the pool was published, every change is made by NIC verbs: CAS, FETCH_ADD, or a WRITE into memory that only
// the writer owns. The memory node's CPU never touches it again.
#ifndef KVS_LAYOUT_POOL_H_
#define KVS_LAYOUT_POOL_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "krcore/status.h"
#include "krcore/types.h"
#include "kvs/layout/subtable.h"

namespace kvs {

inline constexpr uint64_t kPoolMagic = 0x31304c4f4f504b53;  // "SKPOOL01"
inline constexpr uint32_t kPoolRegionTag = 0x6c6f6f70;      // RemoteRegion::tag of a pool
inline constexpr char kHomeService[] = "kvs-home";          // value: HomeRecord
inline constexpr uint32_t kMaxDepth = 17;
inline constexpr uint64_t kChunkBytes = uint64_t{1} << 20;
inline constexpr uint32_t kMaxClients = 512;

struct HomeRecord {
  krcore::NodeId node;
  uint32_t incarnation;
};

struct Superblock {
  uint64_t magic;
  uint32_t layout_version;
  krcore::NodeId node;
  uint64_t pool_bytes;
  uint64_t chunk_bytes;
  uint64_t first_chunk_offset;  // bytes
  uint64_t chunks;
  uint32_t is_home;              // 1: HomeArea and directory are in use
  uint32_t groups_per_subtable;  // home only
  uint32_t max_depth;
  uint32_t reserved0;
  uint8_t padding[64];
  // Number of chunks handed out, taken by FETCH_ADD; may run past `chunks`, which then means full.
  alignas(64) uint64_t next_chunk;
};
static_assert(sizeof(Superblock) == 192);

// A registered client. owner: 0 or node << 32 | incarnation, claimed by CAS. epoch: the oldest epoch in which an
// operation of it that has not ended began; 0 from claim to first announcement, which holds back all reuse.
struct ClientEntry {
  uint64_t owner;
  uint64_t epoch;
};
static_assert(sizeof(ClientEntry) == 16);

struct HomeArea {
  uint64_t members[256];  // by node id: 0, or the incarnation of the memory node that has joined, plus 1 << 32
  alignas(64) uint64_t epoch;
  alignas(64) ClientEntry clients[kMaxClients];
};

inline constexpr uint64_t kHomeAreaOffset = 4096;
inline constexpr uint64_t kDirectoryOffset = 65536;
inline constexpr uint64_t kFirstChunkOffset = kDirectoryOffset + (uint64_t{8} << kMaxDepth);
static_assert(sizeof(Superblock) <= kHomeAreaOffset);
static_assert(kHomeAreaOffset + sizeof(HomeArea) <= kDirectoryOffset);

// Smallest pool: the fixed part and a few chunks.
inline constexpr uint64_t kMinPoolBytes = kFirstChunkOffset + 4 * kChunkBytes;

// Writes the superblock into a zeroed pool. kInvalidArgument: too small or too large, naming the limits.
krcore::Status FormatPool(std::span<std::byte> pool, krcore::NodeId node);

struct HomeOptions {
  SubtableGeometry geometry;
  uint32_t initial_depth = 0;  // 2^initial_depth subtables to begin with
};
// Makes a freshly formatted pool the store's home: epoch 1 and the first subtables. Before publication only.
krcore::Status FormatHome(std::span<std::byte> pool, const HomeOptions& options);

// Is this, left by a predecessor, the pool of `node` in this layout? kCorrupt otherwise.
krcore::Status CheckPool(std::span<const std::byte> pool, krcore::NodeId node);

// Writes an empty subtable, headers (depth, suffix, generation) and every slot `fill`, into `out` of
// geometry.bytes() bytes.
void FormatSubtable(std::span<std::byte> out, const SubtableGeometry& geometry, BucketHeader header, Slot fill);

}  // namespace kvs

#endif  // KVS_LAYOUT_POOL_H_
