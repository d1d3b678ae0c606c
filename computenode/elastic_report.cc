// What an elastic service tells: its status lines, its summary, and the record of each request.
#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string_view>
#include <utility>

#include "cli/fail.h"
#include "computenode/elastic_service.h"
#include "ycsb/workload/arrivals.h"
#include "ycsb/workload/counts.h"
#include "ycsb/workload/measurements.h"

namespace computenode {
namespace {

using krcore::StatusCode;
using nlohmann::ordered_json;

double Seconds(int64_t ns) { return static_cast<double>(ns) / 1'000'000'000; }

double Microseconds(int64_t ns) { return static_cast<double>(ns) / 1000; }

// What connecting took: a device of its own, queues, and every memory node.
ordered_json ConnectUs(const WorkerRecord& worker) {
  const kvs::ClientTimes& times = worker.client_times;
  if (worker.client_ns == 0) return nullptr;
  return Microseconds(times.node_ns + times.queues_ns + times.connect_ns);
}

}  // namespace

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
                       {"worker_kind", WorkerKindName(elastic_.kind)},
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
         {"spawn_us", ycsb::PartUs(worker.wanted_ns, worker.thread_ns)},
         {"store_us", ycsb::PartUs(worker.thread_ns, worker.store_ns)},
         {"client_us", ycsb::PartUs(worker.store_ns, worker.client_ns)},
         {"connect_us", ConnectUs(worker)},
         {"register_us",
          worker.client_ns == 0 ? ordered_json() : ordered_json(Microseconds(worker.client_times.register_ns))},
         {"lanes_us", ycsb::PartUs(worker.client_ns, worker.lanes_ns)},
         {"first_reply_us", ycsb::PartUs(worker.first_begin_ns, worker.first_reply_ns)},
         {"bootstrap_us", bootstrap_ns == 0 ? ordered_json() : ordered_json(static_cast<double>(bootstrap_ns) / 1000)},
         {"drain_us", ycsb::PartUs(worker.retired_ns, worker.ended_ns)}});
  }
  json["worker_seconds"] = worker_seconds;
  if (const auto dc = View().software_dc) json["software_dc"] = ycsb::SoftwareDcJson(*dc);
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

}  // namespace computenode
