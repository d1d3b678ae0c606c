// Each message chart of docs/software_dc.md, packet by packet.
#include <gtest/gtest.h>

#include "tests/rnic/sdc/pair.h"

namespace sdc_test {
namespace {

using std::to_string;

TEST(SdcChart, TheFirstWrAsksForASessionAndThenGoes) {
  Pair pair;
  pair.memory[0] = 42;
  pair.Post(pair.Wr(SDC_OP_READ, 8));
  EXPECT_EQ(Pair::Kinds(pair.requests), to_string(SDC_HELLO));
  pair.Request();
  EXPECT_EQ(Pair::Kinds(pair.answers), to_string(SDC_WELCOME));
  pair.Answer();
  EXPECT_EQ(Pair::Kinds(pair.requests), to_string(SDC_READ));
  pair.PassAll();
  EXPECT_EQ(pair.Completions(), "1:0");
  EXPECT_EQ(pair.local[0], 42u);
  pair.Post(pair.Wr(SDC_OP_READ, 8));
  EXPECT_EQ(Pair::Kinds(pair.requests), to_string(SDC_READ));  // the session is known
}

TEST(SdcChart, ALongWriteIsCutAtWordsAndAcknowledgedNowAndThen) {
  Pair pair;
  pair.Open();
  for (uint64_t i = 0; i < 100; ++i) pair.local[i] = i + 1;
  sdc_wr wr = pair.Wr(SDC_OP_WRITE, 800 - 8);
  wr.remote_addr += 4;  // not at a word
  pair.Post(wr);
  ASSERT_EQ(pair.requests.size(), 5u);
  for (const Pair::Packet& request : pair.requests) {
    sdc_packet packet;
    ASSERT_TRUE(sdc_parse(request.data(), static_cast<uint32_t>(request.size()), &packet));
    EXPECT_LE(request.size(), SDC_MIN_MTU_BYTES);
    const uint64_t end = packet.addr + packet.offset + packet.bytes;
    const bool last = packet.offset + packet.bytes == packet.length;
    EXPECT_TRUE(last || end % 8 == 0) << end;
  }
  while (!pair.requests.empty()) pair.Request();
  EXPECT_LE(pair.answers.size(), 2u);  // of the last one, and of each 16th PSN
  EXPECT_EQ(Pair::KindOf(pair.answers.back()), SDC_ACK);
  pair.PassAll();
  EXPECT_EQ(pair.Completions(), "1:0");
  EXPECT_EQ(std::memcmp(reinterpret_cast<uint8_t*>(pair.memory.data()) + 4, pair.local.data(), 792), 0);
}

TEST(SdcChart, AMissingSegmentIsAskedForAndNothingBehindItIsExecuted) {
  Pair pair;
  pair.Open();
  pair.local[0] = 1;
  for (int i = 0; i < 3; ++i) {
    sdc_wr wr = pair.Wr(SDC_OP_WRITE, 8);
    wr.remote_addr += static_cast<uint64_t>(i) * 8;
    pair.Post(wr);
  }
  pair.requests.pop_front();  // lost
  pair.Request();
  pair.Request();
  EXPECT_EQ(Pair::Kinds(pair.answers), to_string(SDC_GAP));  // said once
  EXPECT_EQ(pair.memory[1], 0u);
  pair.PassAll();
  EXPECT_EQ(pair.Completions(), "1:0 2:0 3:0");
  EXPECT_EQ(pair.memory[2], 1u);
}

TEST(SdcChart, AnAtomicWhoseAnswerWasLostIsNotExecutedAgain) {
  Pair pair;
  pair.Open();
  pair.memory[0] = 10;
  pair.Post(pair.Atomic(SDC_OP_FETCH_ADD, 5));
  pair.Request();
  pair.ExecuteAtomic();
  pair.answers.clear();  // lost
  pair.Wait(Pair::kRetryNs);
  ASSERT_EQ(Pair::Kinds(pair.requests), to_string(SDC_ATOMIC));
  pair.PassAll();
  EXPECT_TRUE(pair.atomics.empty());
  EXPECT_EQ(pair.Completions(), "1:0");
  EXPECT_EQ(pair.local[0], 10u);
  EXPECT_EQ(pair.memory[0], 15u);
}

TEST(SdcChart, AnAtomicThatTakesLongIsInProgressAndCountsAsNoTry) {
  Pair pair;
  pair.Open();
  pair.Post(pair.Atomic(SDC_OP_COMPARE_SWAP, 0, 9));
  pair.Request();
  for (int i = 0; i < 30; ++i) {  // of 5 tries
    pair.Wait(Pair::kRetryNs);
    ASSERT_EQ(Pair::Kinds(pair.requests), to_string(SDC_ATOMIC));
    pair.Request();
    ASSERT_EQ(Pair::Kinds(pair.answers), to_string(SDC_PROGRESS));
    pair.Answer();
  }
  EXPECT_EQ(pair.atomics.size(), 1u);
  pair.ExecuteAtomic();
  pair.PassAll();
  EXPECT_EQ(pair.Completions(), "1:0");
  EXPECT_EQ(pair.memory[0], 9u);
}

TEST(SdcChart, WhatFollowsAnAtomicWaitsForItAndAtomicsDoNot) {
  Pair pair;
  pair.Open();
  pair.Post(pair.Atomic(SDC_OP_FETCH_ADD, 5));
  pair.Post(pair.Atomic(SDC_OP_FETCH_ADD, 6));
  pair.Post(pair.Wr(SDC_OP_READ, 8));
  EXPECT_EQ(Pair::Kinds(pair.requests), to_string(SDC_ATOMIC) + " " + to_string(SDC_ATOMIC));
  pair.PassAll();
  pair.ExecuteAtomic();
  pair.PassAll();
  EXPECT_TRUE(pair.requests.empty());
  EXPECT_EQ(pair.Completions(), "1:0");
  pair.ExecuteAtomic();
  pair.PassAll();
  EXPECT_EQ(pair.Completions(), "2:0 3:0");
  EXPECT_EQ(pair.local[0], 11u);
}

TEST(SdcChart, AFencedWrWaitsForAReadBeforeItAndAnotherDoesNot) {
  Pair pair;
  pair.Open();
  pair.Post(pair.Wr(SDC_OP_READ, 8));
  pair.Post(pair.Wr(SDC_OP_WRITE, 8));
  sdc_wr fenced = pair.Wr(SDC_OP_WRITE, 8);
  fenced.flags |= SDC_FENCE;
  pair.Post(fenced);
  EXPECT_EQ(Pair::Kinds(pair.requests), to_string(SDC_READ) + " " + to_string(SDC_WRITE));
  pair.PassAll();
  EXPECT_EQ(pair.Completions(), "1:0 2:0 3:0");
}

TEST(SdcChart, AnUnknownNonceIsAnsweredAndNotExecuted) {
  Pair pair;
  pair.Open();
  pair.local[0] = 1;
  pair.Post(pair.Wr(SDC_OP_WRITE, 8));
  const Pair::Packet late = pair.requests.front();
  pair.PassAll();
  pair.StartTarget();  // again
  pair.memory[0] = 2;
  pair.Arrive(late);
  EXPECT_EQ(Pair::Kinds(pair.answers), to_string(SDC_GONE));
  EXPECT_EQ(pair.memory[0], 2u);
}

TEST(SdcChart, AReadSurvivesTheEndOfItsSessionAndAWriteThatMayHaveBeenDoneDoesNot) {
  Pair pair;
  pair.Open();
  pair.Post(pair.Wr(SDC_OP_READ, 8));
  pair.StartTarget();
  pair.PassAll();
  EXPECT_EQ(pair.Completions(), "1:0");
  pair.Post(pair.Wr(SDC_OP_WRITE, 8));
  pair.StartTarget();
  pair.PassAll();
  EXPECT_EQ(pair.Completions(), "2:" + to_string(SDC_RETRY_EXCEEDED));
}

TEST(SdcChart, ASessionThatGaveWayLeavesBehindHowFarItCame) {
  Pair pair({.sessions = 1});
  pair.Open();
  pair.local[0] = 7;
  pair.Post(pair.Wr(SDC_OP_WRITE, 8));
  sdc_wr second = pair.Wr(SDC_OP_WRITE, 8);
  second.remote_addr += 8;
  pair.Post(second);
  pair.Request();
  pair.answers.clear();
  const Pair::Packet unexecuted = pair.requests.front();
  // Much later somebody else takes the place.
  pair.now_ns += 50 * Pair::kRetryNs;
  sdc_packet hello{};
  hello.kind = SDC_HELLO;
  hello.target = Pair::kNumber;
  hello.key = Pair::kKey;
  hello.life = 12345;
  hello.id = 1;
  Pair::Packet bytes(64);
  ASSERT_EQ(sdc_build(bytes.data(), &hello), 64u);
  pair.Arrive(bytes);
  ASSERT_EQ(Pair::Kinds(pair.answers), to_string(SDC_WELCOME));
  pair.answers.clear();
  pair.Arrive(unexecuted);
  sdc_packet gone;
  ASSERT_TRUE(sdc_parse(pair.answers[0].data(), static_cast<uint32_t>(pair.answers[0].size()), &gone));
  EXPECT_EQ(gone.kind, SDC_GONE);
  EXPECT_EQ(gone.flags, SDC_FLAG_KNOWN);
  // The first was executed, so the second alone is sent again; the place is free again by then.
  pair.memory[0] = 1;
  pair.now_ns += 45 * Pair::kRetryNs;
  pair.PassAll();
  EXPECT_EQ(pair.Completions(), "1:0 2:0");
  EXPECT_EQ(pair.memory[0], 1u);
  EXPECT_EQ(pair.memory[1], 7u);
}

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

TEST(SdcChart, AFullCompletionQueueIsNoReceive) {
  Pair pair;
  pair.Open();
  pair.PostReceive(100);
  pair.has_room = false;
  pair.Post(pair.Wr(SDC_OP_SEND, 8));
  pair.Request();
  EXPECT_EQ(Pair::Kinds(pair.answers), to_string(SDC_RNR));
  EXPECT_TRUE(pair.received.empty());
  pair.has_room = true;
  pair.Answer();
  pair.Wait(Pair::kRetryNs);
  pair.PassAll();
  EXPECT_EQ(pair.Completions(), "1:0");
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
  pair.StartInitiator();  // the sender is dead; its successor
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
