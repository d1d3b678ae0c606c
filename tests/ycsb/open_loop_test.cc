// Runs that follow a plan of arrivals, on a clock that only the worker moves, so that all times are exact.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <functional>
#include <sstream>

#include "tests/support/fake_store.h"
#include "ycsb/runner.h"
#include "ycsb/workload/arrivals.h"
#include "ycsb/workload/job.h"

namespace ycsb {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr int64_t kStartNs = 1'000'000'000;
constexpr int64_t kTickNs = 10'000;

// Time stands still while there is something to do, and advances by one tick at a time while there is nothing.
class ManualClock final : public krcore::Clock {
 public:
  int64_t NowNs() override { return now_ns_.load(); }
  void Relax(uint32_t) override {
    if (holds && holds(now_ns_.load() - kStartNs)) {
      sched_yield();
    } else {
      now_ns_.fetch_add(kTickNs);
    }
  }
  void Advance(int64_t ns) { now_ns_.fetch_add(ns); }

  std::function<bool(int64_t since_start_ns)> holds;

 private:
  std::atomic<int64_t> now_ns_{kStartNs};
};

// A log that counts its lines, so that another thread can see the count.
class Log final : public std::stringbuf {
 public:
  int lines() const { return lines_; }

 private:
  int sync() override {
    ++lines_;
    return 0;
  }
  std::atomic<int> lines_{0};
};

class OpenLoopTest : public ::testing::Test {
 protected:
  void SetUp() override {
    WorkloadJob job({.workload = Small(), .phase = Phase::kLoad, .clock = &clock_});
    ASSERT_TRUE(RunWorkload(store_, job, {}).good());
  }
  static Workload Small() {
    Workload workload;
    workload.record_count = workload.insert_count = 1000;
    workload.field_count = 1;
    workload.read_proportion = 1;
    workload.update_proportion = 0;
    workload.status_interval_s = 0;
    return workload;
  }
  // Runs with one worker, so that only one thread moves the clock.
  RunResult Do(const JobOptions& options, uint32_t in_flight = 2, std::function<bool()> interrupted = {}) {
    WorkloadJob job(options);
    return RunWorkload(store_, job, {.in_flight = in_flight, .log = &log_, .interrupted = std::move(interrupted)});
  }
  JobOptions Following(const std::string& profile, ArrivalProcess process = ArrivalProcess::kEven,
                       uint64_t most = Arrivals::kAll) {
    return {.workload = Small(),
            .arrivals = std::make_shared<Arrivals>(
                Arrivals::Plan(RateProfile::Parse(profile).value(), process, 1, most).value()),
            .clock = &clock_};
  }
  // Records when each operation of the next run begins, relative to the start.
  void RecordBegins() {
    store_.fault = [this](const char*, std::string_view) {
      begins_ns_.push_back(clock_.NowNs() - kStartNs);
      return krcore::Status();
    };
  }
  int64_t BeginsIn(double from_s, double to_s) const {
    return std::count_if(begins_ns_.begin(), begins_ns_.end(), [&](int64_t begin_ns) {
      return begin_ns >= std::llround(from_s * 1e9) && begin_ns < std::llround(to_s * 1e9);
    });
  }

