// Batches by themselves: which verbs go where, and which go nowhere.
#include <gtest/gtest.h>

#include <coroutine>
#include <cstring>
#include <memory>
#include <vector>

#include "krcore/control_plane.h"
#include "kvs/memory/connections.h"
#include "tests/kvs/test_store.h"

namespace surgekv_test {
namespace {

// Without this gate, a queue of sw executes at once what is handed to it.
struct ShutGate final : krcore::PostGate {
  bool MayPost() override { return false; }
};

class Batches : public ::testing::Test {
 protected:
  static constexpr uint64_t kAt = (size_t{64} << 20) - 256;  // in every pool: near its end, and unused
  void SetUp() override {
    auto node = krcore::OpenNode("krcore", {.rnic = "sw", .fabric = store_.fabric()});
    ASSERT_TRUE(node.ok()) << node.status().ToString();
    node_ = *std::move(node);
    auto words = node_->CreateRegion({.length = 4096});
    ASSERT_TRUE(words.ok()) << words.status().ToString();
    words_ = *std::move(words);
    kvs::Superblock super;
    std::memcpy(&super, store_.memory_of(1).data(), sizeof(super));
    identity_.Set(1, super.hash_seed);
    connections_ = std::make_unique<kvs::Connections>(*node_, identity_, 1'000'000'000, stats_);
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
  // Adds a WRITE of local word i to word i at the node.
  void Write(krcore::NodeId node, uint64_t i) {
    batch_.Write(local() + i, {node, kAt + i * sizeof(uint64_t)}, sizeof(uint64_t));
  }
  // Starts node 2 again, with empty memory.
  void RestartSecond() {
    store_.StopMemoryNode(2);
    auto& member = reinterpret_cast<kvs::HomeArea*>(store_.memory().data() + kvs::kHomeAreaOffset)->members[2];
    member = kvs::MemberWord(member).Become(kvs::MemberState::kDrained).word();  // otherwise it would not be taken back
    store_.StartMemoryNode(2);
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
  ShutGate shut_gate_;
  kvs::StoreIdentity identity_;
  std::unique_ptr<kvs::Connections> connections_;
  kvs::Batch batch_;
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

TEST_F(Batches, FailWhereAMemoryNodeCannotBeReachedAndAreDoneAtTheOthers) {
  store_.StopMemoryNode(2);
  connections_->Forget(2);
  Write(2, 0);
  EXPECT_EQ(Run(), kvs::Outcome::kUnavailable) << "with nothing to wait for";
  Write(1, 0);
  Write(2, 1);
  Write(1, 2);
  EXPECT_EQ(Run(), kvs::Outcome::kUnavailable);
  EXPECT_TRUE(batch_.FailedAt(2));
  EXPECT_FALSE(batch_.FailedAt(1));
  for (const uint64_t i : {0, 2}) EXPECT_EQ(RemoteWord(1, i), local()[i]);
}

TEST(Outbox, MarksTheLastVerbAloneThoughItWasRefusedBefore) {
  kvs::Outbox outbox(16);
  kvs::Batch first, second;
  const std::array verbs_there = {kvs::Verb{krcore::Opcode::kRead, 8, {1, 8, 2}}};
  outbox.Add(verbs_there, 100, 3, &first);
  EXPECT_TRUE(kvs::Outbox::IsMarker(outbox.Verbs()[0].wr_id));
  outbox.Refused();
  outbox.Add(verbs_there, 200, 3, &second);
  const std::span<const krcore::WorkRequest> verbs = outbox.Verbs();
  ASSERT_EQ(verbs.size(), 2u);
  EXPECT_EQ(verbs[0].wr_id, reinterpret_cast<uint64_t>(&first));
  EXPECT_EQ(verbs[0].flags, 0);
  EXPECT_EQ(verbs[0].remote_addr, 108u);
  EXPECT_EQ(outbox.BatchOf(verbs[1].wr_id), &second);
  EXPECT_EQ(verbs[1].flags, krcore::kSignaled);
  EXPECT_EQ(verbs[1].remote_addr, 208u);
}

// Batches that begin together. Each has some WRITEs of local word 0 to words of its own at node 1.
class ManyBatches : public Batches {
 protected:
  static constexpr uint64_t kWordsThere = 256 / sizeof(uint64_t);  // from kAt on

  // Begins one more batch of `verbs` verbs, at word `at` or where the previous batch ended.
  void Begin(uint32_t verbs, uint64_t at = UINT64_MAX) {
    std::vector<kvs::GlobalAddress> addresses;
    for (uint32_t i = 0; i < verbs; ++i)
      addresses.push_back({1, at != UINT64_MAX ? at : kAt + (next_++ % kWordsThere) * sizeof(uint64_t)});
    Begin(addresses);
  }
  void Begin(const std::vector<kvs::GlobalAddress>& addresses) {
    kvs::Batch& batch = *begun_.emplace_back(std::make_unique<kvs::Batch>());
    batch.Attach(connections_.get(), words_->lkey());
    for (const kvs::GlobalAddress& address : addresses) batch.Write(local(), address, sizeof(uint64_t));
    auto run = batch.Run();
    ASSERT_FALSE(run.await_ready());
    run.await_suspend(std::noop_coroutine());
  }
  void AwaitAll() {
    size_t ended = 0;
    for (int i = 0; i < 1'000 && ended < begun_.size(); ++i) {
      connections_->Poll();
      ended += kvs::RunQueue::OfThisThread().RunAll();
    }
    ASSERT_EQ(ended, begun_.size()) << "each once";
    EXPECT_EQ(connections_->Poll(), 0u);
    EXPECT_TRUE(kvs::RunQueue::OfThisThread().empty());
  }
  kvs::Outcome OutcomeOf(size_t i) { return begun_[i]->Run().await_resume(); }

  std::vector<std::unique_ptr<kvs::Batch>> begun_;
  uint64_t next_ = 0;
};

TEST_F(ManyBatches, ThatWaitForRoomConnectToTheOthersThatTheyNeed) {
  connections_ = std::make_unique<kvs::Connections>(*node_, identity_, 1'000'000'000, stats_);
  ASSERT_TRUE(connections_->Open(16).ok());
  ASSERT_TRUE(connections_->Reach(1));
  for (int i = 0; i < 4; ++i) Begin(8);
  Begin({{1, kAt}, {2, kAt}});
  ASSERT_TRUE(connections_->any_stalled());
  AwaitAll();
  EXPECT_EQ(OutcomeOf(4), kvs::Outcome::kOk);
  EXPECT_EQ(RemoteWord(2, 0), local()[0]);
}

// Verbs that are added once there is room again still wait for those that wait already.
TEST_F(ManyBatches, WhoseVerbsWaitForRoomKeepTheirOrderAtEachNode) {
  for (int i = 0; i < 4; ++i) Begin(8, kAt + 64);
  kvs::Batch& batch = *begun_.emplace_back(std::make_unique<kvs::Batch>());
  batch.Attach(connections_.get(), words_->lkey());
  for (uint64_t i = 1; i < 8; ++i) {
    if (i == 5) connections_->Poll();
    for (const krcore::NodeId node : {1, 2}) batch.Write(local() + i, {node, kAt}, sizeof(uint64_t));
  }
  auto run = batch.Run();
  ASSERT_FALSE(run.await_ready());
  run.await_suspend(std::noop_coroutine());
  AwaitAll();
  EXPECT_EQ(OutcomeOf(4), kvs::Outcome::kOk);
  for (const krcore::NodeId node : {1, 2}) EXPECT_EQ(RemoteWord(node, 0), local()[7]);
}

TEST_F(ManyBatches, EndWithOneCompletionForAllThatWereHandedOnTogether) {
  for (int i = 0; i < 5; ++i) Begin(3);
  EXPECT_EQ(connections_->Poll(), 1u);
  EXPECT_EQ(kvs::RunQueue::OfThisThread().RunAll(), 5u);
  for (size_t i = 0; i < 5; ++i) EXPECT_EQ(OutcomeOf(i), kvs::Outcome::kOk);
  for (uint64_t i = 0; i < 15; ++i) EXPECT_EQ(RemoteWord(1, i), local()[0]);
}

TEST_F(ManyBatches, BeyondTheQueuesDepthWaitAndAreAllDone) {
  for (int i = 0; i < 40; ++i) Begin(static_cast<uint32_t>(1 + i % 8));
  AwaitAll();
  for (size_t i = 0; i < begun_.size(); ++i) EXPECT_EQ(OutcomeOf(i), kvs::Outcome::kOk) << i;
}

// When the queue refuses a verb, the verb's whole batch fails, wherever the verb is among the others.
TEST_F(ManyBatches, OfWhichOneIsRefusedAreDoneButForThatOne) {
  constexpr uint64_t kBeyond = uint64_t{1} << 40;
  for (size_t refused = 0; refused < 4; ++refused) {
    SCOPED_TRACE(refused);
    for (int i = 0; i < 1'000 && !connections_->Reach(1); ++i) {
      connections_->Poll();
      connections_->Forget(1);
    }
    ASSERT_TRUE(connections_->Reach(1));
    begun_.clear();
    ++local()[0];
    next_ = 0;
    for (size_t i = 0; i < 4; ++i) Begin(2, i == refused ? kBeyond : UINT64_MAX);
    AwaitAll();
    for (size_t i = 0; i < 4; ++i)
      EXPECT_EQ(OutcomeOf(i), i == refused ? kvs::Outcome::kUnavailable : kvs::Outcome::kOk) << i;
    for (uint64_t i = 0; i < 6; ++i) EXPECT_EQ(RemoteWord(1, i), local()[0]);
  }
}

TEST_F(ManyBatches, AreTakenBackByFenceWhereverTheyAre) {
  connections_->pool().SetGate(&shut_gate_);
  for (int i = 0; i < 9; ++i) Begin(3);  // some are in the queue by now, some in the outbox
  connections_->Fence();
  AwaitAll();
  for (size_t i = 0; i < begun_.size(); ++i) EXPECT_EQ(OutcomeOf(i), kvs::Outcome::kFenced) << i;
  for (uint64_t i = 0; i < 27; ++i) EXPECT_EQ(RemoteWord(1, i), 0u);
}

TEST_F(ManyBatches, AreHandedOnBeforeTheirMemoryNodeIsConnectedAnew) {
  Begin(2);
  connections_->Forget(1);
  EXPECT_FALSE(connections_->Reach(1)) << "with requests outstanding";
  AwaitAll();
  EXPECT_EQ(OutcomeOf(0), kvs::Outcome::kOk);
}

TEST_F(ManyBatches, EndInAQueueThatIsShallowerThanAnOutbox) {
  connections_ = std::make_unique<kvs::Connections>(*node_, identity_, 1'000'000'000, stats_);
  ASSERT_TRUE(connections_->Open(4).ok());
  ASSERT_TRUE(connections_->Reach(1));
  for (int i = 0; i < 6; ++i) Begin(3);
  AwaitAll();
}

// A verb that completes silently frees its place in the queue at once, whoever polls the pool. Its part has not ended
// yet.
TEST_F(ManyBatches, EndHoweverManyHaveNotEndedYet) {
  connections_ = std::make_unique<kvs::Connections>(*node_, identity_, 1'000'000'000, stats_);
  ASSERT_TRUE(connections_->Open(512, {.dc_initiators = 1, .sq_depth = 16}).ok());
  ASSERT_TRUE(connections_->Reach(1));
  for (int i = 0; i < 1'500; ++i) Begin(1);
  AwaitAll();
}

TEST_F(ManyBatches, OverSeveralNodesAreTakenBackByFenceThoughTheyWaitForRoom) {
  connections_->pool().SetGate(&shut_gate_);
  for (int i = 0; i < 4; ++i) Begin(8);
  Begin({{2, kAt}, {1, kAt}, {1, kAt}, {1, kAt}, {1, kAt}, {1, kAt}, {1, kAt}, {1, kAt}, {1, kAt}, {2, kAt + 8}});
  connections_->Fence();
  AwaitAll();
  for (size_t i = 0; i < begun_.size(); ++i) EXPECT_EQ(OutcomeOf(i), kvs::Outcome::kFenced) << i;
  EXPECT_EQ(RemoteWord(1, 0), 0u);
  EXPECT_EQ(RemoteWord(2, 0), 0u);
}

TEST_F(ManyBatches, OfWhichOneMeetsADeadNodeAreDoneButForThatOne) {
  for (int i = 0; i < 3; ++i) Begin(3);
  Begin({{2, kAt}, {1, kAt}, {2, kAt + 8}});
  store_.StopMemoryNode(2);
  AwaitAll();
  for (size_t i = 0; i < 3; ++i) EXPECT_EQ(OutcomeOf(i), kvs::Outcome::kOk);
  EXPECT_EQ(OutcomeOf(3), kvs::Outcome::kUnavailable);
}

TEST_F(ManyBatches, ThatWaitForRoomDoNotReachTheNextLifeOfAMemoryNode) {
  for (int i = 0; i < 4; ++i) Begin(8);
  Begin({{1, kAt}, {1, kAt}, {1, kAt}, {1, kAt}, {1, kAt}, {1, kAt}, {1, kAt}, {1, kAt}, {2, kAt}});
  RestartSecond();
  connections_->Forget(2);
  ASSERT_TRUE(connections_->Reach(2));
  AwaitAll();
  EXPECT_EQ(OutcomeOf(4), kvs::Outcome::kUnavailable);
  EXPECT_EQ(RemoteWord(2, 0), 0u);
}

TEST_F(Batches, DoNotReachTheMemoryNodesOfAnotherStore) {
  kvs::StoreIdentity others_identity;
  others_identity.Set(1, {3, 4});
  kvs::Connections other(*node_, others_identity, 1'000'000'000, stats_);
  ASSERT_TRUE(other.Open(16).ok());
  other.ExpectSame(*connections_, 2);
  identity_.Set(1, {3, 4});
  connections_->Forget(2);
  EXPECT_TRUE(connections_->Reach(2)) << "it is still the same one";
  RestartSecond();
  connections_->Forget(2);
  EXPECT_FALSE(connections_->Reach(2));
  EXPECT_TRUE(identity_.gone());
  EXPECT_EQ(connections_->UnavailableStatus("this"), krcore::StatusCode::kBadState);
  EXPECT_FALSE(other.Reach(2));
  EXPECT_TRUE(others_identity.gone());
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
