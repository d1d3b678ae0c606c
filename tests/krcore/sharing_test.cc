// Several users of shared queues at a time, some of them wrong. Every queue sees its own completions, in order, once.
// What is wrong is refused with its code. Nothing is executed twice. The physical QP stays in RTS, or is replaced
// within a bound when a peer dies.
#include <array>
#include <deque>
#include <random>
#include <thread>

#include "tests/krcore/fixture.h"
#include "tests/rnic/sw_child.h"

namespace krcore::test {
namespace {

constexpr uint32_t kQueues = 6;
constexpr uint32_t kDepth = 24;

// One process or thread with several queues to two peers. It counts what it has reason to believe was executed.
class User {
 public:
  // FETCH_ADDs go to the word `first_word` + queue of the queue's peer.
  User(const std::string& fabric, size_t first_word, const QueuePoolOptions& options, std::array<NodeId, 2> peers)
      : first_word_(first_word), worker_(Worker::Start(fabric, options)) {
    for (uint32_t i = 0; i < kQueues; ++i) queues_[i].queue = worker_.Connect(peers[i % 2], kDepth);
  }

  void Run(uint64_t seed, int steps) {
    std::mt19937_64 random(seed);
    for (int step = 0; step < steps && !::testing::Test::HasFatalFailure(); ++step) {
      const uint32_t which = random() % kQueues;
      switch (random() % 6) {
        case 0: PushBad(which, random); break;
        case 1:
        case 2: PushGood(which, random); break;
        case 3: Pop(which); break;
        default: worker_.pool->Poll(); break;
      }
    }
    Settle();
  }
  // Polls until nothing is outstanding.
  void Settle() {
    Clock& clock = worker_.node->clock();
    const Deadline deadline = Deadline::After(clock, 20 * kSecondNs);
    for (uint32_t spins = 0; !deadline.Passed(clock); ++spins) {
      worker_.pool->Poll();
      bool idle = true;
      for (uint32_t i = 0; i < kQueues; ++i) {
        Pop(i);
        idle &= queues_[i].queue->outstanding() == 0 && queues_[i].expected.empty();
      }
      if (idle) return;
      clock.Relax(spins);
    }
    ADD_FAILURE() << "completions are missing";
  }

  // FETCH_ADDs of queue i that were reported done, and those whose outcome is unknown.
  uint64_t done(uint32_t i) const { return queues_[i].done; }
  uint64_t unknown(uint32_t i) const { return queues_[i].unknown; }
  uint64_t refused() const { return refused_; }
  uint64_t overflowed() const { return overflowed_; }
  uint64_t failures(uint32_t i) const { return queues_[i].failures; }
  Worker& worker() { return worker_; }

 private:
  struct Queue {
    std::unique_ptr<VirtualQueue> queue;
    std::deque<WorkRequest> expected;  // every request is signaled
    uint64_t next_id = 0, done = 0, unknown = 0, failures = 0;
  };

