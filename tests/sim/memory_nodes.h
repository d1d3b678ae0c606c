// The memory nodes of a simulated store: one for each pool, or, if its pools are mirrored, one for each replica. It
// also tells which replicas count now, and shows what is in their memory.
//
// Thread safety: one thread.
#ifndef TESTS_SIM_MEMORY_NODES_H_
#define TESTS_SIM_MEMORY_NODES_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "krcore/node.h"
#include "krcore/rnic/sim/world.h"
#include "krcore/status.h"
#include "kvs/layout/configuration.h"
#include "kvs/layout/pool.h"
#include "tests/kvs/pool_check.h"

namespace surgekv_sim {

struct MemoryNodesOptions {
  std::string fabric;
  uint32_t pools = 1;
  uint32_t replicas = 1;   // of each pool
  size_t home_bytes = 0;   // of the first pool
  size_t other_bytes = 0;  // of the others
  uint32_t rc_peers = 0;   // as krcore::NodeOptions
  kvs::HomeOptions home;
};

class MemoryNodes {
 public:
  explicit MemoryNodes(krcore::rnic::sim::World& world) : world_(world) {}

  // Makes the store.
  krcore::Status Start(const MemoryNodesOptions& options);
  // Opens another memory node, whose region is fresh and as large as the largest pool, and publishes it.
  struct Joined {
    krcore::Node* node;
    krcore::Region* region;
  };
  krcore::Result<Joined> Join();
  // Closes all nodes. The clients must be closed.
  void Close();
  bool closed() const { return nodes_.empty(); }

  bool mirrored() const { return options_.replicas > 1; }
  // Returns the id of the memory node that has this replica of the pool at first, 0 being the head. The pool's id is
  // that of its only memory node, if it is not mirrored.
  static krcore::NodeId NodeOf(krcore::NodeId pool, uint32_t replica) { return pool + kIdsApart * replica; }
  // Returns the pool in whose chain the node is, or whose learner it is; kNoNode: none.
  krcore::NodeId PoolOf(krcore::NodeId node) const;
  // Returns any of all nodes that there ever were, the n-th.
  krcore::NodeId Nth(size_t n) const { return nodes_[n]->id(); }
  size_t size() const { return nodes_.size(); }

  // Lets all living nodes look for clients that want an RC queue.
  void PollConnections();
  // The store's configuration as it is recorded now; mirrored stores only.
  kvs::Configuration configuration() const;
  // Returns the nodes of the pool's chain, from head to tail. A learner that is about to become the tail does not count
  // before all clients know of it: it may be one again.
  std::vector<krcore::NodeId> ChainOf(krcore::NodeId pool) const;
  // Returns the ids of the pools that may have keys.
  std::vector<krcore::NodeId> PoolsInUse() const;
  // Returns the nodes that may fail, as every pool with keys must keep a replica: the living ones of the pools of whose
  // chain two live, learners, and those of pools that are not in use. `away`: they do not count as living.
  std::vector<krcore::NodeId> Dispensable(std::span<const krcore::NodeId> away) const;
  // Whether it is the only replica that lives of a pool that may have keys.
  bool IsLast(krcore::NodeId node) const;
  bool IsDead(krcore::NodeId node) const { return world_.IsDead(node); }

  // The memory of a node; also of a dead one, as it was when it died.
  std::span<std::byte> BytesOf(krcore::NodeId node) const;
  // What of that belongs to the pool.
  std::span<std::byte> BytesOf(krcore::NodeId node, krcore::NodeId pool) const;
  // The memory that READs of the pool see.
  std::span<std::byte> TailOf(krcore::NodeId pool) const { return BytesOf(ChainOf(pool).back(), pool); }
  kvs::HomeArea Home() const;
  // Returns, for the checker, the image of each pool in use that is `from_tail` places before the tail of its chain, or
  // of the head if the chain is shorter.
  std::vector<surgekv_test::PoolImage> Images(uint32_t from_tail) const;
  // The length of the longest chain.
  uint32_t LongestChain() const;

 private:
  static constexpr krcore::NodeId kIdsApart = 32;
  // Has no pool, and never dies: it hosts the metadata server.
  static constexpr krcore::NodeId kObserver = 100;
  static constexpr krcore::NodeId kFirstToJoin = 101;

  krcore::Result<std::unique_ptr<krcore::Node>> Open(krcore::NodeId id, bool first) const;
  static krcore::Result<std::unique_ptr<krcore::Region>> MakeRegion(krcore::Node& node, size_t bytes);

  krcore::rnic::sim::World& world_;
  MemoryNodesOptions options_;
  std::unique_ptr<krcore::Node> observer_;  // mirrored stores only
  krcore::NodeId joined_ = 0;               // how many have joined
  std::vector<std::unique_ptr<krcore::Node>> nodes_;
  std::vector<std::unique_ptr<krcore::Region>> regions_;  // destroyed before their nodes
};

}  // namespace surgekv_sim

#endif  // TESTS_SIM_MEMORY_NODES_H_
