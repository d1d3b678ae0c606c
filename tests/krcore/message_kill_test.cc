// Senders and receivers that die in the middle of messages: on sw, processes that are killed; on sim, devices that die
// at each of their verbs.
#include <random>

#include "tests/krcore/message_scenario.h"
#include "tests/rnic/sw_child.h"

namespace krcore::test {
namespace {

constexpr Port kReceiverPort = 7;

// ---- sw: processes

class KilledProcess : public ::testing::Test {
 protected:
  void SetUp() override { SKIP_IF_SIMULATED("processes; SimulatedDeath is its like"); }
  void TearDown() override {
    if (kSimulated) return;
    EXPECT_TRUE(CleanStaleFabrics("sw", fabric_, true).ok());
  }
  const std::string fabric_ = UniqueFabric(false);
};

TEST_F(KilledProcess, ADeadReceiverFailsItsSendersOnlyAndASuccessorIsReached) {
  const auto receive = [this](NodeId id, bool host_meta) {
    return std::make_unique<rnic::testing::Child>([this, id, host_meta](auto& self) {
      MessagingNode party = MessagingNode::Start(fabric_, id, host_meta);
      auto inbox = party.Bound(kReceiverPort);
      const size_t receives = id == 2 ? 8 : 64;
      if (!party.Receive(*inbox, 0, receives).ok() || ::testing::Test::HasFailure()) _exit(1);
      self.Ready();
      for (size_t taken = 0;; party.pool->Poll()) {
        Message message;
        // The doomed one posts no more receives after eight messages, so it takes sixteen at most.
        if (inbox->PopMessages({&message, 1}) == 0 || (id == 2 && ++taken > 8)) continue;
        if (!party.Receive(*inbox, message.wr_id, 1).ok()) _exit(1);
      }
    });
  };
  auto steady_process = receive(1, true);
  ASSERT_TRUE(steady_process->WaitReady());
  auto doomed_process = receive(2, false);
  ASSERT_TRUE(doomed_process->WaitReady());
  {
    MessagingNode client = MessagingNode::Start(fabric_, kNoNode, false, {.dc_initiators = 1});
    auto doomed = client.ConnectTo(2, kReceiverPort), steady = client.ConnectTo(1, kReceiverPort);
    const Sge small = client.At(0, 100), large = client.At(1, client.buffer_bytes);
    const auto send = [&](VirtualQueue& queue, const Sge& sge) {
      const WorkRequest wr = SendOf(&sge, 1);
      Status pushed;
      const bool settled = PollUntil({client.pool.get()}, [&] {
        pushed = queue.Push({&wr, 1});
        return pushed != StatusCode::kQueueFull;
      });
      EXPECT_TRUE(settled);
      return pushed;
    };
    for (int i = 0; i < 8; ++i) {
      ASSERT_OK(send(*doomed, i % 2 ? large : small));
      EXPECT_EQ(NextCompletion(*doomed, {client.pool.get()}).status, WcStatus::kSuccess);
    }
    // More messages than it has receives for: the last ones wait there, without a completion because they are
    // zero-copy.
    size_t pushed = 0;
    while (doomed->credits() > 0 && doomed->Push(std::vector{SendOf(&large, pushed)}).ok()) ++pushed;
    doomed_process->Kill();
    size_t done = 0, failed = 0;
    ASSERT_TRUE(PollUntil({client.pool.get()},
                          [&] {
                            Completion completion;
                            while (doomed->Pop({&completion, 1}) == 1) {
                              ++done;
                              failed += completion.status != WcStatus::kSuccess;
                            }
                            return done >= pushed && doomed->outstanding() == 0 &&
                                   client.pool->stats().broken_queues > 0;
                          }))
        << done << " of " << pushed;
    EXPECT_GT(failed, 0u);
    EXPECT_EQ(doomed->Push(std::vector{SendOf(&small, 0)}).code(), StatusCode::kUnavailable);
    EXPECT_EQ(doomed->Connect(2, kReceiverPort, client.Soon()).code(), StatusCode::kUnavailable);
    for (int i = 0; i < 100; ++i) {
      ASSERT_OK(send(*steady, i % 2 ? large : small));
      ASSERT_EQ(NextCompletion(*steady, {client.pool.get()}).status, WcStatus::kSuccess);
    }
    EXPECT_LE(client.pool->stats().broken_queues, 3u) << "a dead receiver is not asked for ever";

    doomed_process = receive(2, false);
    ASSERT_TRUE(doomed_process->WaitReady());
    ASSERT_OK(doomed->Connect(2, kReceiverPort, client.Soon()));
    ASSERT_OK(send(*doomed, large));
    EXPECT_EQ(NextCompletion(*doomed, {client.pool.get()}).status, WcStatus::kSuccess);
  }
}

TEST_F(KilledProcess, SendersThatDieLeaveWholeMessagesInOrderAndTheirPlaces) {
  MessagingNode host = MessagingNode::Start(fabric_, 1, true);
  std::mt19937_64 random(std::random_device{}());
  {
    // Two places for one sender at a time: if a place did not come back, it would be missed soon.
    TestReceiver receiver(host, 0, 64, kReceiverPort, {.senders = 2, .slots = 6});
    for (uint64_t round = 0; round < 24 && !HasFailure(); ++round) {
      rnic::testing::Child child([this, round](auto& self) {
        MessagingNode party = MessagingNode::Start(fabric_, kNoNode, false);
        self.Ready();
        std::mt19937_64 own(round);
        TestSender sender(party, 0, round, 1, kReceiverPort);
        for (;;) {
          sender.Push(own);
          party.pool->Poll();
          sender.Pop();
        }
      });
      ASSERT_TRUE(child.WaitReady());
      Clock& clock = host.node->clock();
      const Deadline alive = Deadline::After(clock, static_cast<int64_t>(random() % 30'000'000));
      const auto live = [&] {
        receiver.PostReceives(random() % 3);
        host.pool->Poll();
        receiver.Pop();
      };
      const Deadline started = Deadline::After(clock, 10 * kSecondNs);
      while ((!alive.Passed(clock) || receiver.ReceivedFrom(round).size() < 5) && !started.Passed(clock)) live();
      child.Kill();
      for (int i = 0; i < 2000; ++i) live();
    }
    uint64_t total = 0;
    for (uint64_t round = 0; round < 24; ++round) {
      const std::vector<uint64_t>& received = receiver.ReceivedFrom(round);
      total += received.size();
      // Zero-copy messages that were not READ in time are lost, but only at the end.
      size_t gapless = 0;
      while (gapless < received.size() && received[gapless] == gapless) ++gapless;
      EXPECT_LE(received.size() - gapless, 6u) << "lost while the sender lived, round " << round;
    }
    EXPECT_GT(total, 24u * 5);
    // All senders are dead: both places come back.
    MessagingNode last = MessagingNode::Start(fabric_, kNoNode, false);
    std::unique_ptr<VirtualQueue> queues[2] = {last.Queue(), last.Queue()};
    for (auto& queue : queues) {
      Status connected;
      EXPECT_TRUE(PollUntil({host.pool.get()}, [&] {
        receiver.PostReceives(3);
        receiver.Pop();
        connected = queue->Connect(1, kReceiverPort, last.Soon());
        return connected.ok();
      })) << connected.ToString();
    }
  }
}

// ---- sim: at each verb

class SimulatedDeath : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!kSimulated) GTEST_SKIP() << "needs simulated devices; KilledProcess is its like";
  }
};

