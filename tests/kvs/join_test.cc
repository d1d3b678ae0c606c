// Joining a store with memory that holds nothing: by a node in whose place the store may have keys, and by one that
// asks a metadata server which has lost everything. Also joining and using a store of another layout.
#include "kvs/memory/join.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "krcore/clock.h"
#include "krcore/node.h"
#include "krcore/queue_pool.h"
#include "krcore/virtual_queue.h"
#include "kvs/client.h"
#include "kvs/layout/pool.h"
#include "kvs/memory/survey.h"
#include "tests/kvs/test_store.h"

namespace surgekv_test {
namespace {

using krcore::Deadline;
using krcore::StatusCode;

constexpr krcore::NodeId kMember = 2;
constexpr int64_t kPatienceNs = 10'000'000'000;

// A clock on which any wait is soon a long one.
class HastyClock final : public krcore::Clock {
 public:
  int64_t NowNs() override { return now_ns_ += 1'000; }
  void Relax(uint32_t) override { now_ns_ += 200'000; }

 private:
  int64_t now_ns_ = 1'000'000;
};

// A memory node whose memory is zeroes, or is what it finds under `name`. It knows nothing that others have looked up.
struct Newcomer {
  Newcomer(const std::string& fabric, krcore::NodeId id, const TestStoreOptions& options, const std::string& name = "")
      : node(krcore::Node::Open(
                 {.fabric = fabric, .node = id, .create_fabric = true, .clock = options.clock, .share_host = false})
                 .value()),
        pool(node->CreateRegion(NamedPool(options.memory_bytes, name)).value()),
        chunk_bytes(options.chunk_bytes) {}
  static krcore::RegionOptions NamedPool(size_t bytes, const std::string& name) {
    krcore::RegionOptions region = kvs::PoolRegion(bytes);
    region.name = name;
    region.keep_on_close = true;
    return region;
  }
  krcore::Result<kvs::JoinResult> Join(int64_t patience_ns = kPatienceNs, const kvs::TellWaiting& tell = {}) {
    const Deadline deadline = Deadline::After(node->clock(), patience_ns);
    return kvs::JoinStore(*node, *pool, {.chunk_bytes = chunk_bytes}, deadline, tell);
  }

  std::unique_ptr<krcore::Node> node;
  std::unique_ptr<krcore::Region> pool;
  uint64_t chunk_bytes;
};

class Join : public ::testing::Test {
 protected:
  static TestStoreOptions Options() {
    TestStoreOptions options;
    options.memory_nodes = kMember;
    return options;
  }
  // Returns a newcomer with the id of a memory node that is gone.
  Newcomer Come() const { return {store_.fabric(), kMember, Options()}; }
  // Whether a look-up of the memory node finds one.
  bool IsFound() const {
    krcore::NodeOptions options;
    options.fabric = store_.fabric();
    const auto node = krcore::Node::Open(options).value();
    const auto pool = node->CreateQueuePool({}).value();
    const auto queue = pool->CreateQueue(1).value();
    return queue->Connect(kMember, Deadline::After(node->clock(), 100'000'000)).ok();
  }
  void SetMember(kvs::MemberState state) {
    uint64_t& word = reinterpret_cast<kvs::HomeArea*>(store_.memory().data() + kvs::kHomeAreaOffset)->members[kMember];
    word = kvs::MemberWord(word).Become(state).word();
  }

  TestStore store_{Options()};
};

TEST_F(Join, OfAMemberWithoutItsMemoryIsRefusedBeforeAnybodyCanTakeItForTheOneBefore) {
  EXPECT_TRUE(IsFound());
  store_.StopMemoryNode(kMember);
  for (const kvs::MemberState state : {kvs::MemberState::kInUse, kvs::MemberState::kDraining}) {
    SetMember(state);
    Newcomer newcomer = Come();
    EXPECT_EQ(newcomer.Join().status(), StatusCode::kBadState);
    EXPECT_FALSE(IsFound()) << "it is published";
    EXPECT_FALSE(kvs::IsFormatted(newcomer.pool->bytes())) << "a later start would take it for the member's";
  }
}

TEST_F(Join, OfADrainedOneIsNot) {
  store_.StopMemoryNode(kMember);
  SetMember(kvs::MemberState::kDrained);
  Newcomer newcomer = Come();
  const krcore::Status joined = newcomer.Join().status();
  EXPECT_TRUE(joined.ok()) << joined.ToString();
  EXPECT_TRUE(IsFound());
}

// The new store's keys lie elsewhere.
TEST(BegunAnew, AStoreIsNotTakenForTheOneOfBefore) {
  TestStoreOptions options;
  options.fabric = UniqueFabric();
  const auto begin = [&options](kvs::HashSeed seed) {
    options.hash_seed = seed;
    return std::make_unique<TestStore>(options);
  };
  krcore::NodeOptions keeper;  // so that the fabric outlives the first home
  keeper.fabric = options.fabric;
  keeper.create_fabric = true;
  keeper.node = 9;
  const auto metaserver = krcore::Node::Open(keeper).value();
  ASSERT_TRUE(metaserver->HostMetaServer(16).ok());
  auto home = begin({1, 1});
  const auto store = kvs::Store::Open({.fabric = options.fabric}).value();
  ASSERT_TRUE(store->NewClient().value()->Put("key", "value").ok());
  home.reset();
  home = begin({2, 2});
  krcore::Status late;
  do {
    late = store->NewClient().status();
  } while (late == StatusCode::kUnavailable);  // until the fabric knows that the former home is gone
  EXPECT_EQ(late, StatusCode::kBadState) << late.ToString();
  EXPECT_TRUE(kvs::Store::Open({.fabric = options.fabric}).value()->NewClient().ok());
  home.reset();
}

// Stores that programs of another version have made or use: whoever comes is told so at once.
class OtherVersion : public Join {
 protected:
  OtherVersion() { Super(1).layout_version = 3; }
  kvs::Superblock& Super(krcore::NodeId node) {
    return *reinterpret_cast<kvs::Superblock*>(store_.memory_of(node).data());
  }
  static void ExpectRefusal(const krcore::Status& status, const std::string& what) {
    EXPECT_EQ(status, StatusCode::kUnsupported);
    EXPECT_THAT(std::string(status.message()), testing::StartsWith(what));
  }
};

constexpr char kOldHome[] = "the pool of memory node 1 has layout version 3, this program has 7 (";

TEST_F(OtherVersion, IsNamedToAClient) {
  const auto open = [this] { return kvs::Store::Open({.fabric = store_.fabric()}).status(); };
  ExpectRefusal(open(), kOldHome);
  Super(1).layout_version = 4;
  ExpectRefusal(open(), "the pool of memory node 1 has layout version 4, this program has 7 (");
  Super(1).layout_version = kvs::kLayoutVersion;
  Super(1).features = 1;
  ExpectRefusal(open(), "the pool of memory node 1 has features that this program does not know");
}

TEST_F(OtherVersion, IsNamedToAMemoryNodeThatJoins) {
  HastyClock clock;
  TestStoreOptions options = Options();
  options.clock = &clock;
  const krcore::NodeId id = 3;
  Newcomer newcomer(store_.fabric(), id, options);
  uint32_t told = 0;
  ExpectRefusal(newcomer.Join(kPatienceNs, [&told](const krcore::Status&) { ++told; }).status(), kOldHome);
  EXPECT_EQ(told, 0u) << "it waited";
  EXPECT_FALSE(kvs::IsFormatted(newcomer.pool->bytes()));
}

TEST_F(OtherVersion, IsNamedToAMemoryNodeThatComesBackWithItsMemory) {
  TestStoreOptions options = Options();
  options.fabric = UniqueFabric();
  const std::string name = kvs::kPoolRegionName;
  {
    Newcomer home(options.fabric, 1, options, name);
    ASSERT_TRUE(home.node->HostMetaServer(16).ok());
    ASSERT_TRUE(home.Join().ok());
    reinterpret_cast<kvs::Superblock*>(home.pool->bytes().data())->layout_version = 3;
  }
  {
    Newcomer other(options.fabric, 2, options);
    ASSERT_TRUE(other.node->HostMetaServer(16).ok());
    ExpectRefusal(other.Join().status(), kOldHome);  // it is found on this host, where it does not serve
  }
  Newcomer again(options.fabric, 1, options, name);
  ASSERT_TRUE(again.pool->adopted());
  ASSERT_TRUE(again.node->HostMetaServer(16).ok());
  ExpectRefusal(again.Join().status(), kOldHome);
  EXPECT_EQ(reinterpret_cast<kvs::Superblock*>(again.pool->bytes().data())->layout_version, 3u) << "it was changed";
  again.pool->DoNotKeep();
}

TEST_F(OtherVersion, IsNamedInASurvey) {
  const auto node = krcore::Node::Open({.fabric = store_.fabric()}).value();
  const auto survey = kvs::Survey::Create(*node).value();
  const Deadline soon = Deadline::After(node->clock(), kPatienceNs);
  ExpectRefusal(survey->ReadHome(soon).status(), kOldHome);
  ExpectRefusal(survey->ReadPool(1, soon).status(), kOldHome);
  EXPECT_TRUE(survey->ReadPool(kMember, soon).ok());
}

// What the only metadata server knew is lost with it. A node that brings up another one asks it before any of the nodes
// that went on has told it anything.
TEST(JoinAtAnEmptyMetaServer, FindsTheHomeThatLivesAndWaitsForIt) {
  const std::string fabric = "inproc:" + UniqueFabric();
  auto server = krcore::Node::Open({.fabric = fabric, .create_fabric = true}).value();
  ASSERT_TRUE(server->HostMetaServer(16).ok());
  Newcomer home(fabric, 1, {});
  EXPECT_TRUE(home.Join().value().is_home);
  server.reset();
  Newcomer other(fabric, 2, {});
  ASSERT_TRUE(other.node->HostMetaServer(16).ok());
  const krcore::Status alone = other.Join(50'000'000).status();
  EXPECT_EQ(alone, StatusCode::kUnavailable);
  EXPECT_NE(alone.message().find("home, node 1, lives"), std::string_view::npos) << alone.ToString();
  EXPECT_FALSE(kvs::IsFormatted(other.pool->bytes()));
  // The living home publishes this once a second.
  const kvs::HomeRecord record{1, home.node->incarnation()};
  const Deadline deadline = Deadline::After(home.node->clock(), kPatienceNs);
  ASSERT_TRUE(home.node->Publish(deadline).ok());
  ASSERT_TRUE(home.node->ClaimService(kvs::kHomeService, std::as_bytes(std::span(&record, 1)), deadline).ok());
  const kvs::JoinResult joined = other.Join().value();
  EXPECT_FALSE(joined.is_home);
  EXPECT_EQ(joined.home, 1u);
}

// Memory of a store that no living node knows of.
class MemoryLeftHere : public ::testing::Test {
 protected:
  void Leave(krcore::NodeId id, bool home) const {
    Newcomer node(fabric_, id, {}, kvs::kPoolRegionName);
    ASSERT_TRUE(kvs::FormatPool(node.pool->bytes(), id).ok());
    if (home) {
      ASSERT_TRUE(kvs::FormatHome(node.pool->bytes(), {}).ok());
    }
  }
  const std::string fabric_ = "inproc:" + UniqueFabric();
};

TEST_F(MemoryLeftHere, OfAHomeKeepsAnotherStoreFromBeingBegun) {
  Leave(1, true);
  ASSERT_EQ(krcore::Node::Open({.fabric = fabric_}).status(), StatusCode::kNotFound);
  Newcomer other(fabric_, 2, {}, kvs::kPoolRegionName);
  ASSERT_TRUE(other.node->HostMetaServer(16).ok());
  const krcore::Status refused = other.Join(50'000'000).status();
  EXPECT_EQ(refused, StatusCode::kUnavailable);
  EXPECT_NE(refused.message().find("memory of node 1"), std::string_view::npos) << refused.ToString();
  EXPECT_FALSE(kvs::IsFormatted(other.pool->bytes()));
  Newcomer home(fabric_, 1, {}, kvs::kPoolRegionName);
  EXPECT_TRUE(home.pool->adopted());
  EXPECT_TRUE(home.Join().value().is_home);
  EXPECT_FALSE(other.Join().value().is_home);
}

TEST_F(MemoryLeftHere, OfAMemberDoesNot) {
  Leave(1, false);
  Newcomer other(fabric_, 2, {}, kvs::kPoolRegionName);
  ASSERT_TRUE(other.node->HostMetaServer(16).ok());
  EXPECT_TRUE(other.Join().value().is_home);
}

TEST_F(MemoryLeftHere, IsNotFormattedByAJoinInVain) {
  Newcomer home(fabric_, 1, {});
  ASSERT_TRUE(home.node->HostMetaServer(16).ok());
  ASSERT_TRUE(home.Join().value().is_home);
  Newcomer other(fabric_, 2, {.chunk_bytes = kvs::kDefaultChunkBytes / 2}, kvs::kPoolRegionName);
  EXPECT_EQ(other.Join().status(), StatusCode::kInvalidArgument) << "the store has other chunks";
  EXPECT_FALSE(kvs::IsFormatted(other.pool->bytes()));
}

// Each reason is told once, and in time, to a fresh node, which asks for the home first, and to one that publishes
// first.
TEST_F(MemoryLeftHere, OrNoneWhoWaitsForAMetaServerSaysSo) {
  HastyClock clock;
  TestStoreOptions options;
  options.clock = &clock;
  Leave(2, false);
  for (const bool fresh : {true, false}) {
    Newcomer alone(fabric_, fresh ? 1 : 2, options, kvs::kPoolRegionName);
    EXPECT_EQ(alone.pool->adopted(), !fresh);
    constexpr int64_t kNs = 3'000'000'000;
    const int64_t begun_ns = clock.NowNs();
    std::vector<int64_t> told_ns;
    const auto joined = alone.Join(kNs, [&](const krcore::Status& why) {
      told_ns.push_back(clock.NowNs() - begun_ns);
      EXPECT_EQ(why, StatusCode::kTimeout);
    });
    EXPECT_EQ(joined.status(), StatusCode::kTimeout) << joined.status().ToString();
    ASSERT_EQ(told_ns.size(), 1u);
    EXPECT_GT(told_ns[0], 500'000'000);
    EXPECT_LT(told_ns[0], kNs / 2);
  }
}

}  // namespace
}  // namespace surgekv_test
