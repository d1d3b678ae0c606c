// Memory nodes of a store whose pools are mirrored: they complete pools, die and are replaced.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/memnode/mirrored_nodes.h"
#include "tests/support/program.h"

namespace {

using ::testing::HasSubstr;
using testing_support::Finished;
using testing_support::Program;
using testing_support::RunProgram;

using Mirrored = surgekv_test::MirroredNodes;

TEST_F(Mirrored, NothingIsLostWhenMemoryNodesDieAndOthersTakeTheirPlaces) {
  auto [metadata, first, second] = StartPair();
  Write("before any death");
  first->Kill();
  RemoveMemoryOf(1);
  ExpectAllThere();
  Write("after the first death");
  auto third = Start(3);
  EXPECT_NE(third->WaitForLogLine("a replica of pool 1"), "") << third->Output();
  Write("after the first replacement");
  second->Kill();
  ExpectAllThere();
}

// The memory node comes back under its id, without its memory, before anybody has noticed that it was gone. The new
// memory is not taken for the old one.
TEST_F(Mirrored, ARestartedMemoryNodeIsNotTakenForWhatItWas) {
  auto [metadata, first, second] = StartPair();
  Write("before");
  first->Kill();
  RemoveMemoryOf(1);
  first = Start(1);
  ExpectAllThere();
  Write("after");
  EXPECT_NE(first->WaitForLogLine("a replica of pool 1"), "") << first->Output();
  second->Kill();
  ExpectAllThere();
}

// The application uses its client at the beginning and at the end, and does something else meanwhile.
TEST_F(Mirrored, AnIdleClientHoldsUpNoReplacement) {
  auto [metadata, first, second] = StartPair();
  Write("before");
  const auto idle = NewClient();
  ASSERT_TRUE(idle->Put("key-0", "before").ok());
  first->Kill();
  auto third = Start(3);
  EXPECT_NE(third->WaitForLogLine("a replica of pool 1"), "") << third->Output();
  second->Kill();
  std::string value;
  const auto got = idle->Get("key-0", &value);
  ASSERT_TRUE(got.ok()) << got.ToString();
  EXPECT_EQ(value, "before");
}

// Without a client nobody uses the pools, and yet the death is noticed.
TEST_F(Mirrored, ASpareTakesThePlaceOfADeadOneThoughNoClientIsThere) {
  auto [metadata, first, second] = StartPair();
  Write("before");
  auto spare = Start(3);
  EXPECT_NE(spare->WaitForLogLine("a replica of pool 2"), "") << spare->Output();
  (void)AwaitRedundancy(1);  // a change that is under way has clients, which would notice
  first->Kill();             // the home's head, and with it the store's only client
  EXPECT_NE(spare->WaitForLogLine("a replica of pool 1"), "") << spare->Output();
  second->Kill();
  ExpectAllThere();
}

TEST_F(Mirrored, TheLastNodeThatStopsWarnsOfWhatIsLost) {
  auto [metadata, first, second] = StartPair();
  Write("lost");
  store_.reset();
  EXPECT_EQ(second->Stop(), 0);
  EXPECT_EQ(first->Stop(), 0);  // before anybody has missed the other one
  const std::string warning = "no other memory node has a replica of its pool";
  EXPECT_THAT(first->Output(), HasSubstr(warning));
  EXPECT_THAT(second->Output(), ::testing::Not(HasSubstr(warning)));
}

TEST_F(Mirrored, SurgeSaysWhichReplicaANodeIsAndWhatAPoolLacks) {
  const auto metadata = StartMetaServer();
  auto first = Start(1, {"--replicas=2"});
  auto second = Start(2);
  nlohmann::json status = AwaitRedundancy(1);
  EXPECT_EQ(PlaceOf(status, 1), "1 head");
  EXPECT_EQ(PlaceOf(status, 2), "1 tail");
  for (const auto& node : status["nodes"]) EXPECT_EQ(node["state"], "serving") << node.dump();
  EXPECT_EQ(status["memory"]["total_bytes"], 64 << 20) << "the pool counts once";
  const auto number = status["configuration"].get<int>();
  first->Kill();
  status = AwaitStatus([](const auto& now) { return PlaceOf(now, 2) == "1 only"; });
  EXPECT_GT(status["configuration"], number);
  EXPECT_THAT(status["problems"].dump(), HasSubstr("pool 1 has 1 of 2 replicas"));
}

TEST_F(Mirrored, WhatDoesNotGoTogetherIsRefused) {
  const auto error = [&](std::vector<std::string> more) {
    std::vector<std::string> args = {fabric_.flag(), "--node=1", "--memory=64M", "--metaserver"};
    args.insert(args.end(), more.begin(), more.end());
    const Finished finished = RunProgram("memnode", args);
    EXPECT_NE(finished.status, 0);
    return finished.err;
  };
  EXPECT_THAT(error({"--replicas=4"}), HasSubstr("--replicas=4"));
  EXPECT_THAT(error({"--replicas=2", "--rnic=verbs", "--fabric_address=127.0.0.1"}), HasSubstr("--rnic=sw"));
  const auto metadata = StartMetaServer();
  auto first = Start(1, {"--replicas=2"});
  for (const char* plane : {"lite", "verbs"}) {
    const auto opened = kvs::Store::Open({.fabric = fabric_.name(), .control_plane = plane});
    EXPECT_EQ(opened.status().code(), kvs::StatusCode::kUnsupported) << opened.status().ToString();
    EXPECT_THAT(std::string(opened.status().message()), HasSubstr(plane));
  }
}

TEST_F(Mirrored, AStoreThatIsNotMirroredStaysSo) {
  Program first("memnode", {fabric_.flag(), "--node=1", "--memory=64M", "--metaserver", "--hugepages=off"});
  ASSERT_NE(first.WaitForLine("ready"), "") << first.Output();
  const Finished second = RunProgram("memnode", {fabric_.flag(), "--node=2", "--memory=64M", "--replicas=2"});
  EXPECT_NE(second.status, 0);
  EXPECT_THAT(second.err, HasSubstr("not mirrored"));
}

}  // namespace
