#include "bench/spike/model/bootstrap.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "krcore/control_plane.h"
#include "krcore/node.h"
#include "krcore/queue_pool.h"
#include "krcore/rnic/sim/world.h"
#include "krcore/virtual_queue.h"

namespace spike_model {
namespace {

constexpr double kNsPerMs = 1e6;

// Starts `count` workers at 0, runs until nothing is left to do, and notes when each came to serve.
struct Started {
  Started(Plane plane, const Cluster& cluster, uint32_t count, const Constants& constants = {}, uint32_t promoted = 0,
          Spawn spawn = Spawn::kThread)
      : bootstrap(plane, spawn, cluster, constants, promoted, 1,
                  {.serving = [this](uint32_t) { serving_ns.push_back(now_ns); },
                   .promoted = [this](uint32_t, uint32_t) { promoted_ns.push_back(now_ns); },
                   .stalled = [this](uint32_t, double ns) { stalled_ns += ns; }}) {
    for (uint32_t i = 0; i < count; ++i) bootstrap.Start(0);
    Drain();
  }
  void Drain() {
    for (now_ns = bootstrap.next_ns(); now_ns != INT64_MAX; now_ns = bootstrap.next_ns()) bootstrap.Step();
  }
  double first_ms() const { return static_cast<double>(serving_ns.front()) / kNsPerMs; }
  double last_ms() const { return static_cast<double>(serving_ns.back()) / kNsPerMs; }

