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

namespace {

using surgekv_test::SecondsSince;
using testing_support::Program;
using Instant = std::chrono::steady_clock::time_point;

// A thread with a client that writes keys and reads others, all the time, and knows what each may hold.
class Worker {
 public:
  // So many that the table splits: a key is in the pool of its subtable, and only then are there keys in each.
  static constexpr int kKeys = 20'000;

  explicit Worker(const std::string& fabric) : thread_([this, fabric] { Run(fabric); }) {}
  ~Worker() { End(); }
  Worker(const Worker&) = delete;

  // Ends it. The rest is to be asked afterwards.
  void End() {
    stop_ = true;
    if (thread_.joinable()) thread_.join();
  }
  uint64_t operations() const { return operations_; }
  uint64_t unknown() const { return unknown_; }
  double longest_s() const { return longest_s_; }
  // The first failures and wrong values.
  const std::vector<std::string>& problems() const { return problems_; }

 private:
  void Run(const std::string& fabric) {
    const auto store = kvs::Store::Open({.fabric = fabric}).value();
    const auto client = store->NewClient().value();
    for (uint64_t n = 0; !stop_; ++n) {
      Put(*client, KeyOf(n), n);
      // Coprime steps: the key was written some time ago.
      if (n >= kKeys) Get(*client, KeyOf(n * 7 + 3));
    }
    std::vector<std::string> keys;
    for (const auto& [key, values] : may_hold_) keys.push_back(key);
    for (const std::string& key : keys) Get(*client, key);
  }
  static std::string KeyOf(uint64_t n) { return "worker-" + std::to_string(n % kKeys); }
  void Put(kvs::Client& client, const std::string& key, uint64_t n) {
    const std::string value = std::to_string(n) + std::string(n % 300, 'v');
    const Instant begin = std::chrono::steady_clock::now();
    const kvs::Status status = client.Put(key, value);
    Note(key, begin, status, "Put");
    if (status.ok()) {
      may_hold_[key] = {value};
    } else {
      may_hold_[key].insert(value);
    }
  }
  void Get(kvs::Client& client, const std::string& key) {
    std::string value;
    const Instant begin = std::chrono::steady_clock::now();
    const kvs::Status status = client.Get(key, &value);
    Note(key, begin, status, "Get");
    if (!status.ok() || may_hold_[key].contains(value)) return;
    Problem("Get of " + key + " returned " + value.substr(0, 12) + " of " + std::to_string(value.size()) + " bytes");
  }
  void Note(const std::string& key, Instant begin, const kvs::Status& status, const char* what) {
    ++operations_;
    const auto since = silent_since_.try_emplace(key, begin).first;
    longest_s_ = std::max(longest_s_, SecondsSince(since->second));
    if (status.ok()) {
      silent_since_.erase(since);
    } else if (status == kvs::StatusCode::kUnknown || status == kvs::StatusCode::kTimeout) {
      ++unknown_;
    } else {
      Problem(std::string(what) + " of " + key + ": " + status.ToString());
    }
  }
  void Problem(std::string problem) {
    if (problems_.size() < 10) problems_.push_back(std::move(problem));
  }

  std::atomic<bool> stop_ = false;
  std::atomic<uint64_t> operations_ = 0;
  std::map<std::string, std::set<std::string>> may_hold_;
  std::map<std::string, Instant> silent_since_;  // keys whose last operation did not end well: since when
  uint64_t unknown_ = 0;
  double longest_s_ = 0;
  std::vector<std::string> problems_;
  std::thread thread_;
};

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
  void ReplaceEachRole(const Worker& worker) {
    while (worker.operations() < 2 * Worker::kKeys) usleep(1'000);
    for (const char* place : {"2 tail", "2 head", "1 tail", "1 head"}) ASSERT_NO_FATAL_FAILURE(Replace(place));
    for (const int node : {201, 202}) ReplaceMetaServer(node);
    ExpectEachHoldsKeys(AwaitRedundancy(2));
  }
  void ExpectNothingLost(Worker& worker) {
    worker.End();
    std::printf(
        "%llu operations, %llu of unknown outcome, a key was silent for %.3f s at most, redundant after %.3f s at "
        "most\n",
        static_cast<unsigned long long>(worker.operations()), static_cast<unsigned long long>(worker.unknown()),
        worker.longest_s(), slowest_s_);
    EXPECT_THAT(worker.problems(), ::testing::IsEmpty());
    EXPECT_GT(worker.operations(), 1'000u);
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
    learner.Signal(SIGSTOP);
    // It says so before the others know of it. It goes on step by step until they do.
    std::string place;
    for (int step = 0; step < 1'000 && (place = PlaceOf(Status(), node)) == "spare"; ++step) {
      learner.Signal(SIGCONT);
      usleep(2'000);  // how long it goes on in a step
      learner.Signal(SIGSTOP);
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
  EXPECT_NE(learner.WaitForLogLine("was replaced while it did not answer"), "") << learner.Output();
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
