// Starting, serving and stopping.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>

#include <cstdlib>
#include <string>

#include "kvs/client.h"
#include "tests/support/program.h"

namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;
using ::testing::StartsWith;
using testing_support::Finished;
using testing_support::Program;
using testing_support::RunProgram;
using testing_support::TestFabric;

class LifeCycle : public ::testing::Test {
 protected:
  TestFabric fabric_;
};

TEST(Memnode, HelpShowsUsageExamplesAndItsFlags) {
  const Finished help = RunProgram("memnode", {"--help"});
  EXPECT_EQ(help.status, 0);
  EXPECT_THAT(help.out, AllOf(StartsWith("usage: memnode --fabric=NAME"), HasSubstr("examples:")));
  for (const char* flag :
       {"--fabric", "--node", "--memory", "--metaserver", "--hugepages", "--wait_ms", "--keep_memory", "--rc_acceptor",
        "--drain", "--undrain", "--clean", "--rnic", "--fabric_address", "--rnic_port", "--log"}) {
    EXPECT_THAT(help.out, HasSubstr(std::string("\n  ") + flag));
  }
  EXPECT_THAT(help.out, Not(HasSubstr("alsologtostderr")));
}

TEST_F(LifeCycle, ASignalStopsItAndNothingIsLeft) {
  for (const int number : {SIGTERM, SIGINT}) {
    Program node("memnode", {fabric_.flag(), "--node=1", "--memory=64M", "--metaserver"});
    ASSERT_THAT(node.WaitForLine("ready"),
                AllOf(HasSubstr("fabric=" + fabric_.name()), HasSubstr("node=1 "), HasSubstr("memory=67108864 "),
                      HasSubstr("metaserver=yes"), HasSubstr("home=yes"), HasSubstr("adopted=no"),
                      HasSubstr("pid=" + std::to_string(node.pid()))))
        << node.Output();
    node.Signal(number);
    EXPECT_EQ(node.Wait(), 0) << node.Output();
    EXPECT_THAT(node.WaitForLine("stopped"), AllOf(HasSubstr("memory=removed"), HasSubstr("cpu_user_s=")));
    EXPECT_THAT(fabric_.Files(), IsEmpty());
  }
}

TEST_F(LifeCycle, WhatGoesWithTheMemoryIsToldWhenItStops) {
  const auto stop = [&](const std::string& keep, bool put) {
    Program node("memnode", {fabric_.flag(), "--node=1", "--memory=64M", "--metaserver", "--hugepages=off", keep});
    EXPECT_NE(node.WaitForLine("ready"), "") << node.Output();
    if (put) {
      auto store = kvs::Store::Open({.fabric = fabric_.name()}).value();
      EXPECT_TRUE(store->NewClient().value()->Put("key", "value").ok());
    }
    EXPECT_EQ(node.Stop(), 0) << node.Output();
    return node.err();
  };
  EXPECT_EQ(stop("--nokeep_memory", false), "");
  EXPECT_EQ(stop("--keep_memory", true), "");
  EXPECT_THAT(stop("--nokeep_memory", false),
              AllOf(HasSubstr("keys and values are lost with this memory node's memory, and with them the whole store"),
                    HasSubstr("--keep_memory"), Not(HasSubstr("--drain"))));
}

TEST_F(LifeCycle, OddSizesAreRoundedUpToPages) {
  Program node("memnode", {fabric_.flag(), "--node=255", "--memory=10000001", "--metaserver", "--hugepages=off"});
  EXPECT_THAT(node.WaitForLine("ready"), AllOf(HasSubstr("node=255 "), HasSubstr("memory=10002432 ")));
  EXPECT_EQ(node.Stop(), 0) << node.Output();
}

TEST_F(LifeCycle, TwoNodesAndAPureMetaServerMakeOneStore) {
  Program meta("memnode", {fabric_.flag(), "--memory=0", "--metaserver"});
  ASSERT_THAT(meta.WaitForLine("ready"), AllOf(HasSubstr("memory=0 "), HasSubstr("metaserver=yes"))) << meta.Output();
  Program one("memnode", {fabric_.flag(), "--node=1", "--memory=64M", "--hugepages=off"});
  ASSERT_THAT(one.WaitForLine("ready"), AllOf(HasSubstr("home=yes"), HasSubstr("metaserver=no"))) << one.Output();
  Program two("memnode", {fabric_.flag(), "--node=2", "--memory=64M", "--hugepages=off"});
  ASSERT_THAT(two.WaitForLine("ready"), HasSubstr("home=no")) << two.Output();
  EXPECT_EQ(two.Stop(), 0) << two.Output();
  EXPECT_EQ(one.Stop(), 0) << one.Output();
  EXPECT_EQ(meta.Stop(), 0) << meta.Output();
  EXPECT_THAT(meta.out(), HasSubstr("memory=none"));
}

