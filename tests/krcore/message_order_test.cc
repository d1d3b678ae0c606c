// Order and exactly-once of random messages, with physical queues that break in the middle.
#include <cstdlib>
#include <thread>

#include "tests/krcore/message_scenario.h"

namespace krcore::test {
namespace {

// An emulated guest is slow, and so is the repair of a queue on verbs.
constexpr uint64_t kSeeds = kOnVerbs ? 1 : 12;

// Two sending nodes with three queues each, one receiving node with two ports. `break_every`: about every so many
// steps, a request of a saboteur breaks a sender's or the receiver's shared initiator. In addition, verbs fail at
// random, and their effect may come late.
void SetBreaks(const std::string& fabric, double break_queue) {
  if (!kSimulated) return;
  Worlds().at(fabric)->set_chaos({.tear = 0.3, .delay = 0.2, .max_delay_ns = 20'000, .break_queue = break_queue});
}

class RandomMessages : public ::testing::TestWithParam<int> {
 protected:
  struct Saboteur {  // has a queue whose requests break the initiator that the others share
    std::unique_ptr<VirtualQueue> queue;
    void Strike(MessagingNode& party, NodeId victim) {
      if (queue == nullptr) queue = party.Queue();
      if (queue->outstanding() != 0) return;
      Completion completions[8];
      while (queue->Pop(completions) != 0) {
      }
      // Does nothing if a simulated verb of it fails just now.
      if (const Status connected = queue->Connect(victim, party.Soon()); !connected.ok()) return;
      const Sge sge = party.At(255, 8);
      WorkRequest wr = SendOf(&sge, 0);
      wr.opcode = Opcode::kRead;
      wr.remote_addr = queue->regions()[0].addr;
      wr.rkey = queue->regions()[0].rkey;
      const Status staged = queue->Stage({&wr, 1});
      ASSERT_TRUE(staged.ok() || staged == StatusCode::kUnavailable) << staged.ToString();
    }
  };
};

TEST_P(RandomMessages, ArriveInOrderOnceAndWhole) {
  const int break_every = GetParam();
  const uint64_t first_seed = FirstSeed();
  uint64_t zero_copies = 0, broken = 0, reposted = 0, received = 0;
  for (uint64_t seed = first_seed; seed < first_seed + kSeeds; ++seed) {
    SCOPED_TRACE("SURGEKV_SEED=" + std::to_string(seed));
    std::mt19937_64 random(seed);
    const std::string fabric = UniqueFabric(true);
    const QueuePoolOptions options{.dc_initiators = 1, .sq_depth = static_cast<uint32_t>(4 + random() % 60)};
    MessagingNode host = MessagingNode::Start(fabric, 1, true, options);
    MessagingNode senders[2] = {MessagingNode::Start(fabric, 2, false, options),
                                MessagingNode::Start(fabric, 3, false, options)};
    MemoryNode victim = MemoryNode::Start(fabric, 9, 4096, false);
    for (MessagingNode& party : senders) ASSERT_OK(party.node->Publish(party.Soon()));
    {
      const BindOptions bind{.slots = static_cast<uint16_t>(1 + random() % 12), .copy_bytes = 700};
      TestReceiver receivers[2] = {{host, 0, 24, 7, bind}, {host, 100, 24, 8, bind}};
      std::vector<std::unique_ptr<TestSender>> queues;
      for (uint64_t i = 0; i < 6; ++i)
        queues.push_back(std::make_unique<TestSender>(senders[i % 2], 8 * i, i, 1, static_cast<Port>(7 + i / 3)));
      Saboteur saboteurs[3];
      {  // connected while the region lives
        for (int i = 0; i < 3; ++i) saboteurs[i].Strike(i == 2 ? host : senders[i], 9);
        for (int polls = 0; polls < 100; ++polls) {
          for (MessagingNode& party : senders) party.pool->Poll();
          host.pool->Poll();
          LetRequestsRun(host.node->clock());
        }
        victim.region.reset();
      }
      const int steps = kOnVerbs ? 1200 : 4000;
      const auto poll = [&](uint64_t which) {
        (which == 2 ? host : senders[which]).pool->Poll();
        LetRequestsRun(host.node->clock());
      };
      SetBreaks(fabric, break_every != 0 ? 0.1 / break_every : 0);
      for (int step = 0; step < steps && !HasFatalFailure(); ++step) {
        TestSender& sender = *queues[random() % queues.size()];
        TestReceiver& receiver = receivers[random() % 2];
        switch (random() % 8) {
          case 0:
          case 1: sender.Push(random); break;
          case 2: sender.Pop(); break;
          case 3: receiver.PostReceives(random() % 4); break;
          case 4: receiver.Pop(); break;
          case 5: sender.ConnectAgainIfNeeded(); break;
          default: poll(random() % 3); break;
        }
        if (break_every != 0 && random() % break_every == 0) {
          const int who = static_cast<int>(random() % 3);
          saboteurs[who].Strike(who == 2 ? host : senders[who], 9);
        }
      }
      SetBreaks(fabric, 0);
      // Everything in flight comes to its end.
      const auto all_idle = [&] {
        for (auto& receiver : receivers) {
          receiver.PostReceives(24);
          receiver.Pop();
        }
        bool idle = true;
        for (auto& sender : queues) {
          sender->Pop();
          idle &= sender->idle();
        }
        return idle || HasFatalFailure();
      };
      EXPECT_TRUE(PollUntil({host.pool.get(), senders[0].pool.get(), senders[1].pool.get()}, all_idle));
      for (int polls = 0; polls < 200; ++polls) {
        for (uint64_t i = 0; i < 3; ++i) poll(i);
        all_idle();
      }
      for (auto& sender : queues) ExpectSettled(*sender, receivers[sender->id() / 3]);
      for (auto& receiver : receivers) zero_copies += receiver.zero_copies();
      for (auto& sender : queues) received += receivers[sender->id() / 3].ReceivedFrom(sender->id()).size();
    }
    for (MessagingNode* party : {&host, &senders[0], &senders[1]}) {
      broken += party->pool->stats().broken_queues;
      reposted += party->pool->stats().reposted_messages;
    }
    if (HasFailure()) return;
  }
  EXPECT_GT(zero_copies, kOnVerbs ? 5 : 100u);
  if (break_every != 0) {
    EXPECT_GT(broken, kOnVerbs ? 2 : 100u);
    if (!kOnVerbs) {
      EXPECT_GT(reposted, 20u);
    }
  }
  RecordProperty("received", std::to_string(received));
  std::printf("%llu messages, %llu by zero-copy, %llu broken queues, %llu messages posted again\n",
              static_cast<unsigned long long>(received), static_cast<unsigned long long>(zero_copies),
              static_cast<unsigned long long>(broken), static_cast<unsigned long long>(reposted));
}

INSTANTIATE_TEST_SUITE_P(BreakEvery, RandomMessages,
                         ::testing::ValuesIn(kOnVerbs ? std::vector{0, 25} : std::vector{0, 200, 25}),
                         [](const auto& info) { return std::to_string(info.param) + "Steps"; });

// With threads of their own, senders and the receiver race for real.
TEST(ThreadedMessages, ArriveInOrderOnceAndWhole) {
  SKIP_IF_SIMULATED("a World belongs to one thread");
  constexpr uint64_t kMessages = kOnVerbs ? 300 : 1500;
  const std::string fabric = UniqueFabric(true);
  MessagingNode host = MessagingNode::Start(fabric, 1, true);
  MessagingNode parties[2] = {MessagingNode::Start(fabric, 2, false), MessagingNode::Start(fabric, 3, false)};
  TestReceiver receiver(host, 0, 64, 7, {.slots = 8});
  std::atomic<int> running{2};
  std::vector<std::thread> threads;
  std::vector<std::unique_ptr<TestSender>> senders(2);
  for (uint64_t id = 0; id < 2; ++id) {
    threads.emplace_back([&, id] {
      std::mt19937_64 random(id);
      senders[id] = std::make_unique<TestSender>(parties[id], 0, id, 1, 7);
      TestSender& sender = *senders[id];
      Clock& clock = parties[id].node->clock();
      const Deadline deadline = Deadline::After(clock, 60 * kSecondNs);
      for (uint32_t idle = 0; (sender.pushed() < kMessages || !sender.idle()) && !deadline.Passed(clock);) {
        if (sender.pushed() < kMessages) sender.Push(random);
        // A party that has nothing to do leaves its core to the one that it waits for.
        idle = parties[id].pool->Poll() != 0 ? 0 : idle + 1;
        clock.Relax(idle);
        sender.Pop();
      }
      running.fetch_sub(1);
    });
  }
  for (uint32_t idle = 0; running.load() != 0;) {
    receiver.PostReceives(4);
    idle = host.pool->Poll() != 0 ? 0 : idle + 1;
    host.node->clock().Relax(idle);
    receiver.Pop();
  }
  for (std::thread& thread : threads) thread.join();
  for (int polls = 0; polls < 500; ++polls) {
    receiver.PostReceives(4);
    host.pool->Poll();
    receiver.Pop();
  }
  for (auto& sender : senders) {
    EXPECT_EQ(receiver.ReceivedFrom(sender->id()).size(), kMessages);
    ExpectSettled(*sender, receiver);
  }
  senders.clear();
}

}  // namespace
}  // namespace krcore::test
