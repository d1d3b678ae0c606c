#include "computenode/autoscaler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <functional>
#include <limits>
#include <random>
#include <string>
#include <vector>

namespace computenode {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kMs = 1'000'000;
constexpr int64_t kSecond = 1'000'000'000;

ScalePolicy Policy() {
  return {.capacity_per_s = 1000,
          .slo_ns = 10 * kMs,
          .target_utilisation = 0.7,
          .min_workers = 1,
          .max_workers = 100,
          .bootstrap_ns = kMs / 10,
          .reaction_ns = kMs,
          .scale_in_after_ns = kSecond};
}

ScaleSample Calm(int64_t now_ns, uint32_t workers, double arrivals_per_s) {
  return {.now_ns = now_ns, .workers = workers, .arrivals_per_s = arrivals_per_s};
}

// A queue in virtual time whose workers the Autoscaler starts and retires: each tick some requests arrive, the workers
// that have started take what they can, first come first served.
class Simulated {
 public:
  Simulated(const ScalePolicy& policy, uint32_t workers, int64_t tick_ns)
      : scaler_(policy), tick_ns_(tick_ns), workers_(workers) {}

  // `arrivals(now_ns)`: how many come in this tick.
  void Run(int64_t until_ns, const std::function<double(int64_t)>& arrivals) {
    for (; now_ns_ < until_ns; now_ns_ += tick_ns_) {
      Tick(arrivals(now_ns_));
      const ScaleDecision decision = scaler_.Decide(Sample());
      decisions_.push_back(decision);
      if (decision.workers > decision.before)
        starting_.push_back({now_ns_ + scaler_.policy().bootstrap_ns, decision.workers - decision.before});
      for (uint32_t fewer = decision.before - std::min(decision.workers, decision.before); fewer > 0; --fewer) {
        if (starting_.empty()) {
          --workers_;
        } else if (--starting_.back().workers == 0) {
          starting_.pop_back();
        }
      }
    }
  }
  uint32_t workers() const { return workers_ + Starting(); }
  int64_t now_ns() const { return now_ns_; }
  int64_t worst_wait_ns() const { return worst_wait_ns_; }
  void ForgetWorstWait() { worst_wait_ns_ = 0; }
  double slowness = 1;  // real capacity: declared / slowness
  const std::vector<ScaleDecision>& decisions() const { return decisions_; }
  int ChangesSince(int64_t ns) const {
    return static_cast<int>(std::count_if(decisions_.begin(), decisions_.end(), [ns](const ScaleDecision& decision) {
      return decision.sample.now_ns >= ns && decision.changes();
    }));
  }

 private:
  struct Group {
    int64_t at_ns;
    uint32_t workers;
  };
  struct Waiting {
    int64_t at_ns;
    double requests;
  };
  uint32_t Starting() const {
    uint32_t sum = 0;
    for (const Group& group : starting_) sum += group.workers;
    return sum;
  }
  void Tick(double arrived) {
    const double seconds = static_cast<double>(tick_ns_) / 1e9;
    while (!starting_.empty() && starting_.front().at_ns <= now_ns_) {
      workers_ += starting_.front().workers;
      starting_.pop_front();
    }
    rate_ = arrived / seconds;
    if (arrived > 0) queue_.push_back({now_ns_, arrived});
    const double can = workers_ * scaler_.policy().capacity_per_s * seconds / slowness;
    double left = can;
    while (!queue_.empty() && left > 0) {
      worst_wait_ns_ = std::max(worst_wait_ns_, now_ns_ - queue_.front().at_ns);
      const double taken = std::min(left, queue_.front().requests);
      left -= taken;
      queue_.front().requests -= taken;
      if (queue_.front().requests < 1e-9) queue_.pop_front();
    }
    utilisation_ = can > 0 ? 1 - left / can : 0;
  }
  ScaleSample Sample() const {
    ScaleSample sample{.now_ns = now_ns_, .workers = workers_, .starting = Starting(), .arrivals_per_s = rate_};
    for (const Waiting& waiting : queue_) sample.backlog += waiting.requests;
    sample.oldest_wait_ns = queue_.empty() ? 0 : now_ns_ - queue_.front().at_ns;
    sample.utilisation = utilisation_;
    return sample;
  }

