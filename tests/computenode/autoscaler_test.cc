#include "computenode/elastic/autoscaler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <string>

#include "tests/computenode/simulated_load.h"

namespace computenode {
namespace {

using ::testing::HasSubstr;

TEST(Autoscaler, AsksForWhatTheLoadNeedsAtTheTargetUtilisation) {
  const ScaleDecision decision = Autoscaler(Policy()).Decide(Calm(0, 1, 7000));
  EXPECT_EQ(decision.workers, 10u);
  EXPECT_EQ(decision.reason, ScaleReason::kLoad);
  EXPECT_DOUBLE_EQ(decision.need_load, 10);
}

TEST(Autoscaler, WorkersThatAreStartingAreNotAskedForAgain) {
  const ScaleDecision decision =
      Autoscaler(Policy()).Decide({.workers = 1, .starting = 9, .arrivals_per_s = 7000, .utilisation = 1});
  EXPECT_EQ(decision.workers, 10u);
  EXPECT_EQ(decision.reason, ScaleReason::kEnough);
}

TEST(Autoscaler, ABacklogIsDrainedWithinTheSlo) {
  // 1000 requests within 10 ms take 100 workers in addition to the 7 that serve what arrives.
  ScalePolicy policy = Policy();
  policy.max_workers = 1000;
  policy.bootstrap_ns = 0;
  const ScaleDecision decision =
      Autoscaler(policy).Decide({.workers = 10, .arrivals_per_s = 7000, .backlog = 1000, .oldest_wait_ns = kMs});
  EXPECT_EQ(decision.workers, 107u);
  EXPECT_EQ(decision.reason, ScaleReason::kBacklog);
}

TEST(Autoscaler, ABacklogThatTheHeadroomDrainsInTimeAsksForNothing) {
  // 10 workers have 3000/s to spare, which is 30 requests in 10 ms.
  const ScaleSample sample{.workers = 10, .arrivals_per_s = 7000, .backlog = 29, .oldest_wait_ns = kMs};
  EXPECT_EQ(Autoscaler(Policy()).Decide(sample).workers, 10u);
}

TEST(Autoscaler, WhatArrivesWhileWorkersStartIsBacklogToo) {
  ScalePolicy slow = Policy();
  slow.bootstrap_ns = 20 * kMs;
  slow.max_workers = 1000;
  // In 20 ms 140 requests come and 1 worker takes 20 of them. The other 120 need 6 more workers for 20 ms.
  EXPECT_EQ(Autoscaler(slow).Decide(Calm(0, 1, 7000)).workers, 13u);
}

TEST(Autoscaler, OneMoreWhileSomebodyWaitsLongerThanAnythingExplains) {
  const ScaleSample late{.workers = 10, .arrivals_per_s = 10, .backlog = 1, .oldest_wait_ns = 12 * kMs};
  ScaleDecision decision = Autoscaler(Policy()).Decide(late);
  EXPECT_EQ(decision.workers, 11u);
  EXPECT_EQ(decision.reason, ScaleReason::kLate);
  ScaleSample in_time = late;
  in_time.oldest_wait_ns = 11 * kMs;  // the SLO plus the time in which a worker starts
  decision = Autoscaler(Policy()).Decide(in_time);
  EXPECT_EQ(decision.workers, 10u);
}

TEST(Autoscaler, BusierWorkersThanDeclaredCapacityExplainsAsksForMore) {
  Autoscaler scaler(Policy());
  const ScaleSample busy{.workers = 10, .arrivals_per_s = 5000, .utilisation = 0.9};
  EXPECT_EQ(scaler.Decide(busy).workers, 10u);  // perhaps it was still working off a backlog
  const ScaleDecision decision = scaler.Decide(busy);
  EXPECT_EQ(decision.workers, 13u);
  EXPECT_EQ(decision.reason, ScaleReason::kUtilisation);
}

TEST(Autoscaler, NeverMoreThanAStepOrTheMaximumAndSaysSo) {
  ScalePolicy policy = Policy();
  policy.max_step = 4;
  ScaleDecision decision = Autoscaler(policy).Decide(Calm(0, 1, 7000));
  EXPECT_EQ(decision.workers, 5u);
  EXPECT_TRUE(decision.limited_by_step);
  EXPECT_FALSE(decision.limited_by_maximum);
  decision = Autoscaler(Policy()).Decide(Calm(0, 1, 1e6));
  EXPECT_EQ(decision.workers, 100u);
  EXPECT_TRUE(decision.limited_by_maximum);
}

TEST(Autoscaler, ComesIntoItsRangeByStepsFromBelowAndAbove) {
  ScalePolicy policy = Policy();
  policy.min_workers = 6;
  policy.max_workers = 8;
  policy.max_step = 4;
  policy.scale_in_step = 2;
  ScaleDecision decision = Autoscaler(policy).Decide(Calm(0, 0, 0));
  EXPECT_EQ(decision.workers, 4u);
  EXPECT_EQ(decision.reason, ScaleReason::kMinimum);
  decision = Autoscaler(policy).Decide(Calm(0, 4, 0));
  EXPECT_EQ(decision.workers, 6u);
  decision = Autoscaler(policy).Decide(Calm(0, 11, 1e6));
  EXPECT_EQ(decision.workers, 9u);
  EXPECT_EQ(decision.reason, ScaleReason::kMaximum);
  decision = Autoscaler(policy).Decide(Calm(0, 9, 1e6));
  EXPECT_EQ(decision.workers, 8u);
}

TEST(Autoscaler, HoldsWhatTheLastWhileNeededThenRetiresStepByStep) {
  ScalePolicy policy = Policy();
  policy.capacity_per_s = 100;  // 1400 +- 37 requests in a window
  policy.reaction_ns = 1000 * kMs;
  Autoscaler scaler(policy);
  EXPECT_EQ(scaler.Decide(Calm(0, 1, 1400)).workers, 20u);
  for (int64_t ms = 1; ms <= 1000; ++ms) {
    const ScaleDecision decision = scaler.Decide(Calm(ms * kMs, 20, 700));
    ASSERT_EQ(decision.workers, 20u) << ms;
    ASSERT_EQ(decision.reason, ScaleReason::kHeld);
  }
  // 10 are needed; 10 x 1.1 + sqrt(700) / 70 are held.
  for (uint32_t workers = 20; workers > 12; --workers) {
    const ScaleDecision decision = scaler.Decide(Calm((1021 - workers) * kMs, workers, 700));
    ASSERT_EQ(decision.workers, workers - 1);
    ASSERT_EQ(decision.reason, ScaleReason::kScaleIn);
    ASSERT_NEAR(decision.held, 11.378, 0.001);
  }
  EXPECT_EQ(scaler.Decide(Calm(1012 * kMs, 12, 700)).workers, 12u);
}

TEST(Autoscaler, RetiresNobodyBeforeItHasSeenALoadForLongEnough) {
  Autoscaler scaler(Policy());
  EXPECT_EQ(scaler.Decide(Calm(5 * kSecond, 50, 0)).workers, 50u);
  EXPECT_EQ(scaler.Decide(Calm(6 * kSecond - 1, 50, 0)).workers, 50u);
  EXPECT_EQ(scaler.Decide(Calm(6 * kSecond, 50, 0)).workers, 49u);
}

TEST(Autoscaler, AnIdleServiceGoesBackToTheMinimum) {
  Autoscaler scaler(Policy());  // at least one worker
  uint32_t workers = scaler.Decide(Calm(0, 1, 7000)).workers;
  EXPECT_GT(workers, 5u);
  for (int64_t s = 1; s <= 20; ++s) workers = scaler.Decide(Calm(s * kSecond, workers, 0)).workers;
  EXPECT_EQ(workers, 1u);
}

TEST(Autoscaler, WorkersThatStartWithinTheSloNeedNoReserve) {
  ScalePolicy policy = Policy();
  policy.surge_factor = 10;
  EXPECT_EQ(policy.Reserve(), 0);
  policy.bootstrap_ns = policy.slo_ns - policy.reaction_ns;
  EXPECT_EQ(policy.Reserve(), 0);
  policy.bootstrap_ns = 39 * kMs;  // T = 40 ms: 3/4 of the surge must be there
  EXPECT_DOUBLE_EQ(policy.Reserve(), 10 * 0.7 * 0.75 - 1);
  policy.reserve = 0.5;
  EXPECT_EQ(policy.Reserve(), 0.5);
}

TEST(Autoscaler, TheReservePlansForNoSurgeThatTheMaximumCannotCarry) {
  ScalePolicy policy = Policy();
  policy.surge_factor = 10;
  policy.bootstrap_ns = 39 * kMs;
  EXPECT_EQ(Autoscaler(policy).Decide(Calm(0, 1, 3500)).workers, 27u);  // 5 x 10 x 0.7 x 3/4
  // 14000/s x 10 is twice what 100 workers carry: no more than 3/4 of 70000/s can be served at once.
  EXPECT_EQ(Autoscaler(policy).Decide(Calm(0, 20, 14'000)).workers, 53u);
  EXPECT_EQ(Autoscaler(policy).Decide(Calm(0, 80, 56'000)).workers, 80u);
}

TEST(Autoscaler, ADecisionsLineHasItsNumbers) {
  ScalePolicy policy = Policy();
  policy.surge_factor = 2;
  policy.bootstrap_ns = 49 * kMs;
  policy.min_workers = 2;
  policy.max_step = 5;
  const std::string line = Autoscaler(policy)
                               .Decide({.now_ns = 1'500'000,
                                        .workers = 3,
                                        .starting = 1,
                                        .arrivals_per_s = 7012,
                                        .backlog = 17,
                                        .oldest_wait_ns = 2'345'000,
                                        .utilisation = 0.875})
                               .ToString();
  for (const char* part : {"workers 4 -> 9 (reserve, limited by step)",
                           "serving 3",
                           "starting 1",
                           "arrivals 7012.0/s",
                           "backlog 17.0",
                           "oldest wait 2.345 ms",
                           "utilisation 0.875",
                           "needs load 10.02",
                           "reserve 11.22",
                           "backlog 10.87",
                           "late 0.00",
                           "held 16.12",
                           "capacity 1000.0/s at 0.70",
                           "reserve 0.120",
                           "SLO 10.000 ms",
                           "start 50.000 ms",
                           "workers 2 to 100",
                           "steps +5 -1",
                           "scale in after 1.000 s",
                           "at 0.001500 s"}) {
    EXPECT_THAT(line, HasSubstr(part));
  }
  EXPECT_EQ(line.find('\n'), std::string::npos);
}

TEST(Autoscaler, NonsenseInASampleCountsAsNothing) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  Autoscaler scaler(Policy());
  ScaleDecision decision = scaler.Decide(
      {.now_ns = 10, .workers = 5, .arrivals_per_s = nan, .backlog = -3, .oldest_wait_ns = -1, .utilisation = nan});
  EXPECT_EQ(decision.workers, 5u);
  EXPECT_EQ(decision.need_load, 0);
  decision = scaler.Decide({.now_ns = 5, .workers = 5, .arrivals_per_s = std::numeric_limits<double>::infinity()});
  EXPECT_EQ(decision.workers, 100u);
  EXPECT_EQ(decision.sample.now_ns, 10);
  decision = scaler.Decide({.now_ns = 20, .workers = UINT32_MAX, .starting = UINT32_MAX});
  EXPECT_EQ(decision.workers, UINT32_MAX - 1);
}

TEST(Autoscaler, APolicyThatMakesNoSenseIsRefusedByNameAndValue) {
  EXPECT_TRUE(Policy().Validate().ok());
  const auto refused = [](const std::function<void(ScalePolicy&)>& change, const char* text) {
    ScalePolicy policy = Policy();
    change(policy);
    const krcore::Status status = policy.Validate();
    EXPECT_TRUE(status == krcore::StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(std::string(status.message()), HasSubstr(text));
  };
  refused([](ScalePolicy& p) { p.capacity_per_s = 0; }, "capacity_per_s is 0");
  refused([](ScalePolicy& p) { p.capacity_per_s = std::nan(""); }, "capacity_per_s is nan");
  refused([](ScalePolicy& p) { p.slo_ns = 0; }, "slo_ns is 0");
  refused([](ScalePolicy& p) { p.target_utilisation = 1.1; }, "target_utilisation is 1.1");
  refused([](ScalePolicy& p) { p.target_utilisation = 0; }, "target_utilisation is 0");
  refused([](ScalePolicy& p) { p.min_workers = p.max_workers = 0; }, "max_workers is 0");
  refused([](ScalePolicy& p) { p.min_workers = 101; }, "min_workers is 101; allowed: at most max_workers");
  refused([](ScalePolicy& p) { p.max_step = 0; }, "max_step is 0");
  refused([](ScalePolicy& p) { p.scale_in_step = 0; }, "scale_in_step is 0");
  refused([](ScalePolicy& p) { p.max_step = 2, p.scale_in_step = 3; }, "scale_in_step is 3");
  refused([](ScalePolicy& p) { p.bootstrap_ns = -1; }, "bootstrap_ns is -1");
  refused([](ScalePolicy& p) { p.reaction_ns = -1; }, "reaction_ns is -1");
  refused([](ScalePolicy& p) { p.surge_factor = 0.5; }, "surge_factor is 0.5");
  refused([](ScalePolicy& p) { p.reserve = -0.5; }, "reserve is -0.5");
  refused([](ScalePolicy& p) { p.scale_in_after_ns = -1; }, "scale_in_after_ns is -1");
  refused([](ScalePolicy& p) { p.scale_in_margin = -0.1; }, "scale_in_margin is -0.1");
}

}  // namespace
}  // namespace computenode
