// The mover on a clock that the test moves: it shows that it makes progress, and it does not touch memory that was put
// to another use since it read the directory.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <memory>
#include <string>

#include "kvs/client.h"
#include "kvs/client/store_core.h"
#include "kvs/housekeeper.h"
#include "kvs/layout/pool.h"
#include "kvs/layout/subtable.h"
#include "tests/kvs/manual_clock.h"
#include "tests/kvs/test_store.h"

namespace surgekv_test {
namespace {

constexpr uint64_t kChunkBytes = uint64_t{64} << 10;
constexpr int64_t kLeaseNs = 1'000'000'000;

kvs::Task<void> Compact(kvs::Client& client, kvs::CompactReport* report, kvs::Status* result) {
  *result = co_await client.CompactAsync({.thorough = true, .timeout_ms = 3'600'000}, report);
}

class MoverTest : public ::testing::Test {
 protected:
  explicit MoverTest(int64_t lease_ns = kLeaseNs)
      : store_({.initial_depth = 12,
                .memory_bytes = size_t{16} << 20,
                .operation_timeout_ms = 3'600'000,
                .clock = &clock_,
                .chunk_bytes = kChunkBytes,
                .lease_ns = lease_ns}) {}

  kvs::HomeArea& Home() { return *reinterpret_cast<kvs::HomeArea*>(store_.memory().data() + kvs::kHomeAreaOffset); }
  uint64_t CountChunks(kvs::ChunkKind kind) {
    const auto* const words = reinterpret_cast<const kvs::ChunkWord*>(store_.memory().data() + kvs::kChunkTableOffset);
    return static_cast<uint64_t>(std::count_if(words, words + store_.memory().size() / kChunkBytes,
                                               [kind](kvs::ChunkWord word) { return word.kind() == kind; }));
  }

