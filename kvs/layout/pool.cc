// The parts of the pool's formats that are not inline: the hash of a key, the checksum of a block, and how a pool is
// formatted and checked. Only this file uses xxHash.
#include "kvs/layout/pool.h"

#include <sys/random.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <string>

#include "kvs/layout/block.h"
#include "kvs/layout/directory.h"
#include "kvs/layout/subtable.h"

namespace kvs {
namespace {

using krcore::Status;
using krcore::StatusCode;

constexpr uint64_t kMagicMask = 0xffff'ffff'ffff;  // "SKPOOL"

// No word is all ones (I12). In most words the state rules it out, in an owner's word the turn, in an evacuation word
// the chunk (an empty one has no node), in a closed header the suffix, which has at most depth bits. A member's word
// would take 2^30 changes.
static_assert(Slot(kUncopied).state() > SlotState::kFrz && BucketHeader(kUncopied).closed());
static_assert(DirectoryEntry(kUncopied).state() > DirectoryState::kMerging);
static_assert(ChunkWord(kUncopied).kind() > ChunkKind::kReserved);
static_assert(ClientWord(kUncopied).state() > ClientState::kExpelled);
static_assert(OwnerWord(kUncopied).turn() >= OwnerWord::kTurns);
static_assert(kMaxDepth < 24 && kMaxPoolBytes / kMinChunkBytes < EvacuationWord(kUncopied).chunk());

Superblock& SuperblockOf(std::span<std::byte> pool) { return *reinterpret_cast<Superblock*>(pool.data()); }
ChunkWord& ChunkWordOf(std::span<std::byte> pool, uint64_t chunk) {
  return *reinterpret_cast<ChunkWord*>(pool.data() + ChunkWordOffset(chunk));
}

uint64_t Checksum(const std::byte* block, uint64_t content_bytes) {
  return XXH3_64bits(block + sizeof(uint64_t), content_bytes - sizeof(uint64_t));
}

}  // namespace

// ---- where a key goes (subtable.h)

static_assert(sizeof(Hasher::Secret) >= XXH3_SECRET_SIZE_MIN);

// The whole secret comes from the seed: of XXH3's own seed of 64 bits, the words of the secret differ by known amounts.
// This does not use XXH3_generateSecret: its result may differ between versions of the library, and all programs of one
// store must agree on the secret.
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

// ---- block.h

void BuildBlock(std::span<std::byte> block, uint64_t hash, uint64_t birth_epoch, std::string_view key,
                std::string_view value, uint64_t expires_at_ms) {
  BlockHeader header{0,
                     hash,
                     birth_epoch,
                     static_cast<uint32_t>(value.size()),
                     static_cast<uint16_t>(key.size()),
                     expires_at_ms != 0 ? kExpires : uint16_t{0}};
  std::byte* out = block.data();
  std::memcpy(out, &header, sizeof(header));
  if (expires_at_ms != 0) std::memcpy(out + sizeof(header), &expires_at_ms, sizeof(expires_at_ms));
  const uint32_t key_offset = header.key_offset();
  std::memcpy(out + key_offset, key.data(), key.size());
  if (!value.empty()) std::memcpy(out + key_offset + key.size(), value.data(), value.size());
  const uint64_t content = key_offset + key.size() + value.size();
  std::memset(out + content, 0, block.size() - content);
  header.checksum = Checksum(out, content);
  std::memcpy(out, &header.checksum, sizeof(header.checksum));
}

bool BlockView::Intact(uint64_t available) const {
  if (available < sizeof(BlockHeader)) return false;
  const BlockHeader& h = header();
  const uint64_t content = h.key_offset() + uint64_t{h.key_bytes} + h.value_bytes;
  return content <= available && (h.flags & ~kExpires) == 0 && h.checksum == Checksum(data_, content);
}

// ---- pool.h

Status FormatPool(std::span<std::byte> pool, krcore::NodeId node, uint64_t chunk_bytes, krcore::NodeId mirrored_as,
                  uint32_t incarnation) {
  if (chunk_bytes < kMinChunkBytes || chunk_bytes > kMaxChunkBytes || !std::has_single_bit(chunk_bytes)) {
    return {StatusCode::kInvalidArgument, "a chunk has " + std::to_string(kMinChunkBytes) + " to " +
                                              std::to_string(kMaxChunkBytes) + " bytes, a power of two, not " +
                                              std::to_string(chunk_bytes)};
  }
  const uint64_t reserved = ReservedChunks(pool.size(), chunk_bytes);
  const uint64_t least = (reserved + 4) * chunk_bytes;
  if (pool.size() < least || pool.size() > kMaxPoolBytes) {
    return {StatusCode::kInvalidArgument, "a pool has " + std::to_string(least) + " to " +
                                              std::to_string(kMaxPoolBytes) + " bytes, not " +
                                              std::to_string(pool.size())};
  }
  if (node == krcore::kNoNode || node > krcore::kMaxMemoryNode) {
    return {StatusCode::kInvalidArgument, "a memory node's id is 1 to 255, not " + std::to_string(node)};
  }
  Superblock& super = SuperblockOf(pool);
  super.layout_version = kLayoutVersion;
  super.node = node;
  super.pool = mirrored_as;
  std::ranges::fill(super.incarnations, incarnation);
  super.pool_bytes = pool.size();
  super.chunk_bytes = chunk_bytes;
  super.chunks = pool.size() / chunk_bytes;
  super.reserved_chunks = reserved;
  super.chunk_cursor = reserved;
  super.max_depth = kMaxDepth;
  for (uint64_t chunk = 0; chunk < reserved; ++chunk) {
    ChunkWordOf(pool, chunk) = ChunkWord::Make(ChunkKind::kReserved, 0, 0);
  }
  super.magic = kPoolMagic;
  return Status::Ok();
}

uint32_t DepthFor(uint64_t records, const SubtableGeometry& geometry) {
  uint32_t depth = 0;
  while (depth < kMaxDepth && (uint64_t{geometry.slots()} << depth) / 4 * 3 < records) ++depth;
  return depth;
}

Status FormatHome(std::span<std::byte> pool, const HomeOptions& options) {
  const SubtableGeometry& geometry = options.geometry;
  Superblock& super = SuperblockOf(pool);
  if (geometry.groups < 2 || geometry.bytes() > super.chunk_bytes || options.initial_depth > kMaxDepth ||
      options.lease_ns <= 0 || options.lease_ns > kMaxLeaseNs) {
    return {StatusCode::kInvalidArgument, "a subtable has 2 groups to one chunk, the initial depth is at most " +
                                              std::to_string(kMaxDepth) + ", the lease is at most three years"};
  }
  HashSeed seed = options.hash_seed.value_or(HashSeed{});
  if (!options.hash_seed && getrandom(&seed, sizeof(seed), 0) != sizeof(seed)) {
    return Status::FromErrno(errno, "drawing the store's seed");
  }
  const uint64_t per_chunk = super.chunk_bytes / geometry.bytes();
  const uint64_t subtables = uint64_t{1} << options.initial_depth;
  const uint64_t chunks = (subtables + per_chunk - 1) / per_chunk;
  const uint64_t first = super.chunk_cursor;
  if (first + chunks > super.chunks) {
    return {StatusCode::kOutOfMemory, std::to_string(subtables) + " initial subtables of " +
                                          std::to_string(geometry.bytes()) + " bytes do not fit in the pool"};
  }
  const krcore::NodeId id = super.pool != krcore::kNoNode ? super.pool : super.node;
  auto* directory = reinterpret_cast<uint64_t*>(pool.data() + kDirectoryOffset);
  for (uint64_t i = 0; i < subtables; ++i) {
    const uint64_t chunk = first + i / per_chunk;
    const uint64_t offset = chunk * super.chunk_bytes + (i % per_chunk) * geometry.bytes();
    FormatSubtable(pool.subspan(offset, geometry.bytes()), geometry,
                   BucketHeader(options.initial_depth, static_cast<uint32_t>(i), 0), Slot::Fresh());
    directory[i] = DirectoryEntry::Make({id, offset}, options.initial_depth, DirectoryState::kNormal, 1).word();
    ChunkWordOf(pool, chunk) = ChunkWord::Make(ChunkKind::kTables, static_cast<uint32_t>(i % per_chunk + 1), 0);
  }
  super.chunk_cursor = first + chunks;
  super.tables_chunk = first + chunks - 1;
  super.lease_ns = options.lease_ns;
  super.hash_seed = seed;
  super.groups_per_subtable = geometry.groups;
  super.initial_depth = options.initial_depth;
  reinterpret_cast<HomeArea*>(pool.data() + kHomeAreaOffset)->epoch = 1;
  super.is_home = 1;
  return Status::Ok();
}

void FormatLearner(std::span<std::byte> region, const Superblock& super, krcore::NodeId node, uint32_t incarnation) {
  std::memset(region.data(), 0xff, region.size());
  static_assert(kUncopied == ~uint64_t{0});
  Superblock& mine = SuperblockOf(region);
  mine = super;
  mine.node = node;
  std::ranges::fill(mine.incarnations, incarnation);
  mine.chunk_cursor = mine.tables_chunk = kUncopied;
  auto& area = *reinterpret_cast<HomeArea*>(region.data() + kHomeAreaOffset);
  area.configuration = 0;
  std::ranges::fill(area.acknowledged, 0);
}

bool IsFormatted(std::span<const std::byte> pool) {
  return reinterpret_cast<const Superblock*>(pool.data())->magic != 0;
}

Status CheckLayout(const Superblock& super, krcore::NodeId node) {
  const std::string name = "the pool of memory node " + std::to_string(node);
  if (((super.magic ^ kPoolMagic) & kMagicMask) != 0) return {StatusCode::kCorrupt, name + " is no pool"};
  if (super.magic != kPoolMagic || super.layout_version != kLayoutVersion) {
    return {StatusCode::kUnsupported, name + " has layout version " + std::to_string(super.layout_version) +
                                          ", this program has " + std::to_string(kLayoutVersion) +
                                          " (use the programs of that version, or begin the store anew)"};
  }
  if (super.features != 0) {
    return {StatusCode::kUnsupported,
            name + " has features that this program does not know (use the programs that made it)"};
  }
  if (super.node != node) return {StatusCode::kCorrupt, name + " is that of node " + std::to_string(super.node)};
  return Status::Ok();
}

Status CheckPool(std::span<const std::byte> pool, krcore::NodeId node) {
  if (pool.size() < kChunkTableOffset) return {StatusCode::kCorrupt, "the pool is too small"};
  Superblock super;
  std::memcpy(&super, pool.data(), sizeof(super));
  KRCORE_RETURN_IF_ERROR(CheckLayout(super, node));
  if (super.pool_bytes == pool.size()) return Status::Ok();
  return {StatusCode::kCorrupt, "the pool of memory node " + std::to_string(node) + " has " +
                                    std::to_string(super.pool_bytes) + " bytes, and its memory " +
                                    std::to_string(pool.size())};
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
