// The replicas of a store are moved, and their number is changed, while an application uses the store.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/memnode/mirrored_nodes.h"
#include "tests/memnode/worker.h"
#include "tests/support/program.h"

namespace {

using surgekv_test::Worker;
using ::testing::HasSubstr;
using testing_support::Finished;
using testing_support::Program;
using testing_support::RunProgram;

class MirroredChanges : public surgekv_test::MirroredNodes {
 protected:
  void StartNodes(std::vector<int> nodes, const std::vector<std::string>& more = {}) {
    for (const int node : nodes) nodes_[node] = Start(node, more);
  }
  Finished Ask(const std::string& request) { return RunProgram("memnode", {fabric_.flag(), request}); }
  void Drain(int node) {
    const Finished drained = Ask("--drain=" + std::to_string(node));
    EXPECT_EQ(drained.status, 0) << drained.err;
    EXPECT_THAT(drained.out, HasSubstr("drained"));
  }
  void AwaitNodeAt(const std::string& place) {
    (void)AwaitStatus([&](const nlohmann::json& status) { return NodeAt(status, place) != 0; });
  }
  void AwaitPlace(int node, const std::string& place) {
    (void)AwaitStatus([&](const nlohmann::json& status) { return PlaceOf(status, node) == place; });
  }
};

TEST_F(MirroredChanges, AStoreOfSingleReplicasGetsSecondOnesAndGivesThemBack) {
  const auto metadata = StartMetaServer();
  StartNodes({1, 2}, {"--replicas=1"});
  AwaitMemoryInBothPools();
  Worker worker(fabric_.name());
  worker.AwaitEachKeyWritten();
  const Finished set = Ask("--set_replicas=2");
  EXPECT_EQ(set.status, 0) << set.err;
  EXPECT_THAT(set.out, HasSubstr("replicas=2"));
  (void)AwaitStatus([](const auto& status) {
    return status["problems"].dump().find("pool 2 has 1 of 2 replicas") != std::string::npos;
  });
  StartNodes({3, 4});
  ExpectEachHoldsKeys(AwaitRedundancy(2));
  nodes_.at(1)->Kill();
  nodes_.erase(1);
  StartNodes({5});
  (void)AwaitRedundancy(2);
  EXPECT_EQ(Ask("--set_replicas=1").status, 0);
  // Each node that has none any more makes a pool of its own.
  (void)AwaitStatus([&](const auto& status) {
    int pools = 0;
    for (const int node : {2, 3, 4, 5}) pools += PlaceOf(status, node).ends_with(" only");
    return pools == 4 && status["problems"].empty();
  });
  worker.ExpectNothingLost();
}

TEST_F(MirroredChanges, EveryNodeCanBeReplacedByAnother) {
  const auto metadata = StartMetaServer();
  StartNodes({1, 2, 3, 4}, {"--replicas=2"});
  (void)AwaitRedundancy(2);
  AwaitMemoryInBothPools();
  Worker worker(fabric_.name());
  worker.AwaitEachKeyWritten();
  for (int node = 1; node <= 4; ++node) {
    const int next = node + 10;
    StartNodes({next});
    Drain(node);
    const nlohmann::json status = Status();
    EXPECT_EQ(PlaceOf(status, node), "drained") << status.dump(1);
    EXPECT_NE(PlaceOf(status, next), "spare") << status.dump(1);
    EXPECT_EQ(nodes_.at(node)->Stop(), 0);
    nodes_.erase(node);
  }
  ExpectEachHoldsKeys(AwaitRedundancy(2));
  worker.ExpectNothingLost();
}

TEST_F(MirroredChanges, EveryNodeOfThreeReplicasCanBeReplacedAtOnce) {
  const auto metadata = StartMetaServer();
  StartNodes({1, 2, 3}, {"--replicas=3"});
  AwaitNodeAt("1 middle");  // then there are three
  Worker worker(fabric_.name());
  for (const int node : {1, 2, 3}) {
    Program drain("memnode", {fabric_.flag(), "--drain=" + std::to_string(node)});
    EXPECT_NE(drain.WaitForLine("draining"), "");  // then it is marked
    EXPECT_THAT(drain.WaitForLogLine("no memory node can take its place"), HasSubstr("start one"));
    EXPECT_NE(drain.Stop(), 0);
  }
  StartNodes({4, 5, 6});
  for (const int node : {1, 2, 3}) Drain(node);
  for (const int node : {1, 2, 3}) AwaitPlace(node, "drained");
  worker.ExpectNothingLost();
}

// Two memory nodes have begun a pool that wants a third one. A pool with keys gets them when it needs one.
TEST_F(MirroredChanges, APoolThatIsNotInUseIsGivenUpForOneThatIs) {
  const auto metadata = StartMetaServer();
  StartNodes({1, 2, 3}, {"--replicas=3"});
  AwaitNodeAt("1 middle");  // then there are three
  Write("value");
  StartNodes({4, 5});
  AwaitNodeAt("2 tail");
  nodes_.at(1)->Kill();
  nodes_.erase(1);
  (void)AwaitStatus(
      [&](const auto& status) { return PlaceOf(status, 4) == "1 tail" || PlaceOf(status, 5) == "1 tail"; });
  ExpectAllThere();
}

TEST_F(MirroredChanges, ADrainedNodeIsTakenBack) {
  auto [metadata, first, second] = StartPair();
  Write("before");
  auto third = Start(3);
  Drain(2);
  EXPECT_EQ(PlaceOf(Status(), 2), "drained");
  EXPECT_NE(second->WaitForLogLine("drained: "), "") << second->Output();
  first->Kill();  // its place is left empty although a node is there
  (void)AwaitStatus([&](const auto& status) { return PlaceOf(status, 3) == "1 only"; });
  EXPECT_EQ(PlaceOf(Status(), 2), "drained");
  const Finished undrained = Ask("--undrain=2");
  EXPECT_EQ(undrained.status, 0) << undrained.err;
  AwaitPlace(2, "1 tail");
  third->Kill();
  ExpectAllThere();
}

TEST_F(MirroredChanges, ADrainIsEndedByTakingTheNodeBack) {
  auto [metadata, first, second] = StartPair();
  Program drain("memnode", {fabric_.flag(), "--drain=1"});
  EXPECT_NE(drain.WaitForLine("draining"), "");
  EXPECT_THAT(Status()["nodes"][0].dump(), HasSubstr("\"state\":\"draining\""));
  EXPECT_EQ(Ask("--undrain=1").status, 0);
  EXPECT_THAT(drain.WaitForLogLine("was taken back into use"), HasSubstr("memory node 1"));
  auto third = Start(3);
  EXPECT_NE(third->WaitForLogLine("a replica of pool 2"), "") << third->Output();
}

// The node dies while it waits for another one, and is started again with its memory, which is the only one.
TEST_F(MirroredChanges, ANodeThatReturnsDuringItsDrainIsInUseAgain) {
  const auto metadata = StartMetaServer();
  auto first = Start(1, {"--replicas=1"});
  Write("value");
  for (int round = 0; round < 5; ++round) {
    Program drain("memnode", {fabric_.flag(), "--drain=1"});
    EXPECT_NE(drain.WaitForLine("draining"), "");
    first->Kill();
    first = Start(1);
    EXPECT_THAT(first->Output(), HasSubstr("adopted=yes"));
    EXPECT_THAT(drain.WaitForLogLine("memory node 1"), HasSubstr("was taken back into use, or started again"));
    EXPECT_THAT(drain.Output(), ::testing::Not(HasSubstr("drained")));
  }
  ExpectAllThere();
}

TEST_F(MirroredChanges, PoolsThatCouldBeInMoreFailureDomainsAreAProblem) {
  const auto metadata = StartMetaServer();
  StartNodes({1, 2}, {"--replicas=2", "--domain=rack-1"});
  AwaitPlace(2, "1 tail");
  StartNodes({3}, {"--domain=rack-1"});
  AwaitPlace(3, "2 only");
  StartNodes({4}, {"--domain=rack-1"});
  AwaitMemoryInBothPools();
  StartNodes({5}, {"--domain=rack-2"});
  // One of the pools gets it. Then the node that has left cannot help the other one.
  (void)AwaitStatus([](const auto& status) {
    const std::string problems = status["problems"].dump();
    return problems.find("is in 1 of 2 failure domains") != std::string::npos &&
           problems.find("under way") == std::string::npos && PlaceOf(status, 5).ends_with(" tail");
  });
}

TEST_F(MirroredChanges, ReplicasMoveToAnotherFailureDomain) {
  const auto metadata = StartMetaServer();
  StartNodes({1, 2}, {"--replicas=2", "--domain=rack-1"});
  (void)AwaitRedundancy(1);
  Write("value");
  StartNodes({3}, {"--domain=rack-2"});
  AwaitPlace(3, "1 tail");
  (void)AwaitStatus([&](const auto& status) { return PlaceOf(status, 2) == "2 only" && status["problems"].empty(); });
  nodes_.at(1)->Kill();
  ExpectAllThere();
}

TEST_F(MirroredChanges, WhatCannotBeDoneIsRefused) {
  auto [metadata, first, second] = StartPair();
  EXPECT_THAT(Ask("--drain=9").err, HasSubstr("memory node 9 has not joined the store"));
  EXPECT_THAT(Ask("--undrain=9").err, HasSubstr("memory node 9 has not joined the store"));
  EXPECT_THAT(Ask("--set_replicas=4").err, HasSubstr("--set_replicas=4"));
  EXPECT_EQ(Ask("--undrain=2").status, 0) << "it is in use, as wanted";
  EXPECT_EQ(Ask("--set_replicas=2").status, 0) << "it is so already";
  testing_support::TestFabric fabric;
  Program single("memnode", {fabric.flag(), "--node=1", "--memory=64M", "--metaserver", "--hugepages=off"});
  ASSERT_NE(single.WaitForLine("ready"), "") << single.Output();
  const Finished set = RunProgram("memnode", {fabric.flag(), "--set_replicas=2"});
  EXPECT_NE(set.status, 0);
  EXPECT_THAT(set.err, HasSubstr("not mirrored"));
  EXPECT_EQ(single.Stop(), 0);
}

}  // namespace
