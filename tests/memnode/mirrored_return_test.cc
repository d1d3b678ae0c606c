// Memory nodes of a store whose pools are mirrored that come back: after others removed them although they lived, and
// after all of them have stopped.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <atomic>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "kvs/client.h"
#include "tests/memnode/mirrored_nodes.h"
#include "tests/support/program.h"

namespace {

using ::testing::HasSubstr;
using testing_support::Program;

class MirroredReturn : public surgekv_test::MirroredNodes {
 protected:
  // So many that the table splits: only then are there keys in each pool.
  static constexpr int kManyKeys = 20'000;
  static constexpr int kMetaServer = 200;

  Program& StartNode(int node, std::vector<std::string> more = {}) {
    nodes_[node] = Start(node, std::move(more));
    return *nodes_.at(node);
  }
  // Nodes 1 and 2 have pool 1, nodes 3 and 4 pool 2.
  void StartTwoPools(const std::vector<std::string>& more) {
    metadata_[kMetaServer] = StartMetaServer(kMetaServer);
    for (const int node : {1, 2, 3, 4}) {
      std::vector<std::string> args = more;
      if (node == 1) args.emplace_back("--replicas=2");
      Program& program = StartNode(node, args);
      const std::string place = "a replica of pool " + std::to_string((node + 1) / 2);
      EXPECT_NE(program.WaitForLogLine(place), "") << program.Output();
    }
    (void)AwaitRedundancy(2);
    AwaitMemoryInBothPools();
  }
  std::string Problems() { return Status()["problems"].dump(); }
  // Nodes 1 and 2 have pool 1. Returns the second.
  Program& StartOnePool(const std::vector<std::string>& more) {
    metadata_[kMetaServer] = StartMetaServer(kMetaServer);
    std::vector<std::string> args = more;
    args.emplace_back("--replicas=2");
    StartNode(1, args);
    Program& second = StartNode(2, more);
    EXPECT_NE(second.WaitForLogLine("a replica of pool 1"), "") << second.Output();
    return second;
  }
};

TEST_F(MirroredReturn, AMemoryNodeThatWasRemovedWhileItLivedJoinsAgain) {
  Program& second = StartOnePool({"--keep_memory"});
  Write("before");
  (void)AwaitRedundancy(1);
  (void)Pause(second);
  const kvs::Replica removed = RemoveFromPool(2);
  Write("without it");
  second.Signal(SIGCONT);
  EXPECT_NE(second.WaitForLogLine("the store goes on without"), "") << second.Output();
  EXPECT_THAT(second.WaitForLine("ready"), HasSubstr("adopted=no")) << second.Output();
  EXPECT_NE(second.WaitForLogLine("a replica of pool 1"), "") << second.Output();
  (void)AwaitRedundancy(1);
  EXPECT_NE(RemoveFromPool(1).node, 0);  // the last one would not leave
  ExpectAllThere();
  const auto node = krcore::Node::Open({.fabric = fabric_.name()}).value();
  const kvs::Replica now = kvs::ReadConfiguration(*node, {})->Find(1)->chain.front();
  EXPECT_EQ(now.node, removed.node);
  EXPECT_NE(now.incarnation, removed.incarnation);
}

TEST_F(MirroredReturn, EveryKeyIsThereAfterAllHaveBeenStopped) {
  StartTwoPools({"--keep_memory"});
  Write("kept", kManyKeys);
  ExpectEachHoldsKeys(Status());
  store_.reset();
  for (const int node : {4, 1, 3, 2}) EXPECT_EQ(nodes_.at(node)->Stop(), 0) << nodes_.at(node)->Output();
  EXPECT_EQ(metadata_.at(kMetaServer)->Stop(), 0) << metadata_.at(kMetaServer)->Output();

  // The home's pool alone. If node 1 comes too late to return, it cannot join as long as the other pool is away.
  metadata_[kMetaServer] = StartMetaServer(kMetaServer);
  for (const int node : {2, 1}) StartNode(node, {"--keep_memory"});
  EXPECT_THAT(Problems(), HasSubstr("pool 2 has no living replica: start memory node 3 "));
  {
    const auto client = NewClient();
    int there = 0, away = 0;
    for (int i = 0; i < kManyKeys && (there == 0 || away == 0); i += 100) {
      const std::string key = "key-" + std::to_string(i);
      std::string read;
      const auto got = client->Get(key, &read);
      (got.ok() ? there : away) += 1;
      if (got.ok()) {
        EXPECT_EQ(read, contents_[key]);
      } else {
        EXPECT_EQ(got, kvs::StatusCode::kUnavailable);
      }
    }
    EXPECT_GT(there, 0);
    EXPECT_GT(away, 0);
  }
  for (const int node : {4, 3}) StartNode(node, {"--keep_memory"});
  (void)AwaitRedundancy(2);
  ExpectAllThere();
}

// A client writes when all memory nodes are killed, lives on, and goes on when they are back.
TEST_F(MirroredReturn, EveryAcknowledgedKeyIsThereAfterAllWereKilled) {
  StartTwoPools({});
  constexpr int kKeys = kManyKeys;
  std::map<std::string, std::set<std::string>> may_hold;
  std::atomic<int> written = 0;
  std::atomic<bool> stop = false;
  const auto store = kvs::Store::Open({.fabric = fabric_.name()}).value();
  const auto key_of = [](int n) { return "key-" + std::to_string(n % kKeys); };
  std::unique_ptr<kvs::Client> client;
  std::thread writer([&] {
    client = store->NewClient({}).value();
    for (int n = 0; !stop; ++n) {
      const std::string key = key_of(n), value = "value " + std::to_string(n);
      auto& values = may_hold[key];  // an empty one: none
      if (values.empty()) values.insert("");
      // What was there before the kill is read before it is written anew.
      std::string read;
      const auto got = client->Get(key, &read);
      if (got.ok() || got == kvs::StatusCode::kNotFound) {
        EXPECT_TRUE(values.contains(read)) << key << ": " << read;
      }
      const auto put = client->Put(key, value);
      if (put.ok()) values = {value};
      if (put == kvs::StatusCode::kUnknown || put == kvs::StatusCode::kTimeout) values.insert(value);
      if (put.ok()) {
        ++written;
        written.notify_one();
      }
    }
    client.reset();
  });
  const auto await_written = [&written](int goal) {
    for (int now = 0; (now = written) < goal;) written.wait(now);
  };
  await_written(kKeys + kKeys / 2);
  for (const int node : {1, 3, 2, 4}) nodes_.at(node)->Signal(SIGKILL);
  nodes_.clear();
  for (const int node : {4, 2, 1, 3}) StartNode(node);
  (void)AwaitRedundancy(2);
  await_written(written + kKeys);
  stop = true;
  writer.join();
  const auto reader = NewClient();
  for (const auto& [key, values] : may_hold) {
    std::string read;
    const auto got = reader->Get(key, &read);
    ASSERT_TRUE(got.ok()) << key << ": " << got.ToString();
    ASSERT_TRUE(values.contains(read)) << key << ": " << read;
  }
  EXPECT_EQ(may_hold.size(), static_cast<size_t>(kKeys));
}

TEST_F(MirroredReturn, AReplicaThatLeftEarlierDoesNotBringOldValuesBack) {
  Program& second = StartOnePool({"--keep_memory"});
  Write("old");
  EXPECT_EQ(second.Stop(), 0);
  EXPECT_THAT(second.out(), HasSubstr("memory=kept"));
  Write("new");
  store_.reset();
  EXPECT_EQ(nodes_.at(1)->Stop(), 0);
  EXPECT_EQ(metadata_.at(kMetaServer)->Stop(), 0);

  metadata_[kMetaServer] = StartMetaServer(kMetaServer);
  Program& early = StartNode(2, {"--keep_memory"});
  EXPECT_NE(early.WaitForLogLine("is thrown away"), "") << early.Output();
  EXPECT_THAT(early.out(), HasSubstr("adopted=no"));
  EXPECT_THAT(Problems(), HasSubstr("pool 1 has no living replica: start memory node 1 again"));
  EXPECT_THAT(StartNode(1, {"--keep_memory"}).out(), HasSubstr("adopted=yes"));
  ExpectAllThere();
  EXPECT_NE(early.WaitForLogLine("a replica of pool 1"), "") << early.Output();
  (void)AwaitRedundancy(1);
  nodes_.at(1)->Kill();
  ExpectAllThere();
}

}  // namespace
