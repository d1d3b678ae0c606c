// A store whose pools are mirrored goes on while its nodes are killed, stopped and replaced, and loses nothing.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "kvs/client.h"
#include "tests/memnode/mirrored_nodes.h"
#include "tests/memnode/worker.h"

namespace {

using surgekv_test::Instant;
using surgekv_test::SecondsSince;
using surgekv_test::Worker;
using testing_support::Program;

class MirroredDeaths : public surgekv_test::MirroredNodes {
 protected:
  void StartNode(std::vector<std::string> more = {}) {
    const int node = next_++;
    nodes_[node] = Start(node, std::move(more));
  }
  void StartTwoPools() {
    for (const int node : {201, 202}) metadata_[node] = StartMetaServer(node);
    StartNode({"--replicas=2"});
    for (int i = 0; i < 3; ++i) StartNode();
    (void)AwaitRedundancy(2);
    AwaitMemoryInBothPools();
  }
  // Kills the node at that place, starts another one, and waits until nothing is missing.
  void Replace(const std::string& place) {
    const int node = NodeAt(AwaitRedundancy(2), place);
    ASSERT_NE(node, 0) << place;
    const Instant begin = std::chrono::steady_clock::now();
    nodes_.at(node)->Kill();
    nodes_.erase(node);
    StartNode();
    (void)AwaitRedundancy(2);
    slowest_s_ = std::max(slowest_s_, SecondsSince(begin));
  }
  void ReplaceMetaServer(int node) {
    metadata_.at(node)->Kill();
    metadata_[node] = StartMetaServer(node);
  }
  // One death of each role, once the worker has written each key.
  void ReplaceEachRole(Worker& worker) {
    worker.AwaitEachKeyWritten();
    for (const char* place : {"2 tail", "2 head", "1 tail", "1 head"}) ASSERT_NO_FATAL_FAILURE(Replace(place));
    for (const int node : {201, 202}) ReplaceMetaServer(node);
    ExpectEachHoldsKeys(AwaitRedundancy(2));
  }
  void ExpectNothingLost(Worker& worker) {
    worker.ExpectNothingLost();
    if (slowest_s_ > 0) std::printf("redundant after %.3f s at most\n", slowest_s_);
  }
  // The learner has become a replica, and has everything without the first node.
  void ExpectCopyIsWhole(Worker& worker) {
    (void)AwaitRedundancy(1);
    ExpectNothingLost(worker);
    nodes_.at(1)->Kill();
    ExpectAllThere();
  }
  // A store of one pool, whose second node, which copies many keys, is stopped (SIGSTOP) in the middle of that.
  Program& StartLearner() {
    metadata_[201] = StartMetaServer(201);
    StartNode({"--replicas=2"});
    Write(std::string(800, 'v'), 20'000);
    const int node = next_;
    StartNode();
    Program& learner = *nodes_.at(node);
    EXPECT_NE(learner.WaitForLogLine("copying pool 1"), "") << learner.Output();
    // It says so before the others know of it. It goes on step by step until they do.
    std::string place;
    for (int step = 0; step < 1'000 && (place = PlaceOf(Pause(learner), node)) == "spare"; ++step) {
      learner.Signal(SIGCONT);
      usleep(2'000);  // how long it goes on in a step
    }
    EXPECT_EQ(place, "1 learner");
    return learner;
  }
  void StopLearnerFor(useconds_t us) {
    Program& learner = StartLearner();
    Worker worker(fabric_.name());
    usleep(us);  // how long a process is stopped is what the test is about
    learner.Signal(SIGCONT);
    ExpectCopyIsWhole(worker);
  }

  int next_ = 1;
  double slowest_s_ = 0;
};

TEST_F(MirroredDeaths, NothingIsLostWhenNodesOfEachRoleDie) {
  StartTwoPools();
  Worker worker(fabric_.name());
  ASSERT_NO_FATAL_FAILURE(ReplaceEachRole(worker));
  ExpectNothingLost(worker);
}

TEST_F(MirroredDeaths, NothingIsLostWhenNodesOfEachRoleDieAgainAndAgain) {
  StartTwoPools();
  Worker one(fabric_.name());
  for (int round = 0; round < 5; ++round) ASSERT_NO_FATAL_FAILURE(ReplaceEachRole(one));
  ExpectNothingLost(one);
}

TEST_F(MirroredDeaths, NothingIsLostWhenALearnerStopsForAMoment) { StopLearnerFor(50'000); }

TEST_F(MirroredDeaths, NothingIsLostWhenALearnerStopsForLong) { StopLearnerFor(3'000'000); }

TEST_F(MirroredDeaths, ALearnerThatWasRemovedWhileItLivedJoinsAgain) {
  Program& learner = StartLearner();
  RemoveFromPool(2);
  Worker worker(fabric_.name());
  learner.Signal(SIGCONT);
  EXPECT_NE(learner.WaitForLogLine("the store goes on without"), "") << learner.Output();
  EXPECT_NE(learner.WaitForLogLine("a replica of pool 1"), "") << learner.Output();
  ExpectCopyIsWhole(worker);
}

TEST_F(MirroredDeaths, ALearnerThatDiesIsReplacedByAnother) {
  Program& learner = StartLearner();
  Worker worker(fabric_.name());
  learner.Kill();
  StartNode();
  ExpectCopyIsWhole(worker);
}

}  // namespace