TEST_F(LifeCycle, TheFirstNodeMakesATableOfTheExpectedSize) {
  for (const char* more : {"--replicas=0", "--replicas=1"}) {
    Program node("memnode", {fabric_.flag(), "--node=1", "--memory=64M", "--metaserver", "--hugepages=off", more,
                             "--expected_records=100000"});
    ASSERT_THAT(node.WaitForLine("ready"), HasSubstr("home=yes")) << node.Output();
    {
      const auto store = kvs::Store::Open({.fabric = fabric_.name()}).value();
      EXPECT_EQ(store->NewClient().value()->ReadTableStats().value().subtables, 64u);
    }
    EXPECT_EQ(node.Stop(), 0) << node.Output();
  }
}

TEST_F(LifeCycle, NodesMayStartBeforeTheirMetaServer) {
  Program one("memnode", {fabric_.flag(), "--node=1", "--memory=64M", "--hugepages=off"});
  Program two("memnode", {fabric_.flag(), "--node=2", "--memory=64M", "--hugepages=off"});
  Program meta("memnode", {fabric_.flag(), "--memory=0", "--metaserver"});
  const std::string ready_one = one.WaitForLine("ready");
  const std::string ready_two = two.WaitForLine("ready");
  ASSERT_NE(ready_one, "") << one.Output();
  ASSERT_NE(ready_two, "") << two.Output();
  const bool home_one = ready_one.find("home=yes") != std::string::npos;
  const bool home_two = ready_two.find("home=yes") != std::string::npos;
  EXPECT_NE(home_one, home_two) << "exactly one is the home";
  EXPECT_EQ(one.Stop(), 0) << one.Output();
  EXPECT_EQ(two.Stop(), 0) << two.Output();
  EXPECT_EQ(meta.Stop(), 0) << meta.Output();
}

TEST_F(LifeCycle, ASignalWhileWaitingForTheMetaServerEndsTheWait) {
  Program node("memnode", {fabric_.flag(), "--node=1", "--memory=64M", "--wait_ms=3600000"});
  // It has the memory, so it has reached the wait or is just before it.
  while (fabric_.Files().size() < 2 && kill(node.pid(), 0) == 0) sched_yield();
  EXPECT_EQ(node.Stop(), 1) << node.Output();
  EXPECT_THAT(node.err(), HasSubstr("stopped by SIGTERM while starting"));
  EXPECT_THAT(fabric_.Files(), IsEmpty());
}

TEST_F(LifeCycle, ServingIsAllHugePagesOrNoCpu) {
  Program node("memnode", {fabric_.flag(), "--node=1", "--memory=64M", "--metaserver"});
  ASSERT_NE(node.WaitForLine("ready"), "") << node.Output();
  EXPECT_NE(node.WaitForLogLine("huge pages: "), "") << node.Output();
  ASSERT_EQ(node.Stop(), 0) << node.Output();
  const auto figure = [&](const std::string& name) {
    const size_t at = node.out().find(name + "=");
    return at == std::string::npos ? -1.0 : std::strtod(node.out().c_str() + at + name.size() + 1, nullptr);
  };
  const double cpu = figure("cpu_user_s") + figure("cpu_system_s");
  // Apart from huge pages and the looks for connections and at the store, CPU time goes only to the start and end of
  // threads and one printf.
  EXPECT_GE(figure("of_it_hugepages_s"), 0);
  EXPECT_GE(figure("of_it_rc_acceptor_s"), 0);
  EXPECT_EQ(figure("rc_requests"), 0);
  EXPECT_EQ(figure("of_it_dc_agent_s"), 0) << "no CPU serves DC here";
  EXPECT_GT(figure("of_it_housekeeper_s"), 0);
  const double others = figure("of_it_rc_acceptor_s") + figure("of_it_housekeeper_s");
  EXPECT_LT(cpu - figure("of_it_hugepages_s") - others, 0.1) << node.Output();
  EXPECT_LT(figure("of_it_housekeeper_s"), 0.05 + 0.03 * figure("served_s")) << node.Output();
  // This is far from a whole core. It allows several times the usual cost, because others disturb its caches.
  EXPECT_LT(figure("of_it_rc_acceptor_s"), 0.05 + 0.03 * figure("served_s")) << node.Output();
}

TEST_F(LifeCycle, KeptMemoryOutlivesTheStopAndIsAdoptedByTheNextStart) {
  const std::vector<std::string> args = {fabric_.flag(), "--node=1",        "--memory=64M",
                                         "--metaserver", "--hugepages=off", "--keep_memory"};
  for (const char* adopted : {"adopted=no", "adopted=yes"}) {
    Program node("memnode", args);
    ASSERT_THAT(node.WaitForLine("ready"), HasSubstr(adopted)) << node.Output();
    EXPECT_EQ(node.Stop(), 0) << node.Output();
    EXPECT_THAT(node.out(), HasSubstr("memory=kept"));
    EXPECT_THAT(fabric_.Files(), SizeIs(1));
  }
  EXPECT_EQ(RunProgram("memnode", {"--clean", fabric_.flag()}).status, 0);
}

}  // namespace
