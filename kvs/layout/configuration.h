// The configuration of a store with mirrored pools: which memory nodes hold each pool (docs/replication.md). It is a
// record of the fabric (krcore::Node::ReadRecord). A store whose pools are not mirrored has none.
#ifndef KVS_LAYOUT_CONFIGURATION_H_
#define KVS_LAYOUT_CONFIGURATION_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <utility>
#include <vector>

#include "krcore/status.h"
#include "krcore/types.h"

namespace kvs {

inline constexpr char kConfigurationRecord[] = "kvs-pools";
inline constexpr size_t kMaxReplicas = 3;
inline constexpr size_t kMaxChain = kMaxReplicas + 1;  // one comes before the one that it replaces goes

// One replica of a pool: a memory node of that incarnation. Another incarnation is none, unless it returns with the
// same memory (Configuration::Return).
struct Replica {
  krcore::NodeId node = krcore::kNoNode;
  uint32_t incarnation = 0;
  bool exists() const { return node != krcore::kNoNode; }
  friend bool operator==(const Replica&, const Replica&) = default;
};

// A living memory node, as it has told of itself, whether it has a replica or not.
struct MemoryNode {
  Replica replica;
  uint64_t bytes = 0;    // of its memory
  uint64_t domain = 0;   // its failure domain: nodes with the same number may fail together
  bool leaving = false;  // an operator empties it: it gets no replica, and the one that it has goes to another node
  friend bool operator==(const MemoryNode&, const MemoryNode&) = default;
};

// The replicas of a pool, in the order in which a CAS goes along them: from the head, chain.front(), to the tail.
struct PoolView {
  krcore::NodeId pool = krcore::kNoNode;  // the id that addresses name
  uint64_t bytes = 0;                     // of the pool: those of its smallest replica
  bool in_use = false;                    // it has had all its replicas, and clients take memory there since
  std::vector<Replica> chain;
  Replica learner;  // gets what changes, and a copy of the rest, until it can become the tail; no node: there is none
  friend bool operator==(const PoolView&, const PoolView&) = default;
};

struct Configuration {
  // It grows whenever a chain changes. The first is 1.
  uint64_t number = 0;
  // Whether all clients that could still use an earlier view know of this one. Until then nobody posts to the pools
  // whose chains have changed.
  bool active = true;
  krcore::NodeId home = krcore::kNoNode;  // the pool with the directory and the clients
  uint32_t replicas = 1;                  // how many each pool is to have
  std::vector<PoolView> pools;
  // The pool whose learner has become the tail in this configuration, which only that learner's process can make
  // active; kNoNode: none has.
  krcore::NodeId promoted = krcore::kNoNode;
  std::vector<MemoryNode> nodes;
  friend bool operator==(const Configuration&, const Configuration&) = default;

  // Returns the view of the pool; null: the store has no such pool.
  const PoolView* Find(krcore::NodeId pool) const {
    const auto found = std::ranges::find(pools, pool, &PoolView::pool);
    return found == pools.end() ? nullptr : &*found;
  }
  PoolView* Find(krcore::NodeId pool) { return const_cast<PoolView*>(std::as_const(*this).Find(pool)); }
  // Returns what the node has told; null: nothing yet.
  const MemoryNode* Find(const Replica& node) const {
    const auto found = std::ranges::find(nodes, node, &MemoryNode::replica);
    return found == nodes.end() ? nullptr : &*found;
  }
  bool IsLeaving(const Replica& node) const {
    const MemoryNode* const found = Find(node);
    return found != nullptr && found->leaving;
  }
  // Returns the pool of which the node is a replica or learner; null: none.
  const PoolView* PoolOf(const Replica& node) const;
  // Whether a node of so many bytes at least has no replica, or one of a pool that is not in use, and may get another.
  bool HasSpare(uint64_t bytes) const;
  // In how many failure domains the memory nodes are that are not leaving.
  size_t Domains() const;
  // In how many those of this pool's replicas are. 0: not all of them have told theirs.
  size_t DomainsOf(const PoolView& view) const;
  // How many replicas of the pool are to stay.
  size_t Staying(const PoolView& view) const;
  // Whether the pool, without its learner, would have more of those replicas that it is to have if this node joined it;
  // or, if it has enough, whether these would be in more failure domains.
  bool Lacks(const PoolView& view, const Replica& node) const;

  // These begin no view. False: nothing changes.
  //
  // Takes what a node tells of itself, in place of what it told before, but for `leaving`.
  bool Enter(const MemoryNode& node);
  // False: nothing is known of this memory node, or it is so already.
  bool SetLeaving(krcore::NodeId node, bool leaving);
  // Each of these begins a new view, which is pending. False: it is not possible, and nothing changes.
  //
  // A replica leaves its chain, or a learner goes. The last replica of a pool cannot leave. A promotion that is not
  // active yet is given up.
  bool Remove(const Replica& replica);
  // A replica in a chain is another incarnation of its memory node from now on, which has that very memory. A promotion
  // that is not active yet is given up; so what that has made the tail cannot return.
  bool Return(const Replica& was, const Replica& is);
  // The pool, which lacks a replica and has no learner, gets one.
  bool AddLearner(krcore::NodeId pool, const Replica& learner);
  // A learner becomes the tail of its pool.
  bool Promote(const Replica& learner);
  // Gives that up: the tail is the learner again.
  bool Demote(krcore::NodeId pool);
  // A pool with one replica comes, of the lowest id that is free, or goes, if it is not in use.
  bool AddPool(uint64_t bytes, const Replica& replica);
  bool RemovePool(krcore::NodeId pool);
  // All leave or go whom `is_dead` says to be dead, except where no replica of a chain lives: each of them may return.
  // A pool that is not in use and has no other replica goes, as nobody can join it any more. Who is forgotten among
  // `nodes` begins no view.
  bool RemoveDead(const std::function<bool(const Replica&)>& is_dead);
  // A pool with too many replicas loses some: first those of nodes that are leaving, then such that share a failure
  // domain with another, then the tail. A learner that its pool does not lack goes. From a pool that is not in use
  // those that are leaving go at once, also the last one, and with it the pool. Only where the configuration is active.
  bool RemoveExcess();

 private:
  bool Begin(Configuration next);
  Replica ExcessOf(const PoolView& view) const;
};

std::vector<std::byte> Encode(const Configuration& configuration);
// kCorrupt: it is no configuration, or that of another version of these programs.
krcore::Result<Configuration> DecodeConfiguration(std::span<const std::byte> value);

}  // namespace kvs

#endif  // KVS_LAYOUT_CONFIGURATION_H_
