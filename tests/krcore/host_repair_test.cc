// A storm of repairs: processes with requests in flight on one of the host's DC initiators break it at the same time
// and repair it at the same time, again and again.
#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>

#include <array>
#include <atomic>
#include <random>
#include <vector>

#include "krcore/rnic/sw/layout.h"
#include "tests/krcore/fixture.h"
#include "tests/rnic/sw_child.h"

namespace krcore::test {
namespace {

constexpr uint32_t kProcesses = 4;
constexpr uint32_t kRounds = 60;
constexpr uint32_t kPerRound = 48;  // FETCH_ADDs of a process, each to a word of its own, and as many READs
constexpr uint32_t kPerProcess = kRounds * kPerRound;

// What the processes tell each other and the test.
struct Shared {
  std::atomic<uint32_t> arrived{0};  // at start lines; release and acquire, so that all begin after it
  std::atomic<uint32_t> faults{0};   // relaxed: read, like the rest, when the processes have ended
  struct {
    std::array<WcStatus, kPerProcess> adds;
    uint64_t flushed_adds, broken_queues, broken_by_others, reposted;
  } of[kProcesses];
};

template <typename T>
T* MapShared(int fd, size_t offset) {
  const int protection = fd < 0 ? PROT_READ | PROT_WRITE : PROT_READ;
  void* const at = mmap(nullptr, offset + sizeof(T), protection, MAP_SHARED | (fd < 0 ? MAP_ANONYMOUS : 0), fd, 0);
  return at == MAP_FAILED ? nullptr : reinterpret_cast<T*>(static_cast<std::byte*>(at) + offset);
}

class RepairStorm : public ::testing::Test {
 protected:
  void SetUp() override {
    shared_ = MapShared<Shared>(-1, 0);
    ASSERT_NE(shared_, nullptr);
    new (shared_) Shared;
  }
  void TearDown() override {
    munmap(shared_, sizeof(Shared));
    EXPECT_TRUE(CleanStaleFabrics("sw", fabric_, true).ok());
  }
  // Reads the control segment: resets so far, and whether the initiator is in ERR.
  void ReadInitiator(uint64_t* resets, bool* in_error) {
    const std::string path = "/dev/shm/surgekv-" + std::to_string(getuid()) + "-" + fabric_ + ".ctl";
    const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
    ASSERT_GE(fd, 0) << path;
    const auto* control = MapShared<rnic::sw::Control>(fd, 0);
    close(fd);
    ASSERT_NE(control, nullptr);
    const uint64_t state = control->host_qps[0].state.load(std::memory_order_acquire);
    munmap(const_cast<rnic::sw::Control*>(control), sizeof(*control));
    *resets = state >> 1;
    *in_error = (state & 1) != 0;
  }
  // Waits until every process has come here `times` times.
  void Meet(uint32_t times) {
    shared_->arrived.fetch_add(1, std::memory_order_acq_rel);
    const Deadline deadline = Deadline::After(*RealClock(), 20 * kSecondNs);
    while (shared_->arrived.load(std::memory_order_acquire) < kProcesses * times) {
      if (deadline.Passed(*RealClock())) _exit(7);  // a process has ended
      sched_yield();
    }
  }
  void RunProcess(uint32_t self);

