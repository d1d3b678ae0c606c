// The questions that the spike model answers, and their tables. All figures are modelled.
#ifndef BENCH_SPIKE_MODEL_STUDY_H_
#define BENCH_SPIKE_MODEL_STUDY_H_

#include <cstdint>
#include <string>
#include <vector>

#include "bench/spike/model/spike.h"

namespace spike_model {

struct StudyOptions {
  std::vector<uint32_t> scales = {1, 10, 100};
  Spawn spawn = Spawn::kPrefork;
  double spike_factor = 10;
  double slo_ms = 10;
  double interval_ms = 1;
  double spike_s = 60;
  uint64_t seed = 1;
  uint32_t rc_hot_wrs = krcore::QueuePoolOptions().rc_hot_wrs;
  uint32_t max_rc_queues = krcore::QueuePoolOptions().max_rc_queues;
};

// The load is the same for all planes: at the spike 90% of what the slowest plane's workers carry at the target
// utilisation.
SpikeConfig ConfigOf(const StudyOptions& options, uint32_t scale, Plane plane, Spawn spawn,
                     const Constants& constants = {});

// One plane at one scale.
struct PlaneResult {
  SpikeConfig config;  // with the bootstrap time that the policy expects: p99 of a scale-out without reserve
  SpikeResult none;    // without a reserve
  double reserve = 0;  // the smallest that keeps the SLO at p99, to 0.01; -1: none does
  double by_rule = 0;  // ScalePolicy's own
  SpikeResult with;    // with `reserve`
  SpikeResult rule;    // with `by_rule`
};
PlaneResult StudyPlane(SpikeConfig config);

// Time until all of a cluster's workers serve that were started at once on idle hosts.
int64_t ColdStartNs(Plane plane, Spawn spawn, const Cluster& cluster, const Constants& constants, uint64_t seed);

// What the sensitivity table shows for a set of constants, at scale 1.
struct Headlines {
  double cold_start_shorter = 0;                 // share by which krcore's cold start is shorter than verbs'
  double verbs_full_ms = 0, krcore_full_ms = 0;  // spike to 90%
  double krcore_to_verbs = 0;                    // throughput of a worker in steady state, without promotion
  double verbs_paid = 0;  // workers at base load that the SLO takes with verbs, over those with krcore + RC
};
Headlines HeadlinesOf(const StudyOptions& options, const Constants& constants);

// Prints all tables on stdout as it goes; returns everything as JSON text.
std::string RunStudy(const StudyOptions& options);

}  // namespace spike_model

#endif  // BENCH_SPIKE_MODEL_STUDY_H_
