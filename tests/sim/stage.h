// A stage for scripted scenarios: a store on a World of its own and a few real clients. Each client is a process and
// does nothing unless it is polled. So a scenario can hold a client wherever it likes, and time passes only as the
// scenario says.
//
// After a violation a Stage cannot be destroyed: the clients of a broken store may never end.
#ifndef TESTS_SIM_STAGE_H_
#define TESTS_SIM_STAGE_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "krcore/node.h"
#include "krcore/rnic/sim/world.h"
#include "kvs/client.h"
#include "kvs/housekeeper.h"
#include "kvs/layout/directory.h"
#include "kvs/layout/pool.h"
#include "kvs/layout/subtable.h"
#include "kvs/replica_keeper.h"
#include "tests/sim/history.h"
#include "tests/sim/memory_nodes.h"

namespace surgekv_sim {

struct StageOptions {
  uint64_t seed = 1;
  uint32_t initial_depth = 0;
  uint32_t groups = 2;                 // of a subtable
  uint32_t memory_nodes = 1;           // pools, if these are mirrored
  uint32_t replicas = 1;               // of each pool
  bool multi_get = false;              // Gets are MultiGets of one key
  uint32_t address_cache_entries = 0;  // of each client
  bool breaks = false;                 // queues or memory nodes break: operations may fail, and outcomes may be unknown
  bool agree = false;                  // though something breaks, replicas hold the same at the end, if no client died
  int64_t lease_ns =
      0;  // of clients; 0: for ever, as what a client posts after a long sleep is what scenarios are about
};

class Stage {
 public:
  explicit Stage(const StageOptions& options);
  ~Stage();
  Stage(const Stage&) = delete;
  Stage& operator=(const Stage&) = delete;

  krcore::rnic::sim::World& world() { return world_; }

