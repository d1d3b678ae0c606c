#include "computenode/load.h"

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>

#include "computenode/channel.h"
#include "ycsb/workload/counts.h"

namespace computenode {
namespace {

using nlohmann::ordered_json;

constexpr int64_t kNsPerS = 1'000'000'000;

constexpr int64_t kFirstRetryNs = 10'000'000;  // before a worker that could not start is replaced; doubles each time
constexpr int kMostRetries = 8;

// What connecting took: opening a device of its own, queues, and every memory node.
ordered_json ConnectUs(const WorkerRecord& worker) {
  const kvs::ClientTimes& times = worker.client_times;
  if (worker.client_ns == 0) return nullptr;
  return Microseconds(times.node_ns + times.queues_ns + times.connect_ns);
}

}  // namespace

Load::Load(const Options& options)
    : options_(options), clock_(*krcore::RealClock()), start_ns_(krcore::RealClock()->NowNs()) {}

Status Load::OpenThreads(Job& job, uint32_t standby, bool rehearse) {
  auto store = kvs::Store::Open(options_.store);
  if (!store.ok()) return store.status();
  store_ = *std::move(store);
  fleet_ = std::make_unique<ElasticWorkers>(
      *store_, job,
      ElasticWorkersOptions{.lanes_per_worker = options_.in_flight, .standby = standby, .rehearse = rehearse});
  return {};
}

krcore::Result<bool> Load::FirstWorkersServe() {
  fleet_->Look();
  const std::vector<WorkerRecord> records = fleet_->Records();
  for (const WorkerRecord& record : records) {
    if (record.ended_ns == 0) continue;
    if (!record.status.ok()) return record.status;
    return Status(krcore::StatusCode::kUnavailable, "a worker ended before the first request");
  }
  return std::ranges::all_of(records, [](const WorkerRecord& record) { return record.lanes_ns != 0; });
}

Status Load::AddFirstWorkers() {
  start_ns_ = clock_.NowNs();
  wanted_ = options_.workers;
  return fleet_->AddWorkers(wanted_);
}

void Load::SetWorkers(uint32_t count, const char* why) {
  const uint32_t before = fleet_->active();
  wanted_ = count;
  const Status status = fleet_->SetWorkers(count);
  if (!status.ok()) Channel::Print({{"event", "error"}, {"message", status.message()}});
  Channel::Print({{"event", "workers"},
                  {"time_s", SecondsSinceStart(clock_.NowNs())},
                  {"why", why},
                  {"before", before},
                  {"workers", fleet_->active()}});
}

FleetView Load::View() const {
  FleetView view;
  view.records = fleet_->Records();
  view.wanted = wanted_;
  view.standby = fleet_->standby();
  view.restarted = replaced_;
  view.software_dc = store_ ? store_->software_dc() : TotalSoftwareDc(view.records);
  return view;
}

void Load::PrintProblems() {
  if (job_ == nullptr) return;
  for (const std::string& problem : job_->TakeProblems()) Channel::Print({{"event", "problem"}, {"message", problem}});
}

void Load::ReplaceTheDead(int64_t now_ns) {
  const uint32_t active = fleet_->active();
  if (!failing_ && (active >= wanted_ || now_ns < replace_not_before_ns_)) return;
  const std::vector<WorkerRecord> records = fleet_->Records();
  const auto serves = [](const WorkerRecord& record) { return record.ended_ns == 0 && record.lanes_ns != 0; };
  const bool none_serves = std::ranges::none_of(records, serves);
  failing_ = failing_ && none_serves;
  if (active >= wanted_ || now_ns < replace_not_before_ns_) return;
  int in_vain = 0;
  for (auto record = records.rbegin(); record != records.rend(); ++record) {
    if (record->ended_ns == 0 || record->retired_ns != 0) continue;
    if (record->lanes_ns != 0) break;
    ++in_vain;
  }
  if (in_vain > 0) {
    failing_ = true;
    Channel::Print({{"event", "error"}, {"message", "a worker could not start: " + fleet_->FirstError().ToString()}});
    if (in_vain > kMostRetries && none_serves) {
      gave_up_ = true;
      return;
    }
    replace_not_before_ns_ = now_ns + (kFirstRetryNs << std::min(in_vain, kMostRetries));
  }
  replaced_ += wanted_ - active;
  SetWorkers(wanted_, "replaced");
}

void Load::AddStarts(const FleetView& view, ordered_json* json) const {
  double worker_seconds = 0;
  ordered_json workers = ordered_json::array();
  for (const WorkerRecord& worker : view.records) {
    worker_seconds += static_cast<double>(worker.ended_ns - std::max(worker.wanted_ns, start_ns_)) / kNsPerS;
    const int64_t bootstrap_ns = BootstrapNs(worker);
    workers.push_back(
        {{"worker", worker.worker},
         {"pid", worker.pid},
         {"died", worker.died},
         {"wanted_s", SecondsSinceStart(worker.wanted_ns)},
         {"ready_s", worker.lanes_ns == 0 ? ordered_json() : ordered_json(SecondsSinceStart(worker.lanes_ns))},
         {"ended_s", SecondsSinceStart(worker.ended_ns)},
         {"spawn_us", ycsb::PartUs(worker.wanted_ns, worker.thread_ns)},
         {"store_us", ycsb::PartUs(worker.thread_ns, worker.store_ns)},
         {"client_us", ycsb::PartUs(worker.store_ns, worker.client_ns)},
         {"connect_us", ConnectUs(worker)},
         {"register_us",
          worker.client_ns == 0 ? ordered_json() : ordered_json(Microseconds(worker.client_times.register_ns))},
         {"lanes_us", ycsb::PartUs(worker.client_ns, worker.lanes_ns)},
         {"first_reply_us", ycsb::PartUs(worker.first_begin_ns, worker.first_reply_ns)},
         {"bootstrap_us", bootstrap_ns == 0 ? ordered_json() : ordered_json(Microseconds(bootstrap_ns))},
         {"drain_us", ycsb::PartUs(worker.retired_ns, worker.ended_ns)}});
  }
  (*json)["worker_seconds"] = worker_seconds;
  if (view.software_dc) (*json)["software_dc"] = ycsb::SoftwareDcJson(*view.software_dc);
  (*json)["workers"] = std::move(workers);
}

// The autoscaler assumes that later workers take as long to start as the first ones did, unless it was told a time.
void Load::StartScaling(int64_t from_ns) {
  if (!options_.elastic || !options_.elastic->autoscale) return;
  ScalePolicy policy = options_.elastic->policy;
  if (policy.bootstrap_ns == 0) {
    for (const WorkerRecord& record : fleet_->Records()) {
      policy.bootstrap_ns = std::max(policy.bootstrap_ns, record.lanes_ns - record.wanted_ns);
    }
  }
  scaler_.emplace(policy);
  decide_at_ns_ = from_ns + options_.elastic->interval_ns;
}

ScaleSample Load::SampleFleet(int64_t now_ns) const {
  const WorkerCounts workers = CountWorkers(fleet_->Records());
  return {.now_ns = now_ns,
          .workers = static_cast<uint32_t>(workers.serving),
          .starting = static_cast<uint32_t>(workers.starting)};
}

void Load::Scale(const ScaleSample& sample) {
  decide_at_ns_ = std::max(decide_at_ns_ + options_.elastic->interval_ns, sample.now_ns);
  const ScaleDecision decision = scaler_->Decide(sample);
  if (!decision.changes()) return;
  Channel::Print({{"event", "decision"},
                  {"time_s", SecondsSinceStart(sample.now_ns)},
                  {"before", decision.before},
                  {"workers", decision.workers},
                  {"reason", ScaleReasonName(decision.reason)},
                  {"dry_run", options_.elastic->dry_run},
                  {"numbers", decision.ToString()}});
  if (!options_.elastic->dry_run) SetWorkers(decision.workers, "decision");
}

double Load::SecondsSinceStart(int64_t now_ns) const { return static_cast<double>(now_ns - start_ns_) / kNsPerS; }

// ---- JobLoad

Status JobLoad::Open() {
  job_ = std::make_unique<ycsb::WorkloadJob>(options_.job);
  return OpenThreads(*job_, /*standby=*/0, /*rehearse=*/false);
}

int64_t JobLoad::WakeNs(int64_t now_ns) const {
  return now_ns + 20'000'000;  // to look whether the job is done
}

void JobLoad::Tend(int64_t) {
  wanted_ = fleet_->active();  // none is replaced
  PrintProblems();
  if (!reported_error_.ok()) return;
  reported_error_ = fleet_->FirstError();
  if (reported_error_.ok()) return;
  Channel::Print({{"event", "error"}, {"message", "a worker could not start: " + reported_error_.ToString()}});
}

const char* JobLoad::End(int64_t, bool commanded) {
  if (job_->gave_up()) return "too many failures";
  if (fleet_->running() > 0) return nullptr;
  if (job_->exhausted()) return "finished";
  // No worker could start: there is nothing to wait for, unless someone can still ask for workers.
  return reported_error_.ok() || commanded ? nullptr : "no worker could start";
}

void JobLoad::AddReady(ordered_json* json) const {
  if (!job_->open_loop()) return;
  (*json)["profile"] = job_->ProfileText();
  (*json)["arrivals"] = ycsb::ArrivalProcessName(job_->arrival_process());
  if (job_->total_operations() != std::numeric_limits<uint64_t>::max()) {
    (*json)["planned_requests"] = job_->total_operations();
  }
}

void JobLoad::AddStatus(ordered_json* json) {
  const ycsb::Measurements interval = job_->TakeInterval();
  const ycsb::Measurements total = job_->Total();
  const int64_t now_ns = clock_.NowNs();
  const double seconds = static_cast<double>(now_ns - status_from_ns_) / kNsPerS;
  status_from_ns_ = now_ns;
  const auto per_second = [&](uint64_t count) { return static_cast<double>(count) / std::max(seconds, 1e-9); };
  const std::vector<double> percentiles = interval.Latencies().PercentilesNs({50, 99});
  const uint32_t active = fleet_->active(), running = fleet_->running();
  json->update({{"workers", active},
                {"draining", running - std::min(running, active)},
                {"interval_s", seconds},
                {"ops", total.operations},
                {"ops_per_s", per_second(interval.operations)}});
  if (job_->open_loop()) {
    const uint64_t due = job_->DueBy(now_ns);
    (*json)["due_ops_per_s"] = per_second(due - status_due_);
    status_due_ = due;
  }
  json->update({{"p50_us", percentiles[0] / 1000},
                {"p99_us", percentiles[1] / 1000},
                {"errors", total.failed_operations},
                {"verified", total.verified},
                {"mismatches", total.mismatches}});
}

bool JobLoad::AddSummary(const std::string&, ordered_json* json) {
  (void)job_->TakeInterval();
  Tend(clock_.NowNs());
  const ycsb::Measurements total = job_->Total();
  const std::vector<double> percentiles = total.Latencies().PercentilesNs({50, 99, 99.9});
  json->update({{"ops", total.operations},
                {"errors", total.failed_operations},
                {"verified", total.verified},
                {"mismatches", total.mismatches},
                {"p50_us", percentiles[0] / 1000},
                {"p99_us", percentiles[1] / 1000},
                {"p99.9_us", percentiles[2] / 1000}});
  AddReady(json);
  (*json)["client_stats"] = ycsb::ClientStatsJson(fleet_->TotalClientStats());
  if (const auto dc = store_->software_dc()) (*json)["software_dc"] = ycsb::SoftwareDcJson(*dc);
  ordered_json& workers = (*json)["workers"] = ordered_json::array();
  for (const WorkerRecord& worker : fleet_->Records()) {
    workers.push_back({{"worker", worker.worker},
                       {"wanted_s", SecondsSinceStart(worker.wanted_ns)},
                       {"thread_us", ycsb::PartUs(worker.wanted_ns, worker.thread_ns)},
                       {"client_us", ycsb::PartUs(worker.thread_ns, worker.client_ns)},
                       {"first_reply_us", ycsb::PartUs(worker.client_ns, worker.first_reply_ns)},
                       {"total_us", ycsb::PartUs(worker.wanted_ns, worker.first_reply_ns)},
                       {"drain_us", ycsb::PartUs(worker.retired_ns, worker.ended_ns)}});
  }
  return total.failed_operations == 0 && total.mismatches == 0 && reported_error_.ok();
}

void JobLoad::AddMetrics(std::unique_lock<std::mutex>* lock, const FleetView&, metrics::Families* families) {
  lock->unlock();
  const ycsb::Measurements measured = job_->SoFar();
  AddRequests({measured.operations, measured.failed_operations, measured.verified, measured.mismatches}, families);
  AddLatencies(measured.Latencies(), families);
}

}  // namespace computenode
