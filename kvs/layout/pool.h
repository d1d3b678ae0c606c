// The pool: the one region that a memory node exposes. All nodes have the same layout; the home area and the directory
// are in use only at the store's home. The pool is divided into chunks, whose size is the store's.
//
//   0         Superblock           what the pool is, and hints for allocation
//   4 KiB     HomeArea             members, epoch, clients, evacuations (home only)
//   128 KiB   directory            2^kMaxDepth entries (home only)
//   ...       chunk table          a ChunkWord for each chunk of the pool, counted from offset 0
//   ...       chunks               the first ones, which hold all of the above, are RESERVED
//
// Once the pool is published, NIC verbs make every change: CAS, or a WRITE into memory that only the writer owns. The
// memory node's CPU never touches it again.
#ifndef KVS_LAYOUT_POOL_H_
#define KVS_LAYOUT_POOL_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "krcore/status.h"
#include "krcore/types.h"
#include "kvs/layout/subtable.h"

namespace kvs {

// "SKPOOL04". Before version 4 the last two bytes told the version; now only the first six count, and layout_version
// has the version. Older programs do not take a pool with this magic for one of theirs.
inline constexpr uint64_t kPoolMagic = 0x34304c4f4f504b53;
inline constexpr uint32_t kLayoutVersion = 7;
// No word of a pool is all ones. That is reserved for memory of a replica that nobody has copied yet.
inline constexpr uint64_t kUncopied = ~uint64_t{0};
inline constexpr uint32_t kPoolRegionTag = 0x6c6f6f70;  // RemoteRegion::tag of a pool
inline constexpr char kPoolRegionName[] = "pool";       // RegionOptions::name of one that may outlive its process
inline constexpr char kHomeService[] = "kvs-home";      // value: HomeRecord
inline constexpr uint32_t kMaxDepth = 17;
inline constexpr uint32_t kMaxClients = 4096;
inline constexpr uint32_t kEvacuationSlots = 64;
// The size of a chunk, a power of two. The words of a large block's run of chunks must fit in one READ of the
// allocator.
inline constexpr uint64_t kDefaultChunkBytes = uint64_t{1} << 20;
inline constexpr uint64_t kMinChunkBytes = uint64_t{1} << 15;
inline constexpr uint64_t kMaxChunkBytes = uint64_t{1} << 26;
// Clients cut BLOCKS chunks in multiples of chunk_bytes / kUnitsOfCut.
inline constexpr uint64_t kUnitsOfCut = kMinChunkBytes / kUnitBytes;
inline constexpr int64_t kDefaultLeaseNs = 1'000'000'000;
inline constexpr int64_t kMaxLeaseNs = 100'000'000'000'000'000;  // three years

struct HomeRecord {
  krcore::NodeId node;
  uint32_t incarnation;
};

// What is "reserved" is 0, and nobody reads it in this version of the layout.
struct Superblock {
  uint64_t magic;           // here in every version of the layout, as is layout_version
  uint32_t layout_version;  // kLayoutVersion
  krcore::NodeId node;
  uint64_t pool_bytes;
  // Bits for what a program has to know to use the pool, none so far. A program that finds a bit that it does not know
  // refuses the pool. (Programs of version 3, which look at nothing else before they join, take this word for the size
  // of a chunk, and refuse too.)
  uint64_t features;
  uint64_t chunks;  // of the pool, reserved ones included
  uint64_t reserved_chunks;
  uint32_t is_home;              // 1: HomeArea and directory are in use
  uint32_t groups_per_subtable;  // home only
  uint32_t max_depth;
  uint32_t pool;         // of a mirrored pool: the id that addresses name; `node` is one of its replicas. Else 0
  int64_t lease_ns;      // of every client; home only
  uint64_t chunk_bytes;  // the same at every node of a store
  HashSeed hash_seed;    // of the store's keys; home only
  // Of a replica of a mirrored pool: the incarnation of its memory node with which it became one. The other one is the
  // same, or that with which the node returns after a stop: one of the two is in the configuration
  // (kvs/memory/join.cc).
  uint32_t incarnations[2];
  uint32_t replicas;       // reserved, for mirrored pools: how many each pool of the store has; home only
  uint32_t initial_depth;  // of the table when the store began; home only
  uint32_t reserved[4];
  // Hints, changed by CASes whose outcome nobody needs: where the next FREE chunk may be, and the TABLES chunk that may
  // have room.
  alignas(64) uint64_t chunk_cursor;
  uint64_t tables_chunk;
};
static_assert(sizeof(Superblock) == 192);
static_assert(offsetof(Superblock, magic) == 0 && offsetof(Superblock, layout_version) == 8);
static_assert(offsetof(Superblock, features) == 24 && offsetof(Superblock, is_home) == 48);  // as version 3 reads them
static_assert(offsetof(Superblock, pool) == 60 && offsetof(Superblock, hash_seed) == 80);
static_assert(offsetof(Superblock, incarnations) == 96 && offsetof(Superblock, replicas) == 104);
static_assert(offsetof(Superblock, chunk_cursor) == 128);

enum class ChunkKind : uint8_t {
  kFree = 0,
  kBlocks = 1,    // clients cut spans from it, and blocks from these
  kTables = 2,    // all clients cut subtables from it; `count` of them so far
  kRun = 3,       // begins a run of `count` chunks that hold one large block
  kRunRest = 4,   // the others of such a run
  kReserved = 5,  // the pool's fixed part
};

// kind 4 | count 20 | generation 40. Changed by CAS only; the generation counts how often the chunk became FREE. The
// count of a BLOCKS chunk says how much of it, from its beginning, belongs to clients. The rest is for any client.
class ChunkWord {
 public:
  constexpr ChunkWord() = default;
  constexpr explicit ChunkWord(uint64_t word) : word_(word) {}
  static constexpr ChunkWord Make(ChunkKind kind, uint32_t count, uint64_t generation) {
    return ChunkWord(uint64_t{static_cast<uint8_t>(kind)} << 60 | uint64_t{count & 0xfffff} << 40 |
                     (generation & kGenerationMask));
  }
  constexpr uint64_t word() const { return word_; }
  constexpr ChunkKind kind() const { return static_cast<ChunkKind>(word_ >> 60); }
  constexpr uint32_t count() const { return word_ >> 40 & 0xfffff; }
  constexpr uint64_t generation() const { return word_ & kGenerationMask; }
  constexpr ChunkWord As(ChunkKind kind, uint32_t count) const { return Make(kind, count, generation()); }
  constexpr ChunkWord Freed() const { return Make(ChunkKind::kFree, 0, generation() + 1); }
  // The word of a BLOCKS chunk with this many bytes cut.
  constexpr ChunkWord Cut(uint64_t bytes, uint64_t chunk_bytes) const {
    return As(ChunkKind::kBlocks, static_cast<uint32_t>(bytes / (chunk_bytes / kUnitsOfCut)));
  }
  // Where the rest of a BLOCKS chunk begins.
  constexpr uint64_t cut_bytes(uint64_t chunk_bytes) const { return count() * (chunk_bytes / kUnitsOfCut); }
  friend constexpr bool operator==(ChunkWord, ChunkWord) = default;

