// Replicas of mirrored pools that return with the memory that they had before they stopped (kvs/memory/join.cc). A
// client lives on meanwhile.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <memory>
#include <string>

#include "krcore/node.h"
#include "kvs/client.h"
#include "kvs/layout/configuration.h"
#include "kvs/layout/pool.h"
#include "kvs/memory/join.h"
#include "kvs/memory/remote_pool.h"
#include "kvs/replica_keeper.h"
#include "tests/kvs/mirrored_store.h"

namespace surgekv_test {
namespace {

using krcore::NodeId;
using krcore::StatusCode;
using kvs::Replica;

class MirroredReturns : public ::testing::Test {
 protected:
  struct MemoryNode {
    std::unique_ptr<krcore::Node> node;
    std::unique_ptr<krcore::Region> region;  // destroyed first
    bool returned = false;

    kvs::Superblock& super() const { return *reinterpret_cast<kvs::Superblock*>(region->bytes().data()); }
    Replica self() const { return {node->id(), node->incarnation()}; }
  };

  void SetUp() override {
    servers_ = OpenNode(kServers);
    ASSERT_TRUE(servers_->HostMetaServer(64).ok());
    Start(1);
    kvs::StoreOptions options;
    options.fabric = fabric_;
    options.operation_timeout_ms = 1'000;
    store_ = kvs::Store::Open(options).value();
    client_ = store_->NewClient().value();
    Start(2);
    BringUpToDate(2);
  }
  void TearDown() override {
    client_.reset();
    store_.reset();
  }

