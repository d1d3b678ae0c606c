// The real programs, on a real fabric of several processes.
#include "tests/support/program.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace ycsb {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing_support::Finished;
using ::testing_support::Program;
using ::testing_support::RunProgram;
using ::testing_support::TestFabric;

std::string WorkloadFile(const std::string& letter) {
  return testing_support::SourceDir() + "ycsb/workloads/workload" + letter;
}

// A fabric with one memory node.
class ProgramTest : public ::testing::Test {
 protected:
  void SetUp() override { StartMemoryNode({}); }
  // In place of the one that runs, which must have been stopped.
  void StartMemoryNode(const std::vector<std::string>& more, const std::string& awaited = "ready") {
    std::vector<std::string> args = {fabric_.flag(), "--node=1", "--memory=64M", "--metaserver", "--hugepages=off"};
    args.insert(args.end(), more.begin(), more.end());
    memnode_ = std::make_unique<Program>("memnode", args);
    ASSERT_NE(memnode_->WaitForLine(awaited), "") << memnode_->Output();
  }
  void TearDown() override {
    if (memnode_) {
      EXPECT_EQ(memnode_->Stop(), 0) << memnode_->Output();
    }
  }
  Finished Ycsb(const std::string& phase, const std::string& letter, std::vector<std::string> more = {}) {
    std::vector<std::string> args = {phase, fabric_.flag(), "-P", WorkloadFile(letter), "-p", "recordcount=20000"};
    args.insert(args.end(), more.begin(), more.end());
    return RunProgram("ycsb", args);
  }

  TestFabric fabric_;
  std::unique_ptr<Program> memnode_;
};

TEST_F(ProgramTest, EveryWorkloadRunsOnWhatWasLoaded) {
  const Finished load = Ycsb("load", "a", {"--workers=2"});
  ASSERT_EQ(load.status, 0) << load.err;
  EXPECT_THAT(load.out, HasSubstr("[INSERT], Return=OK, 20000\n"));
  EXPECT_THAT(load.out, HasSubstr("[OVERALL], DataSize(bytes), 2320000\n"));
  for (const char* letter : {"a", "b", "c", "d", "f"}) {
    const Finished run = Ycsb("run", letter, {"-p", "operationcount=20000", "--workers=2"});
    EXPECT_EQ(run.status, 0) << letter << ": " << run.err;
    EXPECT_THAT(run.out, HasSubstr("[OVERALL], Operations, 20000\n"));
    EXPECT_THAT(run.out, HasSubstr("[VERIFY], Return=UNEXPECTED_STATE, 0\n"));
  }
}

TEST_F(ProgramTest, EveryControlPlaneRunsVerifiedAndIsReported) {
  const std::string path = ::testing::TempDir() + fabric_.name() + ".json";
  for (const std::string plane : {"krcore", "verbs", "lite"}) {
    const std::string flag = "--control_plane=" + plane;
    const Finished load = Ycsb("load", "a", {"--workers=2", "--overwrite", flag});
    ASSERT_EQ(load.status, 0) << plane << ": " << load.err;
    const Finished run = Ycsb("run", "a", {"-p", "operationcount=20000", "--workers=3", flag, "--json=" + path});
    EXPECT_EQ(run.status, 0) << plane << ": " << run.err;
    EXPECT_THAT(run.out, HasSubstr("[OVERALL], ControlPlane, " + plane + "\n"));
    EXPECT_THAT(run.out, HasSubstr("[OVERALL], Operations, 20000\n"));
    EXPECT_THAT(run.out, HasSubstr("[OVERALL], FailedOperations, 0\n"));
    EXPECT_THAT(run.out, HasSubstr("[VERIFY], Return=UNEXPECTED_STATE, 0\n"));
    std::ifstream file(path);
    const auto json = nlohmann::json::parse(file);
    EXPECT_EQ(json["control_plane"], plane);
    EXPECT_GT(json["verified"], 0);
    const Finished served =
        RunProgram("computenode", {fabric_.flag(), flag, "-P", WorkloadFile("b"), "-p", "recordcount=20000", "-p",
                                   "operationcount=5000", "--workers=3"});
    EXPECT_EQ(served.status, 0) << plane << ": " << served.err;
    EXPECT_THAT(served.out, HasSubstr("\"control_plane\":\"" + plane + "\",\"ops\":5000,\"errors\":0"));
  }
  std::remove(path.c_str());
}

