// Messages that a broken queue flushes: each is reported, and neither it nor anything in its place arrives.
#include <memory>
#include <string>
#include <vector>

#include "tests/krcore/message_fixture.h"

namespace krcore::test {
namespace {

class FlushedMessages : public TwoMessagingNodes {};

// "The data is there" must not arrive without the data.
TEST_F(FlushedMessages, OneBehindAFlushedWriteIsFlushedTooAndSettledBeforeTheNext) {
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
  // The receiver's own memory serves as the READ's target. It does not permit WRITEs, but the WRITE is flushed
  // unexecuted.
  read.remote_addr = write.remote_addr = queue->regions()[0].addr;
  read.rkey = write.rkey = queue->regions()[0].rkey;
  write.opcode = Opcode::kWrite;
  ASSERT_OK(saboteur->Stage({&bad, 1}));
  ASSERT_OK(queue->Stage(std::vector{write, read, send}));
  sender.pool->Poll();
  const uint64_t broken = sender.pool->stats().broken_queues;
  // Whatever the polls have found so far, a message that is accepted arrives.
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

// The NIC had the payload when the message was flushed, and other payloads may lie in its place when the queue is
// repaired.
TEST_F(FlushedMessages, AnInlineOneIsReportedAndNothingElseGoesInItsPlace) {
  auto gone = server_.node->CreateRegion({.length = 4096, .remote_rights = kAllRights}).value();
  ASSERT_OK(server_.node->Publish(server_.Soon()));
  MessagingNode client = MessagingNode::Start(fabric_, kNoNode, false, {.dc_initiators = 1, .max_rc_queues = 0});
  auto inbox = server_.Bound(kPort);
  ASSERT_OK(server_.Receive(*inbox, 0, 8));
  auto outbox = client.ConnectTo(1, kPort);
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
  // After the gap, messages are accepted again.
  Clock& clock = client.node->clock();
  const Deadline deadline = client.Soon();
  WorkRequest last = SendOf(&sges[1], 2, kSignaled);
  Status accepted = outbox->Push({&last, 1});
  for (uint32_t spins = 0; !accepted.ok() && !deadline.Passed(clock); ++spins) {
    client.pool->Poll();
    server_.pool->Poll();
    clock.Relax(spins);
    if (accepted == StatusCode::kUnavailable) (void)outbox->Connect(1, kPort, deadline);
    accepted = outbox->Push({&last, 1});
  }
  ASSERT_OK(accepted);
  size_t successes = 1;
  for (const Completion& one : done) successes += one.status == WcStatus::kSuccess;
  std::vector<std::string> texts;
  for (uint32_t spins = 0; texts.size() < successes && !deadline.Passed(clock); ++spins) {
    client.pool->Poll();
    server_.pool->Poll();
    Message message;
    if (inbox->PopMessages({&message, 1}) == 1) texts.push_back(server_.Text(message.wr_id, message.byte_len));
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
