// What a client knows of the store's home, as it last read it: the epoch, the members, which nodes are full. It also
// has the registered words into which registration and maintenance read.
//
// Thread safety: the client's thread.
#ifndef KVS_EPOCHS_HOME_H_
#define KVS_EPOCHS_HOME_H_

#include <algorithm>
#include <array>
#include <cstdint>
#include <new>
#include <utility>
#include <vector>

#include "kvs/epochs/common.h"
#include "kvs/epochs/operation.h"
#include "kvs/layout/pool.h"
#include "kvs/memory/connections.h"
#include "kvs/task.h"

namespace kvs {

class Home : private Part {
 public:
  static constexpr uint32_t kWindow = 1024;  // chunk words read at once
  struct alignas(64) Registered {
    uint64_t epoch = 0;
    uint64_t announcement = 0;
    uint64_t cas = 0;
    uint64_t directory = 0;
    std::array<uint64_t, 4> renewal{};
    std::array<uint64_t, kMaxChain> configuration{}, renewal_configuration{};  // as CompareSwapChecked reads it
    HomeCounters counters{};
    HashSeed hash_seed{};
    std::array<uint64_t, 32> old{};  // old words of CASes that nobody looks at
    alignas(64) uint64_t evacuation[kEvacuationSlots];
    alignas(64) uint64_t members[krcore::kMaxMemoryNode + 1];
    alignas(64) ChunkWord chunks[kWindow];
    alignas(64) ClientEntry clients[kMaxClients];  // not cleared: most of it is never touched
  };

  Home(const Common& common, ArenaPart arena) : Part(common), registered_(new (arena.memory) Registered) {
    batch_.Attach(&common.connections, arena.lkey);
  }

  Registered& words() { return *registered_; }
  // Registration uses words() and batch(); once the client is registered, maintenance does. Only one uses them at a
  // time.
  Batch& batch() { return batch_; }

  // Call it before the client is registered. Reads the members, to which the client should then be connected, and
  // glances at the client table. The glance may get old: an entry that it shows as free is claimed by CAS, and the part
  // in use never shrinks.
  Task<Step> Glance();
  // Reads the epoch, and after it the counters, the client table, and the member list if it has changed. Only
  // registered clients call it.
  Task<Step> Read();
  // Call it after a READ of the counters. Reads the member list, if they say that it has changed. A client that
  // announces an epoch after that takes no memory of a node that is being drained.
  Task<Step> LearnMembers(Batch& batch);
  // Raises the counter at `offset` of the home's pool. `old`: a registered word, which it uses. It takes one round trip
  // unless others have raised the counter since it was last read.
  Task<Step> Count(Batch& batch, uint64_t offset, uint64_t by, uint64_t* old);

  // Values that expire may be in the store; the housekeeper then looks for those that have.
  bool expiring() const { return registered_->counters.expiring != 0 || said_expiring_; }
  // Says so to all.
  Task<Step> SayExpiring(Batch& batch, uint64_t* old) {
    const Step said = co_await Count(batch, kExpiringOffset, 1, old);
    said_expiring_ |= said == Step::kOk;
    co_return said;
  }

  // Asks for a CAS of a word of the client table, which a client may change without a lease (docs/replication.md).
  void AskToSwapEntry(Batch& batch, uint64_t offset, uint64_t expected, uint64_t desired, uint64_t* old, Word whose) {
    batch.CompareSwapChecked({common_.shape.home, offset}, expected, desired, old, whose,
                             registered_->configuration.data());
  }

  // The global epoch as last read.
  uint64_t epoch() const { return epoch_; }
  void set_epoch(uint64_t epoch) { epoch_ = epoch; }

  // ---- members
  // Memory nodes where memory may be taken; the home is always one.
  const std::vector<krcore::NodeId>& members() const { return members_; }
  bool IsMember(krcore::NodeId node) const { return std::ranges::find(members_, node) != members_.end(); }
  // Memory may no longer be taken there.
  bool IsDraining(krcore::NodeId node) const { return std::ranges::find(draining_, node) != draining_.end(); }
  std::vector<krcore::NodeId> all_nodes() const {
    std::vector<krcore::NodeId> nodes = members_;
    nodes.insert(nodes.end(), draining_.begin(), draining_.end());
    return nodes;
  }
  // The counter of the member list's changes when it was read.
  uint64_t member_changes_seen() const { return member_changes_seen_; }
  // How many reads of the home maintenance has begun, and the number of the last one that has ended well.
  uint64_t rounds() const { return rounds_; }
  uint64_t read_in_round() const { return read_in_round_; }

  // ---- the client table
  // The size of the part in use, as last read.
  uint32_t clients_used() const { return clients_used_; }
  void TakeClientsUsed() { clients_used_ = CountedClients(); }
  // Takes the number of entries that Glance read and nobody has looked at yet.
  uint32_t TakeGlanced() { return std::exchange(clients_glanced_, 0); }

  // ---- memory nodes without a free chunk
  bool IsFull(krcore::NodeId node) const { return std::ranges::find(full_nodes_, node) != full_nodes_.end(); }
  void NoteFull(krcore::NodeId node) {
    if (!IsFull(node)) full_nodes_.push_back(node);
  }
  void ForgetFull() { full_nodes_.clear(); }
  // How many chunks have been freed in all. When that has grown, no node is known to be full any more.
  uint64_t freed_chunks_seen() const { return freed_chunks_seen_; }
  void SawFreedChunks(uint64_t counter) {
    if (counter == freed_chunks_seen_) return;
    freed_chunks_seen_ = counter;
    full_nodes_.clear();
  }

 private:
  // The size of the part in use, as the counters say that were read last.
  uint32_t CountedClients() const {
    return static_cast<uint32_t>(std::min<uint64_t>(registered_->counters.clients_used, kMaxClients));
  }

  Registered* const registered_;
  Batch batch_;
  uint64_t epoch_ = 0;
  std::vector<krcore::NodeId> members_;
  std::vector<krcore::NodeId> draining_;
  bool members_known_ = false;
  uint64_t member_changes_seen_ = 0;
  uint64_t rounds_ = 0;
  uint64_t read_in_round_ = 0;
  uint32_t clients_used_ = 0;
  uint32_t clients_glanced_ = 0;
  bool said_expiring_ = false;
  std::vector<krcore::NodeId> full_nodes_;
  uint64_t freed_chunks_seen_ = 0;
  std::array<uint64_t, sizeof(HomeCounters) / sizeof(uint64_t)> counted_{};  // the counters as Count() left them
};

}  // namespace kvs

#endif  // KVS_EPOCHS_HOME_H_
