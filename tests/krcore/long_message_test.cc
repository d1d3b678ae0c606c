// Messages too long to be copied: the receiver READs them from the sender's memory, which is in use until then.
#include <cstring>
#include <memory>
#include <vector>

#include "tests/krcore/message_fixture.h"

namespace krcore::test {
namespace {

class LongMessages : public TwoMessagingNodes {};

TEST_F(LongMessages, AreReadFromTheSenderAndCompleteOnlyThen) {
  auto inbox = server_.Bound(kPort);
  auto outbox = client_.ConnectTo(1, kPort);
  for (size_t i = 0; i < client_.buffer_bytes; ++i) client_.Buffer(0)[i] = static_cast<std::byte>(i * 7);
  const Sge large = client_.At(0, client_.buffer_bytes), small = client_.At(1, 3);
  client_.Put(1, "end");
  const WorkRequest wrs[2] = {SendOf(&large, 1), SendOf(&small, 2)};
  ASSERT_OK(outbox->Push(wrs));
  PollSome();
  Completion early;
  EXPECT_EQ(outbox->Pop({&early, 1}), 0u) << "its buffer is in use, and the one behind it waits its turn";
  EXPECT_EQ(outbox->outstanding(), 2u);
  ASSERT_OK(server_.Receive(*inbox, 0, 2));
  const Message first = Next(*inbox);
  EXPECT_TRUE(first.zero_copy);
  EXPECT_EQ(first.byte_len, client_.buffer_bytes);
  EXPECT_EQ(std::memcmp(server_.Buffer(0), client_.Buffer(0), client_.buffer_bytes), 0);
  EXPECT_EQ(server_.Text(1, Next(*inbox).byte_len), "end");
  EXPECT_EQ(Done(*outbox).wr_id, 1u);
  EXPECT_EQ(Done(*outbox).wr_id, 2u);
  ExpectNothingBroke();
}

TEST_F(LongMessages, UnsignaledOnesHoldBackTheCompletionBehindThem) {
  auto inbox = server_.Bound(kPort);
  auto outbox = client_.ConnectTo(1, kPort, 4);
  const Sge large = client_.At(0, client_.buffer_bytes);
  for (int round = 0; round < 10; ++round) {
    const WorkRequest wrs[3] = {SendOf(&large, 1, 0), SendOf(&large, 2), SendOf(&large, 3, 0)};
    ASSERT_OK(outbox->Push(wrs));
    PollSome(20);
    Completion early;
    ASSERT_EQ(outbox->Pop({&early, 1}), 0u);
    ASSERT_OK(server_.Receive(*inbox, 0, 3));
    for (int i = 0; i < 3; ++i) Next(*inbox);
    EXPECT_EQ(Done(*outbox).wr_id, 2u);
    PollSome();
    EXPECT_EQ(outbox->outstanding(), 0u);
    EXPECT_EQ(outbox->Pop({&early, 1}), 0u);
  }
}

TEST_F(LongMessages, ClosingAQueueTakesBackWhatWasNotReadAndLeavesTheRest) {
  auto inbox = server_.Bound(kPort, {.senders = 1});
  const Sge large = client_.At(0, client_.buffer_bytes), small = client_.At(1, 5);
  client_.Put(1, "small");
  {
    auto outbox = client_.ConnectTo(1, kPort);
    const WorkRequest wrs[3] = {SendOf(&small, 1), SendOf(&large, 2), SendOf(&small, 3)};
    ASSERT_OK(outbox->Push(wrs));
    PollSome();
  }
  std::memset(client_.Buffer(0), 0x55, client_.buffer_bytes);  // it is the user's again
  ASSERT_OK(server_.Receive(*inbox, 0, 4));
  EXPECT_EQ(server_.Text(0, Next(*inbox).byte_len), "small");
  EXPECT_EQ(server_.Text(1, Next(*inbox).byte_len), "small");
  PollSome();
  Message none;
  EXPECT_EQ(inbox->PopMessages({&none, 1}), 0u);
  // Its place is free again, the only one of this port.
  auto next = client_.ConnectTo(1, kPort);
  const WorkRequest wr = SendOf(&small, 9);
  ASSERT_OK(next->Push({&wr, 1}));
  EXPECT_EQ(server_.Text(2, Next(*inbox).byte_len), "small");
}

TEST_F(LongMessages, WhatItsSenderTookBackDuringTheReadIsNotDelivered) {
  SKIP_IF_SIMULATED("counts on a READ that is executed when it is posted");
  auto inbox = server_.Bound(kPort);
  ASSERT_OK(server_.Receive(*inbox, 0, 1));
  auto outbox = client_.ConnectTo(1, kPort);
  const Sge large = client_.At(0, client_.buffer_bytes);
  ASSERT_OK(outbox->Push(std::vector{SendOf(&large, 1)}));
  const uint64_t posted = server_.pool->stats().work_requests;
  for (int i = 0; i < 1000 && server_.pool->stats().work_requests == posted; ++i) {
    LetRequestsRun(server_.node->clock());
    server_.pool->Poll();
  }
  ASSERT_EQ(server_.pool->stats().work_requests, posted + 1) << "the READ";
  outbox.reset();  // before the receiver knows of its completion
  PollSome();
  Message none;
  EXPECT_EQ(inbox->PopMessages({&none, 1}), 0u);
  // The receive is free for the next.
  auto next = client_.ConnectTo(1, kPort);
  const Sge small = client_.At(1, 4);
  ASSERT_OK(next->Push(std::vector{SendOf(&small, 2)}));
  EXPECT_EQ(Next(*inbox).byte_len, 4u);
}

TEST_F(LongMessages, AOneSidedRequestBehindOneCompletesBehindIt) {
  auto inbox = server_.Bound(kPort);
  auto outbox = client_.ConnectTo(1, kPort, 4);
  const Sge sge = client_.At(1, 8), large = client_.At(0, client_.buffer_bytes);
  WorkRequest read = SendOf(&sge, 7);
  read.opcode = Opcode::kRead;
  read.remote_addr = outbox->regions()[0].addr;
  read.rkey = outbox->regions()[0].rkey;
  for (uint64_t round = 0; round < 10; ++round) {
    ASSERT_OK(outbox->Push({&read, 1}));  // the next one is like it
    EXPECT_EQ(Done(*outbox).wr_id, 7u);
    const WorkRequest send = SendOf(&large, round % 2, round % 2 != 0 ? kSignaled : 0);
    ASSERT_OK(outbox->Push({&send, 1}));
    PollSome(20);
    ASSERT_OK(outbox->Push({&read, 1}));
    PollSome(20);
    Completion early;
    ASSERT_EQ(outbox->Pop({&early, 1}), 0u) << "the receiver has not read the message";
    ASSERT_OK(server_.Receive(*inbox, 0, 1));
    Next(*inbox);
    if (round % 2 != 0) {
      EXPECT_EQ(Done(*outbox).wr_id, 1u);
    }
    EXPECT_EQ(Done(*outbox).wr_id, 7u);
    PollSome();
    EXPECT_EQ(outbox->outstanding(), 0u);
  }
}

}  // namespace
}  // namespace krcore::test
