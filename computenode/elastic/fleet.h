// Fleet: the workers of a compute service, which are added and retired while they serve. In ElasticWorkers they are
// threads of this process, in WorkerProcesses (worker_processes.h) they are processes.
//
// The cost of a new worker is measured per worker, in parts (WorkerTimes).
#ifndef COMPUTENODE_ELASTIC_FLEET_H_
#define COMPUTENODE_ELASTIC_FLEET_H_

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <list>
#include <mutex>
#include <thread>
#include <vector>

#include "computenode/elastic/worker.h"
#include "krcore/clock.h"
#include "krcore/status.h"
#include "kvs/client.h"

namespace computenode {

inline constexpr uint32_t kMaxWorkers = 1024;  // the most that can be asked for

class Fleet {
 public:
  // When standby workers are replaced: not sooner than this after workers were wanted, and then one per interval.
  static constexpr int64_t kRefillAfterNs = 20'000'000, kRefillEveryNs = 10'000'000;

  virtual ~Fleet() = default;

  // Starts `count` more; returns without waiting for them to serve. kUnavailable: the system has no more threads or
  // processes; those already started stay. A worker that cannot make its client ends at once: see Records() and
  // FirstError().
  virtual Status AddWorkers(uint32_t count) = 0;
  // Asks the `count` youngest (all, if there are fewer) to end, and returns at once. Returns how many were asked.
  virtual uint32_t RetireWorkers(uint32_t count) = 0;
  // Waits until every worker has ended, by itself, retired, or dead. False: `deadline` passed first.
  virtual bool WaitForAll(krcore::Deadline deadline = krcore::Deadline::Never()) = 0;
  virtual uint32_t active() const = 0;   // neither asked to end nor ended
  virtual uint32_t running() const = 0;  // not ended
  virtual uint32_t standby() const = 0;  // kept ready, or on the way there
  // Notices which workers have ended, and replaces standby workers that were taken. It does so once those have had time
  // to start, and one at a time, so that it takes little from workers that serve. Does not wait; call it every few
  // milliseconds.
  virtual void Look() = 0;
  // Returns the records of all workers that ever existed, oldest first.
  virtual std::vector<WorkerRecord> Records() const = 0;

  // Adds or retires until `count` are active.
  Status SetWorkers(uint32_t count);
  // Returns the error of the first worker that could not start, or died. Ok: none.
  Status FirstError() const;
  // Returns the sum over all workers that ever existed, so far.
  kvs::ClientStats TotalClientStats() const;
};

// ElasticWorkers: workers that are threads over one store.
//
// Each worker is a thread with a kvs::Client of its own. It runs `lanes` coroutines of a Job on it, and polls until all
// of them have ended. A retired worker's lanes see WorkerContext::retiring(), finish the operation they are in, and
// return: no operation is lost.
//
// Thread safety: may be used from any thread.
struct ElasticWorkersOptions {
  uint32_t lanes_per_worker = 16;
  // So many standby workers are kept ready, made by Look: threads that sleep, each with a client's queues and memory
  // made in advance.
  uint32_t standby = 0;
  bool rehearse = false;           // each standby worker does so, see GetReady
  krcore::Clock* clock = nullptr;  // null: the host's
};

class ElasticWorkers final : public Fleet {
 public:
  // `store` and `job` must outlive it.
  ElasticWorkers(kvs::Store& store, Job& job, const ElasticWorkersOptions& options);
  // Retires all workers and waits for them.
  ~ElasticWorkers() override;
  ElasticWorkers(const ElasticWorkers&) = delete;
  ElasticWorkers& operator=(const ElasticWorkers&) = delete;

  Status AddWorkers(uint32_t count) override;
  uint32_t RetireWorkers(uint32_t count) override;
  bool WaitForAll(krcore::Deadline deadline = krcore::Deadline::Never()) override;
  // Waits until every worker has made its client, or failed to. False: `deadline` passed first.
  bool WaitForClients(krcore::Deadline deadline);

  uint32_t active() const override;
  uint32_t running() const override;
  uint32_t standby() const override;
  void Look() override;
  std::vector<WorkerRecord> Records() const override;

 private:
  struct Worker {
    Worker(uint32_t worker, uint32_t lanes, krcore::Clock* clock) : context(worker, lanes, clock, retiring) {}
    std::atomic<bool> retiring{false};
    WorkerContext context;
    std::atomic<uint32_t> call{0};  // 0 while it is a standby worker
    WorkerRecord record;            // under mutex_
    ClientTrace trace;
    std::thread thread;
  };
  Status Start(std::list<Worker>* workers);
  static void Call(Worker& worker, uint32_t call);
  Status StartWorkers(uint32_t count, int64_t wanted_ns);
  void Run(Worker* worker);
  void JoinEnded(std::unique_lock<std::mutex>& lock);
  bool WaitUntil(krcore::Deadline deadline, bool (*done)(const WorkerRecord&));

  kvs::Store& store_;
  Job& job_;
  const uint32_t lanes_per_worker_;
  const uint32_t standby_wanted_;
  const bool rehearse_;
  krcore::Clock* const clock_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::list<Worker> workers_;  // stable addresses; ended ones stay for their records
  std::list<Worker> standby_;  // standby workers, the oldest first
  int64_t refill_not_before_ns_ = 0;
  uint32_t next_worker_ = 0;
};

}  // namespace computenode

#endif  // COMPUTENODE_ELASTIC_FLEET_H_
