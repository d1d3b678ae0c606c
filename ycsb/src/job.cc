#include "ycsb/job.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <utility>

#include "ycsb/src/worker.h"

namespace ycsb {
namespace {

constexpr uint64_t kNoRecord = std::numeric_limits<uint64_t>::max();
constexpr uint64_t kMaxProblems = 10;  // described in words; all are counted
constexpr std::chrono::milliseconds kPublishWait{20};

uint64_t TotalOperations(const JobOptions& options) {
  const uint64_t planned = options.arrivals ? options.arrivals->due_ns.size() : std::numeric_limits<uint64_t>::max();
  if (options.phase == Phase::kLoad) return std::min(options.workload.insert_count, planned);
  const uint64_t count = options.workload.operation_count;
  return count == 0 ? planned : std::min(count, planned);
}

// A job without inserts does not pay for their window: a new worker process has a job of its own.
uint64_t InsertWindow(const JobOptions& options) {
  return options.phase == Phase::kRun && options.workload.insert_proportion > 0 ? AcknowledgedCounter::kWindow : 1;
}

// Of a warm-up.
void KeepFailuresOnly(Measurements* measured) {
  const uint64_t failed = measured->failed_operations;
  const uint64_t mismatches = measured->mismatches;
  measured->Clear();
  measured->failed_operations = failed;
  measured->mismatches = mismatches;
}

}  // namespace

WorkloadJob::WorkloadJob(const JobOptions& options)
    : options_(options),
      clock_(options.clock ? options.clock : krcore::RealClock()),
      keys_(options.workload.key_length, options.workload.hashed_order, options.workload.zero_padding),
      total_operations_(TotalOperations(options)),
      lengths_(options.workload.field_count, options.workload.min_field_length, options.workload.field_length,
               options.workload.field_lengths),
      inserted_(options.workload.insert_count, InsertWindow(options)),
      chooser_(options.workload, inserted_),
      planted_record_(options.plant_mismatch ? chooser_.Hottest() : kNoRecord) {}

std::unique_ptr<computenode::WorkerJob> WorkloadJob::StartWorker(computenode::WorkerContext& context) {
  int64_t unset = 0;
  start_ns_.compare_exchange_strong(unset, clock_->NowNs(), std::memory_order_relaxed);
  const std::lock_guard lock(mutex_);
  ++live_workers_;
  return std::make_unique<WorkloadWorker>(*this, context);
}

WorkloadJob::Tickets WorkloadJob::TakeTickets(uint64_t most) {
  if (exhausted()) return {};  // keeps the counter from running away
  const uint64_t begin = next_ticket_.fetch_add(most, std::memory_order_relaxed);
  if (begin >= total_operations_) return {};
  return {begin, begin + std::min(most, total_operations_ - begin)};
}

int64_t WorkloadJob::DueNs(uint64_t ticket) const {
  const int64_t start_ns = start_ns_.load(std::memory_order_relaxed);
  if (options_.arrivals) return start_ns + options_.arrivals->due_ns[ticket];
  return start_ns + static_cast<int64_t>(static_cast<double>(ticket) * (1e9 / options_.workload.target_ops));
}

std::string WorkloadJob::ProfileText() const {
  if (options_.arrivals) return options_.arrivals->profile.text();
  return open_loop() ? RateProfile::OfTarget(options_.workload.target_ops, 1).text() : std::string();
}

ArrivalProcess WorkloadJob::arrival_process() const {
  return options_.arrivals ? options_.arrivals->process : ArrivalProcess::kEven;
}

uint64_t WorkloadJob::DueBy(int64_t now_ns) const {
  const int64_t start_ns = start_ns_.load(std::memory_order_relaxed);
  if (start_ns == 0 || now_ns < start_ns) return 0;
  if (!options_.arrivals) {
    const double due = std::floor(static_cast<double>(now_ns - start_ns) * options_.workload.target_ops / 1e9) + 1;
    return due < static_cast<double>(total_operations_) ? static_cast<uint64_t>(due) : total_operations_;
  }
  const std::vector<int64_t>& due_ns = options_.arrivals->due_ns;
  const auto later = std::upper_bound(due_ns.begin(), due_ns.end(), now_ns - start_ns);
  return std::min(static_cast<uint64_t>(later - due_ns.begin()), total_operations_);
}

int64_t WorkloadJob::PlannedEndNs() const {
  const int64_t start_ns = start_ns_.load(std::memory_order_relaxed);
  return options_.arrivals && start_ns != 0 ? start_ns + options_.arrivals->end_ns : computenode::WorkerJob::kNever;
}

bool WorkloadJob::TakeDue(int64_t now_ns, uint64_t* ticket, int64_t* due_ns) {
  uint64_t next = next_ticket_.load(std::memory_order_relaxed);
  while (true) {
    if (next >= total_operations_) {
      *due_ns = PlannedEndNs();
      if (*due_ns <= now_ns) *due_ns = computenode::WorkerJob::kNever;
      return false;
    }
    *due_ns = DueNs(next);
    if (*due_ns > now_ns) return false;
    if (next_ticket_.compare_exchange_weak(next, next + 1, std::memory_order_relaxed)) break;
  }
  *ticket = next;
  return true;
}

void WorkloadJob::Publish(uint64_t epoch, Measurements* measured) {
  const std::lock_guard lock(mutex_);
  if (epoch < measuring_epoch_) KeepFailuresOnly(measured);
  interval_.Merge(*measured);
  measured->Clear();
  ++published_workers_;
  published_.notify_all();
}

void WorkloadJob::WorkerEnded() {
  const std::lock_guard lock(mutex_);
  --live_workers_;
  ended_ns_ = clock_->NowNs();
  published_.notify_all();
}

Measurements WorkloadJob::TakeInterval() {
  std::unique_lock lock(mutex_);
  published_workers_ = 0;
  epoch_.fetch_add(1, std::memory_order_relaxed);
  published_.wait_for(lock, kPublishWait, [this] { return published_workers_ >= live_workers_; });
  Measurements interval = std::move(interval_);
  interval_ = Measurements();
  total_.Merge(interval);
  return interval;
}

Measurements WorkloadJob::SoFar() {
  std::unique_lock lock(mutex_);
  published_workers_ = 0;
  epoch_.fetch_add(1, std::memory_order_relaxed);
  published_.wait_for(lock, kPublishWait, [this] { return published_workers_ >= live_workers_; });
  Measurements so_far = total_;
  so_far.Merge(interval_);
  return so_far;
}

void WorkloadJob::BeginMeasuring() {
  (void)TakeInterval();
  const std::lock_guard lock(mutex_);
  total_.Merge(interval_);  // of workers that ended meanwhile
  interval_.Clear();
  KeepFailuresOnly(&total_);
  measuring_epoch_ = epoch_.load(std::memory_order_relaxed);
  measuring_ns_ = clock_->NowNs();
}

Measurements WorkloadJob::Total() const {
  const std::lock_guard lock(mutex_);
  return total_;
}

int64_t WorkloadJob::MeasuredNs() const {
  const std::lock_guard lock(mutex_);
  const int64_t start_ns = measuring_ns_ != 0 ? measuring_ns_ : start_ns_.load(std::memory_order_relaxed);
  if (start_ns == 0) return 0;
  const int64_t end_ns = live_workers_ == 0 && ended_ns_ != 0 ? ended_ns_ : clock_->NowNs();
  return std::max<int64_t>(end_ns - start_ns, 0);
}

void WorkloadJob::ReportProblem(std::string description) {
  const uint64_t seen = 1 + problems_seen_.fetch_add(1, std::memory_order_relaxed);
  if (options_.max_failures != 0 && seen >= options_.max_failures) {
    gave_up_.store(true, std::memory_order_relaxed);
    Stop();
  }
  if (seen > kMaxProblems) return;
  if (seen == kMaxProblems) description += " (further ones are only counted)";
  const std::lock_guard lock(mutex_);
  problems_.push_back(std::move(description));
}

std::vector<std::string> WorkloadJob::TakeProblems() {
  const std::lock_guard lock(mutex_);
  return std::exchange(problems_, {});
}

}  // namespace ycsb
