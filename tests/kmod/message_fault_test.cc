// What becomes of messages when connections break and processes are killed: none comes twice, or out of order, or in
// part.
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "tests/kmod/party.h"
#include "tests/support/kill_process.h"

namespace kmod_test {
namespace {

// A message is a number. What completed with success comes once and in order; what failed once at most.
// WRITEs of other queues, on every connection, so long that what is pushed behind them is under way when a fault comes:
// Soft-RoCE is done with what is short before the push of it returns.
class LongWrites {
 public:
  LongWrites() {
    for (size_t i = 0; i < kQueues; ++i) sides_.push_back(std::make_unique<Side>(kEach, 2 * kLong));
  }
  void Push() {
    for (const auto& side : sides_) {
      std::vector<krc_request> batch(kEach, side->Request(KRC_OP_WRITE, 0, 0));
      for (krc_request& request : batch) {
        request.sges[0].length = kLong;
        request.remote_addr += kLong;
      }
      do {
        while (side->queue.ConnectDevice(side->queue.gid()) != 0) {
        }
      } while (side->queue.Push(batch) != 0);  // broken in between
    }
  }
  void Await() {
    for (const auto& side : sides_) (void)side->Await(kEach);
  }

 private:
  static constexpr size_t kLong = 31 * kPage, kEach = 32,
                          kQueues = 4;  // more than connections, which they take in turn
  std::vector<std::unique_ptr<Side>> sides_;
};

// Until a fault has met a message, which takes none of them on most machines.
constexpr uint32_t kMostRounds = 200;

TEST(KmodMessages, ComeOnceAndInOrderWhileConnectionsBreak) {
  Party receiver(3), sender;
  ASSERT_EQ(receiver.Bind(BindWith(2, 16)), 0);
  ASSERT_EQ(sender.ConnectTo(3), 0);
  ASSERT_EQ(receiver.Receive(1, 14), 0);
  std::vector<uint32_t> succeeded, received;
  uint32_t next = 0;
  int failures = 0;
  const auto take = [&] {
    krc_message message;
    for (size_t count = 1; count == 1;) {
      ASSERT_EQ(receiver.queue.PopMessages({&message, 1}, &count), 0);
      if (count == 0) break;
      received.push_back(receiver.Number(message));
      ASSERT_EQ(receiver.Receive(message.wr_id, 1), 0);
    }
  };
  LongWrites ahead;
  for (uint32_t round = 0; round < 40 || (round < kMostRounds && failures == 0); ++round) {
    const bool behind = round % 4 == 0 || round >= 40;
    if (behind) {  // with credits enough, since asking for them takes its turn behind the WRITEs
      for (uint32_t credits = 0; credits < 8;) {
        take();
        if (sender.queue.Credits(&credits) != 0) {
          ASSERT_EQ(sender.Reconnect(3), 0);
        }
      }
      ahead.Push();
    }
    std::vector<krc_request> batch;
    const uint32_t first = next;
    for (size_t i = 0; i < 8; ++i, ++next) batch.push_back(sender.SendNumber(next, i));
    int error = EAGAIN;
    while ((error = sender.queue.Push(batch)) == EAGAIN) {
      take();
      uint32_t credits;
      if (sender.queue.Credits(&credits) != 0) break;
    }
    if (error != 0) {
      ASSERT_TRUE(error == ECONNRESET || error == EAGAIN) << error;
      next = first;
    } else {
      if (behind) BreakConnections();
      if (round % 4 == 2) take();
      for (const krc_completion& one : sender.Await(batch.size())) {
        if (one.status == KRC_SUCCESS)
          succeeded.push_back(static_cast<uint32_t>(one.wr_id));
        else
          error = one.status, ++failures;
      }
    }
    if (behind) ahead.Await();
    if (error != 0) {
      ASSERT_EQ(sender.Reconnect(3), 0);
    }
  }
  uint32_t credits = 0;  // all, when those that are void by now have been looked at, too
  for (int tries = 0; tries < 20'000 && credits != 16; ++tries) {
    take();
    ASSERT_EQ(sender.queue.Credits(&credits), 0);
    usleep(1000);  // what the NIC has still to deliver wakes nobody
  }
  EXPECT_EQ(credits, 16u);
  for (size_t i = 1; i < received.size(); ++i) ASSERT_LT(received[i - 1], received[i]) << "twice, or out of order";
  EXPECT_TRUE(std::includes(received.begin(), received.end(), succeeded.begin(), succeeded.end())) << "lost";
  EXPECT_GT(failures, 0) << "no fault met a message";
}

TEST(KmodMessages, AQueueThatClosesBehindAFaultLeavesNothingForTheNextOfItsPlace) {
  Party receiver(3);
  ASSERT_EQ(receiver.Bind(BindWith(1, 8)), 0);
  ASSERT_EQ(receiver.Receive(1, 14), 0);
  int failures = 0;
  LongWrites ahead;
  for (uint32_t round = 0; round < 24 || (round < kMostRounds && failures == 0); ++round) {
    const bool behind = round % 4 == 0 || round >= 24;
    {
      Party sender;
      // Fewer at times, so that others' numbers lie in the next slots.
      std::vector<krc_request> batch;
      for (size_t i = 0; i < (behind ? 8 : 1 + round % 8); ++i) batch.push_back(sender.SendNumber(round, i));
      ASSERT_EQ(sender.Reconnect(3), 0);
      if (behind) ahead.Push();
      const int error = sender.queue.Push(batch);
      BreakConnections();
      if (error == 0) {
        for (const krc_completion& one : sender.Await(batch.size())) failures += one.status != KRC_SUCCESS;
      }
    }
    if (behind) ahead.Await();
    krc_message message;
    for (size_t count = 1; count == 1;) {
      ASSERT_EQ(receiver.queue.PopMessages({&message, 1}, &count), 0);
      if (count == 0) break;
      EXPECT_EQ(receiver.Number(message), round) << "an earlier sender's";
      ASSERT_EQ(receiver.Receive(message.wr_id, 1), 0);
    }
  }
  EXPECT_GT(failures, 0) << "no fault met a message";
}

TEST(KmodMessages, ASenderThatIsKilledLeavesWholeMessagesInOrderAndItsPlace) {
  Party receiver(3);
  ASSERT_EQ(receiver.Bind(BindWith(1, 8)), 0);
  for (int round = 0; round < 5; ++round) {
    const pid_t child = fork();
    if (child == 0) {
      Party sender;
      if (sender.ConnectTo(3) != 0) _exit(1);
      for (uint32_t next = 0;;) {
        krc_completion completion;
        if (sender.Push(sender.SendNumber(next)) == 0) ++next;
        (void)sender.queue.Pop({&completion, 1});
      }
    }
    ASSERT_EQ(receiver.Receive(1, 40), 0);
    uint32_t expected = 0, count = 0;
    const auto check = [&](const krc_message& message) {
      EXPECT_EQ(receiver.Number(message), expected);
      ++expected, ++count;
    };
    while (count < 20) check(receiver.Next());
    ASSERT_TRUE(testing_support::KillProcess(child));
    EXPECT_EQ(waitpid(child, nullptr, 0), child);
    krc_message message;
    for (size_t found = 1; found == 1;) {
      ASSERT_EQ(receiver.queue.PopMessages({&message, 1}, &found), 0);
      if (found == 1) check(message);
    }
    // The place is free, or the next round finds none. What receives are left go first.
    while (count++ < 40) {
      {
        Party filler;
        ASSERT_EQ(filler.ConnectTo(3), 0);
        EXPECT_EQ(filler.StatusOf(filler.Send(1, "filler")), KRC_SUCCESS);
      }
      EXPECT_EQ(receiver.Text(receiver.Next()), "filler");
      EXPECT_TRUE(receiver.HasNone());
    }
  }
  EXPECT_EQ(Counter("senders"), 0);
}

TEST(KmodMessages, AReceiverThatIsKilledFailsItsSendersAndBreaksNoConnection) {
  Party bystander(5), writer;
  ASSERT_EQ(writer.ConnectTo(5, 0), 0);
  for (int round = 0; round < 5; ++round) {
    Pages shared(kPage);
    const pid_t child = fork();
    if (child == 0) {
      Party receiver(3);
      if (receiver.Bind() != 0) _exit(1);
      __atomic_store_n(shared.words(), 1, __ATOMIC_RELEASE);
      for (;;) {
        (void)receiver.Receive(1, 1);
        receiver.HasNone();
      }
    }
    while (__atomic_load_n(shared.words(), __ATOMIC_ACQUIRE) == 0) {
      ASSERT_EQ(waitpid(child, nullptr, WNOHANG), 0) << "it could not begin";
      usleep(1000);  // it says in memory that it has, and wakes nobody
    }
    Party sender;
    ASSERT_EQ(sender.ConnectTo(3), 0);
    const int64_t broken = Counter("broken");
    int error = 0;
    for (int sent = 0; error == 0 || error == EAGAIN; ++sent) {
      if (sent == 50) {
        ASSERT_TRUE(testing_support::KillProcess(child));
      }
      const krc_request write = Side::Between(KRC_OP_WRITE, writer.key, writer.Buffer(1), writer.found.regions[0].key,
                                              writer.found.regions[0].addr);
      ASSERT_EQ(writer.StatusOf(write), KRC_SUCCESS);
      error = sender.Push(sender.Send(1, "to the last"));
      krc_completion completion;
      while (sender.queue.Pop({&completion, 1}) == 1) EXPECT_EQ(completion.status, KRC_SUCCESS);
      ASSERT_LT(sent, 20'000);
    }
    EXPECT_EQ(error, EPIPE);
    EXPECT_EQ(waitpid(child, nullptr, 0), child);
    EXPECT_EQ(Counter("broken"), broken);
    uint32_t credits;
    EXPECT_EQ(sender.queue.Credits(&credits), EPIPE);
    EXPECT_EQ(sender.ConnectTo(3), ENOENT);
  }
  EXPECT_EQ(Counter("ports"), 0);
}

}  // namespace
}  // namespace kmod_test