  static constexpr QueuePoolOptions kOneInitiator{.dc_initiators = 1, .max_rc_queues = 0};
  const std::string fabric_ = UniqueFabric(false);
  Shared* shared_ = nullptr;
};

// One process's queue that does nothing wrong, and what has been seen of it.
class Innocent {
 public:
  Innocent(Worker& worker, uint32_t self)
      : worker_(worker), queue_(worker.Connect(1, 4 * kPerRound)), first_word_(self * kPerProcess) {}
  void Stage(uint32_t count) {
    std::vector<WorkRequest> wrs;
    std::vector<Sge> sges;
    sges.reserve(size_t{2} * count);
    for (uint32_t i = 0; i < count; ++i) {
      for (const Opcode opcode : {Opcode::kFetchAdd, Opcode::kRead}) {
        sges.push_back(worker_.Word(next_ % (8 * kPerRound)));
        WorkRequest wr = OnWord(*queue_, opcode, &sges.back(), first_word_ + next_ / 2, next_);
        wr.compare_add = 1;
        wr.flags = kSignaled;
        wrs.push_back(wr);
        ++next_;
      }
    }
    ASSERT_OK(queue_->Stage(wrs));
  }
  // Takes completions and checks that they come in posting order, each once.
  void Pop(std::array<WcStatus, kPerProcess>& adds, uint64_t* flushed) {
    Completion done[64];
    for (size_t count; (count = queue_->Pop(done)) != 0;) {
      for (const Completion& completion : std::span(done, count)) {
        ASSERT_EQ(completion.wr_id, completed_) << "out of order, lost or twice";
        ++completed_;
        if (completion.wr_id % 2 == 1) {
          ASSERT_EQ(completion.status, WcStatus::kSuccess) << "a READ is posted again";
          continue;
        }
        ASSERT_TRUE(completion.status == WcStatus::kSuccess || completion.status == WcStatus::kFlushed);
        *flushed += completion.status == WcStatus::kFlushed;
        adds[completion.wr_id / 2] = completion.status;
      }
    }
  }
  bool all_done() const { return completed_ == next_; }

