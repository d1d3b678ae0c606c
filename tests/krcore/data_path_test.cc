// VirtualQueues over a shared pool: verbs, order, exactly-once delivery, overflow.
#include <algorithm>
#include <array>
#include <deque>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "tests/krcore/fixture.h"

namespace krcore::test {
namespace {

class DataPath : public ::testing::Test {
 protected:
  const std::string fabric_ = UniqueFabric(true);
  MemoryNode memory_ = MemoryNode::Start(fabric_, 1, 1 << 16, true);
};

TEST_F(DataPath, ReadWriteCasAndFetchAddReachThePeersMemory) {
  Worker worker = Worker::Start(fabric_);
  auto queue = worker.Connect(1);
  const Sge sge = worker.Word(0);

  worker.words()[0] = 1234;
  EXPECT_EQ(Execute(*worker.pool, *queue, OnWord(*queue, Opcode::kWrite, &sge, 5)).status, WcStatus::kSuccess);
  EXPECT_EQ(memory_.words()[5], 1234u);

  memory_.words()[6] = 77;
  EXPECT_EQ(Execute(*worker.pool, *queue, OnWord(*queue, Opcode::kRead, &sge, 6)).status, WcStatus::kSuccess);
  EXPECT_EQ(worker.words()[0], 77u);

  WorkRequest cas = OnWord(*queue, Opcode::kCompareSwap, &sge, 6, 99);
  cas.compare_add = 77;
  cas.swap = 78;
  const Completion done = Execute(*worker.pool, *queue, cas);
  EXPECT_EQ(done.status, WcStatus::kSuccess);
  EXPECT_EQ(done.wr_id, 99u);
  EXPECT_EQ(done.opcode, Opcode::kCompareSwap);
  EXPECT_EQ(worker.words()[0], 77u) << "the old word";
  EXPECT_EQ(memory_.words()[6], 78u);
  Execute(*worker.pool, *queue, cas);
  EXPECT_EQ(worker.words()[0], 78u) << "a lost CAS tells what is there";
  EXPECT_EQ(memory_.words()[6], 78u) << "and changes nothing";

  WorkRequest add = OnWord(*queue, Opcode::kFetchAdd, &sge, 6);
  add.compare_add = 10;
  Execute(*worker.pool, *queue, add);
  EXPECT_EQ(worker.words()[0], 78u);
  EXPECT_EQ(memory_.words()[6], 88u);
}

TEST_F(DataPath, GathersSeveralSges) {
  Worker worker = Worker::Start(fabric_);
  auto queue = worker.Connect(1);
  worker.words()[3] = 33;
  worker.words()[9] = 99;
  const Sge sges[2] = {worker.Word(9), worker.Word(3)};
  WorkRequest wr = OnWord(*queue, Opcode::kWrite, sges, 20);
  wr.num_sge = 2;
  EXPECT_EQ(Execute(*worker.pool, *queue, wr).status, WcStatus::kSuccess);
  EXPECT_EQ(memory_.words()[20], 99u);
  EXPECT_EQ(memory_.words()[21], 33u);
}

TEST_F(DataPath, ABatchMayMixRequestsOfOneAndOfSeveralSges) {
  Worker worker = Worker::Start(fabric_);
  auto queue = worker.Connect(1);
  for (uint64_t i = 0; i < 8; ++i) worker.words()[i] = 100 + i;
  std::vector<std::vector<Sge>> sges;
  std::vector<WorkRequest> wrs;
  for (const std::vector<size_t>& from : {std::vector<size_t>{0}, {1, 2}, {3}, {4, 5, 6}, {7}}) {
    sges.emplace_back();
    for (const size_t word : from) sges.back().push_back(worker.Word(word));
    WorkRequest wr = OnWord(*queue, Opcode::kWrite, sges.back().data(), 20 + from.front());
    wr.num_sge = static_cast<uint8_t>(from.size());
    wr.flags = wrs.size() % 2 == 0 ? kSignaled : 0;
    wrs.push_back(wr);
  }
  ASSERT_OK(queue->Push(wrs));
  while (queue->outstanding() != 0) worker.pool->Poll();
  for (uint64_t i = 0; i < 8; ++i) EXPECT_EQ(memory_.words()[20 + i], 100 + i);
}

TEST_F(DataPath, InlinePayloadMayBeReusedAsSoonAsItIsStaged) {
  Worker worker = Worker::Start(fabric_);
  auto queue = worker.Connect(1);
  uint64_t payload = 5;  // not registered
  const Sge sge{reinterpret_cast<uint64_t>(&payload), 8, 0};
  for (uint64_t i = 0; i < 8; ++i) {
    payload = 100 + i;
    WorkRequest wr = OnWord(*queue, Opcode::kWrite, &sge, i);
    wr.flags = kSignaled | kInline;
    ASSERT_OK(queue->Stage({&wr, 1}));
  }
  payload = 0;
  Await(*worker.pool, *queue, 8);
  for (uint64_t i = 0; i < 8; ++i) EXPECT_EQ(memory_.words()[i], 100 + i);
}

TEST_F(DataPath, AFencedWriteDoesNotOvertakeTheReadBeforeIt) {
  Worker worker = Worker::Start(fabric_);
  auto queue = worker.Connect(1);
  const Sge into = worker.Word(0), from = worker.Word(1);
  WorkRequest wrs[2] = {OnWord(*queue, Opcode::kRead, &into, 7), OnWord(*queue, Opcode::kWrite, &from, 7)};
  wrs[1].flags |= kFence;
  for (uint64_t round = 1; round <= 100; ++round) {
    worker.words()[1] = round;
    ASSERT_OK(queue->Push(wrs));
    Await(*worker.pool, *queue, 2);
    ASSERT_EQ(worker.words()[0], round - 1);
    ASSERT_EQ(memory_.words()[7], round);
  }
}

// Requests like those before, on a NIC that executes them when they are posted, take no place in any ring.
TEST_F(DataPath, WhatIsLikeBeforeMayBeDoneWhenPushReturns) {
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

TEST_F(DataPath, APushIsBehindWhatWasStagedBefore) {
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

TEST_F(DataPath, WhatAnotherQueueHasStagedGoesOutWithAPushAndBeforeIt) {
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
    if (kOnKernel) continue;  // which has no physical queue that both use
    ASSERT_EQ(worker.words()[1], round) << "one physical queue, in order";
  }
}

TEST_F(DataPath, RequestsMayLieInMemoryThatOneOfThemWrites) {
  Worker worker = Worker::Start(fabric_);
  auto queue = worker.Connect(1);
  const Sge word = worker.Word(0);
  for (int i = 0; i < 2; ++i) Execute(*worker.pool, *queue, OnWord(*queue, Opcode::kRead, &word, 0));
  // The first READ brings another SGE to where the second one's is, which names memory that is not registered.
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

TEST_F(DataPath, PushesOfAnySizeAreCarriedOutWhole) {
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

TEST_F(DataPath, TwoLocalRegionsAndTwoPeersInTurnAreEachServed) {
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

TEST_F(DataPath, WhatIsDoneAndNotPoppedCountsForTheDepth) {
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

struct Gate final : PostGate {
  bool MayPost() override {
    ++asked;
    return open;
  }
  bool open = true;
  int asked = 0;
};

// Polls and pops for a while, whatever comes.
std::vector<Completion> PollForAWhile(Worker& worker, VirtualQueue& queue) {
  std::vector<Completion> found;
  std::array<Completion, 16> done;
  for (uint32_t spins = 0; spins < 200; ++spins) {
    if (worker.pool->Poll() == 0) worker.node->clock().Relax(spins);
    const size_t count = queue.Pop(done);
    found.insert(found.end(), done.begin(), done.begin() + static_cast<std::ptrdiff_t>(count));
  }
  return found;
}

TEST_F(DataPath, AShutGateKeepsWhatIsStagedAndLetsItGoWhenItOpens) {
  Worker worker = Worker::Start(fabric_);
  auto queue = worker.Connect(1);
  const Sge sge = worker.Word(0);
  const WorkRequest wr = OnWord(*queue, Opcode::kWrite, &sge, 3, 55);
  // Two: what is like the first goes another way, where the NIC executes what is posted at once.
  for (int i = 0; i < 2; ++i) Execute(*worker.pool, *queue, OnWord(*queue, Opcode::kWrite, &sge, 4));
  Gate gate;
  worker.pool->SetGate(&gate);
  worker.words()[0] = 7;
  EXPECT_TRUE(PollForAWhile(worker, *queue).empty());
  EXPECT_EQ(gate.asked, 0) << "with nothing staged there is nothing to ask";
  gate.open = false;
  ASSERT_OK(queue->Push({&wr, 1}));
  EXPECT_TRUE(PollForAWhile(worker, *queue).empty());
  EXPECT_EQ(memory_.words()[3], 0u);
  EXPECT_EQ(queue->outstanding(), 1u);
  gate.open = true;
  EXPECT_EQ(Await(*worker.pool, *queue, 1).front().status, WcStatus::kSuccess);
  EXPECT_EQ(memory_.words()[3], 7u);
  worker.pool->SetGate(nullptr);
}

TEST_F(DataPath, DiscardedRequestsCompleteInTheirTurnAndAreNeverCarriedOut) {
  Worker worker = Worker::Start(fabric_);
  auto queue = worker.Connect(1);
  Gate gate;
  worker.pool->SetGate(&gate);
  worker.words()[0] = 7;
  const Sge sge = worker.Word(0);
  WorkRequest posted = OnWord(*queue, Opcode::kWrite, &sge, 1, 1);
  ASSERT_OK(queue->Push({&posted, 1}));
  gate.open = false;
  WorkRequest staged[2] = {OnWord(*queue, Opcode::kWrite, &sge, 2, 2), OnWord(*queue, Opcode::kWrite, &sge, 3, 3)};
  staged[0].flags = 0;  // unsignaled: a failure is reported all the same
  ASSERT_OK(queue->Push(staged));
  worker.pool->DiscardStaged();
  gate.open = true;
  const std::vector<Completion> done = Await(*worker.pool, *queue, 3);
  ASSERT_EQ(done.size(), 3u);
  EXPECT_TRUE(PollForAWhile(worker, *queue).empty());
  EXPECT_EQ(done[0].wr_id, 1u);
  EXPECT_EQ(done[0].status, WcStatus::kSuccess);
  for (size_t i = 1; i < 3; ++i) {
    EXPECT_EQ(done[i].wr_id, i + 1);
    EXPECT_EQ(done[i].status, WcStatus::kDiscarded);
  }
  EXPECT_EQ(memory_.words()[1], 7u);
  EXPECT_EQ(memory_.words()[2] + memory_.words()[3], 0u);
  EXPECT_EQ(Execute(*worker.pool, *queue, OnWord(*queue, Opcode::kWrite, &sge, 4)).status, WcStatus::kSuccess);
  worker.pool->SetGate(nullptr);
}

TEST_F(DataPath, MoreThanAQueueHoldsIsRefusedWhileTheGateIsShutAllOrNone) {
  SKIP_ON_KERNEL("a pool has no physical queues of its own");
  Worker worker = Worker::Start(fabric_, {.dc_initiators = 1, .sq_depth = 8});
  auto queue = worker.Connect(1);
  Gate gate;
  gate.open = false;
  worker.pool->SetGate(&gate);
  worker.words()[0] = 7;
  const Sge sge = worker.Word(0);
  std::vector<WorkRequest> wrs;
  for (uint64_t i = 0; i < 6; ++i) wrs.push_back(OnWord(*queue, Opcode::kWrite, &sge, i, i));
  ASSERT_OK(queue->Stage(wrs));
  EXPECT_EQ(queue->Stage(wrs), StatusCode::kQueueFull);
  EXPECT_EQ(queue->outstanding(), 6u);
  gate.open = true;
  EXPECT_EQ(Await(*worker.pool, *queue, 6).size(), 6u);
  ASSERT_OK(queue->Stage(wrs));
  EXPECT_EQ(Await(*worker.pool, *queue, 6).size(), 6u);
  worker.pool->SetGate(nullptr);
}

TEST_F(DataPath, ABatchThatRunsAcrossTheEndOfTheRingIsCarriedOutWhole) {
  SKIP_ON_KERNEL("a pool has no physical queues of its own");
  constexpr uint32_t kDepth = 16;
  Worker worker = Worker::Start(fabric_, {.dc_initiators = 1, .sq_depth = kDepth, .max_rc_queues = 0});
  auto queue = worker.Connect(1);
  Gate gate;
  worker.pool->SetGate(&gate);
  std::array<Sge, 3 * kDepth> sges;
  std::vector<WorkRequest> wrs;
  for (uint64_t i = 0; i < sges.size(); ++i) {
    sges[i] = worker.Word(i);
    memory_.words()[i] = 100 + i;
    wrs.push_back(OnWord(*queue, Opcode::kRead, &sges[i], i, i));
  }
  const std::span<const WorkRequest> all(wrs);
  EXPECT_EQ(Execute(*worker.pool, *queue, wrs[0]).status, WcStatus::kSuccess);  // the others are like it
  ASSERT_OK(queue->Push(all.subspan(1, kDepth - 4)));
  gate.open = false;
  ASSERT_OK(queue->Stage(all.subspan(kDepth, 2)));  // so that the ring does not begin anew when the first are done
  std::vector<Completion> done = Await(*worker.pool, *queue, kDepth - 4);
  ASSERT_OK(queue->Stage(all.subspan(2 * kDepth, kDepth - 4)));
  gate.open = true;
  for (const Completion& completion : Await(*worker.pool, *queue, kDepth - 2)) done.push_back(completion);
  EXPECT_EQ(queue->outstanding(), 0u);
  std::vector<uint64_t> ids;
  for (const Completion& completion : done) {
    EXPECT_EQ(completion.status, WcStatus::kSuccess);
    ids.push_back(completion.wr_id);
    EXPECT_EQ(worker.words()[completion.wr_id], 100 + completion.wr_id);
  }
  EXPECT_EQ(ids.size(), 2 * kDepth - 6);
  EXPECT_TRUE(std::is_sorted(ids.begin(), ids.end()));
  worker.pool->SetGate(nullptr);
}

TEST_F(DataPath, StagedRequestsOfManyQueuesGoOutBehindOneDoorbell) {
  SKIP_ON_KERNEL("a pool has no physical queues of its own");
  Worker worker = Worker::Start(fabric_, {.dc_initiators = 1});
  std::vector<std::unique_ptr<VirtualQueue>> queues;
  const Sge sge = worker.Word(0);
  for (int i = 0; i < 8; ++i) queues.push_back(worker.Connect(1));
  for (auto& queue : queues) {
    const WorkRequest wr = OnWord(*queue, Opcode::kRead, &sge, 0);
    ASSERT_OK(queue->Stage({&wr, 1}));
  }
  EXPECT_EQ(worker.pool->stats().doorbells, 0u);
  worker.pool->Flush();
  EXPECT_EQ(worker.pool->stats().doorbells, 1u);
  EXPECT_EQ(worker.pool->stats().work_requests, 8u);
  for (auto& queue : queues) Await(*worker.pool, *queue, 1);
}

TEST_F(DataPath, UnsignaledRequestsCompleteSilentlyAndFreeTheirPlaces) {
  Worker worker = Worker::Start(fabric_);
  auto queue = worker.Connect(1, 8);
  const Sge sge = worker.Word(0);
  WorkRequest wr = OnWord(*queue, Opcode::kFetchAdd, &sge, 0);
  wr.compare_add = 1;
  wr.flags = 0;
  for (int round = 0; round < 10; ++round) {
    for (int i = 0; i < 8; ++i) ASSERT_OK(queue->Stage({&wr, 1}));
    EXPECT_EQ(queue->outstanding(), 8u);
    while (queue->outstanding() != 0) worker.pool->Poll();
    Completion none;
    EXPECT_EQ(queue->Pop({&none, 1}), 0u);
  }
  EXPECT_EQ(memory_.words()[0], 80u);
}

TEST_F(DataPath, QueueFullIsRefusedWholeAndNamesTheFirstThatDoesNotFit) {
  Worker worker = Worker::Start(fabric_);
  auto queue = worker.Connect(1, 4);
  const Sge sge = worker.Word(0);
  std::vector<WorkRequest> wrs(3, OnWord(*queue, Opcode::kFetchAdd, &sge, 0));
  for (WorkRequest& wr : wrs) wr.compare_add = 1;
  ASSERT_OK(queue->Push(wrs));
  size_t bad = 99;
  EXPECT_EQ(queue->Push(wrs, &bad).code(), StatusCode::kQueueFull);
  EXPECT_EQ(bad, 1u);
  while (queue->outstanding() != 0) worker.pool->Poll();
  EXPECT_EQ(queue->Push(wrs, &bad).code(), StatusCode::kQueueFull) << "completed, but not popped";
  std::vector<Completion> out(8);
  EXPECT_EQ(queue->Pop(out), 3u);
  ASSERT_OK(queue->Push(wrs));
  Await(*worker.pool, *queue, 3);
  EXPECT_EQ(memory_.words()[0], 6u) << "a refused batch has no part executed";
}

TEST_F(DataPath, PushBeyondSqDepthPollsInsteadOfFailing) {
  SKIP_ON_KERNEL("a pool has no physical queues of its own");
  Worker worker = Worker::Start(fabric_, {.dc_initiators = 1, .sq_depth = 8});
  auto queue = worker.Connect(1, 1000);
  const Sge sge = worker.Word(0);
  std::vector<WorkRequest> wrs(500, OnWord(*queue, Opcode::kFetchAdd, &sge, 0));
  for (size_t i = 0; i < wrs.size(); ++i) {
    wrs[i].compare_add = 1;
    wrs[i].wr_id = i;
    wrs[i].flags = i % 3 == 0 ? kSignaled : 0;
  }
  ASSERT_OK(queue->Push(wrs));
  EXPECT_GT(worker.pool->stats().sq_full_polls, 0u);
  const std::vector<Completion> completions = Await(*worker.pool, *queue, 167);
  for (size_t i = 0; i < completions.size(); ++i) {
    EXPECT_EQ(completions[i].wr_id, 3 * i);
    EXPECT_EQ(completions[i].status, WcStatus::kSuccess);
  }
  while (queue->outstanding() != 0) worker.pool->Poll();
  EXPECT_EQ(memory_.words()[0], 500u);
}

TEST_F(DataPath, ManyInlineRequestsBeyondTheArenaAreAccepted) {
  Worker worker = Worker::Start(fabric_);
  auto queue = worker.Connect(1, 512);
  std::vector<uint64_t> payload(4);
  const Sge sge{reinterpret_cast<uint64_t>(payload.data()), 32, 0};
  for (uint64_t i = 0; i < 500; ++i) {
    payload[0] = i;
    WorkRequest wr = OnWord(*queue, Opcode::kWrite, &sge, 4 * i);
    wr.flags = kInline;
    ASSERT_OK(queue->Stage({&wr, 1}));
  }
  while (queue->outstanding() != 0) worker.pool->Poll();
  for (uint64_t i = 0; i < 500; ++i) ASSERT_EQ(memory_.words()[4 * i], i);
}

// Requests of all kinds, one after the other, of queues to two peers through one physical queue, whose ring they go
// around.
class RandomRequests {
 public:
  RandomRequests(const std::string& fabric, std::array<MemoryNode*, 2> peers, uint32_t seed)
      : random_(seed), worker_(Worker::Start(fabric, {.dc_initiators = 1, .sq_depth = 40})), peers_(peers) {
    other_ = worker_.node->CreateRegion({.length = kLocalWords * 8}).value();
    for (uint32_t i = 0; i < 4; ++i) {
      Queue& queue = queues_.emplace_back();
      queue.peer = i % 2;
      queue.virtual_queue = worker_.Connect(i % 2 + 1);
      queue.first_word = i * kWords;
      for (size_t word = 0; word < kWords; ++word)
        queue.expected[word] = peers_[queue.peer]->words()[queue.first_word + word] = random_();
    }
  }

  void Round() {
    local_used_ = 0;
    checks_.clear();
    for (uint32_t batch = 1 + random_() % 6; batch-- > 0;) PushBatch(queues_[random_() % queues_.size()]);
    for (Queue& queue : queues_) {
      const auto done = Await(*worker_.pool, *queue.virtual_queue, queue.signaled.size());
      ASSERT_EQ(done.size(), queue.signaled.size());
      for (size_t i = 0; i < done.size(); ++i) {
        EXPECT_EQ(done[i].wr_id, queue.signaled[i].wr_id);
        EXPECT_EQ(done[i].status, WcStatus::kSuccess);
        EXPECT_EQ(done[i].opcode, queue.signaled[i].opcode);
      }
      while (queue.virtual_queue->outstanding() != 0) worker_.pool->Poll();
      Completion none;
      EXPECT_EQ(queue.virtual_queue->Pop({&none, 1}), 0u);
      queue.signaled.clear();
      queue.pushed = 0;
      queue.read = false;
      for (size_t word = 0; word < kWords; ++word)
        ASSERT_EQ(peers_[queue.peer]->words()[queue.first_word + word], queue.expected[word]) << word;
    }
    for (const auto& [at, value] : checks_) ASSERT_EQ(*at, value);
  }

 private:
  static constexpr size_t kWords = 32, kLocalWords = 4096;
  struct Queue {
    uint32_t peer;
    std::unique_ptr<VirtualQueue> virtual_queue;
    size_t first_word;
    std::array<uint64_t, kWords> expected;
    std::vector<WorkRequest> signaled;
    size_t pushed = 0;
    bool read = false;  // one was pushed in this round
  };

  void PushBatch(Queue& queue) {
    const size_t count = 1 + random_() % 12;
    if (queue.pushed + count > 60) return;
    queue.pushed += count;
    std::vector<WorkRequest> wrs;
    std::deque<std::array<Sge, 3>> sges;
    const bool alike = random_() % 2 == 0;
    const Opcode usual = random_() % 3 == 0 ? Opcode::kWrite : Opcode::kRead;
    for (size_t i = 0; i < count; ++i) {
      constexpr Opcode kAll[] = {Opcode::kRead, Opcode::kWrite, Opcode::kCompareSwap, Opcode::kFetchAdd};
      wrs.push_back(Make(queue, alike ? usual : kAll[random_() % 4], alike, &sges.emplace_back()));
      wrs.back().wr_id = ++numbered_;
      wrs.back().flags |= random_() % 3 != 0 ? kSignaled : 0;
      if ((wrs.back().flags & kSignaled) != 0) queue.signaled.push_back(wrs.back());
    }
    ASSERT_OK(random_() % 2 == 0 ? queue.virtual_queue->Push(wrs) : queue.virtual_queue->Stage(wrs));
    if (random_() % 4 == 0) worker_.pool->Poll();
  }

  WorkRequest Make(Queue& queue, Opcode opcode, bool alike, std::array<Sge, 3>* sges) {
    const bool atomic = opcode == Opcode::kCompareSwap || opcode == Opcode::kFetchAdd;
    const size_t words = atomic ? 1 : 1 + random_() % 4;
    const size_t at = random_() % (kWords - words);
    const bool in_other = !alike && random_() % 3 == 0;
    Region& region = in_other ? *other_ : *worker_.local;
    auto* const local = reinterpret_cast<uint64_t*>(region.bytes().data()) + local_used_;
    local_used_ += words;
    WorkRequest wr = OnWord(*queue.virtual_queue, opcode, sges->data(), queue.first_word + at);
    wr.flags = 0;
    wr.num_sge = static_cast<uint8_t>(alike ? 1 : 1 + random_() % std::min<size_t>(words, 3));
    for (size_t i = 0, from = 0; i < wr.num_sge; ++i) {
      const size_t length = i + 1 == wr.num_sge ? words - from : 1;
      (*sges)[i] = {reinterpret_cast<uint64_t>(local + from), static_cast<uint32_t>(8 * length), region.lkey()};
      from += length;
    }
    if (opcode != Opcode::kRead && queue.read) wr.flags = kFence;  // it need not wait for a READ otherwise
    queue.read |= opcode != Opcode::kWrite;
    uint64_t* const remote = &queue.expected[at];
    for (size_t i = 0; i < words; ++i) {
      if (opcode == Opcode::kWrite) {
        remote[i] = local[i] = random_();
      } else {
        local[i] = 0;
        checks_.emplace_back(&local[i], remote[i]);
      }
    }
    if (opcode == Opcode::kWrite && !alike && random_() % 3 == 0) wr.flags |= kInline;
    wr.compare_add = random_() % 2 == 0 ? remote[0] : random_();
    wr.swap = random_();
    if (opcode == Opcode::kCompareSwap && wr.compare_add == remote[0]) remote[0] = wr.swap;
    if (opcode == Opcode::kFetchAdd) remote[0] += wr.compare_add;
    return wr;
  }

  std::mt19937_64 random_;
  Worker worker_;
  std::array<MemoryNode*, 2> peers_;
  std::unique_ptr<Region> other_;
  std::deque<Queue> queues_;
  uint64_t numbered_ = 0;
  size_t local_used_ = 0;
  std::vector<std::pair<const uint64_t*, uint64_t>> checks_;  // what READs and atomics are to find
};

TEST_F(DataPath, RandomRequestsOfEveryKindDoWhatTheySayAndAreToldOfOnce) {
  MemoryNode second = MemoryNode::Start(fabric_, 2, 1 << 16, false);
  for (uint32_t seed = 1; seed <= 4; ++seed) {
    SCOPED_TRACE(seed);
    RandomRequests requests(fabric_, {&memory_, &second}, seed);
    const int rounds = kOnVerbs ? 20 : 1000;
    for (int round = 0; round < rounds && !HasFatalFailure(); ++round) requests.Round();
  }
}

TEST_F(DataPath, DestroyedQueueWithRequestsInFlightLeavesTheOthersAlone) {
  Worker worker = Worker::Start(fabric_, {.dc_initiators = 1});
  auto keeper = worker.Connect(1);
  const Sge sge = worker.Word(0);
  for (int round = 0; round < 20; ++round) {
    auto doomed = worker.Connect(1);
    const WorkRequest wr = OnWord(*doomed, Opcode::kRead, &sge, 0);
    for (int i = 0; i < 5; ++i) ASSERT_OK(doomed->Stage({&wr, 1}));
    if (round % 2 == 0) worker.pool->Flush();
    for (int i = 0; i < 5; ++i) ASSERT_OK(doomed->Stage({&wr, 1}));
    const WorkRequest kept = OnWord(*keeper, Opcode::kRead, &sge, 0, round);
    ASSERT_OK(keeper->Stage({&kept, 1}));
    doomed.reset();
    const auto completions = Await(*worker.pool, *keeper, 1);
    EXPECT_EQ(completions[0].wr_id, static_cast<uint64_t>(round));
    EXPECT_EQ(completions[0].status, WcStatus::kSuccess);
  }
}

TEST_F(DataPath, QueueOutlivingItsPoolFailsCleanly) {
  Worker worker = Worker::Start(fabric_);
  auto queue = worker.Connect(1);
  const Sge sge = worker.Word(0);
  const WorkRequest wr = OnWord(*queue, Opcode::kRead, &sge, 0);
  ASSERT_OK(queue->Push({&wr, 1}));
  worker.pool.reset();
  EXPECT_EQ(queue->Push({&wr, 1}).code(), StatusCode::kBadState);
  EXPECT_EQ(queue->Connect(1, worker.Soon()).code(), StatusCode::kBadState);
}

TEST_F(DataPath, PoolMemoryDoesNotGrowWithPeersReached) {
  std::vector<MemoryNode> peers;
  for (NodeId id = 2; id < 8; ++id) peers.push_back(MemoryNode::Start(fabric_, id, 4096, false));
  Worker worker = Worker::Start(fabric_);
  auto queue = worker.Connect(1);
  const size_t before = worker.pool->memory_bytes();
  EXPECT_GT(before, 0u);
  for (NodeId id = 2; id < 8; ++id) ASSERT_OK(queue->Connect(id, worker.Soon()));
  EXPECT_EQ(worker.pool->memory_bytes(), before);
}

TEST_F(DataPath, PoolOptionsOutsideTheDevicesLimitsAreRefused) {
  SKIP_ON_KERNEL("a pool has no physical queues of its own");
  auto node = OpenNode(fabric_, kNoNode);
  EXPECT_EQ(node->CreateQueuePool({.dc_initiators = 0}).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(node->CreateQueuePool({.dc_initiators = 1000}).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(node->CreateQueuePool({.sq_depth = 0}).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(node->CreateQueuePool({.sq_depth = 1u << 30}).status().code(), StatusCode::kInvalidArgument);
  auto pool = node->CreateQueuePool({}).value();
  EXPECT_EQ(pool->CreateQueue(0).status().code(), StatusCode::kInvalidArgument);
}

// Random requests of many queues to several peers through pools of several shapes: every queue sees its own
// completions, in order, each once, and the sums at the peers are right.
class SharedPool : public ::testing::TestWithParam<QueuePoolOptions> {};

TEST_P(SharedPool, EachQueueSeesItsOwnCompletionsInOrderAndOnce) {
  constexpr NodeId kPeers = 3;
  constexpr size_t kQueues = 24;
  constexpr int kRounds = 3000;
  const std::string fabric = UniqueFabric(true);
  std::vector<MemoryNode> peers;
  for (NodeId id = 1; id <= kPeers; ++id) peers.push_back(MemoryNode::Start(fabric, id, 4096, id == 1));
  Worker worker = Worker::Start(fabric, GetParam());
  const uint64_t seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);

  struct User {
    std::unique_ptr<VirtualQueue> queue;
    std::deque<WorkRequest> expected;  // signaled and not yet popped
    uint64_t accepted = 0;
    uint64_t additions = 0;
  };
  std::vector<User> users(kQueues);
  for (size_t i = 0; i < kQueues; ++i)
    users[i].queue = worker.Connect(static_cast<NodeId>(i % kPeers + 1), 1 + static_cast<uint32_t>(i * 3));
  const auto pop = [&](User& user) {
    Completion out[7];
    const size_t count = user.queue->Pop(std::span(out).first(1 + random() % 7));
    for (size_t c = 0; c < count; ++c) {
      ASSERT_FALSE(user.expected.empty()) << "a completion nobody asked for";
      EXPECT_EQ(out[c].wr_id, user.expected.front().wr_id);
      EXPECT_EQ(out[c].opcode, user.expected.front().opcode);
      EXPECT_EQ(out[c].status, WcStatus::kSuccess);
      user.expected.pop_front();
    }
  };

  for (int round = 0; round < kRounds; ++round) {
    const size_t index = random() % kQueues;
    User& user = users[index];
    switch (random() % 4) {
      case 0:
      case 1: {
        const Sge sge = worker.Word(index);
        std::vector<WorkRequest> wrs(1 + random() % 12);
        for (size_t i = 0; i < wrs.size(); ++i) {
          wrs[i] = OnWord(*user.queue, random() % 2 ? Opcode::kFetchAdd : Opcode::kRead, &sge, index,
                          index << 32 | (user.accepted + i));
          wrs[i].compare_add = 1;
          wrs[i].flags = random() % 3 ? kSignaled : 0;
        }
        const Status status = random() % 2 ? user.queue->Stage(wrs) : user.queue->Push(wrs);
        if (status == StatusCode::kQueueFull) break;
        ASSERT_OK(status);
        user.accepted += wrs.size();
        for (const WorkRequest& wr : wrs) {
          user.additions += wr.opcode == Opcode::kFetchAdd;
          if (wr.flags & kSignaled) user.expected.push_back(wr);
        }
        break;
      }
      case 2: pop(user); break;
      case 3: worker.pool->Poll(); break;
    }
    ASSERT_FALSE(HasFatalFailure());
  }
  for (User& user : users) {
    while (user.queue->outstanding() != 0) worker.pool->Poll();
    while (!user.expected.empty()) {
      const size_t before = user.expected.size();
      pop(user);
      ASSERT_LT(user.expected.size(), before) << "a completion is missing";
    }
    Completion extra;
    EXPECT_EQ(user.queue->Pop({&extra, 1}), 0u);
  }
  for (size_t i = 0; i < kQueues; ++i) EXPECT_EQ(peers[i % kPeers].words()[i], users[i].additions);
}

INSTANTIATE_TEST_SUITE_P(Shapes, SharedPool,
                         ::testing::Values(QueuePoolOptions{.dc_initiators = 1, .sq_depth = 1},
                                           QueuePoolOptions{.dc_initiators = 1, .sq_depth = 7},
                                           QueuePoolOptions{.dc_initiators = 2, .sq_depth = 512},
                                           QueuePoolOptions{.dc_initiators = 3, .sq_depth = 100}));

}  // namespace
}  // namespace krcore::test