  ManualClock clock_;
  surgekv_test::FakeStore store_;
  Log lines_;
  std::ostream log_{&lines_};
  std::vector<int64_t> begins_ns_;
};

TEST_F(OpenLoopTest, StepsAreFollowed) {
  RecordBegins();
  const RunResult result = Do(Following("step:1000@0,5000@0.1,0@0.2,2000@0.25,end@0.35"));
  EXPECT_TRUE(result.good());
  EXPECT_EQ(result.end, RunEnd::kFinished);
  EXPECT_EQ(result.measured.operations, 800u);
  EXPECT_EQ(BeginsIn(0, 0.05), 50);
  EXPECT_EQ(BeginsIn(0, 0.1), 100);
  EXPECT_EQ(BeginsIn(0.1, 0.2), 500);
  EXPECT_EQ(BeginsIn(0.2, 0.25), 0);
  EXPECT_EQ(BeginsIn(0.25, 0.35), 200);
  EXPECT_LE(result.measured.Latencies().max_ns(), kTickNs);  // nothing waits
}

TEST_F(OpenLoopTest, EveryOperationBeginsWhenItIsDue) {
  for (const ArrivalProcess process : {ArrivalProcess::kEven, ArrivalProcess::kPoisson}) {
    const JobOptions options = Following("ramp:200,4000,0.2", process);
    begins_ns_.clear();
    RecordBegins();
    const int64_t before_ns = clock_.NowNs() - kStartNs;
    ASSERT_TRUE(Do(options, 16).good());
    const std::vector<int64_t>& due_ns = options.arrivals->due_ns;
    ASSERT_EQ(begins_ns_.size(), due_ns.size());
    for (size_t i = 0; i < due_ns.size(); ++i) {
      EXPECT_GE(begins_ns_[i] - before_ns, due_ns[i]);
      EXPECT_LT(begins_ns_[i] - before_ns, due_ns[i] + kTickNs);
    }
  }
}

// The store stands still for 100 ms from 149.9 ms on, in the middle of a burst. Everything due meanwhile, 500 requests
// of the burst and 50 after it, waits until the store goes on, and the wait is part of the latency.
TEST_F(OpenLoopTest, LatencyCountsFromTheDueTime) {
  uint64_t calls = 0;
  store_.fault = [&](const char*, std::string_view) {
    if (++calls == 600) clock_.Advance(100'000'000);
    return krcore::Status();
  };
  const RunResult result = Do(Following("burst:1000,10000,0.1,0.1,0.3"));
  EXPECT_EQ(result.measured.operations, 1200u);
  const LatencyHistogram latencies = result.measured.Latencies();
  double sum_ms = 0;
  for (int i = 0; i <= 500; ++i) sum_ms += 100 - 0.1 * i;  // the request that stood still, and those after it
  for (int i = 0; i < 50; ++i) sum_ms += 49.9 - i;
  EXPECT_NEAR(latencies.mean_ns(), sum_ms * 1e6 / 1200, 2 * kTickNs);
  EXPECT_NEAR(static_cast<double>(latencies.max_ns()), 100e6, 2 * kTickNs);
  EXPECT_LE(latencies.PercentileNs(54), 2 * kTickNs);                    // 649 of 1,200 waited for nothing
  EXPECT_GE(latencies.PercentileNs(100 * 651.0 / 1200), 1e6 - kTickNs);  // the others did wait
}

TEST_F(OpenLoopTest, TheRunLastsUntilTheProfilesEnd) {
  const RunResult result = Do(Following("step:1000@0,0@0.1,end@0.3"));
  EXPECT_EQ(result.end, RunEnd::kFinished);
  EXPECT_EQ(result.measured.operations, 100u);
  EXPECT_GE(result.measured_ns, 300'000'000);
  EXPECT_LE(result.measured_ns, 300'000'000 + kTickNs);
}

TEST_F(OpenLoopTest, ACountEndsItEarlier) {
  const RunResult result = Do(Following("step:1000@0,0@0.1,1000@0.2,end@0.3", ArrivalProcess::kEven, 151));
  EXPECT_EQ(result.end, RunEnd::kFinished);
  EXPECT_EQ(result.measured.operations, 151u);
  EXPECT_GE(result.measured_ns, 250'000'000);
  EXPECT_LE(result.measured_ns, 250'000'000 + kTickNs);
  // The property itself ends the run as well, unless it is larger.
  JobOptions options = Following("constant:1000,0.2");
  options.workload.operation_count = 50;
  EXPECT_EQ(Do(options).measured.operations, 50u);
  options.workload.operation_count = 5000;
  EXPECT_EQ(Do(options).measured.operations, 200u);
}

TEST_F(OpenLoopTest, AnInterruptEndsItWhileNothingIsDue) {
  const RunResult result = Do(Following("step:1000@0,0@0.1,1000@1000000,end@1000001"), 2,
                              [this] { return clock_.NowNs() > kStartNs + 200'000'000; });
  EXPECT_EQ(result.end, RunEnd::kInterrupted);
  EXPECT_EQ(result.measured.operations, 100u);
}

TEST_F(OpenLoopTest, StatusLinesShowTheRateThatWasDue) {
  // Otherwise the run would be over before the runner looks.
  clock_.holds = [&](int64_t since_start_ns) { return since_start_ns == 1'000'000'000 && lines_.lines() == 0; };
  JobOptions options = Following("step:100@0,0@0.5,200@1.5,end@2");
  options.workload.status_interval_s = 1;
  const RunResult result = Do(options);
  EXPECT_EQ(result.measured.operations, 150u);
  EXPECT_THAT(lines_.str(), HasSubstr(" 1 sec: "));
  EXPECT_THAT(lines_.str(), HasSubstr(" 50.0 current ops/sec; 50.0 due ops/sec; est completion in 1 s; "));
  EXPECT_THAT(lines_.str(), HasSubstr(" 100.0 current ops/sec; 100.0 due ops/sec; est completion in 0 s; "));
}

TEST_F(OpenLoopTest, StatusLinesOfATargetShowItToo) {
  Workload workload = Small();
  workload.status_interval_s = 1;
  workload.operation_count = 201;
  workload.target_ops = 1000;
  EXPECT_EQ(Do({.workload = workload, .clock = &clock_}).measured_ns, 200'000'000);
  EXPECT_THAT(lines_.str(), HasSubstr(": 201 operations; 1005.0 current ops/sec; 1005.0 due ops/sec; "));
  lines_.str("");
  workload.target_ops = 0;
  store_.fault = [&](const char*, std::string_view) {
    clock_.Advance(1000);
    return krcore::Status();
  };
  Do({.workload = workload, .clock = &clock_});
  EXPECT_THAT(lines_.str(), HasSubstr("current ops/sec; est completion"));
  EXPECT_THAT(lines_.str(), Not(HasSubstr("due")));
}

}  // namespace
}  // namespace ycsb
