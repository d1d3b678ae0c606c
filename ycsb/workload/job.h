// WorkloadJob: the load or run phase of a workload, as work for computenode::ElasticWorkers.
//
// Closed loop: each lane starts its next operation when the last has ended. Open loop: operation i is due at start +
// arrivals->due_ns[i], or at start + i / workload.target_ops, whatever the store does; free lanes take due operations
// in order. Latency counts from when the operation was due, so a slow store cannot hide its queue (no coordinated
// omission). The start is the first worker's.
//
// Alternatively the operations are requests of a computenode::RequestQueue, which others may serve as well; then
// measuring latency is left to the queue.
//
// Every value that the run phase reads is verified.
//
// Thread safety: all methods may be called from any thread.
#ifndef YCSB_WORKLOAD_JOB_H_
#define YCSB_WORKLOAD_JOB_H_

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "computenode/elastic/request_queue.h"
#include "computenode/elastic/worker.h"
#include "krcore/clock.h"
#include "ycsb/workload/arrivals.h"
#include "ycsb/workload/generators.h"
#include "ycsb/workload/measurements.h"
#include "ycsb/workload/records.h"
#include "ycsb/workload/workload.h"

namespace ycsb {

enum class Phase : uint8_t { kLoad, kRun };

struct JobOptions {
  Workload workload;
  Phase phase = Phase::kRun;
  uint64_t seed = 1;
  bool overwrite = false;         // inserts may meet existing records: Put instead of Insert
  bool plant_mismatch = false;    // load: the run phase's most popular record gets a value that does not verify
  uint32_t latency_sampling = 1;  // closed loop: every n-th operation of a lane is timed, all are counted
  uint64_t max_failures = 1000;   // this many failed or mismatched operations stop the phase; 0: no number does
  // Open loop at these times: of the operations that the phase would have without it, only these are done, and the
  // phase lasts until their end_ns. Null: as workload.target_ops says.
  std::shared_ptr<const Arrivals> arrivals = {};
  krcore::Clock* clock = nullptr;  // null: the host's
  // Run phase, if not null: the requests to serve, by workers that take request_period_ns for each (0: as fast as they
  // can). Must outlive the job.
  computenode::RequestQueue* requests = nullptr;
  int64_t request_period_ns = 0;
  computenode::LiveCounts* counts = nullptr;  // if not null: also counts here while it runs
};

// Gathers what the workers of a job have measured; they keep it to themselves until they are asked.
//
// Thread safety: any thread.
class Gathering {
 public:
  explicit Gathering(krcore::Clock& clock) : clock_(clock) {}

  // A worker that sees a new epoch publishes.
  uint64_t epoch() const { return epoch_.load(std::memory_order_relaxed); }
  void WorkerStarted();
  // Takes what a worker has measured in `epoch`, and clears it.
  void Publish(uint64_t epoch, Measurements* measured);
  void WorkerEnded();

  // These are as in WorkloadJob.
  Measurements TakeInterval();
  Measurements SoFar();
  void BeginMeasuring();
  Measurements Total() const;
  int64_t MeasuredNs(int64_t start_ns) const;

 private:
  // Asks every worker, and waits for a short time.
  void Ask(std::unique_lock<std::mutex>* lock);

  krcore::Clock& clock_;
  alignas(64) std::atomic<uint64_t> epoch_{1};  // orders nothing; read by workers, written seldom
  alignas(64) mutable std::mutex mutex_;        // guards what follows
  std::condition_variable published_;
  uint64_t live_workers_ = 0;
  uint64_t published_workers_ = 0;  // in this epoch
  uint64_t measuring_epoch_ = 1;    // what began before it is warm-up
  int64_t measuring_ns_ = 0;        // 0: from the start
  int64_t ended_ns_ = 0;
  Measurements interval_;
  Measurements total_;
};

class WorkloadJob final : public computenode::Job {
 public:
  explicit WorkloadJob(const JobOptions& options);

  std::unique_ptr<computenode::WorkerJob> StartWorker(computenode::WorkerContext& context) override;

