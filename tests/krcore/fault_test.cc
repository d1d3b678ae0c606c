// Remote faults break a shared QP; users that did nothing wrong must hardly notice.
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/krcore/fixture.h"
#include "tests/support/kill_process.h"

namespace krcore::test {
namespace {

// Two peers behind one initiator. The victim's region is deregistered after the queues are connected, so that
// requests to it pass the checks and fail at the NIC.
class BrokenQueue : public ::testing::Test {
 protected:
  void SetUp() override {
    steady_ = MemoryNode::Start(fabric_, 1, 4096, true);
    victim_ = MemoryNode::Start(fabric_, 2, 4096, false);
    worker_ = Worker::Start(fabric_, {.dc_initiators = 1});
    bad_ = worker_.Connect(2);
    good_ = worker_.Connect(1);
    for (int i = 0; i < 8; ++i) steady_.words()[i] = 100 + i;
    victim_.region.reset();
  }
  WorkRequest Request(VirtualQueue& queue, Opcode opcode, size_t word, uint64_t wr_id, uint8_t flags = kSignaled) {
    sges_[wr_id % 64] = worker_.Word(wr_id % 64);
    WorkRequest wr = OnWord(queue, opcode, &sges_[wr_id % 64], word, wr_id);
    wr.compare_add = 1;
    wr.flags = flags;
    return wr;
  }
  void Stage(VirtualQueue& queue, const WorkRequest& wr) { ASSERT_OK(queue.Stage({&wr, 1})); }
  // Expects that a flushed atomic on the word was never repeated. Only sw promises that it did not happen at all,
  // because peers are served in no particular order.
  void ExpectOnceAtMost(size_t word) {
    EXPECT_GE(steady_.words()[word], 100 + word);
    EXPECT_LE(steady_.words()[word], 100 + word + (std::string_view(kRnic) == "sw" ? 0 : 1));
  }

