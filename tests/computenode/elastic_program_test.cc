// The program with workers of each kind, on a real fabric. Requests are served by workers that come, go and are killed,
// and each request gets one correct reply.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "tests/support/kill_process.h"
#include "tests/support/program.h"

namespace computenode {
namespace {

using ::nlohmann::json;
using ::testing::HasSubstr;
using ::testing_support::Finished;
using ::testing_support::Program;
using ::testing_support::RunProgram;
using ::testing_support::TestFabric;

std::string WorkloadFile(const std::string& letter) {
  return testing_support::SourceDir() + "ycsb/workloads/workload" + letter;
}

std::vector<json> Events(const std::string& out, const std::string& name) {
  std::vector<json> events;
  std::istringstream lines(out);
  for (std::string line; std::getline(lines, line);) {
    json event = json::parse(line, nullptr, false);
    if (event.is_object() && event.value("event", "") == name) events.push_back(std::move(event));
  }
  return events;
}

// A fabric with one memory node and 2,000 records.
class ElasticProgram : public ::testing::Test {
 protected:
  void SetUp() override {
    memnode_ = std::make_unique<Program>("memnode", std::vector<std::string>{fabric_.flag(), "--node=1", "--memory=64M",
                                                                             "--metaserver", "--hugepages=off"});
    ASSERT_NE(memnode_->WaitForLine("ready"), "") << memnode_->Output();
  }
  void TearDown() override {
    if (memnode_) {
      EXPECT_EQ(memnode_->Stop(), 0) << memnode_->Output();
    }
  }
  void Load(std::vector<std::string> more = {}) {
    std::vector<std::string> args = {"load", fabric_.flag(), "-P", WorkloadFile("c"), "-p", "recordcount=2000"};
    args.insert(args.end(), more.begin(), more.end());
    const Finished load = RunProgram("ycsb", args);
    ASSERT_EQ(load.status, 0) << load.err;
  }
  std::vector<std::string> Arguments(const std::string& kind, const std::string& profile,
                                     std::vector<std::string> more) const {
    std::vector<std::string> args = {fabric_.flag(),         "-P",
                                     WorkloadFile("b"),      "-p",
                                     "recordcount=2000",     "-p",
                                     "operationcount=0",     "--worker_kind=" + kind,
                                     "--profile=" + profile, "--arrivals=poisson",
                                     "--in_flight=1"};
    args.insert(args.end(), more.begin(), more.end());
    return args;
  }
  const std::vector<std::string> kAutoscale = {"--worker_capacity=300", "--autoscale", "--max_workers=8",
                                               "--scale_in_after_s=0.2"};

