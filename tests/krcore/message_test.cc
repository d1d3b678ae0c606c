// Messages between two nodes: order, payloads, replies, credits, refusals.
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tests/krcore/message_fixture.h"

namespace krcore::test {
namespace {

class Messages : public TwoMessagingNodes {};

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
  EXPECT_TRUE(PollUntil({client_.pool.get(), server_.pool.get()}, [&] { return outbox->credits() == 2; }));
  ASSERT_OK(outbox->Push({wrs.data(), 2}));
  ASSERT_OK(server_.Receive(*inbox, 2, 4));
  for (uint64_t i = 2; i < 6; ++i) EXPECT_EQ(Next(*inbox).wr_id, i);
  PollSome();
  Message none;
  EXPECT_EQ(inbox->PopMessages({&none, 1}), 0u);
  ExpectNothingBroke();
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

}  // namespace
}  // namespace krcore::test
