#include "bench/spike/model/servers.h"

#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <random>

namespace spike_model {
namespace {

constexpr int64_t kMs = 1'000'000;
constexpr int64_t kAlways = INT64_MAX;

// `n` workers of `service_ns` under Poisson load of `utilisation`, for `requests` of them.
std::unique_ptr<Servers> RunPoisson(std::unique_ptr<Servers> servers, uint32_t n, double service_ns, double utilisation,
                                    double requests) {
  for (uint32_t id = 0; id < n; ++id) servers->Add(id, service_ns);
  std::mt19937_64 random(11);
  const double per_ns = utilisation * n / service_ns;
  std::poisson_distribution<int> arrivals(per_ns * kMs);
  for (int64_t now_ns = 0; servers->arrived() < requests; now_ns += kMs) {
    servers->Arrive(now_ns + kMs, arrivals(random));
    servers->Advance(now_ns + kMs);
  }
  return servers;
}

double Wait(const Servers& servers, double percent) { return servers.windows()[0].waits.Percentile(percent); }

TEST(SpikeModelServers, OneWorkerWaitsAsPollaczekAndKhinchineSay) {
  for (const double utilisation : {0.3, 0.5, 0.7, 0.9}) {
    const double service_ns = 10'000;
    const auto servers = RunPoisson(MakeExactServers({{0, kAlways, {}}}, 1), 1, service_ns, utilisation, 5e5);
    const double expected_ns = utilisation * service_ns / (2 * (1 - utilisation));  // M/D/1
    EXPECT_NEAR(servers->windows()[0].waits.mean_ns() / expected_ns, 1, 0.03) << utilisation;
  }
}

TEST(SpikeModelServers, ManyWorkersWaitAsCosmetatosApproximates) {
  for (const uint32_t n : {2U, 8U, 24U}) {
    for (const double rho : {0.7, 0.9}) {
      const double service_ns = 10'000;
      const auto servers = RunPoisson(MakeExactServers({{0, kAlways, {}}}, 1), n, service_ns, rho, 5e5);
      const double mmn_ns = ErlangC(n, rho * n) * service_ns / (n * (1 - rho));
      const double correction = 1 + (1 - rho) * (n - 1) * (std::sqrt(4 + 5.0 * n) - 2) / (16 * rho * n);
      EXPECT_NEAR(servers->windows()[0].waits.mean_ns() / (mmn_ns / 2 * correction), 1, 0.06) << n << " " << rho;
    }
  }
}

TEST(SpikeModelServers, TheFormulaForWaitsByChanceIsNearTheExactTail) {
  for (const uint32_t n : {1U, 8U, 24U}) {
    const double rho = 0.9, service_ns = 10'000;
    const auto servers = RunPoisson(MakeExactServers({{0, kAlways, {}}}, 1), n, service_ns, rho, 1e6);
    EXPECT_NEAR(MdnWaitNs(n, service_ns, rho, 99) / Wait(*servers, 99), 1, 0.25) << n;
  }
  EXPECT_EQ(MdnWaitNs(200, 10'000, 0.7, 99), 0);
}

TEST(SpikeModelServers, ErlangCHasItsKnownValues) {
  EXPECT_NEAR(ErlangC(1, 0.4), 0.4, 1e-12);
  EXPECT_NEAR(ErlangC(2, 1), 1.0 / 3, 1e-12);
  EXPECT_NEAR(ErlangC(10, 8), 0.40918, 1e-5);
  EXPECT_EQ(ErlangC(4, 4), 1);
}

// A queue that grows for 10 ms and is drained afterwards: waits follow from arithmetic.
TEST(SpikeModelServers, FluidAndExactAgreeWithArithmeticOnAnOverload) {
  for (const bool exact : {false, true}) {
    std::vector<WaitWindow> windows = {{0, 20 * kMs, {}}};
    auto servers = exact ? MakeExactServers(windows, 5) : MakeFluidServers(windows);
    for (uint32_t id = 0; id < 10; ++id) servers->Add(id, 10'000);  // 1 a us
    for (int64_t now_ns = 0; now_ns < 40 * kMs; now_ns += kMs) {
      if (now_ns == 10 * kMs) {
        for (uint32_t id = 10; id < 40; ++id) servers->Add(id, 10'000);  // 4 a us
        EXPECT_NEAR(servers->backlog(), 20'000, 100) << exact;
        EXPECT_NEAR(static_cast<double>(servers->oldest_wait_ns()), 6.67 * kMs, 0.1 * kMs) << exact;
      }
      if (now_ns < 20 * kMs) {
        servers->Arrive(now_ns + kMs, 3000);
      } else {
        servers->Arrive(now_ns + kMs, 1000);
      }
      servers->Advance(now_ns + kMs);
    }
    const Waits& waits = servers->windows()[0].waits;
    EXPECT_DOUBLE_EQ(waits.weight(), 60'000) << exact;
    // The longest wait is that of the request that came at 3.33 ms and was taken at 10; waits fall by 1/4 ns a ns from
    // then on, to 2.5 ms. So a sixth has waits of 0 to 6.67 ms, the others of 2.5 to 6.67 ms.
    EXPECT_NEAR(waits.max_ns(), 6.67 * kMs, 0.1 * kMs) << exact;
    EXPECT_NEAR(waits.Percentile(50), 4.44 * kMs, 0.15 * kMs) << exact;
    EXPECT_NEAR(servers->arrived(), servers->begun() + servers->backlog(), 1e-3) << exact;
  }
}

TEST(SpikeModelServers, EveryRequestIsBegunExactlyOnce) {
  std::mt19937_64 random(3);
  for (const bool exact : {false, true}) {
    std::vector<WaitWindow> windows = {{0, kAlways, {}}};
    auto servers = exact ? MakeExactServers(windows, 5) : MakeFluidServers(windows);
    std::vector<uint32_t> ids;
    double sent = 0;
    for (int64_t now_ns = 0; now_ns < 2000 * kMs; now_ns += kMs) {
      const auto count = static_cast<double>(random() % 60);
      sent += count;
      servers->Arrive(now_ns + kMs, count);
      // Workers come, go, change and stall in the middle.
      servers->Advance(now_ns + kMs / 3);
      if (random() % 20 == 0) {
        ids.push_back(static_cast<uint32_t>(now_ns / kMs));
        servers->Add(ids.back(), 20'000 + static_cast<double>(random() % 100'000));
      }
      if (!ids.empty() && random() % 25 == 0) {
        servers->Remove(ids.back());
        ids.pop_back();
      }
      if (!ids.empty() && random() % 10 == 0)
        servers->SetService(ids[0], 10'000 + static_cast<double>(random() % 9000));
      if (!ids.empty() && random() % 10 == 0) servers->Stall(ids[0], 2e6);
      servers->Advance(now_ns + kMs);
      ASSERT_NEAR(servers->begun() + servers->backlog(), sent, 1e-3);
    }
    for (uint32_t id = 5000; id < 5100; ++id) servers->Add(id, 1000);
    for (int64_t now_ns = 2000 * kMs; now_ns < 2100 * kMs; now_ns += kMs) servers->Advance(now_ns + kMs);
    EXPECT_NEAR(servers->begun(), sent, 1e-3) << exact;
    EXPECT_EQ(servers->backlog(), 0) << exact;
    EXPECT_NEAR(servers->windows()[0].waits.weight(), sent, 1e-3) << exact;
  }
}

TEST(SpikeModelServers, NoRequestIsServedBeforeItArrives) {
  for (const bool exact : {false, true}) {
    std::vector<WaitWindow> windows;
    auto servers = exact ? MakeExactServers(windows, 5) : MakeFluidServers(windows);
    servers->Arrive(kMs, 10'000);
    servers->Advance(kMs / 5);
    for (uint32_t id = 0; id < 1000; ++id) servers->Add(id, 10'000);  // ten times what they need
    servers->Advance(kMs / 2);
    EXPECT_NEAR(servers->begun(), 5000, 150) << exact;
  }
}

TEST(SpikeModelServers, AStalledWorkerServesNoRequest) {
  for (const bool exact : {false, true}) {
    std::vector<WaitWindow> windows;
    auto servers = exact ? MakeExactServers(windows, 5) : MakeFluidServers(windows);
    servers->Add(1, 10'000);
    servers->Stall(1, 2 * kMs);
    servers->Arrive(5 * kMs, 1000);
    servers->Advance(5 * kMs);
    EXPECT_NEAR(servers->begun(), 300, 2) << exact;
  }
}

TEST(SpikeModelServers, UtilisationIsTheBusyShare) {
  for (const bool exact : {false, true}) {
    std::vector<WaitWindow> windows;
    auto servers = exact ? MakeExactServers(windows, 5) : MakeFluidServers(windows);
    servers = RunPoisson(std::move(servers), 20, 10'000, 0.6, 1e5);
    EXPECT_NEAR(servers->TakeUtilisation(), 0.6, 0.01) << exact;
  }
}

TEST(SpikeModelServers, TheNicsLimitBindsWhateverTheWorkersCould) {
  auto servers = MakeFluidServers({{0, kAlways, {}}}, 1e6);
  for (uint32_t id = 0; id < 100; ++id) servers->Add(id, 10'000);  // 10 M/s
  for (int64_t now_ns = 0; now_ns < 10 * kMs; now_ns += kMs) {
    servers->Arrive(now_ns + kMs, 2000);
    servers->Advance(now_ns + kMs);
  }
  EXPECT_NEAR(servers->begun(), 10'000, 1);
}

TEST(SpikeModelWaits, PercentilesAreWithinABucket) {
  Waits waits;
  EXPECT_EQ(waits.Percentile(99), 0);
  for (int i = 1; i <= 1000; ++i) waits.Add(i * 1000.0, 1);
  EXPECT_NEAR(waits.Percentile(50) / 500e3, 1, 0.012);
  EXPECT_NEAR(waits.Percentile(99) / 990e3, 1, 0.012);
  EXPECT_EQ(waits.Percentile(100), 1e6);
  EXPECT_NEAR(waits.ShareAbove(900e3), 0.1, 0.012);
}

}  // namespace
}  // namespace spike_model