 private:
  static constexpr uint64_t kGenerationMask = (uint64_t{1} << 40) - 1;
  uint64_t word_ = 0;
};
static_assert(sizeof(ChunkWord) == 8);

// A chunk that is being emptied, as the home's evacuation slots name it: node 8 | generation 28 | chunk 28. Node 0: the
// slot is empty; the rest is a nonce, 0 at first, and another one each time that the slot is cleared.
class EvacuationWord {
 public:
  constexpr EvacuationWord() = default;
  static constexpr EvacuationWord Empty(uint64_t nonce) { return EvacuationWord(nonce >> 8); }
  constexpr explicit EvacuationWord(uint64_t word) : word_(word) {}
  constexpr EvacuationWord(krcore::NodeId node, uint32_t chunk, uint64_t generation)
      : word_(uint64_t{node & 0xff} << 56 | (generation & kMask) << 28 | (chunk & kMask)) {}
  constexpr uint64_t word() const { return word_; }
  constexpr krcore::NodeId node() const { return static_cast<krcore::NodeId>(word_ >> 56); }
  constexpr bool empty() const { return node() == krcore::kNoNode; }
  constexpr uint32_t chunk() const { return word_ & kMask; }
  constexpr bool OfGeneration(uint64_t generation) const { return (word_ >> 28 & kMask) == (generation & kMask); }

