// Housekeeper: a thread of the home that looks after the store as one of its clients (kvs/housekeeper.h). It ends when
// a stop is requested.
//
// Thread safety: create, destroy and ask from one thread.
#ifndef MEMNODE_HOUSEKEEPER_H_
#define MEMNODE_HOUSEKEEPER_H_

#include <cstdint>
#include <thread>

#include "memnode/options.h"

namespace memnode {

class Housekeeper {
 public:
  // `options` must outlive it. If no thread can be started, it logs a warning, and the store goes without.
  explicit Housekeeper(const Options& options);
  ~Housekeeper();
  Housekeeper(const Housekeeper&) = delete;
  Housekeeper& operator=(const Housekeeper&) = delete;

  // To be called once a stop was requested: blocks until the thread has ended. That takes a few round trips, or a tenth
  // of a second if a node does not answer.
  void Join();
  // After Join: the thread's CPU time, and how many chunks it has given back.
  int64_t cpu_ns() const { return cpu_ns_; }
  uint64_t chunks_freed() const { return chunks_freed_; }

 private:
  void Run();
  void LookAfterStore();

  const Options& options_;
  int64_t cpu_ns_ = 0;  // the thread's, as is the next
  uint64_t chunks_freed_ = 0;
  std::thread thread_;
};

}  // namespace memnode

#endif  // MEMNODE_HOUSEKEEPER_H_
