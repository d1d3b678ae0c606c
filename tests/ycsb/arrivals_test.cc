#include "ycsb/workload/arrivals.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

namespace ycsb {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

constexpr double kNs = 1e9;

Arrivals Planned(const std::string& profile, ArrivalProcess process, uint64_t seed = 1,
                 uint64_t most = Arrivals::kAll) {
  return Arrivals::Plan(RateProfile::Parse(profile).value(), process, seed, most).value();
}

// Counts the arrivals that are due in each of `cells` equal parts of the profile.
std::vector<double> CountsOf(const Arrivals& arrivals, size_t cells) {
  std::vector<double> counts(cells);
  for (const int64_t due_ns : arrivals.due_ns) {
    ++counts.at(static_cast<size_t>(static_cast<double>(due_ns) * static_cast<double>(cells) /
                                    static_cast<double>(arrivals.end_ns)));
  }
  return counts;
}

TEST(Arrivals, EvenOnesAreEquallyFarApartAtAConstantRate) {
  const Arrivals arrivals = Planned("constant:1000,2", ArrivalProcess::kEven);
  ASSERT_EQ(arrivals.due_ns.size(), 2000u);
  for (size_t i = 0; i < 2000; ++i) ASSERT_EQ(arrivals.due_ns[i], static_cast<int64_t>(i) * 1'000'000);
  EXPECT_EQ(arrivals.end_ns, 2'000'000'000);
}

TEST(Arrivals, EvenOnesOfARampAgreeWithStepwiseIntegration) {
  for (const auto& [from, to] : {std::pair{0.0, 1000.0}, {1000.0, 0.0}, {250.0, 750.0}}) {
    const Arrivals arrivals =
        Planned("ramp:" + std::to_string(from) + "," + std::to_string(to) + ",2", ArrivalProcess::kEven);
    ASSERT_EQ(arrivals.due_ns.size(), 1000u);
    constexpr int64_t kSteps = 2'000'000;  // of a microsecond each
    double integral = 0;
    size_t next = 0;
    for (int64_t step = 0; step < kSteps && next < 1000; ++step) {
      integral += (from + (to - from) * (static_cast<double>(step) + 0.5) / kSteps) * 1e-6;
      if (integral <= static_cast<double>(next)) continue;
      EXPECT_NEAR(static_cast<double>(arrivals.due_ns[next]), static_cast<double>(step) * 1000, 1500) << next;
      ++next;
    }
    EXPECT_EQ(next, 1000u);
  }
}

TEST(Arrivals, EvenOnesFollowStepsAndSkipTimesWithoutAny) {
  const Arrivals arrivals = Planned("step:10@0,0@1,20@3,end@4", ArrivalProcess::kEven);
  ASSERT_EQ(arrivals.due_ns.size(), 30u);
  for (int64_t i = 0; i < 10; ++i) EXPECT_EQ(arrivals.due_ns[static_cast<size_t>(i)], i * 100'000'000);
  for (int64_t i = 0; i < 20; ++i) {
    EXPECT_EQ(arrivals.due_ns[static_cast<size_t>(10 + i)], 3'000'000'000 + i * 50'000'000);
  }
}

TEST(Arrivals, APartOfARequestAtTheEndIsOneThatBeganBeforeIt) {
  EXPECT_THAT(Planned("constant:2,1.2", ArrivalProcess::kEven).due_ns,
              ::testing::ElementsAre(0, 500'000'000, 1'000'000'000));
  EXPECT_THAT(Planned("constant:0.5,1", ArrivalProcess::kEven).due_ns, ::testing::ElementsAre(0));
}

TEST(Arrivals, MostCutsThePlanAndItsEnd) {
  const Arrivals all = Planned("ramp:100,300,5", ArrivalProcess::kPoisson, 7);
  const Arrivals some = Planned("ramp:100,300,5", ArrivalProcess::kPoisson, 7, 100);
  ASSERT_EQ(some.due_ns.size(), 100u);
  EXPECT_TRUE(std::equal(some.due_ns.begin(), some.due_ns.end(), all.due_ns.begin()));
  EXPECT_EQ(some.end_ns, some.due_ns.back());
  EXPECT_EQ(all.end_ns, 5'000'000'000);
  EXPECT_EQ(Planned("constant:100,1", ArrivalProcess::kEven, 1, 100).end_ns, 1'000'000'000);  // nothing was cut
}

TEST(Arrivals, TooManyOrNoneAreRefused) {
  for (const ArrivalProcess process : {ArrivalProcess::kEven, ArrivalProcess::kPoisson}) {
    const auto plan = [&](const char* text, uint64_t most) {
      return Arrivals::Plan(RateProfile::Parse(text).value(), process, 1, most).status();
    };
    const Status many = plan("constant:1e9,1", Arrivals::kAll);
    EXPECT_EQ(many.code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(
        many.message(),
        "constant:1e9,1: contains 1000000000 requests; expected at most 200000000, because memory holds the time of "
        "each one");
    EXPECT_FALSE(plan("constant:200000001,1", Arrivals::kAll).ok());
    EXPECT_TRUE(plan("constant:1e9,1", 1000).ok());
  }
  const Status none =
      Arrivals::Plan(RateProfile::Parse("constant:1e-9,1").value(), ArrivalProcess::kPoisson, 1).status();
  EXPECT_EQ(none.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(none.message()), HasSubstr("no request arrives before the end"));
}

TEST(Arrivals, PoissonIsReproducibleFromItsSeed) {
  const char* profile = "burst:100,1000,1,1,3";
  EXPECT_EQ(Planned(profile, ArrivalProcess::kPoisson, 5).due_ns, Planned(profile, ArrivalProcess::kPoisson, 5).due_ns);
  EXPECT_NE(Planned(profile, ArrivalProcess::kPoisson, 5).due_ns, Planned(profile, ArrivalProcess::kPoisson, 6).due_ns);
}

// Bounds are five standard deviations; the seeds are fixed.
TEST(Arrivals, PoissonCountsHaveTheirMeanAndAVarianceEqualToIt) {
  for (const uint64_t seed : {1, 2, 3}) {
    const Arrivals arrivals = Planned("constant:1000,1000", ArrivalProcess::kPoisson, seed);
    EXPECT_TRUE(std::is_sorted(arrivals.due_ns.begin(), arrivals.due_ns.end()));
    constexpr size_t kCells = 10'000;  // of 100 requests each
    const std::vector<double> counts = CountsOf(arrivals, kCells);
    double mean = 0, variance = 0;
    for (const double count : counts) mean += count / kCells;
    for (const double count : counts) variance += (count - mean) * (count - mean) / (kCells - 1);
    EXPECT_NEAR(mean, 100, 5 * std::sqrt(100.0 / kCells)) << seed;
    EXPECT_NEAR(variance / mean, 1, 5 * std::sqrt(2.0 / kCells)) << seed;
    // The counts are independent: neighbours do not correlate.
    double covariance = 0;
    for (size_t i = 1; i < kCells; ++i) covariance += (counts[i] - mean) * (counts[i - 1] - mean) / (kCells - 1);
    EXPECT_NEAR(covariance / variance, 0, 5 / std::sqrt(double{kCells})) << seed;
  }
}

TEST(Arrivals, PoissonGapsAreExponential) {
  const Arrivals arrivals = Planned("constant:1000,200", ArrivalProcess::kPoisson, 11);
  std::vector<double> gaps;  // in units of the mean
  int64_t last_ns = 0;
  for (const int64_t due_ns : arrivals.due_ns) {
    gaps.push_back(static_cast<double>(due_ns - last_ns) / 1e6);
    last_ns = due_ns;
  }
  std::sort(gaps.begin(), gaps.end());
  // Kolmogorov-Smirnov: sqrt(n) D stays below 1.95 with probability 0.999.
  const auto n = static_cast<double>(gaps.size());
  double distance = 0;
  for (size_t i = 0; i < gaps.size(); ++i) {
    const double below = 1 - std::exp(-gaps[i]);
    distance = std::max(
        {distance, std::abs(below - static_cast<double>(i) / n), std::abs(below - static_cast<double>(i + 1) / n)});
  }
  EXPECT_LT(std::sqrt(n) * distance, 1.95);
  EXPECT_GT(n, 199'000);
}

TEST(Arrivals, PoissonFollowsARateThatChanges) {
  for (const char* text : {"ramp:0,20000,10", "burst:2000,30000,4,2,10", "step:9000@0,0@3,500@5,12000@8,end@10"}) {
    const Arrivals arrivals = Planned(text, ArrivalProcess::kPoisson, 21);
    constexpr size_t kCells = 100;
    const std::vector<double> counts = CountsOf(arrivals, kCells);
    double chi2 = 0, degrees = 0;
    for (size_t i = 0; i < kCells; ++i) {
      const double expected = arrivals.profile.RequestsBy(static_cast<double>(i + 1) * 0.1) -
                              arrivals.profile.RequestsBy(static_cast<double>(i) * 0.1);
      if (expected == 0) {
        EXPECT_EQ(counts[i], 0) << text << " in part " << i;
        continue;
      }
      chi2 += (counts[i] - expected) * (counts[i] - expected) / expected;
      ++degrees;
    }
    EXPECT_LT(std::abs(chi2 - degrees) / std::sqrt(2 * degrees), 4) << text;
  }
}

TEST(Arrivals, AreExactOverTheLongestProfile) {
  const Arrivals arrivals = Planned("constant:1e-6,1e9", ArrivalProcess::kEven);
  ASSERT_EQ(arrivals.due_ns.size(), 1000u);
  EXPECT_EQ(arrivals.due_ns.back(), 999'000'000'000'000'000);
  EXPECT_EQ(arrivals.end_ns, 1'000'000'000'000'000'000);
}

using Shared = std::shared_ptr<const Arrivals>;

TEST(PlanArrivals, NothingIsPlannedForAClosedLoopOrEvenArrivalsAtATarget) {
  std::vector<std::string> warnings;
  EXPECT_EQ(PlanArrivals({}, &warnings).value(), nullptr);
  EXPECT_EQ(PlanArrivals({.target = 100}, &warnings).value(), nullptr);
  EXPECT_THAT(warnings, IsEmpty());
}

TEST(PlanArrivals, AProfileIsPlannedUpToTheCount) {
  std::vector<std::string> warnings;
  const Shared all = PlanArrivals({.profile = "burst:100,900,1,2,4", .most = 2000}, &warnings).value();
  EXPECT_EQ(all->due_ns.size(), 2000u);
  EXPECT_THAT(warnings, IsEmpty());
  EXPECT_EQ(DescribePlan(*all), "burst:100,900,1,2,4, even arrivals: 2000 requests in 4 s, at most 900 a second");
  const Shared some = PlanArrivals({.profile = "burst:100,900,1,2,4", .most = 150}, &warnings).value();
  EXPECT_EQ(some->due_ns.size(), 150u);
  ASSERT_EQ(warnings.size(), 1u);
  EXPECT_THAT(warnings[0], StartsWith("operationcount=150 ends --profile=burst:100,900,1,2,4 early, after 1.05"));
}

TEST(PlanArrivals, PoissonAtATargetEndsByCountOrTime) {
  std::vector<std::string> warnings;
  const Shared count =
      PlanArrivals({.arrivals = "poisson", .target = 1000, .most = 5000, .seed = 3}, &warnings).value();
  EXPECT_EQ(count->due_ns.size(), 5000u);
  EXPECT_EQ(count->end_ns, count->due_ns.back());
  EXPECT_NEAR(static_cast<double>(count->end_ns) / kNs, 5, 5 * std::sqrt(5000.0) / 1000);
  EXPECT_EQ(count->process, ArrivalProcess::kPoisson);
  EXPECT_EQ(count->profile.text(), "target=1000");
  const Shared time = PlanArrivals({.arrivals = "poisson", .target = 1000, .seconds = 4, .seed = 3}, &warnings).value();
  EXPECT_EQ(time->end_ns, 4'000'000'000);
  EXPECT_NEAR(static_cast<double>(time->due_ns.size()), 4000, 5 * std::sqrt(4000.0));
  EXPECT_TRUE(std::equal(time->due_ns.begin(), time->due_ns.begin() + 3000, count->due_ns.begin()));
  EXPECT_THAT(warnings, IsEmpty());
}

TEST(PlanArrivals, ErrorsNameTheFlags) {
  struct Case {
    ArrivalFlags flags;
    const char* message;
  };
  for (const Case& one :
       {Case{{.arrivals = "uniform"}, "--arrivals=uniform: expected even or poisson"},
        Case{{.profile = "ramp:1,2"}, "--profile=ramp:1,2: expected ramp:FROM,TO,SECONDS"},
        Case{{.profile = "constant:1,2", .target = 5},
             "--profile=constant:1,2: --target or the property target is also set, to 5; give only one of them"},
        Case{{.profile = "constant:1e9,9"}, "--profile=constant:1e9,9: contains 9000000000 requests"},
        Case{{.arrivals = "poisson"}, "--arrivals=poisson needs a rate: give --profile or --target"},
        Case{{.arrivals = "poisson", .target = 5},
             "--arrivals=poisson plans all requests in advance, so with --target the "
             "run needs an end: give operationcount or maxexecutiontime"},
        Case{{.arrivals = "poisson", .target = 1e9, .seconds = 60},
             "--arrivals=poisson: target=1000000000: contains"}}) {
    std::vector<std::string> warnings;
    const Status status = PlanArrivals(one.flags, &warnings).status();
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << one.message;
    EXPECT_THAT(std::string(status.message()), StartsWith(one.message));
  }
  std::vector<std::string> warnings;
  EXPECT_EQ(PlanArrivals({.profile = "file:/nonexistent"}, &warnings).status().code(), StatusCode::kNotFound);
}

}  // namespace
}  // namespace ycsb