 private:
  static constexpr uint64_t kMask = (uint64_t{1} << 28) - 1;
  uint64_t word_ = 0;
};

// kNone: the node has never joined. kDraining: nothing is taken there any more, and what is there moves elsewhere.
// kDrained: nothing is there, and the node may be stopped.
enum class MemberState : uint8_t { kNone = 0, kInUse = 1, kDraining = 2, kDrained = 3 };
// Returns whether slots may name memory of the node.
constexpr bool MayHoldKeys(MemberState state) {
  return state == MemberState::kInUse || state == MemberState::kDraining;
}

// A memory node in the member list: changes 30 | state 2 | incarnation 32. Changed by CAS only. Every CAS counts as a
// change, so that no word comes back.
class MemberWord {
 public:
  constexpr MemberWord() = default;
  constexpr explicit MemberWord(uint64_t word) : word_(word) {}
  static constexpr MemberWord Make(MemberState state, uint32_t incarnation, uint32_t changes) {
    return MemberWord(uint64_t{changes} << 34 | uint64_t{static_cast<uint8_t>(state)} << 32 | incarnation);
  }
  constexpr uint64_t word() const { return word_; }
  constexpr MemberState state() const { return static_cast<MemberState>(word_ >> 32 & 3); }
  constexpr uint32_t incarnation() const { return static_cast<uint32_t>(word_); }
  constexpr MemberWord Joined(uint32_t incarnation) const {
    return Make(MemberState::kInUse, incarnation, changes() + 1);
  }
  constexpr MemberWord Become(MemberState state) const { return Make(state, incarnation(), changes() + 1); }
  friend constexpr bool operator==(MemberWord, MemberWord) = default;

 private:
  constexpr uint32_t changes() const { return static_cast<uint32_t>(word_ >> 34); }
  uint64_t word_ = 0;
};

enum class ClientState : uint8_t { kNone = 0, kAlive = 1, kExpelled = 2 };

// state 2 | heartbeats 18 | epoch 44. epoch: the oldest one in which an operation in flight began.
class ClientWord {
 public:
  constexpr ClientWord() = default;
  constexpr explicit ClientWord(uint64_t word) : word_(word) {}
  static constexpr ClientWord Make(ClientState state, uint32_t heartbeats, uint64_t epoch) {
    return ClientWord(uint64_t{static_cast<uint8_t>(state)} << 62 | uint64_t{heartbeats & 0x3ffff} << 44 |
                      (epoch & kEpochMask));
  }
  constexpr uint64_t word() const { return word_; }
  constexpr ClientState state() const { return static_cast<ClientState>(word_ >> 62); }
  constexpr uint32_t heartbeats() const { return word_ >> 44 & 0x3ffff; }
  constexpr uint64_t epoch() const { return word_ & kEpochMask; }
  constexpr ClientWord Beat(uint64_t epoch) const { return Make(ClientState::kAlive, heartbeats() + 1, epoch); }
  constexpr ClientWord Expelled() const { return Make(ClientState::kExpelled, heartbeats(), epoch()); }
  friend constexpr bool operator==(ClientWord, ClientWord) = default;

 private:
  static constexpr uint64_t kEpochMask = (uint64_t{1} << 44) - 1;
  uint64_t word_ = 0;
};

// Whose an entry of the client table is: held 1 | turn 15 | node 16 | incarnation 32. Changed by CAS only: a claim
// counts a turn, and a free entry keeps its last holder's word but for `held`. So no word comes back before one process
// has claimed the entry as often as there are turns. 0: nobody has had it.
class OwnerWord {
 public:
  static constexpr uint32_t kTurns = (1u << 15) - 1;  // not all values: no word is all ones

  constexpr OwnerWord() = default;
  constexpr explicit OwnerWord(uint64_t word) : word_(word) {}
  constexpr uint64_t word() const { return word_; }
  constexpr bool held() const { return (word_ & kHeld) != 0; }
  constexpr uint32_t turn() const { return static_cast<uint32_t>((word_ & ~kHeld) >> 48); }
  // Of the process that holds the entry, or held it last.
  constexpr krcore::NodeId node() const { return static_cast<krcore::NodeId>(word_ >> 32 & 0xffff); }
  constexpr uint32_t incarnation() const { return static_cast<uint32_t>(word_); }
  constexpr OwnerWord ClaimedBy(krcore::NodeId node, uint32_t incarnation) const {
    return OwnerWord(kHeld | uint64_t{(turn() + 1) % kTurns} << 48 | uint64_t{node & 0xffff} << 32 | incarnation);
  }
  constexpr OwnerWord Released() const { return OwnerWord(word_ & ~kHeld); }
  friend constexpr bool operator==(OwnerWord, OwnerWord) = default;

