// Steward: the thread of a memory node that looks after the store as one of its clients. At the home it does what
// kvs/housekeeper.h says. Where pools are mirrored, every memory node has one: it makes the node's memory a replica of
// a pool that lacks one (kvs/replica_keeper.h), and the home is where the head of its chain is. It ends when a stop is
// requested, or when the pool has gone on without this replica.
//
// Thread safety: create, destroy and ask from one thread.
#ifndef MEMNODE_STEWARD_H_
#define MEMNODE_STEWARD_H_

#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>

#include "kvs/client.h"
#include "kvs/replica_keeper.h"
#include "memnode/memory_server.h"
#include "memnode/options.h"

namespace memnode {

class Steward {
 public:
  // Both must outlive it. If no thread can be started, it logs what the store goes without.
  Steward(const Options& options, MemoryServer& server);
  ~Steward();
  Steward(const Steward&) = delete;
  Steward& operator=(const Steward&) = delete;

  // To be called once a stop was requested, or the replica was removed: blocks until the thread has ended. That takes a
  // few round trips, or a tenth of a second if a node does not answer; where pools are mirrored, up to a second.
  void Join();
  // Where pools are mirrored: what has become of the node's memory. From any thread.
  kvs::ReplicaKeeperStats replica() const;
  // After Join: the thread's CPU time, and how many chunks it has given back.
  int64_t cpu_ns() const { return cpu_ns_; }
  uint64_t chunks_freed() const { return chunks_freed_; }
  uint64_t expired() const { return expired_; }

 private:
  void Run();
  // Null: a stop was requested before the store could be reached.
  std::unique_ptr<kvs::Store> OpenStore();
  void LookAfter(kvs::Store& store);
  void Tell(const kvs::ReplicaKeeperStats& stats);

  const Options& options_;
  MemoryServer& server_;
  mutable std::mutex mutex_;  // guards the next, which only the thread changes
  kvs::ReplicaKeeperStats told_;
  bool told_any_ = false;  // the thread's, as are the next
  int64_t cpu_ns_ = 0;
  uint64_t chunks_freed_ = 0, expired_ = 0;
  std::thread thread_;
};

}  // namespace memnode

#endif  // MEMNODE_STEWARD_H_
