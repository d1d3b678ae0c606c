#include "computenode/elastic_service.h"

#include <glog/logging.h>
#include <unistd.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "cli/common_flags.h"
#include "cli/fail.h"
#include "cli/stop_signal.h"
#include "computenode/elastic/fleet.h"
#include "computenode/worker_process.h"
#include "metrics/families.h"
#include "ycsb/workload/arrivals.h"
#include "ycsb/workload/measurements.h"

namespace computenode {
namespace {

using krcore::StatusCode;

constexpr int64_t kNsPerS = 1'000'000'000;
constexpr int64_t kStatusNs = kNsPerS;
constexpr int64_t kLookNs = 1'000'000;         // between looks at who has ended
constexpr int64_t kLeadNs = 20'000'000;        // from when all first workers are ready to the first request
constexpr int64_t kFirstRetryNs = 10'000'000;  // before a worker that could not start is replaced; doubles each time
constexpr int kMostRetries = 8;
constexpr uint32_t kSleepingRelax = 1'000'000;

double Seconds(int64_t ns) { return static_cast<double>(ns) / kNsPerS; }

}  // namespace

ElasticService::ElasticService(const Options& options, std::vector<std::string> command_line, int input)
    : options_(options),
      elastic_(*options.elastic),
      command_line_(std::move(command_line)),
      channel_(input),
      clock_(*krcore::RealClock()) {}

ElasticService::~ElasticService() = default;

double ElasticService::SecondsSinceStart(int64_t now_ns) const { return Seconds(now_ns - start_ns_); }

Status ElasticService::Open() {
  const ycsb::Arrivals& arrivals = *options_.job.arrivals;
  auto queue = RequestQueue::Create(arrivals.due_ns);
  if (!queue.ok()) return queue.status();
  queue_ = std::move(*queue);
  if (elastic_.kind == WorkerKind::kThread) {
    auto store = kvs::Store::Open(options_.store);
    if (!store.ok()) return store.status();
    store_ = std::move(*store);
    job_ = std::make_unique<ycsb::WorkloadJob>(RequestJob(options_, queue_.get(), &counts_));
    fleet_ = std::make_unique<ElasticWorkers>(
        *store_, *job_,
        ElasticWorkersOptions{
            .lanes_per_worker = options_.in_flight, .standby = elastic_.standby, .rehearse = Rehearses(options_)});
    return {};
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
  processes_ = fleet->get();
  fleet_ = std::move(*fleet);
  return {};
}

// Until they are ready. Their bootstrap is what the autoscaler believes of others, unless it was told.
Status ElasticService::AwaitFirstWorkers() {
  {
    const std::lock_guard lock(mutex_);
    KRCORE_RETURN_IF_ERROR(fleet_->AddWorkers(wanted_));
  }
  for (;;) {
    std::unique_lock lock(mutex_);
    fleet_->Look();
    const std::vector<WorkerRecord> records = fleet_->Records();
    lock.unlock();
    for (const WorkerRecord& record : records) {
      if (record.ended_ns == 0) continue;
      if (!record.status.ok()) return record.status;
      return {StatusCode::kUnavailable, "a worker ended before there was a request"};
    }
    if (std::ranges::all_of(records, [](const WorkerRecord& record) { return record.lanes_ns != 0; })) return {};
    if (cli::StopSignal::Requested()) return {StatusCode::kUnavailable, "stopped by a signal"};
    channel_.Wait(kLookNs / 10, [this](const Command& command) { Obey(command); });
  }
}

void ElasticService::Obey(const Command& command) {
  const std::lock_guard lock(mutex_);
  switch (command.kind) {
    case Command::Kind::kStatus: return PrintStatus();
    case Command::Kind::kQuit: quit_ = true; return Channel::Print({{"event", "quit"}});
    case Command::Kind::kWorkers:
      if (scaler_ && !elastic_.dry_run) {
        return Channel::Print({{"event", "error"}, {"message", "the autoscaler says how many workers there are"}});
      }
      return SetWorkers(command.workers, "command");
  }
}

void ElasticService::SetWorkers(uint32_t count, const char* why) {
  const uint32_t before = fleet_->active();
  wanted_ = count;
  const Status status = fleet_->SetWorkers(count);
  if (!status.ok()) Channel::Print({{"event", "error"}, {"message", status.message()}});
  Channel::Print({{"event", "workers"},
                  {"time_s", SecondsSinceStart(clock_.NowNs())},
                  {"before", before},
                  {"workers", fleet_->active()},
                  {"why", why}});
}

void ElasticService::NoteDeath(const WorkerRecord& record) {
  ++deaths_;
  Channel::Print({{"event", "died"},
                  {"time_s", SecondsSinceStart(record.ended_ns)},
                  {"worker", record.worker},
                  {"message", record.status.message()},
                  {"requests_taken_back", queue_->TakeBack(record.worker)}});
}

// Also who ended without being asked to. One that could not even start is replaced later and later.
void ElasticService::ReplaceTheDead(int64_t now_ns) {
  const uint32_t active = fleet_->active();
  if (failing_) {
    const auto serves = [](const WorkerRecord& record) { return record.ended_ns == 0 && record.lanes_ns != 0; };
    failing_ = std::ranges::none_of(fleet_->Records(), serves);
  }
  if (active >= wanted_ || now_ns < replace_not_before_ns_) return;
  int in_vain = 0;
  const std::vector<WorkerRecord> records = fleet_->Records();
  for (auto record = records.rbegin(); record != records.rend(); ++record) {
    if (record->ended_ns == 0 || record->retired_ns != 0) continue;
    if (record->lanes_ns != 0) break;
    ++in_vain;
  }
  if (in_vain > 0) {
    failing_ = true;
    Channel::Print({{"event", "error"}, {"message", "a worker could not start: " + fleet_->FirstError().ToString()}});
    if (in_vain > kMostRetries) {
      end_ = "workers cannot start";
      quit_ = true;
      return;
    }
    replace_not_before_ns_ = now_ns + (kFirstRetryNs << in_vain);
  }
  replaced_ += wanted_ - active;
  SetWorkers(wanted_, "replaced");
}

void ElasticService::Decide(int64_t now_ns) {
  const RequestLoad load = queue_->Look(now_ns);
  ScaleSample sample{.now_ns = now_ns};
  for (const WorkerRecord& record : fleet_->Records()) {
    if (record.retired_ns != 0 || record.ended_ns != 0) continue;
    ++(record.lanes_ns != 0 ? sample.workers : sample.starting);
  }
  const double window_s = Seconds(std::max<int64_t>(now_ns - window_from_ns_, 1));
  const auto due = static_cast<double>(load.due - window_load_.due);
  sample.arrivals_per_s = due / window_s;
  sample.backlog = static_cast<double>(load.backlog);
  sample.oldest_wait_ns = load.oldest_wait_ns;
  const double taken = due + static_cast<double>(window_load_.backlog) - sample.backlog;
  if (sample.workers > 0) sample.utilisation = std::min(taken / (sample.workers * elastic_.capacity * window_s), 1.0);
  window_load_ = load;
  window_from_ns_ = now_ns;
  const ScaleDecision decision = scaler_->Decide(sample);
  if (!decision.changes()) return;
  Channel::Print({{"event", "decision"},
                  {"time_s", SecondsSinceStart(now_ns)},
                  {"before", decision.before},
                  {"workers", decision.workers},
                  {"reason", ScaleReasonName(decision.reason)},
                  {"dry_run", elastic_.dry_run},
                  {"numbers", decision.ToString()}});
  if (!elastic_.dry_run) SetWorkers(decision.workers, "decision");
}

FleetView ElasticService::View() const {
  FleetView view;
  view.records = fleet_->Records();
  view.wanted = wanted_;
  view.standby = fleet_->standby();
  view.restarted = replaced_;
  view.software_dc = store_ ? store_->software_dc() : TotalSoftwareDc(view.records);
  return view;
}

std::string ElasticService::TroubleNow(const FleetView& view) const {
  if (draining_) return "draining";
  if (failing_) return "workers cannot start: " + fleet_->FirstError().ToString();
  return TroubleOf(view, operation_);
}

std::string ElasticService::Trouble() const {
  const std::lock_guard lock(mutex_);
  return TroubleNow(View());
}

metrics::Announcement ElasticService::Tell() const {
  const std::lock_guard lock(mutex_);
  const FleetView view = View();
  const std::string trouble = TroubleNow(view);
  return AnnouncementOf(view, started_unix_ns_,
                        draining_         ? metrics::State::kDraining
                        : trouble.empty() ? metrics::State::kServing
                                          : metrics::State::kTroubled);
}

std::vector<prometheus::MetricFamily> ElasticService::Collect() const {
  metrics::Families families;
  metrics::AddProcess(Seconds(started_unix_ns_), &families);
  std::unique_lock lock(mutex_);
  const FleetView view = View();
  const std::string trouble = TroubleNow(view);
  const LoadCounts counts = CountsOf(view.records);
  const RequestLoad load = queue_->Look(clock_.NowNs());
  const uint64_t replied = queue_->Replied();
  lock.unlock();
  families.Gauge("surgekv_healthy", "1: /healthz says that it is able to serve", trouble.empty() ? 1 : 0);
  AddFleet(options_, view, &families);
  AddRequests(counts, &families);
  families.Counter("surgekv_requests_due_total", "Requests that have fallen due", static_cast<double>(load.due));
  families.Gauge("surgekv_requests_backlog", "Requests that have fallen due and that no worker has",
                 static_cast<double>(load.backlog));
  families.Gauge("surgekv_requests_oldest_wait_seconds", "How long the oldest of them has waited",
                 Seconds(load.oldest_wait_ns));
  const std::lock_guard latencies_lock(latencies_mutex_);
  for (; latencies_until_ < replied; ++latencies_until_) {
    const RequestRecord record = queue_->RecordOf(latencies_until_);
    latencies_.Record(record.done_ns - record.due_ns);
  }
  AddLatencies(latencies_, &families);
  return families.Take();
}

void ElasticService::Drain() {
  std::unique_lock lock(mutex_);
  draining_ = true;
  fleet_->RetireWorkers(std::numeric_limits<uint32_t>::max());
  while (!fleet_->WaitForAll(krcore::Deadline::After(clock_, 0))) {  // ends: every operation has a deadline
    lock.unlock();
    clock_.Relax(kSleepingRelax);
    lock.lock();
  }
}

int ElasticService::Run() {
  start_ns_ = clock_.NowNs();
  wanted_ = options_.workers;
  if (Status status = Open(); !status.ok()) {
    return status == StatusCode::kUnavailable ? cli::FailToOpen(status) : cli::Fail(status);
  }
  // Only now: what is forked has been made.
  if (Status status = operation_.Listen(options_, *this); !status.ok()) return cli::Fail(status);
  if (Status status = AwaitFirstWorkers(); !status.ok()) return cli::FailToOpen(status);
  if (elastic_.autoscale) {
    ScalePolicy policy = elastic_.policy;
    if (policy.bootstrap_ns == 0) {
      for (const WorkerRecord& record : fleet_->Records()) {
        policy.bootstrap_ns = std::max(policy.bootstrap_ns, record.lanes_ns - record.wanted_ns);
      }
    }
    scaler_.emplace(policy);
  }
  operation_.Announce(options_, [this] { return Tell(); });
  std::unique_lock starting(mutex_);
  start_ns_ = status_from_ns_ = window_from_ns_ = clock_.NowNs() + kLeadNs;
  status_at_ns_ = start_ns_ + kStatusNs;
  decide_at_ns_ = start_ns_ + elastic_.interval_ns;
  queue_->Start(start_ns_);
  starting.unlock();
  Channel::Print({{"event", "ready"},
                  {"pid", getpid()},
                  {"control_plane", options_.store.control_plane},
                  {"worker_kind", WorkerKindName(elastic_.kind)},
                  {"workers", fleet_->active()},
                  {"requests", queue_->size()},
                  {"planned_s", Seconds(options_.job.arrivals->end_ns)}});
  while (!quit_) {
    int64_t now_ns = clock_.NowNs();
    int64_t wake_ns = now_ns + kLookNs;
    if (scaler_) wake_ns = std::min(wake_ns, decide_at_ns_);
    channel_.Wait(std::max<int64_t>(wake_ns - now_ns, 0), [this](const Command& command) { Obey(command); });
    now_ns = clock_.NowNs();
    const std::lock_guard lock(mutex_);
    fleet_->Look();
    ReplaceTheDead(now_ns);
    if (scaler_ && now_ns >= decide_at_ns_) {
      decide_at_ns_ = std::max(decide_at_ns_ + elastic_.interval_ns, now_ns);
      Decide(now_ns);
    }
    if (options_.json_status && now_ns >= status_at_ns_) {
      status_at_ns_ = std::max(status_at_ns_ + kStatusNs, now_ns);
      PrintStatus();
    }
    if (quit_) {
      if (std::string_view(end_) == "finished") end_ = "quit";
    } else if (cli::StopSignal::Requested()) {
      end_ = "signal";
    } else if (options_.duration_s > 0 && SecondsSinceStart(now_ns) >= options_.duration_s) {
      end_ = "duration";
    } else if (options_.job.max_failures > 0 && CountsOf(fleet_->Records()).failed >= options_.job.max_failures) {
      end_ = "too many failures";
    } else if (queue_->Replied() < queue_->size() || now_ns < start_ns_ + options_.job.arrivals->end_ns) {
      continue;
    }
    break;
  }
  Drain();
  operation_.Stop();
  return PrintSummary();
}

}  // namespace computenode