  Autoscaler scaler_;
  const int64_t tick_ns_;
  int64_t now_ns_ = 0;
  uint32_t workers_;
  std::deque<Group> starting_;
  std::deque<Waiting> queue_;
  double rate_ = 0, utilisation_ = 0;
  int64_t worst_wait_ns_ = 0;
  std::vector<ScaleDecision> decisions_;
};

std::function<double(int64_t)> Constant(double per_s, int64_t tick_ns) {
  return [=](int64_t) { return per_s * static_cast<double>(tick_ns) / 1e9; };
}

// --- Single decisions ---

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
  // 1000 requests within 10 ms take 100 workers beside the 7 that serve what arrives.
  ScalePolicy policy = Policy();
  policy.max_workers = 1000;
  policy.bootstrap_ns = 0;
  const ScaleDecision decision =
      Autoscaler(policy).Decide({.workers = 10, .arrivals_per_s = 7000, .backlog = 1000, .oldest_wait_ns = kMs});
  EXPECT_EQ(decision.workers, 107u);
  EXPECT_EQ(decision.reason, ScaleReason::kBacklog);
}

TEST(Autoscaler, ABacklogThatTheHeadroomDrainsInTimeAsksForNothing) {
  // 10 workers have 3000/s to spare, 30 requests in 10 ms.
  const ScaleSample sample{.workers = 10, .arrivals_per_s = 7000, .backlog = 29, .oldest_wait_ns = kMs};
  EXPECT_EQ(Autoscaler(Policy()).Decide(sample).workers, 10u);
}

TEST(Autoscaler, WhatArrivesWhileWorkersStartIsBacklogToo) {
  ScalePolicy slow = Policy();
  slow.bootstrap_ns = 20 * kMs;
  slow.max_workers = 1000;
  // In 20 ms 140 requests come and 1 worker takes 20 of them; 120 in 20 ms are 6 workers more.
  EXPECT_EQ(Autoscaler(slow).Decide(Calm(0, 1, 7000)).workers, 13u);
}

TEST(Autoscaler, OneMoreWhileSomebodyWaitsLongerThanAnythingExplains) {
  const ScaleSample late{.workers = 10, .arrivals_per_s = 10, .backlog = 1, .oldest_wait_ns = 12 * kMs};
  ScaleDecision decision = Autoscaler(Policy()).Decide(late);
  EXPECT_EQ(decision.workers, 11u);
  EXPECT_EQ(decision.reason, ScaleReason::kLate);
  ScaleSample in_time = late;
  in_time.oldest_wait_ns = 11 * kMs;  // the SLO, and the time in which a worker starts
  decision = Autoscaler(Policy()).Decide(in_time);
  EXPECT_EQ(decision.workers, 10u);
}

