// A store of real processes: a metadata server and two memory nodes, and ycsb on them.
#ifndef TESTS_INTEGRATION_RUNNING_STORE_H_
#define TESTS_INTEGRATION_RUNNING_STORE_H_

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "tests/support/program.h"

namespace testing_support {

class RunningStore {
 public:
  explicit RunningStore(const std::string& memory = "64M") : memory_(memory) {
    meta_ = Start({"--memory=0", "--metaserver"});
    for (int node = 1; node <= 2; ++node) StartNode(node);
  }
  // Stops everything; the test fails unless all stops cleanly and leaves nothing behind.
  ~RunningStore() {
    bool killed = false;
    for (auto& node : nodes_) {
      if (node == nullptr) {
        killed = true;
      } else {
        EXPECT_EQ(node->Stop(), 0) << node->Output();
      }
    }
    EXPECT_EQ(meta_->Stop(), 0) << meta_->Output();
    if (killed) {
      EXPECT_EQ(RunProgram("memnode", {"--clean", fabric_.flag()}).status, 0);
    }
  }

  const TestFabric& fabric() const { return fabric_; }
  void StartNode(int node) {
    nodes_[node - 1] = Start({"--node=" + std::to_string(node), "--memory=" + memory_, "--hugepages=off"});
  }
  Program& node(int node) { return *nodes_[node - 1]; }
  void KillNode(int node) {
    nodes_[node - 1]->Kill();
    nodes_[node - 1] = nullptr;
  }

  std::vector<std::string> YcsbArgs(const std::string& phase, char workload,
                                    const std::vector<std::string>& more) const {
    std::vector<std::string> args = {phase, fabric_.flag(),
                                     "-P",  testing_support::SourceDir() + "ycsb/workloads/workload" + workload,
                                     "-p",  "recordcount=" + std::to_string(kRecords)};
    args.insert(args.end(), more.begin(), more.end());
    return args;
  }
  Finished Ycsb(const std::string& phase, char workload, const std::vector<std::string>& more = {}) const {
    return RunProgram("ycsb", YcsbArgs(phase, workload, more));
  }

  static constexpr int kRecords = 20'000;

 private:
  std::unique_ptr<Program> Start(std::vector<std::string> args) {
    args.insert(args.begin(), fabric_.flag());
    auto program = std::make_unique<Program>("memnode", args);
    EXPECT_NE(program->WaitForLine("ready"), "") << program->Output();
    return program;
  }

  TestFabric fabric_;  // first, so that it looks for leftovers last
  std::string memory_;
  std::unique_ptr<Program> meta_;
  std::unique_ptr<Program> nodes_[2];
};

}  // namespace testing_support

#endif  // TESTS_INTEGRATION_RUNNING_STORE_H_
