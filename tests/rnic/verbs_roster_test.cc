// Which members are alive, dead or unreachable, in every order of events; records.
#include <gtest/gtest.h>

#include "krcore/rnic/verbs/service.h"
#include "tests/rnic/harness.h"

namespace krcore::rnic::verbs {
namespace {

using rnic::testing::Bytes;

constexpr uint32_t kFirst = 100;
constexpr int64_t kMs = 1'000'000;

class RosterTest : public ::testing::Test {
 protected:
  Identity JoinWhole(NodeId node = kNoNode) {
    const Identity identity = roster_.Join(node, now_ns_).value();
    for (uint32_t channel = 0; channel < kChannels; ++channel)
      KRCORE_EXPECT_OK(roster_.Attach(identity.incarnation, identity.token, channel, now_ns_));
    return identity;
  }
  void Lose(const Identity& who, uint32_t channel, Loss loss) { roster_.Lose(who.incarnation, channel, loss, now_ns_); }
  PeerState State(const Identity& who) { return roster_.StateOf(who.incarnation, now_ns_); }

  int64_t now_ns_ = 1'000'000'000'000;
  Roster roster_{kFirst, 1};
};

TEST_F(RosterTest, IdsAreUniqueAndIncarnationsNeverComeAgain) {
  const Identity first = JoinWhole(7), second = JoinWhole(), third = JoinWhole();
  EXPECT_EQ(first.node, 7U);
  EXPECT_GE(second.node, kFirstDynamicNode);
  EXPECT_NE(second.node, third.node);
  EXPECT_NE(second.token, third.token);
  EXPECT_EQ(roster_.Join(7, now_ns_).status(), StatusCode::kExists);
  roster_.Leave(first.incarnation);
  const Identity successor = JoinWhole(7);
  EXPECT_NE(successor.incarnation, first.incarnation);
  EXPECT_EQ(State(first), PeerState::kDead);
  EXPECT_EQ(State(successor), PeerState::kAlive);
}

TEST_F(RosterTest, AMemberIsDeadOnlyWhenBothChannelsWereClosedAndNoPacketIsOnItsWay) {
  const Identity who = JoinWhole(7);
  Lose(who, 1, Loss::kClosed);
  now_ns_ += 1000 * kMs;
  EXPECT_EQ(State(who), PeerState::kUnreachable) << "its NIC may not be closed yet";
  EXPECT_EQ(roster_.Join(7, now_ns_).status(), StatusCode::kExists);
  Lose(who, 0, Loss::kClosed);
  EXPECT_EQ(State(who), PeerState::kUnreachable);
  now_ns_ += kSettledNs - 1;
  EXPECT_EQ(State(who), PeerState::kUnreachable);
  now_ns_ += 1;
  EXPECT_EQ(State(who), PeerState::kDead);
  EXPECT_EQ(JoinWhole(7).node, 7U);
  EXPECT_EQ(State(who), PeerState::kDead);
}

TEST_F(RosterTest, ABrokenNetworkIsNeverDeathWhateverComesLater) {
  const Identity one = JoinWhole(1), both = JoinWhole(2);
  Lose(one, 0, Loss::kClosed);
  Lose(one, 1, Loss::kBroken);
  Lose(both, 0, Loss::kBroken);
  Lose(both, 1, Loss::kBroken);
  now_ns_ += kResumeNs - 1;
  roster_.Expire(now_ns_);
  EXPECT_EQ(State(one), PeerState::kUnreachable);
  EXPECT_EQ(roster_.Join(2, now_ns_).status(), StatusCode::kExists) << "it may come back";
  now_ns_ += 1;
  roster_.Expire(now_ns_);
  EXPECT_EQ(State(one), PeerState::kUnreachable);
  EXPECT_EQ(State(both), PeerState::kUnreachable);
  EXPECT_EQ(JoinWhole(2).node, 2U) << "its id is free";
  EXPECT_EQ(State(both), PeerState::kUnreachable) << "and nobody knows what it does";
  EXPECT_EQ(roster_.Attach(both.incarnation, both.token, 0, now_ns_), StatusCode::kNotFound) << "another has its id";
}

TEST_F(RosterTest, AMemberThatNobodyReplacedComesBackHoweverLate) {
  const Identity late = JoinWhole(3), other = JoinWhole(4);
  KRCORE_EXPECT_OK(roster_.Publish(late.incarnation, "record", Bytes("old"), now_ns_));
  Lose(late, 0, Loss::kBroken);
  Lose(late, 1, Loss::kBroken);
  now_ns_ += kResumeNs;
  EXPECT_EQ(roster_.Lookup("record", now_ns_).status(), StatusCode::kNotFound) << "nobody waits for it any longer";
  KRCORE_EXPECT_OK(roster_.Publish(other.incarnation, "record", Bytes("another's"), now_ns_));
  now_ns_ += 1000 * kResumeNs;
  roster_.Expire(now_ns_);
  EXPECT_NE(JoinWhole().node, late.node) << "who does not care gets an id that nobody may come back with";
  KRCORE_EXPECT_OK(roster_.Attach(late.incarnation, late.token, 1, now_ns_));
  EXPECT_EQ(State(late), PeerState::kUnreachable) << "by half";
  now_ns_ += 1;
  KRCORE_EXPECT_OK(roster_.Publish(late.incarnation, "new", Bytes("mine"), now_ns_));
  KRCORE_EXPECT_OK(roster_.Attach(late.incarnation, late.token, 0, now_ns_));
  EXPECT_EQ(State(late), PeerState::kAlive);
  EXPECT_EQ(roster_.Join(3, now_ns_).status(), StatusCode::kExists);
  EXPECT_EQ(roster_.Publish(late.incarnation, "record", Bytes("mine"), now_ns_), StatusCode::kExists);
  EXPECT_EQ(roster_.Lookup("new", now_ns_).value(), Bytes("mine"));
}

TEST_F(RosterTest, WhoIsAwayWithOneOpenChannelPublishesNothing) {
  const Identity half = JoinWhole(3);
  Lose(half, 0, Loss::kBroken);
  now_ns_ += kResumeNs;
  EXPECT_EQ(roster_.Publish(half.incarnation, "record", Bytes("lost"), now_ns_), StatusCode::kUnavailable);
  KRCORE_EXPECT_OK(roster_.Attach(half.incarnation, half.token, 0, now_ns_));
  KRCORE_EXPECT_OK(roster_.Publish(half.incarnation, "record", Bytes("kept"), now_ns_));
  EXPECT_EQ(roster_.Lookup("record", now_ns_).value(), Bytes("kept"));
}

TEST_F(RosterTest, WhoHasBeenAwayLongestMakesRoom) {
  const Identity first = JoinWhole(1), second = JoinWhole(2), third = JoinWhole(3);
  for (size_t i = 3; i < kMaxMembers; ++i) JoinWhole();
  for (const Identity& who : {second, first, third}) {
    Lose(who, 0, Loss::kBroken);
    now_ns_ += kResumeNs / 4;
  }
  EXPECT_EQ(roster_.Join(kNoNode, now_ns_).status(), StatusCode::kOutOfMemory) << "all may come back soon";
  now_ns_ += kResumeNs;
  JoinWhole();
  EXPECT_EQ(roster_.Attach(second.incarnation, second.token, 0, now_ns_), StatusCode::kNotFound);
  EXPECT_EQ(State(second), PeerState::kUnreachable);
  KRCORE_EXPECT_OK(roster_.Attach(first.incarnation, first.token, 0, now_ns_));
  KRCORE_EXPECT_OK(roster_.Attach(third.incarnation, third.token, 0, now_ns_));
}

TEST_F(RosterTest, AMemberComesBackAsItWas) {
  const Identity who = JoinWhole(3);
  KRCORE_EXPECT_OK(roster_.Publish(who.incarnation, "record", Bytes("kept"), now_ns_));
  Lose(who, 0, Loss::kBroken);
  Lose(who, 1, Loss::kBroken);
  now_ns_ += kResumeNs / 2;
  EXPECT_EQ(roster_.Attach(who.incarnation, who.token + 1, 0, now_ns_), StatusCode::kNotFound)
      << "that is somebody else";
  EXPECT_EQ(roster_.Attach(who.incarnation, who.token, kChannels, now_ns_), StatusCode::kInvalidArgument);
  KRCORE_EXPECT_OK(roster_.Attach(who.incarnation, who.token, 0, now_ns_));
  EXPECT_EQ(State(who), PeerState::kUnreachable) << "by half";
  KRCORE_EXPECT_OK(roster_.Attach(who.incarnation, who.token, 1, now_ns_));
  EXPECT_EQ(State(who), PeerState::kAlive);
  now_ns_ += 10 * kResumeNs;
  roster_.Expire(now_ns_);
  EXPECT_EQ(State(who), PeerState::kAlive);
  EXPECT_EQ(roster_.Lookup("record", now_ns_).value(), Bytes("kept"));
}

TEST_F(RosterTest, WhoNeverOpenedTheSecondChannelHasPostedNothing) {
  const Identity who = roster_.Join(4, now_ns_).value();
  KRCORE_EXPECT_OK(roster_.Attach(who.incarnation, who.token, 0, now_ns_));
  EXPECT_EQ(State(who), PeerState::kUnreachable);
  Lose(who, 0, Loss::kClosed);
  now_ns_ += kSettledNs;
  EXPECT_EQ(State(who), PeerState::kDead);
}

TEST_F(RosterTest, OfIncarnationsOfAnotherServiceNothingIsKnown) {
  const Identity who = JoinWhole();
  EXPECT_EQ(roster_.StateOf(kFirst - 1, now_ns_), PeerState::kUnreachable);
  EXPECT_EQ(roster_.StateOf(who.incarnation + 1, now_ns_), PeerState::kUnreachable);
}

TEST_F(RosterTest, RecordsAreTheirOwnersAndGoWithThem) {
  const Identity one = JoinWhole(1), two = JoinWhole(2);
  KRCORE_EXPECT_OK(roster_.Publish(one.incarnation, "meta", Bytes("first"), now_ns_));
  KRCORE_EXPECT_OK(roster_.Publish(one.incarnation, "meta", Bytes("second"), now_ns_));
  EXPECT_EQ(roster_.Publish(two.incarnation, "meta", Bytes("mine"), now_ns_), StatusCode::kExists);
  Lose(one, 0, Loss::kClosed);
  Lose(one, 1, Loss::kClosed);
  EXPECT_EQ(roster_.Publish(two.incarnation, "meta", Bytes("mine"), now_ns_), StatusCode::kExists) << "not dead yet";
  EXPECT_EQ(roster_.Lookup("meta", now_ns_).value(), Bytes("second"));
  now_ns_ += kSettledNs;
  EXPECT_EQ(roster_.Lookup("meta", now_ns_).status(), StatusCode::kNotFound);
  KRCORE_EXPECT_OK(roster_.Publish(two.incarnation, "meta", Bytes("mine"), now_ns_));
  roster_.Leave(two.incarnation);
  EXPECT_EQ(roster_.Lookup("meta", now_ns_).status(), StatusCode::kNotFound);
  EXPECT_EQ(roster_.Publish(two.incarnation, "meta", Bytes("mine"), now_ns_), StatusCode::kNotFound);
}

TEST_F(RosterTest, LimitsAreErrors) {
  const Identity first = JoinWhole();
  for (size_t i = 0; i < kMaxRecords; ++i)
    KRCORE_EXPECT_OK(roster_.Publish(first.incarnation, "r" + std::to_string(i), {}, now_ns_));
  EXPECT_EQ(roster_.Publish(first.incarnation, "one-more", {}, now_ns_), StatusCode::kOutOfMemory);
  KRCORE_EXPECT_OK(roster_.Publish(first.incarnation, "r0", Bytes("again"), now_ns_));
  const std::vector<std::byte> longer(113);
  EXPECT_EQ(roster_.Publish(first.incarnation, "r0", longer, now_ns_), StatusCode::kInvalidArgument);
  for (size_t i = 1; i < kMaxMembers; ++i) JoinWhole();
  EXPECT_EQ(roster_.Join(kNoNode, now_ns_).status(), StatusCode::kOutOfMemory);
  roster_.Leave(first.incarnation);
  EXPECT_TRUE(roster_.Join(kNoNode, now_ns_).ok());
}

}  // namespace
}  // namespace krcore::rnic::verbs
