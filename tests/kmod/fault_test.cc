// Faults: connections that break, processes that are killed, a device that goes.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <memory>
#include <thread>

#include "tests/kmod/fixture.h"
#include "tests/support/kill_process.h"

namespace kmod_test {
namespace {

TEST(KmodFault, ReadsSurviveABrokenConnectionUnnoticed) {
  Side side(600);  // more than a QP takes: some are pending when it breaks
  side.memory.words()[100] = 77;
  const int64_t repaired = Counter("repaired"), reposted = Counter("reposted");
  uint64_t next = 0;
  for (int round = 0; round < 5 || (round < 50 && Counter("reposted") == reposted); ++round) {
    std::vector<krc_request> batch;
    for (int i = 0; i < 600; ++i) batch.push_back(side.Request(KRC_OP_READ, 0, 100, next + static_cast<uint64_t>(i)));
    ASSERT_EQ(side.queue.Push(batch), 0);
    BreakConnections();
    for (const krc_completion& one : side.Await(batch.size())) {
      ASSERT_EQ(one.wr_id, next++);
      ASSERT_EQ(one.status, KRC_SUCCESS);
    }
  }
  EXPECT_GT(Counter("repaired"), repaired);
  EXPECT_GT(Counter("reposted"), reposted);
}

// A chain of READs, each of the word that the one before it filled. Only one at a time is in flight, so it is chance
// whether a break meets it. The test above shows that READs are posted again.
TEST(KmodFault, FencesHoldAndEndWhileConnectionsBreak) {
  constexpr uint64_t kChain = 200;
  Side side(kChain);
  uint64_t* const words = side.memory.words();
  for (uint64_t round = 1; round <= 20; ++round) {
    words[0] = round;
    std::vector<krc_request> batch;
    for (uint64_t i = 0; i < kChain; ++i) {
      batch.push_back(side.Request(KRC_OP_READ, i + 1, i, i));
      batch.back().flags |= KRC_FENCE;
    }
    ASSERT_EQ(side.queue.Push(batch), 0);
    BreakConnections();
    uint64_t next = 0;
    for (const krc_completion& one : side.Await(batch.size())) {
      ASSERT_EQ(one.wr_id, next++);
      ASSERT_EQ(one.status, KRC_SUCCESS);
    }
    EXPECT_EQ(words[kChain], round);
  }
}

TEST(KmodFault, AWriteOrAtomicOfUnknownOutcomeBreaksItsQueueUntilConnect) {
  constexpr size_t kLong = 32 * kPage;  // so that it is in flight for long
  Side side(256, 2 * kLong);
  uint64_t* const counter = side.memory.words();
  int flushed_rounds = 0;
  for (int round = 0; round < 50 && flushed_rounds < 3; ++round) {
    *counter = 0;
    std::vector<krc_request> batch;
    for (uint64_t i = 0; i < 128; ++i) {
      batch.push_back(side.Request(i % 2 == 0 ? KRC_OP_FETCH_ADD : KRC_OP_WRITE, 8, 0, i));
      batch.back().compare_add = 1;
      if (i % 2 == 0) continue;
      batch.back().sges[0].length = kLong - kPage;
      batch.back().remote_addr += kLong;
    }
    ASSERT_EQ(side.queue.Push(batch), 0);
    BreakConnections();
    uint64_t sure = 0, unknown = 0, flushed = 0, next = 0;
    for (const krc_completion& one : side.Await(batch.size())) {
      ASSERT_EQ(one.wr_id, next++);
      ASSERT_TRUE(one.status == KRC_FLUSHED || (one.status == KRC_SUCCESS && flushed == 0));
      flushed += one.status == KRC_FLUSHED;
      if (one.wr_id % 2 == 0) ++(one.status == KRC_SUCCESS ? sure : unknown);
    }
    EXPECT_GE(*counter, sure);
    EXPECT_LE(*counter, sure + unknown);
    if (flushed == 0) continue;
    ++flushed_rounds;
    EXPECT_EQ(side.Push(batch[0]), ECONNRESET);
    ASSERT_EQ(side.queue.ConnectDevice(side.queue.gid()), 0);
    EXPECT_EQ(side.StatusOf(batch[0]), KRC_SUCCESS);
  }
  EXPECT_EQ(flushed_rounds, 3);
}

TEST(KmodFault, QueuesOfSeveralProcessesCountExactlyWhatWasDone) {
  constexpr int kProcesses = 3;
  constexpr uint64_t kEach = 480;
  Side side;
  const uint64_t counter = reinterpret_cast<uint64_t>(side.memory.words() + 100);
  std::vector<pid_t> children;
  for (int i = 0; i < kProcesses; ++i) {
    const pid_t child = fork();
    if (child == 0) {
      Side own(16);
      krc_request request = Side::Between(KRC_OP_FETCH_ADD, own.key, own.memory.bytes(), side.key, counter);
      request.compare_add = 1;
      const std::vector<krc_request> batch(16, request);
      for (uint64_t done = 0; done < kEach; done += batch.size()) {
        if (own.queue.Push(batch) != 0) _exit(1);
        for (const krc_completion& one : own.Await(batch.size())) {
          if (one.status != KRC_SUCCESS) _exit(2);
        }
      }
      _exit(0);
    }
    children.push_back(child);
  }
  for (const pid_t child : children) {
    int status = 0;
    waitpid(child, &status, 0);
    EXPECT_EQ(status, 0);
  }
  EXPECT_EQ(side.memory.words()[100], kProcesses * kEach);
}

TEST(KmodFault, AKilledProcessLeavesNothingAndDisturbsNobody) {
  Side side;
  const int64_t queues = Counter("queues"), regions = Counter("regions"), bytes = Counter("region_bytes");
  const int64_t broken = Counter("broken");
  for (int round = 0; round < 10; ++round) {
    int ready[2];
    ASSERT_EQ(pipe(ready), 0);
    const pid_t child = fork();
    if (child == 0) {
      // Sends requests both ways, as fast as they go, until it is killed in the middle.
      Side own(128, kPage);
      std::vector<krc_request> batch;
      for (int i = 0; i < 32; ++i) {
        batch.push_back(Side::Between(i % 2 == 0 ? KRC_OP_READ : KRC_OP_WRITE, own.key, own.memory.bytes(), side.key,
                                      reinterpret_cast<uint64_t>(side.memory.bytes()), kPage));
      }
      std::vector<krc_completion> popped(32);
      for (uint64_t accepted = 0;;) {
        if (own.queue.Push(batch) == 0 && ++accepted == 20 && write(ready[1], "", 1) != 1) _exit(1);
        (void)own.queue.Pop(popped);
      }
    }
    char byte;
    ASSERT_EQ(read(ready[0], &byte, 1), 1);
    ASSERT_TRUE(testing_support::KillProcess(child));
    waitpid(child, nullptr, 0);
    close(ready[0]);
    close(ready[1]);
    EXPECT_EQ(side.StatusOf(side.Request(KRC_OP_READ, 0, 100)), KRC_SUCCESS);
    // The process has ended, and everything that it held is gone: its file was closed before it could be waited for.
    EXPECT_EQ(Counter("queues"), queues);
    EXPECT_EQ(Counter("regions"), regions);
    EXPECT_EQ(Counter("region_bytes"), bytes);
  }
  EXPECT_EQ(Counter("broken"), broken);
}

// The owner of a region is killed while another process works on its memory. The region goes when no request uses it
// any more, and the connection that all share does not break.
TEST(KmodFault, TheOwnerOfMemoryThatIsInUseIsKilled) {
  const int64_t broken = Counter("broken");
  for (int round = 0; round < 5; ++round) {
    int told[2];
    ASSERT_EQ(pipe(told), 0);
    const pid_t owner = fork();
    if (owner == 0) {
      Side own(8, 16 * kPage);
      const uint64_t where[2] = {own.key, reinterpret_cast<uint64_t>(own.memory.bytes())};
      if (write(told[1], where, sizeof(where)) != sizeof(where)) _exit(1);
      for (;;) pause();
    }
    uint64_t where[2];
    ASSERT_EQ(read(told[0], where, sizeof(where)), ssize_t{sizeof(where)});
    Side side(256, 16 * kPage);
    const krc_request request = Side::Between(KRC_OP_READ, side.key, side.memory.bytes(),
                                              static_cast<uint32_t>(where[0]), where[1], 16 * kPage);
    const std::vector<krc_request> batch(32, request);
    ASSERT_EQ(side.queue.Push(batch), 0);
    ASSERT_TRUE(testing_support::KillProcess(owner));
    for (const krc_completion& one : side.Await(batch.size())) EXPECT_EQ(one.status, KRC_SUCCESS);
    waitpid(owner, nullptr, 0);
    EXPECT_EQ(side.Push(request), EACCES);
    close(told[0]);
    close(told[1]);
  }
  EXPECT_EQ(Counter("broken"), broken);
}

int Shell(const char* line) { return system(line); }  // NOLINT: the guest is the test's own

// The device loses its address, so a broken connection cannot be built anew. When the address is back, one CONNECT
// mends it, and others at the same time do not disturb the queues that work on it by then.
TEST(KmodFault, AConnectionThatCannotBeBuiltIsMendedByAnyNumberOfConnects) {
  constexpr int kThreads = 8;
  std::vector<std::unique_ptr<Side>> sides;
  for (int i = 0; i < kThreads; ++i) sides.push_back(std::make_unique<Side>());
  for (int round = 0; round < 5; ++round) {
    ASSERT_EQ(Shell("ip addr del 10.9.0.1/24 dev dummy0"), 0);
    BreakConnections();
    for (const auto& side : sides) {
      int error = 0;
      while ((error = side->queue.ConnectDevice(side->queue.gid())) ==
             0) {  // not broken yet, or the GID is not yet gone
        BreakConnections();
      }
      ASSERT_EQ(error, ENETDOWN);
    }
    ASSERT_EQ(sides[0]->Push(sides[0]->Request(KRC_OP_READ, 0, 100)), ECONNRESET);
    const int64_t broken = Counter("broken");
    std::atomic<int> connected{0};  // relaxed: only how long to go on
    std::vector<std::thread> threads;
    for (const auto& side : sides) {
      threads.emplace_back([&connected, &one = *side] {
        while (one.queue.ConnectDevice(one.queue.gid()) == ENETDOWN) {  // all of them end when the address comes back
        }
        connected.fetch_add(1, std::memory_order_relaxed);
        for (int after = 0; after < 10; after += connected.load(std::memory_order_relaxed) == kThreads)
          ASSERT_EQ(one.StatusOf(one.Request(KRC_OP_READ, 0, 100)), KRC_SUCCESS);
      });
    }
    EXPECT_EQ(Shell("ip addr add 10.9.0.1/24 dev dummy0"), 0);
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(Counter("broken"), broken);
  }
}

// Each closes its file just when the device takes its queues back. KASAN reports what was wrong once.
TEST(KmodFault, FilesAreClosedWhileTheirDeviceGoes) {
  constexpr int kThreads = 4, kQueues = 32;
  for (int round = 0; round < 3; ++round) {
    std::array<std::vector<std::unique_ptr<Side>>, kThreads> sides;
    for (auto& some : sides) {
      for (int i = 0; i < kQueues; ++i) some.push_back(std::make_unique<Side>(8, kPage));
    }
    std::atomic<bool> going{false};  // relaxed: only a start signal
    std::vector<std::thread> threads;
    for (auto& some : sides) {
      threads.emplace_back([&] {
        while (!going.load(std::memory_order_relaxed)) std::this_thread::yield();
        while (!some.empty()) some.pop_back();
      });
    }
    going.store(true, std::memory_order_relaxed);
    EXPECT_EQ(Shell("rdma link del rxe0"), 0);
    for (std::thread& thread : threads) thread.join();
    ASSERT_EQ(Shell("rdma link add rxe0 type rxe netdev dummy0"), 0);
    AwaitDevice();
  }
}

TEST(KmodFault, ADeviceThatGoesUnderItsUsersIsENODEV) {
  for (int round = 0; round < 3; ++round) {
    Side side(512), idle;
    std::vector<krc_request> batch(500, side.Request(KRC_OP_READ, 0, 100));
    ASSERT_EQ(side.queue.Push(batch), 0);
    ASSERT_EQ(Shell("rdma link del rxe0"), 0);
    // Every accepted request has completed, one way or the other.
    EXPECT_EQ(side.Await(batch.size()).size(), batch.size());
    for (Side* one : {&side, &idle}) {
      EXPECT_EQ(one->Push(batch[0]), ENODEV);
      EXPECT_EQ(one->queue.Wait(kPatienceMs), ENODEV);
      EXPECT_EQ(one->queue.ConnectDevice(one->queue.gid()), ENODEV);
      uint32_t key;
      EXPECT_EQ(one->queue.Register(one->memory.bytes(), kPage, kAllRights, &key), ENODEV);
      EXPECT_EQ(one->queue.Deregister(one->key), ENODEV);
      EXPECT_EQ(one->queue.Attach("", 8), ENODEV);
    }
    ASSERT_EQ(Shell("rdma link add rxe0 type rxe netdev dummy0"), 0);
    AwaitDevice();
  }
  Side side;
  EXPECT_EQ(side.StatusOf(side.Request(KRC_OP_READ, 0, 100)), KRC_SUCCESS);
}

}  // namespace
}  // namespace kmod_test
