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
  // Closes all nodes. The clients must be closed.
  void Close();
  bool closed() const { return nodes_.empty(); }

  bool mirrored() const { return options_.replicas > 1; }
  uint32_t pools() const { return options_.pools; }
  // Returns the id of the memory node that has this replica of the pool, 0 being the first head. The pool's id is that
  // of its only memory node, if it is not mirrored.
  static krcore::NodeId NodeOf(krcore::NodeId pool, uint32_t replica) { return pool + kIdsApart * replica; }
  static krcore::NodeId PoolOf(krcore::NodeId node) { return node % kIdsApart; }

  // Lets all living nodes look for clients that want an RC queue.
  void PollConnections();
  // The store's configuration as it is recorded now; mirrored stores only.
  kvs::Configuration configuration() const;
  // Returns the nodes of the pool's chain, from head to tail.
  std::vector<krcore::NodeId> ChainOf(krcore::NodeId pool) const;
  // Returns the nodes that may die, as every pool must keep a replica: the living ones of the pools of whose chain two
  // live.
  std::vector<krcore::NodeId> Dispensable() const;
  bool IsDead(krcore::NodeId node) const { return world_.IsDead(node); }

  // The memory of a node; also of a dead one, as it was when it died.
  std::span<std::byte> BytesOf(krcore::NodeId node) const;
  // The memory that READs of the pool see.
  std::span<std::byte> TailOf(krcore::NodeId pool) const { return BytesOf(ChainOf(pool).back()); }
  kvs::HomeArea Home() const;
  // Returns, for the checker, the image of each pool that is `from_tail` places before the tail of its chain, or of the
  // head if the chain is shorter.
  std::vector<surgekv_test::PoolImage> Images(uint32_t from_tail) const;
  // The length of the longest chain.
  uint32_t LongestChain() const;

 private:
  static constexpr krcore::NodeId kIdsApart = 32;
  // Has no pool, and never dies: it hosts the metadata server.
  static constexpr krcore::NodeId kObserver = 100;

  size_t IndexOf(krcore::NodeId node) const { return size_t{PoolOf(node) - 1} * options_.replicas + node / kIdsApart; }
  krcore::Result<std::unique_ptr<krcore::Node>> Open(krcore::NodeId id, bool first) const;

  krcore::rnic::sim::World& world_;
  MemoryNodesOptions options_;
  std::unique_ptr<krcore::Node> observer_;  // mirrored stores only
  std::vector<std::unique_ptr<krcore::Node>> nodes_;
  std::vector<std::unique_ptr<krcore::Region>> regions_;  // destroyed before their nodes
};

}  // namespace surgekv_sim

#endif  // TESTS_SIM_MEMORY_NODES_H_
