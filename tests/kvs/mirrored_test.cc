// Stores whose pools are mirrored, on memory nodes of this process. (tests/sim has them under faults of every kind.)
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <functional>
#include <initializer_list>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "krcore/node.h"
#include "krcore/rnic/sim/world.h"
#include "kvs/client.h"
#include "kvs/client/client_core.h"
#include "kvs/layout/configuration.h"
#include "kvs/layout/pool.h"
#include "kvs/memory/join.h"
#include "kvs/memory/mirror.h"
#include "kvs/memory/views.h"
#include "tests/kvs/mirrored_store.h"
#include "tests/kvs/pool_check.h"

namespace surgekv_test {
namespace {

using krcore::NodeId;
using krcore::Status;
using krcore::StatusCode;
using kvs::Configuration;
using kvs::MirroredVerb;
using kvs::Replica;

// A CAS of 1 -> 2 as it goes along replicas A, B (and C).
class MirroredCas : public ::testing::Test {
 protected:
  void SetUp() override {
    cas_.verb = {krcore::Opcode::kCompareSwap, 0, {reinterpret_cast<uint64_t>(&word_), sizeof(word_), 0}, 1, 2};
  }
  void Hop(const Replica& replica, uint64_t found, uint32_t length = 2) {
    word_ = found;
    cas_.Hopped(replica, length);
    kvs::PoolChain chain;
    chain.length = length;
    chain.learner = learner_;
    cas_.EndHops(chain);
  }
  static kvs::PoolChain ChainOf(const std::vector<Replica>& replicas) {
    kvs::PoolChain chain;
    std::ranges::copy(replicas, chain.replicas.begin());
    chain.length = static_cast<uint32_t>(replicas.size());
    chain.since = 2;
    return chain;
  }