TEST_F(ProgramTest, AMemoryNodeThatWasKilledAcceptsConnectionsAgainWithItsData) {
  ASSERT_EQ(Ycsb("load", "c", {"--control_plane=verbs"}).status, 0);
  for (const std::string mode : {"sleep", "spin"}) {
    memnode_->Kill();
    for (const std::string plane : {"verbs", "lite"}) {
      const Finished refused = Ycsb("run", "c", {"--control_plane=" + plane, "--open_timeout_ms=10"});
      EXPECT_EQ(refused.status, 1) << refused.out;
    }
    StartMemoryNode({"--rc_acceptor=" + mode}, "adopted=yes");
    for (const std::string plane : {"verbs", "lite"}) {
      const Finished all =
          Ycsb("run", "c",
               {"-p", "operationcount=20000", "-p", "requestdistribution=sequential", "--control_plane=" + plane});
      EXPECT_EQ(all.status, 0) << all.err;
    }
  }
}

TEST_F(ProgramTest, AMemoryNodeThatAcceptsNoConnectionsIsSaid) {
  EXPECT_EQ(memnode_->Stop(), 0);
  StartMemoryNode({"--rc_acceptor=off"});
  for (const std::string plane : {"verbs", "lite"}) {
    const Finished load = Ycsb("load", "c", {"--control_plane=" + plane});
    EXPECT_EQ(load.status, 1) << load.out;
    EXPECT_THAT(load.err, HasSubstr("node 1 is dead, or does not accept RC connections"));
  }
  EXPECT_EQ(Ycsb("load", "c").status, 0);
}

// The updates make so much garbage that the home's housekeeper sweeps, while most of the table is empty.
TEST_F(ProgramTest, AStoreThatWasToldHowManyRecordsComeSplitsNothing) {
  EXPECT_EQ(memnode_->Stop(), 0);
  StartMemoryNode({"--expected_records=100000"});
  ASSERT_EQ(Ycsb("load", "a", {"-p", "recordcount=5000"}).status, 0);
  ASSERT_EQ(Ycsb("run", "a", {"-p", "recordcount=5000", "-p", "operationcount=500000"}).status, 0);
  const Finished rest =
      Ycsb("load", "a", {"-p", "recordcount=100000", "-p", "insertstart=5000", "-p", "insertcount=95000"});
  ASSERT_EQ(rest.status, 0) << rest.err;
  EXPECT_THAT(rest.out, HasSubstr("[CLIENT], splits, 0\n"));
}

TEST_F(ProgramTest, APlantedMismatchMakesTheRunFail) {
  ASSERT_EQ(Ycsb("load", "c", {"--plant_mismatch"}).status, 0);
  const Finished run = Ycsb("run", "c", {"-p", "operationcount=20000"});
  EXPECT_EQ(run.status, 1);
  EXPECT_THAT(run.err, HasSubstr("MISMATCH at key user"));
  EXPECT_THAT(run.err, HasSubstr("values were wrong"));
}

TEST_F(ProgramTest, JsonGoesToItsFile) {
  ASSERT_EQ(Ycsb("load", "c").status, 0);
  const std::string path = ::testing::TempDir() + fabric_.name() + ".json";
  ASSERT_EQ(Ycsb("run", "c", {"-p", "operationcount=1000", "--json=" + path, "--seed=5"}).status, 0);
  std::ifstream file(path);
  const auto json = nlohmann::json::parse(file);
  EXPECT_EQ(json["operations"], 1000);
  EXPECT_EQ(json["seed"], 5);
  EXPECT_EQ(json["flags"]["fabric"], fabric_.name());
  EXPECT_GT(json["client_stats"]["round_trips"], 0);
  std::remove(path.c_str());
}

