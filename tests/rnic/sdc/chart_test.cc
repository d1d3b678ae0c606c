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

TEST(SdcChart, ATargetThatAnswersLateIsGivenTheTimeThatItTakes) {
  Pair pair;
  pair.Open();
  constexpr uint64_t kLateNs = 3 * Pair::kRetryNs / 2;
  const auto times_sent = [&] {
    pair.Post(pair.Wr(SDC_OP_READ, 8));
    const uint64_t before = pair.initiator.stats.sent_again;
    pair.Wait(kLateNs);
    pair.PassAll();
    return 1 + pair.initiator.stats.sent_again - before;
  };
  EXPECT_EQ(times_sent(), 2u);  // nothing is known of it yet, and it is not clear which of the two was answered
  for (int i = 0; i < 10; ++i) ASSERT_EQ(times_sent(), 1u) << i;  // so the wait stays doubled, until one is measured
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

TEST(SdcChart, AMessageBegunInASessionThatIsGoneIsNotContinuedInTheNext) {
  Pair pair;
  pair.Open();
  pair.PostReceive(4096);
  pair.sends_left = 2;
  pair.Post(pair.Wr(SDC_OP_READ, 8));
  pair.Post(pair.Wr(SDC_OP_SEND, 1000));
  EXPECT_EQ(Pair::Kinds(pair.requests), to_string(SDC_READ) + " " + to_string(SDC_SEND));
  pair.requests.clear();  // lost: so the message's beginning is sent again, which asks for an acknowledgement
  pair.sends_left = 2;
  pair.Wait(Pair::kRetryNs);
  while (!pair.requests.empty()) pair.Request();
  ASSERT_EQ(Pair::Kinds(pair.answers), to_string(SDC_DATA) + " " + to_string(SDC_ACK));
  pair.answers.pop_front();  // lost: so the initiator asks a target that has forgotten the session
  pair.Answer();
  pair.StartTarget();
  pair.PostReceive(4096);
  pair.sends_left = 1;
  pair.Wait(8 * Pair::kRetryNs);
  ASSERT_EQ(Pair::Kinds(pair.requests), to_string(SDC_READ));
  pair.sends_left = 100;
  while (!pair.requests.empty() || !pair.answers.empty()) {
    if (!pair.requests.empty()) {
      EXPECT_NE(Pair::KindOf(pair.requests.front()), SDC_SEND);
      pair.Request();
    }
    if (!pair.answers.empty()) pair.Answer();
  }
  EXPECT_EQ(pair.Completions(), "1:0 2:" + to_string(SDC_RETRY_EXCEEDED));
  EXPECT_TRUE(pair.received.empty());
}

// Another initiator takes the place of a session.
void GreetAsAnother(Pair& pair) {
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
  // Much later another initiator takes the place.
  pair.now_ns += 50 * Pair::kRetryNs;
  GreetAsAnother(pair);
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

// The session reached a segment; that does not say whether the segment was not executed or was refused.
TEST(SdcChart, ASessionThatFailedLeavesBehindNothingAndWhatItRefusedIsNotSentAgain) {
  Pair pair({.sessions = 1});
  pair.Open();
  pair.rights = SDC_ACCESS_READ;
  pair.local[0] = 7;
  pair.Post(pair.Wr(SDC_OP_WRITE, 8));
  pair.Request();
  ASSERT_EQ(Pair::Kinds(pair.answers), to_string(SDC_NAK));
  pair.answers.clear();
  pair.rights |= SDC_ACCESS_WRITE;
  pair.now_ns += 50 * Pair::kRetryNs;
  GreetAsAnother(pair);
  pair.now_ns += 45 * Pair::kRetryNs;
  pair.Run();
  pair.PassAll();
  EXPECT_EQ(pair.Completions(), "1:" + to_string(SDC_RETRY_EXCEEDED));
  EXPECT_EQ(pair.memory[0], 0u);
}

}  // namespace
}  // namespace sdc_test
