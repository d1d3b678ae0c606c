#include "ycsb/workload/job.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <coroutine>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kvs/client.h"

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

// A job without inserts does not pay for their window, because a new worker process has a job of its own.
uint64_t InsertWindow(const JobOptions& options) {
  return options.phase == Phase::kRun && options.workload.insert_proportion > 0 ? AcknowledgedCounter::kWindow : 1;
}

// For a warm-up.
void KeepFailuresOnly(Measurements* measured) {
  const uint64_t failed = measured->failed_operations;
  const uint64_t mismatches = measured->mismatches;
  measured->Clear();
  measured->failed_operations = failed;
  measured->mismatches = mismatches;
}

constexpr int64_t kLookAgainNs = 1'000'000;  // between looks at a queue that is empty
// A worker is awake this long before its next open-loop operation is due, so that the latency is the store's alone and
// does not include waking up. Requests of a queue do without; otherwise many workers would spin for one request each.
constexpr int64_t kAwakeBeforeNs = 100'000;
constexpr uint64_t kTicketChunk = 64;  // per visit to the shared counter; a worker that retires finishes its chunk

// Maps a uniform number in [0, 1) to an operation.
class Mix {
 public:
  explicit Mix(const Workload& workload) {
    const double sum = workload.read_proportion + workload.update_proportion + workload.insert_proportion +
                       workload.read_modify_write_proportion;
    read_below_ = workload.read_proportion / sum;
    update_below_ = read_below_ + workload.update_proportion / sum;
    insert_below_ = workload.read_modify_write_proportion > 0 ? update_below_ + workload.insert_proportion / sum : 1;
    if (workload.insert_proportion == 0 && workload.read_modify_write_proportion == 0) update_below_ = 1;
    if (update_below_ == 1 && workload.update_proportion == 0) read_below_ = 1;
  }
  Operation Of(double draw) const {
    return draw < read_below_     ? Operation::kRead
           : draw < update_below_ ? Operation::kUpdate
           : draw < insert_below_ ? Operation::kInsert
                                  : Operation::kReadModifyWrite;
  }

 private:
  double read_below_, update_below_, insert_below_;
};

}  // namespace

// One worker's lanes of a WorkloadJob.
class WorkloadWorker final : public computenode::WorkerJob {
 public:
  WorkloadWorker(WorkloadJob& job, computenode::WorkerContext& context);
  ~WorkloadWorker() override;

  kvs::Task<void> Lane(computenode::WorkerContext& context, uint32_t lane) override;
  int64_t OnRound(computenode::WorkerContext& context) override;

 private:
  static constexpr uint64_t kNoTicket = UINT64_MAX;

  // One lane's current operation, and its buffers, which are reused.
  struct LaneState {
    uint64_t ticket = kNoTicket;
    Operation operation = Operation::kRead;
    uint64_t record = 0;
    uint64_t own = 0;  // for an insert: the same, as OwnRecords counts
    bool timed = true;
    int64_t start_ns = 0;
    int64_t last_ns = 0;  // when the lane's last timed operation ended
    uint64_t since_timed = 0;
    std::coroutine_handle<> waiting;  // open loop, requests: waits for a due operation
    std::string key;
    std::string written;
    std::string read;
    bool found = false;  // a read-modify-write: its key was there
  };
  // Open loop and requests: suspends until OnRound has put a ticket, or kNoTicket, into the lane.
  struct DueAwaiter {
    WorkloadWorker& worker;
    LaneState& lane;
    bool await_ready() const noexcept { return false; }
    void await_suspend(std::coroutine_handle<> handle) {
      lane.waiting = handle;
      worker.idle_lanes_.push_back(&lane);
    }
    void await_resume() const noexcept {}
  };

  void TakeClosedLoopTicket(LaneState& lane);
  int64_t ServeRequests(bool ending);
  void Choose(LaneState& lane);
  // Counts and times the operation, or part of one, that began at start_ns. Returns when it ended.
  void Finish(LaneState& lane, const kvs::Status& status);
  void CountWhole(LaneState& lane, const kvs::Status& status);
  void Verify(LaneState& lane);

  WorkloadJob& job_;
  computenode::WorkerContext& context_;
  computenode::RequestQueue* const requests_;
  const bool load_;
  const bool open_loop_;
  const size_t min_value_bytes_, max_value_bytes_;
  const uint16_t writer_;
  uint64_t writes_ = 0;
  Random random_;
  KeyChooser chooser_;
  const Mix mix_;
  WorkloadJob::Tickets tickets_;               // closed loop: taken and not yet begun
  std::optional<computenode::Request> claim_;  // requests: the next one to serve
  int64_t free_ns_ = 0;                        // requests: when this worker may begin another one
  Measurements measured_;                      // since the last Publish
  uint64_t epoch_;
  std::vector<LaneState> lanes_;
  std::vector<LaneState*> idle_lanes_;
};