  int64_t now_ns = 0;
  std::vector<int64_t> serving_ns, promoted_ns;
  double stalled_ns = 0;
  Bootstrap bootstrap;
};

double RegisterMs(const Constants& c = {}) { return (c.register_ns + 256 * c.register_page_ns) / kNsPerMs; }

TEST(SpikeModelBootstrap, AConnectOnAnIdleFabricTakesThePublishedTime) {
  const Started one(Plane::kVerbs, ClusterAt(1), 1);
  EXPECT_NEAR(one.first_ms(), 0.038 + RegisterMs() + 18, 1e-6);
}

TEST(SpikeModelBootstrap, FurtherConnectsOfAWorkerDoNotOpenTheDeviceAgain) {
  Cluster cluster = ClusterAt(1);
  cluster.memory_nodes = 3;
  const Started one(Plane::kVerbs, cluster, 1);
  EXPECT_NEAR(one.first_ms(), 0.038 + RegisterMs() + 18 + 2 * (18 - 2.18 - 0.62), 1e-6);
  EXPECT_EQ(one.bootstrap.connections(), 3u);
}

TEST(SpikeModelBootstrap, AStormQueuesAtTheMemoryNodeAtThePublishedRate) {
  const Started storm(Plane::kVerbs, ClusterAt(1), 240);
  ASSERT_EQ(storm.serving_ns.size(), 240u);
  // 240 handshakes one after the other at one node; the rest of each connect passes at the same time.
  EXPECT_NEAR(storm.last_ms(), 240 / 0.55 + 18 - 1 / 0.55, 1);
  for (size_t i = 1; i < storm.serving_ns.size(); ++i) {
    ASSERT_GE(static_cast<double>(storm.serving_ns[i] - storm.serving_ns[i - 1]), 1e9 / 550 - 2) << i;
  }
}

TEST(SpikeModelBootstrap, AStormOfOneHostQueuesAtItsOwnControlPath) {
  Cluster cluster = ClusterAt(1);
  cluster.memory_nodes = 24;  // each of them hardly busy
  const Started storm(Plane::kVerbs, cluster, 24);
  EXPECT_GE(storm.last_ms(), 24 * 24 / 0.55);
  EXPECT_LE(storm.last_ms(), 24 * 24 / 0.55 + 2 * 18);
}

TEST(SpikeModelBootstrap, LiteConnectsOnceAHostAndItsWorkersShareThat) {
  Cluster cluster = ClusterAt(1);
  cluster.memory_nodes = 2;
  Started lite(Plane::kLite, cluster, 48);
  EXPECT_EQ(lite.bootstrap.connections(), 4u);  // two hosts
  EXPECT_EQ(lite.serving_ns.size(), 48u);
  // Workers that come later find them made.
  lite.serving_ns.clear();
  bool serving = false;
  lite.bootstrap.RetireYoungest(&serving);
  EXPECT_TRUE(serving);
  const int64_t now_ns = 1'000'000'000;
  lite.bootstrap.Start(now_ns);
  lite.Drain();
  EXPECT_NEAR(static_cast<double>(lite.serving_ns.at(0) - now_ns) / kNsPerMs, 0.038 + RegisterMs() + 2 * 0.0004, 1e-6);
  EXPECT_EQ(lite.bootstrap.connections(), 4u);
}

TEST(SpikeModelBootstrap, KrcoreLooksUpOnceAHostAndMakesNothing) {
  Cluster cluster = ClusterAt(1);
  cluster.memory_nodes = 5;
  const Started krcore(Plane::kKrcore, cluster, 24);
  EXPECT_NEAR(krcore.first_ms(), 0.038 + RegisterMs() + 5 * 0.00815, 1e-6);
  // The last is spawned last, and finds everything in the host's cache.
  EXPECT_NEAR(krcore.last_ms(), 24 * 0.038 + RegisterMs() + 5 * 0.0004, 1e-6);
  EXPECT_EQ(krcore.bootstrap.connections_made(), 0u);
}

TEST(SpikeModelBootstrap, PromotionWaitsForTheMemoryNodesAnswerAndItsPlaces) {
  Cluster cluster = ClusterAt(1);
  cluster.memory_nodes = 2;
  cluster.rc_places = 10;
  const Started promoted(Plane::kKrcoreRc, cluster, 24, {}, 2);
  // 10 places at each of two nodes; a worker that the first peer refuses asks no other.
  EXPECT_EQ(promoted.bootstrap.connections(), promoted.promoted_ns.size());
  EXPECT_GE(promoted.promoted_ns.size(), 10u);
  EXPECT_LE(promoted.promoted_ns.size(), 20u);
  EXPECT_GE(static_cast<double>(promoted.promoted_ns.front()) / kNsPerMs, 10 + 18 - 2.18 - 0.62);
  EXPECT_NEAR(promoted.stalled_ns / static_cast<double>(promoted.promoted_ns.size()) / kNsPerMs, 0.82 + 3 * 0.24, 1e-6);
}

TEST(SpikeModelBootstrap, APlaceIsFreeAgainWhenItsWorkerGoesEvenBeforeItsQueueIsMade) {
  Cluster cluster = ClusterAt(1);
  cluster.rc_places = 1;
  Started promoted(Plane::kKrcoreRc, cluster, 0, {}, 1);
  promoted.bootstrap.Start(0);
  while (promoted.stalled_ns == 0) promoted.bootstrap.Step();  // it has asked
  bool serving = false;
  promoted.bootstrap.RetireYoungest(&serving);
  promoted.bootstrap.Start(1'000'000'000);
  promoted.Drain();
  EXPECT_EQ(promoted.promoted_ns.size(), 1u);
}

TEST(SpikeModelBootstrap, AHostsConnectionsAreFinishedWhenTheWorkerThatAskedIsGone) {
  Started lite(Plane::kLite, ClusterAt(1), 0);
  for (int i = 0; i < 48; ++i) lite.bootstrap.Start(0);
  while (lite.bootstrap.next_ns() < 10'000'000) lite.bootstrap.Step();
  for (int i = 0; i < 24; ++i) {
    bool serving = true;
    lite.bootstrap.RetireYoungest(&serving);  // all of the second host
    EXPECT_FALSE(serving);
  }
  lite.bootstrap.Start(11'000'000);
  lite.Drain();
  EXPECT_EQ(lite.serving_ns.size(), 25u);
  EXPECT_EQ(lite.bootstrap.connections(), 2u);
}

TEST(SpikeModelBootstrap, AWorkerRetiredWhileStartingNeverServesAndDelaysNoOther) {
  for (const Plane plane : kPlanes) {
    uint32_t serving = 0;
    Bootstrap bootstrap(plane, Spawn::kThread, ClusterAt(1), {}, 1, 1,
                        {.serving = [&](uint32_t) { ++serving; },
                         .promoted = [](uint32_t, uint32_t) {},
                         .stalled = [](uint32_t, double) {}});
    for (int i = 0; i < 48; ++i) bootstrap.Start(0);
    for (int i = 0; i < 60; ++i) bootstrap.Step();
    uint32_t ended_early = 0;
    for (int i = 0; i < 30; ++i) {
      bool was_serving = false;
      bootstrap.RetireYoungest(&was_serving);
      ended_early += was_serving ? 0 : 1;
    }
    while (bootstrap.next_ns() != INT64_MAX) bootstrap.Step();
    EXPECT_EQ(serving, 48 - ended_early) << PlaneName(plane);
    EXPECT_EQ(bootstrap.workers(), 18u);
    EXPECT_EQ(bootstrap.starting(), 0u);
    EXPECT_EQ(bootstrap.hosts_used(), 1u);
    for (int i = 0; i < 18; ++i) {
      bool was_serving = false;
      bootstrap.RetireYoungest(&was_serving);
      EXPECT_TRUE(was_serving);
    }
    if (plane != Plane::kLite) {
      EXPECT_EQ(bootstrap.connections(), 0u) << PlaneName(plane);
    }
    bootstrap.Start(1'000'000'000'000);  // there is room again
    while (bootstrap.next_ns() != INT64_MAX) bootstrap.Step();
    EXPECT_EQ(serving, 48 - ended_early + 1) << PlaneName(plane);
  }
}

TEST(SpikeModelBootstrap, DoublingAControlPathCostNeverStartsAWorkerEarlier) {
  Cluster cluster = ClusterAt(1);
  cluster.memory_nodes = 3;
  for (const Plane plane : kPlanes) {
    const Started before(plane, cluster, 100);
    for (const ConstantInfo& info : ConstantTable()) {
      Constants constants;
      if (info.member == &Constants::handshakes_per_s) {
        constants.handshakes_per_s /= 2;
      } else if (info.member == &Constants::open_device_ns || info.member == &Constants::create_cq_ns) {
        continue;  // parts of verbs_connect_ns: the further connects of a worker get cheaper
      } else {
        constants.*info.member *= 2;
      }
      const Started after(plane, cluster, 100, constants);
      ASSERT_EQ(after.serving_ns.size(), before.serving_ns.size());
      for (size_t i = 0; i < after.serving_ns.size(); ++i) {
        ASSERT_GE(after.serving_ns[i], before.serving_ns[i]) << PlaneName(plane) << " " << info.name << " " << i;
      }
    }
  }
}

// The same steps by krcore itself over the simulated NIC, whose control paths are charged by the same constants.
TEST(SpikeModelBootstrap, WhatAUserSpaceProcessMakesCostsWhatTheSimulatorCharges) {
  krcore::rnic::sim::World world({.fabric = "spike-model"});
  const auto open = [&](krcore::NodeId id) {
    return krcore::Node::Open({.rnic = "sim", .fabric = "spike-model", .node = id, .clock = &world.clock()}).value();
  };
  auto peer = open(1);
  ASSERT_TRUE(peer->HostMetaServer(64).ok());
  ASSERT_TRUE(peer->Publish(krcore::Deadline::Never()).ok());
  auto node = open(2);
  const Cluster cluster = ClusterAt(1);
  const auto opened_ns = static_cast<double>(world.control_ns(2));
  EXPECT_NEAR(OpenNodeNs({}) / opened_ns, 1, 0.02);
  auto pool = node->CreateQueuePool(cluster.pool).value();
  EXPECT_NEAR(MakePoolNs(cluster, {}) / (static_cast<double>(world.control_ns(2)) - opened_ns), 1, 0.02);
  // A lookup is one READ there; the published query through the kernel takes longer, never less.
  auto queue = pool->CreateQueue(64).value();
  const int64_t before_ns = world.now_ns();
  ASSERT_TRUE(queue->Connect(1, krcore::Deadline::Never()).ok());
  const auto lookup_ns = static_cast<double>(world.now_ns() - before_ns);
  EXPECT_GE(lookup_ns, 2090);
  EXPECT_LE(lookup_ns, Constants().lookup_ns);
}

}  // namespace
}  // namespace spike_model