  const Replica a_{1, 1}, b_{2, 1}, c_{3, 1};
  Replica learner_;
  uint64_t word_ = 0;
  MirroredVerb cas_;
};

TEST_F(MirroredCas, IsDoneBehindTheTail) {
  Hop(a_, 1);
  EXPECT_NE(cas_.state, MirroredVerb::State::kDone);
  EXPECT_EQ(cas_.target, 2u);
  Hop(b_, 1);
  EXPECT_EQ(cas_.state, MirroredVerb::State::kDone);
  EXPECT_EQ(word_, 1u) << "the expected word: it was won";
}

TEST_F(MirroredCas, IsWonThoughAHelperWasFasterAtTheTail) {
  Hop(a_, 1);
  Hop(b_, 2);
  EXPECT_EQ(word_, 1u);
}

TEST_F(MirroredCas, ThatIsLostHelpsAndReturnsWhatTheTailHas) {
  Hop(a_, 5);
  EXPECT_EQ(cas_.target, 5u) << "the next replicas get what the head has";
  Hop(b_, 1);
  EXPECT_EQ(word_, 5u);
}

TEST_F(MirroredCas, ThatIsLostReturnsTheNewerWordOfTheTail) {
  Hop(a_, 5);
  Hop(b_, 6);
  EXPECT_EQ(word_, 6u);
}

TEST_F(MirroredCas, GoesOnFromANewHeadThatHasItsWord) {
  Hop(a_, 1, 3);
  Hop(b_, 1, 3);
  cas_.GoOnAlong(ChainOf({b_, c_}));
  EXPECT_EQ(cas_.hop, 1u);
  EXPECT_EQ(cas_.target, 2u);
  Hop(c_, 1);
  EXPECT_EQ(word_, 1u);
}

TEST_F(MirroredCas, IsDoneIfTheOnlyOneLeftHasItsWord) {
  Hop(a_, 1, 3);
  Hop(b_, 1, 3);
  cas_.GoOnAlong(ChainOf({b_}));
  cas_.EndHops(ChainOf({b_}));
  EXPECT_EQ(cas_.state, MirroredVerb::State::kDone);
  EXPECT_EQ(word_, 1u);
}

TEST_F(MirroredCas, BeginsAgainAtANewHeadThatMayNotHaveItsWord) {
  cas_.whose = kvs::Word::kOwn;
  Hop(a_, 1);
  cas_.GoOnAlong(ChainOf({b_}));
  EXPECT_EQ(cas_.hop, 0u);
  EXPECT_TRUE(cas_.maybe);
  Hop(b_, 2, 1);
  EXPECT_EQ(cas_.state, MirroredVerb::State::kDone);
  EXPECT_EQ(word_, 1u) << "nobody else writes the word, so it was won";
}

TEST_F(MirroredCas, OfAWordThatOthersWriteIsNotProvedByThatWord) {
  Hop(a_, 1);
  cas_.GoOnAlong(ChainOf({b_}));
  Hop(b_, 2, 1);
  EXPECT_EQ(cas_.state, MirroredVerb::State::kDone);
  EXPECT_EQ(word_, 2u) << "it counts as lost";
}

TEST_F(MirroredCas, HasNoKnownOutcomeIfAThirdWordIsAtTheNewHead) {
  cas_.whose = kvs::Word::kOwn;
  cas_.HopFailed();
  cas_.GoOnAlong(ChainOf({b_}));
  Hop(b_, 7, 1);
  EXPECT_EQ(cas_.state, MirroredVerb::State::kLost);
}

TEST_F(MirroredCas, ThatHelpedAWordWhichIsGoneBeginsAgain) {
  cas_.whose = kvs::Word::kOwn;
  Hop(a_, 5);
  cas_.GoOnAlong(ChainOf({b_}));
  EXPECT_FALSE(cas_.maybe) << "its own word was nowhere";
  Hop(b_, 1, 1);
  EXPECT_EQ(word_, 1u);
}

TEST_F(MirroredCas, GoesToTheLearnerLast) {
  learner_ = c_;
  Hop(a_, 1);
  Hop(b_, 1);
  EXPECT_EQ(cas_.phase, MirroredVerb::Phase::kPush);
  EXPECT_EQ(cas_.NextWord(), 2u);
  word_ = 1;
  cas_.Pushed();
  EXPECT_EQ(cas_.state, MirroredVerb::State::kDone);
  EXPECT_EQ(word_, 1u);
}

TEST_F(MirroredCas, GivesTheLearnerWhatTheTailHasIfThatIsFurtherBehind) {
  learner_ = c_;
  Hop(a_, 1);
  Hop(b_, 1);
  word_ = kvs::kUncopied;
  cas_.Pushed();
  EXPECT_EQ(cas_.phase, MirroredVerb::Phase::kReadTail);
  word_ = 7;  // others were faster
  cas_.ReadTail();
  EXPECT_EQ(cas_.phase, MirroredVerb::Phase::kPushAgain);
  EXPECT_EQ(cas_.learnt, kvs::kUncopied);
  EXPECT_EQ(cas_.NextWord(), 7u);
  word_ = kvs::kUncopied;
  cas_.Pushed();
  EXPECT_EQ(cas_.state, MirroredVerb::State::kDone);
  EXPECT_EQ(word_, 1u) << "it was won";
}

TEST_F(MirroredCas, IsDoneIfOthersHaveBroughtTheLearnerUpToDate) {
  learner_ = c_;
  Hop(a_, 5);  // it helps
  Hop(b_, 1);
  word_ = 6;
  cas_.Pushed();
  cas_.ReadTail();  // 6 as well
  EXPECT_EQ(cas_.state, MirroredVerb::State::kDone);
  EXPECT_EQ(word_, 5u);
}

// ---- whole stores

constexpr char kFabric[] = "mirrored";

class MirroredStores : public ::testing::TestWithParam<uint32_t> {
 protected:
  static constexpr size_t kChunkBytes = size_t{1} << 16;

  static NodeId IdOf(uint32_t pool, uint32_t replica) { return pool + 32 * replica; }