  WorkRequest Good(uint32_t which, std::mt19937_64& random) {
    Queue& queue = queues_[which];
    sges_[which] = worker_.Word(which);
    const bool add = random() % 2 == 0;
    WorkRequest wr = OnWord(*queue.queue, add ? Opcode::kFetchAdd : Opcode::kRead, &sges_[which], first_word_ + which);
    wr.compare_add = 1;
    return wr;
  }
  void PushGood(uint32_t which, std::mt19937_64& random) {
    Queue& queue = queues_[which];
    // Sometimes more than the queue holds.
    std::vector<WorkRequest> wrs(1 + random() % (kDepth + 6));
    for (size_t i = 0; i < wrs.size(); ++i) {
      wrs[i] = Good(which, random);
      wrs[i].wr_id = uint64_t{which} << 32 | (queue.next_id + i);
    }
    size_t bad = 0;
    const Status pushed = random() % 2 ? queue.queue->Push(wrs, &bad) : queue.queue->Stage(wrs, &bad);
    if (pushed == StatusCode::kQueueFull) {
      ++overflowed_;
      ASSERT_LE(bad, kDepth);
      return;
    }
    if (pushed == StatusCode::kUnavailable) return;  // quarantined with its peer
    ASSERT_OK(pushed);
    queue.next_id += wrs.size();
    queue.expected.insert(queue.expected.end(), wrs.begin(), wrs.end());
  }
  void PushBad(uint32_t which, std::mt19937_64& random) {
    Queue& queue = queues_[which];
    std::vector<WorkRequest> wrs = {Good(which, random), Good(which, random)};
    Sge sge = sges_[which];
    WorkRequest& bad = wrs[1];
    bad.sg_list = &sge;
    StatusCode code = StatusCode::kInvalidArgument;
    switch (random() % 8) {
      case 0: bad.opcode = static_cast<Opcode>(99); break;
      case 1: bad.num_sge = 77; break;
      case 2: bad.flags = 0x80; break;
      case 3:
        bad.opcode = Opcode::kFetchAdd;
        bad.remote_addr += 4;
        break;
      case 4:
        sge.lkey ^= 0x3000;  // another process's key, for all that this one knows
        code = StatusCode::kPermissionDenied;
        break;
      case 5:
        bad.rkey ^= 0x100;
        code = StatusCode::kPermissionDenied;
        break;
      case 6:
        bad.opcode = Opcode::kRead;
        sge.length = UINT32_MAX;
        code = StatusCode::kPermissionDenied;
        break;
      default:
        bad.opcode = Opcode::kSend;
        code = StatusCode::kBadState;
        break;
    }
    size_t index = 99;
    const StatusCode got = queue.queue->Push(wrs, &index).code();
    if (got == StatusCode::kQueueFull || got == StatusCode::kUnavailable) return;
    ASSERT_EQ(got, code);
    ASSERT_EQ(index, 1u);
    ++refused_;
  }
  void Pop(uint32_t which) {
    Queue& queue = queues_[which];
    Completion completions[9];
    const size_t count = queue.queue->Pop(completions);
    for (size_t i = 0; i < count; ++i) {
      ASSERT_FALSE(queue.expected.empty()) << "a completion nobody waits for";
      const WorkRequest& wr = queue.expected.front();
      ASSERT_EQ(completions[i].wr_id, wr.wr_id) << "another's, or out of order";
      const bool success = completions[i].status == WcStatus::kSuccess;
      if (success) {
        ASSERT_EQ(completions[i].opcode, wr.opcode);
      }
      if (wr.opcode == Opcode::kFetchAdd) ++(success ? queue.done : queue.unknown);
      queue.failures += !success;
      queue.expected.pop_front();
    }
  }