// ---- Gathering

void Gathering::WorkerStarted() {
  const std::lock_guard lock(mutex_);
  ++live_workers_;
}

void Gathering::Publish(uint64_t epoch, Measurements* measured) {
  const std::lock_guard lock(mutex_);
  if (epoch < measuring_epoch_) KeepFailuresOnly(measured);
  interval_.Merge(*measured);
  measured->Clear();
  ++published_workers_;
  published_.notify_all();
}

void Gathering::WorkerEnded() {
  const std::lock_guard lock(mutex_);
  --live_workers_;
  ended_ns_ = clock_.NowNs();
  published_.notify_all();
}

void Gathering::Ask(std::unique_lock<std::mutex>* lock) {
  published_workers_ = 0;
  epoch_.fetch_add(1, std::memory_order_relaxed);
  published_.wait_for(*lock, kPublishWait, [this] { return published_workers_ >= live_workers_; });
}

Measurements Gathering::TakeInterval() {
  std::unique_lock lock(mutex_);
  Ask(&lock);
  Measurements interval = std::move(interval_);
  interval_ = Measurements();
  total_.Merge(interval);
  return interval;
}

Measurements Gathering::SoFar() {
  std::unique_lock lock(mutex_);
  Ask(&lock);
  Measurements so_far = total_;
  so_far.Merge(interval_);
  return so_far;
}

void Gathering::BeginMeasuring() {
  (void)TakeInterval();
  const std::lock_guard lock(mutex_);
  total_.Merge(interval_);  // from workers that ended meanwhile
  interval_.Clear();
  KeepFailuresOnly(&total_);
  measuring_epoch_ = epoch();
  measuring_ns_ = clock_.NowNs();
}

Measurements Gathering::Total() const {
  const std::lock_guard lock(mutex_);
  return total_;
}

int64_t Gathering::MeasuredNs(int64_t start_ns) const {
  const std::lock_guard lock(mutex_);
  if (measuring_ns_ != 0) start_ns = measuring_ns_;
  if (start_ns == 0) return 0;
  const int64_t end_ns = live_workers_ == 0 && ended_ns_ != 0 ? ended_ns_ : clock_.NowNs();
  return std::max<int64_t>(end_ns - start_ns, 0);
}

// ---- WorkloadJob

WorkloadJob::WorkloadJob(const JobOptions& options)
    : options_(options),
      clock_(options.clock ? options.clock : krcore::RealClock()),
      keys_(options.workload.key_length, options.workload.hashed_order, options.workload.zero_padding),
      total_operations_(TotalOperations(options)),
      lengths_(options.workload.field_count, options.workload.min_field_length, options.workload.field_length,
               options.workload.field_lengths),
      inserted_(options.workload.insert_count, InsertWindow(options)),
      chooser_(options.workload, inserted_),
      planted_record_(options.plant_mismatch ? chooser_.Hottest() : kNoRecord),
      gathering_(*clock_) {}

