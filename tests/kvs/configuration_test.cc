// The record of which memory nodes hold which pool: how it is stored, and which changes of it are possible.
#include "kvs/layout/configuration.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <span>
#include <vector>

namespace {

using krcore::StatusCode;
using kvs::Configuration;
using kvs::Replica;

Configuration TwoPools() {
  return {.number = 7,
          .active = true,
          .home = 1,
          .replicas = 2,
          .pools = {{1, 4096, true, {{1, 11}, {33, 12}}, {}}, {2, 8192, false, {{2, 13}}, {34, 14}}},
          .nodes = {{{2, 13}, 8192, 7, false}, {{34, 14}, 9000, 8, true}}};
}

// A store of one pool in use, whose replicas are on nodes 1, 2, ...; each node has told its failure domain.
Configuration OnePool(uint32_t replicas, const std::vector<uint64_t>& domains) {
  Configuration configuration{.number = 1, .home = 1, .replicas = replicas, .pools = {{1, 4096, true, {}, {}}}};
  for (const uint64_t domain : domains) {
    const Replica replica{static_cast<krcore::NodeId>(configuration.nodes.size() + 1), 1};
    configuration.pools[0].chain.push_back(replica);
    configuration.nodes.push_back({replica, 4096, domain, false});
  }
  return configuration;
}

// The nodes of the pool's chain, once nothing of it is too much.
std::vector<int> Kept(Configuration configuration) {
  while (configuration.RemoveExcess()) configuration.active = true;
  std::vector<int> nodes;
  for (const Replica& replica : configuration.pools[0].chain) nodes.push_back(replica.node);
  return nodes;
}

TEST(Configurations, AreReadAsTheyWereWritten) {
  const auto read = kvs::DecodeConfiguration(Encode(TwoPools()));
  ASSERT_TRUE(read.ok()) << read.status().ToString();
  EXPECT_EQ(*read, TwoPools());
}

TEST(Configurations, ThatAreCutShortOrLongerAreRefused) {
  const std::vector<std::byte> whole = Encode(TwoPools());
  for (size_t bytes = 0; bytes < whole.size(); ++bytes) {
    const auto cut = std::span(whole).first(bytes);
    EXPECT_EQ(kvs::DecodeConfiguration(cut).status(), StatusCode::kCorrupt) << bytes;
  }
  std::vector<std::byte> longer = whole;
  longer.push_back({});
  EXPECT_EQ(kvs::DecodeConfiguration(longer).status(), StatusCode::kCorrupt);
}

TEST(Configurations, OfAnotherVersionAreRefusedByThatName) {
  std::vector<std::byte> other = Encode(TwoPools());
  other[7] = std::byte{'1'};
  const auto read = kvs::DecodeConfiguration(other);
  EXPECT_EQ(read.status(), StatusCode::kCorrupt);
  EXPECT_THAT(read.status().ToString(), ::testing::HasSubstr("another version"));
}

TEST(Configurations, LoseAReplicaButNeverTheLastOne) {
  Configuration configuration = TwoPools();
  EXPECT_FALSE(configuration.Remove({1, 99})) << "another incarnation";
  EXPECT_TRUE(configuration.Remove({1, 11}));
  EXPECT_EQ(configuration.number, 8u);
  EXPECT_FALSE(configuration.active);
  EXPECT_EQ(configuration.Find(1)->chain, (std::vector<Replica>{{33, 12}}));
  EXPECT_FALSE(configuration.Remove({33, 12}));
  EXPECT_FALSE(configuration.Remove({2, 13})) << "its learner cannot take its place";
  EXPECT_EQ(configuration.number, 8u);
}

TEST(Configurations, TakeAReplicaBackInItsPlace) {
  Configuration configuration = TwoPools();
  EXPECT_FALSE(configuration.Return({1, 99}, {1, 21})) << "an incarnation that is in no chain";
  EXPECT_FALSE(configuration.Return({34, 14}, {34, 21})) << "a learner";
  EXPECT_EQ(configuration, TwoPools());
  EXPECT_TRUE(configuration.Return({1, 11}, {1, 21}));
  EXPECT_EQ(configuration.number, 8u);
  EXPECT_FALSE(configuration.active);
  EXPECT_EQ(configuration.Find(1)->chain, (std::vector<Replica>{{1, 21}, {33, 12}}));
  EXPECT_TRUE(configuration.Return({2, 13}, {2, 22})) << "also the last one, and while a change is under way";
}

TEST(Configurations, DoNotTakeBackWhoWasNotPromotedForCertain) {
  Configuration configuration = TwoPools();
  ASSERT_TRUE(configuration.Promote(configuration.Find(2)->learner));
  EXPECT_FALSE(configuration.Return({34, 14}, {34, 21})) << "it may lack something";
  EXPECT_TRUE(configuration.Return({2, 13}, {2, 21}));
  EXPECT_EQ(configuration.promoted, krcore::kNoNode);
  EXPECT_EQ(configuration.Find(2)->chain, (std::vector<Replica>{{2, 21}}));
  EXPECT_EQ(configuration.Find(2)->learner, (Replica{34, 14}));
}

TEST(Configurations, LoseTheDeadExceptWhereNoneLives) {
  Configuration configuration = TwoPools();
  EXPECT_FALSE(
      configuration.RemoveDead([](const Replica& replica) { return replica.node != 2 && replica.node != 34; }));
  EXPECT_EQ(configuration, TwoPools());
  EXPECT_TRUE(configuration.RemoveDead([](const Replica& replica) { return replica.node == 1; }));
  EXPECT_EQ(configuration.Find(1)->chain, (std::vector<Replica>{{33, 12}}));
}

TEST(Configurations, ForgetTheDeadWithoutANewView) {
  Configuration configuration = OnePool(1, {7});
  const Replica spare{9, 1};
  ASSERT_TRUE(configuration.Enter({spare, 4096, 7}));
  EXPECT_FALSE(configuration.Enter({spare, 4096, 7})) << "it is known";
  const auto is_dead = [&](const Replica& replica) { return replica == spare; };
  EXPECT_TRUE(configuration.RemoveDead(is_dead));
  EXPECT_EQ(configuration, OnePool(1, {7}));
  EXPECT_FALSE(configuration.RemoveDead(is_dead));
}

TEST(Configurations, KeepWhatAnOperatorWantsOfANodeThatTellsOfItself) {
  Configuration configuration = OnePool(1, {7});
  EXPECT_TRUE(configuration.SetLeaving(1, true));
  EXPECT_FALSE(configuration.SetLeaving(1, true));
  EXPECT_FALSE(configuration.SetLeaving(2, true)) << "nobody knows it";
  EXPECT_TRUE(configuration.Enter({{1, 1}, 4096, 8}));
  EXPECT_TRUE(configuration.IsLeaving({1, 1}));
  EXPECT_FALSE(configuration.IsLeaving({1, 2})) << "another incarnation, which has just been started";
}

TEST(Configurations, LackAReplicaForEachThatLeaves) {
  Configuration configuration = OnePool(2, {7, 7});
  const Replica spare{9, 1};
  ASSERT_TRUE(configuration.Enter({spare, 4096, 7}));
  EXPECT_FALSE(configuration.AddLearner(1, spare));
  ASSERT_TRUE(configuration.SetLeaving(1, true));
  EXPECT_EQ(Kept(configuration), (std::vector{1, 2})) << "it stays until another one is there";
  EXPECT_FALSE(configuration.Lacks(*configuration.Find(1), {1, 1}));
  ASSERT_TRUE(configuration.AddLearner(1, spare));
  configuration.active = true;
  EXPECT_FALSE(configuration.RemoveExcess()) << "the learner is needed";
  ASSERT_TRUE(configuration.Promote(configuration.Find(1)->learner));
  EXPECT_FALSE(configuration.RemoveExcess()) << "the view is not active";
  configuration.active = true;
  EXPECT_EQ(Kept(configuration), (std::vector{2, 9}));
}

TEST(Configurations, GiveALearnerUpThatLeavesOrIsNotNeededAnyMore) {
  Configuration configuration = OnePool(2, {7});
  const Replica spare{9, 1};
  ASSERT_TRUE(configuration.Enter({spare, 4096, 7}));
  ASSERT_TRUE(configuration.AddLearner(1, spare));
  configuration.active = true;
  Configuration lowered = configuration;
  lowered.replicas = 1;
  EXPECT_TRUE(lowered.RemoveExcess());
  EXPECT_FALSE(lowered.Find(1)->learner.exists());
  ASSERT_TRUE(configuration.SetLeaving(9, true));
  EXPECT_TRUE(configuration.RemoveExcess());
  EXPECT_FALSE(configuration.Find(1)->learner.exists());
}

TEST(Configurations, NeverHaveFewerReplicasBecauseSomeLeave) {
  Configuration configuration = OnePool(3, {7, 7, 7, 7});
  for (const krcore::NodeId node : {1, 2, 3}) ASSERT_TRUE(configuration.SetLeaving(node, true));
  EXPECT_EQ(Kept(configuration), (std::vector{2, 3, 4})) << "one is too many, and it is one that leaves";
  ASSERT_TRUE(configuration.RemoveExcess());
  configuration.active = true;
  EXPECT_TRUE(configuration.Enter({{9, 1}, 4096, 7}));
  EXPECT_TRUE(configuration.AddLearner(1, {9, 1})) << "there is room for the next one";
}

TEST(Configurations, LetNodesLeaveAPoolThatIsNotInUseAtOnce) {
  Configuration configuration = OnePool(3, {7, 7});
  configuration.pools[0].in_use = false;
  ASSERT_TRUE(configuration.SetLeaving(1, true));
  EXPECT_EQ(Kept(configuration), (std::vector{2}));
  ASSERT_TRUE(configuration.SetLeaving(2, true));
  ASSERT_TRUE(configuration.RemoveExcess());
  configuration.active = true;
  ASSERT_TRUE(configuration.RemoveExcess());
  EXPECT_TRUE(configuration.pools.empty());
}

TEST(Configurations, LoseTheLastReplicasWhereThereAreTooMany) {
  Configuration configuration = OnePool(3, {7, 8, 9});
  configuration.replicas = 1;
  EXPECT_EQ(Kept(configuration), (std::vector{1}));
  configuration = OnePool(3, {7, 7, 7});
  configuration.replicas = 2;
  EXPECT_EQ(Kept(configuration), (std::vector{1, 2}));
}

TEST(Configurations, SpreadReplicasOverFailureDomains) {
  Configuration configuration = OnePool(2, {7, 7});
  const Replica same{8, 1}, other{9, 1};
  ASSERT_TRUE(configuration.Enter({same, 4096, 7}));
  ASSERT_TRUE(configuration.Enter({other, 4096, 8}));
  EXPECT_EQ(configuration.DomainsOf(*configuration.Find(1)), 1u);
  EXPECT_FALSE(configuration.AddLearner(1, same));
  ASSERT_TRUE(configuration.AddLearner(1, other));
  configuration.active = true;
  ASSERT_TRUE(configuration.Promote(configuration.Find(1)->learner));
  configuration.active = true;
  EXPECT_EQ(Kept(configuration), (std::vector{1, 9}));
  configuration = OnePool(2, {7, 8});
  ASSERT_TRUE(configuration.Enter({other, 4096, 9}));
  EXPECT_FALSE(configuration.AddLearner(1, other)) << "it is in two already";
}

TEST(Configurations, KeepALearnerWhileAReplicaHasNotToldItsFailureDomain) {
  Configuration configuration = OnePool(2, {7, 7});
  const Replica other{9, 1};
  ASSERT_TRUE(configuration.Enter({other, 4096, 8}));
  ASSERT_TRUE(configuration.AddLearner(1, other));
  configuration.active = true;
  configuration.nodes.erase(configuration.nodes.begin());
  EXPECT_EQ(configuration.DomainsOf(*configuration.Find(1)), 0u);
  EXPECT_FALSE(configuration.RemoveExcess());
}

TEST(Configurations, KnowWhoCouldTakeAReplica) {
  Configuration configuration = OnePool(1, {7});
  EXPECT_FALSE(configuration.HasSpare(4096)) << "it has the only replica";
  ASSERT_TRUE(configuration.Enter({{9, 1}, 4096, 7}));
  EXPECT_TRUE(configuration.HasSpare(4096));
  EXPECT_FALSE(configuration.HasSpare(4097));
  ASSERT_TRUE(configuration.AddPool(4096, {9, 1}));
  EXPECT_TRUE(configuration.HasSpare(4096)) << "its own pool is not in use";
  ASSERT_TRUE(configuration.SetLeaving(9, true));
  EXPECT_FALSE(configuration.HasSpare(4096));
}

}  // namespace
