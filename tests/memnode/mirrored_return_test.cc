// Memory nodes of a store whose pools are mirrored that come back after others removed them although they lived.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tests/memnode/mirrored_nodes.h"
#include "tests/support/program.h"

namespace {

using ::testing::HasSubstr;
using testing_support::Program;

class MirroredReturn : public surgekv_test::MirroredNodes {
 protected:
  Program& StartNode(int node, std::vector<std::string> more = {}) {
    nodes_[node] = Start(node, std::move(more));
    return *nodes_.at(node);
  }
  void TearDown() override {
    nodes_.clear();
    metadata_.reset();
    MirroredNodes::TearDown();
  }

  std::map<int, std::unique_ptr<Program>> nodes_;
  std::unique_ptr<Program> metadata_;
};

TEST_F(MirroredReturn, AMemoryNodeThatWasRemovedWhileItLivedJoinsAgain) {
  metadata_ = StartMetaServer();
  StartNode(1, {"--replicas=2"});
  Program& second = StartNode(2);
  EXPECT_NE(second.WaitForLogLine("a replica of pool 1"), "") << second.Output();
  Write("before");
  (void)AwaitRedundancy(1);
  second.Signal(SIGSTOP);
  const kvs::Replica removed = RemoveFromPool(2);
  Write("without it");
  second.Signal(SIGCONT);
  EXPECT_NE(second.WaitForLogLine("was replaced while it did not answer"), "") << second.Output();
  EXPECT_THAT(second.WaitForLine("ready"), HasSubstr("adopted=no")) << second.Output();
  EXPECT_NE(second.WaitForLogLine("a replica of pool 1"), "") << second.Output();
  (void)AwaitRedundancy(1);
  EXPECT_NE(RemoveFromPool(1).node, 0);  // the last one would not leave
  ExpectAllThere();
  const auto node = krcore::Node::Open({.fabric = fabric_.name()}).value();
  const kvs::Replica now = kvs::ReadConfiguration(*node, {})->Find(1)->chain.front();
  EXPECT_EQ(now.node, removed.node);
  EXPECT_NE(now.incarnation, removed.incarnation);
}

}  // namespace