  TestFabric fabric_;
  std::unique_ptr<Program> memnode_;
};

TEST_F(ElasticProgram, EachKindFollowsTheLoadAndEachRequestIsServedOnce) {
  Load();
  for (const std::string kind : {"thread", "fork", "exec"}) {
    SCOPED_TRACE(kind);
    std::vector<std::string> more = kAutoscale;
    const std::string path = ::testing::TempDir() + fabric_.name() + ".requests";
    more.push_back("--requests_file=" + path);
    const Finished run = RunProgram("computenode", Arguments(kind, "burst:100,1500,0.3,0.6,1.5", more));
    EXPECT_EQ(run.status, 0) << run.out << run.err;
    const std::vector<json> summaries = Events(run.out, "summary");
    ASSERT_EQ(summaries.size(), 1u) << run.out << run.err;
    const json& summary = summaries[0];
    EXPECT_EQ(summary["end"], "finished");
    EXPECT_EQ(summary["worker_kind"], kind);
    EXPECT_EQ(summary["replied"], summary["requests"]);
    EXPECT_GT(summary["verified"], 700);
    EXPECT_EQ(summary["failed"], 0);
    EXPECT_EQ(summary["mismatches"], 0);
    EXPECT_EQ(summary["deaths"], 0);
    EXPECT_GT(summary["worker_seconds"], 0);
    EXPECT_GE(summary["workers"].size(), 5u);
    EXPECT_FALSE(Events(run.out, "decision").empty());
    EXPECT_THAT(Events(run.out, "decision")[0]["numbers"].get<std::string>(), HasSubstr("needs load"));
    const json& first = summary["workers"][0];
    for (const char* part : {"spawn_us", "store_us", "client_us", "connect_us", "register_us", "lanes_us",
                             "first_reply_us", "bootstrap_us", "drain_us"}) {
      EXPECT_TRUE(first[part].is_number()) << part << " " << first;
    }
    EXPECT_EQ(first["pid"] == 0, kind == "thread");
    struct stat file {};
    ASSERT_EQ(stat(path.c_str(), &file), 0);
    EXPECT_EQ(static_cast<uint64_t>(file.st_size), 24 * summary["requests"].get<uint64_t>());
    unlink(path.c_str());
  }
}

TEST_F(ElasticProgram, KilledWorkersAreReplacedAndTheirRequestsServed) {
  Load();
  for (const std::string kind : {"fork", "exec"}) {
    SCOPED_TRACE(kind);
    Program run("computenode", Arguments(kind, "constant:1500,2", {"--workers=4", "--json_status"}));
    ASSERT_NE(run.WaitForLine("\"ready\""), "") << run.Output();
    uint32_t killed = 0;
    for (std::string line; killed < 6 && !(line = run.WaitForLine("\"pids\"")).empty();) {
      const std::vector<pid_t> pids = json::parse(line)["pids"];
      for (const pid_t pid : pids) killed += testing_support::KillProcess(pid) ? 1 : 0;
    }
    EXPECT_EQ(run.Wait(), 0) << run.Output();
    const std::vector<json> summaries = Events(run.out(), "summary");
    ASSERT_EQ(summaries.size(), 1u) << run.Output();
    EXPECT_EQ(summaries[0]["replied"], summaries[0]["requests"]);
    EXPECT_EQ(summaries[0]["requests"], summaries[0]["due"]);
    EXPECT_GE(summaries[0]["deaths"], 1) << run.Output();
    EXPECT_GE(summaries[0]["replaced"], 1);
    EXPECT_EQ(summaries[0]["failed"], 0);
    EXPECT_EQ(Events(run.out(), "died").size(), summaries[0]["deaths"]);
  }
}

TEST_F(ElasticProgram, ADryRunTellsAndDoesNothing) {
  Load();
  std::vector<std::string> more = kAutoscale;
  more.push_back("--dry_run");
  const Finished run = RunProgram("computenode", Arguments("fork", "burst:100,400,0.2,0.4,1", more));
  EXPECT_EQ(run.status, 0) << run.out << run.err;
  EXPECT_FALSE(Events(run.out, "decision").empty());
  const json summary = Events(run.out, "summary").at(0);
  EXPECT_EQ(summary["workers"].size(), 1u);
  EXPECT_EQ(summary["replied"], summary["requests"]);
}

TEST_F(ElasticProgram, AWrongValueIsNotMissedInAProcess) {
  Load({"--plant_mismatch"});
  const Finished run = RunProgram(
      "computenode", Arguments("fork", "constant:2000,1", {"-P", WorkloadFile("c"), "-p", "operationcount=0"}));
  EXPECT_EQ(run.status, 1) << run.out << run.err;
  const json summary = Events(run.out, "summary").at(0);
  EXPECT_GT(summary["mismatches"], 0);
  EXPECT_THAT(run.err, HasSubstr("MISMATCH"));
}

// A zombie does not count as alive: the process that adopts an orphan need not reap it.
bool Lives(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string stat;
  std::getline(file, stat);
  const size_t name_end = stat.rfind(')');
  return name_end != std::string::npos && stat.compare(name_end, 3, ") Z") != 0;
}

TEST_F(ElasticProgram, AllWorkersGoWithTheFrontEnd) {
  Load();
  Program run("computenode", Arguments("fork", "constant:500,60", {"--workers=3", "--json_status"}));
  std::vector<pid_t> pids;  // of the workers whose start had been reported by then
  while (pids.size() < 3) {
    const std::string line = run.WaitForLine("\"pids\"");
    ASSERT_NE(line, "") << run.Output();
    pids = json::parse(line)["pids"].get<std::vector<pid_t>>();
  }
  run.Kill();
  for (const pid_t pid : pids) {
    while (Lives(pid)) usleep(1'000);
  }
}

TEST_F(ElasticProgram, StoppedItDrains) {
  Load();
  Program run("computenode", Arguments("fork", "constant:1000,60", {"--workers=2", "--json_status"}));
  ASSERT_NE(run.WaitForLine("\"status\""), "") << run.Output();
  EXPECT_EQ(run.Stop(), 0) << run.Output();
  const json summary = Events(run.out(), "summary").at(0);
  EXPECT_EQ(summary["end"], "signal");
  EXPECT_LT(summary["replied"], summary["requests"]);
  EXPECT_EQ(summary["failed"], 0);
}

TEST_F(ElasticProgram, WorkersThatCannotStartAreTold) {
  EXPECT_EQ(memnode_->Stop(), 0);
  memnode_.reset();
  const Finished run = RunProgram("computenode", Arguments("fork", "constant:100,1", {"--open_timeout_ms=100"}));
  EXPECT_EQ(run.status, 1);
  EXPECT_THAT(run.err, HasSubstr(fabric_.name()));
}

TEST_F(ElasticProgram, BadCommandLinesAreRefused) {
  const auto refused = [&](std::vector<std::string> args, const std::string& why) {
    args.insert(args.begin(), {fabric_.flag(), "-P", WorkloadFile("b"), "-p", "operationcount=0"});
    const Finished run = RunProgram("computenode", args);
    EXPECT_EQ(run.status, 2) << run.out;
    EXPECT_THAT(run.err, HasSubstr(why));
  };
  refused({"--worker_kind=pony", "--profile=constant:1,1"}, "expected thread, fork or exec");
  refused({"--worker_kind=fork"}, "need --profile");
  for (const char* flag :
       {"--dry_run", "--min_workers=2", "--max_workers=2", "--max_step=2", "--slo_us=100", "--target_utilisation=0.5",
        "--bootstrap_us=9", "--surge_factor=2", "--reserve=1", "--scale_in_after_s=1", "--control_interval_ms=9"}) {
    refused({"--worker_kind=thread", "--profile=constant:1,1", flag}, "needs --autoscale");
  }
  for (const char* flag : {"--standby=3", "--requests_file=x"}) refused({flag}, "needs --worker_kind or --autoscale");
  refused({"--autoscale", "--profile=constant:1,1", "--worker_capacity=10", "--reserve=1", "--surge_factor=2"},
          "--surge_factor has no effect with --reserve");
  refused({"--autoscale", "--profile=constant:1,1"}, "needs --worker_capacity");
  refused({"--worker_capacity=10"}, "needs --worker_kind or --autoscale");
  refused({"--autoscale", "--profile=constant:1,1", "--worker_capacity=10", "--min_workers=9", "--max_workers=3"},
          "max_workers");
  refused({"--autoscale", "--profile=constant:1,1", "--worker_capacity=10", "--slo_us=0"}, "--slo_us=0");
  refused({"--worker_kind=fork", "--profile=constant:1,1", "-p", "insertproportion=0.5"}, "--worker_kind=thread");
}

}  // namespace
}  // namespace computenode
