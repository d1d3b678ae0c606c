// The parts of kvs/upkeep, without a client around them.
#include <gtest/gtest.h>

#include <cstdint>
#include <set>
#include <utility>
#include <vector>

#include "kvs/upkeep/upkeep.h"
#include "tests/kvs/parts_testing.h"

namespace surgekv_test {
namespace {

class UpkeepParts : public TableParts {
 protected:
  // Runs the task to its end, while time passes and this client and the other one do their maintenance.
  template <typename T>
  T RunMaintained(Task<T> task) {
    task.Start();
    PollUntil([&] { return task.done(); }, [&] { Maintain(); });
    PollUntil([&] { return !maintenance_.running(); });
    return task.Take();
  }
  void Maintain() {
    clock_.Advance(100'000);
    epochs_.registration.ForgetNow();
    epochs_.operations.RunDelayed();
    maintenance_.BeginIfDue(clock_.NowNs());
    if (other_) other_->Poll();
  }
  kvs::CompactReport report_;
  kvs::Table table_{epochs_, workbench_arena()};
  kvs::Maintenance maintenance_{epochs_, table_};
  kvs::Compaction compaction_{epochs_, table_, maintenance_};
  kvs::Drainer drainer_{epochs_, table_, maintenance_, compaction_};
};

TEST_F(UpkeepParts, ARoundThatIsWantedNowComesThoughOneRoundFollowsTheOther) {
  clock_.Advance(1'000'000);
  ASSERT_TRUE(maintenance_.BeginIfDue(clock_.NowNs()));
  Task<void> task = maintenance_.MaintainNow();
  task.Start();
  for (int polls = 0; polls < 100 && !task.done(); ++polls) {
    clock_.Advance(1'000'000);
    epochs_.registration.ForgetNow();
    epochs_.operations.RunDelayed();
    connections_.Poll();
    RunReady();
    maintenance_.BeginIfDue(clock_.NowNs());
  }
  EXPECT_TRUE(task.done());
  PollUntil([&] { return !maintenance_.running(); });
}

TEST_F(UpkeepParts, MaintenanceFreesWhatNoClientCanKnowAnyMore) {
  const uint64_t epoch = Home().epoch;
  kvs::ClientEntry& other = Home().clients[epochs_.registrar.client_index() + 1];  // another client's
  other = {epochs_.registrar.entry().owner.word(), ClientWord::Make(kvs::ClientState::kAlive, 1, epoch).word()};
  // A table and a large block of two chunks are retired.
  epochs_.retired.Add({{1, 4 * shape_.chunk_bytes}});
  epochs_.memory->Retire({.address = {2, 8 * shape_.chunk_bytes}, .bytes = 2 * shape_.chunk_bytes, .birth = epoch});
  PoolWord({2, kvs::ChunkWordOffset(8)}) = kvs::ChunkWord::Make(kvs::ChunkKind::kRun, 2, 0).word();
  PoolWord({2, kvs::ChunkWordOffset(9)}) = kvs::ChunkWord::Make(kvs::ChunkKind::kRunRest, 0, 0).word();
  // After a round: the epoch, what this client has announced, what all living ones have, and how many chunks are free.
  const auto round = [&](uint64_t now, uint64_t announced, uint64_t by_living, uint64_t freed) {
    Run(maintenance_.MaintainNow());
    EXPECT_EQ(Home().epoch, now);
    EXPECT_EQ(Word(epochs_.registrar.client_index()).epoch(), announced);
    EXPECT_EQ(maintenance_.announced_by_living(), by_living);
    EXPECT_EQ(Home().counters.freed_chunks, freed);
  };
  round(epoch + 1, epoch, epoch, 0);
  for (int i = 0; i < 3; ++i) round(epoch + 1, epoch + 1, epoch, 0);  // the other one lags behind
  other.word = ClientWord(other.word).Beat(epoch + 1).word();
  round(epoch + 2, epoch + 1, epoch + 1, 2);
  other.word = ClientWord(other.word).Expelled().word();
  round(epoch + 3, epoch + 2, epoch + 2, 2);
  round(epoch + 4, epoch + 3, epoch + 3, 2);
  EXPECT_EQ(maintenance_.expelled_epochs(), (std::vector<uint64_t>{epoch + 1}));
  EXPECT_EQ(epochs_.home.freed_chunks_seen(), 2u);
  EXPECT_EQ(epochs_.cache.Ticket(), 1u);
  GlobalAddress table;
  EXPECT_TRUE(epochs_.memory->AllocateTable(1, &table));
  EXPECT_TRUE(maintenance_.BeginIfDue(clock_.NowNs()));
  EXPECT_FALSE(maintenance_.BeginIfDue(maintenance_.next_ns(false)));  // one at a time
  PollUntil([&] { return !maintenance_.running(); });
  EXPECT_FALSE(maintenance_.BeginIfDue(clock_.NowNs()));
  EXPECT_TRUE(maintenance_.BeginIfDue(maintenance_.next_ns(false)));
  PollUntil([&] { return !maintenance_.running(); });
}

TEST_F(UpkeepParts, CompactionMergesSparseTablesAndFreesSparseChunks) {
  PutKeys(12);
  kvs::CompactReport report;
  EXPECT_TRUE(RunMaintained(compaction_.Compact({.thorough = true}, &report)).ok());
  EXPECT_EQ(report.tables_merged, 1u);
  EXPECT_EQ(store_.DirectoryEntryOf(0).depth(), 0u);
  EXPECT_EQ(report.blocks_moved, keys_);
  EXPECT_GT(report.chunks_freed, 0u);
  EXPECT_EQ(stats_.chunks_freed, report.chunks_freed);
  EXPECT_EQ(Home().counters.freed_chunks, report.chunks_freed);
  EXPECT_GT(Home().counters.evacuations, 0u);
  EXPECT_EQ(stats_.compactions, 1u);
  EXPECT_EQ(epochs_.operations.OldestEpochInFlight(), epochs_.home.epoch());  // the mover pins nothing any more
  EXPECT_EQ(Home().mover, 0u);
  std::set<uint64_t> words;
  for (const uint64_t word : Home().evacuation) {
    EXPECT_TRUE(kvs::EvacuationWord(word).empty());
    EXPECT_TRUE(word == 0 || words.insert(word).second);
  }
  EXPECT_FALSE(words.empty()) << "a slot that was cleared has the word that it had before";
  CheckKeys();
}

// Each round takes slots that the one before has cleared.
TEST_F(UpkeepParts, NoWordOfAnEvacuationSlotComesBack) {
  std::set<uint64_t> words = {0};
  for (int round = 0; round < 3; ++round) {
    for (uint32_t i = 0; i < 8; ++i) PutKeys(keys_ + 4);
    uint64_t last = Home().evacuation[0];
    Task<kvs::Status> compaction = compaction_.Compact({.thorough = true}, &report_);
    const auto round_with_look = [&] {
      Maintain();
      if (std::exchange(last, Home().evacuation[0]) == Home().evacuation[0]) return;
      EXPECT_TRUE(words.insert(last).second) << "round " << round;
    };
    compaction.Start();
    PollUntil([&] { return compaction.done(); }, round_with_look);
    PollUntil([&] { return !maintenance_.running(); });
    EXPECT_TRUE(compaction.Take().ok());
    EXPECT_GT(report_.chunks_freed, 0u);
    EXPECT_TRUE(kvs::EvacuationWord(Home().evacuation[0]).empty());
  }
  EXPECT_GE(words.size(), 7u);
}

TEST_F(UpkeepParts, DrainerEmptiesAMemoryNodeAndTakesItBack) {
  PutKeys(100);  // so many that a table splits
  kvs::DrainReport report;
  const auto drain = [&](krcore::NodeId node) { return RunMaintained(drainer_.Drain(node, {}, &report)).code(); };
  const auto undrain = [&](krcore::NodeId node) { return RunMaintained(drainer_.Undrain(node)).code(); };
  EXPECT_EQ(drain(1), StatusCode::kInvalidArgument);  // the home stays
  EXPECT_EQ(drain(3), StatusCode::kNotFound);
  EXPECT_EQ(undrain(3), StatusCode::kNotFound);
  EXPECT_EQ(drain(2), StatusCode::kOk);
  EXPECT_EQ(StateOfTwo(), kvs::MemberState::kDrained);
  EXPECT_FALSE(epochs_.home.IsMember(2));
  EXPECT_TRUE(report.closed);
  EXPECT_EQ(report.chunks_left + report.tables_left, 0u);
  EXPECT_GT(report.tables_moved, 0u);
  EXPECT_GT(stats_.table_replacements, 0u);
  EXPECT_GT(report.blocks_moved, 0u);
  EXPECT_EQ(Home().mover, 0u);
  CheckKeys();
  EXPECT_EQ(undrain(2), StatusCode::kOk);
  EXPECT_EQ(StateOfTwo(), kvs::MemberState::kInUse);
  Run(maintenance_.MaintainNow());
  EXPECT_TRUE(epochs_.home.IsMember(2));
  CheckKeys();
}

}  // namespace
}  // namespace surgekv_test
