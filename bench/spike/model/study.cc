#include "bench/spike/model/study.h"

#include <algorithm>
#include <cmath>

#include "bench/spike/model/bootstrap.h"

namespace spike_model {
namespace {

// Whether `reserve` keeps the SLO. A short run shows it, if every request of the spike's begin is served in it.
bool KeepsSlo(SpikeConfig config, double reserve) {
  config.reserve = reserve;
  config.spike_ns = 3'000'000'000;
  config.after_ns = 0;
  return Simulate(config).wait_p99_ns <= static_cast<double>(config.slo_ns);
}

double SmallestReserve(const SpikeConfig& config) {
  if (KeepsSlo(config, 0)) return 0;
  double too_little = 0, enough = config.spike_factor / config.target_utilisation;
  if (!KeepsSlo(config, enough)) return -1;
  while (enough - too_little > 0.01) {
    const double middle = (too_little + enough) / 2;
    (KeepsSlo(config, middle) ? enough : too_little) = middle;
  }
  return enough;
}

}  // namespace

SpikeConfig ConfigOf(const StudyOptions& options, uint32_t scale, Plane plane, Spawn spawn,
                     const Constants& constants) {
  SpikeConfig config;
  config.plane = plane;
  config.spawn = spawn;
  config.constants = constants;
  config.cluster = ClusterAt(scale);
  config.cluster.pool.rc_hot_wrs = options.rc_hot_wrs;
  config.cluster.pool.max_rc_queues = options.max_rc_queues;
  config.spike_factor = options.spike_factor;
  config.slo_ns = static_cast<int64_t>(options.slo_ms * 1e6);
  config.interval_ns = static_cast<int64_t>(options.interval_ms * 1e6);
  // Whole intervals, so that the spike begins at the start of one: the controller sees it as late as it can.
  config.before_ns = 2000 * config.interval_ns;
  config.spike_ns = static_cast<int64_t>(options.spike_s * 1e9) / config.interval_ns * config.interval_ns;
  config.seed = options.seed;
  double slowest_ns = 0;
  for (const Plane each : kPlanes) {
    slowest_ns = std::max(slowest_ns, ServiceNs(each, config.cluster, constants, 0));
  }
  const double carried = config.cluster.workers() * config.target_utilisation * 1e9 / slowest_ns;
  config.base_per_s = 0.9 * std::min(carried, NicLimitPerS(config.cluster, constants)) / options.spike_factor;
  return config;
}

PlaneResult StudyPlane(SpikeConfig config) {
  PlaneResult result;
  config.reserve = 0;
  config.bootstrap_ns = Simulate(config).bootstrap_p99_ns;
  result.config = config;
  result.none = Simulate(config);
  result.reserve = SmallestReserve(config);
  config.reserve = std::max(0.0, result.reserve);
  result.with = config.reserve == 0 ? result.none : Simulate(config);
  config.reserve = computenode::ScalePolicy::kDerived;
  result.by_rule = PolicyOf(config).Reserve();
  result.rule = Simulate(config);
  return result;
}

int64_t ColdStartNs(Plane plane, Spawn spawn, const Cluster& cluster, const Constants& constants, uint64_t seed) {
  uint32_t serving = 0;
  Bootstrap bootstrap(plane, spawn, cluster, constants, 0, seed,
                      {.serving = [&](uint32_t) { ++serving; },
                       .promoted = [](uint32_t, uint32_t) {},
                       .stalled = [](uint32_t, double) {}});
  for (uint32_t i = 0; i < cluster.workers(); ++i) bootstrap.Start(0);
  int64_t last_ns = 0;
  while (serving < cluster.workers()) {
    last_ns = bootstrap.next_ns();
    bootstrap.Step();
  }
  return last_ns;
}

Headlines HeadlinesOf(const StudyOptions& options, const Constants& constants) {
  Headlines headlines;
  const auto config = [&](Plane plane) {
    SpikeConfig short_run = ConfigOf(options, 1, plane, options.spawn, constants);
    short_run.spike_ns = 3'000'000'000 / short_run.interval_ns * short_run.interval_ns;
    short_run.after_ns = 0;
    return short_run;
  };
  const Cluster cluster = config(Plane::kVerbs).cluster;
  const auto cold_ns = [&](Plane plane) {
    return static_cast<double>(ColdStartNs(plane, options.spawn, cluster, constants, options.seed));
  };
  headlines.cold_start_shorter = 1 - cold_ns(Plane::kKrcore) / cold_ns(Plane::kVerbs);
  const auto workers_at_base = [&](Plane plane, double* full_ms) {
    SpikeConfig one = config(plane);
    const SpikeResult first = Simulate(one);
    *full_ms = static_cast<double>(first.to_full_ns) / 1e6;
    one.bootstrap_ns = first.bootstrap_p99_ns;
    one.reserve = std::max(0.0, SmallestReserve(one));
    return (1 + one.reserve) * one.base_per_s / (DeclaredPerS(one) * one.target_utilisation);
  };
  const double verbs_workers = workers_at_base(Plane::kVerbs, &headlines.verbs_full_ms);
  headlines.verbs_paid = verbs_workers / workers_at_base(Plane::kKrcoreRc, &headlines.krcore_full_ms);
  headlines.krcore_to_verbs =
      ServiceNs(Plane::kVerbs, cluster, constants, 0) / ServiceNs(Plane::kKrcore, cluster, constants, 0);
  return headlines;
}

}  // namespace spike_model
