// ReplicaKeeper: makes the memory of one memory node a replica of a mirrored pool, and keeps an eye on whether it still
// is one (docs/replication.md, "A replica joins"). If no pool lacks a replica, it makes a new pool, which comes into
// use when others have joined it. It runs in the process of the memory node, which is a client while it brings its
// memory up to date.
//
//   auto keeper = kvs::ReplicaKeeper::Create(*store, memory_node, region).value();
//   while (serving) Sleep(keeper->Step());
//
// Thread safety: one thread at a time.
#ifndef KVS_REPLICA_KEEPER_H_
#define KVS_REPLICA_KEEPER_H_

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "kvs/client.h"

namespace krcore {
class Node;
class Region;
}  // namespace krcore

namespace kvs {

enum class ReplicaState : uint8_t {
  kSpare,    // of no pool yet
  kLearner,  // it is being brought up to date
  kMember,   // it has all that its pool has; of a new pool, which others may still have to join
  kRemoved,  // the others go on without it: nobody uses its memory any more, whatever it holds
  kDrained,  // the same, or it was a spare; it joins no pool until it is taken back into use (Client::UndrainNode)
};
std::string_view ReplicaStateName(ReplicaState state);

struct ReplicaKeeperStats {
  ReplicaState state = ReplicaState::kSpare;
  uint32_t pool = 0;          // of a learner or member
  bool is_client = false;     // others wait for it: Step is to be called as it says
  bool is_home = false;       // that pool is the home, and this replica is its head
  uint32_t replicas = 0;      // of that pool, those that are to stay; as it was when this was last looked at
  uint32_t wanted = 0;        // how many each pool is to have
  uint64_t passes = 0;        // over all that the pool has, begun; more than one if clients are lost meanwhile
  uint64_t words_pushed = 0;  // that the learner lacked
  uint64_t tables = 0;        // looked through in this pass
  uint64_t all_tables = 0;    // that this pass looks through, about; 0: not known yet
};

struct ReplicaKeeperOptions {
  std::string domain;  // the node's failure domain, any name: replicas of a pool are brought into different ones
  uint64_t copy_bytes_per_s = 0;  // how much to copy on average, at most, so that others can use the store; 0: any
};

class ReplicaKeeper {
 public:
  // `memory_node` exposes `region`, which is fresh (zeroes), or is a replica already; it is published. All three must
  // outlive the keeper. kBadState: the store's pools are not mirrored.
  static Result<std::unique_ptr<ReplicaKeeper>> Create(Store& store, krcore::Node& memory_node, krcore::Region& region,
                                                       const ReplicaKeeperOptions& options = {});
  // Blocks for the few round trips in which it gives up what it is doing.
  virtual ~ReplicaKeeper() = default;

  // Does what is due, and returns in how many nanoseconds there is more. It blocks for the time of some round trips;
  // when the memory becomes a learner, also for as long as filling it takes, and if a view stays pending, until it is
  // active.
  virtual int64_t Step() = 0;
  virtual const ReplicaKeeperStats& stats() const = 0;
};

}  // namespace kvs

#endif  // KVS_REPLICA_KEEPER_H_
