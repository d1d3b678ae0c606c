// One modelled run: a steady load, a spike, and steady again; the project's Autoscaler decides. Virtual time; nothing
// here is measured.
#ifndef BENCH_SPIKE_MODEL_SPIKE_H_
#define BENCH_SPIKE_MODEL_SPIKE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "bench/spike/model/control_plane.h"
#include "computenode/elastic/autoscaler.h"

namespace spike_model {

// The spike's begin, for which p99 is reported: long enough for one in a hundred requests to be many, short enough for
// nothing to be diluted.
inline constexpr int64_t kBeginNs = 100'000'000;

struct SpikeConfig {
  Plane plane = Plane::kVerbs;
  Spawn spawn = Spawn::kPrefork;
  Cluster cluster;
  Constants constants;
  double base_per_s = 0;
  double spike_factor = 10;
  int64_t before_ns = 2'000'000'000;
  int64_t spike_ns = 60'000'000'000;
  int64_t after_ns = 20'000'000'000;
  int64_t interval_ns = 1'000'000;  // of the controller
  int64_t slo_ns = 10'000'000;      // of the queueing delay
  double target_utilisation = 0.7;
  double reserve = 0;        // computenode::ScalePolicy::reserve
  int64_t bootstrap_ns = 0;  // what the policy expects
  int64_t scale_in_after_ns = 10'000'000'000;
  bool exact = false;  // request by request
  uint64_t seed = 1;
};

struct SpikeResult {
  uint32_t workers_before = 0;   // when the spike came
  uint32_t workers_started = 0;  // in the run
  uint32_t workers_plateau = 0;  // serving at the end of the spike
  uint32_t workers_peak = 0;     // the most that were paid at once
  double declared_per_s = 0;     // a worker's capacity as the policy has it
  int64_t to_full_ns = -1;       // from the spike until 90% of its load can be served; -1: never
  int64_t all_serving_ns =
      -1;                  // until the last worker serves that was wanted in its first second (and interval); -1: none
  double wait_p99_ns = 0;  // queueing delay of what came in the spike's begin
  double wait_max_ns = 0;  // of the whole spike
  double late_share = 0;   // of all requests of the spike: waited longer than the SLO
  double steady_wait_p99_ns = 0;       // in its last quarter
  double steady_per_worker_per_s = 0;  // what a worker could serve in its last quarter
  double service_ns = 0;
  uint64_t connections_made = 0;  // RC, after the spike came, until it ended
  uint64_t connections_plateau = 0;
  double connection_bytes = 0;      // at the plateau
  double worker_seconds = 0;        // paid: serving and starting
  double worker_seconds_spike = 0;  // of these, from the spike's begin to the run's end
  int64_t bootstrap_p50_ns = 0, bootstrap_p99_ns = 0, bootstrap_max_ns = 0;  // of these workers
  uint32_t workers_end = 0;                                                  // when the run ends
  double utilisation_end = 0;
  double arrived = 0, begun = 0, left = 0;  // requests, all over the run
  std::vector<std::string> decisions;       // those that changed something
};

// The capacity that the policy declares: a worker's in the steady state at the plateau.
double DeclaredPerS(const SpikeConfig& config);
computenode::ScalePolicy PolicyOf(const SpikeConfig& config);
SpikeResult Simulate(const SpikeConfig& config);

}  // namespace spike_model

#endif  // BENCH_SPIKE_MODEL_SPIKE_H_
