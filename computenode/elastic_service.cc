#include "computenode/elastic_service.h"

#include <glog/logging.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <limits>
#include <utility>

#include "cli/fail.h"
#include "cli/stop_signal.h"
#include "computenode/elastic_workers.h"
#include "metrics/families.h"
#include "ycsb/arrivals.h"
#include "ycsb/histogram.h"
#include "ycsb/report.h"

namespace computenode {
namespace {

using krcore::StatusCode;
using nlohmann::ordered_json;

constexpr int64_t kNsPerS = 1'000'000'000;
constexpr int64_t kStatusNs = kNsPerS;
constexpr int64_t kLookNs = 1'000'000;         // between looks at who has ended
constexpr int64_t kLeadNs = 20'000'000;        // from when all first workers are ready to the first request
constexpr int64_t kFirstRetryNs = 10'000'000;  // before a worker that could not start is replaced; doubles each time
constexpr int kMostRetries = 8;
constexpr uint32_t kSleepingRelax = 1'000'000;

double Seconds(int64_t ns) { return static_cast<double>(ns) / kNsPerS; }

ordered_json PartUs(int64_t from_ns, int64_t to_ns) {
  if (from_ns == 0 || to_ns == 0) return nullptr;
  return static_cast<double>(to_ns - from_ns) / 1000;
}

double Microseconds(int64_t ns) { return static_cast<double>(ns) / 1000; }

// What connecting took: a device of its own, queues, and every memory node.
ordered_json ConnectUs(const WorkerRecord& worker) {
  const kvs::ClientTimes& times = worker.client_times;
  if (worker.client_ns == 0) return nullptr;
  return Microseconds(times.node_ns + times.queues_ns + times.connect_ns);
}

const char* KindName(WorkerKind kind) {
  switch (kind) {
    case WorkerKind::kThread: return "thread";
    case WorkerKind::kFork: return "fork";
    case WorkerKind::kExec: return "exec";
  }
  return "";
}

ycsb::JobOptions RequestJob(const Options& options, RequestQueue* queue, LiveCounts* counts) {
  ycsb::JobOptions job = options.job;
  job.arrivals = nullptr;
  job.workload.operation_count = 0;
  job.workload.target_ops = 0;
  job.max_failures = 0;  // the front end counts
  job.requests = queue;
  if (options.elastic->capacity > 0) {
    job.request_period_ns = static_cast<int64_t>(static_cast<double>(kNsPerS) / options.elastic->capacity);
  }
  job.counts = counts;
  return job;
}

}  // namespace

int ServeAsProcess(const Options& options, RequestQueue& queue, WorkerSlot& slot, int64_t started_ns) {
  krcore::Clock& clock = *krcore::RealClock();
  auto store = kvs::Store::Open(options.store);
  if (!store.ok()) {
    LOG(ERROR) << "a worker cannot open the store: " << store.status().ToString();
    slot.Fail(store.status().ToString());
    return cli::kExitFailure;
  }
  ycsb::WorkloadJob job(RequestJob(options, &queue, &slot.counts));
  // Who is wanted at once needs nothing in advance, and in what follows notices what is wrong.
  if (slot.calls.load(std::memory_order_relaxed) == 0) (void)(*store)->PrepareClient(WorkerClient(options.in_flight));
  const int64_t prepared_ns = clock.NowNs();
  bool woken = false;
  if (!slot.AwaitCall(&woken)) return 0;
  // What was done before it was wanted took no time of its start.
  const int64_t wanted_ns = woken ? clock.NowNs() : slot.times.wanted_ns;
  slot.Note(&WorkerTimes::thread_ns, std::max(started_ns, wanted_ns));
  slot.Note(&WorkerTimes::store_ns, std::max(prepared_ns, wanted_ns));
  WorkerContext context(slot.worker, options.in_flight, &clock, slot.retiring);
  const auto note = [&slot](int64_t WorkerTimes::*part, int64_t at_ns) { slot.Note(part, at_ns); };
  const Status served = Serve(context, **store, job, note, &slot.client);
  for (const std::string& problem : job.TakeProblems()) LOG(WARNING) << "worker " << slot.worker << ": " << problem;
  if (!served.ok()) {
    LOG(ERROR) << "worker " << slot.worker << " cannot serve: " << served.ToString();
    slot.Fail(served.ToString());
    return cli::kExitFailure;
  }
  store->reset();
  slot.Note(&WorkerTimes::ended_ns, clock.NowNs());
  const LoadCounts counts = slot.counts.Load();
  LOG(INFO) << "worker " << slot.worker << " has ended: " << counts.operations << " requests, " << counts.failed
            << " failed";
  return 0;
}

int ServeAsProgram(const Options& options, int64_t started_ns) {
  auto board = WorkerBoard::Attach(options.elastic->board_fd);
  if (!board.ok()) return cli::Fail(board.status());
  if (options.elastic->slot >= static_cast<int>(WorkerBoard::kSlots)) {
    return cli::FailUsage("--worker_slot=" + std::to_string(options.elastic->slot) + ": there is none such");
  }
  WorkerSlot& slot = (*board)[static_cast<uint32_t>(options.elastic->slot)];
  auto queue = RequestQueue::Attach(options.elastic->requests_fd);
  if (!queue.ok()) {
    slot.Fail(queue.status().ToString());
    return cli::kExitFailure;
  }
  return ServeAsProcess(options, **queue, slot, started_ns);
}

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
        *store_, *job_, ElasticWorkersOptions{.lanes_per_worker = options_.in_flight, .standby = elastic_.standby});
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

