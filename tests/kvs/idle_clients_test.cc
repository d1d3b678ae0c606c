// Clients of a mirrored store that nobody calls, on the real clock: the caretaker (kvs/client/caretaker.h) looks after
// them.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "krcore/node.h"
#include "kvs/client.h"
#include "kvs/layout/pool.h"
#include "kvs/memory/join.h"
#include "kvs/memory/remote_pool.h"
#include "tests/kvs/mirrored_store.h"

namespace {

using krcore::NodeId;
using surgekv_test::MirrorNode;

constexpr NodeId kHead = 1, kTail = 2;

class IdleClients : public ::testing::Test {
 protected:
  void MakeStore(int64_t lease_ns) {
    servers_ = OpenNode(200);
    ASSERT_TRUE(servers_->HostMetaServer(64).ok());
    std::vector<MirrorNode> chain;
    for (const NodeId id : {kHead, kTail}) {
      nodes_.push_back(OpenNode(id));
      regions_.push_back(nodes_.back()->CreateRegion(kvs::PoolRegion(size_t{4} << 20)).value());
      chain.push_back({nodes_.back().get(), regions_.back().get()});
    }
    kvs::HomeOptions options;
    options.chunk_bytes = size_t{1} << 16;
    options.hash_seed = kvs::HashSeed{.low = 1, .high = 2};
    options.lease_ns = lease_ns;
    const auto made =
        surgekv_test::MakeMirroredStore({chain}, options, krcore::Deadline::After(*krcore::RealClock(), 5'000'000'000));
    ASSERT_TRUE(made.ok()) << made.ToString();
    kvs::StoreOptions store;
    store.fabric = fabric_;
    store_ = kvs::Store::Open(store).value();
  }
  void TearDown() override {
    store_.reset();
    regions_.clear();
  }
  std::unique_ptr<krcore::Node> OpenNode(NodeId id) const {
    return krcore::Node::Open({.fabric = fabric_, .node = id, .create_fabric = true}).value();
  }
  void EndTail() {
    regions_.pop_back();
    nodes_.pop_back();
  }

  const std::string fabric_ = "inproc:idle-clients-" + std::to_string(getpid());
  std::unique_ptr<krcore::Node> servers_;
  std::vector<std::unique_ptr<krcore::Node>> nodes_;
  std::vector<std::unique_ptr<krcore::Region>> regions_;
  std::unique_ptr<kvs::Store> store_;
};

// If the idle clients did not acknowledge the view, the Put would wait until their leases are over, long after the test
// has run out of time.
TEST_F(IdleClients, DoNotHoldUpTheOthersWhenAReplicaDies) {
  MakeStore(/*lease_ns=*/600'000'000'000);
  const auto idle = store_->NewClient().value(), called_once = store_->NewClient().value();
  const auto busy = store_->NewClient().value();
  ASSERT_TRUE(called_once->Put("key", "before").ok());
  EndTail();
  const auto put = busy->Put("key", "after");
  ASSERT_TRUE(put.ok()) << put.ToString();
  EXPECT_EQ(kvs::ReadConfiguration(*servers_, {}).value().Find(1)->chain.size(), 1u);
  for (kvs::Client* client : {idle.get(), called_once.get(), busy.get()}) {
    std::string value;
    ASSERT_TRUE(client->Get("key", &value).ok());
    EXPECT_EQ(value, "after");
  }
}

// A client that somebody calls now and then is its own thread's and the caretaker's in turns. The threads sleep between
// their calls, so that the caretaker finds the clients idle in some of its rounds, and not in others.
TEST_F(IdleClients, GoOnWhereverTheCaretakerHasLeftThem) {
  MakeStore(/*lease_ns=*/20'000'000);
  std::vector<std::thread> threads;
  for (int t = 0; t < 2; ++t) {
    threads.emplace_back([this, t] {
      const auto client = store_->NewClient().value();
      std::minstd_rand random(t);
      const std::string key = "key-" + std::to_string(t);
      for (int i = 0; i < 60; ++i) {
        std::this_thread::sleep_for(std::chrono::milliseconds(random() % 25));
        if (t == 0 && i == 30) EndTail();
        const std::string value = std::to_string(i);
        const auto put = client->Put(key, value);
        ASSERT_TRUE(put.ok()) << put.ToString();
        std::string read;
        const std::vector<std::string_view> keys = {key};
        krcore::Status status;
        client->MultiGet(keys, {&read, 1}, {&status, 1});
        ASSERT_TRUE(status.ok()) << status.ToString();
        ASSERT_EQ(read, value);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// To ask for the statistics is a call, too. So the test asks less often than the caretaker looks.
TEST_F(IdleClients, SendHeartbeats) {
  MakeStore(/*lease_ns=*/1'000'000'000);
  const auto idle = store_->NewClient().value();
  const uint64_t begun = idle->stats().heartbeats;
  while (idle->stats().heartbeats < begun + 10) std::this_thread::sleep_for(std::chrono::milliseconds(100));
}

// The parent's caretaker may be in the client at the moment of the fork, and is not there in the child. It looks every
// 10 ms; the sleeps let the forks fall on different moments between two looks.
TEST_F(IdleClients, AnswerInAForkedChildWhateverTheCaretakerDid) {
  MakeStore(/*lease_ns=*/1'000'000'000);
  auto client = store_->NewClient().value();
  for (int i = 0; i < 50; ++i) {
    std::this_thread::sleep_for(std::chrono::microseconds(1'100));
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      alarm(20);
      std::string value;
      const bool refused = client->Get("key", &value) == krcore::StatusCode::kBadState;
      client.reset();
      store_.reset();
      _exit(refused ? 0 : 1);
    }
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  }
  EXPECT_TRUE(client->Put("key", "value").ok());
}

}  // namespace
