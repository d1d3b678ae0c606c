// What the tests of a client's parts share: each part is made only of the parts that its constructor asks for.
#ifndef SURGEKV_TESTS_KVS_PARTS_TESTING_H_
#define SURGEKV_TESTS_KVS_PARTS_TESTING_H_

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <string_view>

#include "krcore/control_plane.h"
#include "kvs/epochs/epochs.h"
#include "kvs/table/table.h"
#include "tests/kvs/given_back.h"
#include "tests/kvs/manual_clock.h"
#include "tests/kvs/test_store.h"

namespace surgekv_test {

using kvs::ClientWord;
using kvs::GlobalAddress;
using kvs::Operation;
using kvs::StatusCode;
using kvs::Step;
using kvs::Task;

constexpr int64_t kLeaseNs = 1'000'000'000;
constexpr uint32_t kInFlight = 2;

inline void RunReady() { kvs::RunQueue::OfThisThread().RunAll(); }

// A store of two memory nodes, whose table has two subtables.
class Parts : public ::testing::Test {
 protected:
  void SetUp() override {
    store_state_.identity.Set(1, kTestSeed);
    ASSERT_TRUE(connections_.Open(512).ok());
    for (const krcore::NodeId memory_node : {1, 2}) ASSERT_TRUE(connections_.Reach(memory_node));
  }
  kvs::ArenaPart arena() { return {arena_->bytes().data(), arena_->lkey()}; }
  kvs::ArenaPart workbench_arena() { return arena().After(kvs::Epochs::ArenaBytes(kInFlight)); }

  // Polls until `ended()`, with `round` before each poll. If that never comes, the exception fails the test at once.
  template <typename Ended, typename Round = void (*)()>
  void PollUntil(Ended ended, Round round = RunReady) {
    for (int rounds = 0; !ended(); ++rounds) {
      if (rounds == 100'000) throw std::runtime_error("what the test waits for does not happen");
      round();
      connections_.Poll();
      RunReady();
    }
  }
  // Runs the task to its end.
  template <typename T>
  T Run(Task<T> task) {
    task.Start();
    PollUntil([&] { return task.done(); });
    return task.Take();
  }

  // Memory of the memory nodes; the home area is the first one's.
  uint64_t& PoolWord(GlobalAddress at) { return *reinterpret_cast<uint64_t*>(&store_.memory_of(at.node)[at.offset]); }
  kvs::ChunkWord Chunk(uint64_t chunk) { return kvs::ChunkWord(PoolWord({2, kvs::ChunkWordOffset(chunk)})); }
  kvs::HomeArea& Home() { return *reinterpret_cast<kvs::HomeArea*>(&store_.memory()[kvs::kHomeAreaOffset]); }
  kvs::OwnerWord Owner(uint32_t index) { return kvs::OwnerWord(Home().clients[index].owner); }
  ClientWord Word(uint32_t index) { return ClientWord(Home().clients[index].word); }
  kvs::MemberState StateOfTwo() { return kvs::MemberWord(Home().members[2]).state(); }

  // Another client, which has all parts, puts keys and gets them.
  void PutKeys(uint32_t count) {
    other_ = store_.NewClient();
    for (; keys_ < count; ++keys_) ASSERT_TRUE(other_->Put(Key(keys_), Value(keys_)).ok());
  }
  void CheckKeys() {
    std::string value;
    for (uint32_t i = 0; i < keys_; ++i) {
      EXPECT_TRUE(other_->Get(Key(i), &value).ok() && value == Value(i)) << Key(i);
    }
    CheckPools(store_);
  }

  ManualClock clock_;
  TestStore store_{{.groups = 2, .initial_depth = 1, .clock = &clock_, .memory_nodes = 2, .lease_ns = kLeaseNs}};
  std::unique_ptr<krcore::Node> node_ =
      krcore::OpenNode("krcore", {.rnic = "sw", .fabric = store_.fabric(), .clock = &clock_}).value();
  kvs::ClientStats stats_;
  std::minstd_rand random_{2};  // then the entries before and after this client's are in the part in use
  const kvs::StoreShape shape_{.home = 1,
                               .geometry = {2},
                               .lease_ns = kLeaseNs,
                               .hasher = kvs::Hasher(kTestSeed),
                               .operation_timeout_ns = kLeaseNs};
  kvs::StoreState store_state_;
  kvs::Connections connections_{*node_, store_state_.identity, kLeaseNs, stats_};
  const size_t arena_bytes_ = kvs::Epochs::ArenaBytes(kInFlight) + kvs::Workbench::ArenaBytes(shape_.geometry);
  std::unique_ptr<krcore::Region> arena_ = node_->CreateRegion({.length = arena_bytes_}).value();
  kvs::Nonces nonces_{node_->id(), node_->incarnation(), 0};
  const kvs::Common common_{*node_, clock_, connections_, stats_, random_, shape_, store_state_, nonces_};
  std::unique_ptr<kvs::Client> other_;
  uint32_t keys_ = 0;
};

// The parts of a registered client that lie below the table.
class TableParts : public Parts {
 protected:
  void SetUp() override {
    Parts::SetUp();
    ASSERT_EQ(Run(epochs_.home.Glance()), Step::kOk);
    epochs_.memory.Renew();
    connections_.pool().SetGate(&epochs_.registration);
    ASSERT_EQ(Run(epochs_.registrar.Register()), Step::kOk);
    ASSERT_EQ(epochs_.registration.standing(), kvs::Registration::Standing::kAlive);
    ASSERT_EQ(epochs_.registration.word().epoch(), Home().epoch);
  }
  void TearDown() override {
    if (HasFatalFailure()) return;  // a part that is gone may have stopped in the middle of something
    EXPECT_EQ(Run(epochs_.registrar.Unregister()), Step::kOk);
    EXPECT_TRUE(epochs_.operations.all_free());
  }
  Operation& TakeOperation(std::string_view key) {
    return epochs_.operations.Take(*epochs_.operations.FreeOperation(), key, shape_.hasher(key), true);
  }
  kvs::Epochs epochs_{common_, kInFlight, arena()};
};

}  // namespace surgekv_test

#endif  // SURGEKV_TESTS_KVS_PARTS_TESTING_H_
