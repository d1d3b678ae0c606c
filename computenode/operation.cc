#include "computenode/operation.h"

#include <glog/logging.h>
#include <unistd.h>

#include <algorithm>
#include <limits>
#include <span>
#include <utility>

#include "cli/common_flags.h"
#include "krcore/control_plane.h"
#include "ycsb/workload/counts.h"

namespace computenode {
namespace {

using metrics::Families;

double AsDouble(uint64_t count) { return static_cast<double>(count); }

// How long each worker took for one part of its start, of those that have completed that part.
template <typename Duration>
metrics::Histogram PartOf(const std::vector<WorkerRecord>& records, Duration duration_ns) {
  ycsb::LatencyHistogram durations;
  for (const WorkerRecord& record : records) {
    const int64_t ns = duration_ns(record);
    if (ns >= 0) durations.Record(ns);
  }
  return HistogramOf(durations);
}

int64_t Between(int64_t from_ns, int64_t to_ns) {
  return from_ns == 0 || to_ns == 0 ? -1 : std::max<int64_t>(to_ns - from_ns, 0);
}

void AddStarts(const std::vector<WorkerRecord>& records, Families* families) {
  const auto add = [&](const char* part, auto duration_ns) {
    families->AddHistogram("surgekv_worker_start_seconds", "Seconds that each part of a worker's start took",
                           PartOf(records, duration_ns), {{"part", part}});
  };
  add("spawn", [](const WorkerRecord& worker) { return Between(worker.wanted_ns, worker.thread_ns); });
  add("store", [](const WorkerRecord& worker) { return Between(worker.thread_ns, worker.store_ns); });
  add("client", [](const WorkerRecord& worker) { return Between(worker.store_ns, worker.client_ns); });
  // For a thread these are known only when it ends.
  add("connect", [](const WorkerRecord& worker) -> int64_t {
    const kvs::ClientTimes& times = worker.client_times;
    const int64_t ns = times.node_ns + times.queues_ns + times.connect_ns;
    return worker.client_ns == 0 || ns == 0 ? -1 : ns;
  });
  add("register", [](const WorkerRecord& worker) -> int64_t {
    return worker.client_ns == 0 || worker.client_times.register_ns == 0 ? -1 : worker.client_times.register_ns;
  });
  add("lanes", [](const WorkerRecord& worker) { return Between(worker.client_ns, worker.lanes_ns); });
  add("first_reply", [](const WorkerRecord& worker) { return Between(worker.first_begin_ns, worker.first_reply_ns); });
  add("bootstrap", [](const WorkerRecord& worker) -> int64_t {
    const int64_t ns = BootstrapNs(worker);
    return ns == 0 ? -1 : ns;
  });
}

}  // namespace

WorkerCounts CountWorkers(const std::vector<WorkerRecord>& records) {
  WorkerCounts counts;
  for (const WorkerRecord& record : records) {
    if (record.retired_ns != 0) ++counts.retired;
    if (record.died || !record.status.ok()) ++counts.failed;
    if (record.ended_ns != 0) continue;
    ++(record.retired_ns != 0 ? counts.draining : record.lanes_ns != 0 ? counts.serving : counts.starting);
  }
  return counts;
}

int64_t BootstrapNs(const WorkerTimes& times) {
  if (times.first_reply_ns == 0) return 0;
  return times.lanes_ns - times.wanted_ns + times.first_reply_ns - times.first_begin_ns;
}

void AddFleet(const Options& options, const FleetView& view, Families* families) {
  families->AddGauge("surgekv_compute_info", "Always 1; the labels describe this compute node", 1,
                     {{"fabric", options.store.fabric},
                      {"control_plane", options.store.control_plane},
                      {"worker_kind", WorkerKindName(options.elastic ? options.elastic->kind : WorkerKind::kThread)}});
  const WorkerCounts counts = CountWorkers(view.records);
  const std::string workers = "Workers, by state", name = "surgekv_workers";
  families->AddGauge(name, workers, AsDouble(view.standby), {{"state", "standby"}});
  families->AddGauge(name, workers, AsDouble(counts.starting), {{"state", "starting"}});
  families->AddGauge(name, workers, AsDouble(counts.serving), {{"state", "serving"}});
  families->AddGauge(name, workers, AsDouble(counts.draining), {{"state", "draining"}});
  families->AddGauge("surgekv_workers_wanted", "Workers wanted", view.wanted);
  families->AddCounter("surgekv_workers_started_total", "Workers requested so far", AsDouble(view.records.size()));
  families->AddCounter("surgekv_workers_retired_total", "Workers told to end", AsDouble(counts.retired));
  families->AddCounter("surgekv_workers_failed_total", "Workers that died or could not start", AsDouble(counts.failed));
  families->AddCounter("surgekv_workers_restarted_total", "Workers started in place of failed ones",
                       AsDouble(view.restarted));
  kvs::ClientStats stats;
  uint64_t cpu_ns = 0, connection_bytes = 0;
  for (const WorkerRecord& record : view.records) {
    AddStats(record.client_stats, &stats);
    cpu_ns += record.cpu_ns;
    connection_bytes += record.connection_bytes;
  }
  families->AddCounter("surgekv_worker_cpu_seconds_total", "CPU time of all workers, ended ones included, in seconds",
                       AsDouble(cpu_ns) * 1e-9);
  families->AddGauge("surgekv_connection_memory_bytes", "Bytes of memory that workers hold for connections",
                     AsDouble(connection_bytes));
  AddStarts(view.records, families);
  if (view.software_dc) metrics::AddSoftwareDc(*view.software_dc, families);
  for (const ycsb::StoreCounter& counter : ycsb::StoreCounters()) {
    families->AddCounter(std::string("surgekv_store_") + counter.name + "_total", counter.help,
                         AsDouble(stats.*counter.count));
  }
}

void AddRequests(const LoadCounts& counts, Families* families) {
  families->AddCounter(
      "surgekv_requests_total",
      "Requests executed by workers, failed ones included. A request is executed again if its worker dies",
      AsDouble(counts.operations));
  families->AddCounter("surgekv_requests_failed_total", "Requests that failed", AsDouble(counts.failed));
  families->AddCounter("surgekv_values_verified_total", "Values read that were right", AsDouble(counts.verified));
  families->AddCounter("surgekv_values_mismatched_total", "Values read that were wrong", AsDouble(counts.mismatches));
}

metrics::Histogram HistogramOf(const ycsb::LatencyHistogram& latencies) {
  const std::span<const double> bounds = metrics::DurationBounds();
  std::vector<double> bounds_ns;
  for (const double bound : bounds) bounds_ns.push_back(bound * 1e9);
  const std::vector<uint64_t> counts = latencies.CountsUpTo(bounds_ns);
  metrics::Histogram histogram;
  histogram.sum = latencies.mean_ns() * 1e-9 * AsDouble(latencies.count());
  for (size_t i = 0; i < bounds.size(); ++i) histogram.buckets.push_back({bounds[i], counts[i]});
  histogram.buckets.push_back({std::numeric_limits<double>::infinity(), latencies.count()});
  return histogram;
}

void AddLatencies(const ycsb::LatencyHistogram& latencies, Families* families) {
  families->AddHistogram("surgekv_request_latency_seconds",
                         "Seconds that requests took. In an open loop, counted from when they were due",
                         HistogramOf(latencies));
}

std::string TroubleOf(const FleetView& view, const Operation& operation) {
  if (CountWorkers(view.records).serving > 0) {
    const std::string trouble = operation.trouble();
    return trouble.empty() ? "" : "not announced at a metadata server: " + trouble;
  }
  const auto failed =
      std::ranges::find_if(view.records, [](const WorkerRecord& worker) { return !worker.status.ok(); });
  return failed == view.records.end() ? "no worker serves"
                                      : "no worker serves; one could not start: " + failed->status.ToString();
}

metrics::Announcement AnnouncementOf(const FleetView& view, int64_t started_ns, metrics::State state) {
  const WorkerCounts counts = CountWorkers(view.records);
  const auto fit = [](uint64_t count) { return static_cast<uint16_t>(std::min<uint64_t>(count, 0xffff)); };
  metrics::Announcement announcement;
  announcement.role = metrics::Role::kCompute;
  announcement.state = state;
  announcement.pid = static_cast<uint32_t>(getpid());
  announcement.started_s = static_cast<uint32_t>(started_ns / 1'000'000'000);
  announcement.workers_wanted = fit(view.wanted);
  announcement.workers_starting = fit(counts.starting);
  announcement.workers_serving = fit(counts.serving);
  announcement.workers_draining = fit(counts.draining);
  for (const WorkerRecord& record : view.records) announcement.operations += record.client_stats.operations;
  return announcement;
}

krcore::Status Operation::Listen(const Options& options, const metrics::Source& source) {
  if (!options.metrics) return {};
  auto exporter = metrics::Exporter::Start(*options.metrics, source);
  if (!exporter.ok()) return exporter.status();
  exporter_ = *std::move(exporter);
  LOG(INFO) << "serving metrics at " << exporter_->address().ToString();
  return {};
}

void Operation::Announce(const Options& options, std::function<metrics::Announcement()> tell) {
  if (exporter_ == nullptr) return;
  krcore::NodeOptions open;
  cli::SetFabric(&open);
  // Open a node where the memory nodes are: the memory nodes that verbs and lite use are krcore's.
  auto node = krcore::OpenNode(options.store.control_plane == "kernel" ? "kernel" : "krcore", open);
  if (!node.ok()) {
    LOG(WARNING) << "surge status cannot show this compute node: " << node.status().ToString();
    return;
  }
  node_ = *std::move(node);
  auto announcer = metrics::Announcer::Start(*node_, [this, tell = std::move(tell)] {
    metrics::Announcement announcement = tell();
    announcement.set_metrics(exporter_->address());
    return announcement;
  });
  if (!announcer.ok()) {
    LOG(WARNING) << "surge status cannot show this compute node: " << announcer.status().ToString();
    return;
  }
  const std::lock_guard lock(mutex_);
  announcer_ = *std::move(announcer);
}

std::string Operation::trouble() const {
  const std::lock_guard lock(mutex_);
  return announcer_ == nullptr ? "" : announcer_->trouble();
}

void Operation::Stop() {
  {
    std::unique_lock lock(mutex_);
    const std::unique_ptr<metrics::Announcer> ending = std::move(announcer_);
    lock.unlock();  // its thread may just be asking for trouble()
  }
  node_.reset();
  exporter_.reset();
}

}  // namespace computenode
