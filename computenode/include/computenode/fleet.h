// Fleet: the workers of a compute service, which are added and retired while they serve. ElasticWorkers has them as
// threads of this process, WorkerProcesses as processes.
//
// What a new worker costs is measured per worker, in parts (WorkerTimes).
#ifndef COMPUTENODE_FLEET_H_
#define COMPUTENODE_FLEET_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "krcore/clock.h"
#include "krcore/status.h"
#include "kvs/client.h"

namespace computenode {

using krcore::Status;

// When the parts of a worker's life ended, in Clock nanoseconds. 0: not yet.
struct WorkerTimes {
  int64_t wanted_ns = 0;       // it was asked for
  int64_t thread_ns = 0;       // its thread runs; of a process, main's
  int64_t store_ns = 0;        // the store is open: device, fabric, home. Of a thread: was already
  int64_t client_ns = 0;       // its client is made: connected to every memory node
  int64_t lanes_ns = 0;        // every lane has posted its first operation
  int64_t first_begin_ns = 0;  // the first operation began: there may have been none to do
  int64_t first_reply_ns = 0;  // ... and has ended
  int64_t retired_ns = 0;      // it was asked to end
  int64_t ended_ns = 0;        // it has drained, and its client is closed; or it is dead
};

// What workers did.
struct LoadCounts {
  uint64_t operations = 0, failed = 0, verified = 0, mismatches = 0;
};

struct WorkerRecord : WorkerTimes {
  kvs::ClientTimes client_times;  // valid once client_ns is
  uint32_t worker = 0;            // a number never used again
  int32_t pid = 0;                // of a process of its own, else 0
  bool died = false;              // it did not end by itself
  Status status;                  // why it could not start or how it died, or Ok
  LoadCounts counts;              // of a process: so far
  // So far, as the worker told it last, which it does every some hundred rounds and at its end.
  kvs::ClientStats client_stats;
  uint64_t cpu_ns = 0;                  // CPU time of its thread
  uint64_t connection_bytes = 0;        // memory for connections; 0 once its client is closed
  krcore::SoftwareDcStats software_dc;  // of its store's node: of threads the same for all; all 0 where there is none
};

class Fleet {
 public:
  // When places in readiness are filled again: so long after workers were wanted, and one so often.
  static constexpr int64_t kRefillAfterNs = 20'000'000, kRefillEveryNs = 10'000'000;

  virtual ~Fleet() = default;

  // Starts `count` more; returns without waiting for them to serve. kUnavailable: the system has no more threads or
  // processes; those started stay. A worker whose client cannot be made ends at once: see Records() and FirstError().
  virtual Status AddWorkers(uint32_t count) = 0;
  // Asks the `count` youngest (all, if fewer) to end, and returns at once. Returns how many were asked.
  virtual uint32_t RetireWorkers(uint32_t count) = 0;
  // Waits until every worker has ended, by itself, retired, or dead. False: `deadline` passed before.
  virtual bool WaitForAll(krcore::Deadline deadline = krcore::Deadline::Never()) = 0;
  virtual uint32_t active() const = 0;   // neither asked to end nor ended
  virtual uint32_t running() const = 0;  // not ended
  virtual uint32_t standby() const = 0;  // in readiness, or on the way there
  // Learns who has ended since, and lets others take the places in readiness of those that were wanted, once these have
  // had time to start, and one at a time, so that it takes little from those that serve. Does not wait; to be called
  // every few milliseconds.
  virtual void Look() = 0;
  // Of all workers that ever were, oldest first.
  virtual std::vector<WorkerRecord> Records() const = 0;

  // Adds or retires until `count` are active.
  Status SetWorkers(uint32_t count);
  // Of the first worker that could not start, or died. Ok: none.
  Status FirstError() const;
  // Sum over all workers that ever were, so far.
  kvs::ClientStats TotalClientStats() const;
};

// Adds the counts of `more` to `sum`.
void AddStats(const kvs::ClientStats& more, kvs::ClientStats* sum);
// Of workers that are processes, so that each has a node of its own; nothing if none has DC in software.
std::optional<krcore::SoftwareDcStats> TotalSoftwareDc(const std::vector<WorkerRecord>& records);

}  // namespace computenode

#endif  // COMPUTENODE_FLEET_H_
