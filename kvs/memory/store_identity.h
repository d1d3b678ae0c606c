// StoreIdentity: which store a Store was opened for. When memory nodes are started again, the fabric may have another
// one (docs/protocol.md, "Joining a store").
//
// Thread safety: any thread, once it is set.
#ifndef KVS_MEMORY_STORE_IDENTITY_H_
#define KVS_MEMORY_STORE_IDENTITY_H_

#include <atomic>

#include "krcore/clock.h"
#include "krcore/node.h"
#include "krcore/status.h"
#include "krcore/types.h"
#include "kvs/layout/subtable.h"

namespace kvs {

class StoreIdentity {
 public:
  // `seed`: what the home's superblock says.
  void Set(krcore::NodeId home, const HashSeed& seed) { home_ = home, seed_ = seed; }
  // `seed`: what it says now. kBadState: it is that of another store, so this one is gone for ever.
  krcore::Status Confirm(const HashSeed& seed);
  // Confirms what the home says now, which it reads through queues of its own. Blocks until the deadline at most. In
  // addition, the codes of RemotePool::Connect. (Control plane "lite" may block until its connection breaks.)
  krcore::Status Check(krcore::Node& node, krcore::Deadline deadline);
  // Whether somebody has found another store.
  bool gone() const { return gone_.load(std::memory_order_relaxed); }
  // What all operations return from then on.
  static krcore::Status Gone();

 private:
  krcore::NodeId home_ = krcore::kNoNode;
  HashSeed seed_{};
  std::atomic<bool> gone_ = false;  // it pairs with nothing: whoever misses it finds out by itself
};

}  // namespace kvs

#endif  // KVS_MEMORY_STORE_IDENTITY_H_
