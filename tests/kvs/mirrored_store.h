// A store whose pools are mirrored, made by hand: its memory nodes are all in this process.
#ifndef TESTS_KVS_MIRRORED_STORE_H_
#define TESTS_KVS_MIRRORED_STORE_H_

#include <vector>

#include "krcore/node.h"
#include "krcore/status.h"
#include "kvs/layout/configuration.h"
#include "kvs/layout/pool.h"

namespace surgekv_test {

inline constexpr krcore::NodeId kServers = 100;  // a node with the metadata server and without a pool

// A memory node that will hold a replica: it is open, and its region is fresh, is exposed, and has kPoolRegionTag.
struct MirrorNode {
  krcore::Node* node = nullptr;
  krcore::Region* region = nullptr;
};

// Formats the regions, publishes the nodes, and writes the fabric's record. chains[i] has the replicas of pool i + 1,
// from head to tail; their regions are equally long. Pool 1 is the home. The options must have a seed.
krcore::Status MakeMirroredStore(const std::vector<std::vector<MirrorNode>>& chains, const kvs::HomeOptions& options,
                                 krcore::Deadline deadline);

// Makes the region of the node, which is open, ready to be a learner of the pool, and publishes the node.
krcore::Status PrepareLearner(krcore::Node& node, krcore::Region& region, krcore::NodeId pool,
                              krcore::Deadline deadline);

}  // namespace surgekv_test

#endif  // TESTS_KVS_MIRRORED_STORE_H_
