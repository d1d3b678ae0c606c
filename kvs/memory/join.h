// How a memory node makes its pool part of the fabric's store. The first node to claim the service kHomeService becomes
// the store's home and holds its directory. The others enter themselves in the home's member list by CAS.
#ifndef KVS_MEMORY_JOIN_H_
#define KVS_MEMORY_JOIN_H_

#include <functional>

#include "krcore/clock.h"
#include "krcore/node.h"
#include "krcore/status.h"
#include "kvs/layout/pool.h"

namespace kvs {

struct JoinResult {
  bool is_home = false;
  krcore::NodeId home = krcore::kNoNode;
  bool mirrored =
      false;  // the store's pools are; then a node that is not the home is no member yet (kvs/replica_keeper.h)
};

// Called with the reason why a join waits, once it has waited for about a second, and again when the reason changes.
using TellWaiting = std::function<void(const krcore::Status&)>;

// `pool` has remote READ, WRITE and atomic rights and kPoolRegionTag; its contents are fresh (zeroes, then formatted
// here) or adopted (checked here). Publishes the node at the metadata server, then joins. If the store's pools are
// mirrored, it only publishes the node: a replica of which pool it becomes is decided later. A restarted home claims
// its place again. Nobody takes the place of a home whose record a metadata server has, or that lives as far as the
// fabric knows (Node::ClaimService), or, where memory outlives its process (sw), whose pool is on this host under the
// name kPoolRegionName. A fresh pool that did not join is left unformatted. Blocks up to the deadline. kCorrupt:
// adopted contents are not such a pool. kUnsupported: they, or the store's home, have another layout. kUnavailable: the
// home is dead (start it again with its node id). kInvalidArgument: the options differ from those of the store in a way
// that matters. kBadState: the contents are fresh, but the store may have keys at this very node: what its slots name
// is gone, and something else would be read in its place.
krcore::Result<JoinResult> JoinStore(krcore::Node& node, krcore::Region& pool, const HomeOptions& home_options,
                                     krcore::Deadline deadline, const TellWaiting& tell_waiting = {});

}  // namespace kvs

#endif  // KVS_MEMORY_JOIN_H_