LoadCounts ElasticService::CountsOf(const std::vector<WorkerRecord>& workers) const {
  LoadCounts sum = counts_.Load();
  for (const WorkerRecord& worker : workers) {
    sum.operations += worker.counts.operations;
    sum.failed += worker.counts.failed;
    sum.verified += worker.counts.verified;
    sum.mismatches += worker.counts.mismatches;
  }
  return sum;
}

void ElasticService::PrintStatus() {
  const int64_t now_ns = clock_.NowNs();
  const RequestLoad load = queue_->Look(now_ns);
  const uint64_t replied = queue_->Replied();
  ycsb::LatencyHistogram latencies;
  for (uint64_t i = status_replied_; i < replied; ++i) {
    const RequestRecord record = queue_->RecordOf(i);
    latencies.Record(record.done_ns - record.due_ns);
  }
  uint32_t serving = 0, starting = 0, draining = 0;
  std::vector<int32_t> pids;
  const std::vector<WorkerRecord> records = fleet_->Records();
  for (const WorkerRecord& record : records) {
    if (record.ended_ns != 0) continue;
    ++(record.retired_ns != 0 ? draining : record.lanes_ns != 0 ? serving : starting);
    if (record.pid != 0) pids.push_back(record.pid);
  }
  const LoadCounts counts = CountsOf(records);
  const double seconds = std::max(Seconds(now_ns - status_from_ns_), 1e-9);
  const std::vector<double> percentiles = latencies.PercentilesNs({50, 99});
  Channel::Print({{"event", "status"},
                  {"time_s", SecondsSinceStart(now_ns)},
                  {"workers", serving},
                  {"starting", starting},
                  {"draining", draining},
                  {"interval_s", seconds},
                  {"due_per_s", static_cast<double>(load.due - status_due_) / seconds},
                  {"replies_per_s", static_cast<double>(replied - status_replied_) / seconds},
                  {"backlog", load.backlog},
                  {"oldest_wait_us", static_cast<double>(load.oldest_wait_ns) / 1000},
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

// Records of 24 bytes, in order of the requests: due and done (nanoseconds since the start; done -1: no reply), int64
// each, worker and failed, uint32 each; as this machine writes them.
Status ElasticService::WriteRequests() const {
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

int ElasticService::PrintSummary() {
  const int64_t now_ns = clock_.NowNs();
  ycsb::LatencyHistogram latencies;
  uint64_t replied = 0;
  const uint64_t due = queue_->Look(now_ns).due;
  for (uint64_t i = 0; i < queue_->size(); ++i) {
    const RequestRecord record = queue_->RecordOf(i);
    if (record.done_ns < 0) continue;
    ++replied;
    latencies.Record(record.done_ns - record.due_ns);
  }
  const std::vector<WorkerRecord> records = fleet_->Records();
  const LoadCounts counts = CountsOf(records);
  const std::vector<double> percentiles = latencies.PercentilesNs({50, 99, 99.9});
  ordered_json json = {{"event", "summary"},
                       {"end", end_},
                       {"time_s", SecondsSinceStart(now_ns)},
                       {"control_plane", options_.store.control_plane},
                       {"worker_kind", KindName(elastic_.kind)},
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
                       {"max_us", static_cast<double>(latencies.max_ns()) / 1000},
                       {"deaths", deaths_},
                       {"replaced", replaced_}};
  double worker_seconds = 0;
  ordered_json workers = ordered_json::array();
  for (const WorkerRecord& worker : records) {
    worker_seconds += Seconds(worker.ended_ns - std::max(worker.wanted_ns, start_ns_));
    const int64_t bootstrap_ns = BootstrapNs(worker);
    workers.push_back(
        {{"worker", worker.worker},
         {"pid", worker.pid},
         {"died", worker.died},
         {"wanted_s", SecondsSinceStart(worker.wanted_ns)},
         {"ready_s", worker.lanes_ns == 0 ? ordered_json() : ordered_json(SecondsSinceStart(worker.lanes_ns))},
         {"ended_s", SecondsSinceStart(worker.ended_ns)},
         {"spawn_us", PartUs(worker.wanted_ns, worker.thread_ns)},
         {"store_us", PartUs(worker.thread_ns, worker.store_ns)},
         {"client_us", PartUs(worker.store_ns, worker.client_ns)},
         {"connect_us", ConnectUs(worker)},
         {"register_us",
          worker.client_ns == 0 ? ordered_json() : ordered_json(Microseconds(worker.client_times.register_ns))},
         {"lanes_us", PartUs(worker.client_ns, worker.lanes_ns)},
         {"first_reply_us", PartUs(worker.first_begin_ns, worker.first_reply_ns)},
         {"bootstrap_us", bootstrap_ns == 0 ? ordered_json() : ordered_json(static_cast<double>(bootstrap_ns) / 1000)},
         {"drain_us", PartUs(worker.retired_ns, worker.ended_ns)}});
  }
  json["worker_seconds"] = worker_seconds;
  json["workers"] = std::move(workers);
  const Status written = WriteRequests();
  Channel::Print(json);
  if (!written.ok()) return cli::Fail(written);
  const bool all = std::string_view(end_) != "finished" || replied == queue_->size();
  return all && counts.failed == 0 && counts.mismatches == 0 && std::string_view(end_) != "workers cannot start" &&
                 std::string_view(end_) != "too many failures"
             ? 0
             : cli::kExitFailure;
}

FleetView ElasticService::View() const {
  FleetView view;
  view.records = fleet_->Records();
  view.wanted = wanted_;
  view.standby = fleet_->standby();
  view.restarted = replaced_;
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
    return status == StatusCode::kUnavailable ? cli::FailToOpen(status, options_.store.fabric) : cli::Fail(status);
  }
  // Only now: what is forked has been made.
  if (Status status = operation_.Listen(options_, *this); !status.ok()) return cli::Fail(status);
  if (Status status = AwaitFirstWorkers(); !status.ok()) return cli::FailToOpen(status, options_.store.fabric);
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
                  {"worker_kind", KindName(elastic_.kind)},
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