 private:
  Worker& worker_;
  std::unique_ptr<VirtualQueue> queue_;
  const uint32_t first_word_;
  uint64_t next_ = 0, completed_ = 0;
};

void RepairStorm::RunProcess(uint32_t self) {
  auto& told = shared_->of[self];
  Worker worker = Worker::Start(fabric_, kOneInitiator);
  ASSERT_EQ(worker.pool->stats().host_queues, 1u);
  Innocent innocent(worker, self);
  auto culprit = worker.pool->CreateQueue(4).value();
  std::mt19937 random(self);
  const Sge sge = worker.Word(0);
  Clock& clock = worker.node->clock();
  for (uint32_t round = 0; round < kRounds; ++round) {
    ASSERT_OK(culprit->Connect(1, worker.Soon()));
    ASSERT_EQ(culprit->regions().size(), 2u);
    WorkRequest wrong = OnWord(*culprit, Opcode::kRead, &sge, 0, round);
    wrong.remote_addr = culprit->regions()[1].addr;  // the peer has destroyed it
    wrong.rkey = culprit->regions()[1].rkey;
    const bool at_fault = round % kProcesses == self || random() % 2 == 0;
    const uint32_t before = random() % (kPerRound / 2), behind = random() % (kPerRound / 2);
    innocent.Stage(before);
    if (at_fault) {
      ASSERT_OK(culprit->Stage({&wrong, 1}));
      shared_->faults.fetch_add(1, std::memory_order_relaxed);
    }
    innocent.Stage(behind);
    Meet(3 * round + 1);
    // The processes at fault flush, and so do some others; requests of those that come later are flushed in part.
    if (at_fault || random() % 4 == 0) worker.pool->Flush();
    Meet(3 * round + 2);
    // The QP is broken now, and every process has requests staged, posted or flushed there.
    for (uint32_t left = kPerRound - before - behind; left > 0; --left) {
      innocent.Stage(1);
      if (left % 4 == 0) worker.pool->Flush();  // into a QP that another process breaks at this moment
      if (left % 16 == 0) worker.pool->Poll();
    }
    bool culprit_told = !at_fault;
    const Deadline deadline = Deadline::After(clock, 20 * kSecondNs);
    for (uint32_t spins = 0; !(innocent.all_done() && culprit_told); ++spins) {
      ASSERT_FALSE(deadline.Passed(clock)) << "completions are missing in round " << round;
      worker.pool->Poll();
      innocent.Pop(told.adds, &told.flushed_adds);
      if (Completion done; culprit->Pop({&done, 1}) == 1) {
        ASSERT_FALSE(culprit_told) << "twice";
        ASSERT_EQ(done.wr_id, round);
        ASSERT_EQ(done.status, WcStatus::kRemoteAccessError) << "its own fault, whoever else made one";
        culprit_told = true;
      }
      ASSERT_FALSE(HasFatalFailure());
      clock.Relax(spins);
    }
    Meet(3 * round + 3);
  }
  const QueuePoolStats& stats = worker.pool->stats();
  told.broken_queues = stats.broken_queues;
  told.broken_by_others = stats.broken_by_others;
  told.reposted = stats.reposted_reads;
}

TEST_F(RepairStorm, EachSeesItsCompletionsOnceAndTheQpComesBackOnceAFault) {
  MemoryNode memory = MemoryNode::Start(fabric_, 1, 8 * kProcesses * kPerProcess, true);
  auto gone = memory.node->CreateRegion({.length = 4096, .remote_rights = kAllRights}).value();
  ASSERT_OK(memory.node->Publish(Deadline::After(*RealClock(), 5 * kSecondNs)));
  gone.reset();  // without Deregister: peers believe that it is still there
  std::vector<std::unique_ptr<rnic::testing::Child>> children;
  for (uint32_t i = 0; i < kProcesses; ++i)
    children.push_back(std::make_unique<rnic::testing::Child>([this, i](auto&) { RunProcess(i); }));
  for (auto& child : children) EXPECT_EQ(child->Wait(), 0);
  if (HasFailure()) return;

  const uint32_t faults = shared_->faults.load();
  uint64_t flushed = 0, repairs = 0, by_others = 0, reposted = 0, executed_and_flushed = 0;
  for (uint32_t p = 0; p < kProcesses; ++p) {
    const auto& of = shared_->of[p];
    for (uint32_t i = 0; i < kPerProcess; ++i) {
      const uint64_t count = memory.words()[p * kPerProcess + i];
      if (of.adds[i] == WcStatus::kSuccess) {
        ASSERT_EQ(count, 1u) << "process " << p << ", request " << i;
      } else {
        ASSERT_LE(count, 1u) << "executed twice: process " << p << ", request " << i;
        executed_and_flushed += count;
      }
    }
    EXPECT_LE(of.broken_queues, faults) << "a process repairs once a fault at most";
    flushed += of.flushed_adds;
    repairs += of.broken_queues;
    by_others += of.broken_by_others;
    reposted += of.reposted;
  }
  uint64_t resets = 0;
  bool in_error = true;
  ReadInitiator(&resets, &in_error);
  EXPECT_FALSE(in_error);
  EXPECT_GE(resets, kRounds);
  EXPECT_LE(resets, faults) << "a fault is repaired once for all";
  EXPECT_GE(repairs, faults) << "whoever made a fault goes through a repair, whether another has done it or not";
  EXPECT_GT(by_others, 0u) << "nobody ever met what another had broken";
  // And the initiator works.
  Worker worker = Worker::Start(fabric_, kOneInitiator);
  ASSERT_EQ(worker.pool->stats().host_queues, 1u);
  auto queue = worker.Connect(1);
  const Sge sge = worker.Word(0);
  EXPECT_EQ(Execute(*worker.pool, *queue, OnWord(*queue, Opcode::kRead, &sge, 0)).status, WcStatus::kSuccess);
  EXPECT_EQ(worker.pool->stats().broken_queues, 0u);
  std::printf(
      "%u faults, %llu resets of the initiator, %llu repairs, %llu without a loss; "
      "%llu FETCH_ADDs flushed (%llu of them executed), %llu READs posted again\n",
      faults, static_cast<unsigned long long>(resets), static_cast<unsigned long long>(repairs),
      static_cast<unsigned long long>(by_others), static_cast<unsigned long long>(flushed),
      static_cast<unsigned long long>(executed_and_flushed), static_cast<unsigned long long>(reposted));
}

}  // namespace
}  // namespace krcore::test
