// VirtualQueues over a shared pool: verbs, order, silent completions, overflow, and their end.
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

class DataPath : public OneMemoryNode {};

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
  ASSERT_OK(Post(*worker.pool, *queue, all.subspan(1, kDepth - 4)));
  gate.open = false;
  ASSERT_OK(queue->Stage(all.subspan(kDepth, 2)));  // so that the ring does not restart when the first are done
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

}  // namespace
}  // namespace krcore::test