  const size_t first_word_;
  Worker worker_;
  std::array<Queue, kQueues> queues_;
  std::array<Sge, kQueues> sges_{};
  uint64_t refused_ = 0, overflowed_ = 0;
};

TEST(SharedQp, TwoThreadsWithGoodBadAndOverflowingRequestsDoNotMeet) {
  SKIP_IF_SIMULATED("a World belongs to one thread");
  const std::string fabric = UniqueFabric(true);
  MemoryNode first = MemoryNode::Start(fabric, 1, 4096, true);
  MemoryNode second = MemoryNode::Start(fabric, 2, 4096, false);
  // One shallow initiator each: its users overflow it all the time.
  User users[2] = {{fabric, 0, {.dc_initiators = 1, .sq_depth = 40}, {1, 2}},
                   {fabric, 100, {.dc_initiators = 1, .sq_depth = 40}, {1, 2}}};
  std::thread other([&] { users[1].Run(2, 20'000); });
  users[0].Run(1, 20'000);
  other.join();
  for (int u = 0; u < 2; ++u) {
    EXPECT_GT(users[u].refused(), 500u);
    EXPECT_GT(users[u].overflowed(), 50u);
    EXPECT_EQ(users[u].worker().pool->stats().host_queues, 1u) << "the host's, so both users have the same one";
    EXPECT_EQ(users[u].worker().pool->stats().broken_queues, 0u) << "the physical QP stayed in RTS";
    for (uint32_t i = 0; i < kQueues; ++i) {
      MemoryNode& peer = i % 2 == 0 ? first : second;
      EXPECT_EQ(users[u].unknown(i), 0u);
      EXPECT_GT(users[u].done(i), 100u);
      EXPECT_EQ(peer.words()[100 * u + i], users[u].done(i)) << "each executed once";
    }
  }
}

class SharedFabric : public ::testing::Test {
 protected:
  void SetUp() override { SKIP_IF_SIMULATED("processes"); }
  void TearDown() override {
    if (kSimulated) return;
    EXPECT_TRUE(CleanStaleFabrics("sw", fabric_, true).ok());
  }
  // Memory node 2, in a process that will be killed.
  std::unique_ptr<rnic::testing::Child> DoomedPeer() {
    auto child = std::make_unique<rnic::testing::Child>([this](auto& self) {
      MemoryNode memory = MemoryNode::Start(fabric_, 2, 4096, false);
      if (::testing::Test::HasFailure()) _exit(1);
      self.Ready();
      self.Sleep();
    });
    EXPECT_TRUE(child->WaitReady());
    return child;
  }
  const std::string fabric_ = UniqueFabric(false);
};

TEST_F(SharedFabric, TwoProcessesWithGoodBadAndOverflowingRequestsDoNotMeet) {
  MemoryNode first = MemoryNode::Start(fabric_, 1, 4096, true);
  MemoryNode second = MemoryNode::Start(fabric_, 2, 4096, false);
  // Words 200 u + i hold what was counted; the parent reads them afterwards.
  std::vector<std::unique_ptr<rnic::testing::Child>> children;
  for (size_t u = 0; u < 2; ++u) {
    children.push_back(std::make_unique<rnic::testing::Child>([&, u](auto& self) {
      self.Ready();
      User user(fabric_, 100 * u, {.dc_initiators = 1, .sq_depth = 40}, {1, 2});
      user.Run(u, 12'000);
      EXPECT_EQ(user.worker().pool->stats().host_queues, 1u);
      EXPECT_EQ(user.worker().pool->stats().broken_queues, 0u);
      EXPECT_GT(user.refused(), 200u);
      EXPECT_GT(user.overflowed(), 20u);
      auto queue = user.worker().Connect(1);
      for (uint32_t i = 0; i < kQueues; ++i) {
        EXPECT_EQ(user.unknown(i), 0u);
        user.worker().words()[20] = user.done(i);
        const Sge sge = user.worker().Word(20);
        Execute(*user.worker().pool, *queue, OnWord(*queue, Opcode::kWrite, &sge, 300 + 10 * u + i));
      }
    }));
  }
  for (auto& child : children) EXPECT_EQ(child->Wait(), 0);
  for (size_t u = 0; u < 2; ++u) {
    for (uint32_t i = 0; i < kQueues; ++i) {
      MemoryNode& peer = i % 2 == 0 ? first : second;
      EXPECT_EQ(peer.words()[100 * u + i], first.words()[300 + 10 * u + i]) << "user " << u << " queue " << i;
      EXPECT_GT(peer.words()[100 * u + i], 50u);
    }
  }
}

// The peer of every other queue dies in the middle. Its queues get errors. The others' requests complete or, if they
// were flushed with the QP, say so. The counts show that nothing was executed twice.
TEST_F(SharedFabric, APeerKilledInTheMiddleCostsTheOthersNothingButUnknownOutcomesThatAreTrue) {
  MemoryNode steady = MemoryNode::Start(fabric_, 1, 4096, true);
  for (int round = 0; round < 6; ++round) {
    auto doomed = DoomedPeer();
    std::fill_n(steady.words(), 512, 0);
    User user(fabric_, 0, {.dc_initiators = 1, .sq_depth = 40}, {1, 2});
    user.Run(10 + round, 500);
    doomed->Kill();
    Clock& clock = user.worker().node->clock();
    const int64_t killed_ns = clock.NowNs();
    int64_t noticed_ns = 0;
    for (int i = 0; i < 4000 && noticed_ns == 0; ++i) {
      user.Run(1000 * round + i, 50);
      if (user.worker().pool->stats().broken_queues > 0) noticed_ns = clock.NowNs();
    }
    ASSERT_GT(noticed_ns, 0) << "nobody noticed";
    EXPECT_LT(noticed_ns - killed_ns, 5 * kSecondNs) << "the bound: the fabric is asked each 10 ms of use";
    const uint64_t before = user.done(0);
    user.Run(5000 + round, 2000);
    EXPECT_GT(user.done(0), before + 50) << "the others go on";
    EXPECT_LE(user.worker().pool->stats().broken_queues, 1u) << "the dead peer's queues were stopped together";
    for (uint32_t i = 0; i < kQueues; i += 2) {
      const uint64_t executed = steady.words()[i];
      EXPECT_GE(executed, user.done(i)) << "queue " << i << ": reported done and was not";
      EXPECT_LE(executed, user.done(i) + user.unknown(i)) << "queue " << i << ": executed twice";
    }
    EXPECT_GT(user.failures(1) + user.failures(3) + user.failures(5), 0u);
  }
}

// The same with another process on the same physical QP, which has nothing to do with the dead peer.
TEST_F(SharedFabric, APeerKilledInTheMiddleCostsAnotherProcessOnTheQpNothingButUnknownOutcomesThatAreTrue) {
  constexpr size_t kStopWord = 500, kDoneWord = 510, kUnknownWord = 520;
  MemoryNode steady = MemoryNode::Start(fabric_, 1, 8192, true);
  for (int round = 0; round < 3; ++round) {
    std::fill_n(steady.words(), 1024, 0);
    auto doomed = DoomedPeer();
    rnic::testing::Child bystander([&](auto& self) {
      User user(fabric_, 100, {.dc_initiators = 1, .sq_depth = 40}, {1, 1});
      self.Ready();
      Worker& worker = user.worker();
      auto queue = worker.Connect(1);
      const Sge sge = worker.Word(20);
      for (int i = 0; worker.words()[20] == 0 && !::testing::Test::HasFailure(); ++i) {
        user.Run(i, 50);
        const Completion done = Execute(*worker.pool, *queue, OnWord(*queue, Opcode::kRead, &sge, kStopWord));
        EXPECT_EQ(done.status, WcStatus::kSuccess) << "a READ that was flushed is posted again";
      }
      for (uint32_t i = 0; i < kQueues; ++i) {
        worker.words()[20] = user.done(i);
        WorkRequest write = OnWord(*queue, Opcode::kWrite, &sge, kDoneWord + i);
        EXPECT_EQ(Execute(*worker.pool, *queue, write).status, WcStatus::kSuccess);
        worker.words()[20] = user.unknown(i);
        write = OnWord(*queue, Opcode::kWrite, &sge, kUnknownWord + i);
        EXPECT_EQ(Execute(*worker.pool, *queue, write).status, WcStatus::kSuccess);
      }
      EXPECT_EQ(worker.pool->stats().host_queues, 1u);
    });
    ASSERT_TRUE(bystander.WaitReady());
    User user(fabric_, 0, {.dc_initiators = 1, .sq_depth = 40}, {1, 2});
    user.Run(10 + round, 500);
    doomed->Kill();
    const auto failures = [&] { return user.failures(1) + user.failures(3) + user.failures(5); };
    for (int i = 0; i < 4000 && failures() == 0; ++i) user.Run(1000 * round + i, 50);
    EXPECT_GT(failures(), 0u) << "nobody noticed";
    user.Run(5000 + round, 2000);
    std::atomic_ref(steady.words()[kStopWord]).store(1);
    EXPECT_EQ(bystander.Wait(), 0);
    for (uint32_t i = 0; i < kQueues; ++i) {
      const uint64_t executed = steady.words()[100 + i];
      EXPECT_GT(executed, 50u);
      EXPECT_GE(executed, steady.words()[kDoneWord + i]) << "queue " << i << ": reported done and was not";
      EXPECT_LE(executed, steady.words()[kDoneWord + i] + steady.words()[kUnknownWord + i]) << "executed twice";
    }
  }
}

}  // namespace
}  // namespace krcore::test
