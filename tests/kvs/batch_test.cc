// Batches by themselves: which verbs go where, and which go nowhere.
#include <gtest/gtest.h>

#include <coroutine>
#include <cstring>
#include <memory>

#include "krcore/baseline.h"
#include "kvs/src/connections.h"
#include "tests/kvs/test_store.h"

namespace surgekv_test {
namespace {

class Batches : public ::testing::Test {
 protected:
  static constexpr uint64_t kAt = (size_t{64} << 20) - 256;  // in every pool: near its end, and free
  void SetUp() override {
    auto node = krcore::OpenNode("krcore", {.rnic = "sw", .fabric = store_.fabric()});
    ASSERT_TRUE(node.ok()) << node.status().ToString();
    node_ = *std::move(node);
    auto words = node_->CreateRegion({.length = 4096});
    ASSERT_TRUE(words.ok()) << words.status().ToString();
    words_ = *std::move(words);
    connections_ = std::make_unique<kvs::Connections>(*node_, 1'000'000'000, stats_);
    ASSERT_TRUE(connections_->Open(16).ok());
    for (const krcore::NodeId memory_node : {1, 2}) ASSERT_TRUE(connections_->Reach(memory_node));
    batch_.Attach(connections_.get(), words_->lkey());
    for (uint64_t i = 0; i < 8; ++i) local()[i] = 100 + i;
  }
  uint64_t* local() { return reinterpret_cast<uint64_t*>(words_->bytes().data()); }
  uint64_t RemoteWord(krcore::NodeId node, uint64_t i) const {
    uint64_t word;
    std::memcpy(&word, &store_.memory_of(node)[kAt + i * sizeof(word)], sizeof(word));
    return word;
  }
  // Adds a WRITE of local word i to the word of that number.
  void Write(krcore::NodeId node, uint64_t i) {
    batch_.Write(local() + i, {node, kAt + i * sizeof(uint64_t)}, sizeof(uint64_t));
  }
  kvs::Outcome Run() {
    auto run = batch_.Run();
    if (!run.await_ready()) {
      run.await_suspend(std::noop_coroutine());
      for (int i = 0; i < 1'000 && kvs::RunQueue::OfThisThread().empty(); ++i) connections_->Poll();
      EXPECT_EQ(kvs::RunQueue::OfThisThread().RunAll(), 1u);
    }
    return run.await_resume();
  }

  TestStore store_{{.memory_nodes = 2}};
  std::unique_ptr<krcore::Node> node_;
  std::unique_ptr<krcore::Region> words_;
  kvs::ClientStats stats_;
  std::unique_ptr<kvs::Connections> connections_;
  kvs::Batch batch_{8};
};

TEST_F(Batches, EachVerbGoesToItsNodeHoweverTheyAreMixed) {
  const krcore::NodeId mixes[][3] = {{1, 1, 1}, {2, 2, 2}, {1, 2, 2}, {1, 1, 2}, {1, 2, 1}, {2, 1, 1}};
  for (const auto& mix : mixes) {
    for (uint64_t i = 0; i < 3; ++i) {
      ++local()[i];
      Write(mix[i], i);
    }
    ASSERT_EQ(Run(), kvs::Outcome::kOk);
    for (uint64_t i = 0; i < 3; ++i) {
      EXPECT_EQ(RemoteWord(mix[i], i), local()[i]);
      EXPECT_NE(RemoteWord(3 - mix[i], i), local()[i]);
    }
  }
}

TEST_F(Batches, OfAnEndedRegistrationPostNothing) {
  for (const krcore::NodeId second : {1, 2}) {
    connections_->Fence();
    Write(1, 0);
    Write(second, 1);
    EXPECT_EQ(Run(), kvs::Outcome::kFenced);
    for (int i = 0; i < 10; ++i) connections_->Poll();
    EXPECT_EQ(RemoteWord(1, 0), 0u);
    EXPECT_EQ(RemoteWord(second, 1), 0u);
  }
  batch_.Renew();
  Write(1, 0);
  EXPECT_EQ(Run(), kvs::Outcome::kOk);
  EXPECT_EQ(RemoteWord(1, 0), local()[0]);
}

}  // namespace
}  // namespace surgekv_test
