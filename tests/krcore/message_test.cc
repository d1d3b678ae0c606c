// Messages between two nodes: order, replies, copy and zero-copy, credits, refusals, closing.
#include <random>

#include "tests/krcore/message_fixture.h"

namespace krcore::test {
namespace {

constexpr Port kPort = 7;

class Messages : public ::testing::Test {
 protected:
  // By the calls of both sides; nobody's thread runs in the background.
  Message Next(VirtualQueue& queue) { return NextMessage(queue, {server_.pool.get(), client_.pool.get()}); }
  Completion Done(VirtualQueue& queue) { return NextCompletion(queue, {client_.pool.get(), server_.pool.get()}); }
  void PollSome(int polls = 300) {
    for (int i = 0; i < polls; ++i) {
      client_.pool->Poll();
      server_.pool->Poll();
      LetRequestsRun(client_.node->clock());
    }
  }
  void ExpectNothingBroke() {
    EXPECT_EQ(server_.pool->stats().broken_queues, 0u);
    EXPECT_EQ(client_.pool->stats().broken_queues, 0u);
  }

  const std::string fabric_ = UniqueFabric(true);
  MessagingNode server_ = MessagingNode::Start(fabric_, 1, true);
  MessagingNode client_ = MessagingNode::Start(fabric_, kNoNode, false);
};

TEST_F(Messages, ArriveInOrderAndNameTheirSender) {
  auto inbox = server_.Bound(kPort);
  ASSERT_OK(server_.Receive(*inbox, 0, 8));
  auto outbox = client_.ConnectTo(1, kPort);
  client_.Put(0, "first");
  client_.Put(1, "second");
  const Sge first = client_.At(0, 5), second = client_.At(1, 6);
  WorkRequest wrs[3] = {SendOf(&first, 10), SendOf(&second, 11), SendOf(nullptr, 12)};
  wrs[1].opcode = Opcode::kSendImm;
  wrs[1].imm = 0xabcd;
  ASSERT_OK(outbox->Push(wrs));

  Message message = Next(*inbox);
  EXPECT_EQ(message.wr_id, 0u);
  EXPECT_EQ(message.status, WcStatus::kSuccess);
  EXPECT_EQ(message.opcode, Opcode::kRecv);
  EXPECT_EQ(message.flags & kWithImm, 0);
  EXPECT_EQ(server_.Text(0, message.byte_len), "first");
  EXPECT_EQ(message.sender.node, client_.node->id());
  EXPECT_EQ(message.sender.incarnation, client_.node->incarnation());
  EXPECT_EQ(message.sender.port, kNoPort);
  message = Next(*inbox);
  EXPECT_EQ(server_.Text(1, message.byte_len), "second");
  EXPECT_EQ(message.flags & kWithImm, kWithImm);
  EXPECT_EQ(message.imm, 0xabcdu);
  message = Next(*inbox);
  EXPECT_EQ(message.wr_id, 2u);
  EXPECT_EQ(message.byte_len, 0u);
  for (uint64_t wr_id = 10; wr_id < 13; ++wr_id) {
    const Completion done = Done(*outbox);
    EXPECT_EQ(done.wr_id, wr_id);
    EXPECT_EQ(done.status, WcStatus::kSuccess);
    EXPECT_EQ(done.opcode, wr_id == 11 ? Opcode::kSendImm : Opcode::kSend);
  }
  ExpectNothingBroke();
}

TEST_F(Messages, GatherAndInlinePayloadsOfAnyLength) {
  auto inbox = server_.Bound(kPort);
  auto outbox = client_.ConnectTo(1, kPort);
  std::string text;
  for (int i = 0; i < 4000; ++i) text += static_cast<char>('a' + i % 23);
  client_.Put(0, text);
  for (const uint32_t length : {1u, 7u, 8u, 9u, 63u, 100u, 3999u}) {
    ASSERT_OK(server_.Receive(*inbox, 0, 1));
    const Sge parts[2] = {
        client_.At(0, (length + 1) / 2),
        {reinterpret_cast<uint64_t>(client_.Buffer(0) + (length + 1) / 2), length / 2, client_.memory->lkey()}};
    WorkRequest wr = SendOf(parts, length);
    wr.num_sge = length == 1 ? 1 : 2;
    ASSERT_OK(outbox->Push({&wr, 1}));
    const Message message = Next(*inbox);
    ASSERT_EQ(server_.Text(0, message.byte_len), text.substr(0, length));
    EXPECT_FALSE(message.zero_copy);
    EXPECT_EQ(Done(*outbox).status, WcStatus::kSuccess);
  }
  std::string unregistered = "gone with the call";
  const Sge sge{reinterpret_cast<uint64_t>(unregistered.data()), static_cast<uint32_t>(unregistered.size()), 0};
  const WorkRequest wr = SendOf(&sge, 1, kSignaled | kInline);
  ASSERT_OK(outbox->Stage({&wr, 1}));
  unregistered.assign(unregistered.size(), '.');
  ASSERT_OK(server_.Receive(*inbox, 0, 1));
  EXPECT_EQ(server_.Text(0, Next(*inbox).byte_len), "gone with the call");
}

TEST_F(Messages, WriteWithImmediateIsWrittenBeforeItIsAnnounced) {
  SKIP_ON_KERNEL("has no WRITE with immediate");
  auto target = server_.node->CreateRegion({.length = 4096, .remote_rights = kAllRights}).value();
  auto inbox = server_.Bound(kPort);
  ASSERT_OK(server_.node->Publish(server_.Soon()));
  ASSERT_OK(server_.Receive(*inbox, 5, 1));
  auto outbox = client_.ConnectTo(1, kPort);
  client_.Put(0, "written");
  server_.Put(5, "untouched");
  const Sge sge = client_.At(0, 7);
  WorkRequest wr = SendOf(&sge, 3);
  wr.opcode = Opcode::kWriteImm;
  wr.imm = 99;
  wr.remote_addr = reinterpret_cast<uint64_t>(target->bytes().data()) + 64;
  wr.rkey = target->rkey();
  ASSERT_OK(outbox->Push({&wr, 1}));
  const Message message = Next(*inbox);
  EXPECT_EQ(message.wr_id, 5u);
  EXPECT_EQ(message.opcode, Opcode::kRecvWithImm);
  EXPECT_EQ(message.imm, 99u);
  EXPECT_EQ(message.byte_len, 7u);
  EXPECT_EQ(std::memcmp(target->bytes().data() + 64, "written", 7), 0);
  EXPECT_EQ(server_.Text(5, 9), "untouched");
  const Completion done = Done(*outbox);
  EXPECT_EQ(done.wr_id, 3u);
  EXPECT_EQ(done.opcode, Opcode::kWriteImm);
  Completion extra;
  EXPECT_EQ(outbox->Pop({&extra, 1}), 0u) << "one completion for both halves";
}

TEST_F(Messages, AReplyLooksNothingUp) {
  auto inbox = server_.Bound(kPort);
  ASSERT_OK(server_.Receive(*inbox, 0, 4));
  auto both_ways = client_.Bound(kNoPort);
  EXPECT_GE(both_ways->port(), kFirstAutomaticPort);
  ASSERT_OK(both_ways->Connect(1, kPort, client_.Soon()));
  ASSERT_OK(client_.Receive(*both_ways, 100, 4));
  client_.Put(0, "question");
  const Sge question = client_.At(0, 8);
  const WorkRequest ask = SendOf(&question, 1);
  ASSERT_OK(both_ways->Push({&ask, 1}));
  const Message asked = Next(*inbox);
  EXPECT_EQ(asked.sender.port, both_ways->port());

  const uint64_t lookups = server_.pool->stats().metadata_lookups;
  auto reply = server_.Queue();
  ASSERT_OK(reply->Connect(asked.sender, server_.Soon()));
  EXPECT_TRUE(kOnKernel || server_.pool->stats().metadata_lookups == lookups);
  server_.Put(50, "answer");
  const Sge answer = server_.At(50, 6);
  const WorkRequest wr = SendOf(&answer, 2);
  ASSERT_OK(reply->Push({&wr, 1}));
  const Message answered = Next(*both_ways);
  EXPECT_EQ(client_.Text(100, answered.byte_len), "answer");
  EXPECT_EQ(answered.sender.node, 1u);
  Done(*reply);
  Done(*both_ways);
  EXPECT_EQ(both_ways->Connect(answered.sender, client_.Soon()).code(), StatusCode::kInvalidArgument)
      << "the replying queue is not bound";
  EXPECT_EQ(both_ways->Connect(Sender{}, client_.Soon()).code(), StatusCode::kInvalidArgument);
}

TEST_F(Messages, WithoutReceivesTheSenderIsHeldBackAndNothingIsLost) {
  auto inbox = server_.Bound(kPort, {.slots = 4});
  auto outbox = client_.ConnectTo(1, kPort);
  EXPECT_EQ(outbox->credits(), 4u);
  client_.Put(0, "x");
  const Sge sge = client_.At(0, 1);
  std::vector<WorkRequest> wrs;
  for (uint64_t i = 0; i < 5; ++i) wrs.push_back(SendOf(&sge, i));
  size_t bad = 99;
  EXPECT_EQ(outbox->Push(wrs, &bad).code(), StatusCode::kQueueFull) << "five do not fit";
  EXPECT_EQ(bad, 4u);
  wrs.pop_back();
  ASSERT_OK(outbox->Push(wrs));
  PollSome();
  EXPECT_EQ(outbox->credits(), 0u);
  EXPECT_EQ(outbox->Push({wrs.data(), 1}).code(), StatusCode::kQueueFull);
  Completion completions[8];
  EXPECT_EQ(outbox->Pop(completions), 4u) << "what was copied is done";

  ASSERT_OK(server_.Receive(*inbox, 0, 2));
  Next(*inbox);
  Next(*inbox);
  PollSome();
  EXPECT_EQ(outbox->credits(), 2u);
  ASSERT_OK(outbox->Push({wrs.data(), 2}));
  ASSERT_OK(server_.Receive(*inbox, 2, 4));
  for (uint64_t i = 2; i < 6; ++i) EXPECT_EQ(Next(*inbox).wr_id, i);
  PollSome();
  Message none;
  EXPECT_EQ(inbox->PopMessages({&none, 1}), 0u);
  ExpectNothingBroke();
}

TEST_F(Messages, ALongOneIsReadFromTheSenderAndCompletesOnlyThen) {
  SKIP_ON_KERNEL("messages are copied");
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

TEST_F(Messages, UnsignaledZeroCopyHoldsBackTheCompletionBehindIt) {
  SKIP_ON_KERNEL("messages are copied");
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

TEST_F(Messages, ClosingAQueueTakesBackWhatWasNotReadAndLeavesTheRest) {
  SKIP_ON_KERNEL("messages are copied");
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

TEST_F(Messages, WhatItsSenderTookBackDuringTheReadIsNotDelivered) {
  SKIP_ON_KERNEL("messages are copied");
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

// "The data is there" must not arrive without the data.
TEST_F(Messages, AMessageBehindAFlushedWriteIsFlushedTooAndSettledBeforeTheNext) {
  SKIP_ON_KERNEL("breaks no connection for what it can see to be wrong; tests/kmod breaks them");
  MemoryNode victim = MemoryNode::Start(fabric_, 9, 4096, false);
  MessagingNode receiver = MessagingNode::Start(fabric_, 6, false);
  MessagingNode sender = MessagingNode::Start(fabric_, 7, false, {.dc_initiators = 1});
  auto inbox = receiver.Bound(kPort);
  ASSERT_OK(receiver.Receive(*inbox, 0, 8));
  auto queue = sender.ConnectTo(6, kPort), saboteur = sender.Queue();
  ASSERT_OK(saboteur->Connect(9, sender.Soon()));
  victim.region.reset();
  const Sge sge = sender.At(0, 8);
  WorkRequest bad = SendOf(&sge, 0), write = SendOf(&sge, 1), read = SendOf(&sge, 2), send = SendOf(&sge, 3);
  bad.opcode = read.opcode = Opcode::kRead;
  bad.remote_addr = saboteur->regions()[0].addr;
  bad.rkey = saboteur->regions()[0].rkey;
  // The receiver's own memory serves as the READ's target; it grants no WRITE, but that one is flushed unexecuted.
  read.remote_addr = write.remote_addr = queue->regions()[0].addr;
  read.rkey = write.rkey = queue->regions()[0].rkey;
  write.opcode = Opcode::kWrite;
  ASSERT_OK(saboteur->Stage({&bad, 1}));
  ASSERT_OK(queue->Stage(std::vector{write, read, send}));
  sender.pool->Poll();
  const uint64_t broken = sender.pool->stats().broken_queues;
  // Whatever the polls have found so far: as soon as a message is accepted it arrives.
  Status pushed;
  int refused = 0;
  ASSERT_TRUE(PollUntil({sender.pool.get()},
                        [&] {
                          if (sender.pool->stats().broken_queues == 0) return false;
                          pushed = queue->Push(std::vector{SendOf(&sge, 4)});
                          refused += pushed == StatusCode::kUnavailable;
                          return pushed.ok();
                        }))
      << pushed.ToString() << broken;
  EXPECT_GT(refused, 0);
  const WcStatus expected[] = {WcStatus::kFlushed, WcStatus::kSuccess, WcStatus::kFlushed, WcStatus::kSuccess};
  for (uint64_t i = 0; i < 4; ++i) {
    const Completion done = NextCompletion(*queue, {sender.pool.get(), receiver.pool.get()});
    EXPECT_EQ(done.wr_id, i + 1);
    EXPECT_EQ(done.status, expected[i]) << i;
  }
  EXPECT_EQ(NextMessage(*inbox, {receiver.pool.get(), sender.pool.get()}).wr_id, 0u);
  for (int i = 0; i < 100; ++i) {
    receiver.pool->Poll();
    sender.pool->Poll();
    LetRequestsRun(sender.node->clock());
  }
  Message none;
  EXPECT_EQ(inbox->PopMessages({&none, 1}), 0u) << "the flushed one";
}

TEST_F(Messages, AReceiveTooShortComesBackAndTheMessageWaits) {
  auto inbox = server_.Bound(kPort);
  auto outbox = client_.ConnectTo(1, kPort);
  client_.Put(0, "rather long");
  const Sge sge = client_.At(0, 11);
  const Receive tight{41, server_.At(0, 10)}, enough{42, server_.At(1, 11)};
  ASSERT_OK(inbox->PushRecv({&tight, 1}));
  const WorkRequest wr = SendOf(&sge, 1);
  ASSERT_OK(outbox->Push({&wr, 1}));
  Message message = Next(*inbox);
  EXPECT_EQ(message.wr_id, 41u);
  EXPECT_EQ(message.status, WcStatus::kLocalLengthError);
  EXPECT_EQ(message.byte_len, 11u);
  ASSERT_OK(inbox->PushRecv({&enough, 1}));
  message = Next(*inbox);
  EXPECT_EQ(message.wr_id, 42u);
  EXPECT_EQ(message.status, WcStatus::kSuccess);
  EXPECT_EQ(server_.Text(1, message.byte_len), "rather long");
  ExpectNothingBroke();
}

TEST_F(Messages, APortHasOneOwnerAndIsFreeAfterIt) {
  auto first = server_.Bound(kPort);
  auto second = server_.Queue();
  EXPECT_EQ(second->Bind(kPort, {}, server_.Soon()).code(), StatusCode::kExists);
  EXPECT_EQ(first->Bind(9, {}, server_.Soon()).code(), StatusCode::kBadState);
  EXPECT_EQ(second->Bind(9, {.senders = 0}, server_.Soon()).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(second->Bind(9, {.slots = 5000}, server_.Soon()).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(second->port(), kNoPort);
  first.reset();
  auto late = client_.Queue();
  EXPECT_EQ(late->Connect(1, kPort, client_.Soon()).code(), StatusCode::kNotFound);
  ASSERT_OK(second->Bind(kPort, {}, server_.Soon()));
  EXPECT_EQ(second->port(), kPort);
  ASSERT_OK(late->Connect(1, kPort, client_.Soon()));
  EXPECT_EQ(late->Connect(1, 8, client_.Soon()).code(), StatusCode::kNotFound);
  EXPECT_EQ(late->Connect(1, kNoPort, client_.Soon()).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(late->Connect(77, kPort, client_.Soon()).code(), StatusCode::kNotFound);
}

TEST_F(Messages, AFullPortRefusesAnotherSenderUntilOneLeaves) {
  auto inbox = server_.Bound(kPort, {.senders = 3});
  std::vector<std::unique_ptr<VirtualQueue>> senders;
  for (int i = 0; i < 3; ++i) senders.push_back(client_.ConnectTo(1, kPort));
  auto fourth = client_.Queue();
  EXPECT_EQ(fourth->Connect(1, kPort, client_.Soon()).code(), StatusCode::kQueueFull);
  EXPECT_EQ(fourth->credits(), 0u);
  senders.erase(senders.begin() + 1);
  PollSome();
  ASSERT_OK(fourth->Connect(1, kPort, client_.Soon()));
  // Another port, another place; the old one is given back.
  auto other = server_.Bound(8);
  ASSERT_OK(fourth->Connect(1, 8, client_.Soon()));
  PollSome();
  auto fifth = client_.Queue();
  ASSERT_OK(fifth->Connect(1, kPort, client_.Soon()));
}

TEST_F(Messages, AClosedPortFailsItsSendersAndOnlyThem) {
  SKIP_ON_KERNEL("hears of it by the next message; tests/kmod has that");
  auto inbox = server_.Bound(kPort);
  auto steady_inbox = server_.Bound(8);
  ASSERT_OK(server_.Receive(*steady_inbox, 0, 8));
  auto outbox = client_.ConnectTo(1, kPort), steady = client_.ConnectTo(1, 8);
  const Sge sge = client_.At(0, 4), large = client_.At(1, client_.buffer_bytes);
  const WorkRequest held = SendOf(&large, 6);
  ASSERT_OK(outbox->Push({&held, 1}));
  PollSome(3);
  inbox.reset();
  EXPECT_NE(Done(*outbox).status, WcStatus::kSuccess) << "nobody will read it any more";
  const WorkRequest wr = SendOf(&sge, 7);
  EXPECT_EQ(outbox->Push({&wr, 1}).code(), StatusCode::kUnavailable);
  EXPECT_EQ(outbox->Connect(1, kPort, client_.Soon()).code(), StatusCode::kNotFound);
  ASSERT_OK(steady->Push({&wr, 1}));
  EXPECT_EQ(Next(*steady_inbox).byte_len, 4u);
}

TEST_F(Messages, ReceivesAreCheckedAndBounded) {
  auto inbox = server_.Bound(kPort, {.receive_depth = 4});
  const Receive foreign{1, {server_.At(0, 8).addr, 8, server_.memory->lkey() ^ 0x5a5a}};
  Receive beyond{2, server_.At(0, 8)};
  beyond.buffer.addr = reinterpret_cast<uint64_t>(server_.memory->bytes().data() + server_.memory->bytes().size() - 7);
  const Receive good{3, server_.At(0, 8)};
  size_t bad = 99;
  const Receive batch[2] = {good, foreign};
  EXPECT_EQ(inbox->PushRecv(batch, &bad).code(), StatusCode::kPermissionDenied);
  EXPECT_EQ(bad, 1u);
  EXPECT_EQ(inbox->PushRecv({&beyond, 1}).code(), StatusCode::kPermissionDenied);
  ASSERT_OK(server_.Receive(*inbox, 0, 4));  // the refused batch left nothing behind
  EXPECT_EQ(inbox->PushRecv({&good, 1}, &bad).code(), StatusCode::kQueueFull);
  EXPECT_EQ(bad, 0u);
  auto unbound = server_.Queue();
  EXPECT_EQ(unbound->PushRecv({&good, 1}).code(), StatusCode::kBadState);
  Message none;
  EXPECT_EQ(unbound->PopMessages({&none, 1}), 0u);
}

TEST_F(Messages, BadOnesAreRefusedWithTheirCodeAndNothingIsPosted) {
  auto inbox = server_.Bound(kPort);
  ASSERT_OK(server_.Receive(*inbox, 0, 4));
  auto outbox = client_.ConnectTo(1, kPort);
  const Sge good_sge = client_.At(0, 8);
  auto local = client_.node->CreateRegion({.length = 16384}).value();  // peers may not READ it
  const Sge private_large{reinterpret_cast<uint64_t>(local->bytes().data()), 16384, local->lkey()};
  const uint64_t posted = client_.pool->stats().work_requests;
  const auto refusal = [&](const std::function<void(WorkRequest&, Sge&)>& spoil) {
    Sge sge = good_sge;
    WorkRequest bad = SendOf(&sge, 1);
    spoil(bad, sge);
    const WorkRequest batch[2] = {SendOf(&good_sge, 0), bad};
    size_t bad_index = 99;
    const StatusCode code = outbox->Push(batch, &bad_index).code();
    EXPECT_EQ(bad_index, 1u);
    return code;
  };
  EXPECT_EQ(refusal([](WorkRequest& wr, Sge&) { wr.flags = 0x40; }), StatusCode::kInvalidArgument);
  EXPECT_EQ(refusal([](WorkRequest& wr, Sge&) { wr.num_sge = 4; }), StatusCode::kInvalidArgument);
  EXPECT_EQ(refusal([](WorkRequest& wr, Sge&) { wr.sg_list = nullptr; }), StatusCode::kInvalidArgument);
  EXPECT_EQ(refusal([](WorkRequest&, Sge& sge) { sge.length = 0; }), StatusCode::kInvalidArgument);
  EXPECT_EQ(refusal([](WorkRequest&, Sge& sge) { sge.lkey ^= 0x5a5a; }), StatusCode::kPermissionDenied);
  EXPECT_EQ(refusal([](WorkRequest&, Sge& sge) { sge.addr -= 1; }), StatusCode::kPermissionDenied);
  EXPECT_EQ(refusal([](WorkRequest& wr, Sge& sge) {
              wr.flags = kInline;
              sge.length = 500;
            }),
            StatusCode::kInvalidArgument)
      << "header and payload exceed what a NIC takes inline";
  EXPECT_EQ(refusal([&](WorkRequest&, Sge& sge) { sge = private_large; }),
            kOnKernel ? StatusCode::kInvalidArgument : StatusCode::kPermissionDenied)
      << "too long to copy, and the receiver may not read it";
  EXPECT_EQ(refusal([](WorkRequest& wr, Sge&) { wr.opcode = Opcode::kWriteImm; }),
            kOnKernel ? StatusCode::kUnsupported : StatusCode::kPermissionDenied)
      << "no rkey";
  EXPECT_EQ(refusal([](WorkRequest& wr, Sge&) { wr.opcode = Opcode::kRecv; }), StatusCode::kInvalidArgument);
  EXPECT_EQ(client_.pool->stats().work_requests, posted);
  EXPECT_EQ(outbox->outstanding(), 0u);
  EXPECT_EQ(outbox->credits(), BindOptions{}.slots);

  auto one_sided = client_.Queue();
  ASSERT_OK(one_sided->Connect(1, client_.Soon()));
  const WorkRequest wr = SendOf(&good_sge, 1);
  EXPECT_EQ(one_sided->Push({&wr, 1}).code(), StatusCode::kBadState) << "not connected to a port";
  ASSERT_OK(outbox->Push({&wr, 1}));
  EXPECT_EQ(Next(*inbox).byte_len, 8u);
}

TEST_F(Messages, OneSidedRequestsAndMessagesOfOneQueueCompleteInOrder) {
  auto inbox = server_.Bound(kPort, {.slots = 8});
  auto outbox = client_.ConnectTo(1, kPort);
  const RemoteRegion remote = outbox->regions()[0];
  const Sge sge = client_.At(0, 8), large = client_.At(1, kOnKernel ? 4096 : client_.buffer_bytes);
  WorkRequest read = SendOf(&sge, 0);
  read.opcode = Opcode::kRead;
  read.remote_addr = remote.addr;
  read.rkey = remote.rkey;
  std::vector<WorkRequest> wrs = {read, SendOf(&sge, 1), read, SendOf(&large, 3), read, SendOf(&sge, 5), read};
  for (size_t i = 0; i < wrs.size(); ++i) wrs[i].wr_id = i;
  ASSERT_OK(outbox->Push(wrs));
  ASSERT_OK(server_.Receive(*inbox, 0, 3));
  for (int i = 0; i < 3; ++i) Next(*inbox);
  for (size_t i = 0; i < wrs.size(); ++i) {
    const Completion done = Done(*outbox);
    EXPECT_EQ(done.wr_id, i);
    EXPECT_EQ(done.opcode, wrs[i].opcode);
    EXPECT_EQ(done.status, WcStatus::kSuccess);
  }
}

TEST_F(Messages, AOneSidedRequestBehindALongMessageCompletesBehindIt) {
  SKIP_ON_KERNEL("messages are copied");
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

TEST_F(Messages, QueuesOutliveTheirPoolHarmlessly) {
  auto inbox = server_.Bound(kPort);
  ASSERT_OK(server_.Receive(*inbox, 0, 4));
  auto outbox = client_.ConnectTo(1, kPort);
  const Sge large = client_.At(0, kOnKernel ? 4096 : client_.buffer_bytes);
  const WorkRequest wr = SendOf(&large, 1);
  ASSERT_OK(outbox->Push({&wr, 1}));
  for (int i = 0; i < 9; ++i) server_.pool->Poll();
  client_.pool.reset();
  server_.pool.reset();
  EXPECT_EQ(outbox->Push({&wr, 1}).code(), StatusCode::kBadState);
  EXPECT_EQ(outbox->credits(), 0u);
  EXPECT_EQ(inbox->port(), kNoPort);
  EXPECT_EQ(inbox->Bind(1, {}, Deadline::Never()).code(), StatusCode::kBadState);
}

// The NIC had the payload when the message was flushed, and by the repair other payloads may lie where it was.
TEST(InlineMessages, AFlushedOneIsReportedAndNothingElseGoesInItsPlace) {
  SKIP_ON_KERNEL("copies a message before it is accepted");
  const std::string fabric = UniqueFabric(true);
  MessagingNode server = MessagingNode::Start(fabric, 1, true);
  auto gone = server.node->CreateRegion({.length = 4096, .remote_rights = kAllRights}).value();
  ASSERT_OK(server.node->Publish(server.Soon()));
  MessagingNode client = MessagingNode::Start(fabric, kNoNode, false, {.dc_initiators = 1, .max_rc_queues = 0});
  auto inbox = server.Bound(7);
  ASSERT_OK(server.Receive(*inbox, 0, 8));
  auto outbox = client.ConnectTo(1, 7);
  auto culprit = client.Queue();
  ASSERT_OK(culprit->Connect(1, client.Soon()));
  const Sge target = client.At(9, 8);
  WorkRequest wrong;
  wrong.sg_list = &target;
  wrong.num_sge = 1;
  wrong.opcode = Opcode::kRead;
  wrong.flags = kSignaled;
  for (const RemoteRegion& region : culprit->regions()) {
    if (region.rkey != gone->rkey()) continue;
    wrong.remote_addr = region.addr;
    wrong.rkey = region.rkey;
  }
  ASSERT_NE(wrong.rkey, 0u);
  gone.reset();
  client.Put(0, "first!");
  client.Put(1, "second");
  const Sge sges[] = {client.At(0, 6), client.At(1, 6)};
  ASSERT_OK(culprit->Stage({&wrong, 1}));
  const WorkRequest first = SendOf(&sges[0], 0, kSignaled | kInline), second = SendOf(&sges[1], 1, kSignaled | kInline);
  ASSERT_OK(outbox->Stage({&first, 1}));
  client.pool->Flush();
  const bool both = outbox->Push({&second, 1}).ok();
  const auto done = Await(*client.pool, *outbox, both ? 2 : 1);
  // Behind the void, messages are accepted again.
  Clock& clock = client.node->clock();
  const Deadline deadline = client.Soon();
  WorkRequest last = SendOf(&sges[1], 2, kSignaled);
  Status accepted = outbox->Push({&last, 1});
  for (uint32_t spins = 0; !accepted.ok() && !deadline.Passed(clock); ++spins) {
    client.pool->Poll();
    server.pool->Poll();
    clock.Relax(spins);
    if (accepted == StatusCode::kUnavailable) (void)outbox->Connect(1, 7, deadline);
    accepted = outbox->Push({&last, 1});
  }
  ASSERT_OK(accepted);
  size_t successes = 1;
  for (const Completion& one : done) successes += one.status == WcStatus::kSuccess;
  std::vector<std::string> texts;
  for (uint32_t spins = 0; texts.size() < successes && !deadline.Passed(clock); ++spins) {
    client.pool->Poll();
    server.pool->Poll();
    Message message;
    if (inbox->PopMessages({&message, 1}) == 1) texts.push_back(server.Text(message.wr_id, message.byte_len));
    clock.Relax(spins);
  }
  std::vector<std::string> expected;
  for (const Completion& one : done)
    if (one.status == WcStatus::kSuccess) expected.push_back(one.wr_id == 0 ? "first!" : "second");
  expected.push_back("second");
  EXPECT_EQ(texts, expected);
}

}  // namespace
}  // namespace krcore::test
