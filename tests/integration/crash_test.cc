// kill -9 of clients and of memory nodes while work is under way.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>

#include <string>

#include "tests/integration/running_store.h"

namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;
using testing_support::Finished;
using testing_support::Program;
using testing_support::RunningStore;

// Verifies the whole data: with the uniform chooser, 10 times as many reads as records miss hardly any record.
void ExpectIntact(const RunningStore& store) {
  const Finished run = store.Ycsb(
      "run", 'c', {"-p", "requestdistribution=uniform", "-p", "operationcount=" + std::to_string(10 * store.kRecords)});
  EXPECT_EQ(run.status, 0) << run.out << run.err;
  EXPECT_THAT(run.out, HasSubstr("[VERIFY], Return=UNEXPECTED_STATE, 0"));
  EXPECT_THAT(run.out, HasSubstr("[READ], Return=OK, " + std::to_string(10 * store.kRecords)));
}

// Tested over every control plane. Memory nodes drop the RC connections of dead clients.
TEST(Crash, AKilledUpdaterHarmsNeitherTheOthersNorTheData) {
  RunningStore store;
  ASSERT_EQ(store.Ycsb("load", 'a').status, 0);
  for (const std::string plane : {"krcore", "verbs", "lite"}) {
    const std::vector<std::string> endless = {"-p",          "operationcount=0",        "-p", "maxexecutiontime=600",
                                              "--workers=2", "--control_plane=" + plane};
    Program other("ycsb", store.YcsbArgs("run", 'a', endless));
    Program victim("ycsb", store.YcsbArgs("run", 'a', endless));
    // Each prints a status line a second, so both are at work.
    ASSERT_NE(victim.WaitForLogLine("current ops/sec"), "") << victim.Output();
    ASSERT_NE(other.WaitForLogLine("current ops/sec"), "") << other.Output();
    victim.Kill();
    for (int node = 1; node <= 2 && plane != "krcore"; ++node) {
      EXPECT_NE(store.node(node).WaitForLogLine("of clients that died"), "") << store.node(node).Output();
    }
    // Two more lines: it went on for a whole second at least.
    EXPECT_NE(other.WaitForLogLine("current ops/sec"), "") << other.Output();
    EXPECT_NE(other.WaitForLogLine("current ops/sec"), "") << other.Output();
    EXPECT_THAT(other.Stop(), AnyOf(0, 130)) << other.Output();
    EXPECT_THAT(other.out(), HasSubstr("[OVERALL], FailedOperations, 0"));
    EXPECT_THAT(other.out(), HasSubstr("[VERIFY], Return=UNEXPECTED_STATE, 0"));
    ExpectIntact(store);
  }
}

TEST(Crash, AKilledLoaderLeavesATableThatAnotherOneCompletes) {
  const RunningStore store;
  for (int round = 0; round < 5; ++round) {
    Program loader("ycsb", store.YcsbArgs("load", 'c', {"--overwrite"}));
    // This ends somewhere in the first milliseconds, while splits are under way.
    for (int turn = 0; turn < round * 400; ++turn) sched_yield();
    loader.Kill();
  }
  const Finished load = store.Ycsb("load", 'c', {"--overwrite"});
  ASSERT_EQ(load.status, 0) << load.out << load.err;
  ExpectIntact(store);
}

TEST(Crash, AKilledMemoryNodeGivesItsClientsAnErrorAndComesBackWithItsData) {
  for (int node = 1; node <= 2; ++node) {
    RunningStore store;
    ASSERT_EQ(store.Ycsb("load", 'c').status, 0);
    Program client("ycsb", store.YcsbArgs("run", 'c',
                                          {"-p", "operationcount=0", "-p", "maxexecutiontime=600",
                                           "--operation_timeout_ms=1000"}));
    ASSERT_NE(client.WaitForLogLine("current ops/sec"), "") << client.Output();
    store.KillNode(node);
    // It ends by itself, long before its time; otherwise Wait would kill it and return -1.
    EXPECT_EQ(client.Wait(), 1) << client.Output();
    EXPECT_THAT(client.err(), HasSubstr("failed")) << client.Output();
    // A new client gets the error at once.
    const Finished late = store.Ycsb("run", 'c', {"-p", "operationcount=1000", "--open_timeout_ms=1000"});
    EXPECT_EQ(late.status, 1) << late.out << late.err;
    store.StartNode(node);
    ExpectIntact(store);
  }
}

}  // namespace