// A sender's whole life, cut off after each of its verbs.
TEST_F(SimulatedDeath, ASenderThatDiesAtAnyVerbLeavesAPrefixAndItsPlace) {
  int cut_short = 0;
  for (uint64_t verb = 1; verb < 40; ++verb) {
    for (const bool before : {true, false}) {
      SCOPED_TRACE("verb " + std::to_string(verb) + (before ? " before" : " after"));
      const std::string fabric = UniqueFabric(true);
      rnic::sim::World& world = *Worlds().at(fabric);
      MessagingNode host = MessagingNode::Start(fabric, 1, true);
      ASSERT_OK(host.node->Publish(host.Soon()));
      {
        TestReceiver receiver(host, 0, 64, kReceiverPort, {.senders = 1, .slots = 4});
        const auto live = [&] {
          receiver.PostReceives(1);
          host.pool->Poll();
          receiver.Pop();
        };
        {
          MessagingNode doomed = MessagingNode::Start(fabric, 2, false);
          ASSERT_OK(doomed.node->Publish(doomed.Soon()));
          world.KillAtVerb(2, verb, before, 50'000);
          auto queue = doomed.Queue();
          if (queue->Connect(1, kReceiverPort, Deadline::After(world.clock(), 5'000'000)).ok()) {
            uint64_t number = 0;
            for (int i = 0; i < 300 && !world.IsDead(2); ++i) {
              if (number < 10 && queue->credits() > 0) {
                const size_t length = number % 3 == 2 ? 5000 : 40 + number;
                FillMessage(doomed.Buffer(number), {2, number, length});
                const Sge sge = doomed.At(number, length);
                if (queue->Push(std::vector{SendOf(&sge, number)}).ok()) ++number;
              }
              doomed.pool->Poll();
              live();
              world.clock().Relax(0);
            }
          }
          cut_short += world.IsDead(2);
          world.Kill(2, 50'000);  // at the latest now
        }
        for (int i = 0; i < 400; ++i) {
          live();
          world.clock().Relax(0);
          if (i % 40 == 0) world.RunUntil(world.now_ns() + 1'000'000);
        }
        const std::vector<uint64_t>& received = receiver.ReceivedFrom(2);
        uint64_t gaps = 0;
        for (size_t i = 1; i < received.size(); ++i) gaps += received[i] - received[i - 1] - 1;
        EXPECT_LE(gaps, 2u) << "only zero-copy messages may be missing";
        // The only place of the port is free again.
        MessagingNode next = MessagingNode::Start(fabric, 3, false);
        auto queue = next.Queue();
        Status connected;
        connected = StatusCode::kTimeout;
        for (int i = 0; i < 400 && !connected.ok(); ++i) {
          live();
          world.RunUntil(world.now_ns() + 1'000'000);
          connected = queue->Connect(1, kReceiverPort, next.Soon());
        }
        ASSERT_OK(connected);
        FillMessage(next.Buffer(0), {3, 0, 64});
        const Sge sge = next.At(0, 64);
        ASSERT_OK(queue->Push(std::vector{SendOf(&sge, 1)}));
        ASSERT_TRUE(PollUntil({next.pool.get(), host.pool.get()}, [&] {
          live();
          return receiver.ReceivedFrom(3).size() == 1;
        }));
      }
      if (HasFailure()) return;
    }
  }
  EXPECT_GT(cut_short, 30);
}

// A receiver that dies at each of its verbs (it READs zero-copy messages). Every message completes, and the messages
// that the receiver has delivered are in order.
TEST_F(SimulatedDeath, AReceiverThatDiesAtAnyVerbLeavesNoSenderWaiting) {
  for (uint64_t verb = 1; verb < 16; ++verb) {
    for (const bool before : {true, false}) {
      SCOPED_TRACE("verb " + std::to_string(verb) + (before ? " before" : " after"));
      const std::string fabric = UniqueFabric(true);
      rnic::sim::World& world = *Worlds().at(fabric);
      MessagingNode host = MessagingNode::Start(fabric, 1, true);  // of the metadata
      ASSERT_OK(host.node->Publish(host.Soon()));
      MessagingNode client = MessagingNode::Start(fabric, 3, false);
      MessagingNode doomed = MessagingNode::Start(fabric, 2, false);
      {
        TestReceiver receiver(doomed, 0, 64, kReceiverPort, {.slots = 4});
        TestSender sender(client, 0, 3, 2, kReceiverPort);
        world.KillAtVerb(2, verb, before, 50'000);
        std::mt19937_64 random(verb);
        for (int i = 0; i < 2000 && !world.IsDead(2); ++i) {
          sender.Push(random);
          receiver.PostReceives(1);
          doomed.pool->Poll();
          receiver.Pop();
          client.pool->Poll();
          sender.Pop();
          world.clock().Relax(0);
        }
        ASSERT_TRUE(world.IsDead(2));
        ASSERT_TRUE(PollUntil({client.pool.get()}, [&] {
          sender.Pop();
          return sender.idle();
        })) << "a sender waits for a dead receiver";
        ExpectSettled(sender, receiver, false);
      }
      if (HasFailure()) return;
    }
  }
}

}  // namespace
}  // namespace krcore::test
