// What becomes of messages when connections break and processes are killed: none comes twice, out of order, or in part.
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <optional>
#include <thread>
#include <vector>

#include "tests/kmod/party.h"
#include "tests/support/kill_process.h"

namespace kmod_test {
namespace {

// Breaks a QP in another thread at any time, for example in the middle of a push.
class BreakBeside {
 public:
  BreakBeside()
      : thread_([this] {
          running_.store(true, std::memory_order_relaxed);
          BreakConnectionsUnheard();
        }) {
    while (!running_.load(std::memory_order_relaxed)) {
    }
  }
  ~BreakBeside() { thread_.join(); }
  BreakBeside(const BreakBeside&) = delete;
  BreakBeside& operator=(const BreakBeside&) = delete;

 private:
  std::atomic<bool> running_{false};  // relaxed: only a start signal
  std::thread thread_;
};

// When a fault comes: before the push, so that it meets all messages; during or after it, so that it meets some or
// none.
enum class Fault { kBefore, kBeside, kBehind, kNone };
constexpr uint32_t kFaults = 4;

// Pushes and waits until all have completed. Returns what Push returned; calls `completed` with each completion.
template <typename Completed>
int PushWith(Fault fault, Party& sender, const std::vector<krc_request>& batch, const Completed& completed) {
  if (fault == Fault::kBefore) BreakConnectionsUnheard();
  std::optional<BreakBeside> beside;
  if (fault == Fault::kBeside) beside.emplace();
  const int error = sender.queue.Push(batch);
  if (fault == Fault::kBehind) BreakConnections();
  if (error == 0) {
    for (const krc_completion& one : sender.Await(batch.size())) completed(one);
  }
  return error;
}

// A message is a number. A message that completed with success comes once and in order; one that failed comes at most
// once.
TEST(KmodMessages, ComeOnceAndInOrderWhileConnectionsBreak) {
  constexpr uint32_t kRounds = 64, kBatch = 8, kSlots = 2 * kBatch;  // so no push has to look for credits
  Party receiver(3), sender;
  ASSERT_EQ(receiver.Bind(BindWith(2, kSlots)), 0);
  ASSERT_EQ(sender.ConnectTo(3), 0);
  ASSERT_EQ(receiver.Receive(1, 14), 0);
  std::vector<uint32_t> succeeded, received;
  const auto take = [&] {
    krc_message message;
    for (size_t count = 1; count == 1;) {
      ASSERT_EQ(receiver.queue.PopMessages({&message, 1}, &count), 0);
      if (count == 0) break;
      received.push_back(receiver.Number(message));
      ASSERT_EQ(receiver.Receive(message.wr_id, 1), 0);
    }
  };
  // Messages that are void by now are looked at, too.
  const auto await_credits = [&] {
    uint32_t credits = 0;
    for (int tries = 0; tries < 20'000 && credits != kSlots; ++tries) {
      take();
      if (sender.queue.Credits(&credits) != 0) {
        ASSERT_EQ(sender.Reconnect(3), 0);
      }
      if (credits != kSlots) Pause();  // what the NIC has still to deliver wakes nobody
    }
    ASSERT_EQ(credits, kSlots);
  };
  uint32_t next = 0, failures[kFaults] = {};
  for (uint32_t round = 0; round < kRounds; ++round) {
    ASSERT_NO_FATAL_FAILURE(await_credits());
    const auto fault = static_cast<Fault>(round % kFaults);
    std::vector<krc_request> batch;
    for (size_t i = 0; i < kBatch; ++i, ++next) batch.push_back(sender.SendNumber(next, i));
    bool failed = false;
    const int error = PushWith(fault, sender, batch, [&](const krc_completion& one) {
      if (one.status == KRC_SUCCESS) {
        EXPECT_FALSE(failed) << "behind one that failed";
        succeeded.push_back(static_cast<uint32_t>(one.wr_id));
      } else {
        failed = true, ++failures[round % kFaults];
      }
    });
    ASSERT_TRUE(error == 0 || error == ECONNRESET) << error;  // the queue heard of a fault before the push
    if (error != 0 || failed) {
      ASSERT_EQ(sender.Reconnect(3), 0);
    }
  }
  ASSERT_NO_FATAL_FAILURE(await_credits());
  for (size_t i = 1; i < received.size(); ++i) ASSERT_LT(received[i - 1], received[i]) << "twice, or out of order";
  EXPECT_TRUE(std::includes(received.begin(), received.end(), succeeded.begin(), succeeded.end())) << "lost";
  EXPECT_GT(failures[static_cast<size_t>(Fault::kBefore)], 0u) << "no fault met a message";
  std::printf("messages that failed by a fault before the push: %u, beside it: %u, behind it: %u\n", failures[0],
              failures[1], failures[2]);
}

TEST(KmodMessages, AQueueThatClosesBehindAFaultLeavesNothingForTheNextOfItsPlace) {
  constexpr uint32_t kSlots = 8;
  Party receiver(3);
  ASSERT_EQ(receiver.Bind(BindWith(1, kSlots)), 0);
  ASSERT_EQ(receiver.Receive(1, 14), 0);
  uint32_t failures[kFaults] = {};
  for (uint32_t round = 0; round < 48; ++round) {
    {
      Party sender;
      // Another number of messages each time, so that others' numbers lie in the next slots.
      const auto fault = static_cast<Fault>(round % kFaults);
      std::vector<krc_request> batch;
      for (size_t i = 0; i < (fault == Fault::kBefore ? kSlots / 2 : 1 + round % kSlots); ++i)
        batch.push_back(sender.SendNumber(round, i));
      ASSERT_EQ(sender.Reconnect(3), 0);
      PushWith(fault, sender, batch,
               [&](const krc_completion& one) { failures[round % kFaults] += one.status != KRC_SUCCESS; });
    }
    krc_message message;
    for (size_t count = 1; count == 1;) {
      ASSERT_EQ(receiver.queue.PopMessages({&message, 1}, &count), 0);
      if (count == 0) break;
      EXPECT_EQ(receiver.Number(message), round) << "an earlier sender's";
      ASSERT_EQ(receiver.Receive(message.wr_id, 1), 0);
    }
  }
  EXPECT_GT(failures[static_cast<size_t>(Fault::kBefore)], 0u) << "no fault met a message";
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
    // The place must be free, or the next round finds none. The remaining receives go first.
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
      Pause();  // the child says so in memory, and wakes nobody
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
