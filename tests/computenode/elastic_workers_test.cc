#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <functional>

#include "computenode/elastic/fleet.h"
#include "tests/support/fake_clock.h"
#include "tests/support/fake_store.h"

namespace computenode {
namespace {

using ::krcore::Deadline;
using ::krcore::StatusCode;

constexpr uint32_t kLanes = 4;

// Puts without end; counts the puts begun and ended.
class CountingJob : public Job {
 public:
  class Worker final : public WorkerJob {
   public:
    explicit Worker(CountingJob& job) : job_(job) {}
    ~Worker() override { job_.leaked_frames += kvs::internal::LiveFrames(); }
    kvs::Task<void> Lane(WorkerContext& context, uint32_t lane) override {
      const std::string key = std::to_string(context.worker()) + "/" + std::to_string(lane);
      while (!context.retiring()) {
        ++job_.begun;
        const kvs::Status status = co_await context.client().PutAsync(key, "value");
        if (status.ok()) ++job_.ended;
        context.NoteReply();
      }
    }
    int64_t OnRound(WorkerContext&) override { return kNever; }

   private:
    CountingJob& job_;
  };
  std::unique_ptr<WorkerJob> StartWorker(WorkerContext&) override { return std::make_unique<Worker>(*this); }

  std::atomic<uint64_t> begun{0}, ended{0}, leaked_frames{0};
};

class ElasticWorkersTest : public ::testing::Test {
 protected:
  // Waits for something that another thread is about to do. If it never happens, the test's time limit ends the wait.
  static void Await(const std::function<bool()>& condition) {
    while (!condition()) sched_yield();
  }
  // Standby workers are made one at a time.
  void FillStandby(ElasticWorkers& workers, uint32_t standby) {
    while (workers.standby() < standby) {
      clock_.Advance(ElasticWorkers::kRefillEveryNs);
      workers.Look();
    }
  }
  surgekv_test::FakeClock clock_;
  surgekv_test::FakeStore store_;
  CountingJob job_;
  const ElasticWorkersOptions options_{.lanes_per_worker = kLanes, .clock = &clock_};
};

TEST_F(ElasticWorkersTest, EveryLaneOfEveryWorkerServes) {
  ElasticWorkers workers(store_, job_, options_);
  ASSERT_TRUE(workers.AddWorkers(3).ok());
  EXPECT_EQ(workers.active(), 3u);
  Await([&] {
    const std::lock_guard lock(store_.mutex);
    return store_.records.size() == 3 * kLanes;
  });
}

TEST_F(ElasticWorkersTest, ThoseInReadinessAreTakenInOrderAndReplacedOneByOne) {
  ElasticWorkersOptions options = options_;
  options.standby = 3;
  ElasticWorkers workers(store_, job_, options);
  const auto prepared = [&] {
    const std::lock_guard lock(store_.mutex);
    return store_.prepared.size();
  };
  EXPECT_EQ(workers.standby(), 0u);
  FillStandby(workers, 3);
  Await([&] { return prepared() == 3; });
  EXPECT_EQ(workers.running(), 0u);
  EXPECT_TRUE(workers.Records().empty());
  ASSERT_TRUE(workers.AddWorkers(2).ok());
  EXPECT_EQ(workers.standby(), 1u);
  Await([&] { return store_.open_clients == 2; });
  EXPECT_EQ(prepared(), 1u);
  workers.Look();
  EXPECT_EQ(workers.standby(), 1u) << "those that were wanted have not had time to start";
  clock_.Advance(ElasticWorkers::kRefillAfterNs);
  for (int i = 0; i < 3; ++i) workers.Look();
  EXPECT_EQ(workers.standby(), 2u) << "one at a time";
  clock_.Advance(ElasticWorkers::kRefillEveryNs);
  for (int i = 0; i < 3; ++i) workers.Look();
  EXPECT_EQ(workers.standby(), 3u);
  Await([&] { return prepared() == 3; });
  ASSERT_TRUE(workers.AddWorkers(7).ok());  // more than are waiting
  EXPECT_EQ(workers.standby(), 0u);
  Await([&] { return store_.open_clients == 9; });
  const std::vector<WorkerRecord> records = workers.Records();
  EXPECT_TRUE(std::ranges::is_sorted(records, {}, &WorkerRecord::worker));
  EXPECT_EQ(records.size(), 9u);
}

TEST_F(ElasticWorkersTest, WhoRehearsesReadsAndLeavesNothingBehind) {
  ElasticWorkersOptions options = options_;
  options.standby = 3;
  options.rehearse = true;
  store_.fault = [](const char* operation, std::string_view) {
    EXPECT_STREQ(operation, "get");
    return kvs::Status();
  };
  ElasticWorkers workers(store_, job_, options);
  FillStandby(workers, 3);
  Await([&] {
    const std::lock_guard lock(store_.mutex);
    return store_.prepared.size() == 3;  // none was taken for a rehearsal
  });
  EXPECT_EQ(store_.open_clients, 0);
  EXPECT_GT(store_.operations, 0u);
  EXPECT_EQ(store_.operations % 3, 0u);
  EXPECT_TRUE(store_.records.empty());
}

TEST_F(ElasticWorkersTest, WhoCannotRehearseIsReadyAllTheSame) {
  ElasticWorkersOptions options = options_;
  options.standby = 2;
  options.rehearse = true;
  std::atomic<bool> away = true;
  store_.fault = [&](const char*, std::string_view) {
    return away ? kvs::Status(kvs::StatusCode::kUnavailable) : kvs::Status();
  };
  ElasticWorkers workers(store_, job_, options);
  FillStandby(workers, 2);
  Await([&] {
    const std::lock_guard lock(store_.mutex);
    return store_.prepared.size() == 2;
  });
  EXPECT_EQ(store_.operations, 2u) << "one try each";
  away = false;
  ASSERT_TRUE(workers.AddWorkers(2).ok());
  Await([&] { return store_.open_clients == 2; });
}

TEST_F(ElasticWorkersTest, RetirementLosesNoOperation) {
  ElasticWorkers workers(store_, job_, options_);
  ASSERT_TRUE(workers.AddWorkers(1).ok());
  Await([&] { return job_.ended > 100; });
  ASSERT_TRUE(workers.AddWorkers(2).ok());
  Await([&] { return store_.open_clients == 3; });
  EXPECT_EQ(workers.RetireWorkers(2), 2u);
  EXPECT_EQ(workers.active(), 1u);
  Await([&] { return workers.running() == 1; });
  const uint64_t ended = job_.ended;
  Await([&] { return job_.ended > ended + 100; });  // the remaining worker goes on serving
  EXPECT_EQ(workers.RetireWorkers(5), 1u);
  EXPECT_TRUE(workers.WaitForAll());
  EXPECT_EQ(job_.begun, job_.ended);
  EXPECT_EQ(job_.ended, store_.operations);
  EXPECT_EQ(store_.open_clients, 0);
  EXPECT_EQ(job_.leaked_frames, 0u);
  EXPECT_EQ(workers.TotalClientStats().operations, job_.ended);
}

TEST_F(ElasticWorkersTest, LivingWorkersTellWhatTheyHaveDoneAndEndedOnesAllOfIt) {
  store_.dc = {{.sent = 9, .sent_again = 4}};
  ElasticWorkers workers(store_, job_, options_);
  ASSERT_TRUE(workers.AddWorkers(1).ok());
  uint64_t told = 0;
  for (int times = 0; times < 3; ++times) {
    Await([&] { return workers.Records()[0].client_stats.operations > told; });
    const WorkerRecord record = workers.Records()[0];
    EXPECT_EQ(record.ended_ns, 0);
    EXPECT_EQ(record.connection_bytes, 4096u);
    EXPECT_GT(record.cpu_ns, 0u);
    told = record.client_stats.operations;
    EXPECT_LE(told, store_.operations);
  }
  workers.RetireWorkers(1);
  EXPECT_TRUE(workers.WaitForAll());
  const WorkerRecord record = workers.Records()[0];
  EXPECT_EQ(record.client_stats.operations, store_.operations);
  EXPECT_EQ(record.connection_bytes, 0u);
  EXPECT_EQ(record.software_dc.sent_again, 4u);
}

TEST_F(ElasticWorkersTest, SetWorkersGrowsAndShrinks) {
  ElasticWorkers workers(store_, job_, options_);
  for (const uint32_t count : {2u, 4u, 1u, 3u, 0u, 1u}) {
    ASSERT_TRUE(workers.SetWorkers(count).ok());
    EXPECT_EQ(workers.active(), count);
    Await([&] { return workers.running() == count; });
  }
  EXPECT_EQ(workers.Records().size(), 2u + 2 + 2 + 1);
}

TEST_F(ElasticWorkersTest, BootstrapIsMeasuredInItsParts) {
  ElasticWorkers workers(store_, job_, options_);
  ASSERT_TRUE(workers.AddWorkers(2).ok());
  EXPECT_TRUE(workers.WaitForClients(Deadline::Never()));
  const auto all_replied = [&] {
    for (const WorkerRecord& record : workers.Records()) {
      if (record.first_reply_ns == 0) return false;
    }
    return true;
  };
  Await(all_replied);
  workers.RetireWorkers(2);
  EXPECT_TRUE(workers.WaitForAll());
  for (const WorkerRecord& record : workers.Records()) {
    EXPECT_LT(record.wanted_ns, record.thread_ns);
    EXPECT_LT(record.thread_ns, record.client_ns);
    EXPECT_LT(record.client_ns, record.lanes_ns);
    EXPECT_LT(record.lanes_ns, record.first_reply_ns);
    EXPECT_LT(record.retired_ns, record.ended_ns);
  }
}

TEST_F(ElasticWorkersTest, AWorkerWithoutAClientEndsAndSaysWhy) {
  std::atomic<int> asked{0};
  store_.client_fault = [&] {
    return ++asked == 2 ? krcore::Status(StatusCode::kUnavailable, "no memory node") : krcore::Status();
  };
  ElasticWorkers workers(store_, job_, options_);
  ASSERT_TRUE(workers.AddWorkers(2).ok());
  EXPECT_TRUE(workers.WaitForClients(Deadline::Never()));
  Await([&] { return workers.running() == 1; });
  EXPECT_EQ(workers.active(), 1u);
  EXPECT_EQ(workers.FirstError().message(), "no memory node");
}

// A job whose lanes only wait: for something that is due soon, or for nothing.
class IdleJob final : public Job {
 public:
  explicit IdleJob(int64_t due_in_ns) : due_in_ns_(due_in_ns) {}
  std::unique_ptr<WorkerJob> StartWorker(WorkerContext&) override { return std::make_unique<Worker>(*this); }
  std::atomic<uint64_t> rounds{0};

