// RC queues for hot peers: which peer gets one, which loses it, and what becomes of both halves. The test moves the
// time on sw; on sim the time is virtual.
#include "tests/krcore/rc_fixture.h"

namespace krcore::test {
namespace {

using queue::kHeatIntervalNs;

TEST(Heat, ApproachesTheRateAndHalvesInEveryQuietInterval) {
  queue::Heat heat;
  for (int i = 0; i < 20; ++i) heat.Add(1024, 1);
  EXPECT_NEAR(static_cast<double>(heat.average()), 1024, 20);
  heat.Add(0, 1);
  EXPECT_NEAR(static_cast<double>(heat.average()), 512, 10);
  heat.Add(0, 3);
  EXPECT_NEAR(static_cast<double>(heat.average()), 64, 4);
  heat.Add(0, 1'000'000);
  EXPECT_EQ(heat.average(), 0u);
}

TEST(Heat, OneBurstInALongTimeIsNotHot) {
  queue::Heat heat;
  heat.Add(100'000, 1000);
  EXPECT_LE(heat.average(), 100u);
}

TEST_F(RcQueuesTest, AHotPeerGetsOneInTheBackgroundAndAColdOneDoesNot) {
  StartPeers(2);
  Worker worker = StartWorker(4);
  auto hot = worker.Connect(1), cold = worker.Connect(2);
  Heat(worker, {hot.get()});
  EXPECT_TRUE(IsOnRc(*worker.pool, 1));
  EXPECT_FALSE(IsOnRc(*worker.pool, 2));
  EXPECT_EQ(worker.pool->stats().rc_connects, 1u);
  // qconnect uses RC if the pool has an RC queue to the peer.
  auto another = worker.Connect(1);
  peers_[0].words()[5] = 55;
  const Sge sge = worker.Word(9);
  EXPECT_EQ(Execute(*worker.pool, *another, OnWord(*another, Opcode::kRead, &sge, 5)).status, WcStatus::kSuccess);
  EXPECT_EQ(worker.words()[9], 55u);
  EXPECT_EQ(Execute(*worker.pool, *cold, OnWord(*cold, Opcode::kRead, &sge, 5)).status, WcStatus::kSuccess);
}

// Where requests are executed when they are pushed, their completions are found without a poll.
TEST_F(RcQueuesTest, IsMadeForWhoPollsOnlyWhenACompletionIsMissing) {
  StartPeers(1);
  Worker worker = StartWorker(4);
  auto queue = worker.Connect(1);
  for (int i = 0; i < 4000 && !IsOnRc(*worker.pool, 1); ++i) {
    PushAndPop(worker, *queue);
    Pass(kHeatIntervalNs / 8);
    Answer();
  }
  EXPECT_TRUE(IsOnRc(*worker.pool, 1));
}

TEST_F(RcQueuesTest, WhileOneIsInTheMakingPushesAreMostlyDoneAtOnceIfTheyWereBefore) {
  StartPeers(1);
  Worker worker = StartWorker(4);
  auto queue = worker.Connect(1);
  PushAndPop(worker, *queue);  // the next one is like it
  const bool before = PushAndPop(worker, *queue);
  const auto in_the_making = [&] { return RcOf(*worker.pool).has_work(); };
  for (int i = 0; i < 4000 && !in_the_making(); ++i) {
    PushAndPop(worker, *queue);
    Pass(kHeatIntervalNs / 8);
  }
  ASSERT_TRUE(in_the_making());  // and stays so: the peer does not answer
  constexpr uint32_t kRounds = 4;
  uint32_t at_once = 0;
  for (uint32_t i = 0; i < kRounds * queue::kPolledOneIn; ++i) at_once += PushAndPop(worker, *queue) ? 1 : 0;
  EXPECT_TRUE(in_the_making());
  EXPECT_EQ(at_once, before ? kRounds * (queue::kPolledOneIn - 1) : 0);
}

TEST_F(RcQueuesTest, NoneAreMadeWhereNoneAreWanted) {
  StartPeers(1);
  Worker worker = StartWorker(0);
  auto hot = worker.Connect(1);
  EXPECT_EQ(ImplOf(*worker.pool).rc(), nullptr);
  for (int i = 0; i < 5; ++i) {
    Use(worker, *hot);
    Pass(kHeatIntervalNs);
    EXPECT_EQ(Answer(), 0u);
  }
}

TEST_F(RcQueuesTest, WhatTakesAWhileWaitsForAPollThatNobodyWaitsForUnlessNoneComes) {
  StartPeers(1);
  Worker worker = StartWorker(1, UINT32_MAX);
  auto queue = worker.Connect(1);
  const Sge sge = worker.Word(0);
  const WorkRequest read = OnWord(*queue, Opcode::kRead, &sge, 0);
  // A poll with a request in flight, or one that delivers its completion.
  const auto poll_busy = [&] {
    Completion done;
    if (queue->outstanding() == 0) ASSERT_OK(queue->Push({&read, 1}));
    worker.pool->Poll();
    (void)queue->Pop({&done, 1});
  };
  auto& rc = RcOf(*worker.pool);
  const size_t none = worker.pool->memory_bytes();
  ASSERT_TRUE(rc.Connect(CachedPeer(*worker.pool, 1)));
  for (int i = 0; i < 9; ++i) {
    poll_busy();
    Pass(100'000);
  }
  EXPECT_EQ(worker.pool->memory_bytes(), none) << "nothing is made in favour of nobody";
  while (queue->outstanding() != 0) poll_busy();
  worker.pool->Poll();
  const size_t connector = worker.pool->memory_bytes();
  EXPECT_GT(connector, none) << "the first idle poll makes something";
  worker.pool->Poll();
  EXPECT_GT(worker.pool->memory_bytes(), connector) << "and the next one the rest";
  // From here on no poll is idle, and the connection is made all the same.
  for (int i = 0; i < 100 && !IsOnRc(*worker.pool, 1); ++i) {
    poll_busy();
    Answer();
    Pass(100'000);
  }
  EXPECT_TRUE(IsOnRc(*worker.pool, 1));
  rc.Leave(1);
  for (int i = 0; i < 100 && rc.busy(); ++i) {
    poll_busy();
    Pass(100'000);
  }
  EXPECT_FALSE(rc.busy());
}

TEST_F(RcQueuesTest, TheDeskIsNotAmongTheRegionsThatUsersSee) {
  StartPeers(1);
  Worker worker = StartWorker(1);
  auto queue = worker.Connect(1);
  ASSERT_EQ(queue->regions().size(), 1u);
  EXPECT_EQ(queue->regions()[0].tag, 1u);
  EXPECT_EQ(
      peers_[0].node->CreateRegion({.length = 4096, .remote_rights = kAllRights, .tag = peers::kDeskTag}).status(),
      StatusCode::kInvalidArgument);
}

TEST_F(RcQueuesTest, TheLeastRecentlyUsedCooledOneMakesRoomForAHotterPeer) {
  StartPeers(3);
  Worker worker = StartWorker(2);
  auto first = worker.Connect(1), second = worker.Connect(2), third = worker.Connect(3);
  Heat(worker, {first.get(), second.get()});
  ASSERT_TRUE(IsOnRc(*worker.pool, 1));
  ASSERT_TRUE(IsOnRc(*worker.pool, 2));
  // Both cool down. The second is used later than the first.
  Heat(worker, {second.get()}, 1);
  Pass(20 * kHeatIntervalNs);
  Heat(worker, {third.get()}, 20);
  EXPECT_FALSE(IsOnRc(*worker.pool, 1));
  EXPECT_TRUE(IsOnRc(*worker.pool, 2));
  EXPECT_TRUE(IsOnRc(*worker.pool, 3));
  EXPECT_EQ(worker.pool->stats().rc_reclaims, 1u);
  Use(worker, *first);  // on DC again
}

TEST_F(RcQueuesTest, MoreHotPeersThanQueuesDoNotTakeThemFromOneAnother) {
  StartPeers(3);
  Worker worker = StartWorker(2);
  auto first = worker.Connect(1), second = worker.Connect(2), third = worker.Connect(3);
  Heat(worker, {first.get(), second.get()});
  Heat(worker, {first.get(), second.get(), third.get()}, 20);
  EXPECT_FALSE(IsOnRc(*worker.pool, 3));
  EXPECT_EQ(worker.pool->stats().rc_reclaims, 0u);
}

TEST_F(RcQueuesTest, MemoryStaysWhateverTheNumberOfPeersAndMoves) {
  StartPeers(4);
  Worker worker = StartWorker(1, UINT32_MAX);
  std::vector<std::unique_ptr<VirtualQueue>> queues;
  for (NodeId id = 1; id <= 4; ++id) queues.push_back(worker.Connect(id));
  size_t bytes = 0;
  for (int round = 0; round < 20; ++round) {
    const NodeId id = static_cast<NodeId>(1 + round % 4);
    ASSERT_TRUE(RcOf(*worker.pool).Connect(CachedPeer(*worker.pool, id)));
    Settle(worker);
    ASSERT_TRUE(IsOnRc(*worker.pool, id));
    if (round == 0) bytes = worker.pool->memory_bytes();
    EXPECT_EQ(worker.pool->memory_bytes(), bytes);
    Use(worker, *queues[id - 1]);
    RcOf(*worker.pool).Leave(id);
    Settle(worker);
    Use(worker, *queues[id - 1]);
  }
}

TEST_F(RcQueuesTest, APeerThatDoesNotAnswerIsLeftAloneForAWhileAndStaysOnDc) {
  StartPeers(1);
  Worker worker = StartWorker(4);
  auto queue = worker.Connect(1);
  const auto heat_unanswered = [&](int64_t for_ns) {
    for (int64_t passed_ns = 0; passed_ns < for_ns; passed_ns += kHeatIntervalNs) {
      Use(worker, *queue);
      Pass(kHeatIntervalNs);
    }
  };
  heat_unanswered(7 * kSecondNs);
  EXPECT_EQ(worker.pool->stats().rc_refusals, 1u);
  EXPECT_FALSE(RcOf(*worker.pool).busy());
  // The pool's connection, and where DC is software also the node's own to the metadata server.
  const size_t asked = ImplOf(*worker.pool).context().meta != nullptr ? 2 : 1;
  EXPECT_EQ(Answer(), asked) << "what was asked for and given up is cleared away";
  EXPECT_EQ(Answer(), 0u);
  Heat(worker, {queue.get()}, 20);  // too early to ask it again
  EXPECT_FALSE(IsOnRc(*worker.pool, 1));
  Pass(10 * kSecondNs);
  Heat(worker, {queue.get()}, 20);
  EXPECT_TRUE(IsOnRc(*worker.pool, 1));
}

TEST_F(RcQueuesTest, APeerThatDiesWhileItIsAskedIsGivenUpAtOnceAndItsSuccessorIsAsked) {
  StartPeers(2);
  Worker worker = StartWorker(1);
  auto queue = worker.Connect(2);
  ASSERT_TRUE(RcOf(*worker.pool).Connect(CachedPeer(*worker.pool, 2)));
  for (int i = 0; i < 100; ++i) {  // claimed and requested, but nobody answers
    worker.pool->Poll();
    Pass(100'000);
  }
  ASSERT_TRUE(RcOf(*worker.pool).busy());
  peers_.pop_back();
  for (int i = 0; i < kPatientPolls && RcOf(*worker.pool).busy(); ++i) {
    worker.pool->Poll();
    Pass(kOnVerbs ? 100'000 : 1'000'000);  // the pool waits five seconds for an answer
  }
  EXPECT_FALSE(RcOf(*worker.pool).busy());
  EXPECT_EQ(worker.pool->stats().rc_refusals, 1u);

  peers_.push_back(MemoryNode::Start(fabric_, 2, 4096, false, clock(), 8));
  ASSERT_OK(queue->Connect(2, worker.Soon()));
  EXPECT_TRUE(HeatToRc(worker, *queue, 2)) << "the refusal was its predecessor's";
}

TEST_F(RcQueuesTest, APeerWithoutAPlaceRefusesAndOneWithoutADeskIsNotAsked) {
  StartPeers(1, 1);
  peers_.push_back(MemoryNode::Start(fabric_, 2, 4096, false, clock(), 0));
  Worker first = StartWorker(4), second = StartWorker(4);
  auto queue = first.Connect(1), refused = second.Connect(1), without = second.Connect(2);
  Heat(first, {queue.get()});
  ASSERT_TRUE(IsOnRc(*first.pool, 1));
  Heat(second, {refused.get(), without.get()});
  EXPECT_FALSE(IsOnRc(*second.pool, 1));
  EXPECT_FALSE(IsOnRc(*second.pool, 2));
  EXPECT_EQ(second.pool->stats().rc_refusals, 1u);
  // The place comes back.
  RcOf(*first.pool).Leave(1);
  Settle(first);
  Answer();
  ASSERT_TRUE(RcOf(*second.pool).Connect(CachedPeer(*second.pool, 1)));
  Settle(second);
  EXPECT_TRUE(IsOnRc(*second.pool, 1));
}

TEST_F(RcQueuesTest, ThePeersHalfGoesWithThePool) {
  StartPeers(1);
  {
    Worker worker = StartWorker(4);
    auto queue = worker.Connect(1);
    Heat(worker, {queue.get()});
    ASSERT_TRUE(IsOnRc(*worker.pool, 1));
    EXPECT_EQ(Answer(), 0u);
  }
  EXPECT_EQ(Answer(), 1u);
  EXPECT_EQ(Answer(), 0u);
}

TEST_F(RcQueuesTest, WhenThePeerDiesItsQueuesBreakAndItsSuccessorIsReached) {
  StartPeers(2);
  Worker worker = StartWorker(4);
  auto queue = worker.Connect(2), other = worker.Connect(1);
  Heat(worker, {queue.get()});
  ASSERT_TRUE(IsOnRc(*worker.pool, 2));
  const auto peer = CachedPeer(*worker.pool, 2);
  peers_.pop_back();
  const Sge sge = worker.Word(0);
  std::vector<WorkRequest> wrs(3, OnWord(*queue, Opcode::kFetchAdd, &sge, 0));
  ASSERT_OK(queue->Push(wrs));
  const auto done = Await(*worker.pool, *queue, 3);
  ASSERT_EQ(done.size(), 3u);
  EXPECT_EQ(done[0].status, WcStatus::kRetryExceeded);
  EXPECT_EQ(done[1].status, WcStatus::kFlushed);
  EXPECT_EQ(queue->Push({wrs.data(), 1}).code(), StatusCode::kUnavailable);
  Settle(worker);
  EXPECT_EQ(RcOf(*worker.pool).Find(peer->target), nullptr);
  EXPECT_EQ(Execute(*worker.pool, *other, OnWord(*other, Opcode::kRead, &sge, 0)).status, WcStatus::kSuccess);

  peers_.push_back(MemoryNode::Start(fabric_, 2, 4096, false, clock(), 8));
  ASSERT_OK(queue->Connect(2, worker.Soon()));
  EXPECT_TRUE(HeatToRc(worker, *queue, 2)) << "the successor is hot too";
}

TEST_F(RcQueuesTest, WhatIsStagedOnTheNewQueueBehindAWriteFlushedOnTheOldOneIsFlushedToo) {
  StartPeers(2);
  Worker worker;
  worker.node = OpenNode(fabric_, kNoNode, clock());
  worker.Prepare({.dc_initiators = 1, .rc_hot_wrs = UINT32_MAX}, 4096);
  auto good = worker.Connect(1), bad = worker.Connect(2);
  peers_[1].region.reset();  // its requests pass the checks and fail at the NIC
  const Sge sge = worker.Word(0);
  const auto stage = [&](VirtualQueue& queue, Opcode opcode, uint64_t wr_id) {
    const WorkRequest wr = OnWord(queue, opcode, &sge, 0, wr_id);
    ASSERT_OK(queue.Stage({&wr, 1}));
  };
  stage(*bad, Opcode::kRead, 0);
  stage(*good, Opcode::kFetchAdd, 1);
  worker.pool->Flush();
  // The queues move before the pool has learned of the failure.
  queue::RcQueues& rc = RcOf(*worker.pool);
  ASSERT_TRUE(rc.Connect(CachedPeer(*worker.pool, 1)));
  for (int i = 0; i < 1000 && rc.busy(); ++i) {
    rc.Work(true);
    Answer();
    Pass(10'000);
  }
  ASSERT_TRUE(IsOnRc(*worker.pool, 1));
  stage(*good, Opcode::kFetchAdd, 2);
  stage(*good, Opcode::kRead, 3);
  const auto done = Await(*worker.pool, *good, 3);
  ASSERT_EQ(done.size(), 3u);
  for (uint64_t i = 0; i < 3; ++i) EXPECT_EQ(done[i].wr_id, i + 1);
  EXPECT_EQ(done[0].status, WcStatus::kFlushed);
  EXPECT_EQ(done[1].status, WcStatus::kFlushed);
  EXPECT_EQ(done[2].status, WcStatus::kSuccess);
  EXPECT_LE(peers_[0].words()[0], 1u) << "the second never ran";
}

TEST_F(RcQueuesTest, WhatWasPushedDuringAMoveIsExecutedThoughItsQueueIsDestroyed) {
  StartPeers(1);
  Worker worker = StartWorker(1, UINT32_MAX);
  auto queue = worker.Connect(1);
  const Sge sge = worker.Word(0);
  const WorkRequest wr = OnWord(*queue, Opcode::kFetchAdd, &sge, 0);
  WorkRequest add = wr;
  add.compare_add = 1;
  ASSERT_OK(queue->Push({&add, 1}));
  queue::RcQueues& rc = RcOf(*worker.pool);
  ASSERT_TRUE(rc.Connect(CachedPeer(*worker.pool, 1)));
  for (int i = 0; i < 1000 && rc.busy(); ++i) {
    rc.Work(true);
    Answer();
    Pass(10'000);
  }
  ASSERT_TRUE(rc.any_blocked()) << "the pool has not seen the completion of the first";
  ASSERT_OK(queue->Push({&add, 1}));
  ASSERT_OK(queue->Push({&add, 1}));
  queue.reset();
  EXPECT_EQ(peers_[0].words()[0], 3u);
}

TEST_F(RcQueuesTest, AQueueDestroyedInTheMiddleOfAMoveIsNotWrittenTo) {
  StartPeers(1);
  Worker worker = StartWorker(2, UINT32_MAX);
  for (int round = 0; round < (kOnVerbs ? 46 : 200); ++round) {
    auto stays = worker.Connect(1), goes = worker.Connect(1);
    const Sge sge = worker.Word(1);
    const auto stage = [&](VirtualQueue& queue, size_t count) {
      const std::vector<WorkRequest> wrs(count, OnWord(queue, Opcode::kFetchAdd, &sge, 0));
      ASSERT_OK(queue.Stage(wrs));
    };
    auto& rc = RcOf(*worker.pool);
    stage(*stays, 3);
    stage(*goes, 5);
    if (round % 2 == 0) {
      ASSERT_TRUE(rc.Connect(CachedPeer(*worker.pool, 1)));
    } else {
      rc.Leave(1);
    }
    for (int polls = 0; polls < round % 23; ++polls) {
      worker.pool->Flush();
      stage(*goes, 1);
      worker.pool->Poll();
      Answer();
      LetRequestsRun(*clock());
    }
    goes.reset();
    for (const Completion& done : Await(*worker.pool, *stays, 3)) EXPECT_EQ(done.status, WcStatus::kSuccess);
    Settle(worker);
  }
}

}  // namespace
}  // namespace krcore::test