  const std::string fabric_ = UniqueFabric(true);
  MemoryNode steady_, victim_;
  Worker worker_;
  std::unique_ptr<VirtualQueue> bad_, good_;
  Sge sges_[64] = {};
};

TEST_F(BrokenQueue, OnlyTheSenderOfTheFailedRequestSeesAnError) {
  Stage(*bad_, Request(*bad_, Opcode::kRead, 0, 1));
  Stage(*bad_, Request(*bad_, Opcode::kRead, 0, 2));
  Stage(*good_, Request(*good_, Opcode::kRead, 3, 3));
  const auto failed = Await(*worker_.pool, *bad_, 2);
  EXPECT_EQ(failed[0].wr_id, 1u);
  EXPECT_EQ(failed[0].status, WcStatus::kRemoteAccessError);
  EXPECT_EQ(failed[1].wr_id, 2u);
  EXPECT_EQ(failed[1].status, WcStatus::kFlushed);
  const auto fine = Await(*worker_.pool, *good_, 1);
  EXPECT_EQ(fine[0].status, WcStatus::kSuccess);
  EXPECT_EQ(worker_.words()[3], 103u) << "the flushed READ was posted again";
  EXPECT_EQ(worker_.pool->stats().broken_queues, 1u);
  EXPECT_EQ(worker_.pool->stats().reposted_reads, 1u);
}

TEST_F(BrokenQueue, WhatWasPostedBeforeTheFailureSucceeds) {
  Stage(*good_, Request(*good_, Opcode::kFetchAdd, 0, 1));
  Stage(*bad_, Request(*bad_, Opcode::kRead, 0, 2));
  EXPECT_EQ(Await(*worker_.pool, *good_, 1)[0].status, WcStatus::kSuccess);
  EXPECT_EQ(steady_.words()[0], 101u);
}

TEST_F(BrokenQueue, FlushedWritesAreReportedOnceInOrderAmongReadsThatSucceed) {
  Stage(*bad_, Request(*bad_, Opcode::kRead, 0, 0));
  Stage(*good_, Request(*good_, Opcode::kRead, 1, 10));
  Stage(*good_, Request(*good_, Opcode::kFetchAdd, 2, 11));
  Stage(*good_, Request(*good_, Opcode::kRead, 3, 12));
  Stage(*good_, Request(*good_, Opcode::kWrite, 4, 13, 0));  // unsignaled: an error is reported all the same
  Stage(*good_, Request(*good_, Opcode::kRead, 5, 14));
  const auto done = Await(*worker_.pool, *good_, 5);
  const WcStatus expected[] = {WcStatus::kSuccess, WcStatus::kFlushed, WcStatus::kSuccess, WcStatus::kFlushed,
                               WcStatus::kSuccess};
  for (size_t i = 0; i < 5; ++i) {
    EXPECT_EQ(done[i].wr_id, 10 + i);
    EXPECT_EQ(done[i].status, expected[i]) << i;
  }
  ExpectOnceAtMost(2);
  EXPECT_EQ(worker_.words()[14], 105u);
  EXPECT_EQ(good_->outstanding(), 0u);
}

TEST_F(BrokenQueue, FlushedWritesBehindEverythingAreDeliveredWithoutFurtherTraffic) {
  Stage(*bad_, Request(*bad_, Opcode::kRead, 0, 0));
  Stage(*good_, Request(*good_, Opcode::kWrite, 2, 1));
  Stage(*good_, Request(*good_, Opcode::kWrite, 2, 2));
  const auto done = Await(*worker_.pool, *good_, 2);
  EXPECT_EQ(done[0].wr_id, 1u);
  EXPECT_EQ(done[1].wr_id, 2u);
  EXPECT_EQ(done[1].status, WcStatus::kFlushed);
}

TEST_F(BrokenQueue, AWriteStagedBehindAFlushedOneIsFlushedToo) {
  Stage(*bad_, Request(*bad_, Opcode::kRead, 0, 0));
  Stage(*good_, Request(*good_, Opcode::kWrite, 6, 1));
  worker_.pool->Flush();
  Stage(*good_, Request(*good_, Opcode::kFetchAdd, 7, 2));  // before the pool has learned of the failure
  worker_.pool->Flush();
  const auto done = Await(*worker_.pool, *good_, 2);
  EXPECT_EQ(done[0].status, WcStatus::kFlushed);
  EXPECT_EQ(done[1].status, WcStatus::kFlushed);
  ExpectOnceAtMost(7);
  // The queue itself is still usable.
  const uint64_t before = steady_.words()[7];
  EXPECT_EQ(Execute(*worker_.pool, *good_, Request(*good_, Opcode::kFetchAdd, 7, 3)).status, WcStatus::kSuccess);
  EXPECT_EQ(steady_.words()[7], before + 1);
}

TEST_F(BrokenQueue, BrokenQueueRefusesUntilConnectedAgain) {
  const WorkRequest wr = Request(*bad_, Opcode::kRead, 0, 1);
  EXPECT_EQ(Execute(*worker_.pool, *bad_, wr).status, WcStatus::kRemoteAccessError);
  EXPECT_EQ(bad_->Push({&wr, 1}).code(), StatusCode::kUnavailable);
  victim_.region = victim_.node->CreateRegion({.length = 4096, .remote_rights = kAllRights}).value();
  ASSERT_OK(victim_.node->Publish(worker_.Soon()));
  ASSERT_OK(bad_->Connect(2, worker_.Soon()));
  EXPECT_EQ(Execute(*worker_.pool, *bad_, Request(*bad_, Opcode::kRead, 0, 2)).status, WcStatus::kSuccess);
}

TEST_F(BrokenQueue, ManyFailuresInOneDoorbellAllComeBack) {
  std::vector<std::unique_ptr<VirtualQueue>> victims;
  victims.push_back(std::move(bad_));
  for (int i = 1; i < 10; ++i) victims.push_back(worker_.Connect(2));
  for (size_t i = 0; i < victims.size(); ++i) {
    Stage(*victims[i], Request(*victims[i], Opcode::kRead, 0, i));
    Stage(*good_, Request(*good_, Opcode::kRead, i % 8, 20 + i));
  }
  const auto done = Await(*worker_.pool, *good_, victims.size());
  for (size_t i = 0; i < done.size(); ++i) {
    EXPECT_EQ(done[i].wr_id, 20 + i);
    EXPECT_EQ(done[i].status, WcStatus::kSuccess);
  }
  for (auto& victim : victims) EXPECT_EQ(Await(*worker_.pool, *victim, 1)[0].status, WcStatus::kRemoteAccessError);
}

TEST_F(BrokenQueue, QueueDestroyedBeforeItsFailureIsKnownIsNotWrittenTo) {
  for (int i = 0; i < 5; ++i) Stage(*bad_, Request(*bad_, Opcode::kRead, 0, i));
  worker_.pool->Flush();
  Stage(*good_, Request(*good_, Opcode::kRead, 1, 10));
  bad_.reset();
  EXPECT_EQ(Await(*worker_.pool, *good_, 1)[0].status, WcStatus::kSuccess);
}

TEST_F(BrokenQueue, MoreThanThePhysicalQueueHoldsSurvivesAFailureInTheMiddle) {
  Worker small = Worker::Start(fabric_, {.dc_initiators = 1, .sq_depth = 8});
  victim_.region = victim_.node->CreateRegion({.length = 4096, .remote_rights = kAllRights}).value();
  ASSERT_OK(victim_.node->Publish(small.Soon()));
  auto bad = small.Connect(2, 256);
  auto good = small.Connect(1, 256);
  victim_.region.reset();
  const Sge sge = small.Word(0);
  const WorkRequest failing = OnWord(*bad, Opcode::kRead, &sge, 0);
  ASSERT_OK(bad->Stage(std::vector<WorkRequest>(3, failing)));
  const std::vector<WorkRequest> reads(100, OnWord(*good, Opcode::kRead, &sge, 0));
  ASSERT_OK(good->Stage(reads));
  for (const Completion& done : Await(*small.pool, *good, 100)) EXPECT_EQ(done.status, WcStatus::kSuccess);
  Await(*small.pool, *bad, 3);
  // The same, with the failure inside one long batch of the failing queue: the requests that were accepted are flushed.
  ASSERT_OK(bad->Connect(2, small.Soon()));
  ASSERT_TRUE(bad->regions().size() == 1) << "the record still lists the region";
  ASSERT_OK(bad->Stage(std::vector<WorkRequest>(100, failing)));
  const auto failed = Await(*small.pool, *bad, 100);
  EXPECT_EQ(failed[0].status, WcStatus::kRemoteAccessError);
  for (size_t i = 1; i < failed.size(); ++i) EXPECT_EQ(failed[i].status, WcStatus::kFlushed);
}

// A peer in a process of its own, which can be killed.
class RemoteProcess {
 public:
  RemoteProcess(const std::string& fabric, NodeId id, bool host_meta) {
    int ready[2];
    if (pipe(ready) != 0) ADD_FAILURE() << "pipe";
    pid_ = fork();
    if (pid_ == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);  // a failed test leaves nothing behind
      MemoryNode memory = MemoryNode::Start(fabric, id, 4096, host_meta);
      const char ok = memory.region && !::testing::Test::HasFailure() ? '1' : '0';
      if (ok == '1') memory.words()[0] = 1000 + id;
      const uint32_t incarnation = memory.node ? memory.node->incarnation() : 0;
      if (write(ready[1], &ok, 1) != 1 || write(ready[1], &incarnation, 4) != 4) _exit(2);
      for (;;) pause();
    }
    char ok = '0';
    EXPECT_EQ(read(ready[0], &ok, 1), 1);
    EXPECT_EQ(read(ready[0], &incarnation_, 4), 4);
    EXPECT_EQ(ok, '1') << "node " << id << " did not start";
    close(ready[0]);
    close(ready[1]);
  }
  ~RemoteProcess() { Kill(); }
  void Kill() {
    if (pid_ <= 0) return;
    (void)testing_support::KillProcess(pid_);
    waitpid(pid_, nullptr, 0);
    pid_ = -1;
  }

