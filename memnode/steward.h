// Steward: a thread of a memory node whose store has mirrored pools. It makes the node's memory a replica of a pool
// that lacks one (kvs/replica_keeper.h), and at the home's head it looks after the store (kvs/housekeeper.h). It ends
// when a stop is requested.
//
// Thread safety: create, destroy and ask from one thread.
#ifndef MEMNODE_STEWARD_H_
#define MEMNODE_STEWARD_H_

#include <cstdint>
#include <mutex>
#include <thread>

#include "kvs/replica_keeper.h"
#include "memnode/memory_server.h"

namespace memnode {

class Steward {
 public:
  // `server` must outlive it. If no thread can be started, it logs an error, and the memory stays unused.
  explicit Steward(MemoryServer& server);
  ~Steward();
  Steward(const Steward&) = delete;
  Steward& operator=(const Steward&) = delete;

  // To be called once a stop was requested: blocks until the thread has ended, for some round trips.
  void Join();
  // From any thread.
  kvs::ReplicaKeeperStats stats() const;
  // After Join: the thread's CPU time, and how many chunks it has given back.
  int64_t cpu_ns() const { return cpu_ns_; }
  uint64_t chunks_freed() const { return chunks_freed_; }

 private:
  void Run();
  void Serve();
  void Tell(const kvs::ReplicaKeeperStats& stats);

  MemoryServer& server_;
  mutable std::mutex mutex_;  // guards the next, which only the thread changes
  kvs::ReplicaKeeperStats told_;
  bool told_any_ = false;  // the thread's, as are the next
  int64_t cpu_ns_ = 0;
  uint64_t chunks_freed_ = 0;
  std::thread thread_;
};

}  // namespace memnode

#endif  // MEMNODE_STEWARD_H_
