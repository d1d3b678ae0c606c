// QueueLoad: the load is a queue of requests. Workers of one kind serve it. An autoscaler or commands decide how many
// there are, and one that dies is replaced. docs/operating.md.
//
// Thread safety: as Load's.
#ifndef COMPUTENODE_QUEUE_LOAD_H_
#define COMPUTENODE_QUEUE_LOAD_H_

#include <cstdint>
#include <memory>
#include <mutex>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "computenode/elastic/request_queue.h"
#include "computenode/elastic/worker_processes.h"
#include "computenode/load.h"
#include "ycsb/workload/measurements.h"

namespace computenode {

class QueueLoad final : public Load {
 public:
  // `command_line`: this program's, to execute it again.
  QueueLoad(const Options& options, std::vector<std::string> command_line);
  ~QueueLoad() override { fleet_.reset(); }  // its workers serve the queue

  Status Open() override;
  krcore::Result<bool> Ready() override { return FirstWorkersServe(); }
  void Begin() override;
  int64_t WakeNs(int64_t now_ns) const override;
  void Tend(int64_t now_ns) override;
  const char* End(int64_t now_ns, bool commanded) override;
  void AddReady(nlohmann::ordered_json* json) const override;
  void AddStatus(nlohmann::ordered_json* json) override;
  bool AddSummary(const std::string& end, nlohmann::ordered_json* json) override;
  void AddMetrics(std::unique_lock<std::mutex>* lock, const FleetView& view, metrics::Families* families) override;

 private:
  void NoteDeath(const WorkerRecord& record);
  void Decide(int64_t now_ns);
  LoadCounts CountsOf(const std::vector<WorkerRecord>& workers) const;
  // Adds how long the requests from `begin` to `end` took that were replied to. Returns how many those were.
  uint64_t AddLatenciesOf(uint64_t begin, uint64_t end, ycsb::LatencyHistogram* latencies) const;
  Status WriteRequests() const;

  const ElasticOptions& elastic_;
  const std::vector<std::string> command_line_;
  std::unique_ptr<RequestQueue> queue_;
  LiveCounts counts_;  // of threads

  // Between decisions of the autoscaler:
  int64_t window_from_ns_ = 0;
  RequestLoad window_load_;  // at the window's beginning

  uint64_t deaths_ = 0;

  int64_t status_from_ns_ = 0;
  uint64_t status_replied_ = 0, status_due_ = 0;

  // What the watching threads have seen of the requests.
  std::mutex latencies_mutex_;
  ycsb::LatencyHistogram latencies_;
  uint64_t latencies_until_ = 0;
};

// ---- worker_process.cc

// Returns the job of a worker, thread or process: to serve whatever `queue` holds.
ycsb::JobOptions RequestJob(const Options& options, RequestQueue* queue, LiveCounts* counts);

// Returns whether standby workers rehearse (computenode/elastic/worker.h). Those of verbs and lite would keep the
// connections.
bool Rehearses(const Options& options);

// Runs a worker process until it is retired: it is main of a forked one and of a fresh one. Returns its exit status.
// `started_ns`: when the process began to run.
int ServeAsProcess(const Options& options, RequestQueue& queue, WorkerSlot& slot, int64_t started_ns);
// Does the same for a fresh program, which was given the two descriptors and the slot's number.
int ServeAsProgram(const Options& options, int64_t started_ns);

}  // namespace computenode

#endif  // COMPUTENODE_QUEUE_LOAD_H_