  void SetUp() override {
    servers_ = OpenNode(kServers);
    ASSERT_TRUE(servers_->HostMetaServer(64).ok());
    std::vector<std::vector<MirrorNode>> chains;
    for (uint32_t pool = 1; pool <= 2; ++pool) {
      chains.emplace_back();
      for (uint32_t replica = 0; replica < GetParam(); ++replica) {
        krcore::Node& node = *nodes_.emplace_back(OpenNode(IdOf(pool, replica)));
        regions_.push_back(MakeRegion(node));
        chains.back().push_back({&node, regions_.back().get()});
      }
    }
    kvs::HomeOptions options;
    options.geometry.groups = 2;
    options.chunk_bytes = kChunkBytes;
    options.hash_seed = kvs::HashSeed{.low = 1, .high = 2};
    options.initial_depth = initial_depth_;
    const auto made = MakeMirroredStore(chains, options, krcore::Deadline::After(world_.clock(), 1'000'000'000));
    ASSERT_TRUE(made.ok()) << made.ToString();
    store_ = OpenStore();
    client_ = store_->NewClient().value();
  }
  void TearDown() override {
    client_.reset();
    store_.reset();
    regions_.clear();
  }

  std::unique_ptr<kvs::Store> OpenStore() {
    kvs::StoreOptions store;
    store.rnic = "sim";
    store.fabric = kFabric;
    store.clock = &world_.clock();
    return kvs::Store::Open(store).value();
  }
  std::unique_ptr<krcore::Node> OpenNode(NodeId id) {
    krcore::NodeOptions options;
    options.rnic = "sim";
    options.fabric = kFabric;
    options.node = id;
    options.create_fabric = servers_ == nullptr;
    options.clock = &world_.clock();
    return krcore::Node::Open(options).value();
  }
  static std::unique_ptr<krcore::Region> MakeRegion(krcore::Node& node) {
    return node.CreateRegion(kvs::PoolRegion(size_t{4} << 20)).value();
  }
  std::span<std::byte> RegionOf(NodeId node) const {
    const auto found = std::ranges::find(nodes_, node, [](const auto& opened) { return opened->id(); });
    return regions_[found - nodes_.begin()]->bytes();
  }
  // Makes the node a replica of the pool. `client` brings it up to date; `meanwhile` is called again and again.
  void ReplaceWith(krcore::Node& node, krcore::Region& region, NodeId pool, kvs::Client& client,
                   const std::function<void()>& meanwhile, uint64_t bytes_per_s = 0) {
    ASSERT_TRUE(PrepareLearner(node, region, pool, {}).ok());
    auto& core = dynamic_cast<kvs::ClientCore&>(client);
    kvs::ReplicatorReport report;
    kvs::Task<krcore::Status> bring =
        core.BringReplica(pool, {node.id(), node.incarnation()}, 10'000, bytes_per_s, &report);
    bring.Start();
    while (!bring.done()) {
      client.Poll();
      client_->Poll();
      world_.RunUntil(world_.now_ns() + 5'000);
      meanwhile();
    }
    const krcore::Status status = bring.Take();
    EXPECT_TRUE(status.ok()) << status.ToString();
    EXPECT_GE(report.passes, 1u);
  }
  void PollBoth(kvs::Client& other) {
    other.Poll();
    client_->Poll();
    world_.RunUntil(world_.now_ns() + 5'000);
  }
  // Writes large values until no other has room. Returns what is there then.
  static constexpr size_t kLargeBytes = 40'000;
  std::map<std::string, std::string> FillUp() {
    std::map<std::string, std::string> contents;
    const std::string value(kLargeBytes, 'x');
    Status put;
    for (int i = 0; (put = client_->Put("key-" + std::to_string(i), value)).ok(); ++i) {
      contents["key-" + std::to_string(i)] = value;
    }
    EXPECT_TRUE(put == StatusCode::kOutOfMemory || put == StatusCode::kTimeout) << put.ToString();
    EXPECT_GT(contents.size(), 4u);
    return contents;
  }
  // Makes pool 3, and puts it in the configuration.
  bool AddThirdPool(Configuration* next) {
    std::vector<Replica> chain;
    for (uint32_t replica = 0; replica < GetParam(); ++replica) {
      krcore::Node& node = *nodes_.emplace_back(OpenNode(IdOf(3, replica)));
      regions_.push_back(MakeRegion(node));
      EXPECT_TRUE(kvs::FormatPool(regions_.back()->bytes(), node.id(), kChunkBytes, 3, node.incarnation()).ok());
      EXPECT_TRUE(node.Publish({}).ok());
      chain.push_back({node.id(), node.incarnation()});
    }
    if (!next->AddPool(regions_.back()->bytes().size(), chain.front())) return false;
    next->pools.back().chain = chain;
    next->pools.back().in_use = true;
    return true;
  }
  void PollUntilDone(std::initializer_list<kvs::Client*> clients, kvs::Task<krcore::Status> task) {
    task.Start();
    while (!task.done()) {
      for (kvs::Client* const client : clients) client->Poll();
      world_.RunUntil(world_.now_ns() + 5'000);
    }
    const Status status = task.Take();
    EXPECT_TRUE(status.ok()) << status.ToString();
  }
  // Makes pool 3, which comes into use.
  void AddPool(kvs::Client& client) {
    auto& core = dynamic_cast<kvs::ClientCore&>(client);
    ASSERT_TRUE(core.views()->Change([this](Configuration& next) { return AddThirdPool(&next); }).ok());
    while (!Present().active) PollBoth(client);
    PollUntilDone({&client, &*client_}, core.EnterPool(3));
  }
  // Makes pool 3, which comes into use, and changes the view again at once. `client_` has acknowledged the view with
  // the pool, but not used it in time. So it has to wait for the next one, which `silent` does not acknowledge.
  void AddPoolThatTheClientMisses(kvs::Client& silent, kvs::Client& other) {
    ASSERT_TRUE(ViewsOf(other).Change([this](Configuration& next) { return AddThirdPool(&next); }).ok());
    while (!Present().active) {
      for (kvs::Client* const client : {&*client_, &silent, &other}) client->Poll();  // the last one makes it active
      if (!Present().active) world_.RunUntil(world_.now_ns() + 5'000);
    }
    PollUntilDone({&other}, dynamic_cast<kvs::ClientCore&>(other).EnterPool(3));
    while (ViewsOf(other).number() < Present().number) {
      other.Poll();
      world_.RunUntil(world_.now_ns() + 5'000);
    }
    const auto add_another = [](Configuration& next) { return next.AddPool(size_t{4} << 20, {199, 1}); };
    ASSERT_TRUE(ViewsOf(other).Change(add_another).ok());
  }
  // So that `client_` reads the list of pools meanwhile.
  void PollClientForTheListOfPools() {
    for (int i = 0; i < 600; ++i) {
      client_->Poll();
      world_.RunUntil(world_.now_ns() + 500'000);
    }
  }
  std::vector<std::byte> ChunkTableOf(NodeId node) const {
    const std::span<std::byte> region = RegionOf(node);
    const auto table = region.subspan(kvs::kChunkTableOffset, region.size() / kChunkBytes * sizeof(kvs::ChunkWord));
    return {table.begin(), table.end()};
  }
  static kvs::Views& ViewsOf(kvs::Client& client) { return *dynamic_cast<kvs::ClientCore&>(client).views(); }
  void SetReplicas(uint32_t replicas) {
    uint64_t version = 0;
    Configuration configuration = kvs::ReadConfiguration(*servers_, {}, &version).value();
    configuration.replicas = replicas;
    ASSERT_TRUE(servers_->CompareAndSetRecord(kvs::kConfigurationRecord, version, Encode(configuration), {}).ok());
  }
  Configuration Present() { return kvs::ReadConfiguration(*servers_, {}).value(); }
  // Checks every replica that is left as if its pool were not mirrored, and that all say the same.
  void ExpectSound(const std::map<std::string, std::string>& contents) {
    client_.reset();
    const Configuration configuration = Present();
    for (uint32_t replica = 0; replica < GetParam(); ++replica) {
      std::vector<PoolImage> images;
      for (const kvs::PoolView& view : configuration.pools) {
        const NodeId node = view.chain[std::min<size_t>(replica, view.chain.size() - 1)].node;
        images.push_back({view.pool, RegionOf(node)});
      }
      const PoolReport report = CheckPools(images);
      EXPECT_TRUE(report.ok()) << report.ToString();
      EXPECT_TRUE(report.contents == contents) << "replica " << replica;
    }
  }

  uint32_t initial_depth_ = 0;
  krcore::rnic::sim::World world_{{.fabric = kFabric, .seed = 1, .cost = {}, .chaos = {}}};
  std::unique_ptr<krcore::Node> servers_;
  std::vector<std::unique_ptr<krcore::Node>> nodes_;
  std::vector<std::unique_ptr<krcore::Region>> regions_;
  std::unique_ptr<kvs::Store> store_;
  std::unique_ptr<kvs::Client> client_;
};
INSTANTIATE_TEST_SUITE_P(Replicas, MirroredStores, ::testing::Values(1, 2, 3));
class SeveralReplicas : public MirroredStores {};
class LargeTables : public MirroredStores {
 protected:
  static constexpr uint32_t kDepth = 5;
  LargeTables() { initial_depth_ = kDepth; }
};
INSTANTIATE_TEST_SUITE_P(Replicas, LargeTables, ::testing::Values(2));
INSTANTIATE_TEST_SUITE_P(Replicas, SeveralReplicas, ::testing::Values(2, 3));

TEST_P(MirroredStores, HoldAtEachReplicaWhatWasWritten) {
  std::map<std::string, std::string> contents;
  for (int i = 0; i < 500; ++i) {
    const std::string key = "key-" + std::to_string(i);
    ASSERT_TRUE(client_->Insert(key, "first").ok()) << key;
    contents[key] = "first";
  }
  for (int i = 0; i < 500; i += 2) {
    const std::string key = "key-" + std::to_string(i);
    ASSERT_TRUE(client_->Update(key, "second " + key).ok());
    contents[key] = "second " + key;
  }
  for (int i = 0; i < 500; i += 5) {
    const std::string key = "key-" + std::to_string(i);
    ASSERT_TRUE(client_->Delete(key).ok());
    contents.erase(key);
  }
  for (const auto& [key, value] : contents) {
    std::string read;
    ASSERT_TRUE(client_->Get(key, &read).ok()) << key;
    EXPECT_EQ(read, value);
  }
  EXPECT_GT(client_->stats().splits, 0u);
  ExpectSound(contents);
}

// The home's and the other pool's replicas die one after the other, until one of each is left.
// The table in docs/replication.md, "What it costs".
TEST_P(MirroredStores, TakeTheRoundTripsThatTheDocumentSays) {
  const uint64_t hops = GetParam() - 1;  // of a CAS, beyond the first
  const auto plain = store_->NewClient({.address_cache_entries = 0}).value();
  const auto of = [](kvs::Client& client, const auto& operation) {
    const uint64_t before = client.stats().operation_round_trips;
    const Status status = operation(client);
    EXPECT_TRUE(status.ok()) << status.ToString();
    return client.stats().operation_round_trips - before;
  };
  std::string value;
  const auto get = [&](kvs::Client& client) { return client.Get("k", &value); };
  const auto insert = [](kvs::Client& client) { return client.Insert("k", "1"); };
  const auto update = [](kvs::Client& client) { return client.Update("k", "2"); };
  const auto remove = [](kvs::Client& client) { return client.Delete("k"); };
  const auto modify = [](kvs::Client& client) {
    return client.Modify("k", [](std::optional<std::string_view>) { return kvs::Modification::Set("3"); });
  };
  for (const bool known : {false, true}) {
    kvs::Client& client = known ? *client_ : *plain;
    const uint64_t scans = known ? 0 : 1;  // a round trip for the block
    // It has memory, and knows the tables.
    for (int i = 0; i < 8; ++i) ASSERT_TRUE(client.Put("warm " + std::to_string(i), "").ok());
    EXPECT_EQ(of(client, insert), 3 + 2 * hops) << known;
    EXPECT_EQ(of(client, get), 1 + scans) << known;
    EXPECT_EQ(of(client, update), 2 + scans + hops) << known;
    EXPECT_EQ(of(client, modify), 3 + scans + hops) << known;
    EXPECT_EQ(of(client, remove), 2 + scans + hops) << known;
    EXPECT_EQ(of(client, modify), 5 + 2 * hops) << known;
    EXPECT_EQ(of(client, remove), 2 + scans + hops) << known;
  }
}

TEST_P(SeveralReplicas, LoseNothingWhileOneReplicaOfEachPoolIsLeft) {
  std::map<std::string, std::string> contents;
  int next = 0;
  const auto write_some = [&] {
    for (const int end = next + 60; next < end; ++next) {
      const std::string key = "key-" + std::to_string(next);
      const auto put = client_->Put(key, "value of " + key);
      ASSERT_TRUE(put.ok()) << key << ": " << put.ToString();
      contents[key] = "value of " + key;
    }
    for (const auto& [key, value] : contents) {
      std::string read;
      const auto got = client_->Get(key, &read);
      ASSERT_TRUE(got.ok()) << key << ": " << got.ToString();
      ASSERT_EQ(read, value);
    }
  };
  write_some();
  for (uint32_t death = 1; death < GetParam(); ++death) {
    for (const uint32_t pool : {1, 2}) {
      const std::vector<Replica> chain = Present().Find(pool)->chain;
      // Heads, tails and middles in turn.
      world_.Kill(chain[(death + pool) % chain.size()].node, 0);
      if (pool == death) client_ = store_->NewClient().value();  // one that sees the death before it has begun
      write_some();
      EXPECT_EQ(Present().Find(pool)->chain.size(), chain.size() - 1);
      EXPECT_TRUE(Present().active);
    }
  }
  ExpectSound(contents);
}

// Replicas die, others take their places, and at last all that were there at first are dead.
TEST_P(MirroredStores, LoseNothingThoughAllReplicasAreReplaced) {
  std::map<std::string, std::string> contents;
  int next = 0;
  const auto write_some = [&](kvs::Client& client) {
    for (const int end = next + 60; next < end; ++next) {
      const std::string key = "key-" + std::to_string(next);
      const auto put = client.Put(key, "value of " + key);
      ASSERT_TRUE(put.ok()) << key << ": " << put.ToString();
      contents[key] = "value of " + key;
    }
  };
  write_some(*client_);
  const Configuration first = Present();
  for (uint32_t round = 0; round < GetParam(); ++round) {
    for (const NodeId pool : {1, 2}) {
      if (GetParam() > 1) world_.Kill(first.Find(pool)->chain[round].node, 0);
      write_some(*client_);
      if (GetParam() == 1) SetReplicas(2);
      krcore::Node& node = *nodes_.emplace_back(OpenNode(pool + 32 * (3 + round)));
      regions_.push_back(MakeRegion(node));
      const auto another = store_->NewClient().value();
      ReplaceWith(node, *regions_.back(), pool, *another, [&] {
        if (next % 7 == 0) return;  // not too often
        write_some(*client_);
      });
      if (GetParam() == 1) world_.Kill(first.Find(pool)->chain[round].node, 0);
      if (GetParam() == 1) write_some(*client_);
      EXPECT_EQ(Present().Find(pool)->chain.back().node, node.id());
    }
  }
  for (const auto& [key, value] : contents) {
    std::string read;
    const auto got = client_->Get(key, &read);
    ASSERT_TRUE(got.ok()) << key << ": " << got.ToString();
    ASSERT_EQ(read, value);
  }
  EXPECT_EQ(Present().Find(1)->chain.size(), GetParam());
  ExpectSound(contents);
}

// A learner is thrown out when it has nearly been brought up to date, and another one takes its place.
TEST_P(SeveralReplicas, AreNotPromotedByWhoBroughtAnother) {
  for (int i = 0; i < 200; ++i) ASSERT_TRUE(client_->Put("key-" + std::to_string(i), "value").ok());
  std::array<Replica, 2> learners;
  for (size_t i = 0; i < 2; ++i) {
    krcore::Node& node = *nodes_.emplace_back(OpenNode(static_cast<NodeId>(IdOf(1, 3) + i)));
    regions_.push_back(MakeRegion(node));
    ASSERT_TRUE(PrepareLearner(node, *regions_.back(), 1, {}).ok());
    learners[i] = {node.id(), node.incarnation()};
  }
  const auto bringer = store_->NewClient().value();
  auto& core = dynamic_cast<kvs::ClientCore&>(*bringer);
  const auto poll = [&] {
    bringer->Poll();
    client_->Poll();
    world_.RunUntil(world_.now_ns() + 5'000);
  };
  const auto change = [&](const std::function<bool(Configuration&)>& wanted) {
    while (!dynamic_cast<kvs::ClientCore&>(*client_).views()->Change(wanted).ok()) poll();
    while (!Present().active) poll();
  };
  change([](Configuration& next) { return next.Remove(next.Find(1)->chain.back()); });
  kvs::ReplicatorReport report;
  kvs::Task<krcore::Status> bring = core.BringReplica(1, learners[0], 10'000, 0, &report);
  bring.Start();
  while (report.tables == 0) poll();
  change([&](Configuration& next) { return next.Remove(learners[0]); });
  change([&](Configuration& next) { return next.AddLearner(1, learners[1]); });
  for (int i = 0; i < 100'000 && !bring.done(); ++i) poll();
  ASSERT_TRUE(bring.done());
  EXPECT_EQ(bring.Take(), krcore::StatusCode::kBadState);
  EXPECT_EQ(Present().Find(1)->learner, learners[1]);
  EXPECT_EQ(Present().Find(1)->chain.size(), GetParam() - 1);
}

// What a fresh memory node lacks is copied to it no faster than a limit says.
TEST_P(SeveralReplicas, AreCopiedWithinALimit) {
  constexpr uint64_t kLimit = 100'000;  // so slow that nothing else counts
  const auto write_all = [&] {
    for (int i = 0; i < 300; ++i) {
      ASSERT_TRUE(client_->Put("key-" + std::to_string(i), std::string(2'000, 'x')).ok());
    }
  };
  write_all();
  uint64_t copied = 0;
  for (const NodeId pool : {1, 2}) {
    world_.Kill(Present().Find(pool)->chain[0].node, 0);
    write_all();
    krcore::Node& node = *nodes_.emplace_back(OpenNode(pool + 32 * 3));
    regions_.push_back(MakeRegion(node));
    const auto another = store_->NewClient().value();
    const int64_t begun_ns = world_.now_ns();
    ReplaceWith(
        node, *regions_.back(), pool, *another, [] {}, kLimit);
    const auto took_s = static_cast<double>(world_.now_ns() - begun_ns) / 1e9;
    EXPECT_GT(took_s, static_cast<double>(another->stats().bytes_copied) / kLimit);
    copied += another->stats().bytes_copied;
  }
  EXPECT_GT(copied, 300u * 2'000);
}

// A memory node is killed and comes back under its id, with other memory, before anybody has noticed.
TEST_P(SeveralReplicas, DoNotTakeTheSuccessorOfAReplicaForIt) {
  std::map<std::string, std::string> contents;
  for (int i = 0; i < 100; ++i) {
    const std::string key = "key-" + std::to_string(i);
    ASSERT_TRUE(client_->Put(key, "value").ok());
    contents[key] = "value";
  }
  client_.reset();
  store_.reset();
  for (const NodeId pool : {1, 2}) {
    const NodeId node = Present().Find(pool)->chain[pool - 1].node;
    world_.Kill(node, 0);
    world_.RunUntil(world_.now_ns() + 1'000'000);
    const auto dead = std::ranges::find(nodes_, node, [](const auto& opened) { return opened->id(); });
    regions_[dead - nodes_.begin()].reset();
    dead->reset();
    nodes_.erase(dead);
    std::erase(regions_, nullptr);
    nodes_.push_back(OpenNode(node));
    regions_.push_back(MakeRegion(*nodes_.back()));
    ASSERT_TRUE(nodes_.back()->Publish({}).ok());
  }
  store_ = OpenStore();  // the former one knows what the dead had announced
  auto client = store_->NewClient();
  ASSERT_TRUE(client.ok()) << client.status().ToString();
  client_ = *std::move(client);
  for (const auto& [key, value] : contents) {
    std::string read;
    const auto got = client_->Get(key, &read);
    ASSERT_TRUE(got.ok()) << key << ": " << got.ToString();
    ASSERT_EQ(read, value);
    ASSERT_TRUE(client_->Put(key, "newer").ok());
    contents[key] = "newer";
  }
  EXPECT_EQ(Present().Find(1)->chain.size(), GetParam() - 1);
  ExpectSound(contents);
}

// A learner comes while the replica of another pool dies: neither waits for the other for long.
TEST_P(SeveralReplicas, GoOnWhenOnePoolLosesAReplicaAndAnotherGetsOne) {
  ASSERT_TRUE(client_->Put("key", "value").ok());
  kvs::Views& views = *dynamic_cast<kvs::ClientCore&>(*client_).views();
  const Replica dead = Present().Find(2)->chain.back();
  world_.Kill(dead.node, 0);
  ASSERT_TRUE(views.Change([&](Configuration& next) { return next.Remove(dead); }).ok());
  ASSERT_TRUE(client_->Update("key", "new").ok());
  krcore::Node& node = *nodes_.emplace_back(OpenNode(99));
  regions_.push_back(MakeRegion(node));
  ASSERT_TRUE(PrepareLearner(node, *regions_.back(), 2, {}).ok());
  const Replica learner{node.id(), node.incarnation()};
  // The CAS has been done at the head when the tail dies and the learner comes.
  kvs::Task<krcore::Status> update = client_->UpdateAsync("key", "newer");
  update.Start();
  const auto poll = [&] {
    client_->Poll();
    world_.RunUntil(world_.now_ns() + 500);
  };
  const std::vector<Replica> chain = Present().Find(1)->chain;
  const auto words = [&](const Replica& replica) { return RegionOf(replica.node).subspan(kvs::kChunkTableOffset); };
  while (std::ranges::equal(words(chain.front()), words(chain.back())) && !update.done()) poll();
  ASSERT_FALSE(update.done());
  world_.Kill(chain.back().node, 0);
  ASSERT_TRUE(views.Change([&](Configuration& next) { return next.AddLearner(2, learner); }).ok());
  const int64_t begun_ns = world_.now_ns();
  while (!update.done()) poll();
  EXPECT_TRUE(update.Take().ok());
  EXPECT_LT(world_.now_ns() - begun_ns, 500'000'000) << "half a lease, in virtual time";
}

// A write waits for memory, and gets it in a pool that is younger than what the write began with.
TEST_P(MirroredStores, GiveWritesThatWaitMemoryOfAPoolThatComes) {
  std::map<std::string, std::string> contents = FillUp();
  std::vector<kvs::Task<krcore::Status>> writes;
  const std::string another(kLargeBytes, 'y');
  writes.push_back(client_->PutAsync("key-0", another));
  const kvs::ModifyFunction set = [&](const std::optional<kvs::Record>&) { return kvs::Modification::Set(another); };
  writes.push_back(client_->ModifyAsync("key-1", &set));
  for (auto& write : writes) write.Start();
  const auto other = store_->NewClient().value();
  for (int i = 0; i < 100; ++i) PollBoth(*other);
  for (const auto& write : writes) ASSERT_FALSE(write.done()) << "no pool has room";
  AddPool(*other);
  for (auto& write : writes) {
    while (!write.done()) PollBoth(*other);
    const Status status = write.Take();
    EXPECT_TRUE(status.ok()) << status.ToString();
  }
  contents["key-0"] = contents["key-1"] = another;
  ExpectSound(contents);
}

// Others use a pool meanwhile that the client does not have.
TEST_P(MirroredStores, ServeWhatLiesInAPoolOfAViewThatAClientHasMissed) {
  std::map<std::string, std::string> contents = FillUp();
  const auto silent = store_->NewClient().value(), other = store_->NewClient().value();
  AddPoolThatTheClientMisses(*silent, *other);
  for (int i = 0; i < 4; ++i) {
    std::string& value = contents["key-" + std::to_string(i)];
    value.back() = 'y';
    PollUntilDone({&*other}, other->PutAsync("key-" + std::to_string(i), value));
  }
  EXPECT_FALSE(Present().active);
  PollClientForTheListOfPools();
  ASSERT_LT(ViewsOf(*client_).number(), ViewsOf(*other).number());
  EXPECT_TRUE(client_->Put("key-4", contents["key-4"]).ok()) << "only the new pool has room";
  for (const auto& [key, value] : contents) {
    std::string read;
    const Status got = client_->Get(key, &read);
    EXPECT_TRUE(got.ok()) << got.ToString();
    EXPECT_TRUE(read == value) << key;
  }
}

// Its blocks and new tables are made in the pools that it has.
TEST_P(MirroredStores, TakeWritesOfAClientThatHasMissedTheViewOfAPool) {
  const auto silent = store_->NewClient().value(), other = store_->NewClient().value();
  ASSERT_TRUE(client_->Put("key", "value").ok());
  AddPoolThatTheClientMisses(*silent, *other);
  PollClientForTheListOfPools();
  const std::vector<std::byte> before = ChunkTableOf(IdOf(3, 0));
  for (int i = 0; i < 1'000; ++i) EXPECT_TRUE(client_->Put("key-" + std::to_string(i), std::to_string(i)).ok());
  EXPECT_TRUE(ChunkTableOf(IdOf(3, 0)) == before) << "it has taken memory there";
  EXPECT_GT(client_->stats().splits, 8u);
  EXPECT_FALSE(Present().active) << "it did not wait for the next view";
  EXPECT_LT(ViewsOf(*client_).number(), Present().number - 1);
  for (int i = 0; i < 1'000; ++i) {
    std::string value;
    EXPECT_TRUE(client_->Get("key-" + std::to_string(i), &value).ok());
    EXPECT_EQ(value, std::to_string(i));
  }
}

// A run of the mover has begun when a pool comes, in which it then makes tables.
TEST_P(LargeTables, AreMergedThoughAPoolComesMeanwhile) {
  ASSERT_TRUE(client_->Put("key", "value").ok());
  kvs::CompactReport report;
  kvs::Task<krcore::Status> compact = client_->CompactAsync({.thorough = true}, &report);
  compact.Start();
  const auto other = store_->NewClient().value();
  AddPool(*other);
  EXPECT_LT(report.tables_merged, (1u << kDepth) - 1) << "it is over";
  bool in_new_pool = false;
  while (!compact.done()) {
    PollBoth(*other);
    const std::vector<std::byte> table = ChunkTableOf(IdOf(3, 0));
    const std::span words(reinterpret_cast<const kvs::ChunkWord*>(table.data()), table.size() / sizeof(kvs::ChunkWord));
    in_new_pool |= std::ranges::any_of(words, [](auto word) { return word.kind() == kvs::ChunkKind::kTables; });
  }
  EXPECT_TRUE(in_new_pool);
  EXPECT_TRUE(compact.Take().ok());
  EXPECT_EQ(report.tables_merged, (1u << kDepth) - 1);
  ExpectSound({{"key", "value"}});
}

TEST_P(MirroredStores, AnswerUnavailableWhenTheLastReplicaHasDied) {
  ASSERT_TRUE(client_->Put("key", "value").ok());
  for (uint32_t replica = 0; replica < GetParam(); ++replica) world_.Kill(IdOf(1, replica), 0);
  std::string read;
  EXPECT_EQ(client_->Get("key", &read), StatusCode::kUnavailable);
}

}  // namespace
}  // namespace surgekv_test
