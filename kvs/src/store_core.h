// What the clients of one process share.
//
// Thread safety: all methods from any thread.
#ifndef KVS_SRC_STORE_CORE_H_
#define KVS_SRC_STORE_CORE_H_

#include <array>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "krcore/node.h"
#include "krcore/types.h"
#include "kvs/client.h"
#include "kvs/layout/hash.h"
#include "kvs/layout/pool.h"
#include "kvs/src/memory_state.h"
#include "kvs/src/operation.h"
#include "kvs/src/registration.h"

namespace kvs {

// ChunkAges: since when chunks are what they are, as far as the clients of one Store have seen. A chunk that was FREE
// in some epoch and has the same generation still was taken after that: all that it holds is younger. So a client which
// was expelled before knows nothing of it (docs/protocol.md, E4).
class ChunkAges {
 public:
  // Words of chunks from `first` on, read when the epoch was `epoch` at least.
  void Saw(krcore::NodeId node, uint64_t first, std::span<const ChunkWord> words, uint64_t epoch) {
    const std::lock_guard lock(mutex_);
    std::vector<Seen>& seen = seen_[node];
    if (seen.size() < first + words.size()) seen.resize(first + words.size());
    for (size_t i = 0; i < words.size(); ++i) {
      if (words[i].kind() == ChunkKind::kFree) seen[first + i] = {words[i].generation(), epoch};
    }
  }
  // A mover has given it up: it holds what it held, under another generation.
  void Renamed(krcore::NodeId node, uint64_t chunk, ChunkWord from, ChunkWord to) {
    const std::lock_guard lock(mutex_);
    if (chunk >= seen_[node].size()) return;
    Seen& seen = seen_[node][chunk];
    if (seen.generation == from.generation()) seen.generation = to.generation();
  }
  // Was the chunk FREE in this epoch or a later one, before it became what the word says? False: that is not known.
  bool IsYounger(krcore::NodeId node, uint64_t chunk, ChunkWord word, uint64_t epoch) {
    const std::lock_guard lock(mutex_);
    if (chunk >= seen_[node].size()) return false;
    const Seen& seen = seen_[node][chunk];
    return seen.generation == word.generation() && seen.epoch >= epoch;
  }

 private:
  struct Seen {
    uint64_t generation = 0;
    uint64_t epoch = 0;  // 0: never
  };
  std::mutex mutex_;
  std::array<std::vector<Seen>, krcore::kMaxMemoryNode + 1> seen_;  // guarded by mutex_
};

class ClientCore;

// StoreCore: what the clients of one process share: the node (with the control plane "verbs" each client has one of its
// own as well), the store's shape, what ended clients left for later ones (memory, and their entries at the home), and
// what was seen of chunks.
class StoreCore final : public Store {
 public:
  // `options`: as `node` was opened.
  StoreCore(std::unique_ptr<krcore::Node> node, const StoreOptions& options);
  ~StoreCore() override;

  // Finds the store's home and its shape.
  Status Attach(krcore::Deadline deadline);
  // Keeps the memory node of an embedded store alive as long as the store.
  void Own(std::unique_ptr<krcore::Node> memory_node, std::unique_ptr<krcore::Region> pool);

  Result<std::unique_ptr<Client>> NewClient(const ClientOptions& options) override;
  Status PrepareClient(const ClientOptions& options) override;
  krcore::Node& node() override { return *node_; }
  std::optional<krcore::SoftwareDcStats> software_dc() override { return node_->software_dc(); }

  // A node for one client, published; null: clients share node().
  Result<std::unique_ptr<krcore::Node>> OpenClientNode(krcore::Deadline deadline);
  // How long a client may block to connect to a memory node while it has operations.
  int64_t reconnect_budget_ns() const;
  krcore::Clock& clock() { return node_->clock(); }
  krcore::NodeId home() const { return home_; }
  SubtableGeometry geometry();
  uint64_t chunk_bytes();
  int64_t lease_ns();
  Hasher hasher();
  int64_t operation_timeout_ns() const { return operation_timeout_ns_; }

  // Memory of an ended client, or fresh.
  std::unique_ptr<MemoryState> TakeMemory();
  void GiveMemory(std::unique_ptr<MemoryState> memory);
  HeldEntries& held_entries() { return held_entries_; }
  ChunkAges& chunk_ages() { return chunk_ages_; }
  // The memory nodes, as a client that began last knew them: a hint. Empty: none has.
  void NoteMembers(std::vector<krcore::NodeId> members);
  std::vector<krcore::NodeId> members();

 private:
  Result<std::unique_ptr<Client>> MakeClient(const ClientOptions& options);
  // One that was prepared with these options; null: there is none.
  std::unique_ptr<ClientCore> TakePrepared(const ClientOptions& options);
  // What the home's superblock says, through queues of its own.
  Status ReadShape(krcore::Deadline deadline);

  std::unique_ptr<krcore::Region> pool_;       // embedded only; destroyed after node_
  std::unique_ptr<krcore::Node> memory_node_;  // embedded only
  std::unique_ptr<krcore::Node> node_;
  const StoreOptions options_;
  const int64_t operation_timeout_ns_;
  krcore::NodeId home_ = krcore::kNoNode;

  std::mutex mutex_;
  SubtableGeometry geometry_;                               // guarded by mutex_
  uint64_t chunk_bytes_ = kDefaultChunkBytes;               // guarded by mutex_
  int64_t lease_ns_ = kDefaultLeaseNs;                      // guarded by mutex_
  Hasher hasher_{HashSeed{}};                               // guarded by mutex_
  std::vector<std::unique_ptr<MemoryState>> spare_memory_;  // guarded by mutex_
  std::vector<std::unique_ptr<ClientCore>> prepared_;       // guarded by mutex_
  std::vector<krcore::NodeId> members_;                     // guarded by mutex_
  HeldEntries held_entries_;
  ChunkAges chunk_ages_;
};

}  // namespace kvs

#endif  // KVS_SRC_STORE_CORE_H_
