#include "computenode/queue_load.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <nlohmann/json.hpp>
#include <utility>

#include "cli/fail.h"
#include "computenode/channel.h"
#include "ycsb/workload/arrivals.h"
#include "ycsb/workload/counts.h"

namespace computenode {
namespace {

using krcore::StatusCode;
using nlohmann::ordered_json;

constexpr int64_t kLeadNs = 20'000'000;  // from when all first workers are ready to the first request
constexpr char kFinished[] = "finished", kTooManyFailures[] = "too many failures", kGaveUp[] = "workers cannot start";

}  // namespace

QueueLoad::QueueLoad(const Options& options, std::vector<std::string> command_line)
    : Load(options), elastic_(*options.elastic), command_line_(std::move(command_line)) {}

Status QueueLoad::Open() {
  auto queue = RequestQueue::Create(options_.job.arrivals->due_ns);
  if (!queue.ok()) return queue.status();
  queue_ = std::move(*queue);
  if (elastic_.kind == WorkerKind::kThread) {
    job_ = std::make_unique<ycsb::WorkloadJob>(RequestJob(options_, queue_.get(), &counts_));
    return OpenThreads(*job_, elastic_.standby, Rehearses(options_));
  }
  WorkerProcessesOptions processes;
  processes.standby = elastic_.standby;
  processes.on_death = [this](const WorkerRecord& record) { NoteDeath(record); };
  if (elastic_.kind == WorkerKind::kFork) {
    processes.main = [this](WorkerSlot& slot) {
      return ServeAsProcess(options_, *queue_, slot, krcore::RealClock()->NowNs());
    };
  } else {
    processes.exec = command_line_;
    processes.exec.push_back("--worker_requests=" + std::to_string(queue_->fd()));
    processes.inherited = {queue_->fd()};
  }
  auto fleet = WorkerProcesses::Start(std::move(processes));
  if (!fleet.ok()) return fleet.status();
  fleet_ = std::move(*fleet);
  return {};
}

void QueueLoad::Begin() {
  start_ns_ = status_from_ns_ = window_from_ns_ = clock_.NowNs() + kLeadNs;
  StartScaling(start_ns_);
  queue_->Start(start_ns_);
}

int64_t QueueLoad::WakeNs(int64_t now_ns) const {
  return ScalingAtNs(now_ns + 1'000'000);  // to look for workers that have ended
}

void QueueLoad::Tend(int64_t now_ns) {
  fleet_->Look();
  PrintProblems();
  ReplaceTheDead(now_ns);
  if (ScalingIsDue(now_ns)) Decide(now_ns);
}

const char* QueueLoad::End(int64_t now_ns, bool) {
  if (gave_up_) return kGaveUp;
  const uint64_t most_failures = options_.job.max_failures;
  const LoadCounts counts = CountsOf(fleet_->Records());
  if (most_failures > 0 && counts.failed + counts.mismatches >= most_failures) return kTooManyFailures;
  const bool over = queue_->Replied() >= queue_->size() && now_ns >= start_ns_ + options_.job.arrivals->end_ns;
  return over ? kFinished : nullptr;
}

void QueueLoad::NoteDeath(const WorkerRecord& record) {
  ++deaths_;
  Channel::Print({{"event", "died"},
                  {"time_s", SecondsSinceStart(record.ended_ns)},
                  {"worker", record.worker},
                  {"message", record.status.message()},
                  {"requests_taken_back", queue_->TakeBack(record.worker)}});
}

void QueueLoad::Decide(int64_t now_ns) {
  const RequestLoad load = queue_->Look(now_ns);
  ScaleSample sample = SampleFleet(now_ns);
  const double window_s = Seconds(std::max<int64_t>(now_ns - window_from_ns_, 1));
  const auto due = static_cast<double>(load.due - window_load_.due);
  sample.arrivals_per_s = due / window_s;
  sample.backlog = static_cast<double>(load.backlog);
  sample.oldest_wait_ns = load.oldest_wait_ns;
  const double taken = due + static_cast<double>(window_load_.backlog) - sample.backlog;
  if (sample.workers > 0) sample.utilisation = std::min(taken / (sample.workers * elastic_.capacity * window_s), 1.0);
  window_load_ = load;
  window_from_ns_ = now_ns;
  Scale(sample);
}

// ---- what it tells

LoadCounts QueueLoad::CountsOf(const std::vector<WorkerRecord>& workers) const {
  LoadCounts sum = counts_.Load();
  for (const WorkerRecord& worker : workers) {
    sum.operations += worker.counts.operations;
    sum.failed += worker.counts.failed;
    sum.verified += worker.counts.verified;
    sum.mismatches += worker.counts.mismatches;
  }
  return sum;
}

uint64_t QueueLoad::AddLatenciesOf(uint64_t begin, uint64_t end, ycsb::LatencyHistogram* latencies) const {
  uint64_t replied = 0;
  for (uint64_t i = begin; i < end; ++i) {
    const RequestRecord record = queue_->RecordOf(i);
    if (record.done_ns < 0) continue;
    ++replied;
    latencies->Record(record.done_ns - record.due_ns);
  }
  return replied;
}

void QueueLoad::AddMetrics(std::unique_lock<std::mutex>* lock, const FleetView& view, metrics::Families* families) {
  const LoadCounts counts = CountsOf(view.records);
  const RequestLoad load = queue_->Look(clock_.NowNs());
  const uint64_t replied = queue_->Replied();
  lock->unlock();
  AddRequests(counts, families);
  families->AddCounter("surgekv_requests_due_total", "Requests due so far", static_cast<double>(load.due));
  families->AddGauge("surgekv_requests_backlog", "Requests that are due and not taken by a worker",
                     static_cast<double>(load.backlog));
  families->AddGauge("surgekv_requests_oldest_wait_seconds",
                     "Seconds that the oldest request of the backlog has waited", Seconds(load.oldest_wait_ns));
  const std::lock_guard latencies_lock(latencies_mutex_);
  AddLatenciesOf(latencies_until_, replied, &latencies_);
  latencies_until_ = std::max(latencies_until_, replied);
  AddLatencies(latencies_, families);
}

void QueueLoad::AddReady(ordered_json* json) const {
  json->update({{"worker_kind", WorkerKindName(elastic_.kind)},
                {"requests", queue_->size()},
                {"planned_s", Seconds(options_.job.arrivals->end_ns)}});
}

void QueueLoad::AddStatus(ordered_json* json) {
  const int64_t now_ns = clock_.NowNs();
  const RequestLoad load = queue_->Look(now_ns);
  const uint64_t replied = queue_->Replied();
  ycsb::LatencyHistogram latencies;
  AddLatenciesOf(status_replied_, replied, &latencies);
  const std::vector<WorkerRecord> records = fleet_->Records();
  std::vector<int32_t> pids;
  for (const WorkerRecord& record : records) {
    if (record.ended_ns == 0 && record.pid != 0) pids.push_back(record.pid);
  }
  const WorkerCounts workers = CountWorkers(records);
  const LoadCounts counts = CountsOf(records);
  const double seconds = std::max(Seconds(now_ns - status_from_ns_), 1e-9);
  const std::vector<double> percentiles = latencies.PercentilesNs({50, 99});
  json->update({{"workers", workers.serving},
                {"starting", workers.starting},
                {"draining", workers.draining},
                {"interval_s", seconds},
                {"due_per_s", static_cast<double>(load.due - status_due_) / seconds},
                {"replies_per_s", static_cast<double>(replied - status_replied_) / seconds},
                {"backlog", load.backlog},
                {"oldest_wait_us", Microseconds(load.oldest_wait_ns)},
                {"p50_us", percentiles[0] / 1000},
                {"p99_us", percentiles[1] / 1000},
                {"failed", counts.failed},
                {"mismatches", counts.mismatches},
                {"deaths", deaths_},
                {"pids", pids}});
  status_from_ns_ = now_ns;
  status_replied_ = replied;
  status_due_ = load.due;
}

bool QueueLoad::AddSummary(const std::string& end, ordered_json* json) {
  PrintProblems();
  ycsb::LatencyHistogram latencies;
  const uint64_t due = queue_->Look(clock_.NowNs()).due;
  const uint64_t replied = AddLatenciesOf(0, queue_->size(), &latencies);
  const FleetView view = View();
  const LoadCounts counts = CountsOf(view.records);
  const std::vector<double> percentiles = latencies.PercentilesNs({50, 99, 99.9});
  json->update({{"worker_kind", WorkerKindName(elastic_.kind)},
                {"profile", options_.job.arrivals->profile.text()},
                {"arrivals", ycsb::ArrivalProcessName(options_.job.arrivals->process)},
                {"requests", queue_->size()},
                {"due", due},
                {"replied", replied},
                {"failed", counts.failed},
                {"verified", counts.verified},
                {"mismatches", counts.mismatches},
                {"p50_us", percentiles[0] / 1000},
                {"p99_us", percentiles[1] / 1000},
                {"p99.9_us", percentiles[2] / 1000},
                {"max_us", Microseconds(latencies.max_ns())},
                {"deaths", deaths_},
                {"replaced", replaced_}});
  AddStarts(view, json);
  if (const Status written = WriteRequests(); !written.ok()) {
    (void)cli::Fail(written);
    return false;
  }
  return (end != kFinished || replied == queue_->size()) && counts.failed == 0 && counts.mismatches == 0 &&
         end != kGaveUp && end != kTooManyFailures;
}

// Writes records of 24 bytes, in the order of the requests: due and done (int64 each; nanoseconds since the start; done
// -1: no reply), worker and failed (uint32 each), in this machine's byte order.
Status QueueLoad::WriteRequests() const {
  if (elastic_.requests_file.empty()) return {};
  const auto failed = [this] {
    return Status(StatusCode::kUnavailable, elastic_.requests_file + ": " + std::strerror(errno));
  };
  std::FILE* const file = std::fopen(elastic_.requests_file.c_str(), "wb");
  if (file == nullptr) return failed();
  struct Line {
    int64_t due_ns, done_ns;
    uint32_t worker, failed;
  };
  bool written = true;
  for (uint64_t i = 0; i < queue_->size() && written; ++i) {
    const RequestRecord record = queue_->RecordOf(i);
    const Line line{record.due_ns, record.done_ns, record.worker, record.failed ? 1u : 0u};
    written = std::fwrite(&line, sizeof(line), 1, file) == 1;
  }
  if (std::fclose(file) != 0 || !written) return failed();
  return {};
}

}  // namespace computenode
