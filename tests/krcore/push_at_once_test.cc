// Push of requests like those before. Where the NIC executes requests when they are posted, such requests take a fast
// path, and are done when Push returns. Both paths have the same results.
#include <array>
#include <cstring>
#include <memory>
#include <string_view>
#include <vector>

#include "tests/krcore/fixture.h"

namespace krcore::test {
namespace {

class PushAtOnce : public OneMemoryNode {};

// Requests like those before, on a NIC that executes them when they are posted, take no place in any ring.
TEST_F(PushAtOnce, WhatIsLikeBeforeMayBeDoneWhenPushReturns) {
  Worker worker = Worker::Start(fabric_);
  auto queue = worker.Connect(1);
  const Sge sge = worker.Word(0);
  Execute(*worker.pool, *queue, OnWord(*queue, Opcode::kFetchAdd, &sge, 1));
  std::array<WorkRequest, 5> wrs;
  for (uint64_t i = 0; i < wrs.size(); ++i) {
    wrs[i] = OnWord(*queue, Opcode::kFetchAdd, &sge, 1, i);
    wrs[i].compare_add = 1;
    wrs[i].flags = i % 2 != 0 ? kSignaled : 0;
  }
  for (uint64_t round = 0; round < 100; ++round) {
    ASSERT_OK(queue->Push(wrs));
    if (std::string_view(kRnic) == "sw" && !kOnKernel) {
      ASSERT_EQ(queue->outstanding(), 0u);
      ASSERT_EQ(memory_.words()[1], 5 * (round + 1));
      EXPECT_EQ(worker.pool->Poll(), wrs.size()) << "which counts them";
      EXPECT_EQ(worker.pool->Poll(), 0u) << "once";
    }
    const std::vector<Completion> done = Await(*worker.pool, *queue, 2);
    ASSERT_EQ(done.size(), 2u);
    for (size_t i = 0; i < 2; ++i) {
      EXPECT_EQ(done[i].wr_id, 2 * i + 1);
      EXPECT_EQ(done[i].status, WcStatus::kSuccess);
      EXPECT_EQ(done[i].opcode, Opcode::kFetchAdd);
    }
    while (queue->outstanding() != 0) worker.pool->Poll();
  }
  EXPECT_EQ(memory_.words()[1], 500u);
  EXPECT_TRUE(worker.pool->NothingPosted());
}

TEST_F(PushAtOnce, APushIsBehindWhatWasStagedBefore) {
  Worker worker = Worker::Start(fabric_);
  auto queue = worker.Connect(1);
  const Sge from = worker.Word(0), to = worker.Word(1);
  for (uint64_t round = 1; round < 50; ++round) {
    worker.words()[0] = round;
    const WorkRequest write = OnWord(*queue, Opcode::kWrite, &from, 7, 1),
                      read = OnWord(*queue, Opcode::kRead, &to, 7, 2);
    ASSERT_OK(queue->Stage({&write, 1}));
    ASSERT_OK(queue->Push({&read, 1}));
    const std::vector<Completion> done = Await(*worker.pool, *queue, 2);
    ASSERT_EQ(done.size(), 2u);
    EXPECT_EQ(done[0].wr_id, 1u);
    EXPECT_EQ(done[1].wr_id, 2u);
    ASSERT_EQ(worker.words()[1], round);
  }
}

TEST_F(PushAtOnce, WhatAnotherQueueHasStagedGoesOutWithAPushAndBeforeIt) {
  Worker worker = Worker::Start(fabric_);
  auto a = worker.Connect(1), b = worker.Connect(1);
  const Sge from = worker.Word(0), to = worker.Word(1);
  for (uint64_t round = 1; round < 50; ++round) {  // a few make them like those before
    worker.words()[0] = round;
    const WorkRequest write = OnWord(*a, Opcode::kWrite, &from, 7, 1), read = OnWord(*b, Opcode::kRead, &to, 7, 2);
    ASSERT_OK(a->Stage({&write, 1}));
    ASSERT_OK(b->Push({&read, 1}));
    EXPECT_EQ(Await(*worker.pool, *b, 1).size(), 1u);
    EXPECT_EQ(Await(*worker.pool, *a, 1).size(), 1u);
    ASSERT_EQ(memory_.words()[7], round);
    if (kOnKernel) continue;  // it has no physical queue that both use
    ASSERT_EQ(worker.words()[1], round) << "one physical queue, in order";
  }
}

TEST_F(PushAtOnce, RequestsMayLieInMemoryThatOneOfThemWrites) {
  Worker worker = Worker::Start(fabric_);
  auto queue = worker.Connect(1);
  const Sge word = worker.Word(0);
  for (int i = 0; i < 2; ++i) Execute(*worker.pool, *queue, OnWord(*queue, Opcode::kRead, &word, 0));
  // The first READ overwrites the second one's SGE with another one, which names memory that is not registered.
  uint64_t outside = 5;
  Sge* const second = reinterpret_cast<Sge*>(&worker.words()[16]);
  *second = worker.Word(32);
  const Sge other = {reinterpret_cast<uint64_t>(&outside), sizeof(outside), second->lkey};
  std::memcpy(const_cast<uint64_t*>(&memory_.words()[100]), &other, sizeof(other));
  const_cast<uint64_t&>(memory_.words()[50]) = 666;
  Sge over = worker.Word(16);
  over.length = sizeof(Sge);
  const std::array wrs = {OnWord(*queue, Opcode::kRead, &over, 100), OnWord(*queue, Opcode::kRead, second, 50)};
  ASSERT_OK(queue->Push(wrs));
  EXPECT_EQ(Await(*worker.pool, *queue, 2).size(), 2u);
  EXPECT_EQ(outside, 5u) << "what no lkey covers was written";
  EXPECT_EQ(worker.words()[32], 666u) << "the request was what it was when it was pushed";
}

TEST_F(PushAtOnce, PushesOfAnySizeAreCarriedOutWhole) {
  SKIP_ON_KERNEL("a queue's depth is bounded by one doorbell's requests");
  Worker worker = Worker::Start(fabric_, {.dc_initiators = 1, .sq_depth = 64});
  auto queue = worker.Connect(1, 256);
  const Sge sge = worker.Word(0);
  uint64_t sum = 0;
  for (int round = 0; round < 3; ++round) {
    for (const size_t size : {1, 2, 32, 63, 64, 65, 95, 96, 97, 200, 256}) {
      std::vector<WorkRequest> wrs(size, OnWord(*queue, Opcode::kFetchAdd, &sge, 3));
      for (WorkRequest& wr : wrs) wr.compare_add = 1;
      ASSERT_OK(queue->Push(wrs));
      EXPECT_EQ(Await(*worker.pool, *queue, size).size(), size);
      sum += size;
      ASSERT_EQ(memory_.words()[3], sum);
    }
    ASSERT_OK(queue->Push({}));
    EXPECT_EQ(queue->outstanding(), 0u);
  }
}

TEST_F(PushAtOnce, TwoLocalRegionsAndTwoPeersInTurnAreEachServed) {
  MemoryNode second = MemoryNode::Start(fabric_, 2, 1 << 16, false);
  Worker worker = Worker::Start(fabric_, {.dc_initiators = 1});
  auto region = worker.node->CreateRegion({.length = 4096});
  ASSERT_OK(region.status());
  const Sge sges[2] = {worker.Word(0), {reinterpret_cast<uint64_t>((*region)->bytes().data()), 8, (*region)->lkey()}};
  std::unique_ptr<VirtualQueue> queues[2] = {worker.Connect(1), worker.Connect(2)};
  for (uint64_t round = 1; round < 50; ++round) {
    for (size_t peer = 0; peer < 2; ++peer) {
      std::array<WorkRequest, 4> wrs;
      for (size_t i = 0; i < wrs.size(); ++i) {
        wrs[i] = OnWord(*queues[peer], Opcode::kWrite, &sges[round % 4 < 2 ? i % 2 : round % 2], i);
      }
      worker.words()[0] = round;
      *reinterpret_cast<uint64_t*>((*region)->bytes().data()) = round;
      queues[peer]->Prefetch(wrs);
      queues[1 - peer]->Prefetch({});
      ASSERT_OK(queues[peer]->Push(wrs));
      EXPECT_EQ(Await(*worker.pool, *queues[peer], 4).size(), 4u);
    }
    for (uint64_t i = 0; i < 4; ++i) {
      ASSERT_EQ(memory_.words()[i], round);
      ASSERT_EQ(second.words()[i], round);
    }
  }
}

TEST_F(PushAtOnce, WhatIsDoneAndNotPoppedCountsForTheDepth) {
  Worker worker = Worker::Start(fabric_);
  auto queue = worker.Connect(1, 4);
  const Sge sge = worker.Word(0);
  const WorkRequest wr = OnWord(*queue, Opcode::kRead, &sge, 0);
  for (int round = 0; round < 3; ++round) {
    for (int i = 0; i < 4; ++i) ASSERT_OK(queue->Push({&wr, 1}));
    while (queue->outstanding() != 0) worker.pool->Poll();
    EXPECT_EQ(queue->Push({&wr, 1}).code(), StatusCode::kQueueFull);
    EXPECT_EQ(Await(*worker.pool, *queue, 4).size(), 4u);
  }
}

}  // namespace
}  // namespace krcore::test
