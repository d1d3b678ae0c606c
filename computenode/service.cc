#include "computenode/service.h"

#include <unistd.h>

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>

#include "cli/fail.h"
#include "cli/stop_signal.h"
#include "ycsb/workload/counts.h"

namespace computenode {
namespace {

using nlohmann::ordered_json;

constexpr int64_t kNsPerS = 1'000'000'000;
constexpr int kLookMs = 20;  // between looks at whether the workers are done

}  // namespace

Service::Service(kvs::Store& store, const Options& options, int input)
    : store_(store),
      options_(options),
      job_(options.job),
      workers_(store, job_, {.lanes_per_worker = options.in_flight, .clock = nullptr}),
      channel_(input) {}

double Service::SecondsSince(int64_t start_ns) const {
  return static_cast<double>(krcore::RealClock()->NowNs() - start_ns) / kNsPerS;
}

void Service::Obey(const Command& command) {
  switch (command.kind) {
    case Command::Kind::kStatus: PrintStatus(); break;
    case Command::Kind::kQuit:
      quit_ = true;
      Channel::Print({{"event", "quit"}});
      break;
    case Command::Kind::kWorkers: {
      const uint32_t before = workers_.active();
      const Status status = workers_.SetWorkers(command.workers);
      if (!status.ok()) Channel::Print({{"event", "error"}, {"message", status.message()}});
      Channel::Print({{"event", "workers"},
                      {"time_s", SecondsSince(start_ns_)},
                      {"before", before},
                      {"workers", workers_.active()}});
      break;
    }
  }
}

void Service::PrintStatus() {
  const ycsb::Measurements interval = job_.TakeInterval();
  const ycsb::Measurements total = job_.Total();
  const double seconds = SecondsSince(last_status_ns_);
  last_status_ns_ = krcore::RealClock()->NowNs();
  const auto per_second = [&](uint64_t count) { return static_cast<double>(count) / std::max(seconds, 1e-9); };
  const std::vector<double> percentiles = interval.Latencies().PercentilesNs({50, 99});
  ordered_json json = {{"event", "status"},
                       {"time_s", SecondsSince(start_ns_)},
                       {"workers", workers_.active()},
                       {"draining", workers_.running() - std::min(workers_.running(), workers_.active())},
                       {"interval_s", seconds},
                       {"ops", total.operations},
                       {"ops_per_s", per_second(interval.operations)}};
  if (job_.open_loop()) {
    const uint64_t due = job_.DueBy(last_status_ns_);
    json["due_ops_per_s"] = per_second(due - last_due_);
    last_due_ = due;
  }
  json["p50_us"] = percentiles[0] / 1000;
  json["p99_us"] = percentiles[1] / 1000;
  json["errors"] = total.failed_operations;
  json["verified"] = total.verified;
  json["mismatches"] = total.mismatches;
  Channel::Print(json);
}

void Service::PrintProblems() {
  for (const std::string& problem : job_.TakeProblems()) Channel::Print({{"event", "problem"}, {"message", problem}});
  if (reported_error_.ok()) {
    reported_error_ = workers_.FirstError();
    if (!reported_error_.ok()) {
      Channel::Print({{"event", "error"}, {"message", "a worker could not start: " + reported_error_.ToString()}});
    }
  }
}

void Service::AddLoad(ordered_json* json) const {
  if (!job_.open_loop()) return;
  (*json)["profile"] = job_.ProfileText();
  (*json)["arrivals"] = ycsb::ArrivalProcessName(job_.arrival_process());
  if (job_.total_operations() != std::numeric_limits<uint64_t>::max()) {
    (*json)["planned_requests"] = job_.total_operations();
  }
}

int Service::PrintSummary() {
  (void)job_.TakeInterval();
  PrintProblems();
  const ycsb::Measurements total = job_.Total();
  const std::vector<double> percentiles = total.Latencies().PercentilesNs({50, 99, 99.9});
  ordered_json json = {{"event", "summary"},
                       {"end", end_},
                       {"time_s", SecondsSince(start_ns_)},
                       {"control_plane", options_.store.control_plane},
                       {"ops", total.operations},
                       {"errors", total.failed_operations},
                       {"verified", total.verified},
                       {"mismatches", total.mismatches},
                       {"p50_us", percentiles[0] / 1000},
                       {"p99_us", percentiles[1] / 1000},
                       {"p99.9_us", percentiles[2] / 1000}};
  AddLoad(&json);
  const kvs::ClientStats stats = workers_.TotalClientStats();
  json["client_stats"] = {{"operations", stats.operations},
                          {"round_trips", stats.round_trips},
                          {"operation_round_trips", stats.operation_round_trips},
                          {"round_trips_per_operation", ycsb::Ratio(stats.operation_round_trips, stats.operations)},
                          {"attempts_per_write", ycsb::Ratio(stats.write_attempts, stats.writes_done)},
                          {"cas_failures", stats.cas_failures},
                          {"restarts", stats.restarts},
                          {"combined_operations", stats.combined_operations},
                          {"cache_hits", stats.cache_hits},
                          {"stale_directory_hits", stats.stale_directory_hits},
                          {"splits", stats.splits},
                          {"merges", stats.merges}};
  if (const auto dc = store_.software_dc()) json["software_dc"] = ycsb::SoftwareDcJson(*dc);
  json["workers"] = ordered_json::array();
  for (const WorkerRecord& worker : workers_.Records()) {
    json["workers"].push_back({{"worker", worker.worker},
                               {"wanted_s", static_cast<double>(worker.wanted_ns - start_ns_) / kNsPerS},
                               {"thread_us", ycsb::PartUs(worker.wanted_ns, worker.thread_ns)},
                               {"client_us", ycsb::PartUs(worker.thread_ns, worker.client_ns)},
                               {"first_reply_us", ycsb::PartUs(worker.client_ns, worker.first_reply_ns)},
                               {"total_us", ycsb::PartUs(worker.wanted_ns, worker.first_reply_ns)},
                               {"drain_us", ycsb::PartUs(worker.retired_ns, worker.ended_ns)}});
  }
  Channel::Print(json);
  const bool good = total.failed_operations == 0 && total.mismatches == 0 && reported_error_.ok();
  return good ? 0 : cli::kExitFailure;
}

FleetView Service::View() const {
  FleetView view;
  view.records = workers_.Records();
  view.wanted = workers_.active();
  view.software_dc = store_.software_dc();
  return view;
}

std::string Service::Trouble() const {
  if (draining_.load(std::memory_order_relaxed)) return "draining";
  return TroubleOf(View(), operation_);
}

metrics::Announcement Service::Tell() const {
  const std::string trouble = Trouble();
  return AnnouncementOf(View(), started_ns_,
                        draining_.load(std::memory_order_relaxed) ? metrics::State::kDraining
                        : trouble.empty()                         ? metrics::State::kServing
                                                                  : metrics::State::kTroubled);
}

std::vector<prometheus::MetricFamily> Service::Collect() const {
  metrics::Families families;
  metrics::AddProcess(static_cast<double>(started_ns_) * 1e-9, &families);
  families.Gauge("surgekv_healthy", "1: /healthz says that it is able to serve", Trouble().empty() ? 1 : 0);
  AddFleet(options_, View(), &families);
  const ycsb::Measurements measured = job_.SoFar();
  AddRequests({measured.operations, measured.failed_operations, measured.verified, measured.mismatches}, &families);
  AddLatencies(measured.Latencies(), &families);
  return families.Take();
}

int Service::Run() {
  if (const Status status = operation_.Listen(options_, *this); !status.ok()) return cli::Fail(status);
  start_ns_ = last_status_ns_ = krcore::RealClock()->NowNs();
  if (const Status status = workers_.AddWorkers(options_.workers); !status.ok()) return cli::Fail(status);
  ordered_json ready = {{"event", "ready"},
                        {"pid", getpid()},
                        {"control_plane", options_.store.control_plane},
                        {"workers", workers_.active()}};
  AddLoad(&ready);
  operation_.Announce(options_, [this] { return Tell(); });
  Channel::Print(ready);
  int64_t next_status_ns = start_ns_ + kNsPerS;
  while (true) {
    const int64_t to_status_ms =
        options_.json_status ? (next_status_ns - krcore::RealClock()->NowNs()) / 1'000'000 : kLookMs;
    channel_.Wait(std::clamp<int64_t>(to_status_ms, 0, kLookMs) * 1'000'000,
                  [this](const Command& command) { Obey(command); });
    PrintProblems();
    if (options_.json_status && krcore::RealClock()->NowNs() >= next_status_ns) {
      next_status_ns = std::max(next_status_ns + kNsPerS, krcore::RealClock()->NowNs());
      PrintStatus();
    }
    if (cli::StopSignal::Requested())
      end_ = "signal";
    else if (quit_)
      end_ = "quit";
    else if (options_.duration_s > 0 && SecondsSince(start_ns_) >= options_.duration_s)
      end_ = "duration";
    else if (job_.gave_up())
      end_ = "too many failures";
    else if (!(job_.exhausted() && workers_.running() == 0)) {
      // Nobody could start: there is nothing to wait for, unless someone can still ask for workers.
      if (reported_error_.ok() || workers_.running() > 0 || channel_.open()) continue;
      end_ = "no worker could start";
    }
    break;
  }
  draining_.store(true, std::memory_order_relaxed);
  job_.Stop();
  workers_.RetireWorkers(std::numeric_limits<uint32_t>::max());
  workers_.WaitForAll();  // ends because every operation has a deadline
  operation_.Stop();
  return PrintSummary();
}

}  // namespace computenode
