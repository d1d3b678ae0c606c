#include "computenode/elastic/request_queue.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <memory>
#include <random>
#include <set>
#include <thread>
#include <vector>

#include "tests/support/kill_process.h"

namespace computenode {
namespace {

using krcore::StatusCode;

constexpr int64_t kStart = 1'000'000;

std::unique_ptr<RequestQueue> MakeQueue(uint64_t count, int64_t gap_ns = 100) {
  std::vector<int64_t> due;
  for (uint64_t i = 0; i < count; ++i) due.push_back(static_cast<int64_t>(i) * gap_ns);
  return RequestQueue::Create(due).value();
}

TEST(RequestQueue, GivesOutTheOldestFirstAndAlsoWhatIsNotDueYet) {
  const auto queue = MakeQueue(3);
  Request request;
  EXPECT_FALSE(queue->Claim(7, &request)) << "it has not been started";
  queue->Start(kStart);
  for (uint64_t i = 0; i < 3; ++i) {
    ASSERT_TRUE(queue->Claim(7, &request));
    EXPECT_EQ(request.index, i);
    EXPECT_EQ(request.due_ns, kStart + static_cast<int64_t>(i) * 100);
  }
  EXPECT_FALSE(queue->Claim(8, &request));
}

TEST(RequestQueue, TellsWhatBecameOfEach) {
  const auto queue = MakeQueue(4);
  queue->Start(kStart);
  Request request;
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(queue->Claim(7, &request));
  EXPECT_TRUE(queue->Reply(7, 1, kStart + 500, false));
  EXPECT_EQ(queue->Replied(), 0u);
  EXPECT_TRUE(queue->Reply(7, 0, kStart + 600, true));
  EXPECT_EQ(queue->Replied(), 2u);
  EXPECT_FALSE(queue->Reply(7, 0, kStart + 700, false)) << "one reply counts";
  EXPECT_FALSE(queue->Reply(8, 2, kStart + 700, false)) << "another worker's";
  EXPECT_FALSE(queue->Reply(7, 3, kStart + 700, false)) << "nobody's";
  EXPECT_FALSE(queue->Reply(7, 4, kStart + 700, false)) << "there is no such request";
  const RequestRecord failed = queue->RecordOf(0);
  EXPECT_EQ(failed.done_ns, 600);
  EXPECT_TRUE(failed.failed);
  const RequestRecord served = queue->RecordOf(1);
  EXPECT_EQ(served.due_ns, 100);
  EXPECT_EQ(served.done_ns, 500);
  EXPECT_EQ(served.worker, 7u);
  EXPECT_FALSE(served.failed);
  EXPECT_EQ(queue->RecordOf(2).done_ns, -1);
}

TEST(RequestQueue, WhatIsReturnedOrTakenBackIsServedNext) {
  const auto queue = MakeQueue(10);
  queue->Start(kStart);
  Request request;
  for (uint32_t worker = 0; worker < 6; ++worker) ASSERT_TRUE(queue->Claim(worker, &request));
  queue->Return(4, 4);
  queue->Return(3, 4);  // that request is another worker's
  EXPECT_EQ(queue->TakeBack(2), 1u);
  EXPECT_EQ(queue->TakeBack(9), 0u);
  std::vector<uint64_t> next;
  while (queue->Claim(6, &request)) next.push_back(request.index);
  EXPECT_EQ(next, (std::vector<uint64_t>{2, 4, 6, 7, 8, 9}));
}

TEST(RequestQueue, LooksAtTheBacklog) {
  const auto queue = MakeQueue(10);
  EXPECT_EQ(queue->Look(kStart).due, 0u);
  queue->Start(kStart);
  Request request;
  for (uint32_t worker = 0; worker < 4; ++worker) ASSERT_TRUE(queue->Claim(worker, &request));
  EXPECT_EQ(queue->Look(kStart + 250).due, 3u);
  EXPECT_EQ(queue->Look(kStart + 250).backlog, 0u) << "one is claimed that is not due";
  const RequestLoad late = queue->Look(kStart + 650);
  EXPECT_EQ(late.due, 7u);
  EXPECT_EQ(late.backlog, 3u);
  EXPECT_EQ(late.oldest_wait_ns, 250);
  queue->TakeBack(1);
  const RequestLoad back = queue->Look(kStart + 650);
  EXPECT_EQ(back.backlog, 4u);
  EXPECT_EQ(back.oldest_wait_ns, 550);
}

TEST(RequestQueue, RefusesWhatItIsNotMadeFor) {
  EXPECT_EQ(RequestQueue::Create({}).status(), StatusCode::kInvalidArgument);
  EXPECT_EQ(RequestQueue::Attach(-1).status(), StatusCode::kInvalidArgument);
  const int other = memfd_create("other", 0);
  EXPECT_EQ(RequestQueue::Attach(other).status(), StatusCode::kInvalidArgument);
  ASSERT_EQ(ftruncate(other, 4096), 0);
  EXPECT_EQ(RequestQueue::Attach(other).status(), StatusCode::kInvalidArgument);
  close(other);
  const auto queue = MakeQueue(5);
  const auto same = RequestQueue::Attach(queue->fd());
  ASSERT_TRUE(same.ok());
  queue->Start(kStart);
  Request request;
  ASSERT_TRUE((*same)->Claim(1, &request));
  EXPECT_EQ((*same)->size(), 5u);
  EXPECT_TRUE((*same)->Reply(1, 0, kStart, false));
  EXPECT_EQ(queue->Replied(), 1u);
}

// Claims requests, and at random returns them or replies, until nothing is left for a while.
void ServeAtRandom(RequestQueue& queue, uint32_t worker, std::atomic<uint64_t>* replies, bool at_leisure = false) {
  std::minstd_rand random(worker + 1);
  while (replies->load() < queue.size()) {
    Request request;
    if (at_leisure && random() % 8 == 0) usleep(1);
    if (!queue.Claim(worker, &request)) {
      sched_yield();
      continue;
    }
    if (random() % 4 == 0) {
      queue.Return(worker, request.index);
    } else if (queue.Reply(worker, request.index, kStart + 1, false)) {
      replies->fetch_add(1);
    }
  }
}

TEST(RequestQueue, ThreadsLoseNothing) {
  const auto queue = MakeQueue(20'000);
  queue->Start(kStart);
  std::atomic<uint64_t> replies = 0;
  std::vector<std::thread> workers;
  for (uint32_t w = 0; w < 4; ++w) workers.emplace_back([&, w] { ServeAtRandom(*queue, w, &replies); });
  for (std::thread& worker : workers) worker.join();
  EXPECT_EQ(queue->Replied(), queue->size());
  EXPECT_EQ(replies, queue->size());
}

// Processes are killed at random places, one after another. What they had is taken back, and others serve the rest.
TEST(RequestQueue, KilledProcessesLoseNothing) {
  const auto queue = MakeQueue(30'000);
  queue->Start(kStart);
  void* const shared = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  auto* const replies = new (shared) std::atomic<uint64_t>(0);
  std::minstd_rand random(1);
  std::vector<std::pair<pid_t, uint32_t>> workers;
  uint32_t next = 0, killed = 0;
  const auto start = [&] {
    const pid_t pid = fork();
    if (pid == 0) {
      ServeAtRandom(*queue, next, replies, true);
      _exit(0);
    }
    workers.emplace_back(pid, next++);
  };
  for (int i = 0; i < 3; ++i) start();
  // A worker killed between its reply and its count leaves the count short, so ask the queue.
  while (queue->Replied() < queue->size() * 9 / 10 && killed < 300) {
    usleep(200 + random() % 1'500);
    const size_t victim = random() % workers.size();
    (void)testing_support::KillProcess(workers[victim].first);
    waitpid(workers[victim].first, nullptr, 0);
    queue->TakeBack(workers[victim].second);
    workers.erase(workers.begin() + static_cast<ptrdiff_t>(victim));
    ++killed;
    start();
  }
  while (queue->Replied() < queue->size()) sched_yield();
  *replies = queue->size();
  for (const auto& [pid, worker] : workers) waitpid(pid, nullptr, 0);
  EXPECT_GT(killed, 0u);
  std::set<uint32_t> served;
  for (uint64_t i = 0; i < queue->size(); ++i) {
    ASSERT_EQ(queue->RecordOf(i).done_ns, 1);
    served.insert(queue->RecordOf(i).worker);
  }
  EXPECT_GT(served.size(), 3u);
  munmap(shared, 4096);
}

}  // namespace
}  // namespace computenode