  uint32_t incarnation() const { return incarnation_; }

 private:
  pid_t pid_ = -1;
  uint32_t incarnation_ = 0;
};

class DeadPeer : public ::testing::Test {
 protected:
  void SetUp() override {
    SKIP_IF_SIMULATED("one process; tests/rnic/sim has its own deaths");
    if (kOnVerbs) Found(fabric_);
  }
  void TearDown() override {
    worker_.pool.reset();  // in reverse order of creation
    worker_.local.reset();
    worker_.node.reset();
    for (auto& peer : peers_) peer.reset();
    EXPECT_TRUE(CleanStaleFabrics("sw", fabric_, true).ok());
  }
  void Start(uint32_t initiators) {
    for (NodeId id = 1; id <= 3; ++id) peers_[id] = std::make_unique<RemoteProcess>(fabric_, id, id == 1);
    worker_ = Worker::Start(fabric_, {.dc_initiators = initiators});
  }
  // Uses the queue until a request to the peer fails. The kernel reports a death at once; the fabric is asked now and
  // then.
  Completion AwaitFailure(VirtualQueue& queue) {
    const Sge sge = worker_.Word(0);
    const Deadline deadline = worker_.Soon();
    Completion done;
    do {
      done = Execute(*worker_.pool, queue, OnWord(queue, Opcode::kRead, &sge, 0));
    } while (done.status == WcStatus::kSuccess && !deadline.Passed(worker_.node->clock()));
    return done;
  }

  // Returns whether the death is confirmed in time: at once on sw, and on verbs when nothing that the process has
  // posted can be executed any more.
  bool AwaitConfirmedDeath(NodeId id, uint32_t incarnation) {
    const Deadline deadline = worker_.Soon();
    Clock& clock = worker_.node->clock();
    for (uint32_t spins = 0; !worker_.node->IsConfirmedDead(id, incarnation); ++spins) {
      if (deadline.Passed(clock)) return false;
      clock.Relax(spins);
    }
    return true;
  }

