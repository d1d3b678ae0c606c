// ElasticService: a compute node's main loop where the load is a queue of requests: workers of one kind serve it, an
// autoscaler or commands say how many they are, and who dies is replaced. docs/elastic.md.
//
// Thread safety: main thread only, which must be the only one when it is made; whoever watches it asks from other
// threads.
#ifndef COMPUTENODE_ELASTIC_SERVICE_H_
#define COMPUTENODE_ELASTIC_SERVICE_H_

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "computenode/channel.h"
#include "computenode/elastic/autoscaler.h"
#include "computenode/elastic/fleet.h"
#include "computenode/elastic/request_queue.h"
#include "computenode/elastic/worker_processes.h"
#include "computenode/operation.h"
#include "computenode/options.h"
#include "kvs/client.h"
#include "metrics/announcement.h"
#include "metrics/exporter.h"
#include "ycsb/workload/job.h"
#include "ycsb/workload/measurements.h"

namespace computenode {

class ElasticService final : private metrics::Source {
 public:
  // `command_line`: of this program, to execute it again; `input`: the descriptor of commands.
  ElasticService(const Options& options, std::vector<std::string> command_line, int input);
  ~ElasticService() override;

  // Until each request has been replied to, the duration is over, `quit`, or a stop signal; then drains. Returns the
  // exit status.
  int Run();

 private:
  Status Open();
  Status AwaitFirstWorkers();
  void Obey(const Command& command);
  void Decide(int64_t now_ns);
  void SetWorkers(uint32_t count, const char* why);
  void ReplaceTheDead(int64_t now_ns);
  void NoteDeath(const WorkerRecord& record);
  void PrintStatus();
  int PrintSummary();
  Status WriteRequests() const;
  LoadCounts CountsOf(const std::vector<WorkerRecord>& workers) const;
  double SecondsSinceStart(int64_t now_ns) const;
  // Retires all workers and waits for them.
  void Drain();
  // Of those that watch it, from their threads.
  std::vector<prometheus::MetricFamily> Collect() const override;
  std::string Trouble() const override;
  metrics::Announcement Tell() const;
  // mutex_ held.
  FleetView View() const;
  std::string TroubleNow(const FleetView& view) const;

  // Held by the main thread but while it waits; guards all that those who watch it look at.
  mutable std::mutex mutex_;
  const Options& options_;
  const ElasticOptions& elastic_;
  const std::vector<std::string> command_line_;
  Channel channel_;
  krcore::Clock& clock_;
  std::unique_ptr<RequestQueue> queue_;
  LiveCounts counts_;                       // of threads
  std::unique_ptr<kvs::Store> store_;       // for threads
  std::unique_ptr<ycsb::WorkloadJob> job_;  // for threads
  WorkerProcesses* processes_ = nullptr;    // fleet_, if they are that
  std::unique_ptr<Fleet> fleet_;
  std::optional<Autoscaler> scaler_;
  Operation operation_;
  uint32_t wanted_ = 0;
  uint64_t deaths_ = 0, replaced_ = 0;
  int64_t replace_not_before_ns_ = 0;
  int64_t start_ns_ = 0;
  int64_t decide_at_ns_ = 0, window_from_ns_ = 0;
  RequestLoad window_load_;  // at the window's beginning
  int64_t status_at_ns_ = 0, status_from_ns_ = 0;
  uint64_t status_replied_ = 0, status_due_ = 0;
  bool quit_ = false;
  bool draining_ = false;
  bool failing_ = false;  // the last worker that was started could not start
  const int64_t started_unix_ns_ = metrics::UnixNowNs();
  // What they have seen of the requests.
  mutable std::mutex latencies_mutex_;
  mutable ycsb::LatencyHistogram latencies_;
  mutable uint64_t latencies_until_ = 0;
  const char* end_ = "finished";
};

}  // namespace computenode

#endif  // COMPUTENODE_ELASTIC_SERVICE_H_
