// Survey: what a store's memory nodes hold, read one-sided, for reports. It takes no part in the store: it is
// registered nowhere and changes nothing. Each word that it reports was true at some time while it read.
//
// Thread safety: one thread at a time.
#ifndef KVS_MEMORY_SURVEY_H_
#define KVS_MEMORY_SURVEY_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "krcore/clock.h"
#include "krcore/node.h"
#include "krcore/status.h"
#include "kvs/layout/configuration.h"
#include "kvs/layout/pool.h"
#include "kvs/memory/remote_pool.h"

namespace kvs {

inline constexpr size_t kChunkKinds = static_cast<size_t>(ChunkKind::kReserved) + 1;

// How the chunks of one pool are used.
struct PoolUse {
  uint64_t chunk_bytes = 0;
  std::array<uint64_t, kChunkKinds> chunks{};  // by kind

  uint64_t Bytes(ChunkKind kind) const { return chunks[static_cast<size_t>(kind)] * chunk_bytes; }
  uint64_t total_bytes() const;
  uint64_t free_bytes() const { return Bytes(ChunkKind::kFree); }
  uint64_t reserved_bytes() const { return Bytes(ChunkKind::kReserved); }
  // What is taken for keys and values: blocks, tables and runs.
  uint64_t used_bytes() const { return total_bytes() - free_bytes() - reserved_bytes(); }
};

// Counts the chunks of a pool in this process's memory, in use or not. Zeroes: it is not formatted.
PoolUse CountChunks(std::span<const std::byte> pool);

struct MemberView {
  krcore::NodeId node = krcore::kNoNode;
  uint32_t incarnation = 0;
  MemberState state = MemberState::kNone;
};

// What is wrong with a memory node that is not in the home's list.
inline constexpr char kNoMember[] = "no member of the store: another one was begun; stop this node";

// What the store's home knows.
struct HomeView {
  HomeRecord home{};
  std::vector<MemberView> members;  // all that have ever joined, by id; where pools are mirrored, the pools in use
  uint64_t clients = 0;             // registered and not expelled; some of them may have died recently
  uint64_t epoch = 0;
  bool expiring = false;                                  // values that expire may be in the store
  uint64_t mover = 0;                                     // a MoverWord; 0: nobody gives memory back now
  std::vector<std::pair<uint32_t, ClientEntry>> entries;  // the claimed entries of the client table, by index
};

// By node and chunk.
using LiveBytes = std::map<std::pair<krcore::NodeId, uint64_t>, uint64_t>;

// What the taken chunks of one pool are used for, in bytes. Everything that is not live comes back.
struct LiveUse {
  uint64_t live = 0;     // of keys and values, and of subtables
  uint64_t open = 0;     // for whichever client writes next
  uint64_t unswept = 0;  // free blocks that clients hold; those of ended clients, until a sweep
};
LiveUse UseOf(krcore::NodeId node, std::span<const ChunkWord> words, uint64_t chunk_bytes, const LiveBytes& live);

class Survey {
 public:
  // `node` must outlive it. Fails with kOutOfMemory.
  static krcore::Result<std::unique_ptr<Survey>> Create(krcore::Node& node);

  // kNotFound: the fabric has no store. kUnavailable: its home is dead, or no metadata server lives. kTimeout.
  // kUnsupported: it has another layout (as in CheckLayout, which checks each pool that is read).
  krcore::Result<HomeView> ReadHome(krcore::Deadline deadline);
  // The same for a home that is known already.
  krcore::Result<HomeView> ReadHome(const HomeRecord& home, krcore::Deadline deadline);
  // kUnavailable: the memory node is dead. kTimeout.
  // `chunk_words`: null, or filled with the words of the node's chunks. Where pools are mirrored, `node` is a pool.
  krcore::Result<PoolUse> ReadPool(krcore::NodeId node, krcore::Deadline deadline,
                                   std::vector<ChunkWord>* chunk_words = nullptr);
  // Returns what the table names in each chunk; reads all subtables for that. kTimeout.
  krcore::Result<LiveBytes> ReadLive(const HomeView& home, krcore::Deadline deadline);
  // The store's pools, as the last ReadHome has found them, even if it could not read the home. Null: they are not
  // mirrored.
  const Configuration* configuration() const { return configuration_.number == 0 ? nullptr : &configuration_; }

 private:
  static constexpr size_t kBufferBytes = size_t{64} << 10;

  Survey(krcore::Node& node, std::unique_ptr<RemotePool> pool) : node_(node), pool_(std::move(pool)) {}
  std::span<const uint64_t> words() const { return pool_->words(); }
  // Where pools are mirrored, a pool is read at its tail.
  krcore::Status LearnReplicas(krcore::Deadline deadline);
  krcore::Status Connect(krcore::NodeId pool, krcore::Deadline deadline, Superblock* super);

  krcore::Node& node_;
  const std::unique_ptr<RemotePool> pool_;  // reads kBufferBytes at once
  Configuration configuration_;             // empty: pools are not mirrored
};

}  // namespace kvs

#endif  // KVS_MEMORY_SURVEY_H_