  const std::string fabric_ = UniqueFabric(false);
  std::unique_ptr<RemoteProcess> peers_[4];
  Worker worker_;
};

TEST_F(DeadPeer, ItsQueueGetsAnErrorAndAnotherPeersQueueGoesOn) {
  Start(1);
  auto doomed = worker_.Connect(2);
  auto doomed_too = worker_.Connect(2);
  auto other = worker_.Connect(3);
  const Sge sge = worker_.Word(0);
  EXPECT_EQ(Execute(*worker_.pool, *doomed, OnWord(*doomed, Opcode::kRead, &sge, 0)).status, WcStatus::kSuccess);
  EXPECT_EQ(worker_.words()[0], 1002u);
  peers_[2]->Kill();
  EXPECT_EQ(AwaitFailure(*doomed).status, WcStatus::kRetryExceeded);
  const WorkRequest wr = OnWord(*doomed_too, Opcode::kRead, &sge, 0);
  EXPECT_EQ(doomed_too->Push({&wr, 1}).code(), StatusCode::kUnavailable) << "quarantined with its peer";
  EXPECT_TRUE(AwaitConfirmedDeath(2, peers_[2]->incarnation()));
  EXPECT_EQ(doomed->Connect(2, worker_.Soon()).code(), StatusCode::kUnavailable) << "its record is of a dead process";
  auto fresh = worker_.pool->CreateQueue(8).value();
  EXPECT_EQ(fresh->Connect(2, worker_.Soon()).code(), StatusCode::kUnavailable) << "the cache has forgotten it";
  for (int i = 0; i < 100; ++i) {
    ASSERT_EQ(Execute(*worker_.pool, *other, OnWord(*other, Opcode::kRead, &sge, 0)).status, WcStatus::kSuccess);
    ASSERT_EQ(worker_.words()[0], 1003u);
  }
  EXPECT_EQ(worker_.pool->stats().broken_queues, 1u);

  peers_[2] = std::make_unique<RemoteProcess>(fabric_, 2, false);  // takes over its predecessor's record
  ASSERT_OK(doomed->Connect(2, worker_.Soon()));
  EXPECT_EQ(Execute(*worker_.pool, *doomed, OnWord(*doomed, Opcode::kRead, &sge, 0)).status, WcStatus::kSuccess);
  EXPECT_EQ(worker_.words()[0], 1002u);
}

TEST_F(DeadPeer, DeadMetadataServerIsReplacedByAnother) {
  Start(2);
  auto known = worker_.Connect(2);
  peers_[1]->Kill();
  ASSERT_TRUE(AwaitConfirmedDeath(1, peers_[1]->incarnation()));
  auto queue = worker_.pool->CreateQueue(8).value();
  const Status without = queue->Connect(3, worker_.Soon());
  EXPECT_EQ(without.code(), StatusCode::kUnavailable) << without.ToString();
  ASSERT_OK(queue->Connect(2, worker_.Soon())) /* from the cache */;

  MemoryNode successor = MemoryNode::Start(fabric_, 1, 4096, true);
  EXPECT_EQ(queue->Connect(3, worker_.Soon()).code(), StatusCode::kNotFound) << "nobody has published there yet";
  ASSERT_OK(queue->Connect(1, worker_.Soon()));
}

TEST_F(DeadPeer, DeadOwnersServiceIsTakenOverAndALivingOnesIsNot) {
  Start(1);
  const std::byte mine[3] = {std::byte{1}, std::byte{2}, std::byte{3}};
  int ready[2];
  ASSERT_EQ(pipe(ready), 0);
  const pid_t publisher = fork();
  if (publisher == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    auto node = OpenNode(fabric_, kNoNode);
    const std::byte theirs{9};
    const bool ok = node && node->PublishService("directory", {&theirs, 1}, Deadline::Never()).ok();
    const char byte = ok ? '1' : '0';
    if (write(ready[1], &byte, 1) != 1) _exit(2);
    for (;;) pause();
  }
  char ok = '0';
  ASSERT_EQ(read(ready[0], &ok, 1), 1);
  EXPECT_EQ(ok, '1');
  close(ready[0]);
  close(ready[1]);
  EXPECT_EQ(worker_.node->LookupService("directory", worker_.Soon()).value().at(0), std::byte{9});
  EXPECT_EQ(worker_.node->PublishService("directory", mine, worker_.Soon()).code(), StatusCode::kExists);
  (void)testing_support::KillProcess(publisher);
  waitpid(publisher, nullptr, 0);
  const Deadline deadline = worker_.Soon();
  Status taken;
  do {  // until the death is confirmed
    taken = worker_.node->PublishService("directory", mine, worker_.Soon());
  } while (kOnVerbs && taken == StatusCode::kExists && !deadline.Passed(worker_.node->clock()));
  ASSERT_OK(taken);
  EXPECT_EQ(worker_.node->LookupService("directory", worker_.Soon()).value().size(), 3u);
}

}  // namespace
}  // namespace krcore::test
