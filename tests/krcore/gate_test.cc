// PostGate and DiscardStaged: when a pool may ring doorbells, and what becomes of requests that wait.
#include <array>
#include <memory>
#include <vector>

#include "tests/krcore/fixture.h"

namespace krcore::test {
namespace {

class Gates : public OneMemoryNode {};

// Polls and pops for a while, whatever completes.
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

TEST_F(Gates, AShutGateKeepsWhatIsStagedAndLetsItGoWhenItOpens) {
  Worker worker = Worker::Start(fabric_);
  auto queue = worker.Connect(1);
  const Sge sge = worker.Word(0);
  const WorkRequest wr = OnWord(*queue, Opcode::kWrite, &sge, 3, 55);
  // Twice: a request like the one before goes another way where the NIC executes requests when they are posted.
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

TEST_F(Gates, DiscardedRequestsCompleteInTheirTurnAndAreNeverCarriedOut) {
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

TEST_F(Gates, MoreThanAQueueHoldsIsRefusedWhileTheGateIsShutAllOrNone) {
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

}  // namespace
}  // namespace krcore::test