  // Puts keys and deletes nine of ten, so that their chunks are sparse.
  static void FillAndThin(kvs::Client& client, const std::string& prefix) {
    for (int i = 0; i < 4'000; ++i) ASSERT_TRUE(client.Put(prefix + std::to_string(i), std::string(300, 'a')).ok());
    for (int i = 0; i < 4'000; ++i) {
      if (i % 10 == 0) continue;
      ASSERT_TRUE(client.Delete(prefix + std::to_string(i)).ok());
    }
  }

  ManualClock clock_;
  TestStore store_;
};

// Otherwise, in a store that takes longer than that to read, others would take over from it again and again.
TEST_F(MoverTest, ShowsThatItGoesOnHoweverLongItReadsTheTables) {
  auto client = store_.NewClient();
  kvs::CompactReport report;
  kvs::Status compacted;
  client->Spawn(Compact(*client, &report, &compacted));
  while (Home().mover == 0) client->Poll();
  uint64_t word = Home().mover;
  int64_t changed_ns = clock_.NowNs(), longest_ns = 0;
  for (int poll = 0; poll < 1'000; ++poll) {
    clock_.Advance(kLeaseNs / 50);
    client->Poll();
    if (Home().mover != word) changed_ns = clock_.NowNs();
    word = Home().mover;
    longest_ns = std::max(longest_ns, clock_.NowNs() - changed_ns);
  }
  EXPECT_NE(word, 0u);
  EXPECT_LT(longest_ns, kLeaseNs);
}

kvs::Task<void> Put(kvs::Client& client, std::string key, std::string value, kvs::Status* result) {
  *result = co_await client.PutAsync(key, value);
}

// Two clients wait for memory and each becomes the mover in turn. A third one, which has stopped but is alive, prevents
// any chunk from being freed.
TEST_F(MoverTest, WhoWaitsForWhatNobodyCanFreeGivesUp) {
  auto stopped = store_.NewClient(), one = store_.NewClient(), two = store_.NewClient();
  uint32_t stored = 0;
  for (; CountChunks(kvs::ChunkKind::kFree) > 8; ++stored) {
    ASSERT_TRUE(one->Put(std::to_string(stored), std::string(300, 'a')).ok());
    if (stored % 10 != 0) continue;
    clock_.Advance(600'000);
    for (int i = 0; i < 64; ++i) {
      stopped->Poll();
      two->Poll();
    }
  }
  for (uint32_t i = 0; i < stored; ++i) {
    if (i % 10 != 0) {
      ASSERT_TRUE(one->Delete(std::to_string(i)).ok());
    }
  }
  std::array<kvs::Status, 16> results;
  for (size_t i = 0; i < results.size(); ++i) {
    kvs::Client& client = i % 2 == 0 ? *one : *two;
    client.Spawn(Put(client, "large " + std::to_string(i), std::string(60'000, 'b'), &results[i]));
  }
  const int64_t begin_ns = clock_.NowNs();
  while (one->spawned() + two->spawned() > 0 && clock_.NowNs() - begin_ns < 64 * kLeaseNs) {
    clock_.Advance(100'000);
    for (int i = 0; i < 4; ++i) {
      one->Poll();
      two->Poll();
    }
  }
  EXPECT_EQ(one->spawned() + two->spawned(), 0u) << "they wait for each other";
  for (const kvs::Status& result : results) EXPECT_EQ(result, kvs::StatusCode::kOutOfMemory) << result.ToString();
  while (one->spawned() + two->spawned() > 0) {
    for (kvs::Client* client : {&*one, &*two, &*stopped}) client->Poll();
    clock_.Advance(100'000);
  }
}

// The free memory of a full store is too small for the values that would have to move, so no chunk can be emptied. That
// is known after one attempt.
TEST(FullStore, WhoWaitsForWhatCannotBeMovedGivesUp) {
  ManualClock clock;
  TestStore store({.groups = 16,
                   .memory_bytes = kvs::kMinPoolBytes,
                   .operation_timeout_ms = 3'600'000,
                   .clock = &clock,
                   .lease_ns = kLeaseNs});
  auto one = store.NewClient(), two = store.NewClient();
  const auto poll = [&] {
    clock.Advance(100'000);
    for (int i = 0; i < 4; ++i) {
      one->Poll();
      two->Poll();
    }
  };
  const auto put = [&](kvs::Client& client, const std::string& key, size_t bytes) {
    kvs::Status result;
    client.Spawn(Put(client, key, std::string(bytes, 'a'), &result));
    const int64_t begin_ns = clock.NowNs();
    while (client.spawned() > 0) poll();
    EXPECT_LT(clock.NowNs() - begin_ns, 16 * kLeaseNs);
    return result;
  };
  uint32_t stored = 0;
  for (bool full = false; !full; ++stored) {
    kvs::Client& client = stored % 2 == 0 ? *one : *two;
    for (int small = 0; small < 9 && !full; ++small)
      full = !put(client, "small " + std::to_string(stored) + "." + std::to_string(small), 50'000).ok();
    full |= !put(client, "large " + std::to_string(stored), 100'000).ok();
  }
  ASSERT_GT(stored, 2u);
  for (uint32_t i = 0; i < stored; ++i) {
    kvs::Client& client = i % 2 == 0 ? *one : *two;
    for (int small = 0; small < 9; ++small)
      (void)client.Delete("small " + std::to_string(i) + "." + std::to_string(small));
  }
  std::array<kvs::Status, 2> results;
  one->Spawn(Put(*one, "one", std::string(100'000, 'b'), &results[0]));
  two->Spawn(Put(*two, "two", std::string(100'000, 'b'), &results[1]));
  const int64_t begin_ns = clock.NowNs();
  while (one->spawned() + two->spawned() > 0 && clock.NowNs() - begin_ns < 64 * kLeaseNs) poll();
  EXPECT_LT(clock.NowNs() - begin_ns, 2 * kLeaseNs);
  for (const kvs::Status& result : results) EXPECT_EQ(result, kvs::StatusCode::kOutOfMemory) << result.ToString();
}

// A client that is expelled and lives may post late what it knows. It knows nothing of a chunk that was free after
// that.
TEST_F(MoverTest, EmptiesWhatIsYoungerThanAClientThatHasStoppedAndLivesAndLeavesTheRest) {
  auto stopped = store_.NewClient(), client = store_.NewClient();
  kvs::CompactReport report;
  const auto compact = [&] {
    kvs::Status compacted = kvs::StatusCode::kInternal;
    client->Spawn(Compact(*client, &report, &compacted));
    while (client->spawned() > 0) {
      for (int i = 0; i < 64; ++i) client->Poll();
      clock_.Advance(600'000);
    }
    EXPECT_TRUE(compacted.ok()) << compacted.ToString();
  };
  ASSERT_TRUE(stopped->Put("warm", "x").ok());
  FillAndThin(*client, "old");
  for (int i = 0; i < 4'000 && client->stats().expulsions == 0; ++i) {
    clock_.Advance(600'000);
    for (int j = 0; j < 64; ++j) client->Poll();
  }
  ASSERT_EQ(client->stats().expulsions, 1u);
  const uint64_t old = CountChunks(kvs::ChunkKind::kBlocks);
  EXPECT_GT(old, 15u);
  compact();  // and sees which chunks are free
  EXPECT_EQ(report.chunks_freed, 0u);
  EXPECT_GT(report.chunks_left, 15u) << "the stopped client may know them";
  FillAndThin(*client, "young");
  const uint64_t taken = CountChunks(kvs::ChunkKind::kBlocks);
  EXPECT_GT(taken, old + 15);
  compact();
  EXPECT_GT(report.chunks_left, 15u);
  EXPECT_LE(report.chunks_left, CountChunks(kvs::ChunkKind::kBlocks) + CountChunks(kvs::ChunkKind::kTables));
  EXPECT_LT(CountChunks(kvs::ChunkKind::kBlocks), old + (taken - old) / 2);
  EXPECT_GE(CountChunks(kvs::ChunkKind::kBlocks), old);
}

TEST_F(MoverTest, CountsThePairsOfEmptyTablesThatItSpreads) {
  constexpr uint32_t kPairs = 1u << 11;
  for (int i = 0; i < 2; ++i) store_.AddMemoryNode();
  kvs::CompactReport report;
  EXPECT_TRUE(store_.NewClient()->Compact({}, &report).ok());
  EXPECT_EQ(report.pairs_spread, kPairs - (kPairs + 2) / 3) << "each third one belongs to the home";
}

class HousekeeperTest : public MoverTest {
 protected:
  // Makes sparse chunks that a client which has stopped but lives may know. The housekeeper has expelled the client and
  // has seen that it can empty none of the chunks. Returns how many there are.
  uint64_t MakeSparseChunksThatAStoppedClientPins() {
    stopped_ = store_.NewClient();
    EXPECT_TRUE(stopped_->Put("warm", "x").ok());
    FillAndThin(*store_.NewClient(), "old");
    const uint64_t pinned = CountChunks(kvs::ChunkKind::kBlocks);
    EXPECT_GT(pinned, 15u);
    housekeeper_ = kvs::Housekeeper::Create(store_.store()).value();
    for (uint64_t sweep = 1; sweep <= 2; ++sweep) {  // the first one ends as it expels the client
      EXPECT_TRUE(KeepHouseUntil([&] { return housekeeper_->stats().sweeps == sweep && Home().mover != 0; }));
      EXPECT_TRUE(KeepHouseUntil([&] { return Home().mover == 0; }));
    }
    EXPECT_GE(CountChunks(kvs::ChunkKind::kBlocks), pinned);
    return pinned;
  }
  template <typename Done>
  bool KeepHouseUntil(Done done, int64_t for_ns = 16 * kLeaseNs) {
    for (const int64_t end_ns = clock_.NowNs() + for_ns; !done() && clock_.NowNs() < end_ns;) {
      clock_.Advance(std::clamp<int64_t>(housekeeper_->Step(), 10'000, 600'000));
    }
    return done();
  }

  std::unique_ptr<kvs::Client> stopped_;
  std::unique_ptr<kvs::Housekeeper> housekeeper_;
};

// The housekeeper sees nothing that tells it that the client has gone.
TEST_F(HousekeeperTest, EmptiesWhatAStoppedClientPinnedThoughThatGoesBetweenTwoLooks) {
  const uint64_t pinned = MakeSparseChunksThatAStoppedClientPins();
  stopped_.reset();
  EXPECT_TRUE(KeepHouseUntil([&] { return CountChunks(kvs::ChunkKind::kBlocks) < pinned / 2; }))
      << CountChunks(kvs::ChunkKind::kBlocks) << " of " << pinned;
}

// Otherwise writers that wait for memory would take its sweeps for progress.
TEST_F(HousekeeperTest, TriesMoreAndMoreSeldomWhatAStoppedClientPins) {
  (void)MakeSparseChunksThatAStoppedClientPins();
  KeepHouseUntil([] { return false; }, 32 * kLeaseNs);
  EXPECT_GE(housekeeper_->stats().sweeps, 2u + 3u);
  EXPECT_LE(housekeeper_->stats().sweeps, 2u + 5u);
  KeepHouseUntil([] { return false; }, 40 * kLeaseNs);
  EXPECT_LE(housekeeper_->stats().sweeps, 2u + 5u + 2u);
}

// All tables of a store that was told how many records come begin at its home.
TEST_F(HousekeeperTest, SpreadsEmptyTablesOverMemoryNodesThatHaveJoined) {
  constexpr uint32_t kTables = 1u << 12;
  EXPECT_TRUE(store_.NewClient()->Put("key", "value").ok());
  const uint32_t with_key = HashKey("key").Suffix(12);
  const kvs::DirectoryEntry its_table = store_.DirectoryEntryOf(with_key);
  const auto tables_at = [this] {
    std::map<krcore::NodeId, uint32_t> count;
    for (uint32_t i = 0; i < kTables; ++i) ++count[store_.DirectoryEntryOf(i).subtable().node];
    return count;
  };
  EXPECT_EQ(tables_at().size(), 1u);
  store_.AddMemoryNode();
  store_.AddMemoryNode();
  housekeeper_ = kvs::Housekeeper::Create(store_.store()).value();
  EXPECT_TRUE(KeepHouseUntil([&] { return housekeeper_->stats().sweeps > 0 && !housekeeper_->stats().is_client; }));
  const auto count = tables_at();
  for (const auto& [node, tables] : count) EXPECT_NEAR(tables, kTables / 3.0, 4) << "memory node " << node;
  EXPECT_EQ(count.size(), 3u);
  EXPECT_EQ(store_.DirectoryEntryOf(with_key), its_table) << "it is not empty";
  kvs::CompactReport report;
  const auto client = store_.NewClient();
  EXPECT_TRUE(client->Compact({}, &report).ok());
  EXPECT_EQ(report.pairs_spread, 0u) << "they are where they belong";
  std::string value;
  EXPECT_TRUE(client->Get("key", &value).ok());
  for (int i = 0; i < 4'000; ++i) EXPECT_TRUE(client->Put("key" + std::to_string(i), "value").ok());
  EXPECT_EQ(client->stats().splits, 0u);
}

TEST(ChunkAges, AChunkIsYoungerThanAnEpochInWhichItWasFree) {
  using kvs::ChunkWord;
  kvs::ChunkAges ages;
  const ChunkWord free = ChunkWord::Make(kvs::ChunkKind::kFree, 0, 7);
  const ChunkWord taken = free.As(kvs::ChunkKind::kBlocks, 1), given_up = taken.As(kvs::ChunkKind::kBlocks, 1).Freed();
  ages.Saw(1, 5, std::array{free, taken}, /*epoch=*/10);
  EXPECT_TRUE(ages.IsYounger(1, 5, taken, 10));
  EXPECT_FALSE(ages.IsYounger(1, 5, taken, 11)) << "whether it was free so late is not known";
  EXPECT_FALSE(ages.IsYounger(1, 6, taken, 1)) << "it was not seen free";
  EXPECT_FALSE(ages.IsYounger(1, 7, taken, 1)) << "it was not seen";
  EXPECT_FALSE(ages.IsYounger(2, 5, taken, 1)) << "another memory node's";
  EXPECT_FALSE(ages.IsYounger(1, 5, given_up, 10)) << "of another generation";
  ages.Renamed(1, 5, taken, given_up);
  EXPECT_TRUE(ages.IsYounger(1, 5, given_up, 10)) << "the same chunk, given up by a mover";
}

class SlowMover : public MoverTest {
 protected:
  SlowMover() : MoverTest(/*lease_ns=*/3'600 * kLeaseNs) {}  // so long that it does not notice that it was replaced
};

TEST_F(SlowMover, TouchesNoTableThatIsNoneAnyMore) {
  auto slow = store_.NewClient(), other = store_.NewClient();
  kvs::CompactReport slow_report, report;
  kvs::Status slow_status;
  slow->Spawn(Compact(*slow, &slow_report, &slow_status));
  while (Home().mover == 0) slow->Poll();
  for (int i = 0; i < 20; ++i) slow->Poll();  // it knows the directory and has read a few tables
  const uint64_t tables = CountChunks(kvs::ChunkKind::kTables);
  Home().mover = 0;
  kvs::Status compacted = kvs::StatusCode::kInternal;
  other->Spawn(Compact(*other, &report, &compacted));
  while (other->spawned() > 0) {
    for (int i = 0; i < 200; ++i) other->Poll();
    clock_.Advance(600'000);
    slow->Poll();  // it announces epochs, and reads one table
  }
  EXPECT_TRUE(compacted.ok()) << compacted.ToString();
  EXPECT_LT(CountChunks(kvs::ChunkKind::kTables), tables);
  ASSERT_EQ(slow->spawned(), 1u);

  // Fill former tables with blocks that, read as slots, name blocks of a memory node that does not exist.
  const kvs::Slot slot = kvs::Slot::Make(kvs::SlotState::kVal, 1, kvs::kLargeBlock, {200, 4096}, 0);
  std::string value(9'000, 0);
  for (size_t i = 0; i < value.size(); i += sizeof(slot)) std::memcpy(&value[i], &slot, sizeof(slot));
  for (int i = 0; CountChunks(kvs::ChunkKind::kFree) > 8; ++i) {
    ASSERT_TRUE(other->Put(std::to_string(10'000'000 + i), value).ok());
  }
  while (slow->spawned() > 0) {
    slow->Poll();
    other->Poll();
    clock_.Advance(600'000);
  }
  EXPECT_NE(slow_status, kvs::StatusCode::kUnavailable) << slow_status.ToString();
}

// A store that was told how many records come is empty at first, and must not have shrunk until they are there.
TEST(Mover, LeavesATableAsLargeAsItBeganUnlessMemoryIsScarce) {
  TestStore store({.initial_depth = 6});
  const auto client = store.NewClient();
  for (int i = 0; i < 20; ++i) EXPECT_TRUE(client->Put("key" + std::to_string(i), "value").ok());
  kvs::CompactReport report;
  EXPECT_TRUE(client->Compact({}, &report).ok());
  EXPECT_GE(report.scans, 1u);
  EXPECT_EQ(report.tables_merged, 0u);
  EXPECT_TRUE(client->Compact({.thorough = true}, &report).ok());
  EXPECT_GT(report.tables_merged, 0u);
}

}  // namespace
}  // namespace surgekv_test