TEST_F(ProgramTest, BothProgramsFollowAProfile) {
  ASSERT_EQ(Ycsb("load", "b").status, 0);
  const std::string json_path = ::testing::TempDir() + fabric_.name() + ".json";
  const std::string trace_path = ::testing::TempDir() + fabric_.name() + ".trace";
  std::ofstream(trace_path) << "0 2000\n0.2 6000\n0.4 0\n";
  const std::string profile = "file:" + trace_path;
  const Finished run = Ycsb("run", "b", {"-p", "operationcount=0", "--profile=" + profile, "--json=" + json_path});
  EXPECT_EQ(run.status, 0) << run.err;
  EXPECT_THAT(run.err,
              HasSubstr("ycsb: " + profile + ", even arrivals: 1600 requests in 0.4 s, at most 6000 a second"));
  EXPECT_THAT(run.err, HasSubstr(" due ops/sec; "));
  EXPECT_THAT(run.out, HasSubstr("[OVERALL], Operations, 1600\n"));
  EXPECT_THAT(run.out, HasSubstr("[OVERALL], Profile, " + profile + "\n"));
  std::ifstream file(json_path);
  const auto json = nlohmann::json::parse(file);
  EXPECT_EQ(json["profile"], profile);
  EXPECT_EQ(json["arrivals"], "even");
  EXPECT_EQ(json["planned_requests"], 1600);
  EXPECT_GE(json["run_time_ms"], 400);

  const Finished cut =
      Ycsb("run", "b", {"-p", "operationcount=300", "--profile=constant:3000,5", "--arrivals=poisson"});
  EXPECT_EQ(cut.status, 0) << cut.err;
  EXPECT_THAT(cut.err, HasSubstr("warning: operationcount=300 ends --profile=constant:3000,5 early"));
  EXPECT_THAT(cut.out, HasSubstr("[OVERALL], Operations, 300\n"));
  EXPECT_THAT(cut.out, HasSubstr("[OVERALL], Arrivals, poisson\n"));
  const Finished target = Ycsb("run", "b", {"-p", "operationcount=300", "--target=3000", "--arrivals=poisson"});
  EXPECT_EQ(target.status, 0) << target.err;
  EXPECT_THAT(target.out, HasSubstr("[OVERALL], Profile, target=3000\n"));
  EXPECT_THAT(target.out, HasSubstr("[OVERALL], Operations, 300\n"));

  const Finished served =
      RunProgram("computenode", {fabric_.flag(), "-P", WorkloadFile("b"), "-p", "recordcount=20000", "-p",
                                 "operationcount=0", "--json_status", "--profile=ramp:0,1000,1.5", "--arrivals=even"});
  EXPECT_EQ(served.status, 0) << served.err;
  EXPECT_THAT(served.out, HasSubstr("\"workers\":1,\"profile\":\"ramp:0,1000,1.5\",\"arrivals\":\"even\","
                                    "\"planned_requests\":750}"));
  EXPECT_THAT(served.out, HasSubstr("\"due_ops_per_s\":"));
  EXPECT_THAT(served.out, HasSubstr("{\"event\":\"summary\",\"end\":\"finished\""));
  EXPECT_THAT(served.out, HasSubstr("\"ops\":750,\"errors\":0"));
  std::remove(json_path.c_str());
  std::remove(trace_path.c_str());
}

// A worker that does not sleep looks after its client two thousand times a second, with some round trips each time.
TEST_F(ProgramTest, ARunWithLittleToDoSleeps) {
  ASSERT_EQ(Ycsb("load", "c").status, 0);
  const std::string path = ::testing::TempDir() + fabric_.name() + ".json";
  const Finished run = Ycsb("run", "c", {"-p", "operationcount=20", "--target=10", "--json=" + path});
  EXPECT_EQ(run.status, 0) << run.err;
  std::ifstream file(path);
  const auto json = nlohmann::json::parse(file);
  const double round_trips = json["client_stats"]["round_trips"].get<double>();
  EXPECT_LT(round_trips / json["run_time_ms"].get<double>(), 1.5);
  EXPECT_GT(round_trips, 20);
  std::remove(path.c_str());
}

TEST_F(ProgramTest, TwoRunsInsertAtTheSameTimeIfEachHasARange) {
  ASSERT_EQ(Ycsb("load", "d").status, 0);
  std::vector<std::unique_ptr<Program>> runs;
  for (const char* start : {"0", "10000"}) {
    runs.push_back(std::make_unique<Program>(
        "ycsb", std::vector<std::string>{"run", fabric_.flag(), "-P", WorkloadFile("d"), "-p", "recordcount=20000",
                                         "-p", "operationcount=20000", "-p", std::string("insertstart=") + start, "-p",
                                         "insertcount=10000"}));
  }
  for (const auto& run : runs) {
    EXPECT_EQ(run->Wait(), 0) << run->Output();
    EXPECT_THAT(run->out(), HasSubstr("[VERIFY], Return=UNEXPECTED_STATE, 0\n"));
  }
  const Finished whole = Ycsb("run", "d", {"-p", "operationcount=20000"});
  EXPECT_EQ(whole.status, 1) << whole.out;
  EXPECT_THAT(whole.err, HasSubstr("-p insertstart=N -p insertcount=N"));
}

