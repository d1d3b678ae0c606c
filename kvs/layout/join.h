// How a memory node makes its pool part of the fabric's store: the first one to claim the service kHomeService
// becomes the store's home and holds its directory; the others enter themselves in the home's member list by CAS.
#ifndef KVS_LAYOUT_JOIN_H_
#define KVS_LAYOUT_JOIN_H_

#include "krcore/clock.h"
#include "krcore/node.h"
#include "krcore/status.h"
#include "kvs/layout/pool.h"

namespace kvs {

struct JoinResult {
  bool is_home = false;
  krcore::NodeId home = krcore::kNoNode;
};

// `pool` has remote READ, WRITE and atomic rights and kPoolRegionTag; its contents are fresh (zeroes, then formatted
// here) or adopted (checked here). Publishes the node at the metadata server, then joins. A restarted home claims its
// place again; while a home is dead nobody else takes it, as long as a metadata server has its record. Blocks up to the
// deadline.
// kCorrupt: adopted contents are not such a pool. kUnavailable: the home is dead (start it again with its node id).
// kBadState: the contents are fresh, and the store has keys at this very node: what its slots name is gone, and
// something else would be read in its place.
krcore::Result<JoinResult> JoinStore(krcore::Node& node, krcore::Region& pool, const HomeOptions& home_options,
                                     krcore::Deadline deadline);

}  // namespace kvs

#endif  // KVS_LAYOUT_JOIN_H_