  // ---- clients, by number from 0
  uint32_t AddClient(uint32_t lanes = 32);
  kvs::Client& client(uint32_t c) { return *actors_[c].client; }
  kvs::Store& store(uint32_t c) { return *actors_[c].store; }
  krcore::NodeId NodeOf(uint32_t c) { return actors_[c].store->node().id(); }
  // Ends the client in order. Its process stays, and begins another client with Reopen.
  void Close(uint32_t c) { actors_[c].client.reset(); }
  void Reopen(uint32_t c);
  // The client's process dies, and nothing that it has posted executes from now on. Some of it may have executed
  // before.
  void Kill(uint32_t c);
  // What the client posts in the next `ns` leaves only after that time.
  void Stall(uint32_t c, int64_t ns) { world_.StallDoorbells(NodeOf(c), ns); }
  // Does a round: lets `tempo` pass, which is more than a round trip takes, and polls the client once.
  void Poll(uint32_t c, uint32_t rounds = 1);
  // Does rounds until `until` is true. Returns false if it is not after `most` rounds.
  bool PollUntil(uint32_t c, const std::function<bool()>& until, uint32_t most = 2'000);
  void set_tempo(int64_t ns) { tempo_ns_ = ns; }
  void Wait(int64_t ns) { world_.RunUntil(world_.now_ns() + ns); }

  // ---- memory nodes
  const MemoryNodes& memory_nodes() const { return memory_nodes_; }
  // The memory node dies, and nobody ever reaches its memory again.
  void KillMemoryNode(krcore::NodeId node) { world_.Kill(node, 0); }
  // A memory node joins the mirrored store; one in all. Its keeper does nothing unless it is stepped. Returns the node.
  krcore::NodeId Join();
  // Lets `tempo` pass, and steps the keeper once.
  void StepKeeper();
  krcore::NodeId KeepersNode() { return keepers_store_->node().id(); }
  // The process of the memory node that joins dies, and the memory node with it.
  void KillKeeper(krcore::NodeId memory_node);
  const kvs::ReplicaKeeperStats& keeper() const { return keeper_->stats(); }
  // Begins a housekeeper; one in all. It does nothing unless it is stepped.
  kvs::Housekeeper& AddHousekeeper();

  // ---- operations. A key is a number. Those from kFirstEqual on have one hash.
  static constexpr uint32_t kFirstEqual = 2'048, kKeys = kFirstEqual + 4;
  static std::string NameOf(uint32_t key);
  static const kvs::KeyHash& HashOf(uint32_t key);
  // Begins an operation and returns its number in the history. It goes on as its client is polled.
  uint32_t Begin(uint32_t c, OpKind kind, uint32_t key);
  const OpRecord& Record(uint32_t operation) const { return history_[operation]; }
  std::string Describe(uint32_t operation) const { return history_.Describe(history_[operation].key); }
  bool Ended(uint32_t operation) const { return history_[operation].end != 0; }
  uint32_t InFlight(uint32_t c) const { return actors_[c].in_flight; }
  bool Idle(uint32_t c) const { return actors_[c].in_flight == 0 || !actors_[c].alive(); }
  // Begins an operation and polls its client until it has ended. If it does not end, that is a violation.
  krcore::StatusCode Do(uint32_t c, OpKind kind, uint32_t key);
  // Polls the client until all that it has begun has ended.
  void Finish(uint32_t c);
  // Client c begins a scan over all keys, each step of which is to return `count`. It counts as in flight until it has
  // ended.
  void BeginScan(uint32_t c, uint32_t count);
  // Returns how many keys that scan, or the last one that has ended, has returned so far.
  size_t Scanned(uint32_t c) const { return actors_[c].scan.returned.size(); }
  // Client c begins to give memory back. This counts as in flight until it has ended; for that the others must be
  // polled.
  void BeginCompaction(uint32_t c);
  // The same for emptying a memory node.
  void BeginDrain(uint32_t c, krcore::NodeId node);
  bool drained() const { return drained_; }                // a drain has ended with success
  uint64_t chunks_freed() const { return chunks_freed_; }  // by compactions that have ended

  // ---- the memory, as READs see it now
  kvs::HomeArea Home() const;
  kvs::DirectoryEntry Entry(uint32_t index) const;
  kvs::Slot SlotOf(kvs::GlobalAddress table, uint32_t slot) const;
  // Whether the key's fingerprint occurs in the second of its two combined buckets, and not in the first.
  bool IsInSecondPlace(kvs::GlobalAddress table, uint32_t key) const;
  // Whether a slot of the table in which the key may be has this state (and, if it names a block, the key's
  // fingerprint).
  bool AnyCandidate(kvs::GlobalAddress table, uint32_t key, kvs::SlotState state) const;

  // ---- judging
  bool fine() const { return violation_.empty(); }
  void Violation(const std::string& kind, const std::string& text);
  // Ends all operations. Checks that the history of each key is that of a register, and that the memory is sound and
  // holds what a fresh client reads.
  void Judge();
  const std::string& violation() const { return violation_; }
  const std::string& text() const { return text_; }

 private:
  struct Actor {
    std::unique_ptr<kvs::Store> store;
    std::unique_ptr<kvs::Client> client;
    uint32_t lanes = 0;
    uint32_t in_flight = 0;
    bool dead = false;
    KeyScan scan;

    bool alive() const { return client != nullptr && !dead; }
  };

  std::unique_ptr<kvs::Store> OpenStore();
  kvs::Task<krcore::Status> Get(kvs::Client& client, std::string_view key, std::string* value);
  kvs::ModifyFunction FunctionOf(uint32_t operation);
  kvs::Task<void> Operate(uint32_t c, uint32_t operation);
  kvs::Task<void> Scan(uint32_t c, kvs::ScanOptions options);
  kvs::Task<void> Compact(uint32_t c);
  kvs::Task<void> Drain(uint32_t c, krcore::NodeId node);
  const std::byte* At(kvs::GlobalAddress address) const {
    return memory_nodes_.TailOf(address.node).data() + address.offset;
  }

  const uint32_t groups_, address_cache_entries_;
  const bool multi_get_, breaks_, agree_;
  krcore::rnic::sim::World world_;
  History history_;
  MemoryNodes memory_nodes_;
  std::deque<Actor> actors_;
  std::unique_ptr<kvs::Store> keepers_store_;
  std::unique_ptr<kvs::ReplicaKeeper> keeper_;
  std::unique_ptr<kvs::Store> housekeepers_store_;
  std::unique_ptr<kvs::Housekeeper> housekeeper_;
  int64_t tempo_ns_ = 5'000;
  uint64_t chunks_freed_ = 0;
  bool drained_ = false;
  std::string violation_, text_;
};

}  // namespace surgekv_sim

#endif  // TESTS_SIM_STAGE_H_