TEST_F(ProgramTest, TheSummaryGoesToTheExportFile) {
  const std::string path = ::testing::TempDir() + fabric_.name() + ".txt";
  const Finished load = Ycsb("load", "a", {"-p", "exportfile=" + path, "-p", "fieldlengthdistribution=zipfian"});
  EXPECT_EQ(load.status, 0) << load.err;
  EXPECT_THAT(load.out, IsEmpty());
  std::ifstream file(path);
  const std::string summary(std::istreambuf_iterator<char>(file), {});
  EXPECT_THAT(summary, HasSubstr("[INSERT], Return=OK, 20000\n"));
  std::remove(path.c_str());
  const Finished full = Ycsb(
      "run", "a", {"-p", "operationcount=10", "-p", "fieldlengthdistribution=zipfian", "-p", "exportfile=/dev/full"});
  EXPECT_EQ(full.status, 1);
  EXPECT_THAT(full.err, HasSubstr("/dev/full"));
}

TEST_F(ProgramTest, CtrlCEndsWithAReportAndStatus130) {
  ASSERT_EQ(Ycsb("load", "c").status, 0);
  Program run("ycsb",
              {"run", fabric_.flag(), "-P", WorkloadFile("c"), "-p", "recordcount=20000", "-p", "operationcount=0"});
  ASSERT_NE(run.WaitForLogLine("current ops/sec"), "") << run.Output();
  run.Signal(SIGINT);
  EXPECT_EQ(run.Wait(), 130) << run.Output();
  EXPECT_THAT(run.out(), HasSubstr("[OVERALL], End, interrupted\n"));
}

TEST_F(ProgramTest, RunningWithoutLoadingSaysWhatIsMissing) {
  const Finished run = Ycsb("run", "c", {"-p", "operationcount=100"});
  EXPECT_EQ(run.status, 1);
  EXPECT_THAT(run.out, HasSubstr("[READ], Return=NOT_FOUND, 100\n"));
  EXPECT_THAT(run.err, HasSubstr("run 'ycsb load' first"));
}

TEST_F(ProgramTest, LoadingTwiceSaysOverwrite) {
  ASSERT_EQ(Ycsb("load", "c").status, 0);
  const Finished again = Ycsb("load", "c");
  EXPECT_EQ(again.status, 1);
  EXPECT_THAT(again.err, HasSubstr("--overwrite"));
  EXPECT_EQ(Ycsb("load", "c", {"--overwrite"}).status, 0);
}

TEST_F(ProgramTest, AKilledMemoryNodeEndsTheRunWithAClearError) {
  ASSERT_EQ(Ycsb("load", "a").status, 0);
  Program run("ycsb",
              {"run", fabric_.flag(), "-P", WorkloadFile("a"), "-p", "recordcount=20000", "-p", "operationcount=0"});
  ASSERT_NE(run.WaitForLogLine("current ops/sec"), "") << run.Output();
  memnode_->Kill();
  memnode_ = nullptr;
  EXPECT_EQ(run.Wait(), 1) << run.Output();
  EXPECT_THAT(run.err(), HasSubstr("memory node 1"));
  EXPECT_EQ(RunProgram("memnode", {fabric_.flag(), "--clean"}).status, 0);
}

TEST_F(ProgramTest, ComputenodeServesUntilSigtermAndDrains) {
  ASSERT_EQ(Ycsb("load", "b").status, 0);
  Program node("computenode", {fabric_.flag(), "-P", WorkloadFile("b"), "-p", "recordcount=20000", "-p",
                               "operationcount=0", "--workers=2", "--json_status"});
  const std::string status = node.WaitForLine("\"event\":\"status\"");
  ASSERT_NE(status, "") << node.Output();
  EXPECT_GT(nlohmann::json::parse(status)["ops"], 0);
  node.Signal(SIGTERM);
  EXPECT_EQ(node.Wait(), 0) << node.Output();
  const size_t at = node.out().find("{\"event\":\"summary\"");
  ASSERT_NE(at, std::string::npos) << node.Output();
  const auto summary = nlohmann::json::parse(node.out().substr(at));
  EXPECT_EQ(summary["errors"], 0);
  ASSERT_EQ(summary["workers"].size(), 2u);
  for (const auto& worker : summary["workers"]) EXPECT_GT(worker["total_us"], 0);
}

