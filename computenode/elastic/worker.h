// What a worker runs: a Job makes a WorkerJob per worker, whose lanes are coroutines over that worker's kvs::Client, so
// that many operations share a round trip. Serve is the life of a worker on the calling thread; fleets call it.
//
// Thread safety: a WorkerContext, a WorkerJob and its lanes belong to their worker's thread.
#ifndef COMPUTENODE_ELASTIC_WORKER_H_
#define COMPUTENODE_ELASTIC_WORKER_H_

#include <array>
#include <atomic>
#include <coroutine>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <vector>

#include "krcore/clock.h"
#include "krcore/status.h"
#include "kvs/client.h"
#include "kvs/task.h"

namespace computenode {

using krcore::Status;

// What a fleet tells a standby worker. 0: nothing yet.
inline constexpr uint32_t kWanted = 1, kDismissed = 2;

// When the parts of a worker's life ended, in Clock nanoseconds. 0: not yet.
struct WorkerTimes {
  int64_t wanted_ns = 0;       // it was asked for
  int64_t thread_ns = 0;       // its thread runs; of a process: main runs
  int64_t store_ns = 0;        // the store is open: device, fabric, home. Of a thread: it was open already
  int64_t client_ns = 0;       // its client is made: connected to every memory node
  int64_t lanes_ns = 0;        // every lane has posted its first operation
  int64_t first_begin_ns = 0;  // the first operation began: there may have been nothing to do before
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
  // So far, as the worker shared it last. It does so every few hundred rounds and at its end.
  kvs::ClientStats client_stats;
  uint64_t cpu_ns = 0;                  // CPU time of its thread
  uint64_t connection_bytes = 0;        // memory for connections; 0 once its client is closed
  krcore::SoftwareDcStats software_dc;  // of its store's node; the same for all threads; all 0 where there is none
};

class Job;
struct ClientTrace;

class WorkerContext {
 public:
  // `clock`: null means the host's. `retiring` is set once, by any thread or process.
  WorkerContext(uint32_t worker, uint32_t lanes, krcore::Clock* clock, const std::atomic<bool>& retiring)
      : clock_(clock != nullptr ? clock : krcore::RealClock()), worker_(worker), lanes_(lanes), retiring_(retiring) {}

  kvs::Client& client() const { return *client_; }
  krcore::Clock& clock() const { return *clock_; }
  uint32_t worker() const { return worker_; }
  uint32_t lanes() const { return lanes_; }
  // Returns whether the lanes should end after their current operation.
  bool retiring() const { return retiring_.load(std::memory_order_relaxed); }  // a hint, orders nothing
  // Call it before the first operation, if that had to be waited for.
  void NoteBegin() {
    if (first_begin_ns_ == 0) [[unlikely]]
      first_begin_ns_ = round_ <= 1 ? ready_ns_ : clock_->NowNs();  // one in round 1 was not waited for
  }
  // Call it after an operation has ended; cheap from the second time on.
  void NoteReply() {
    if (first_reply_ns_ == 0) [[unlikely]]
      first_reply_ns_ = clock_->NowNs();
  }
  // Counts polls. A lane whose operation ended without a poll in between should co_await Yield(); otherwise it starves
  // the other lanes.
  uint64_t round() const { return round_; }
  struct YieldAwaiter {
    WorkerContext& context;
    bool await_ready() const noexcept { return false; }
    void await_suspend(std::coroutine_handle<> lane) { context.yielded_.push_back(lane); }
    void await_resume() const noexcept {}
  };
  // The lane goes on in the next round.
  YieldAwaiter Yield() { return {*this}; }

 private:
  friend Status Serve(WorkerContext&, kvs::Store&, Job&, const std::function<void(int64_t WorkerTimes::*, int64_t)>&,
                      ClientTrace*);
  kvs::Client* client_ = nullptr;
  krcore::Clock* const clock_;
  const uint32_t worker_;
  const uint32_t lanes_;
  int64_t ready_ns_ = 0;  // the lanes have been started
  int64_t first_begin_ns_ = 0;
  int64_t first_reply_ns_ = 0;
  uint64_t round_ = 0;
  std::vector<std::coroutine_handle<>> yielded_;
  const std::atomic<bool>& retiring_;
};

// One worker's share of a job: its state and its lanes.
class WorkerJob {
 public:
  static constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

