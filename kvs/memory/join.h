// How a memory node makes its pool part of the fabric's store. The first node to claim the service kHomeService becomes
// the store's home and holds its directory. The others enter themselves in the home's member list by CAS.
#ifndef KVS_MEMORY_JOIN_H_
#define KVS_MEMORY_JOIN_H_

#include <cstddef>
#include <functional>

#include "krcore/clock.h"
#include "krcore/node.h"
#include "krcore/status.h"
#include "kvs/layout/pool.h"

namespace kvs {

// What a region must be to hold a pool: peers may READ, WRITE and change it by atomics, and it has kPoolRegionTag.
inline krcore::RegionOptions PoolRegion(size_t bytes) {
  return {.length = bytes,
          .remote_rights = krcore::kRemoteRead | krcore::kRemoteWrite | krcore::kRemoteAtomic,
          .tag = kPoolRegionTag};
}

struct JoinResult {
  bool is_home = false;
  krcore::NodeId home = krcore::kNoNode;
  // The store's pools are. Then a node that has neither begun the store nor returned is no member yet
  // (kvs/replica_keeper.h).
  bool mirrored = false;
  bool returned = false;  // it is a replica again, with the adopted memory
};

// Called with the reason why a join waits, once it has waited for about a second, and again when the reason changes.
using TellWaiting = std::function<void(const krcore::Status&)>;

// `pool` is a PoolRegion; its contents are fresh (zeroes, then formatted here) or adopted (checked here). Publishes the
// node at the metadata server, then joins. If the store's pools are mirrored, it publishes the node, and makes it a
// replica again if the adopted memory is still in use. If it is not, nobody knows of that memory, which must not be
// used again; a replica of which pool the node becomes is decided later. A restarted home claims its place again.
// Nobody takes the place of a home whose record a metadata server has, or that lives as far as the fabric knows
// (Node::ClaimService), or, where memory outlives its process (sw), whose pool is on this host under the name
// kPoolRegionName. A fresh pool that did not join is left unformatted. Blocks up to the deadline. kCorrupt: adopted
// contents are not such a pool. kUnsupported: they, or the store's home, have another layout. kUnavailable: the home is
// dead (start it again with its node id). kInvalidArgument: the options differ from those of the store in a way that
// matters. kBadState: the contents are fresh, but the store may have keys at this very node: what its slots name is
// gone, and something else would be read in its place.
krcore::Result<JoinResult> JoinStore(krcore::Node& node, krcore::Region& pool, const HomeOptions& home_options,
                                     krcore::Deadline deadline, const TellWaiting& tell_waiting = {});

}  // namespace kvs

#endif  // KVS_MEMORY_JOIN_H_
