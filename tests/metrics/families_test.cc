// What counts and durations become in Prometheus's text.
#include "metrics/families.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "computenode/operation.h"

namespace {

using ::testing::HasSubstr;
using ::testing::Not;

uint64_t CountUpTo(const metrics::Histogram& histogram, double bound) {
  for (const auto& bucket : histogram.buckets) {
    if (bucket.upper_bound == bound) return bucket.cumulative_count;
  }
  return std::numeric_limits<uint64_t>::max();
}

TEST(Families, SeriesOfOneNameAreOneFamily) {
  metrics::Families families;
  families.AddCounter("a_total", "An a", 3, {{"kind", "x"}});
  families.AddGauge("b", "A b", 0.5);
  families.AddCounter("a_total", "An a", 4, {{"kind", "y\"\\\n"}});
  EXPECT_EQ(families.Text(),
            "# HELP a_total An a\n# TYPE a_total counter\n"
            "a_total{kind=\"x\"} 3\na_total{kind=\"y\\\"\\\\\\n\"} 4\n"
            "# HELP b A b\n# TYPE b gauge\nb 0.5\n");
}

TEST(Families, AHistogramHasItsBucketsSumAndCount) {
  metrics::Families families;
  families.AddHistogram("h_seconds", "An h",
                        {{{1e-6, 1}, {0.25, 3}, {std::numeric_limits<double>::infinity(), 4}}, 2.5}, {{"part", "x"}});
  EXPECT_EQ(
      families.Text(),
      "# HELP h_seconds An h\n# TYPE h_seconds histogram\n"
      "h_seconds_bucket{part=\"x\",le=\"1e-06\"} 1\nh_seconds_bucket{part=\"x\",le=\"0.25\"} 3\n"
      "h_seconds_bucket{part=\"x\",le=\"+Inf\"} 4\nh_seconds_sum{part=\"x\"} 2.5\nh_seconds_count{part=\"x\"} 4\n");
}

TEST(Families, EachCountOfDcInSoftwareHasAName) {
  metrics::Families families;
  metrics::AddSoftwareDc({.agent_cpu_ns = 1'500'000'000,
                          .sent = 1,
                          .sent_again = 2,
                          .timeouts = 3,
                          .sessions = 4,
                          .sessions_gone = 5,
                          .served = 6,
                          .served_again = 7,
                          .expired = 8,
                          .busy = 9,
                          .atomic_repairs = 10},
                         &families);
  const std::string text = families.Text();
  for (const char* line :
       {"agent_cpu_seconds_total 1.5\n", "sent_total 1\n", "sent_again_total 2\n", "timeouts_total 3\n",
        "sessions_total 4\n", "sessions_gone_total 5\n", "served_total 6\n", "served_again_total 7\n",
        "expired_total 8\n", "busy_total 9\n", "atomic_repairs_total 10\n"}) {
    EXPECT_THAT(text, HasSubstr(std::string("\nsurgekv_dc_") + line));
  }
}

TEST(Families, AnEmptyHistogramHasAllItsBuckets) {
  const auto histogram = computenode::HistogramOf(ycsb::LatencyHistogram());
  EXPECT_EQ(histogram.buckets.size(), metrics::DurationBounds().size() + 1);
  EXPECT_EQ(histogram.buckets.back().upper_bound, std::numeric_limits<double>::infinity());
  EXPECT_EQ(histogram.buckets.back().cumulative_count, 0u);
}

TEST(Latencies, EachIsCountedAtItsBound) {
  ycsb::LatencyHistogram latencies;
  for (const int64_t us : {2, 20, 20, 200, 3'000, 400'000}) latencies.Record(us * 1'000);
  latencies.Record(150'000'000'000);  // beyond the largest value that it tells apart
  const auto histogram = computenode::HistogramOf(latencies);
  EXPECT_EQ(histogram.buckets.back().cumulative_count, 7u);
  EXPECT_NEAR(histogram.sum, 150.403242, 1e-6);
  EXPECT_EQ(CountUpTo(histogram, 1e-6), 0u);
  EXPECT_EQ(CountUpTo(histogram, 2.5e-6), 1u);
  EXPECT_EQ(CountUpTo(histogram, 1e-5), 1u);
  EXPECT_EQ(CountUpTo(histogram, 2.5e-5), 3u);
  EXPECT_EQ(CountUpTo(histogram, 2.5e-4), 4u);
  EXPECT_EQ(CountUpTo(histogram, 2.5e-3), 4u);
  EXPECT_EQ(CountUpTo(histogram, 5e-3), 5u);
  EXPECT_EQ(CountUpTo(histogram, 0.5), 6u);
  EXPECT_EQ(CountUpTo(histogram, 100), 6u);
  EXPECT_EQ(histogram.buckets.back().cumulative_count, 7u);
}

TEST(Latencies, BucketsAgreeWithPercentiles) {
  ycsb::LatencyHistogram latencies;
  for (int64_t ns = 1; ns < 50'000'000; ns += 997) latencies.Record(ns);
  const auto histogram = computenode::HistogramOf(latencies);
  uint64_t before = 0;
  for (const auto& bucket : histogram.buckets) {
    EXPECT_GE(bucket.cumulative_count, before);
    before = bucket.cumulative_count;
    if (bucket.cumulative_count < 1'000 || bucket.cumulative_count == latencies.count()) continue;
    const double percent =
        100.0 * static_cast<double>(bucket.cumulative_count) / static_cast<double>(latencies.count());
    EXPECT_NEAR(latencies.PercentileNs(percent) * 1e-9, bucket.upper_bound, 0.01 * bucket.upper_bound);
  }
}

computenode::WorkerRecord Worker(int64_t lanes_ns, int64_t retired_ns, int64_t ended_ns) {
  computenode::WorkerRecord worker;
  worker.wanted_ns = 1'000;
  worker.lanes_ns = lanes_ns;
  worker.retired_ns = retired_ns;
  worker.ended_ns = ended_ns;
  worker.client_stats.operations = 10;
  worker.client_stats.rc_reclaims = 1;
  worker.cpu_ns = 500'000'000;
  worker.connection_bytes = ended_ns == 0 ? 100 : 0;
  return worker;
}

TEST(Fleet, WhatDcInSoftwareSentAgainIsTold) {
  computenode::FleetView view;
  view.records = {Worker(5'000, 0, 0), Worker(5'000, 0, 10'000)};
  view.software_dc = computenode::TotalSoftwareDc(view.records);
  EXPECT_FALSE(view.software_dc) << "there is none";
  view.records[0].software_dc = {.sent = 100, .sent_again = 2};
  view.records[1].software_dc = {.sent = 50, .sent_again = 1, .early = 4};
  view.software_dc = computenode::TotalSoftwareDc(view.records);
  metrics::Families families;
  computenode::AddFleet(computenode::Options(), view, &families);
  const std::string text = families.Text();
  for (const char* line :
       {"surgekv_dc_sent_total 150\n", "surgekv_dc_sent_again_total 3\n", "surgekv_dc_early_total 4\n"})
    EXPECT_THAT(text, HasSubstr(std::string("\n") + line));
}

TEST(Fleet, WorkersAreCountedByStateAndWhatEndedOnesDidStays) {
  computenode::FleetView view;
  view.wanted = 3;
  view.restarted = 1;
  view.standby = 2;
  view.records = {Worker(0, 0, 0), Worker(5'000, 0, 0), Worker(5'000, 9'000, 0), Worker(5'000, 9'000, 10'000),
                  Worker(5'000, 0, 10'000)};
  view.records.back().died = true;
  view.records.back().status = {krcore::StatusCode::kUnavailable, "killed"};
  computenode::Options options;
  options.store.fabric = "f";
  metrics::Families families;
  computenode::AddFleet(options, view, &families);
  const std::string text = families.Text();
  EXPECT_THAT(text, Not(HasSubstr("surgekv_dc_"))) << "a NIC's own";
  for (const char* line :
       {"surgekv_workers{state=\"standby\"} 2\n", "surgekv_workers{state=\"starting\"} 1\n",
        "surgekv_workers{state=\"serving\"} 1\n", "surgekv_workers{state=\"draining\"} 1\n",
        "surgekv_workers_wanted 3\n", "surgekv_workers_started_total 5\n", "surgekv_workers_retired_total 2\n",
        "surgekv_workers_failed_total 1\n", "surgekv_workers_restarted_total 1\n",
        "surgekv_store_operations_total 50\n", "surgekv_store_rc_reclaims_total 5\n",
        "surgekv_worker_cpu_seconds_total 2.5\n", "surgekv_connection_memory_bytes 300\n",
        "surgekv_worker_start_seconds_count{part=\"spawn\"} 0\n"}) {
    EXPECT_THAT(text, HasSubstr(std::string("\n") + line));
  }
  EXPECT_THAT(text, Not(HasSubstr("nan")));
  const metrics::Announcement said = computenode::AnnouncementOf(view, 7'000'000'000, metrics::State::kServing);
  EXPECT_EQ(said.workers_wanted, 3);
  EXPECT_EQ(said.workers_starting, 1);
  EXPECT_EQ(said.workers_serving, 1);
  EXPECT_EQ(said.workers_draining, 1);
  EXPECT_EQ(said.operations, 50u);
  EXPECT_EQ(said.started_s, 7u);
}

}  // namespace
