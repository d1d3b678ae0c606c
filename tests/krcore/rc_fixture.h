// What the tests of RC queues share.
#ifndef TESTS_KRCORE_RC_FIXTURE_H_
#define TESTS_KRCORE_RC_FIXTURE_H_

#include "krcore/pool/queue_pool_impl.h"
#include "tests/krcore/fixture.h"

namespace krcore::test {

inline pool::QueuePoolImpl& ImplOf(QueuePool& pool) { return static_cast<pool::QueuePoolImpl&>(pool); }
inline pool::RcQueues& RcOf(QueuePool& pool) { return *ImplOf(pool).rc(); }

// The node's metadata as the pool's node has cached it.
inline std::shared_ptr<const dct::Peer> CachedPeer(QueuePool& pool, NodeId node) {
  return ImplOf(pool).peers().Cached(node);
}
inline bool IsOnRc(QueuePool& pool, NodeId node) {
  const auto peer = CachedPeer(pool, node);
  return peer != nullptr && RcOf(pool).Find(peer->target) != nullptr;
}

}  // namespace krcore::test

#endif  // TESTS_KRCORE_RC_FIXTURE_H_
