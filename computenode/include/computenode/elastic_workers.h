// ElasticWorkers: worker threads over one store, added and retired while they serve.
//
// Each worker is a thread with a kvs::Client of its own. It runs `lanes` coroutines of a Job on it, so that many
// operations share a round trip, and polls until all of them have ended. A retired worker's lanes see
// WorkerContext::retiring(), finish the operation they are in, and return: no operation is lost.
//
// What a new worker costs is measured per worker, in parts (WorkerRecord).
//
// Thread safety: ElasticWorkers may be used from any thread. A WorkerContext, a WorkerJob and its lanes belong to
// their worker's thread.
#ifndef COMPUTENODE_ELASTIC_WORKERS_H_
#define COMPUTENODE_ELASTIC_WORKERS_H_

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <limits>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "krcore/clock.h"
#include "krcore/status.h"
#include "kvs/client.h"
#include "kvs/task.h"

namespace computenode {

using krcore::Status;

// When the parts of a worker's life ended, in Clock nanoseconds. 0: not yet.
struct WorkerRecord {
  uint32_t worker = 0;            // a number never used again
  int64_t wanted_ns = 0;          // AddWorkers was called
  int64_t thread_ns = 0;          // the thread runs
  int64_t client_ns = 0;          // its client is made: connected to every memory node
  int64_t lanes_ns = 0;           // every lane has posted its first operation
  int64_t first_reply_ns = 0;     // the first operation has ended
  int64_t retired_ns = 0;         // it was asked to end
  int64_t ended_ns = 0;           // it has drained, and its client is closed
  Status status;                  // why it could not start, or Ok
  kvs::ClientStats client_stats;  // valid once ended
};

class WorkerContext {
 public:
  kvs::Client& client() const { return *client_; }
  krcore::Clock& clock() const { return *clock_; }
  uint32_t worker() const { return worker_; }
  uint32_t lanes() const { return lanes_; }
  // The lanes should end after their current operation.
  bool retiring() const { return retiring_.load(std::memory_order_relaxed); }
  // To be called after an operation has ended; cheap from the second time on.
  void NoteReply() {
    if (first_reply_ns_ == 0) [[unlikely]]
      first_reply_ns_ = clock_->NowNs();
  }
  // Counts polls. A lane whose operation ended without a poll in between should co_await Yield(), or it starves the
  // others.
  uint64_t round() const { return round_; }
  struct YieldAwaiter {
    WorkerContext& context;
    bool await_ready() const noexcept { return false; }
    void await_suspend(std::coroutine_handle<> lane) { context.yielded_.push_back(lane); }
    void await_resume() const noexcept {}
  };
  // Goes on in the next round.
  YieldAwaiter Yield() { return {*this}; }

 private:
  friend class ElasticWorkers;
  kvs::Client* client_ = nullptr;
  krcore::Clock* clock_ = nullptr;
  uint32_t worker_ = 0;
  uint32_t lanes_ = 0;
  int64_t first_reply_ns_ = 0;
  uint64_t round_ = 0;
  std::vector<std::coroutine_handle<>> yielded_;
  std::atomic<bool> retiring_{false};  // set once by any thread; a hint, orders nothing
};

// One worker's share of a job: its state and its lanes.
class WorkerJob {
 public:
  static constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

  virtual ~WorkerJob() = default;
  // Runs until it is out of work or context.retiring(). `lane`: 0 .. context.lanes() - 1.
  virtual kvs::Task<void> Lane(WorkerContext& context, uint32_t lane) = 0;
  // Called before every poll. May resume lanes that wait for something else than the store, by RunQueue; must do so
  // when context.retiring(). Returns when at the latest it wants to be called again (a time of the clock): until
  // then an idle worker may sleep, for at most about 100 us.
  virtual int64_t OnRound(WorkerContext& context) = 0;
};

class Job {
 public:
  virtual ~Job() = default;
  // Called on the new worker's thread; the WorkerJob dies there too, after its lanes.
  virtual std::unique_ptr<WorkerJob> StartWorker(WorkerContext& context) = 0;
};

struct ElasticWorkersOptions {
  uint32_t lanes_per_worker = 16;
  krcore::Clock* clock = nullptr;  // null: the host's
};

class ElasticWorkers {
 public:
  // `store` and `job` must outlive it.
  ElasticWorkers(kvs::Store& store, Job& job, const ElasticWorkersOptions& options);
  // Retires all workers and waits for them.
  ~ElasticWorkers();
  ElasticWorkers(const ElasticWorkers&) = delete;
  ElasticWorkers& operator=(const ElasticWorkers&) = delete;

  // Starts `count` more; returns when their threads exist. kUnavailable: the system has no more threads; those
  // started stay. A worker whose client cannot be made ends at once: see Records() and FirstError().
  Status AddWorkers(uint32_t count);
  // Asks the `count` youngest (all, if fewer) to end, and returns at once. Returns how many were asked.
  uint32_t RetireWorkers(uint32_t count);
  // Adds or retires until `count` are active.
  Status SetWorkers(uint32_t count);
  // Waits until every worker has ended, by itself or retired. False: `deadline` passed before.
  bool WaitForAll(krcore::Deadline deadline = krcore::Deadline::Never());
  // Waits until every worker was able, or not, to make its client. False: `deadline` passed before.
  bool WaitForClients(krcore::Deadline deadline);

  uint32_t active() const;   // neither asked to end nor ended
  uint32_t running() const;  // not ended
  // Of all workers that ever were, oldest first.
  std::vector<WorkerRecord> Records() const;
  // Of the first worker that could not start. Ok: none.
  Status FirstError() const;
  // Sum over the workers that have ended.
  kvs::ClientStats EndedClientStats() const;

 private:
  struct Worker {
    WorkerContext context;
    WorkerRecord record;  // under mutex_
    bool joined = false;
    std::thread thread;
  };
  void Run(Worker* worker);
  void Serve(Worker* worker, kvs::Client& client);
  void JoinEnded(std::unique_lock<std::mutex>& lock);
  bool WaitUntil(krcore::Deadline deadline, bool (*done)(const WorkerRecord&));

  kvs::Store& store_;
  Job& job_;
  const uint32_t lanes_per_worker_;
  krcore::Clock* const clock_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::list<Worker> workers_;  // stable addresses; ended ones stay for their records
  uint32_t next_worker_ = 0;
};

// Adds the counts of `more` to `sum`.
void AddStats(const kvs::ClientStats& more, kvs::ClientStats* sum);

}  // namespace computenode

#endif  // COMPUTENODE_ELASTIC_WORKERS_H_