std::unique_ptr<computenode::WorkerJob> WorkloadJob::StartWorker(computenode::WorkerContext& context) {
  int64_t unset = 0;
  start_ns_.compare_exchange_strong(unset, clock_->NowNs(), std::memory_order_relaxed);
  gathering_.WorkerStarted();
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

void WorkloadJob::ReportProblem(std::string description) {
  const uint64_t seen = 1 + problems_seen_.fetch_add(1, std::memory_order_relaxed);
  if (options_.max_failures != 0 && seen >= options_.max_failures) {
    gave_up_.store(true, std::memory_order_relaxed);
    Stop();
  }
  if (seen > kMaxProblems) return;
  if (seen == kMaxProblems) description += " (further problems are only counted)";
  const std::lock_guard lock(problems_mutex_);
  problems_.push_back(std::move(description));
}

std::vector<std::string> WorkloadJob::TakeProblems() {
  const std::lock_guard lock(problems_mutex_);
  return std::exchange(problems_, {});
}

// ---- WorkloadWorker

WorkloadWorker::WorkloadWorker(WorkloadJob& job, computenode::WorkerContext& context)
    : job_(job),
      context_(context),
      requests_(job.options_.requests),
      load_(job.options_.phase == Phase::kLoad),
      open_loop_(job.open_loop() || requests_ != nullptr),
      min_value_bytes_(job.options_.workload.min_value_bytes()),
      max_value_bytes_(job.options_.workload.value_bytes()),
      writer_(static_cast<uint16_t>(context.worker() + 1)),
      random_(job.options_.seed, context.worker()),
      chooser_(job.chooser_),
      mix_(job.options_.workload),
      epoch_(job.gathering_.epoch()),
      lanes_(context.lanes()) {
  for (LaneState& lane : lanes_) {
    lane.key.reserve(job.keys_.key_bytes());
    lane.written.reserve(max_value_bytes_);
  }
  idle_lanes_.reserve(lanes_.size());
}

WorkloadWorker::~WorkloadWorker() {
  job_.gathering_.Publish(epoch_, &measured_);
  job_.gathering_.WorkerEnded();
}

int64_t WorkloadWorker::OnRound(computenode::WorkerContext& context) {
  const uint64_t epoch = job_.gathering_.epoch();
  if (epoch != epoch_) [[unlikely]] {
    job_.gathering_.Publish(epoch_, &measured_);
    epoch_ = epoch;
  }
  if (!open_loop_ || idle_lanes_.empty()) return kNever;
  const bool ending = job_.stopped() || context.retiring();
  if (requests_ != nullptr) return ServeRequests(ending);
  const int64_t now_ns = job_.clock_->NowNs();
  while (!idle_lanes_.empty()) {
    LaneState& lane = *idle_lanes_.back();
    lane.ticket = kNoTicket;
    int64_t due_ns = kNever;
    if (!ending && job_.TakeDue(now_ns, &lane.ticket, &due_ns)) {
      lane.start_ns = due_ns;
    } else if (!ending && due_ns != kNever) {
      return due_ns - kAwakeBeforeNs;
    }
    idle_lanes_.pop_back();
    kvs::RunQueue::OfThisThread().Push(lane.waiting);
  }
  return kNever;
}

// Claims one request at a time, when this worker is free for it.
int64_t WorkloadWorker::ServeRequests(bool ending) {
  const int64_t now_ns = job_.clock_->NowNs();
  if (ending && claim_) requests_->Return(context_.worker(), std::exchange(claim_, std::nullopt)->index);
  while (!idle_lanes_.empty()) {
    LaneState& lane = *idle_lanes_.back();
    lane.ticket = kNoTicket;
    if (!ending) {
      if (!claim_) {
        if (now_ns < free_ns_) return free_ns_;
        computenode::Request request;
        if (!requests_->Claim(context_.worker(), &request)) return now_ns + kLookAgainNs;
        claim_ = request;
      }
      if (claim_->due_ns > now_ns) return claim_->due_ns;
      const computenode::Request request = *std::exchange(claim_, std::nullopt);
      context_.NoteBegin();
      lane.ticket = request.index;
      lane.start_ns = request.due_ns;
      // Count from when it could begin, so that a late wake-up costs no capacity.
      const int64_t period_ns = job_.options_.request_period_ns;
      free_ns_ = std::max({free_ns_, request.due_ns, now_ns - period_ns}) + period_ns;
    }
    idle_lanes_.pop_back();
    kvs::RunQueue::OfThisThread().Push(lane.waiting);
  }
  return kNever;
}

void WorkloadWorker::TakeClosedLoopTicket(LaneState& lane) {
  lane.ticket = kNoTicket;
  if (job_.stopped()) return;
  if (tickets_.begin == tickets_.end) {
    if (context_.retiring()) return;
    tickets_ = job_.TakeTickets(kTicketChunk);
    if (tickets_.begin == tickets_.end) return;
  }
  lane.ticket = tickets_.begin++;
}

void WorkloadWorker::Choose(LaneState& lane) {
  if (load_) {
    lane.operation = Operation::kInsert;
    lane.record = job_.options_.workload.insert_start + lane.ticket;
  } else {
    lane.operation = mix_.Of(random_.NextDouble());
    if (lane.operation == Operation::kInsert) {
      lane.own = job_.inserted_.Next();
      lane.record = job_.options_.workload.own_records().At(lane.own);
    } else {
      lane.record = chooser_.Next(random_, lane.ticket);
    }
  }
  lane.key.resize(job_.keys_.key_bytes());
  lane.key.resize(job_.keys_.Format(lane.record, lane.key.data()));
  if (lane.operation == Operation::kRead) return;
  const Version version = load_ ? Version{} : Version{writer_, ++writes_};
  lane.written.resize(job_.lengths_.Next(random_));
  FillValue(lane.record, version, lane.written.data(), lane.written.size());
  if (load_ && lane.record == job_.planted_record_ && !lane.written.empty()) lane.written.back() ^= 1;
}

void WorkloadWorker::Finish(LaneState& lane, const kvs::Status& status) {
  context_.NoteReply();
  if (!lane.timed) return measured_[lane.operation].Count(status.code());
  lane.last_ns = job_.clock_->NowNs();
  measured_[lane.operation].Record(status.code(), lane.last_ns - lane.start_ns);
}

void WorkloadWorker::CountWhole(LaneState& lane, const kvs::Status& status) {
  ++measured_.operations;
  if (requests_ != nullptr) {
    requests_->Reply(context_.worker(), lane.ticket, lane.timed ? lane.last_ns : job_.clock_->NowNs(), !status.ok());
  }
  if (computenode::LiveCounts* const counts = job_.options_.counts) {
    counts->operations.fetch_add(1, std::memory_order_relaxed);
    counts->failed.fetch_add(status.ok() ? 0 : 1, std::memory_order_relaxed);
  }
  if (status.ok()) [[likely]]
    return;
  ++measured_.failed_operations;
  job_.ReportProblem(std::string(OperationName(lane.operation)) + " of " + lane.key + " (record " +
                     std::to_string(lane.record) + ") failed: " + status.ToString());
}

void WorkloadWorker::Verify(LaneState& lane) {
  const size_t expected = std::clamp(lane.read.size(), min_value_bytes_, max_value_bytes_);
  if (VerifyValue(lane.record, lane.read, expected)) [[likely]] {
    ++measured_.verified;
    if (job_.options_.counts != nullptr) job_.options_.counts->verified.fetch_add(1, std::memory_order_relaxed);
    return;
  }
  ++measured_.mismatches;
  if (job_.options_.counts != nullptr) job_.options_.counts->mismatches.fetch_add(1, std::memory_order_relaxed);
  job_.ReportProblem("MISMATCH at key " + lane.key + " (record " + std::to_string(lane.record) +
                     "): " + ExplainMismatch(lane.record, lane.read, expected));
}

kvs::Task<void> WorkloadWorker::Lane(computenode::WorkerContext& context, uint32_t index) {
  LaneState& lane = lanes_[index];
  kvs::Client& client = context.client();
  const uint32_t sampling = std::max<uint32_t>(job_.options_.latency_sampling, 1);
  const bool overwrite = job_.options_.overwrite;
  lane.last_ns = job_.clock_->NowNs();
  while (true) {
    if (open_loop_) {
      co_await DueAwaiter{*this, lane};
    } else {
      TakeClosedLoopTicket(lane);
    }
    if (lane.ticket == kNoTicket) break;
    Choose(lane);
    // Closed loop, all timed: the end of one operation is the beginning of the next, so one clock reading serves both.
    lane.timed = open_loop_ || sampling == 1 || ++lane.since_timed % sampling == 0;
    if (!open_loop_ && lane.timed) lane.start_ns = sampling == 1 ? lane.last_ns : job_.clock_->NowNs();
    const uint64_t round = context.round();
    kvs::Status status;
    switch (lane.operation) {
      case Operation::kRead: status = co_await client.GetAsync(lane.key, &lane.read); break;
      case Operation::kUpdate: status = co_await client.UpdateAsync(lane.key, lane.written); break;
      case Operation::kInsert: {
        if (overwrite) {
          status = co_await client.PutAsync(lane.key, lane.written);
        } else {
          status = co_await client.InsertAsync(lane.key, lane.written);
        }
        break;
      }
      case Operation::kReadModifyWrite: {
        const kvs::ModifyFunction function = [&lane](std::optional<std::string_view> value) {
          lane.found = value.has_value();
          if (!lane.found) return kvs::Modification::Keep();
          lane.read.assign(*value);
          return kvs::Modification::Set(lane.written);
        };
        status = co_await client.ModifyAsync(lane.key, &function);
        if (status.ok() && !lane.found) status = kvs::StatusCode::kNotFound;
        break;
      }
    }
    Finish(lane, status);
    const bool read = lane.operation == Operation::kRead || lane.operation == Operation::kReadModifyWrite;
    if (read && status.ok()) Verify(lane);
    if (lane.operation == Operation::kInsert && !load_ && status.ok()) {
      job_.inserted_.Acknowledge(lane.own);
      job_.inserted_records_.fetch_add(1, std::memory_order_relaxed);
    }
    CountWhole(lane, status);
    if (context.round() == round) [[unlikely]]
      co_await context.Yield();
  }
}

}  // namespace ycsb
