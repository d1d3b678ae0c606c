#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "ycsb/workload/generators.h"
#include "ycsb/workload/measurements.h"

namespace ycsb {
namespace {

TEST(LatencyHistogram, OneDurationIsEveryPercentileWithinOnePercent) {
  for (double ns = 10; ns <= 100e9; ns *= 1.37) {
    LatencyHistogram histogram;
    const auto whole = static_cast<int64_t>(ns);
    // Record two others far away, or min and max would clamp the answer to the exact value.
    histogram.Record(1);
    histogram.Record(whole);
    histogram.Record(120'000'000'000);
    EXPECT_NEAR(histogram.PercentileNs(50) / static_cast<double>(whole), 1, 0.01) << whole;
  }
}

TEST(LatencyHistogram, PercentilesAgreeWithTheSortedDurations) {
  LatencyHistogram histogram;
  std::vector<int64_t> sorted;
  Random random(3);
  for (int i = 0; i < 200'000; ++i) {
    sorted.push_back(static_cast<int64_t>(100 * std::exp(12 * random.NextDouble())));
    histogram.Record(sorted.back());
  }
  std::sort(sorted.begin(), sorted.end());
  for (const double percent : {1.0, 50.0, 90.0, 95.0, 99.0, 99.9, 99.99}) {
    const auto exact = static_cast<double>(sorted[static_cast<size_t>(std::ceil(percent / 100 * 200'000)) - 1]);
    EXPECT_NEAR(histogram.PercentileNs(percent) / exact, 1, 0.01) << percent;
  }
  EXPECT_EQ(histogram.max_ns(), sorted.back());
  EXPECT_EQ(histogram.min_ns(), sorted.front());
  EXPECT_EQ(histogram.PercentileNs(100), static_cast<double>(sorted.back()));
}

TEST(LatencyHistogram, MergedIsAsRecordedTogether) {
  LatencyHistogram one, two, both, empty;
  for (int64_t ns = 1; ns < 100'000; ns += 7) {
    (ns % 2 == 0 ? one : two).Record(ns);
    both.Record(ns);
  }
  one.Merge(two);
  one.Merge(empty);
  EXPECT_EQ(one.count(), both.count());
  EXPECT_EQ(one.mean_ns(), both.mean_ns());
  for (const double percent : {0.0, 50.0, 99.0}) EXPECT_EQ(one.PercentileNs(percent), both.PercentileNs(percent));
  one.Clear();
  EXPECT_EQ(one.count(), 0u);
  EXPECT_EQ(one.PercentileNs(50), 0);
  one.Record(5);
  EXPECT_EQ(one.PercentileNs(50), 5);
}

TEST(LatencyHistogram, DurationsOutsideTheAxisCount) {
  LatencyHistogram histogram;
  histogram.Record(-5);
  histogram.Record(0);
  histogram.Record(500'000'000'000);
  EXPECT_EQ(histogram.count(), 3u);
  EXPECT_EQ(histogram.PercentileNs(50), 0);
  EXPECT_EQ(histogram.PercentileNs(99), 500e9);
}

TEST(Measurements, FailuresAreKeptApart) {
  OperationMeasurements one;
  one.Record(krcore::StatusCode::kOk, 100);
  one.Record(krcore::StatusCode::kNotFound, 900);
  one.Count(krcore::StatusCode::kOk);
  EXPECT_EQ(one.operations(), 3u);
  EXPECT_EQ(one.failures(), 1u);
  EXPECT_EQ(one.succeeded.max_ns(), 100);
  EXPECT_EQ(one.failed.min_ns(), 900);
}

}  // namespace
}  // namespace ycsb
