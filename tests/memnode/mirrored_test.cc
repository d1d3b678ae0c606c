// Memory nodes of a store whose pools are mirrored: they complete pools, die and are replaced.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "kvs/client.h"
#include "tests/support/program.h"

namespace {

using ::testing::HasSubstr;
using testing_support::Finished;
using testing_support::Program;
using testing_support::RunProgram;
using testing_support::TestFabric;

class Mirrored : public ::testing::Test {
 protected:
  std::unique_ptr<Program> Start(int node, std::vector<std::string> more = {}) {
    std::vector<std::string> args = {fabric_.flag(), "--node=" + std::to_string(node), "--memory=64M",
                                     "--hugepages=off", "--wait_ms=20000"};
    args.insert(args.end(), more.begin(), more.end());
    auto program = std::make_unique<Program>("memnode", args);
    EXPECT_THAT(program->WaitForLine("ready"), HasSubstr("mirrored=yes")) << program->Output();
    return program;
  }
  // A metadata server that outlives the memory nodes.
  std::unique_ptr<Program> StartMetaServer() {
    auto program = std::make_unique<Program>(
        "memnode", std::vector<std::string>{fabric_.flag(), "--node=200", "--memory=0", "--metaserver"});
    EXPECT_NE(program->WaitForLine("ready"), "") << program->Output();
    return program;
  }
  // What killed programs have left goes.
  void TearDown() override {
    store_.reset();
    (void)RunProgram("memnode", {fabric_.flag(), "--clean"});
  }
  // Its clients live no longer than they are used: one that is not polled holds up joins.
  std::unique_ptr<kvs::Client> NewClient() {
    if (store_ == nullptr) store_ = kvs::Store::Open({.fabric = fabric_.name()}).value();
    return store_->NewClient().value();
  }
  void Write(const std::string& value) {
    const auto client = NewClient();
    for (int i = 0; i < 300; ++i) {
      const std::string key = "key-" + std::to_string(i);
      const auto put = client->Put(key, value);
      ASSERT_TRUE(put.ok()) << key << ": " << put.ToString();
      contents_[key] = value;
    }
  }
  void ExpectAllThere() {
    const auto client = NewClient();
    for (const auto& [key, value] : contents_) {
      std::string read;
      const auto got = client->Get(key, &read);
      ASSERT_TRUE(got.ok()) << key << ": " << got.ToString();
      ASSERT_EQ(read, value);
    }
  }

  TestFabric fabric_;
  std::map<std::string, std::string> contents_;
  std::unique_ptr<kvs::Store> store_;
};

TEST_F(Mirrored, NothingIsLostWhenMemoryNodesDieAndOthersTakeTheirPlaces) {
  const auto metadata = StartMetaServer();
  auto first = Start(1, {"--replicas=2"});
  auto second = Start(2);
  EXPECT_NE(second->WaitForLogLine("a replica of pool 1"), "") << second->Output();
  Write("before any death");
  first->Kill();
  ExpectAllThere();
  Write("after the first death");
  auto third = Start(3);
  EXPECT_NE(third->WaitForLogLine("a replica of pool 1"), "") << third->Output();
  Write("after the first replacement");
  second->Kill();
  ExpectAllThere();
}

// The memory node comes back under its id before anybody has noticed that it was gone. Its new memory is not taken for
// the old one.
TEST_F(Mirrored, ARestartedMemoryNodeIsNotTakenForWhatItWas) {
  const auto metadata = StartMetaServer();
  auto first = Start(1, {"--replicas=2"});
  auto second = Start(2);
  EXPECT_NE(second->WaitForLogLine("a replica of pool 1"), "") << second->Output();
  Write("before");
  first->Kill();
  first = Start(1);
  ExpectAllThere();
  Write("after");
  EXPECT_NE(first->WaitForLogLine("a replica of pool 1"), "") << first->Output();
  second->Kill();
  ExpectAllThere();
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
  EXPECT_THAT(error({"--replicas=2", "--keep_memory"}), HasSubstr("do not go together yet"));
  EXPECT_THAT(error({"--replicas=2", "--rnic=verbs", "--fabric_address=127.0.0.1"}), HasSubstr("--rnic=sw"));
  const auto metadata = StartMetaServer();
  auto first = Start(1, {"--replicas=2"});
  const Finished drain = RunProgram("memnode", {fabric_.flag(), "--drain=1"});
  EXPECT_THAT(drain.err, HasSubstr("cannot be drained yet"));
}

TEST_F(Mirrored, AStoreThatIsNotMirroredStaysSo) {
  Program first("memnode", {fabric_.flag(), "--node=1", "--memory=64M", "--metaserver", "--hugepages=off"});
  ASSERT_NE(first.WaitForLine("ready"), "") << first.Output();
  const Finished second = RunProgram("memnode", {fabric_.flag(), "--node=2", "--memory=64M", "--replicas=2"});
  EXPECT_NE(second.status, 0);
  EXPECT_THAT(second.err, HasSubstr("not mirrored"));
}

}  // namespace