TEST_F(ProgramTest, ComputenodeObeysItsControlChannel) {
  ASSERT_EQ(Ycsb("load", "b").status, 0);
  const std::string node = testing_support::ProgramsDir() + "computenode " + fabric_.flag() + " -P " +
                           WorkloadFile("b") + " -p recordcount=20000 -p operationcount=0 --workers=1";
  const Finished served = RunProgram(
      "/bin/sh", {"-c", "(echo workers 3; echo nonsense; echo workers 2; echo status; echo quit) | " + node});
  EXPECT_EQ(served.status, 0) << served.err;
  EXPECT_THAT(served.out, HasSubstr("\"before\":1,\"workers\":3}"));
  EXPECT_THAT(served.out, HasSubstr("\"before\":3,\"workers\":2}"));
  EXPECT_THAT(served.out, HasSubstr("expected \\\"workers N\\\""));
  EXPECT_THAT(served.out, HasSubstr("{\"event\":\"status\""));
  EXPECT_THAT(served.out, HasSubstr("{\"event\":\"summary\",\"end\":\"quit\""));
}

TEST_F(ProgramTest, AKilledComputenodeHarmsNobody) {
  ASSERT_EQ(Ycsb("load", "a").status, 0);
  Program node("computenode", {fabric_.flag(), "-P", WorkloadFile("a"), "-p", "recordcount=20000", "-p",
                               "operationcount=0", "--json_status"});
  ASSERT_NE(node.WaitForLine("\"event\":\"status\""), "") << node.Output();
  node.Kill();
  const Finished run = Ycsb("run", "c", {"-p", "operationcount=20000", "-p", "requestdistribution=sequential"});
  EXPECT_EQ(run.status, 0) << run.err;
}

