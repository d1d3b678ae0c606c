#include "ycsb/workload/job.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <sstream>
#include <utility>

#include "tests/support/fake_clock.h"
#include "tests/support/fake_store.h"
#include "ycsb/runner.h"
#include "ycsb/workload/records.h"

namespace ycsb {
namespace {

using ::krcore::StatusCode;
using ::testing::HasSubstr;

class JobTest : public ::testing::Test {
 protected:
  static Workload Small() {
    Workload workload;
    workload.record_count = workload.insert_count = 1000;
    workload.operation_count = 5000;
    workload.field_count = 1;
    workload.read_proportion = 1;
    workload.update_proportion = 0;
    workload.distribution = Distribution::kZipfian;
    workload.status_interval_s = 0;
    return workload;
  }
  RunResult Do(JobOptions options, RunnerOptions runner = {}) {
    options.clock = &clock_;
    if (runner.workers == 1) runner.workers = 2;
    if (!runner.log) runner.log = &log_;
    WorkloadJob job(options);
    return RunWorkload(store_, job, runner);
  }
  RunResult Load(const Workload& workload) { return Do({.workload = workload, .phase = Phase::kLoad}); }

  surgekv_test::FakeClock clock_;
  surgekv_test::FakeStore store_;
  std::ostringstream log_;
};

TEST_F(JobTest, LoadWritesEveryRecordOnce) {
  const RunResult result = Load(Small());
  EXPECT_TRUE(result.good());
  EXPECT_EQ(result.end, RunEnd::kFinished);
  EXPECT_EQ(result.measured.operations, 1000u);
  EXPECT_EQ(result.measured[Operation::kInsert].returns[0], 1000u);
  ASSERT_EQ(store_.records.size(), 1000u);
  const KeyCodec keys(16, true);
  for (uint64_t record = 0; record < 1000; ++record) {
    std::string key(16, ' ');
    keys.Format(record, key.data());
    EXPECT_TRUE(VerifyValue(record, store_.records[key], 100));
  }
  EXPECT_EQ(store_.open_clients, 0);
}

TEST_F(JobTest, LoadOfAPartLeavesTheRest) {
  Workload workload = Small();
  workload.insert_start = 100;
  workload.insert_count = 50;
  EXPECT_TRUE(Load(workload).good());
  EXPECT_EQ(store_.records.size(), 50u);
}

TEST_F(JobTest, EveryReadIsVerified) {
  ASSERT_TRUE(Load(Small()).good());
  const RunResult result = Do({.workload = Small()});
  EXPECT_TRUE(result.good());
  EXPECT_EQ(result.measured.operations, 5000u);
  EXPECT_EQ(result.measured.verified, 5000u);
  EXPECT_EQ(result.measured[Operation::kRead].succeeded.count(), 5000u);
}

TEST_F(JobTest, PlantedMismatchFailsTheRunAndNamesTheKey) {
  ASSERT_TRUE(Do({.workload = Small(), .phase = Phase::kLoad, .plant_mismatch = true}).good());
  const RunResult result = Do({.workload = Small()});
  EXPECT_FALSE(result.good());
  EXPECT_GT(result.measured.mismatches, 0u);
  EXPECT_THAT(log_.str(), HasSubstr("MISMATCH at key user"));
  EXPECT_THAT(log_.str(), HasSubstr("first wrong byte at 99"));
}

TEST_F(JobTest, UpdatesAndReadModifyWritesStayVerifiable) {
  Workload workload = Small();
  ASSERT_TRUE(Load(workload).good());
  workload.read_proportion = 0.3;
  workload.update_proportion = 0.3;
  workload.read_modify_write_proportion = 0.4;
  const RunResult result = Do({.workload = workload});
  EXPECT_TRUE(result.good());
  const Measurements& measured = result.measured;
  const uint64_t whole = measured[Operation::kReadModifyWrite].operations();
  EXPECT_EQ(measured.operations, 5000u);
  EXPECT_NEAR(static_cast<double>(whole), 2000, 200);
  EXPECT_EQ(measured[Operation::kRead].operations() + measured[Operation::kUpdate].operations(), 5000 - whole);
  EXPECT_EQ(measured.verified, measured[Operation::kRead].operations() + whole);
}

TEST_F(JobTest, AReadModifyWriteOfARecordThatIsNotThereFailsAndMakesNone) {
  Workload workload = Small();
  workload.read_proportion = 0;
  workload.read_modify_write_proportion = 1;
  workload.operation_count = 10;
  const RunResult result = Do({.workload = workload});
  EXPECT_FALSE(result.good());
  const auto& returns = result.measured[Operation::kReadModifyWrite].returns;
  EXPECT_EQ(returns[static_cast<size_t>(StatusCode::kNotFound)], 10u);
  EXPECT_EQ(store_.records.size(), 0u);
}

TEST_F(JobTest, LatestNeverReadsAnInsertThatIsNotAcknowledged) {
  Workload workload = Small();
  workload.distribution = Distribution::kLatest;
  ASSERT_TRUE(Load(workload).good());
  workload.read_proportion = 0.5;
  workload.insert_proportion = 0.5;
  workload.operation_count = 20'000;
  const RunResult result = Do({.workload = workload});
  EXPECT_TRUE(result.good()) << log_.str();
  EXPECT_EQ(store_.records.size(), 1000 + result.measured[Operation::kInsert].operations());
}

TEST_F(JobTest, ClientsWithRangesOfTheirOwnInsertRecordsOfTheirOwn) {
  Workload workload = Small();
  workload.distribution = Distribution::kLatest;
  ASSERT_TRUE(Load(workload).good());
  workload.read_proportion = 0.5;
  workload.insert_proportion = 0.5;
  uint64_t inserted = 0;
  for (const uint64_t start : {0, 300}) {
    workload.insert_start = start;
    workload.insert_count = start == 0 ? 300 : 700;
    WorkloadJob job({.workload = workload, .clock = &clock_});
    const RunResult result = RunWorkload(store_, job, {.workers = 2, .log = &log_});
    EXPECT_TRUE(result.good()) << log_.str();
    EXPECT_EQ(job.inserted_records(), result.measured[Operation::kInsert].returns[0]);
    inserted += job.inserted_records();
  }
  EXPECT_EQ(store_.records.size(), 1000 + inserted);
}

TEST_F(JobTest, RecordsThatWereInsertedAreCountedThoughOneFailed) {
  Workload workload = Small();
  ASSERT_TRUE(Load(workload).good());
  workload.read_proportion = 0.5;
  workload.insert_proportion = 0.5;
  bool failed = false;
  store_.fault = [&](const char* operation, std::string_view) {
    const bool fails = std::string_view(operation) == "insert" && !std::exchange(failed, true);
    return fails ? krcore::Status(StatusCode::kUnavailable) : krcore::Status();
  };
  WorkloadJob job({.workload = workload, .clock = &clock_});
  const RunResult result = RunWorkload(store_, job, {.workers = 1, .log = &log_});
  EXPECT_EQ(result.measured.failed_operations, 1u);
  EXPECT_EQ(job.inserted_records(), store_.records.size() - 1000);
}

TEST_F(JobTest, ValuesOfDrawnLengthsAreVerified) {
  for (const FieldLengths lengths : {FieldLengths::kUniform, FieldLengths::kZipfian}) {
    store_.records.clear();
    Workload workload = Small();
    workload.field_count = 3;
    workload.field_lengths = lengths;
    workload.min_field_length = 20;
    ASSERT_TRUE(Load(workload).good());
    std::set<size_t> sizes;
    for (const auto& [key, value] : store_.records) sizes.insert(value.size());
    EXPECT_GT(sizes.size(), 50u);
    workload.update_proportion = 0.5;
    workload.read_proportion = 0.5;
    EXPECT_TRUE(Do({.workload = workload}).good()) << log_.str();
    for (auto& [key, value] : store_.records) value.resize(value.size() / 2);
    workload.update_proportion = 0;
    const RunResult cut = Do({.workload = workload});
    EXPECT_GT(cut.measured.mismatches, 0u);
    EXPECT_EQ(cut.measured.verified, 0u);
  }
}

TEST_F(JobTest, MissingRecordsAreFailures) {
  ASSERT_TRUE(Load(Small()).good());
  store_.records.erase(store_.records.begin());
  Workload workload = Small();
  workload.distribution = Distribution::kSequential;
  workload.operation_count = 1000;
  const RunResult result = Do({.workload = workload});
  EXPECT_FALSE(result.good());
  EXPECT_EQ(result.measured.failed_operations, 1u);
  EXPECT_EQ(result.measured[Operation::kRead].returns[static_cast<size_t>(StatusCode::kNotFound)], 1u);
  EXPECT_THAT(log_.str(), HasSubstr("failed: not found"));
}

TEST_F(JobTest, LoadingTwiceFailsUnlessOverwriteIsAskedFor) {
  ASSERT_TRUE(Load(Small()).good());
  const RunResult again = Load(Small());
  EXPECT_FALSE(again.good());
  EXPECT_EQ(again.measured.failed_operations, 1000u);
  EXPECT_TRUE(Do({.workload = Small(), .phase = Phase::kLoad, .overwrite = true}).good());
}

TEST_F(JobTest, TooManyFailuresEndTheRunEarly) {
  ASSERT_TRUE(Load(Small()).good());
  store_.fault = [](const char*, std::string_view) { return krcore::Status(StatusCode::kUnavailable); };
  Workload workload = Small();
  workload.operation_count = 1'000'000;
  const RunResult result = Do({.workload = workload, .max_failures = 100});
  EXPECT_EQ(result.end, RunEnd::kTooManyFailures);
  EXPECT_FALSE(result.good());
  EXPECT_LT(result.measured.operations, 10'000u);
  EXPECT_GE(result.measured.failed_operations, 100u);
}

TEST_F(JobTest, InterruptEndsWithEveryStartedOperationCounted) {
  ASSERT_TRUE(Load(Small()).good());
  const uint64_t before = store_.operations;
  Workload workload = Small();
  workload.operation_count = 0;  // it has no end of its own
  const RunResult result =
      Do({.workload = workload}, {.interrupted = [&] { return store_.operations > before + 10'000; }});
  EXPECT_EQ(result.end, RunEnd::kInterrupted);
  EXPECT_TRUE(result.good());
  EXPECT_EQ(result.measured.operations, store_.operations - before);
}

TEST_F(JobTest, TimeLimitEndsTheRun) {
  ASSERT_TRUE(Load(Small()).good());
  Workload workload = Small();
  workload.operation_count = 0;
  workload.max_execution_time_s = 1;
  store_.fault = [&](const char*, std::string_view) {
    clock_.Advance(1'000'000);
    return krcore::Status();
  };
  const RunResult result = Do({.workload = workload});
  EXPECT_EQ(result.end, RunEnd::kTimeLimit);
  EXPECT_GT(result.measured.operations, 0u);
}

TEST_F(JobTest, WarmUpIsNotMeasuredButItsFailuresCount) {
  ASSERT_TRUE(Load(Small()).good());
  const uint64_t before = store_.operations;
  // Workers wait in the middle of the run until the runner has seen the end of the warm-up, or the run might be over by
  // then. Its first look after that may have read the clock before; the third begins when the second has ended.
  const int64_t half_ns = clock_.NowNs() + 2'000'000'000;
  std::atomic<int> looks{0};
  const auto interrupted = [&] {
    if (clock_.NowNs() > half_ns) ++looks;
    return false;
  };
  std::atomic<bool> failed{false};
  store_.fault = [&](const char*, std::string_view) {
    clock_.Advance(100'000);
    while (clock_.NowNs() > half_ns && looks < 3) sched_yield();
    return krcore::Status(failed.exchange(true) ? StatusCode::kOk : StatusCode::kTimeout);
  };
  Workload workload = Small();
  workload.operation_count = 0;
  workload.max_execution_time_s = 2;
  const RunResult result = Do({.workload = workload}, {.warmup_s = 1, .interrupted = interrupted});
  EXPECT_GT(result.measured.operations, 0u);
  EXPECT_LT(result.measured.operations, store_.operations - before);
  EXPECT_EQ(result.measured.failed_operations, 1u);
  EXPECT_EQ(result.measured[Operation::kRead].failures(), 0u);
}

// A store stands still for 100 ms while 10,000 operations a second are due. If latency counted from the actual start of
// an operation, only those in flight would show the pause. Counted from the due time, about 1,000 do.
TEST_F(JobTest, OpenLoopCountsLatencyFromTheIntendedStart) {
  ASSERT_TRUE(Load(Small()).good());
  std::atomic<uint64_t> calls{0};
  store_.fault = [&](const char*, std::string_view) {
    if (++calls == 500) clock_.Advance(100'000'000);
    return krcore::Status();
  };
  Workload workload = Small();
  workload.target_ops = 10'000;
  const RunResult result = Do({.workload = workload}, {.in_flight = 2});
  EXPECT_TRUE(result.good());
  EXPECT_EQ(result.measured.operations, 5000u);
  const LatencyHistogram latencies = result.measured.Latencies();
  EXPECT_GT(latencies.PercentileNs(90), 10e6);  // 4 of 5,000 operations were in flight: no closed loop's p90 sees them
  EXPECT_LT(latencies.PercentileNs(50), 10e6);
}

TEST_F(JobTest, OpenLoopDoesNotRunAhead) {
  ASSERT_TRUE(Load(Small()).good());
  Workload workload = Small();
  workload.operation_count = 200;
  workload.target_ops = 1000;
  const RunResult result = Do({.workload = workload});
  EXPECT_EQ(result.measured.operations, 200u);
  EXPECT_GE(result.measured_ns, 199'000'000);  // the last is due at 199 ms
  EXPECT_GE(result.measured.Latencies().min_ns(), 0);
}

TEST_F(JobTest, SampledLatenciesStillCountEveryOperation) {
  ASSERT_TRUE(Load(Small()).good());
  const RunResult result = Do({.workload = Small(), .latency_sampling = 8});
  EXPECT_EQ(result.measured[Operation::kRead].operations(), 5000u);
  EXPECT_LE(result.measured[Operation::kRead].succeeded.count(), 5000u / 8);
  EXPECT_GE(result.measured[Operation::kRead].succeeded.count(), 5000u / 8 - 32);
}

TEST_F(JobTest, AWorkerThatCannotConnectFailsTheRun) {
  store_.client_fault = [] { return krcore::Status(StatusCode::kUnavailable, "memory node 1 is dead"); };
  const RunResult result = Load(Small());
  EXPECT_FALSE(result.good());
  EXPECT_EQ(result.error.ToString(), "unavailable: memory node 1 is dead");
  EXPECT_EQ(result.measured.operations, 0u);
}

TEST_F(JobTest, SameSeedAsksForTheSameKeys) {
  std::vector<std::string> first, second;
  ASSERT_TRUE(Load(Small()).good());
  for (std::vector<std::string>* keys : {&first, &second}) {
    store_.fault = [keys](const char*, std::string_view key) {
      keys->emplace_back(key);
      return krcore::Status();
    };
    WorkloadJob job({.workload = Small(), .seed = 99, .clock = &clock_});
    ASSERT_TRUE(RunWorkload(store_, job, {.workers = 1}).good());
  }
  EXPECT_EQ(first.size(), 5000u);
  EXPECT_EQ(first, second);
}

}  // namespace
}  // namespace ycsb