  virtual ~WorkerJob() = default;
  // Runs until it is out of work or context.retiring(). `lane`: 0 .. context.lanes() - 1.
  virtual kvs::Task<void> Lane(WorkerContext& context, uint32_t lane) = 0;
  // Called before every poll. May resume, by RunQueue, lanes that wait for something other than the store; must do so
  // when context.retiring(). Returns the time of the clock at which it wants to be called again at the latest. While no
  // lane waits for the store, the worker sleeps until then, but some milliseconds at most. Such a sleep may end some
  // tens of microseconds late. If that time has passed, it is called again in every round.
  virtual int64_t OnRound(WorkerContext& context) = 0;
  // Sleeps as OnRound describes. It may end sooner, for a lane that waits for something other than the store.
  virtual void Sleep(krcore::Clock& clock, int64_t until_ns);
};

class Job {
 public:
  virtual ~Job() = default;
  // Called on the new worker's thread; the WorkerJob dies there too, after its lanes. Null: the process
  // has no descriptor left for it, and the worker ends.
  virtual std::unique_ptr<WorkerJob> StartWorker(WorkerContext& context) = 0;
};

// What a job counts while it runs, for others to read; the counts order nothing.
struct LiveCounts {
  std::atomic<uint64_t> operations{0}, failed{0}, verified{0}, mismatches{0};
  LoadCounts Load() const {
    constexpr auto kOrder = std::memory_order_relaxed;
    return {operations.load(kOrder), failed.load(kOrder), verified.load(kOrder), mismatches.load(kOrder)};
  }
};

// Returns the options for a worker with this many lanes, which may have as many operations in flight.
inline kvs::ClientOptions WorkerClient(uint32_t lanes) { return {.max_in_flight = lanes}; }

// A part of a worker's life has ended.
using NoteTime = std::function<void(int64_t WorkerTimes::*part, int64_t at_ns)>;

// What a worker has done so far, all of it as counts.
struct WorkerProgress {
  kvs::ClientStats stats;
  uint64_t cpu_ns = 0;  // CPU time of its thread
  uint64_t connection_bytes = 0;
  krcore::SoftwareDcStats software_dc;  // of its store's node
};

// What others may read of a worker's client. `times` is written before client_ns is noted.
struct ClientTrace {
  kvs::ClientTimes times;

  // For the worker, now and then: no count that Load returns ever goes down, and each is one that was shared.
  void Share(const WorkerProgress& now);
  // For any thread or process.
  WorkerProgress Load() const;

 private:
  static constexpr size_t kWords = sizeof(WorkerProgress) / sizeof(uint64_t);
  std::array<std::atomic<uint64_t>, kWords> words_{};
};

// Copies a worker's progress into its record.
void SetProgress(const WorkerProgress& progress, WorkerRecord* record);

// Adds the counts of `more` to `sum`.
void AddStats(const kvs::ClientStats& more, kvs::ClientStats* sum);
// Returns the sum over workers that are processes, each with a node of its own; nothing if none has DC in software.
std::optional<krcore::SoftwareDcStats> TotalSoftwareDc(const std::vector<WorkerRecord>& records);

// What a worker does in advance, on its own thread, until `call` is not 0. It touches some MiB of memory that it will
// allocate, and prepares a client in `store` (kvs::Store::PrepareClient). `rehearse`: before that, another client
// connects, registers, reads some keys and ends, so that code, metadata and memory nodes' memory have been used. Takes
// some milliseconds, longer if memory nodes do not answer. It ignores failures; Serve notices them.
void GetReady(kvs::Store& store, uint32_t lanes, bool rehearse, const std::atomic<uint32_t>& call);

// Makes a client, runs the job's lanes on it until they have ended, and closes it. Notes client_ns, lanes_ns,
// first_begin_ns and first_reply_ns. Fails if the client cannot be made.
Status Serve(WorkerContext& context, kvs::Store& store, Job& job, const NoteTime& note, ClientTrace* trace);

}  // namespace computenode

#endif  // COMPUTENODE_ELASTIC_WORKER_H_