TEST(ProgramErrors, NameTheFlagAndTheWayOut) {
  struct Case {
    std::vector<std::string> args;
    int status;
    const char* message;
  };
  const std::string c = WorkloadFile("c");
  for (const Case& one :
       {Case{{}, 2, "no phase given"},
        Case{{"walk", "--fabric=x"}, 2, "expected load or run"},
        Case{{"run", "-P", c}, 2, "--fabric"},
        Case{{"run", "--fabric=x"}, 2, "recordcount"},
        Case{{"run", "--fabric=x", "-P", "/nonexistent"}, 1, "/nonexistent"},
        Case{{"run", "--fabric=x", "-P", c, "-p", "recordcount=many"}, 2, "recordcount=many"},
        Case{{"run", "--fabric=x", "-P", c, "--workers=0"}, 2, "--workers=0"},
        Case{{"run", "--fabric=x", "-P", c, "--in_flight=0"}, 2, "--in_flight=0"},
        Case{{"run", "--fabric=x", "-P", c, "--control_plane=tcp"},
             2,
             "--control_plane=tcp: expected krcore, verbs, lite or kernel"},
        Case{{"run", "--fabric=x", "-P", WorkloadFile("e")}, 1, "hash table"},
        Case{{"run", "--fabric=x", "-P", c, "--profile=steps"}, 2, "--profile=steps: expected a profile"},
        Case{{"run", "--fabric=x", "-P", c, "--profile=file:/nonexistent"}, 1, "--profile=file:/nonexistent: cannot"},
        Case{{"run", "--fabric=x", "-P", c, "--profile=constant:9,9", "--target=5"}, 2, "give only one of them"},
        Case{{"run", "--fabric=x", "-P", c, "--profile=constant:9,9", "-p", "target=5"}, 2, "give only one of them"},
        Case{{"run", "--fabric=x", "-P", c, "--profile=constant:9,9", "--warmup=9"}, 2, "--warmup=9"},
        Case{{"load", "--fabric=x", "-P", c, "--profile=constant:9,9"}, 2, "only for 'ycsb run'"},
        Case{{"run", "--fabric=x", "-P", c, "--arrivals=random"}, 2, "--arrivals=random: expected even or poisson"},
        Case{{"run", "--fabric=x", "-P", c, "--arrivals=poisson"}, 2, "give --profile or --target"},
        Case{{"run", "--fabric=x", "-P", c, "-p", "operationcount=0", "--arrivals=poisson", "--target=5"},
             2,
             "give operationcount or maxexecutiontime"},
        Case{{"run", "redis", "--fabric=x", "-P", c}, 2, "redis: unexpected argument"},
        Case{{"run", "--fabric=x", "-P", c, "-threads", "8"}, 2, "unknown flag -threads: use --workers=N"},
        Case{{"run", "-s", "--fabric=x", "-P", c}, 2, "unknown flag -s: status lines are printed by default"},
        Case{{"run", "-db", "x", "--fabric=x", "-P", c}, 2, "unknown flag -db: --fabric=NAME names the store"},
        Case{{"run", "-jvm-args=-Xmx1g", "--fabric=x", "-P", c}, 2, "there is no JVM"},
        Case{{"run", "--fabric=x", "-P", c, "-p", "workload=site.ycsb.workloads.RestWorkload"}, 1, "only CoreWorkload"},
        Case{{"run", "--fabric=x", "-P", c, "-p", "exportfile=/nonexistent/a"}, 2, "exportfile=/nonexistent/a"},
        Case{{"load", "--fabric=x", "-P", c, "--warmup=1"}, 2, "--warmup has no effect on a load"},
        Case{{"run", "--fabric=x", "-P", c, "--plant_mismatch"}, 2, "--plant_mismatch has no effect on a run"},
        Case{{"run", "--fabric=x", "-P", c, "--arrivals=even"}, 2, "--arrivals has no effect without"},
        Case{{"run", "--fabric=x", "-P", c, "--target=9", "--latency_sampling=2"},
             2,
             "--latency_sampling has no effect"},
        Case{{"run", "--fabric=no-such-fabric-here", "-P", c}, 1, "memnode --fabric=no-such-fabric-here"},
        Case{{"run", "--fabric=x", "-P", c, "--json=/nonexistent/a"}, 2, "--json="}}) {
    const Finished run = RunProgram("ycsb", one.args);
    EXPECT_EQ(run.status, one.status) << one.message << ": " << run.err;
    EXPECT_THAT(run.err, HasSubstr(one.message));
    EXPECT_THAT(run.out, IsEmpty());
  }
}

TEST(ProgramErrors, ComputenodeKnowsTheControlPlanesToo) {
  const Finished run = RunProgram("computenode", {"--fabric=x", "-P", WorkloadFile("c"), "--control_plane=tcp"});
  EXPECT_EQ(run.status, 2);
  EXPECT_THAT(run.err, HasSubstr("--control_plane=tcp: expected krcore, verbs, lite or kernel"));
}

TEST(ProgramErrors, ComputenodeKnowsProfilesToo) {
  for (const auto& [flags, message] :
       {std::pair{std::vector<std::string>{"--profile=steps"}, "--profile=steps: expected a profile"},
        std::pair{std::vector<std::string>{"--profile=constant:9,9", "--target=5"}, "give only one of them"},
        std::pair{std::vector<std::string>{"--arrivals=poisson"}, "give --profile or --target"},
        std::pair{std::vector<std::string>{"--arrivals=even"}, "--arrivals has no effect without"}}) {
    std::vector<std::string> args = {"--fabric=x", "-P", WorkloadFile("c")};
    args.insert(args.end(), flags.begin(), flags.end());
    const Finished run = RunProgram("computenode", args);
    EXPECT_EQ(run.status, 2);
    EXPECT_THAT(run.err, HasSubstr(message));
  }
}

TEST(ProgramErrors, HelpShowsExamples) {
  for (const char* program : {"ycsb", "computenode"}) {
    const Finished help = RunProgram(program, {"--help"});
    EXPECT_EQ(help.status, 0);
    EXPECT_THAT(help.out, HasSubstr("examples:"));
    EXPECT_THAT(help.out, HasSubstr("-P FILE"));
    EXPECT_THAT(help.out, HasSubstr("--control_plane"));
    EXPECT_THAT(help.out, HasSubstr("constant:RATE,SECONDS"));
  }
}

}  // namespace
}  // namespace ycsb