  std::unique_ptr<krcore::Node> OpenNode(NodeId id) const {
    return krcore::Node::Open({.fabric = fabric_, .node = id, .create_fabric = true}).value();
  }
  // Opens the memory node with what its predecessor has left, but does not join.
  MemoryNode& Open(NodeId id) {
    MemoryNode& opened = nodes_[id];
    opened.node = OpenNode(id);
    krcore::RegionOptions region = kvs::PoolRegion(size_t{8} << 20);
    region.name = kvs::kPoolRegionName;
    region.keep_on_close = true;
    opened.region = opened.node->CreateRegion(region).value();
    return opened;
  }
  MemoryNode& Start(NodeId id) {
    MemoryNode& opened = Open(id);
    kvs::HomeOptions home;
    home.replicas = 2;
    home.geometry.groups = 2;
    home.chunk_bytes = size_t{1} << 16;
    const auto joined = kvs::JoinStore(*opened.node, *opened.region, home,
                                       krcore::Deadline::After(opened.node->clock(), 10'000'000'000));
    EXPECT_TRUE(joined.ok()) << joined.status().ToString();
    opened.returned = joined.ok() && joined->returned;
    return opened;
  }
  void Stop(NodeId id) { nodes_.erase(id); }
  // What the memory node's process does until its memory is a replica.
  void BringUpToDate(NodeId id) {
    MemoryNode& node = nodes_.at(id);
    const auto keeper = kvs::ReplicaKeeper::Create(*store_, *node.node, *node.region).value();
    while (keeper->stats().state != kvs::ReplicaState::kMember) {
      (void)keeper->Step();
      client_->Poll();
    }
  }
  kvs::Configuration Present() { return kvs::ReadConfiguration(*servers_, {}).value(); }
  // Waits until the client goes on, if it does. It is not told of a return: it looks, at most every 10 ms.
  void AwaitClient() {
    std::string read;
    for (int i = 0; i < 1'000; ++i) {
      if (client_->Get("key-0", &read) != StatusCode::kUnavailable) return;
      usleep(10'000);
    }
    ADD_FAILURE() << "the client does not go on";
  }
  void Write(const std::string& value) {
    for (int i = 0; i < 200; ++i) {
      const std::string key = "key-" + std::to_string(i);
      const auto put = client_->Put(key, value);
      ASSERT_TRUE(put.ok()) << key << ": " << put.ToString();
      contents_[key] = value;
    }
  }
  void ExpectAllThere() {
    for (const auto& [key, value] : contents_) {
      std::string read;
      const auto got = client_->Get(key, &read);
      ASSERT_TRUE(got.ok()) << key << ": " << got.ToString();
      ASSERT_EQ(read, value);
    }
  }

  // Kept memory is there as long as this process.
  const std::string fabric_ = std::string("inproc:") + ::testing::UnitTest::GetInstance()->current_test_info()->name();
  std::unique_ptr<krcore::Node> servers_;
  std::map<NodeId, MemoryNode> nodes_;
  std::map<std::string, std::string> contents_;
  std::unique_ptr<kvs::Store> store_;
  std::unique_ptr<kvs::Client> client_;
};

TEST_F(MirroredReturns, AClientGoesOnWhenAllReplicasHaveStoppedAndReturned) {
  Write("before");
  const std::vector<Replica> chain = Present().Find(1)->chain;
  for (const NodeId node : {2, 1}) Stop(node);
  std::string read;
  EXPECT_EQ(client_->Get("key-0", &read), StatusCode::kUnavailable);
  EXPECT_EQ(Present().Find(1)->chain, chain) << "nobody leaves while none lives";
  for (const NodeId node : {2, 1}) EXPECT_TRUE(Start(node).returned);
  EXPECT_EQ(Present().Find(1)->chain, (std::vector<Replica>{nodes_.at(1).self(), nodes_.at(2).self()}));
  AwaitClient();
  ExpectAllThere();
  Write("after");
  Stop(1);
  ExpectAllThere();
}

// A short stop that nobody noticed.
TEST_F(MirroredReturns, AReplicaReturnsWhileTheOtherLives) {
  Write("before");
  for (const NodeId node : {1, 2}) {
    Stop(node);
    EXPECT_TRUE(Start(node).returned);
    Write("after the return of " + std::to_string(node));
    EXPECT_EQ(Present().Find(1)->chain.size(), 2u);
  }
  Stop(1);
  ExpectAllThere();
}

TEST_F(MirroredReturns, WhoWasRemovedDoesNotReturn) {
  Write("old");
  Stop(2);
  Write("new");
  Stop(1);
  EXPECT_FALSE(Start(2).returned);
  EXPECT_TRUE(Start(1).returned);
  AwaitClient();
  ExpectAllThere();
}

// The process is killed between any two steps of its return: the superblock names the incarnation that the
// configuration has.
TEST_F(MirroredReturns, AReturnThatWasInterruptedIsDoneAgain) {
  Write("before");
  Stop(1);
  const Replica held = Present().Find(1)->chain.front();
  // Before the configuration was changed.
  const MemoryNode& killed = Open(1);
  killed.super().incarnations[1] = killed.node->incarnation();
  Stop(1);
  const MemoryNode& second = Start(1);
  EXPECT_TRUE(second.returned);
  EXPECT_EQ(second.super().incarnations[0], held.incarnation);
  // After that. The former incarnation, the superblock's other one, is in no chain any more.
  const Replica returned = second.self();
  Stop(1);
  EXPECT_TRUE(Start(1).returned);
  EXPECT_EQ(nodes_.at(1).super().incarnations[0], returned.incarnation);
  AwaitClient();
  ExpectAllThere();
}

TEST_F(MirroredReturns, AReturnedReplicaThatIsRemovedDoesNotJoinWithThatMemory) {
  Write("before");
  Stop(2);
  const MemoryNode& returned = Start(2);
  ASSERT_TRUE(returned.returned);
  uint64_t version = 0;
  kvs::Configuration configuration = kvs::ReadConfiguration(*servers_, {}, &version).value();
  ASSERT_TRUE(configuration.Remove(returned.self()));
  ASSERT_TRUE(servers_->CompareAndSetRecord(kvs::kConfigurationRecord, version, Encode(configuration), {}).ok());
  Write("after");
  const auto keeper = kvs::ReplicaKeeper::Create(*store_, *returned.node, *returned.region).value();
  (void)keeper->Step();
  EXPECT_EQ(keeper->stats().state, kvs::ReplicaState::kRemoved);
}

}  // namespace
}  // namespace surgekv_test
