// The charts of failures, waits and ends: refusals, receives, resets, limits, packet by packet.
#include <gtest/gtest.h>

#include "tests/rnic/sdc/pair.h"

namespace sdc_test {
namespace {

using std::to_string;

TEST(SdcChart, AWrongKeyIsRefused) {
  Pair pair;
  sdc_wr wr = pair.Wr(SDC_OP_READ, 8);
  wr.key = 1;
  pair.Post(wr);
  pair.Post(pair.Wr(SDC_OP_READ, 8));
  pair.PassAll();
  EXPECT_EQ(pair.Completions(), "1:" + to_string(SDC_REMOTE_ACCESS_ERROR) + " 2:" + to_string(SDC_FLUSHED));
  EXPECT_EQ(pair.initiator.state, SDC_QUEUE_ERROR);
}

TEST(SdcChart, WhatWasRefusedIsRefusedAgainThoughItWouldSucceed) {
  Pair pair;
  pair.Open();
  pair.rights = SDC_ACCESS_WRITE;
  pair.Post(pair.Wr(SDC_OP_READ, 8));
  pair.Request();
  ASSERT_EQ(Pair::Kinds(pair.answers), to_string(SDC_NAK));
  pair.answers.clear();  // lost
  pair.rights |= SDC_ACCESS_READ;
  pair.Wait(Pair::kRetryNs);
  pair.PassAll();
  EXPECT_EQ(pair.Completions(), "1:" + to_string(SDC_REMOTE_ACCESS_ERROR));
}

TEST(SdcChart, OfAMessageThatReachesTooFarNothingIsWritten) {
  Pair pair;
  pair.Open();
  pair.local[0] = 1;
  sdc_wr wr = pair.Wr(SDC_OP_WRITE, 800);
  wr.remote_addr += pair.memory.size() * 8 - 792;
  pair.Post(wr);
  pair.PassAll();
  EXPECT_EQ(pair.Completions(), "1:" + to_string(SDC_REMOTE_ACCESS_ERROR));
  EXPECT_EQ(pair.memory[pair.memory.size() - 99], 0u);
}

TEST(SdcChart, ASendWaitsForAReceiveABoundedTime) {
  Pair pair;
  pair.Open();
  sdc_wr wr = pair.Wr(SDC_OP_SEND_IMM, 8);
  wr.imm = 5;
  pair.local[0] = 3;
  pair.Post(wr);
  pair.Request();
  EXPECT_EQ(Pair::Kinds(pair.answers), to_string(SDC_RNR));
  pair.Answer();
  EXPECT_TRUE(pair.requests.empty());
  pair.PostReceive(64);
  pair.Wait(Pair::kRetryNs);
  pair.PassAll();
  EXPECT_EQ(pair.Completions(), "1:0");
  ASSERT_EQ(pair.received.size(), 1u);
  EXPECT_EQ(pair.received[0].imm, 5u);
  EXPECT_EQ(pair.received[0].length, 8u);
  EXPECT_EQ(pair.inbox[0], 3u);
  pair.Post(wr);
  for (int i = 0; i < 20; ++i) {
    pair.PassAll();
    pair.Wait(Pair::kRetryNs);
  }
  EXPECT_EQ(pair.Completions(), "1:" + to_string(SDC_RNR_RETRY_EXCEEDED));
}

TEST(SdcChart, AMessageLongerThanItsReceiveFailsAtBothEnds) {
  Pair pair;
  pair.Open();
  pair.PostReceive(100);
  pair.Post(pair.Wr(SDC_OP_SEND, 104));
  pair.PassAll();
  EXPECT_EQ(pair.Completions(), "1:" + to_string(SDC_REMOTE_INVALID_REQUEST));
  ASSERT_EQ(pair.received.size(), 1u);
  EXPECT_EQ(pair.received[0].status, SDC_LOCAL_LENGTH_ERROR);
}

TEST(SdcChart, AReceiveThatIsNoLocalMemoryFailsAtBothEnds) {
  Pair pair;
  pair.Open();
  pair.PostReceive(100, 55);
  pair.Post(pair.Wr(SDC_OP_SEND, 8));
  pair.PassAll();
  EXPECT_EQ(pair.Completions(), "1:" + to_string(SDC_REMOTE_OPERATION_ERROR));
  EXPECT_EQ(pair.received.at(0).status, SDC_LOCAL_PROTECTION_ERROR);
}

TEST(SdcChart, AResetClosesWhatMayStillBeExecuted) {
  Pair pair;
  pair.Open();
  pair.Post(pair.Wr(SDC_OP_WRITE, 8));
  const Pair::Packet late = pair.requests.front();
  pair.requests.clear();
  sdc_initiator_reset(&pair.initiator, pair.now_ns);
  EXPECT_FALSE(sdc_initiator_is_reset(&pair.initiator));
  EXPECT_EQ(pair.Post(pair.Wr(SDC_OP_WRITE, 8)), SDC_POST_BAD_STATE);
  ASSERT_EQ(Pair::Kinds(pair.requests), to_string(SDC_CLOSE));
  pair.PassAll();
  EXPECT_TRUE(sdc_initiator_is_reset(&pair.initiator));
  pair.Arrive(late);
  EXPECT_EQ(Pair::Kinds(pair.answers), to_string(SDC_GONE));
  EXPECT_EQ(pair.Completions(), "");
}

TEST(SdcChart, AResetForgetsSessionsWithReadsAloneAndWaitsForNothingOfThem) {
  Pair pair;
  pair.Open();
  pair.Post(pair.Wr(SDC_OP_READ, 8));
  pair.requests.clear();
  sdc_initiator_reset(&pair.initiator, pair.now_ns);
  EXPECT_TRUE(sdc_initiator_is_reset(&pair.initiator));
  for (uint32_t i = 0; i < pair.initiator.config.peer_count; ++i) {
    EXPECT_EQ(pair.initiator.config.peers[i].timer_ns, 0u);
    EXPECT_EQ(pair.initiator.config.peers[i].in_flight, 0u);
  }
  pair.Post(pair.Wr(SDC_OP_READ, 8));
  EXPECT_EQ(Pair::Kinds(pair.requests), to_string(SDC_HELLO));
  pair.PassAll();
  EXPECT_EQ(pair.Completions(), "2:0");
}

TEST(SdcChart, ACloseIsAnsweredWhenTheLastAtomicIsDone) {
  Pair pair;
  pair.Open();
  pair.Post(pair.Atomic(SDC_OP_FETCH_ADD, 5));
  pair.Request();
  sdc_initiator_reset(&pair.initiator, pair.now_ns);
  pair.Run();
  pair.PassAll();
  EXPECT_FALSE(sdc_initiator_is_reset(&pair.initiator));
  pair.ExecuteAtomic();
  pair.PassAll();
  EXPECT_TRUE(sdc_initiator_is_reset(&pair.initiator));
}

// No NAK carries this outcome; the atomic may have been executed.
TEST(SdcChart, AnAtomicThatFailedAtTheTargetsOwnEndHasAnUnknownOutcome) {
  for (const sdc_status status : {SDC_LOCAL_QP_ERROR, SDC_FLUSHED, SDC_RNR_RETRY_EXCEEDED}) {
    Pair pair;
    pair.Open();
    pair.Post(pair.Atomic(SDC_OP_FETCH_ADD, 1));
    pair.Request();
    pair.ExecuteAtomic(status);
    pair.PassAll();
    EXPECT_EQ(pair.Completions(), "1:" + to_string(SDC_RETRY_EXCEEDED));
    EXPECT_EQ(pair.initiator.stats.malformed, 0u);
  }
}

TEST(SdcChart, WithoutAnAnswerAResetEndsWhenNothingCanBeExecutedAnyMore) {
  Pair pair;
  pair.target_ahead_ns = 1'000'000'000'000;  // another clock
  pair.Open();
  pair.local[0] = 1;
  pair.Post(pair.Wr(SDC_OP_WRITE, 8));
  const Pair::Packet late = pair.requests.front();
  sdc_initiator_reset(&pair.initiator, pair.now_ns);
  const uint64_t began_ns = pair.now_ns;
  while (!sdc_initiator_is_reset(&pair.initiator)) {
    pair.Run();
    const uint64_t next_ns = sdc_initiator_next(&pair.initiator, pair.now_ns);
    ASSERT_NE(next_ns, ~uint64_t{0});
    pair.now_ns = next_ns;
    pair.Run();
    ASSERT_LE(pair.now_ns, began_ns + Pair::kLimitNs + Pair::kGraceNs + 1);
  }
  EXPECT_GT(pair.now_ns, began_ns + Pair::kLimitNs);
  pair.Arrive(late);  // only now
  EXPECT_EQ(pair.memory[0], 0u);
  EXPECT_EQ(pair.target.stats.expired, 1u);
}

TEST(SdcChart, AWrIsFailedWhenItsLimitHasPassedAndNotSent) {
  Pair pair;
  pair.Open();
  const sdc_wr wr = pair.Wr(SDC_OP_WRITE, 8);
  ASSERT_EQ(sdc_initiator_post(&pair.initiator, &wr, pair.now_ns), SDC_POSTED);
  pair.Wait(Pair::kLimitNs);  // the machine slept
  EXPECT_TRUE(pair.requests.empty());
  EXPECT_EQ(pair.Completions(), "1:" + to_string(SDC_RETRY_EXCEEDED));
}

TEST(SdcChart, AnUnreachableTargetFailsAfterBoundedTries) {
  Pair pair;
  pair.Post(pair.Wr(SDC_OP_READ, 8));
  uint64_t waited_ns = 0;
  size_t sent = 0;
  for (std::string done; done.empty(); done = pair.Completions()) {
    ASSERT_LT(waited_ns, Pair::kLimitNs);
    sent += pair.requests.size();
    pair.requests.clear();
    pair.Wait(Pair::kRetryNs);
    waited_ns += Pair::kRetryNs;
    if (pair.initiator.state == SDC_QUEUE_ERROR) break;
  }
  EXPECT_EQ(sent, 6u);
  EXPECT_EQ(pair.Completions(), "1:" + to_string(SDC_RETRY_EXCEEDED));
}

// The link was down: the WR that asked for a session was given up after its time, or failed.
TEST(SdcChart, ATargetThatDidNotAnswerIsAskedAgainByTheNextWr) {
  for (const uint64_t given_up_ns : {Pair::kRetryNs / 2, 3 * Pair::kRetryNs, Pair::kLimitNs / 2, 2 * Pair::kLimitNs}) {
    Pair pair;
    pair.Post(pair.Wr(SDC_OP_WRITE, 8));
    for (uint64_t waited_ns = 0; waited_ns < given_up_ns; waited_ns += Pair::kRetryNs / 2)
      pair.Wait(Pair::kRetryNs / 2);
    pair.requests.clear();
    sdc_initiator_reset(&pair.initiator, pair.now_ns);
    ASSERT_TRUE(sdc_initiator_is_reset(&pair.initiator)) << "nothing was sent that could be executed";
    pair.now_ns += Pair::kRetryNs * 10;
    pair.Post(pair.Wr(SDC_OP_WRITE, 8));
    EXPECT_EQ(Pair::Kinds(pair.requests), to_string(SDC_HELLO)) << "given up after " << given_up_ns << " ns";
    pair.PassAll();
    EXPECT_EQ(pair.Completions(), "2:0") << "given up after " << given_up_ns << " ns";
  }
}

TEST(SdcChart, LocalMemoryThatGoesWhileAReadIsUnderWayFailsIt) {
  Pair pair;
  pair.Open();
  pair.Post(pair.Wr(SDC_OP_READ, 8));
  pair.Request();
  pair.local_gone = true;
  pair.Answer();
  EXPECT_EQ(pair.Completions(), "1:" + to_string(SDC_LOCAL_PROTECTION_ERROR));
}

TEST(SdcChart, LengthsThatAddUpToMoreThan32BitsAreTooLong) {
  Pair pair;
  sdc_wr wr = pair.Wr(SDC_OP_WRITE, 0xffffffff);
  wr.sges[1] = wr.sges[0];
  wr.sges[1].length = 9;  // 8 if it wraps
  wr.sge_count = 2;
  EXPECT_EQ(pair.Post(wr), SDC_POSTED);
  EXPECT_EQ(pair.Completions(), "1:" + to_string(SDC_LOCAL_LENGTH_ERROR));
}

TEST(SdcChart, MalformedWrsAreRefusedAtThePost) {
  Pair pair;
  sdc_wr wr = pair.Atomic(SDC_OP_FETCH_ADD, 1);
  wr.remote_addr += 4;
  EXPECT_EQ(pair.Post(wr), SDC_POST_INVALID);
  wr = pair.Wr(SDC_OP_FETCH_ADD, 16);
  EXPECT_EQ(pair.Post(wr), SDC_POST_INVALID);
  wr = pair.Wr(SDC_OP_READ, 8);
  wr.flags |= SDC_INLINE;
  EXPECT_EQ(pair.Post(wr), SDC_POST_INVALID);
  wr = pair.Wr(SDC_OP_WRITE, SDC_MAX_INLINE_BYTES + 1);
  wr.flags |= SDC_INLINE;
  EXPECT_EQ(pair.Post(wr), SDC_POST_INVALID);
  wr = pair.Wr(SDC_OP_WRITE, 8);
  wr.sge_count = SDC_MAX_SGE + 1;
  EXPECT_EQ(pair.Post(wr), SDC_POST_INVALID);
  for (int i = 0; i < 16; ++i) EXPECT_EQ(pair.Post(pair.Wr(SDC_OP_WRITE, 8)), SDC_POSTED);
  EXPECT_EQ(pair.Post(pair.Wr(SDC_OP_WRITE, 8)), SDC_POST_FULL);
}

TEST(SdcChart, TransfersOfNothingNeedNoKey) {
  Pair pair;
  pair.PostReceive(0);
  for (const sdc_opcode opcode : {SDC_OP_READ, SDC_OP_WRITE, SDC_OP_SEND}) {
    sdc_wr wr = pair.Wr(opcode, 0);
    wr.rkey = 1234;
    pair.Post(wr);
  }
  pair.PassAll();
  EXPECT_EQ(pair.Completions(), "1:0 2:0 3:0");
}

TEST(SdcChart, TheReceiveOfADeadSenderIsTheNextOnes) {
  Pair pair({.receives = 1});
  pair.Open();
  pair.PostReceive(1024);
  pair.Post(pair.Wr(SDC_OP_SEND, 1024));
  pair.Request();
  pair.requests.clear();
  pair.StartInitiator();  // the sender is dead; this is its successor
  pair.answers.clear();
  pair.now_ns += Pair::kLimitNs;
  pair.Post(pair.Wr(SDC_OP_SEND, 1024));
  pair.PassAll();
  EXPECT_EQ(pair.Completions(), "2:0");
}

TEST(SdcChart, MorePeersThanThereIsRoomForGiveWayOneByOne) {
  Pair pair;
  pair.Open();
  for (uint64_t key = 1; key <= 30; ++key) {
    sdc_wr wr = pair.Wr(SDC_OP_READ, 0);
    wr.to.qpn = static_cast<uint32_t>(100 + key);
    pair.Post(wr);
    pair.PassAll();
    EXPECT_EQ(pair.Completions(), std::to_string(key) + ":0");
  }
  uint32_t known = 0;
  for (uint32_t i = 0; i < 8; ++i) known += pair.initiator.config.peers[i].state != SDC_PEER_EMPTY;
  EXPECT_EQ(known, 8u);
  EXPECT_EQ(pair.initiator.stats.peers_evicted, 31u - 8);
}

}  // namespace
}  // namespace sdc_test
