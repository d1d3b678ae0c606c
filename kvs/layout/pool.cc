#include "kvs/layout/pool.h"

#include <cstring>
#include <string>

#include "kvs/layout/directory.h"

namespace kvs {
namespace {

using krcore::Status;
using krcore::StatusCode;

constexpr uint32_t kLayoutVersion = 1;

Superblock& SuperblockOf(std::span<std::byte> pool) { return *reinterpret_cast<Superblock*>(pool.data()); }

}  // namespace

Status FormatPool(std::span<std::byte> pool, krcore::NodeId node) {
  if (pool.size() < kMinPoolBytes || pool.size() > kMaxPoolBytes) {
    return {StatusCode::kInvalidArgument, "a pool has " + std::to_string(kMinPoolBytes) + " to " +
                                              std::to_string(kMaxPoolBytes) + " bytes, not " +
                                              std::to_string(pool.size())};
  }
  if (node == krcore::kNoNode || node > krcore::kMaxMemoryNode) {
    return {StatusCode::kInvalidArgument, "a memory node's id is 1 to 255, not " + std::to_string(node)};
  }
  Superblock& super = SuperblockOf(pool);
  super.layout_version = kLayoutVersion;
  super.node = node;
  super.pool_bytes = pool.size();
  super.chunk_bytes = kChunkBytes;
  super.first_chunk_offset = kFirstChunkOffset;
  super.chunks = (pool.size() - kFirstChunkOffset) / kChunkBytes;
  super.max_depth = kMaxDepth;
  super.magic = kPoolMagic;
  return Status::Ok();
}

Status FormatHome(std::span<std::byte> pool, const HomeOptions& options) {
  const SubtableGeometry& geometry = options.geometry;
  if (geometry.groups < 2 || geometry.bytes() > kChunkBytes || options.initial_depth > kMaxDepth) {
    return {StatusCode::kInvalidArgument,
            "a subtable has 2 groups to one chunk, the initial depth is at most " + std::to_string(kMaxDepth)};
  }
  Superblock& super = SuperblockOf(pool);
  const uint64_t per_chunk = kChunkBytes / geometry.bytes();
  const uint64_t subtables = uint64_t{1} << options.initial_depth;
  const uint64_t chunks = (subtables + per_chunk - 1) / per_chunk;
  if (super.next_chunk + chunks > super.chunks) {
    return {StatusCode::kOutOfMemory, std::to_string(subtables) + " initial subtables do not fit in the pool"};
  }
  auto* directory = reinterpret_cast<uint64_t*>(pool.data() + kDirectoryOffset);
  for (uint64_t i = 0; i < subtables; ++i) {
    const uint64_t offset = super.first_chunk_offset + (super.next_chunk + i / per_chunk) * kChunkBytes +
                            (i % per_chunk) * geometry.bytes();
    FormatSubtable(pool.subspan(offset, geometry.bytes()), geometry,
                   BucketHeader(options.initial_depth, static_cast<uint32_t>(i), 0), Slot::Free());
    directory[i] = DirectoryEntry::Make({super.node, offset}, options.initial_depth, DirectoryState::kNormal, 1).word();
  }
  super.next_chunk += chunks;
  super.groups_per_subtable = geometry.groups;
  reinterpret_cast<HomeArea*>(pool.data() + kHomeAreaOffset)->epoch = 1;
  super.is_home = 1;
  return Status::Ok();
}

Status CheckPool(std::span<const std::byte> pool, krcore::NodeId node) {
  if (pool.size() < kMinPoolBytes) return {StatusCode::kCorrupt, "the pool is too small"};
  Superblock super;
  std::memcpy(&super, pool.data(), sizeof(super));
  if (super.magic != kPoolMagic || super.layout_version != kLayoutVersion || super.pool_bytes != pool.size() ||
      super.node != node) {
    return {StatusCode::kCorrupt, "the memory left by a predecessor is not a pool of node " + std::to_string(node) +
                                      " in layout version " + std::to_string(kLayoutVersion)};
  }
  return Status::Ok();
}

void FormatSubtable(std::span<std::byte> out, const SubtableGeometry& geometry, BucketHeader header, Slot fill) {
  const SubtableHeader subtable_header;
  std::memcpy(out.data(), &subtable_header, sizeof(subtable_header));
  Bucket bucket;
  bucket.header = header;
  for (Slot& slot : bucket.slots) slot = fill;
  for (uint32_t i = 0; i < geometry.buckets(); ++i) {
    std::memcpy(out.data() + BucketOffset(i), &bucket, sizeof(bucket));
  }
}

}  // namespace kvs