 private:
  static constexpr uint64_t kHeld = uint64_t{1} << 63;
  uint64_t word_ = 0;
};

// A registered client. owner: an OwnerWord. word: a ClientWord, changed by CAS. From the claim to the first heartbeat
// it is what a former holder left: an older epoch, which holds back more.
struct ClientEntry {
  uint64_t owner;
  uint64_t word;
  friend bool operator==(const ClientEntry&, const ClientEntry&) = default;
};
static_assert(sizeof(ClientEntry) == 16);

// The mover: client 12 | incarnation of its process 32 | turns 20, which it counts as it goes on. 0: there is none. The
// word only avoids double work. A client that waits for the mover can tell whether its process has died.
class MoverWord {
 public:
  constexpr MoverWord() = default;
  constexpr explicit MoverWord(uint64_t word) : word_(word) {}
  static constexpr MoverWord Make(uint32_t client, uint32_t incarnation, uint32_t turns) {
    return MoverWord(uint64_t{client & 0xfff} << 52 | uint64_t{incarnation} << 20 | (turns % kTurns + 1));
  }
  constexpr uint64_t word() const { return word_; }
  constexpr uint32_t client() const { return static_cast<uint32_t>(word_ >> 52); }
  constexpr uint32_t incarnation() const { return static_cast<uint32_t>(word_ >> 20); }
  constexpr MoverWord NextTurn() const { return Make(client(), incarnation(), static_cast<uint32_t>(word_ & kTurns)); }

