// A pool's connection to a peer in the same process, as if the peer had proved hot.
#ifndef BENCH_COMMON_PROMOTE_H_
#define BENCH_COMMON_PROMOTE_H_

#include "krcore/node.h"
#include "krcore/queue/queue_pool_impl.h"

namespace krcore {

// `peer` was opened with rc_peers, and a queue of the pool is connected to it. False: it took no RC connection.
inline bool MoveToRc(Node& peer, QueuePool& pool) {
  auto& impl = static_cast<queue::QueuePoolImpl&>(pool);
  if (!impl.rc()->Connect(impl.peers().Cached(peer.id()))) return false;
  for (int polls = 0; polls < 1'000'000 && impl.rc()->busy(); ++polls) {
    pool.Poll();
    peer.PollConnections();
  }
  return impl.rc()->in_use() == 1;
}

}  // namespace krcore

#endif  // BENCH_COMMON_PROMOTE_H_
