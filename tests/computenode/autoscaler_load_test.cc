// The Autoscaler under load over time: known shapes, and properties on random ones.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <functional>
#include <random>
#include <utility>
#include <vector>

#include "computenode/elastic/autoscaler.h"
#include "tests/computenode/simulated_load.h"

namespace computenode {
namespace {

// The derived reserve is exactly what a surge takes: with it the longest wait is within the SLO, and with a little less
// it is not.
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

TEST(Autoscaler, ConstantLoadSettlesAtWhatItNeedsAndStaysThere) {
  for (const uint32_t start : {0u, 3u, 10u, 80u}) {
    Simulated run(Policy(), start, kMs);
    run.Run(5 * kSecond, Constant(6500, kMs));
    EXPECT_EQ(run.ChangesSince(2 * kSecond), 0) << start;
    EXPECT_EQ(run.workers(), start == 80 ? 14u : 10u) << start;  // 9.3; when scaling in, 13.9 with margin and noise
  }
}

TEST(Autoscaler, AStepTenfoldIsFollowedAtOnceAndExactlyByFastWorkers) {
  Simulated run(Policy(), 10, kMs);
  run.Run(kSecond, Constant(6500, kMs));
  run.Run(2 * kSecond, Constant(65'000, kMs));
  EXPECT_EQ(run.ChangesSince(0), 1);
  EXPECT_GE(run.workers(), 93u);
  EXPECT_LE(run.workers(), 98u);  // the requests of the first window wait, and need some more
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

// One hour of a shop, in requests a second, one figure a minute: opening, lunch, an announcement, closing.
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
  EXPECT_LE(paid, 1.7 * needed);  // noise of ticks, the margin, and 30 s held in every minute of falling load
}

// Constant load with Poisson arrivals, under any policy: after the first hold, the number of workers stays at what the
// peaks of the noise need.
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
    // One minute is 60 times the hold. It has rare peaks; the workers that a peak adds are taken back one by one.
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

// Of two controllers that see the same workers, the one that sees more load in every sample never wants fewer.
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

// The same where each controller gets the workers that it wants. (Not where workers take long to start: the controller
// with fewer workers then lets more requests wait, and needs more than the other to catch up.)
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

}  // namespace
}  // namespace computenode