 private:
  static constexpr uint32_t kTurns = (1u << 20) - 1;
  uint64_t word_ = 0;
};
static_assert(kMaxClients == 1u << 12);

// What maintenance reads together with the epoch. Counters only grow, by CAS (Home::Count).
struct HomeCounters {
  uint64_t clients_used;    // only entries below it were ever claimed; it is raised before a claim
  uint64_t retired_tables;  // subtables unlinked from the directory; grows before the epoch that stamps them is read
  uint64_t evacuations;     // chunks whose evacuation began
  uint64_t freed_chunks;    // chunks that became FREE
  uint64_t member_changes;  // of the member list; grows after each of them
  uint64_t expiring;        // 0: no record with a time to expire was ever written
};

// What is "reserved" is 0, and nobody reads it in this version of the layout.
struct HomeArea {
  uint64_t members[256];  // MemberWords, by node id
  alignas(64) uint64_t epoch;
  HomeCounters counters;
  uint64_t mover;                      // a MoverWord
  alignas(64) uint64_t configuration;  // the number of the newest one that this replica was told (docs/replication.md)
  uint64_t reserved[7];
  alignas(64) uint64_t evacuation[kEvacuationSlots];  // EvacuationWords
  alignas(64) ClientEntry clients[kMaxClients];
  // The number of the configuration that each client has acknowledged, which it WRITEs (docs/replication.md).
  alignas(64) uint64_t acknowledged[kMaxClients];
};
static_assert(offsetof(HomeArea, epoch) == 2048 && offsetof(HomeArea, mover) == 2104);
static_assert(offsetof(HomeArea, configuration) == 2112 && offsetof(HomeArea, evacuation) == 2176);
static_assert(offsetof(HomeArea, clients) == 2688 && offsetof(HomeArea, acknowledged) == 68'224);

inline constexpr uint64_t kHomeAreaOffset = 4096;
inline constexpr uint64_t kMembersOffset = kHomeAreaOffset + offsetof(HomeArea, members);
inline constexpr uint64_t kEpochOffset = kHomeAreaOffset + offsetof(HomeArea, epoch);
inline constexpr uint64_t kCountersOffset = kHomeAreaOffset + offsetof(HomeArea, counters);
inline constexpr uint64_t kClientsUsedOffset = kCountersOffset + offsetof(HomeCounters, clients_used);
inline constexpr uint64_t kEvacuationsOffset = kCountersOffset + offsetof(HomeCounters, evacuations);
inline constexpr uint64_t kFreedChunksOffset = kCountersOffset + offsetof(HomeCounters, freed_chunks);
inline constexpr uint64_t kMemberChangesOffset = kCountersOffset + offsetof(HomeCounters, member_changes);
inline constexpr uint64_t kExpiringOffset = kCountersOffset + offsetof(HomeCounters, expiring);
inline constexpr uint64_t kRetiredTablesOffset = kCountersOffset + offsetof(HomeCounters, retired_tables);
inline constexpr uint64_t kMoverOffset = kHomeAreaOffset + offsetof(HomeArea, mover);
inline constexpr uint64_t kEvacuationOffset = kHomeAreaOffset + offsetof(HomeArea, evacuation);
inline constexpr uint64_t kClientsOffset = kHomeAreaOffset + offsetof(HomeArea, clients);
constexpr uint64_t EntryOffset(uint32_t client) { return kClientsOffset + uint64_t{client} * sizeof(ClientEntry); }
inline constexpr uint64_t kConfigurationOffset = kHomeAreaOffset + offsetof(HomeArea, configuration);
constexpr uint64_t AcknowledgedOffset(uint32_t client) {
  return kHomeAreaOffset + offsetof(HomeArea, acknowledged) + uint64_t{client} * sizeof(uint64_t);
}
inline constexpr uint64_t kDirectoryOffset = 128 * 1024;
inline constexpr uint64_t kChunkTableOffset = kDirectoryOffset + (uint64_t{8} << kMaxDepth);
static_assert(sizeof(Superblock) <= kHomeAreaOffset);
static_assert(kHomeAreaOffset + sizeof(HomeArea) <= kDirectoryOffset);

constexpr uint64_t ReservedChunks(uint64_t pool_bytes, uint64_t chunk_bytes) {
  return (kChunkTableOffset + pool_bytes / chunk_bytes * sizeof(ChunkWord) + chunk_bytes - 1) / chunk_bytes;
}
// How many of a memory node's chunks that are not reserved are kept free for the mover, which needs some before it can
// empty others. It is one in 32, but not more than the mover needs to go on. A tiny node has none to spare.
constexpr uint64_t ChunksKeptForMover(uint64_t chunks) {
  return chunks < 8 ? 0 : std::clamp<uint64_t>(chunks / 32, 1, 16);
}
constexpr uint64_t ChunkWordOffset(uint64_t chunk) { return kChunkTableOffset + chunk * sizeof(ChunkWord); }

// The smallest pool: the fixed part and a few chunks.
inline constexpr uint64_t kMinPoolBytes =
    (ReservedChunks(8 * kDefaultChunkBytes, kDefaultChunkBytes) + 4) * kDefaultChunkBytes;

// Writes the superblock and the chunk table into a zeroed pool. kInvalidArgument: too small or too large, naming the
// limits. `mirrored_as`: the id of the mirrored pool of which this is a replica; then also the node's incarnation.
krcore::Status FormatPool(std::span<std::byte> pool, krcore::NodeId node, uint64_t chunk_bytes = kDefaultChunkBytes,
                          krcore::NodeId mirrored_as = krcore::kNoNode, uint32_t incarnation = 0);

// Makes a region ready to be a learner of the mirrored pool whose superblock is `super`, at memory node `node`: nothing
// of it is copied yet.
void FormatLearner(std::span<std::byte> region, const Superblock& super, krcore::NodeId node, uint32_t incarnation);

// The initial depth of a store that is to hold so many records. They take three quarters of its slots at most, so that
// hardly any bucket is full. At most kMaxDepth; 0 if nothing is expected.
uint32_t DepthFor(uint64_t records, const SubtableGeometry& geometry);

struct HomeOptions {
  SubtableGeometry geometry;
  uint32_t initial_depth = 0;  // 2^initial_depth subtables to begin with
  int64_t lease_ns = kDefaultLeaseNs;
  uint64_t chunk_bytes = kDefaultChunkBytes;  // of every node of the store
  uint32_t replicas = 0;  // how many each pool is to have, 1 to kMaxReplicas; 0: the pools are not mirrored
  std::optional<HashSeed>
      hash_seed{};  // nothing: drawn at random, as it must be in every store to which others may write
};
// Makes a freshly formatted pool the store's home, with seed, epoch 1 and the first subtables. Before publication only.
krcore::Status FormatHome(std::span<std::byte> pool, const HomeOptions& options);

// Checks that this is the superblock of `node`'s pool in the layout of this program. kUnsupported: it has another
// version, or features that this program does not know; the message tells the way out. kCorrupt: it is none.
krcore::Status CheckLayout(const Superblock& super, krcore::NodeId node);
// The same for a whole pool that a predecessor left.
krcore::Status CheckPool(std::span<const std::byte> pool, krcore::NodeId node);
// Returns whether the pool was formatted. If not, it is zeroes, and nobody takes it for a pool.
bool IsFormatted(std::span<const std::byte> pool);

// Writes an empty subtable, whose bucket headers are `header` and whose slots are `fill`, into `out`, which has
// geometry.bytes() bytes.
void FormatSubtable(std::span<std::byte> out, const SubtableGeometry& geometry, BucketHeader header, Slot fill);

}  // namespace kvs

#endif  // KVS_LAYOUT_POOL_H_