  // Makes lanes end after their current operation.
  void Stop() { stopped_.store(true, std::memory_order_relaxed); }
  bool stopped() const { return stopped_.load(std::memory_order_relaxed); }
  // Returns whether max_failures was reached.
  bool gave_up() const { return gave_up_.load(std::memory_order_relaxed); }
  // Returns whether every operation has been handed to a worker.
  bool exhausted() const { return next_ticket_.load(std::memory_order_relaxed) >= total_operations_; }

  // Asks every worker for what it measured since the last call, waits a little for their answers (a worker that does
  // not answer is heard next time), and returns the sum.
  Measurements TakeInterval() { return gathering_.TakeInterval(); }
  // Returns everything so far, as Total() would say later. Asks every worker as TakeInterval does, but a later
  // TakeInterval still returns the same.
  Measurements SoFar() { return gathering_.SoFar(); }
  // Everything before this call was warm-up: only its failures and mismatches go into Total().
  void BeginMeasuring() { gathering_.BeginMeasuring(); }
  // Returns everything taken so far. Complete when all workers have ended and TakeInterval was called.
  Measurements Total() const { return gathering_.Total(); }
  // Returns the time from the first worker's start, or BeginMeasuring, to the last worker's end, or now.
  int64_t MeasuredNs() const { return gathering_.MeasuredNs(start_ns_.load(std::memory_order_relaxed)); }
  // Returns descriptions of the first failures and mismatches, each once.
  std::vector<std::string> TakeProblems();

  const JobOptions& options() const { return options_; }
  // Returns the operations of the phase; UINT64_MAX when it has no count.
  uint64_t total_operations() const { return total_operations_; }
  bool open_loop() const { return options_.arrivals || options_.workload.target_ops > 0; }
  // Open loop: returns what was asked for, as the user would write it (a profile's text, or "target=RATE"), and when
  // requests of that rate are due.
  std::string ProfileText() const;
  ArrivalProcess arrival_process() const;
  // Open loop: returns how many operations are due at `now_ns` or before; 0 before the start.
  uint64_t DueBy(int64_t now_ns) const;
  // Returns when the plan ends, by the clock. kNever: there is no plan, or no worker has started.
  int64_t PlannedEndNs() const;
  // Returns how many records the run phase has inserted.
  uint64_t inserted_records() const { return inserted_records_.load(std::memory_order_relaxed); }
  // Returns the mean length of a value, in bytes.
  double mean_length() const { return lengths_.mean(); }

 private:
  friend class WorkloadWorker;
  struct Tickets {
    uint64_t begin = 0, end = 0;
  };
  // Returns up to `most` operations for a worker to do; empty: none are left.
  Tickets TakeTickets(uint64_t most);
  // Open loop: returns when operation `ticket` is due.
  int64_t DueNs(uint64_t ticket) const;
  // Open loop: takes the next operation if it is due. False: *due_ns is when it will be due, or when the plan ends if
  // none are left; kNever after the plan's end.
  bool TakeDue(int64_t now_ns, uint64_t* ticket, int64_t* due_ns);
  void ReportProblem(std::string description);

  const JobOptions options_;
  krcore::Clock* const clock_;
  const KeyCodec keys_;
  const uint64_t total_operations_;
  const RecordLength lengths_;
  AcknowledgedCounter inserted_;  // as OwnRecords counts
  const KeyChooser chooser_;      // the prototype
  uint64_t planted_record_;       // kNoRecord: none

  alignas(64) std::atomic<uint64_t> next_ticket_{0};
  // Hints and counts that order nothing; workers read them, and they are written seldom.
  alignas(64) std::atomic<bool> stopped_{false};
  std::atomic<bool> gave_up_{false};
  std::atomic<int64_t> start_ns_{0};
  std::atomic<uint64_t> problems_seen_{0};
  std::atomic<uint64_t> inserted_records_{0};

  Gathering gathering_;
  std::mutex problems_mutex_;  // guards the next
  std::vector<std::string> problems_;
};

}  // namespace ycsb

#endif  // YCSB_WORKLOAD_JOB_H_