 private:
  class Worker final : public WorkerJob {
   public:
    explicit Worker(IdleJob& job) : job_(job) {}
    kvs::Task<void> Lane(WorkerContext& context, uint32_t) override {
      struct Park {
        std::vector<std::coroutine_handle<>>& parked;
        bool await_ready() const noexcept { return false; }
        void await_suspend(std::coroutine_handle<> handle) { parked.push_back(handle); }
        void await_resume() const noexcept {}
      };
      while (!context.retiring()) co_await Park{parked_};
    }
    int64_t OnRound(WorkerContext& context) override {
      ++job_.rounds;
      if (context.retiring()) {
        for (const auto handle : parked_) kvs::RunQueue::OfThisThread().Push(handle);
        parked_.clear();
      }
      return job_.due_in_ns_ == kNever ? kNever : context.clock().NowNs() + job_.due_in_ns_;
    }

   private:
    IdleJob& job_;
    std::vector<std::coroutine_handle<>> parked_;
  };
  const int64_t due_in_ns_;
};

TEST_F(ElasticWorkersTest, AnIdleWorkerSleepsUntilItIsWanted) {
  for (const int64_t due_in_ns : {WorkerJob::kNever, int64_t{2'000'000}}) {
    IdleJob job(due_in_ns);
    ElasticWorkers workers(store_, job, options_);
    const int64_t begun_ns = clock_.NowNs();
    ASSERT_TRUE(workers.AddWorkers(1).ok());
    Await([&] { return job.rounds > 50; });
    // A few rounds per sleep of 5 ms or 2 ms. A worker that only relaxes does a round every few microseconds.
    EXPECT_GT(clock_.NowNs() - begun_ns, 20'000'000);
    workers.RetireWorkers(1);
    EXPECT_TRUE(workers.WaitForAll());
  }
}

TEST_F(ElasticWorkersTest, AWorkerThatIsWantedNowDoesNotSleep) {
  IdleJob job(0);
  ElasticWorkers workers(store_, job, options_);
  const int64_t begun_ns = clock_.NowNs();
  ASSERT_TRUE(workers.AddWorkers(1).ok());
  Await([&] { return job.rounds > 5'000; });
  EXPECT_LT(clock_.NowNs() - begun_ns, 100'000'000);
  EXPECT_LT(clock_.longest_wait(), 200u);  // from that wait on, the host's clock does not spin
}

TEST_F(ElasticWorkersTest, WaitGivesUpAtItsDeadline) {
  IdleJob job(WorkerJob::kNever);
  ElasticWorkers workers(store_, job, options_);
  ASSERT_TRUE(workers.AddWorkers(1).ok());
  EXPECT_FALSE(workers.WaitForAll(Deadline::After(clock_, 1'000'000)));
}

// Operations that end without a poll: lanes take turns by Yield().
class YieldingJob final : public Job {
 public:
  class Worker final : public WorkerJob {
   public:
    explicit Worker(YieldingJob& job) : job_(job) {}
    kvs::Task<void> Lane(WorkerContext& context, uint32_t lane) override {
      while (!context.retiring()) {
        ++job_.turns[lane];
        co_await context.Yield();
      }
    }
    int64_t OnRound(WorkerContext&) override { return kNever; }

   private:
    YieldingJob& job_;
  };
  std::unique_ptr<WorkerJob> StartWorker(WorkerContext&) override { return std::make_unique<Worker>(*this); }
  std::atomic<uint64_t> turns[kLanes]{};
};

TEST_F(ElasticWorkersTest, YieldingLanesTakeTurns) {
  YieldingJob job;
  ElasticWorkers workers(store_, job, options_);
  ASSERT_TRUE(workers.AddWorkers(1).ok());
  Await([&] { return job.turns[0] > 1'000; });
  workers.RetireWorkers(1);
  EXPECT_TRUE(workers.WaitForAll());
  for (uint32_t lane = 1; lane < kLanes; ++lane) {
    EXPECT_NEAR(static_cast<double>(job.turns[lane]), static_cast<double>(job.turns[0]), 1);
  }
}

}  // namespace
}  // namespace computenode
