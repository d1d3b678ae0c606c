// The main job on a small scale: load and run over real processes, and what goes wrong without a crash.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "tests/integration/running_store.h"

namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using testing_support::Finished;
using testing_support::RunningStore;
using testing_support::RunProgram;
using testing_support::TestFabric;

TEST(Store, LoadedRecordsAreAllReadBackAndVerifiedByAnotherProcess) {
  const RunningStore store;
  const Finished load = store.Ycsb("load", 'c', {"--workers=2"});
  ASSERT_EQ(load.status, 0) << load.out << load.err;
  EXPECT_THAT(load.out, HasSubstr("[INSERT], Return=OK, 20000"));
  const Finished run = store.Ycsb("run", 'c', {"-p", "operationcount=40000", "--workers=2"});
  EXPECT_EQ(run.status, 0) << run.out << run.err;
  EXPECT_THAT(run.out, AllOf(HasSubstr("[READ], Return=OK, 40000"), HasSubstr("[VERIFY], Return=OK, 40000"),
                             HasSubstr("[VERIFY], Return=UNEXPECTED_STATE, 0")));
}

TEST(Store, EveryWorkloadRunsVerified) {
  const RunningStore store;
  ASSERT_EQ(store.Ycsb("load", 'a').status, 0);
  for (const char workload : {'a', 'b', 'c', 'd', 'f'}) {
    const Finished run = store.Ycsb("run", workload, {"-p", "operationcount=10000", "--workers=2"});
    EXPECT_EQ(run.status, 0) << workload << '\n' << run.out << run.err;
    EXPECT_THAT(run.out, HasSubstr("[VERIFY], Return=UNEXPECTED_STATE, 0")) << workload;
  }
}

TEST(Store, APlantedMismatchFailsTheRun) {
  const RunningStore store;
  ASSERT_EQ(store.Ycsb("load", 'c', {"--plant_mismatch"}).status, 0);
  const Finished run = store.Ycsb("run", 'c', {"-p", "operationcount=20000"});
  EXPECT_EQ(run.status, 1) << run.out;
  EXPECT_THAT(run.err, AllOf(HasSubstr("values were wrong"), Not(HasSubstr(" 0 values were wrong"))));
}

TEST(Store, TooLittleMemoryForTheLoadIsSaid) {
  const RunningStore store("6M");
  const Finished load = store.Ycsb("load", 'c', {"-p", "recordcount=500000"});
  EXPECT_EQ(load.status, 1) << load.out;
  EXPECT_THAT(load.err, AllOf(HasSubstr("memory nodes are full"), HasSubstr("--memory")));
}

TEST(Store, AMissingFabricIsSaid) {
  const TestFabric fabric;
  const Finished run =
      RunProgram("ycsb", {"run", fabric.flag(), "-P", testing_support::SourceDir() + "ycsb/workloads/workloadc"});
  EXPECT_NE(run.status, 0);
  EXPECT_THAT(run.err, AllOf(HasSubstr(fabric.name()), HasSubstr("memory node")));
}

TEST(Store, ALoadStartedBeforeItsMemoryNodesWaitsForThem) {
  const TestFabric fabric;
  testing_support::Program load("ycsb",
                                {"load", fabric.flag(), "--open_timeout_ms=30000", "-P",
                                 testing_support::SourceDir() + "ycsb/workloads/workloadc", "-p", "recordcount=1000"});
  testing_support::Program memory("memnode", {fabric.flag(), "--node=1", "--memory=64M", "--metaserver"});
  EXPECT_EQ(load.Wait(), 0) << load.Output();
  EXPECT_EQ(memory.Stop(), 0) << memory.Output();
}

TEST(Store, ARunWithoutALoadIsSaid) {
  const RunningStore store;
  const Finished run = store.Ycsb("run", 'c', {"-p", "operationcount=5000"});
  EXPECT_EQ(run.status, 1) << run.out;
  EXPECT_THAT(run.err, HasSubstr("ycsb load"));
}

}  // namespace
