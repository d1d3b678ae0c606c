// Service: a compute node's main loop: workers, the control channel, status lines, and the summary at the end.
//
// Thread safety: main thread only; whoever watches it asks from other threads.
#ifndef COMPUTENODE_SERVICE_H_
#define COMPUTENODE_SERVICE_H_

#include <atomic>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "computenode/channel.h"
#include "computenode/elastic/fleet.h"
#include "computenode/operation.h"
#include "computenode/options.h"
#include "kvs/client.h"
#include "metrics/announcement.h"
#include "metrics/exporter.h"
#include "ycsb/workload/job.h"
#include "ycsb/workload/measurements.h"

namespace computenode {

class Service final : private metrics::Source {
 public:
  // Commands are read from the descriptor `input`, answers written to stdout.
  Service(kvs::Store& store, const Options& options, int input);

  // Until the work is done, the duration is over, `quit`, or a stop signal; then drains. Returns the exit status.
  int Run();

 private:
  void Obey(const Command& command);
  void PrintStatus();
  void PrintProblems();
  int PrintSummary();
  double SecondsSince(int64_t start_ns) const;
  // Of those that watch it, from their threads.
  std::vector<prometheus::MetricFamily> Collect() const override;
  std::string Trouble() const override;
  metrics::Announcement Tell() const;
  FleetView View() const;
  // Adds what an open loop was asked for.
  void AddLoad(nlohmann::ordered_json* json) const;

  kvs::Store& store_;
  const Options& options_;
  const int64_t started_ns_ = metrics::UnixNowNs();
  mutable ycsb::WorkloadJob job_;
  ElasticWorkers workers_;
  Channel channel_;
  bool quit_ = false;
  const char* end_ = "finished";
  int64_t start_ns_ = 0;
  int64_t last_status_ns_ = 0;
  uint64_t last_due_ = 0;  // operations that were due by then
  Status reported_error_;
  Operation operation_;
  std::atomic<bool> draining_{false};  // told to those that watch it; orders nothing
};

}  // namespace computenode

#endif  // COMPUTENODE_SERVICE_H_
