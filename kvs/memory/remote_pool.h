// RemotePool: the pool of a memory node, one verb at a time, each waited for. It serves what is not a client: joins,
// surveys, and the opening of a store. (Clients use Batch, connections.h.)
//
// Thread safety: one thread at a time. Calls with a deadline block until then at most.
#ifndef KVS_MEMORY_REMOTE_POOL_H_
#define KVS_MEMORY_REMOTE_POOL_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "krcore/clock.h"
#include "krcore/node.h"
#include "krcore/queue_pool.h"
#include "krcore/status.h"
#include "krcore/types.h"
#include "krcore/virtual_queue.h"
#include "kvs/layout/configuration.h"
#include "kvs/layout/pool.h"

namespace kvs {

// Returns the pool among what the peer of `queue` exposes; null: it exposes none.
const krcore::RemoteRegion* PoolRegionOf(const krcore::VirtualQueue& queue);

// Returns the home's record, as the answer to a look-up of kHomeService has it. Passes a failed look-up on. kCorrupt:
// the answer has another size.
krcore::Result<HomeRecord> HomeRecordOf(const krcore::Result<std::vector<std::byte>>& answer);

// Reads the store's configuration. kNotFound: the fabric has none, so its pools are not mirrored. kCorrupt. Otherwise
// the codes of krcore::Node::ReadRecord. `version`: null, or the record's.
krcore::Result<Configuration> ReadConfiguration(krcore::Node& node, krcore::Deadline deadline,
                                                uint64_t* version = nullptr);

// Sets it to what `change` makes of it, and does so again if somebody else sets it at the same time. kBadState:
// `change` does not want it. kTimeout. Otherwise the codes of ReadConfiguration and krcore::Node::CompareAndSetRecord.
krcore::Status ChangeConfiguration(krcore::Node& node, krcore::Deadline deadline,
                                   const std::function<bool(Configuration&)>& change);

// Whether the fabric confirms that this incarnation of the memory node is dead.
bool IsDead(krcore::Node& node, const Replica& replica);

class RemotePool {
 public:
  // `node` must outlive it. kOutOfMemory. At most `buffer_bytes` are read at once.
  static krcore::Result<std::unique_ptr<RemotePool>> Create(krcore::Node& node, size_t buffer_bytes);

  // Connects to a memory node, also if it is connected already: nodes come and go. kUnavailable: the node is dead, or
  // has no pool. kTimeout. Otherwise the codes of VirtualQueue::Connect.
  krcore::Status Connect(krcore::NodeId memory_node, krcore::Deadline deadline);
  // Connects to this very incarnation. kUnavailable: it is dead, whoever has its node id now.
  krcore::Status Connect(const Replica& replica, krcore::Deadline deadline);
  // Connects, and reads the superblock. In addition, the codes of CheckLayout.
  krcore::Status Connect(krcore::NodeId memory_node, krcore::Deadline deadline, Superblock* super);
  krcore::Status Connect(const Replica& replica, krcore::Deadline deadline, Superblock* super);

  // The verbs need a connection. kUnavailable: the verb failed. kTimeout: what it did is unknown. After a failure, a
  // new connection is needed.
  //
  // Reads `bytes` at `offset` of the pool into words().
  krcore::Status Read(uint64_t offset, size_t bytes, krcore::Deadline deadline);
  // Puts the former word into words()[0].
  krcore::Status CompareSwap(uint64_t offset, uint64_t expected, uint64_t desired, krcore::Deadline deadline);
  krcore::Status Write(uint64_t offset, uint64_t word, krcore::Deadline deadline);
  std::span<const uint64_t> words() const { return buffer_; }

 private:
  explicit RemotePool(krcore::Node& node) : node_(node) {}
  krcore::Status ReadSuperblock(krcore::NodeId memory_node, krcore::Deadline deadline, Superblock* super);
  krcore::Status Run(krcore::WorkRequest wr, uint64_t offset, size_t bytes, krcore::Deadline deadline);

  krcore::Node& node_;
  std::vector<uint64_t> buffer_;
  std::unique_ptr<krcore::Region> memory_;
  std::unique_ptr<krcore::QueuePool> pool_;  // made when first needed
  std::unique_ptr<krcore::VirtualQueue> queue_;
  krcore::RemoteRegion region_;
};

}  // namespace kvs

#endif  // KVS_MEMORY_REMOTE_POOL_H_
