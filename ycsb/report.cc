#include "ycsb/report.h"

#include <sys/utsname.h>
#include <unistd.h>

#include <array>
#include <cmath>
#include <cstdio>
#include <ctime>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <ostream>
#include <thread>
#include <utility>
#include <vector>

#include "ycsb/workload/counts.h"

namespace ycsb {

extern const char* const kCommit;  // the one that was built, defined by commit.cmake; "unknown" outside a git work tree

namespace {

using nlohmann::ordered_json;

constexpr std::array kOperations = {Operation::kRead, Operation::kUpdate, Operation::kInsert,
                                    Operation::kReadModifyWrite};
// A percentile: its number, its YCSB line, its JSON key.
struct Percentile {
  double percent;
  const char* line;
  const char* key;
};
constexpr std::array<Percentile, 6> kPercentiles = {{
    {50, "50thPercentileLatency(us)", "p50"},
    {90, "90thPercentileLatency(us)", "p90"},
    {95, "95thPercentileLatency(us)", "p95"},
    {99, "99thPercentileLatency(us)", "p99"},
    {99.9, "99.9PercentileLatency(us)", "p99.9"},
    {99.99, "99.99PercentileLatency(us)", "p99.99"},
}};

std::vector<double> PercentilesNs(const LatencyHistogram& histogram) {
  std::vector<double> percents;
  for (const Percentile& percentile : kPercentiles) percents.push_back(percentile.percent);
  return histogram.PercentilesNs(percents);
}

// Microseconds with three decimals: YCSB prints whole ones, which are too coarse here.
std::string Us(double ns) {
  char text[40];
  std::snprintf(text, sizeof(text), "%.3f", ns / 1000);
  return text;
}

double Throughput(const RunResult& result) {
  if (result.measured_ns <= 0) return 0;
  return static_cast<double>(result.measured.operations) * 1e9 / static_cast<double>(result.measured_ns);
}

struct DataSize {
  uint64_t records, key_bytes;
  double value_bytes;  // on average
  uint64_t total_bytes() const {
    return records * key_bytes + static_cast<uint64_t>(std::llround(static_cast<double>(records) * value_bytes));
  }
};

DataSize SizeOf(const WorkloadJob& job, const RunResult& result) {
  const Workload& workload = job.options().workload;
  uint64_t records = workload.insert_count;  // of this client
  if (job.options().phase == Phase::kLoad) {
    records = result.measured[Operation::kInsert].returns[0];
  } else {
    records += job.inserted_records();
  }
  return {records, workload.key_length, job.mean_length()};
}

void WriteLatencies(const std::string& name, const LatencyHistogram& histogram, std::ostream& out) {
  const std::string head = "[" + name + "], ";
  out << head << "AverageLatency(us), " << Us(histogram.mean_ns()) << '\n';
  out << head << "MinLatency(us), " << Us(static_cast<double>(histogram.min_ns())) << '\n';
  out << head << "MaxLatency(us), " << Us(static_cast<double>(histogram.max_ns())) << '\n';
  const std::vector<double> values = PercentilesNs(histogram);
  for (size_t i = 0; i < values.size(); ++i) out << head << kPercentiles[i].line << ", " << Us(values[i]) << '\n';
}

ordered_json LatenciesJson(const LatencyHistogram& histogram) {
  ordered_json json;
  json["samples"] = histogram.count();
  json["mean"] = histogram.mean_ns() / 1000;
  json["min"] = static_cast<double>(histogram.min_ns()) / 1000;
  const std::vector<double> values = PercentilesNs(histogram);
  for (size_t i = 0; i < values.size(); ++i) json[kPercentiles[i].key] = values[i] / 1000;
  json["max"] = static_cast<double>(histogram.max_ns()) / 1000;
  return json;
}

ordered_json MachineJson() {
  ordered_json json;
  utsname name{};
  if (uname(&name) == 0) {
    json["system"] = std::string(name.sysname) + " " + name.release;
    json["architecture"] = name.machine;
  }
  std::ifstream cpuinfo("/proc/cpuinfo");
  for (std::string line; std::getline(cpuinfo, line);) {
    if (!line.starts_with("model name")) continue;
    json["cpu"] = line.substr(std::min(line.find(": ") + 2, line.size()));
    break;
  }
  json["cores"] = std::thread::hardware_concurrency();
  json["memory_bytes"] = static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<uint64_t>(sysconf(_SC_PAGE_SIZE));
  return json;
}

ordered_json TableJson(const kvs::TableStats& table) {
  ordered_json json;
  json["global_depth"] = table.global_depth;
  json["subtables"] = table.subtables;
  json["slots"] = table.slots;
  json["used_slots"] = table.used_slots;
  json["load_factor"] = table.load_factor;
  json["memory_nodes"] = ordered_json::array();
  for (const auto& node : table.memory_nodes) {
    json["memory_nodes"].push_back(
        {{"node", node.node}, {"capacity_bytes", node.capacity_bytes}, {"taken_bytes", node.taken_bytes}});
  }
  return json;
}

ordered_json OperationsJson(const Measurements& measured) {
  ordered_json json = ordered_json::object();
  for (const Operation operation : kOperations) {
    const OperationMeasurements& one = measured[operation];
    if (one.operations() == 0) continue;
    ordered_json entry;
    entry["operations"] = one.operations();
    entry["returns"] = ordered_json::object();
    for (size_t code = 0; code < kStatusCodes; ++code) {
      if (one.returns[code] == 0) continue;
      entry["returns"][std::string(ReturnName(static_cast<StatusCode>(code)))] = one.returns[code];
    }
    entry["latency_us"] = LatenciesJson(one.succeeded);
    if (one.failures() > 0) entry["failed_latency_us"] = LatenciesJson(one.failed);
    json[std::string(OperationName(operation))] = std::move(entry);
  }
  return json;
}

// Returns whether the phase has a count, and not just an end in time.
bool HasCount(const WorkloadJob& job) { return job.total_operations() != std::numeric_limits<uint64_t>::max(); }

}  // namespace

std::string_view RunEndName(RunEnd end) {
  switch (end) {
    case RunEnd::kFinished: return "finished";
    case RunEnd::kTimeLimit: return "time limit";
    case RunEnd::kInterrupted: return "interrupted";
    case RunEnd::kTooManyFailures: return "too many failures";
  }
  return "?";
}

void WriteSummary(const WorkloadJob& job, const RunResult& result, const ReportContext& context, std::ostream& out) {
  const Measurements& measured = result.measured;
  char number[64];
  std::snprintf(number, sizeof(number), "%.1f", Throughput(result));
  out << "[OVERALL], RunTime(ms), " << result.measured_ns / 1'000'000 << '\n';
  out << "[OVERALL], Throughput(ops/sec), " << number << '\n';
  out << "[OVERALL], Operations, " << measured.operations << '\n';
  out << "[OVERALL], FailedOperations, " << measured.failed_operations << '\n';
  out << "[OVERALL], ControlPlane, " << context.control_plane << '\n';
  out << "[OVERALL], Workers, " << context.workers << '\n';
  out << "[OVERALL], InFlightPerWorker, " << context.in_flight << '\n';
  if (job.open_loop()) {
    out << "[OVERALL], Profile, " << job.ProfileText() << '\n';
    out << "[OVERALL], Arrivals, " << ArrivalProcessName(job.arrival_process()) << '\n';
    if (HasCount(job)) out << "[OVERALL], PlannedRequests, " << job.total_operations() << '\n';
  }
  const DataSize size = SizeOf(job, result);
  out << "[OVERALL], Records, " << size.records << '\n';
  out << "[OVERALL], DataSize(bytes), " << size.total_bytes() << '\n';
  out << "[OVERALL], End, " << RunEndName(result.end) << '\n';
  for (const Operation operation : kOperations) {
    const OperationMeasurements& one = measured[operation];
    if (one.operations() == 0) continue;
    const std::string name(OperationName(operation));
    out << '[' << name << "], Operations, " << one.operations() << '\n';
    if (one.succeeded.count() > 0) WriteLatencies(name, one.succeeded, out);
    for (size_t code = 0; code < kStatusCodes; ++code) {
      if (one.returns[code] == 0) continue;
      out << '[' << name << "], Return=" << ReturnName(static_cast<StatusCode>(code)) << ", " << one.returns[code]
          << '\n';
    }
    if (one.failures() > 0) {
      out << '[' << name << "-FAILED], Operations, " << one.failures() << '\n';
      if (one.failed.count() > 0) WriteLatencies(name + "-FAILED", one.failed, out);
    }
  }
  if (measured.verified + measured.mismatches > 0) {
    out << "[VERIFY], Operations, " << measured.verified + measured.mismatches << '\n';
    out << "[VERIFY], Return=OK, " << measured.verified << '\n';
    out << "[VERIFY], Return=UNEXPECTED_STATE, " << measured.mismatches << '\n';
  }
  const ordered_json stats = ClientStatsJson(result.client_stats);
  for (const auto& [name, value] : stats.items()) {
    out << "[CLIENT], " << name << ", " << value.dump() << '\n';
  }
  if (context.software_dc) {
    const ordered_json dc = SoftwareDcJson(*context.software_dc);
    for (const auto& [name, value] : dc.items()) out << "[DC], " << name << ", " << value.dump() << '\n';
  }
  if (context.table) {
    std::snprintf(number, sizeof(number), "%.3f", context.table->load_factor);
    out << "[TABLE], UsedSlots, " << context.table->used_slots << '\n';
    out << "[TABLE], LoadFactor, " << number << '\n';
  }
}

std::string JsonReport(const WorkloadJob& job, const RunResult& result, const ReportContext& context) {
  const Measurements& measured = result.measured;
  ordered_json json;
  json["phase"] = job.options().phase == Phase::kLoad ? "load" : "run";
  json["end"] = RunEndName(result.end);
  json["good"] = result.good();
  if (!result.error.ok()) json["error"] = result.error.ToString();
  json["unix_time_s"] = static_cast<int64_t>(std::time(nullptr));
  json["commit"] = kCommit;
  json["machine"] = MachineJson();
  json["flags"] = context.flags;
  json["properties"] = context.properties;
  json["seed"] = job.options().seed;
  json["control_plane"] = context.control_plane;
  json["workers"] = context.workers;
  json["in_flight"] = context.in_flight;
  json["warmup_s"] = context.warmup_s;
  json["loop"] = job.open_loop() ? "open" : "closed";
  json["latency_from"] = job.open_loop() ? "intended start" : "start";
  if (job.open_loop()) {
    json["profile"] = job.ProfileText();
    json["arrivals"] = ArrivalProcessName(job.arrival_process());
    json["planned_requests"] = HasCount(job) ? ordered_json(job.total_operations()) : ordered_json(nullptr);
  }
  const DataSize size = SizeOf(job, result);
  json["records"] = size.records;
  json["key_bytes"] = size.key_bytes;
  json["value_bytes"] = std::llround(size.value_bytes);
  json["data_bytes"] = size.total_bytes();
  json["run_time_ms"] = static_cast<double>(result.measured_ns) / 1e6;
  json["throughput_ops"] = Throughput(result);
  json["operations"] = measured.operations;
  json["failed_operations"] = measured.failed_operations;
  json["verified"] = measured.verified;
  json["mismatches"] = measured.mismatches;
  json["by_operation"] = OperationsJson(measured);
  json["client_stats"] = ClientStatsJson(result.client_stats);
  if (context.software_dc) json["software_dc"] = SoftwareDcJson(*context.software_dc);
  if (context.table) json["table"] = TableJson(*context.table);
  json["bootstrap_us"] = ordered_json::array();
  for (const computenode::WorkerRecord& worker : result.workers) {
    json["bootstrap_us"].push_back({{"worker", worker.worker},
                                    {"thread", PartUs(worker.wanted_ns, worker.thread_ns)},
                                    {"client", PartUs(worker.thread_ns, worker.client_ns)},
                                    {"first_reply", PartUs(worker.client_ns, worker.first_reply_ns)},
                                    {"total", PartUs(worker.wanted_ns, worker.first_reply_ns)}});
  }
  return json.dump(2) + "\n";
}

}  // namespace ycsb
