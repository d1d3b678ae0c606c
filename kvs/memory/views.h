// Views: which replicas each mirrored pool has, as a client knows it, and how a client comes to another configuration
// when a replica fails (docs/replication.md, "A view changes"). One object serves all Connections of a client.
//
// A new configuration is *pending* at first: its number is written to every replica of the home that stays, each client
// acknowledges it once it has nothing under way to the pools that change, and then somebody makes it *active*. Every
// client does all of this, each step can be repeated, and whoever began it may die. Only a learner becomes the tail by
// the process that has brought it up to date (kvs/upkeep/replicator.h), which knows whether that still holds.
//
// Thread safety: the client's thread. Poll and Open block for some round trips to memory nodes, and ask the fabric for
// the record.
#ifndef KVS_MEMORY_VIEWS_H_
#define KVS_MEMORY_VIEWS_H_

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "krcore/clock.h"
#include "krcore/node.h"
#include "krcore/status.h"
#include "kvs/layout/configuration.h"
#include "kvs/layout/pool.h"
#include "kvs/memory/mirror.h"
#include "kvs/memory/remote_pool.h"

namespace kvs {

class Connections;

class Views {
 public:
  // `node` posts the client's verbs.
  // `table_bytes`: of a subtable.
  Views(krcore::Node& node, int64_t lease_ns, uint64_t table_bytes);
  Views(const Views&) = delete;
  Views& operator=(const Views&) = delete;

  // Learns the configuration, and waits until one is active. kTimeout. Otherwise the codes of ReadConfiguration.
  krcore::Status Open(krcore::Deadline deadline);
  // Those whose verbs go by these views.
  void Attach(Connections& connections) { connections_.push_back(&connections); }
  void Detach(Connections& connections);
  // The client's place in the client table, as soon as it is known to be the client's and until it has been given back.
  // It acknowledges there.
  void SetClient(std::optional<uint32_t> client) { client_ = client; }
  // Tells of a place that this process holds whether its client has left it without giving it back. Nobody acknowledges
  // there, and nobody needs to: nothing executes any more that was posted under it.
  using IsAbandoned = std::function<bool(uint32_t client, OwnerWord owner)>;
  void SetAbandoned(IsAbandoned is_abandoned) { is_abandoned_ = std::move(is_abandoned); }

  // The number of the configuration that the client uses.
  uint64_t number() const { return used_.number; }
  const Configuration& used() const { return used_; }
  int64_t lease_ns() const { return lease_ns_; }
  uint64_t table_bytes() const { return table_bytes_; }
  // The number of the first configuration in which the present head of each pool was a replica or learner.
  uint64_t heads_since() const { return heads_since_; }
  // Whether no CAS begins, because a replica joins and all CASes that are under way have to end first.
  bool closed_to_new() const { return closed_to_new_; }
  // Returns null if the store has no such pool.
  const PoolChain* Find(krcore::NodeId pool) const {
    const PoolChain& chain = chains_[pool & 0xff];
    return chain.length == 0 ? nullptr : &chain;
  }
  const std::array<PoolChain, krcore::kMaxMemoryNode + 1>& chains() const { return chains_; }
  // Whether the node is in a chain that is another one in a configuration that is known.
  bool ChainChangesAt(krcore::NodeId node) const;
  // Call it when a replica cannot be reached. If it is not the last one of its pool, it leaves the chain, and until
  // then nothing is posted to the pool. False: it is the last one, or none lives, and none has returned until now.
  bool Suspect(krcore::NodeId pool, const Replica& replica);
  // Call it when a replica of the home shows another number.
  void NoteNewer() {
    looks_ = true;
    next_ns_ = INT64_MIN;
  }
  // Changes the record: `change` is applied to the newest configuration. kExists: that is not active, or changed at the
  // same time. kBadState: `change` does not want it. Otherwise the codes of CompareAndSetRecord. Afterwards the client
  // comes to use it as any other configuration.
  krcore::Status Change(const std::function<bool(Configuration&)>& change);
  // What the process that has brought this learner up to date does with the view in which it becomes the tail: it makes
  // it active if `valid` says so once all clients have acknowledged it, or else gives it up. `valid` gets the entries
  // of the client table.
  using IsValid = std::function<bool(std::span<const ClientEntry> entries)>;
  void SetPromoter(const Replica& learner, IsValid valid) {
    brought_ = learner;
    valid_ = std::move(valid);
  }
  // Goes on with a change of views, if there is one.
  void Poll() {
    if (looks_ || !suspects_.empty()) [[unlikely]]
      GoOn();
  }
  bool changing() const { return looks_ || !suspects_.empty(); }

 private:
  void GoOn();
  // Reads the record into latest_. If it names suspects, these are removed. False: later.
  bool Look();
  // Uses latest_, which is active.
  void Use();
  void CloseChanging();
  // Whether nothing of this client is under way to a pool that changes.
  bool Idle() const;
  bool AtHome(const Replica& replica, const std::function<krcore::Status(RemotePool&)>& visit);
  // The replicas of the home in latest_, the learner included.
  std::vector<Replica> HomeReplicas() const;
  // Each visits replicas of the home that stay. False: not yet.
  bool WriteNumber();
  bool Acknowledge();
  bool AllHaveAcknowledged();
  // Sets the record to what follows latest_.
  void Set(const Configuration& next);
  krcore::Deadline Soon() const;

  krcore::Node& node_;
  krcore::Clock& clock_;
  const int64_t lease_ns_;
  const uint64_t table_bytes_;
  std::vector<Connections*> connections_;
  std::optional<uint32_t> client_;
  Configuration used_, latest_;
  uint64_t version_ = 0;  // of the record with latest_
  std::array<PoolChain, krcore::kMaxMemoryNode + 1> chains_;
  std::vector<Replica> suspects_;
  bool looks_ = false;  // latest_ may be old, or is not used yet
  int64_t next_ns_ = INT64_MIN;
  int64_t looked_ns_ = 0;   // when the record was read last
  uint64_t written_ = 0;    // the number that was written to the home's replicas last
  int64_t written_ns_ = 0;  // when that was done
  uint64_t acknowledged_ = 0;
  uint64_t heads_since_ = 0;
  bool closed_to_new_ = false;
  uint64_t closed_ = 0;  // the number for which all pools that change are closed
  Replica brought_;      // the learner that this process brings up to date, or none
  IsValid valid_;
  IsAbandoned is_abandoned_;
  std::vector<ClientEntry> entries_;  // as AllHaveAcknowledged read them last
  std::unique_ptr<RemotePool> home_;
};

}  // namespace kvs

#endif  // KVS_MEMORY_VIEWS_H_
