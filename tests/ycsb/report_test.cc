#include "ycsb/report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <sstream>

namespace ycsb {
namespace {

using ::krcore::StatusCode;
using ::testing::HasSubstr;
using ::testing::Not;

class ReportTest : public ::testing::Test {
 protected:
  ReportTest() : job_(Options()) {
    for (int i = 1; i <= 1000; ++i) result_.measured[Operation::kRead].Record(StatusCode::kOk, i * 1000);
    result_.measured[Operation::kRead].Record(StatusCode::kTimeout, 5'000'000'000);
    result_.measured.operations = 1001;
    result_.measured.failed_operations = 1;
    result_.measured.verified = 999;
    result_.measured.mismatches = 1;
    result_.measured_ns = 2'000'000'000;
    result_.client_stats.operations = 1001;
    result_.client_stats.round_trips = 2102;
    result_.client_stats.operation_round_trips = 2002;
    computenode::WorkerRecord worker;
    worker.wanted_ns = 1000;
    worker.thread_ns = 31'000;
    worker.client_ns = 36'000;
    worker.first_reply_ns = 38'000;
    result_.workers.push_back(worker);
  }
  static JobOptions Options() {
    Workload workload;
    workload.record_count = workload.insert_count = 1000;
    workload.field_count = 1;
    return {.workload = workload, .seed = 77};
  }
  WorkloadJob job_;
  RunResult result_;
};

TEST_F(ReportTest, SummaryHasYcsbsLines) {
  std::ostringstream out;
  WriteSummary(job_, result_, {.workers = 2, .in_flight = 16}, out);
  const std::string text = out.str();
  for (const char* line :
       {"[OVERALL], RunTime(ms), 2000\n", "[OVERALL], Throughput(ops/sec), 500.5\n", "[OVERALL], Records, 1000\n",
        "[OVERALL], DataSize(bytes), 116000\n", "[READ], Operations, 1001\n", "[READ], AverageLatency(us), 500.500\n",
        "[READ], MinLatency(us), 1.000\n", "[READ], MaxLatency(us), 1000.000\n", "[READ], 99.99PercentileLatency(us), ",
        "[READ], Return=OK, 1000\n", "[READ], Return=TIMEOUT, 1\n", "[READ-FAILED], Operations, 1\n",
        "[VERIFY], Return=OK, 999\n", "[VERIFY], Return=UNEXPECTED_STATE, 1\n", "[CLIENT], round_trips, 2102\n",
        "[CLIENT], round_trips_per_operation, 2.0\n"}) {
    EXPECT_THAT(text, HasSubstr(line));
  }
  EXPECT_THAT(text, Not(HasSubstr("[UPDATE]")));
  EXPECT_THAT(text, Not(HasSubstr("[DC]"))) << "a NIC's own";
}

TEST_F(ReportTest, WhatDcInSoftwareSentAgainIsReported) {
  const ReportContext context{.workers = 1,
                              .software_dc = {{.agent_cpu_ns = 7'000, .sent = 500, .sent_again = 3, .timeouts = 2}}};
  std::ostringstream out;
  WriteSummary(job_, result_, context, out);
  for (const char* line :
       {"[DC], sent, 500\n", "[DC], sent_again, 3\n", "[DC], timeouts, 2\n", "[DC], agent_cpu_us, 7\n"})
    EXPECT_THAT(out.str(), HasSubstr(line));
  const auto json = nlohmann::json::parse(JsonReport(job_, result_, context));
  EXPECT_EQ(json["software_dc"]["sent_again"], 3);
  EXPECT_EQ(json["software_dc"].size(), sizeof(krcore::SoftwareDcStats) / sizeof(uint64_t)) << "one is missing";
}

TEST_F(ReportTest, AnOpenLoopNamesItsProfileAndArrivals) {
  struct Case {
    JobOptions options;
    const char* profile;
    const char* arrivals;
    int planned;  // 0: no count
  };
  JobOptions profile = Options();
  profile.arrivals = std::make_shared<Arrivals>(
      Arrivals::Plan(RateProfile::Parse("ramp:0,100,4").value(), ArrivalProcess::kPoisson, 1, 150).value());
  JobOptions target = Options();
  target.workload.target_ops = 2500;
  JobOptions counted = target;
  counted.workload.operation_count = 5000;
  for (const Case& one : {Case{profile, "ramp:0,100,4", "poisson", 150}, Case{target, "target=2500", "even", 0},
                          Case{counted, "target=2500", "even", 5000}}) {
    const WorkloadJob job(one.options);
    std::ostringstream out;
    WriteSummary(job, result_, {}, out);
    const auto json = nlohmann::json::parse(JsonReport(job, result_, {}));
    EXPECT_THAT(out.str(), HasSubstr(std::string("[OVERALL], Profile, ") + one.profile + "\n"));
    EXPECT_THAT(out.str(), HasSubstr(std::string("[OVERALL], Arrivals, ") + one.arrivals + "\n"));
    EXPECT_EQ(json["loop"], "open");
    EXPECT_EQ(json["latency_from"], "intended start");
    EXPECT_EQ(json["profile"], one.profile);
    EXPECT_EQ(json["arrivals"], one.arrivals);
    if (one.planned == 0) {
      EXPECT_THAT(out.str(), Not(HasSubstr("PlannedRequests")));
      EXPECT_TRUE(json["planned_requests"].is_null());
    } else {
      EXPECT_THAT(out.str(), HasSubstr("[OVERALL], PlannedRequests, " + std::to_string(one.planned) + "\n"));
      EXPECT_EQ(json["planned_requests"], one.planned);
    }
  }
  std::ostringstream closed;
  WriteSummary(job_, result_, {}, closed);
  EXPECT_THAT(closed.str(), Not(HasSubstr("Profile")));
  const auto json = nlohmann::json::parse(JsonReport(job_, result_, {}));
  EXPECT_EQ(json["loop"], "closed");
  EXPECT_FALSE(json.contains("profile"));
}

TEST_F(ReportTest, JsonHasWhatARunNeedsToBeRepeated) {
  const auto json = nlohmann::json::parse(
      JsonReport(job_, result_, {.flags = {{"workers", "2"}}, .properties = {{"recordcount", "1000"}}, .workers = 2}));
  EXPECT_EQ(json["seed"], 77);
  EXPECT_EQ(json["flags"]["workers"], "2");
  EXPECT_EQ(json["properties"]["recordcount"], "1000");
  EXPECT_FALSE(json["commit"].get<std::string>().empty());
  EXPECT_GT(json["machine"]["cores"], 0);
  EXPECT_FALSE(json["good"]);
  EXPECT_EQ(json["by_operation"]["READ"]["returns"]["TIMEOUT"], 1);
  EXPECT_NEAR(json["by_operation"]["READ"]["latency_us"]["p99"].get<double>(), 990, 9.9);
  EXPECT_EQ(json["client_stats"]["round_trips"], 2102);
  EXPECT_EQ(json["client_stats"]["operation_round_trips"], 2002);
  EXPECT_EQ(json["client_stats"]["round_trips_per_operation"], 2.0);
  EXPECT_EQ(json["bootstrap_us"][0]["thread"], 30);
  EXPECT_EQ(json["bootstrap_us"][0]["client"], 5);
  EXPECT_EQ(json["bootstrap_us"][0]["total"], 37);
}

}  // namespace
}  // namespace ycsb
