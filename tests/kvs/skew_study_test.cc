// The skew study (bench/store/skew_study.h), shortened: it runs in virtual time, so its figures are the same on every
// machine.
#include "bench/store/skew_study.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>

namespace surgekv_test {
namespace {

TEST(SkewStudy, UpdatesByZipfsLawNeedFewAttemptsAndThroughputHolds) {
  surgekv_bench::SkewOptions options;
  options.measured_ns = 5'000'000;
  surgekv_bench::SkewStudy study(options);
  double best_mops = 0;
  for (const uint32_t clients : {8, 16, 32, 64}) {
    const surgekv_bench::SkewResult result = study.Run(clients);
    std::printf("%u clients: %.3f Mops/s, %.3f attempts a write, p99 %.0f us (virtual time)\n", clients, result.mops,
                result.attempts_per_write(), result.p99_us);
    EXPECT_LE(result.attempts_per_write(), 1.5) << clients << " clients";
    EXPECT_GE(result.mops, best_mops * 0.95) << clients << " clients";
    best_mops = std::max(best_mops, result.mops);
  }
  EXPECT_GT(best_mops, 2);
}

// The operations of one client with many in flight do not compete with each other.
TEST(SkewStudy, AClientsOwnOperationsDoNotCollide) {
  surgekv_bench::SkewOptions options;
  options.keys = 100'000;
  options.lanes = 64;
  options.measured_ns = 2'000'000;
  surgekv_bench::SkewStudy study(options);
  const surgekv_bench::SkewResult result = study.Run(1);
  EXPECT_EQ(result.stats.cas_failures, 0u);
  EXPECT_GT(result.stats.combined_operations, result.operations / 20);
}

TEST(SkewStudy, TheSameSeedGivesTheSameRun) {
  surgekv_bench::SkewOptions options;
  options.keys = 10'000;
  options.measured_ns = 1'000'000;
  const surgekv_bench::SkewResult one = surgekv_bench::SkewStudy(options).Run(8);
  const surgekv_bench::SkewResult two = surgekv_bench::SkewStudy(options).Run(8);
  EXPECT_EQ(one.operations, two.operations);
  EXPECT_EQ(one.stats.write_attempts, two.stats.write_attempts);
  EXPECT_EQ(one.stats.round_trips, two.stats.round_trips);
}

}  // namespace
}  // namespace surgekv_test
