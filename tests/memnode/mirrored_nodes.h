// The memory nodes of a store whose pools are mirrored, as programs, and what `surge status` says of them.
#ifndef TESTS_MEMNODE_MIRRORED_NODES_H_
#define TESTS_MEMNODE_MIRRORED_NODES_H_

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "krcore/node.h"
#include "kvs/client.h"
#include "kvs/layout/configuration.h"
#include "kvs/memory/remote_pool.h"
#include "tests/support/program.h"

namespace surgekv_test {

using testing_support::Program;
using testing_support::RunProgram;
using testing_support::TestFabric;

inline double SecondsSince(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

class MirroredNodes : public ::testing::Test {
 protected:
  std::unique_ptr<Program> Start(int node, std::vector<std::string> more = {}) {
    std::vector<std::string> args = {fabric_.flag(), "--node=" + std::to_string(node), "--memory=64M",
                                     "--hugepages=off", "--wait_ms=20000"};
    args.insert(args.end(), more.begin(), more.end());
    auto program = std::make_unique<Program>("memnode", args);
    EXPECT_THAT(program->WaitForLine("ready"), ::testing::HasSubstr("mirrored=yes")) << program->Output();
    return program;
  }
  // A metadata server that is not a memory node.
  std::unique_ptr<Program> StartMetaServer(int node = 200) {
    auto program = std::make_unique<Program>(
        "memnode",
        std::vector<std::string>{fabric_.flag(), "--node=" + std::to_string(node), "--memory=0", "--metaserver"});
    EXPECT_NE(program->WaitForLine("ready"), "") << program->Output();
    return program;
  }
  // A metadata server, and the two memory nodes of one pool; the second has copied all that the first has.
  struct Pair {
    std::unique_ptr<Program> metadata, first, second;
  };
  Pair StartPair() {
    Pair pair{StartMetaServer(), Start(1, {"--replicas=2"}), Start(2)};
    EXPECT_NE(pair.second->WaitForLogLine("a replica of pool 1"), "") << pair.second->Output();
    return pair;
  }
  // What killed programs have left goes.
  void TearDown() override {
    store_.reset();
    nodes_.clear();
    metadata_.clear();
    (void)RunProgram("memnode", {fabric_.flag(), "--clean"});
  }
  std::unique_ptr<kvs::Client> NewClient() {
    if (store_ == nullptr) store_ = kvs::Store::Open({.fabric = fabric_.name()}).value();
    return store_->NewClient().value();
  }
  void Write(const std::string& value, int keys = 300) {
    const auto client = NewClient();
    for (int i = 0; i < keys; ++i) {
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
  // What the others do to a node that they cannot reach: it leaves the configuration. Returns what it was.
  kvs::Replica RemoveFromPool(krcore::NodeId node) {
    const auto own = krcore::Node::Open({.fabric = fabric_.name()}).value();
    for (;;) {
      uint64_t version = 0;
      kvs::Configuration configuration = kvs::ReadConfiguration(*own, {}, &version).value();
      std::vector<kvs::Replica> all;
      for (const kvs::PoolView& view : configuration.pools) {
        all.insert(all.end(), view.chain.begin(), view.chain.end());
        all.push_back(view.learner);
      }
      const auto found = std::ranges::find(all, node, &kvs::Replica::node);
      if (found == all.end() || !configuration.Remove(*found)) {
        ADD_FAILURE() << "node " << node << " cannot be removed";
        return {};
      }
      if (own->CompareAndSetRecord(kvs::kConfigurationRecord, version, Encode(configuration), {}).ok()) return *found;
    }
  }
  // The memory that a killed node leaves in /dev/shm.
  void RemoveMemoryOf(int node) {
    const std::string mark = ".m" + std::to_string(node) + "-pool";
    size_t removed = 0;
    for (const std::string& file : fabric_.Files()) {
      if (file.ends_with(mark)) removed += unlink(("/dev/shm/" + file).c_str()) == 0 ? 1 : 0;
    }
    EXPECT_EQ(removed, 1u) << mark;
  }

  // Waits until a client that is opened now takes memory in both pools.
  void AwaitMemoryInBothPools() {
    EXPECT_TRUE(Await([&] { return NewClient()->ReadTableStats()->memory_nodes.size() == 2; })) << "one is not in use";
  }
  // Else no key would miss a memory node that dies.
  static void ExpectEachHoldsKeys(const nlohmann::json& status) {
    for (const auto& node : status["nodes"]) {
      if (!node["memory"].is_null()) {
        EXPECT_GT(node["memory"]["live_bytes"], 0) << node.dump();
      }
    }
  }

  nlohmann::json Status() {
    const auto finished = RunProgram("surge", {"status", fabric_.flag(), "--json"});
    EXPECT_EQ(finished.status, 0) << finished.err;
    return nlohmann::json::parse(finished.out, nullptr, /*allow_exceptions=*/false);
  }
  // Stops the program (SIGSTOP) where it does not hold the lock of the fabric, for which everybody else would wait.
  // Returns the status meanwhile.
  nlohmann::json Pause(Program& program) {
    for (int attempt = 0; attempt < 10; ++attempt) {
      program.Signal(SIGSTOP);
      const auto finished = RunProgram("surge", {"status", fabric_.flag(), "--json"});
      if (finished.status == 0) return nlohmann::json::parse(finished.out);
      program.Signal(SIGCONT);
      usleep(1'000);  // so that it gets beyond the lock
    }
    ADD_FAILURE() << "it holds the lock of the fabric whenever it is stopped";
    return {};
  }
  // The place of a living node, as "1 tail", "2 learner", "spare"; empty: it has none.
  static std::string PlaceOf(const nlohmann::json& status, int node) {
    for (const auto& each : status["nodes"]) {
      if (each["id"] != node || each["state"] == "dead" || each["replica"].is_null()) continue;
      const std::string replica = each["replica"];
      return each["pool"].is_null() ? replica : std::to_string(each["pool"].get<int>()) + " " + replica;
    }
    return "";
  }
  // The living node at a place; 0: none.
  static int NodeAt(const nlohmann::json& status, const std::string& place) {
    for (const auto& each : status["nodes"]) {
      const int node = each["id"];
      if (PlaceOf(status, node) == place) return node;
    }
    return 0;
  }
  // Asks until `holds()`, and returns whether it came to hold.
  template <typename Holds>
  static bool Await(Holds holds) {
    for (const auto begin = std::chrono::steady_clock::now(); SecondsSince(begin) * 1'000 < Program::kPatienceMs;) {
      if (holds()) return true;
      usleep(20'000);  // nothing tells of it, and each question takes CPU from the store
    }
    return false;
  }
  // Waits until what `surge status` says satisfies `wanted`, and returns it.
  template <typename Wanted>
  nlohmann::json AwaitStatus(Wanted wanted) {
    nlohmann::json status;
    EXPECT_TRUE(Await([&] { return wanted(status = Status()); })) << status.dump(1);
    return status;
  }
  // Waits until so many pools, of two replicas each, have them, and until nothing changes. Returns what is there then.
  nlohmann::json AwaitRedundancy(int pools) {
    return AwaitStatus([pools](const nlohmann::json& status) {
      bool complete = status["problems"].empty();
      for (int pool = 1; pool <= pools && complete; ++pool) {
        for (const char* place : {" head", " tail"}) complete &= NodeAt(status, std::to_string(pool) + place) != 0;
      }
      return complete;
    });
  }

  TestFabric fabric_;
  std::map<std::string, std::string> contents_;
  std::map<int, std::unique_ptr<Program>> nodes_, metadata_;  // of tests that start them by their numbers
  std::unique_ptr<kvs::Store> store_;
};

}  // namespace surgekv_test

#endif  // TESTS_MEMNODE_MIRRORED_NODES_H_