TEST(Autoscaler, BusierWorkersThanDeclaredCapacityExplainsAsksForMore) {
  Autoscaler scaler(Policy());
  const ScaleSample busy{.workers = 10, .arrivals_per_s = 5000, .utilisation = 0.9};
  EXPECT_EQ(scaler.Decide(busy).workers, 10u);  // perhaps it still worked off a backlog
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
  // 10 are needed, 10 x 1.1 + sqrt(700) / 70 held.
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

// --- The reserve ---

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
  // 14000/s x 10 is twice what 100 workers carry: 3/4 of 70000/s can be served at once, no more.
  EXPECT_EQ(Autoscaler(policy).Decide(Calm(0, 20, 14'000)).workers, 53u);
  EXPECT_EQ(Autoscaler(policy).Decide(Calm(0, 80, 56'000)).workers, 80u);
}

// The derived reserve is exactly what a surge takes: with it the longest wait is within the SLO, with a little less it
// isn't.
TEST(Autoscaler, TheDerivedReserveSurvivesTheSurgeAndALittleLessDoesNot) {
  for (const double factor : {2.0, 5.0, 10.0}) {
    for (const int64_t bootstrap_ms : {1, 8, 20, 50, 200}) {
      ScalePolicy policy = Policy();
      policy.capacity_per_s = 100;
      policy.max_workers = 10'000;
      policy.bootstrap_ns = bootstrap_ms * kMs;
      policy.surge_factor = factor;
      const auto worst_wait = [&](double reserve) {
        ScalePolicy with = policy;
        with.reserve = reserve;
        const int64_t tick_ns = kMs / 10;
        Simulated run(with, static_cast<uint32_t>(std::ceil(100 * (1 + reserve))), tick_ns);
        with.reaction_ns = tick_ns;
        run.Run(kSecond, Constant(7000, tick_ns));
        run.Run(2 * kSecond, Constant(7000 * factor, tick_ns));
        return run.worst_wait_ns();
      };
      policy.reaction_ns = kMs / 10;
      const double reserve = policy.Reserve();
      EXPECT_LE(worst_wait(reserve), policy.slo_ns + kMs / 10) << factor << " " << bootstrap_ms;
      if (reserve > 0) {
        EXPECT_GT(worst_wait(reserve * 0.9 - 0.02), policy.slo_ns) << factor << " " << bootstrap_ms;
      }
    }
  }
}

// --- Loads over time ---

TEST(Autoscaler, ConstantLoadSettlesAtWhatItNeedsAndStaysThere) {
  for (const uint32_t start : {0u, 3u, 10u, 80u}) {
    Simulated run(Policy(), start, kMs);
    run.Run(5 * kSecond, Constant(6500, kMs));
    EXPECT_EQ(run.ChangesSince(2 * kSecond), 0) << start;
    EXPECT_EQ(run.workers(), start == 80 ? 14u : 10u) << start;  // 9.3; on the way down with margin and noise, 13.9
  }
}

TEST(Autoscaler, AStepTenfoldIsFollowedAtOnceAndExactlyByFastWorkers) {
  Simulated run(Policy(), 10, kMs);
  run.Run(kSecond, Constant(6500, kMs));
  run.Run(2 * kSecond, Constant(65'000, kMs));
  EXPECT_EQ(run.ChangesSince(0), 1);
  EXPECT_GE(run.workers(), 93u);
  EXPECT_LE(run.workers(), 98u);  // the requests of the first window wait, and want some more
  EXPECT_LE(run.worst_wait_ns(), 2 * kMs);
}

TEST(Autoscaler, WithoutAReserveSlowWorkersMissTheSloThatFastOnesKeep) {
  ScalePolicy policy = Policy();
  policy.bootstrap_ns = 50 * kMs;
  Simulated run(policy, 10, kMs);
  run.Run(kSecond, Constant(6500, kMs));
  run.Run(2 * kSecond, Constant(65'000, kMs));
  EXPECT_GT(run.worst_wait_ns(), policy.slo_ns);
}

TEST(Autoscaler, ARampIsFollowedWithinTheSlo) {
  Simulated run(Policy(), 10, kMs);
  run.Run(4 * kSecond, [](int64_t now_ns) { return (6500 + 14'000 * static_cast<double>(now_ns) / 1e9) / 1e3; });
  EXPECT_LE(run.worst_wait_ns(), 2 * kMs);
  EXPECT_GE(run.workers(), 88u);
  EXPECT_LE(run.workers(), 92u);
  for (const ScaleDecision& decision : run.decisions()) EXPECT_GE(decision.workers, decision.before);
}

TEST(Autoscaler, ABurstIsServedAndItsWorkersAreGivenBackLater) {
  Simulated run(Policy(), 10, kMs);
  run.Run(kSecond, Constant(6500, kMs));
  run.Run(kSecond + 20 * kMs, Constant(65'000, kMs));
  run.Run(2 * kSecond, Constant(6500, kMs));
  EXPECT_GE(run.workers(), 93u);  // within scale_in_after
  run.Run(4 * kSecond, Constant(6500, kMs));
  EXPECT_EQ(run.workers(), 14u);
}

TEST(Autoscaler, BurstsThatComeBackSoonerThanScaleInKeepTheirWorkers) {
  Simulated run(Policy(), 10, kMs);
  run.Run(10 * kSecond, [](int64_t now_ns) { return now_ns % (kSecond / 2) < 20 * kMs ? 65.0 : 6.5; });
  EXPECT_EQ(run.ChangesSince(kSecond), 0);
}

TEST(Autoscaler, WorkersThatAreSlowerThanDeclaredAreNoticed) {
  for (const double slowness : {1.2, 1.6, 3.0}) {
    Simulated run(Policy(), 10, kMs);
    run.slowness = slowness;
    run.Run(3 * kSecond, Constant(7000, kMs));
    run.ForgetWorstWait();
    run.Run(10 * kSecond, Constant(7000, kMs));
    EXPECT_GE(run.workers(), 10 * slowness) << slowness;
    EXPECT_LE(run.worst_wait_ns(), 10 * kMs) << slowness;
  }
}

// One hour of a shop, in requests a second, a minute each: opening, lunch, an announcement, closing.
TEST(Autoscaler, ARecordedHourIsServedWithoutSurplus) {
  const std::vector<double> minutes = {
      310,   290,   335,    420,    610,    980,    1'520,  2'300,  3'150,  4'020,  4'800,  5'350, 5'700, 6'050, 6'200,
      6'420, 6'380, 6'700,  7'900,  9'450,  11'200, 12'800, 13'100, 12'950, 12'100, 10'300, 8'800, 7'600, 7'100, 6'900,
      6'850, 6'800, 61'000, 66'400, 58'200, 41'000, 27'300, 18'600, 13'900, 11'300, 9'900,  9'100, 8'700, 8'300, 7'900,
      7'250, 6'800, 6'100,  5'400,  4'700,  4'000,  3'300,  2'650,  2'050,  1'540,  1'120,  810,   590,   430,   350};
  ScalePolicy policy = Policy();
  policy.scale_in_after_ns = 30 * kSecond;
  const int64_t tick_ns = 10 * kMs;
  policy.reaction_ns = tick_ns;
  Simulated run(policy, 1, tick_ns);
  std::mt19937_64 random(7);
  double paid = 0, needed = 0;
  for (size_t minute = 0; minute < minutes.size(); ++minute) {
    std::poisson_distribution<int> arrivals(minutes[minute] / 100);
    const size_t first = run.decisions().size();
    run.Run(static_cast<int64_t>(minute + 1) * 60 * kSecond, [&](int64_t) { return arrivals(random); });
    for (size_t i = first; i < run.decisions().size(); ++i) paid += run.decisions()[i].workers;
    needed += std::ceil(minutes[minute] / 700) * static_cast<double>(run.decisions().size() - first);
  }
  EXPECT_LE(run.worst_wait_ns(), 2 * tick_ns);
  EXPECT_GE(paid, needed);
  EXPECT_LE(paid, 1.7 * needed);  // noise of ticks, the margin, 30 s held of every minute of falling load
}

// --- Properties ---

// Constant load with Poisson arrivals, whatever the policy: after the first hold the workers stay what the noise's
// peaks need.
TEST(AutoscalerProperty, DoesNotOscillateUnderConstantPoissonLoad) {
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    std::mt19937_64 random(seed);
    const auto uniform = [&](double low, double high) {
      return std::uniform_real_distribution<double>(low, high)(random);
    };
    ScalePolicy policy = Policy();
    policy.max_workers = 1000;
    policy.capacity_per_s = std::exp(uniform(std::log(200), std::log(20'000)));
    policy.target_utilisation = uniform(0.4, 0.85);
    policy.slo_ns = static_cast<int64_t>(uniform(5, 50) * 1e6);
    policy.bootstrap_ns = static_cast<int64_t>(std::exp(uniform(std::log(1e3), std::log(5e7))));
    policy.surge_factor = uniform(1, 5);
    const int64_t tick_ns = 10 * kMs;
    policy.reaction_ns = tick_ns;
    const double load = policy.capacity_per_s * uniform(0.5, 100);
    std::poisson_distribution<int> arrivals(load * static_cast<double>(tick_ns) / 1e9);
    Simulated run(policy, static_cast<uint32_t>(uniform(0, 200)), tick_ns);
    run.Run(5 * kSecond, [&](int64_t) { return arrivals(random); });
    run.Run(65 * kSecond, [&](int64_t) { return arrivals(random); });
    int outs = 0, ins = 0;
    for (const ScaleDecision& decision : run.decisions()) {
      if (decision.sample.now_ns < 5 * kSecond) continue;
      outs += decision.workers > decision.before ? 1 : 0;
      ins += decision.workers < decision.before ? 1 : 0;
    }
    // In a minute, 60 times the hold: a rare peak, and what it added taken back one by one.
    EXPECT_LE(outs, 4) << "seed " << seed << " " << run.decisions().back().ToString();
    EXPECT_LE(ins, 20) << "seed " << seed << " " << run.decisions().back().ToString();
  }
}

TEST(AutoscalerProperty, KeepsItsLimitsAndItsWordOnAnySamples) {
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    std::mt19937_64 random(seed);
    const auto below = [&](uint64_t end) { return random() % end; };
    ScalePolicy policy = Policy();
    policy.min_workers = static_cast<uint32_t>(below(20));
    policy.max_workers = std::max<uint32_t>(policy.min_workers + static_cast<uint32_t>(below(200)), 1);
    policy.max_step = 1 + static_cast<uint32_t>(below(50));
    policy.scale_in_step = 1 + static_cast<uint32_t>(below(policy.max_step));
    policy.bootstrap_ns = static_cast<int64_t>(below(100 * kMs));
    policy.surge_factor = 1 + static_cast<double>(below(20));
    policy.scale_in_after_ns = static_cast<int64_t>(below(200 * kMs));
    ASSERT_TRUE(policy.Validate().ok());
    Autoscaler scaler(policy);
    uint32_t workers = static_cast<uint32_t>(below(250));
    bool inside = false;
    std::deque<std::pair<int64_t, double>> needed;
    for (int64_t now_ns = 0; now_ns < kSecond; now_ns += static_cast<int64_t>(below(10 * kMs))) {
      const uint32_t starting = static_cast<uint32_t>(below(workers + 1));
      ScaleSample sample{.now_ns = now_ns, .workers = workers - starting, .starting = starting};
      sample.arrivals_per_s = static_cast<double>(below(uint64_t{1} << below(18)));
      if (below(3) == 0) {
        sample.backlog = static_cast<double>(below(1000));
        sample.oldest_wait_ns = static_cast<int64_t>(below(100 * kMs));
      }
      sample.utilisation = static_cast<double>(below(101)) / 100;
      const ScaleDecision decision = scaler.Decide(sample);
      const uint32_t low = std::min(decision.workers, workers), high = std::max(decision.workers, workers);
      ASSERT_LE(high - low, policy.max_step) << seed;
      if (decision.workers < workers) {
        ASSERT_LE(high - low, policy.scale_in_step) << seed;
      }
      inside = inside || (workers >= policy.min_workers && workers <= policy.max_workers);
      if (inside) {
        ASSERT_GE(decision.workers, policy.min_workers) << seed;
        ASSERT_LE(decision.workers, policy.max_workers) << seed;
      }
      needed.emplace_back(now_ns, std::max({decision.need_load, decision.need_reserve, decision.need_backlog,
                                            decision.need_utilisation, decision.need_late}));
      while (needed.front().first < now_ns - policy.scale_in_after_ns) needed.pop_front();
      if (decision.workers < workers && workers <= policy.max_workers) {
        for (const auto& [at_ns, need] : needed)
          ASSERT_GE(decision.workers, std::min<double>(need, policy.max_workers)) << seed << " " << at_ns;
      }
      workers = decision.workers;
    }
  }
}

ScalePolicy RandomPolicy(std::mt19937_64& random) {
  const auto below = [&](uint64_t end) { return random() % end; };
  ScalePolicy policy = Policy();
  policy.max_workers = 1 + static_cast<uint32_t>(below(200));
  policy.scale_in_step = 1 + static_cast<uint32_t>(below(10));
  policy.bootstrap_ns = static_cast<int64_t>(below(100 * kMs));
  policy.surge_factor = 1 + static_cast<double>(below(20));
  policy.scale_in_after_ns = static_cast<int64_t>(below(200 * kMs));
  return policy;
}

// Two controllers see the same workers, one of them more load in every sample: it never wants fewer.
TEST(AutoscalerProperty, MoreLoadNeverMeansFewerWorkers) {
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    std::mt19937_64 random(seed);
    const ScalePolicy policy = RandomPolicy(random);
    Autoscaler less(policy), more(policy);
    for (int64_t now_ns = 0; now_ns < kSecond; now_ns += 5 * kMs) {
      ScaleSample sample = Calm(now_ns, static_cast<uint32_t>(random() % 200), static_cast<double>(random() % 100'000));
      const uint32_t few = less.Decide(sample).workers;
      sample.arrivals_per_s += static_cast<double>(random() % 20'000);
      ASSERT_LE(few, more.Decide(sample).workers) << "seed " << seed << " at " << now_ns;
    }
  }
}

// The same where each controller's wishes come true. (Not where workers take long: who has fewer of them then lets more
// wait, and needs more than the other to catch up.)
TEST(AutoscalerProperty, MoreLoadAllAlongNeverEndsWithFewerWorkers) {
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    std::mt19937_64 random(seed);
    ScalePolicy policy = RandomPolicy(random);
    policy.bootstrap_ns = 0;
    Autoscaler less(policy), more(policy);
    uint32_t few = 1, many = 1;
    for (int64_t now_ns = 0; now_ns < kSecond; now_ns += 5 * kMs) {
      ScaleSample sample = Calm(now_ns, few, static_cast<double>(random() % 100'000));
      few = less.Decide(sample).workers;
      sample.workers = many;
      sample.arrivals_per_s += static_cast<double>(random() % 20'000);
      many = more.Decide(sample).workers;
      ASSERT_LE(few, many) << "seed " << seed << " at " << now_ns;
    }
  }
}

TEST(AutoscalerProperty, MoreBacklogMoreWaitOrMoreUtilisationNeverMeansFewerWorkers) {
  std::mt19937_64 random(3);
  const auto below = [&](uint64_t end) { return random() % end; };
  for (int round = 0; round < 5000; ++round) {
    ScaleSample sample{.now_ns = 0, .workers = static_cast<uint32_t>(below(50))};
    sample.starting = static_cast<uint32_t>(below(20));
    sample.arrivals_per_s = static_cast<double>(below(50'000));
    sample.backlog = static_cast<double>(below(100));
    sample.oldest_wait_ns = static_cast<int64_t>(below(20 * kMs));
    ScaleSample worse = sample;
    worse.backlog += static_cast<double>(below(100));
    worse.oldest_wait_ns += static_cast<int64_t>(below(20 * kMs));
    EXPECT_LE(Autoscaler(Policy()).Decide(sample).workers, Autoscaler(Policy()).Decide(worse).workers);
  }
}

TEST(Autoscaler, TheSameSamplesGiveTheSameDecisions) {
  Simulated first(Policy(), 5, kMs);
  first.Run(kSecond, [](int64_t now_ns) { return static_cast<double>(now_ns / kMs * 7919 % 61); });
  Autoscaler again(Policy());
  for (const ScaleDecision& decision : first.decisions()) {
    EXPECT_EQ(again.Decide(decision.sample).ToString(), decision.ToString());
  }
}

// --- Text and errors ---

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
