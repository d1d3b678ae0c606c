#include "bench/spike/model/spike.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>

#include "bench/store/skew_study.h"

namespace spike_model {
namespace {

constexpr int64_t kOneMs = 1'000'000;

// 24 workers on 4 hosts: small enough to follow each request.
SpikeConfig Small(Plane plane) {
  SpikeConfig config;
  config.plane = plane;
  config.cluster.hosts = 4;
  config.cluster.cores = 6;
  config.base_per_s = 0.9 * 0.7 * 24 * 160'000 / 10;
  config.before_ns = 100 * kOneMs;
  config.spike_ns = 300 * kOneMs;
  config.after_ns = 100 * kOneMs;
  config.scale_in_after_ns = 60 * kOneMs;
  config.bootstrap_ns = plane == Plane::kVerbs ? 45 * kOneMs : 2 * kOneMs;
  return config;
}

TEST(SpikeModel, AGetOfTheStoreOnTheSimulatedNicTakesWhatTheModelSays) {
  surgekv_bench::SkewStudy study(
      {.keys = 1000, .zipf = 0, .read_percent = 100, .address_cache_entries = 0, .measured_ns = 2'000'000});
  const double simulated_ns = study.Run(1).p50_us * 1e3;
  EXPECT_NEAR(ServiceNs(Plane::kVerbs, ClusterAt(1), {}, 0) / simulated_ns, 1, 0.04);
}

TEST(SpikeModel, TheSameSeedGivesTheSameRunAndAnotherADifferentOne) {
  const SpikeConfig config = Small(Plane::kKrcoreRc);
  const SpikeResult first = Simulate(config);
  const SpikeResult again = Simulate(config);
  EXPECT_EQ(first.decisions, again.decisions);
  EXPECT_EQ(first.arrived, again.arrived);
  EXPECT_EQ(first.wait_p99_ns, again.wait_p99_ns);
  EXPECT_EQ(first.worker_seconds, again.worker_seconds);
  SpikeConfig other = config;
  other.seed = 2;
  EXPECT_NE(Simulate(other).arrived, first.arrived);
}

TEST(SpikeModel, EveryRequestIsServedExactlyOnce) {
  for (const Plane plane : kPlanes) {
    for (const bool exact : {false, true}) {
      SpikeConfig config = Small(plane);
      config.exact = exact;
      const SpikeResult result = Simulate(config);
      EXPECT_NEAR(result.begun + result.left, result.arrived, 1e-3) << PlaneName(plane) << exact;
      EXPECT_LE(result.left, 100) << PlaneName(plane) << exact;
      // 0.24 M/s for 200 ms and 2.4 M/s for 300 ms.
      EXPECT_NEAR(result.arrived, config.base_per_s * 3.2, config.base_per_s * 0.02);
    }
  }
}

// How much the fluid approximation is off where each request can be followed.
TEST(SpikeModel, TheFluidApproximationAgreesWithTheExactSimulation) {
  for (const Plane plane : kPlanes) {
    SpikeConfig config = Small(plane);
    const SpikeResult fluid = Simulate(config);
    config.exact = true;
    const SpikeResult exact = Simulate(config);
    const std::string name(PlaneName(plane));
    std::printf(
        "%-20s to 90%%: %.3f ms fluid, %.3f exact; p99 of the begin: %.3f, %.3f; longest wait: %.3f, %.3f; "
        "worker-seconds: %.4f, %.4f\n",
        name.c_str(), static_cast<double>(fluid.to_full_ns) / 1e6, static_cast<double>(exact.to_full_ns) / 1e6,
        fluid.wait_p99_ns / 1e6, exact.wait_p99_ns / 1e6, fluid.wait_max_ns / 1e6, exact.wait_max_ns / 1e6,
        fluid.worker_seconds, exact.worker_seconds);
    EXPECT_NEAR(static_cast<double>(fluid.to_full_ns) / static_cast<double>(exact.to_full_ns), 1, 0.02) << name;
    // Workers that make RC queues stop for a moment: in the fluid all of them pay for it together.
    const double stalls_ns = plane == Plane::kKrcoreRc ? 300'000 : 20'000;
    EXPECT_NEAR(fluid.wait_p99_ns, exact.wait_p99_ns, 0.03 * exact.wait_p99_ns + stalls_ns) << name;
    EXPECT_NEAR(fluid.wait_max_ns, exact.wait_max_ns, 0.03 * exact.wait_max_ns + 50'000) << name;
    EXPECT_NEAR(fluid.worker_seconds / exact.worker_seconds, 1, 0.05) << name;
  }
}

TEST(SpikeModel, DoublingTheConnectCostNeverShortensTheRamp) {
  for (const Plane plane : kPlanes) {
    for (const uint32_t memory_nodes : {1U, 4U}) {
      SpikeConfig config = Small(plane);
      config.cluster.memory_nodes = memory_nodes;
      int64_t last_ns = -1;
      for (const double factor : {0.25, 0.5, 1.0, 2.0, 4.0}) {
        config.constants = {};
        config.constants.verbs_connect_ns *= factor;
        config.constants.lookup_ns *= factor;
        config.constants.handshakes_per_s /= factor;
        const int64_t full_ns = Simulate(config).to_full_ns;
        EXPECT_GE(full_ns, last_ns) << PlaneName(plane) << " " << factor;
        last_ns = full_ns;
      }
    }
  }
}

TEST(SpikeModel, TheRampEndsWhenTheWorkersServe) {
  SpikeConfig config = Small(Plane::kVerbs);
  const SpikeResult verbs = Simulate(config);
  // The controller's interval, the spawn, the registration, a connect; then a worker with each handshake, until ten
  // serve: 90% of 2.42 M/s at 0.2275 M/s each.
  const double first_ms = 1 + 0.17 + 0.1836 + 18;
  EXPECT_NEAR(static_cast<double>(verbs.to_full_ns) / 1e6, first_ms + (10 - verbs.workers_before - 1) / 0.55, 0.01);
  const auto waits_for_workers = [](const std::string& line) { return line.find("starting 0,") == std::string::npos; };
  config.bootstrap_ns = 0;  // else the first decision foresees what the next ones would add
  const std::vector<std::string> lines = Simulate(config).decisions;
  EXPECT_TRUE(std::any_of(lines.begin(), lines.end(), waits_for_workers));
  EXPECT_GE(verbs.all_serving_ns, verbs.to_full_ns);
  EXPECT_GE(verbs.bootstrap_p99_ns, verbs.bootstrap_p50_ns);
  EXPECT_EQ(verbs.connections_made, verbs.workers_started);
  const SpikeResult krcore = Simulate(Small(Plane::kKrcore));
  EXPECT_LT(krcore.to_full_ns, 5 * kOneMs);
  EXPECT_EQ(krcore.connections_made, 0u);
  EXPECT_LT(krcore.connection_bytes, verbs.connection_bytes);
}

TEST(SpikeModel, PromotionReachesVerbsSteadyStateWherePeersAreHot) {
  SpikeConfig config = Small(Plane::kKrcoreRc);
  config.spike_ns = 4'000 * kOneMs;
  const double verbs = 1e9 / ServiceNs(Plane::kVerbs, config.cluster, {}, 0);
  const double krcore = 1e9 / ServiceNs(Plane::kKrcore, config.cluster, {}, 0);
  EXPECT_NEAR(Simulate(config).steady_per_worker_per_s / verbs, 1, 0.02);
  // Places for half of them: half of the workers stay on DC, and the policy knows.
  config.cluster.rc_places = 12;
  EXPECT_EQ(PromotedShare(config.cluster, 1), 0.5);
  EXPECT_LT(DeclaredPerS(config), 0.9 * verbs);
  EXPECT_LT(Simulate(config).steady_per_worker_per_s, 0.95 * verbs);
  config.cluster.memory_nodes = 10;  // no worker asks any of them for so much
  EXPECT_NEAR(Simulate(config).steady_per_worker_per_s / krcore, 1, 1e-6);
}

TEST(SpikeModel, WorkersAreGivenBackAfterTheSpike) {
  SpikeConfig config = Small(Plane::kKrcore);
  config.after_ns = 2000 * kOneMs;
  const SpikeResult result = Simulate(config);
  EXPECT_GT(result.workers_plateau, 6 * result.workers_before);
  const double spike_only = result.workers_peak * (0.3 + 0.06 + 0.3);
  EXPECT_LT(result.worker_seconds_spike, spike_only + 2 * 2.0 * result.workers_before);
  EXPECT_LE(result.workers_end, 2 * result.workers_before);
  EXPECT_NEAR(result.utilisation_end * result.workers_end * 1e9 / result.service_ns / config.base_per_s, 1, 0.3);
}

}  // namespace
}  // namespace spike_model
