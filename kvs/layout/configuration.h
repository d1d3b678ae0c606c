// The configuration of a store with mirrored pools: which memory nodes hold each pool (docs/replication.md). It is a
// record of the fabric (krcore::Node::ReadRecord). A store whose pools are not mirrored has none.
#ifndef KVS_LAYOUT_CONFIGURATION_H_
#define KVS_LAYOUT_CONFIGURATION_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "krcore/status.h"
#include "krcore/types.h"

namespace kvs {

inline constexpr char kConfigurationRecord[] = "kvs-pools";
inline constexpr size_t kMaxReplicas = 3;

// One replica of a pool: a memory node of that incarnation. Another incarnation has other memory, and is none.
struct Replica {
  krcore::NodeId node = krcore::kNoNode;
  uint32_t incarnation = 0;
  friend bool operator==(const Replica&, const Replica&) = default;
};

// The replicas of a pool, in the order in which a CAS goes along them: from the head, chain.front(), to the tail.
struct PoolView {
  krcore::NodeId pool = krcore::kNoNode;  // the id that addresses name
  uint64_t bytes = 0;                     // of the pool: those of its smallest replica
  std::vector<Replica> chain;
  friend bool operator==(const PoolView&, const PoolView&) = default;
};

struct Configuration {
  // Counts the views: it grows by one whenever a chain changes. The first is 1.
  uint64_t number = 0;
  // Whether all clients that could still use an earlier view know of this one. Until then nobody posts to the pools
  // whose chains have changed.
  bool active = true;
  krcore::NodeId home = krcore::kNoNode;  // the pool with the directory and the clients
  std::vector<PoolView> pools;            // by id
  friend bool operator==(const Configuration&, const Configuration&) = default;

  // Returns the view of the pool; null: the store has no such pool.
  const PoolView* Find(krcore::NodeId pool) const {
    const auto found = std::ranges::find(pools, pool, &PoolView::pool);
    return found == pools.end() ? nullptr : &*found;
  }
  // Takes a replica out of its chain, for which a new view begins. False: it is in none, or is the last of its pool.
  bool Remove(const Replica& replica);
};

std::vector<std::byte> Encode(const Configuration& configuration);
// kCorrupt: it is no configuration.
krcore::Result<Configuration> DecodeConfiguration(std::span<const std::byte> value);

}  // namespace kvs

#endif  // KVS_LAYOUT_CONFIGURATION_H_
