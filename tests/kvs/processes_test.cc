// Client processes that are killed with SIGKILL at random moments. The survivors go on, every history with the victims'
// unfinished operations in it is linearizable, nothing acknowledged is missing, and memory is reused.
#include <gtest/gtest.h>
#include <unistd.h>

#include <ctime>
#include <random>
#include <vector>

#include "krcore/node.h"
#include "tests/kvs/child.h"
#include "tests/kvs/manual_clock.h"
#include "tests/kvs/repeat.h"
#include "tests/kvs/stress.h"
#include "tests/kvs/test_store.h"

namespace surgekv_test {
namespace {

class Processes : public ::testing::Test {
 protected:
  Processes() { options_.fabric = UniqueFabric(); }
  ~Processes() override { (void)krcore::CleanStaleFabrics("sw", options_.fabric, true); }
  TestStoreOptions options_;
};

void Nap(int64_t us) {
  const timespec nap{us / 1'000'000, us % 1'000'000 * 1'000};
  nanosleep(&nap, nullptr);
}

TEST_F(Processes, KilledInTheMiddleTheSurvivorsGoOnAndNothingAcknowledgedIsMissing) {
  Repeat([&](uint32_t seed) {
    options_.fabric = UniqueFabric();
    options_.memory_bytes = size_t{128} << 20;
    TestStore store(options_);
    constexpr uint32_t kSurvivors = 2, kVictims = 6;
    StressOptions load;
    load.seed = seed;
    load.lanes = 6;
    load.operations = 60'000 / kSlowdown;
    load.operations_per_hot = 1'500;
    if (seed % 2 == 0) load.operations_per_phase = 1'500 / kSlowdown;  // merges are interrupted, too
    StressLogs logs(kSurvivors + kVictims, load.operations);
    const auto worker = [&](uint32_t w) {
      return [&, w] {
        auto attached = TestStore::Attach(options_.fabric, options_);
        (void)RunWorker(*attached, load, logs, w);
      };
    };
    std::vector<Child> survivors;
    for (uint32_t w = 0; w < kSurvivors; ++w) survivors.emplace_back(worker(w));
    std::mt19937 random(seed);
    uint32_t killed = 0;
    for (uint32_t w = kSurvivors; w < kSurvivors + kVictims; ++w) {
      Child victim(worker(w));
      // Kill it in the middle of its work, at a random place.
      const uint32_t records = random() % 2'000 / kSlowdown + 1;
      while (logs.log(w).records.load() < records && !victim.Ended()) Nap(20);
      if (!victim.Ended()) ++killed;
      victim.Kill();
    }
    EXPECT_GT(killed, 0u);
    for (Child& survivor : survivors) EXPECT_EQ(survivor.Wait(), 0);
    VerifyLogs(store.store(), load, logs);
  });
}

// Each victim is killed while it splits a table that a survivor needs later.
TEST_F(Processes, ASplitInterruptedByDeathIsFinishedByOthers) {
  Repeat([&](uint32_t seed) {
    options_.fabric = UniqueFabric();
    TestStore store(options_);
    constexpr uint32_t kVictims = 8;
    StressOptions load;
    load.seed = seed;
    load.lanes = 8;
    load.operations = 30'000;
    load.filler_percent = 85;
    load.short_pause_every = 0;
    StressLogs logs(kVictims + 1, load.operations);
    std::mt19937 random(seed);
    for (uint32_t w = 0; w < kVictims; ++w) {
      Child victim([&] {
        auto attached = TestStore::Attach(options_.fabric, options_);
        (void)RunWorker(*attached, load, logs, w);
      });
      const uint64_t splits = random() % 8 + 1;
      while (logs.log(w).splits.load() < splits && !victim.Ended()) {
      }
      victim.Kill();
    }
    load.operations = 5'000;
    (void)RunWorker(store.store(), load, logs, kVictims);
    VerifyLogs(store.store(), load, logs);
  });
}

kvs::Task<void> InsertOne(kvs::Client& client, std::string key) {
  const kvs::Status inserted = co_await client.InsertAsync(key, "12345678");
  if (!inserted.ok()) ADD_FAILURE() << key << ": " << inserted.ToString();
}

// A victim dies in the middle of a split, and the survivor only updates. It never needs a free slot, but the blocks
// that it replaces in the new table can be reused only once somebody has finished the split.
TEST_F(Processes, UpdatesOfATableWhoseSplitterDiedDoNotRunOutOfMemory) {
  // Round trips of the splitting insert before its death: around the publication of the new table and after it.
  for (const uint32_t pause : {2u, 30u, 60u, 66u, 72u}) {
    if (kSlowdown > 1 && pause != 66) continue;
    SCOPED_TRACE(testing::Message() << "died behind " << pause << " round trips");
    options_.fabric = UniqueFabric();
    options_.memory_bytes = size_t{6} << 20;
    options_.operation_timeout_ms = 20'000;
    TestStore store(options_);
    int ready[2];
    ASSERT_EQ(pipe(ready), 0);
    {
      Child victim([&] {
        auto attached = TestStore::Attach(options_.fabric, options_);
        auto client = attached->NewClient().value();
        uint32_t keys = 0;
        // An insert takes up to six round trips; one that is still going on splits.
        while (client->spawned() == 0) {
          client->Spawn(InsertOne(*client, "key-" + std::to_string(keys++)));
          for (uint32_t i = 0; i < 6 && client->spawned() > 0; ++i) client->Poll();
        }
        for (uint32_t i = 0; i < pause; ++i) client->Poll();
        --keys;
        if (write(ready[1], &keys, sizeof(keys)) != sizeof(keys)) _exit(1);
        for (;;) ::pause();
      });
      uint32_t keys = 0;
      ASSERT_EQ(read(ready[0], &keys, sizeof(keys)), static_cast<ssize_t>(sizeof(keys)));
      victim.Kill();
      auto client = store.NewClient();
      for (uint32_t i = 0; i < 160'000; ++i) {
        const std::string key = "key-" + std::to_string(i % keys);
        const kvs::Status updated = client->Update(key, "abcdefgh");
        ASSERT_TRUE(updated.ok()) << "update " << i << " of " << key << ": " << updated.ToString();
      }
    }
    close(ready[0]);
    close(ready[1]);
    (void)krcore::CleanStaleFabrics("sw", options_.fabric, true);
  }
}

// Room comes from other clients' progress or from compaction, and both need the home. When the home is dead, a write
// that finds no room must not wait for them.
TEST_F(Processes, AWriteThatNeedsMemoryOfADeadHomeFailsBeforeItsDeadline) {
  int ready[2];
  ASSERT_EQ(pipe(ready), 0);
  Child home([&] {
    const TestStore store(options_);
    if (write(ready[1], "", 1) != 1) _exit(1);
    for (;;) ::pause();
  });
  char byte;
  ASSERT_EQ(read(ready[0], &byte, 1), 1);
  ManualClock clock;
  options_.clock = &clock;
  auto attached = TestStore::Attach(options_.fabric, options_);
  auto client = attached->NewClient().value();
  const std::string value(900'000, 'v');  // takes a chunk of its own
  ASSERT_TRUE(client->Put("key", value).ok());
  home.Kill();
  const int64_t killed_ns = clock.NowNs();
  for (int i = 0; i < 10; ++i) {
    EXPECT_EQ(client->Put("key", value), kvs::StatusCode::kUnavailable);
    EXPECT_EQ(client->Insert("other key", value), kvs::StatusCode::kUnavailable);
  }
  EXPECT_LT(clock.NowNs() - killed_ns, options_.operation_timeout_ms * 1'000'000) << "all of them together";
  close(ready[0]);
  close(ready[1]);
}

// A victim dies in the middle of a merge, and the survivor only reads. It needs no slot of the closed tables, but it
// should not have to look at both of them and the directory for ever.
class InterruptedMerge : public Processes {
 protected:
  static constexpr uint32_t kKeys = 60;
  static std::string KeyOf(uint32_t i) { return "key-" + std::to_string(i); }

  // Deletes until it has begun to merge dir[0] and dir[1], then goes on for `pause` polls. Reports how many keys it
  // deleted.
  [[noreturn]] void DieMerging(const TestStore& store, uint32_t pause, int ready) {
    auto attached = TestStore::Attach(options_.fabric, options_);
    auto client = attached->NewClient().value();
    for (uint32_t i = 0; i < kKeys; ++i) (void)client->Insert(KeyOf(i), "v");
    uint32_t deleted = 0;
    const auto merging = [&] { return store.DirectoryEntryOf(0).merging(); };
    while (deleted < kKeys - 4 && !merging()) {
      (void)client->Delete(KeyOf(deleted++));
      // A merge begins after a Delete: it looks at both tables, takes memory, and then its record is in the directory.
      for (uint32_t i = 0; i < 16 && !merging(); ++i) client->Poll();
    }
    for (uint32_t i = 0; i < pause; ++i) client->Poll();
    if (write(ready, &deleted, sizeof(deleted)) != sizeof(deleted)) _exit(1);
    for (;;) ::pause();
  }
  void ExpectKeys(kvs::Client& client, uint32_t deleted) {
    for (uint32_t i = 0; i < kKeys; ++i) {
      std::string value;
      const kvs::Status got = client.Get(KeyOf(i), &value);
      ASSERT_EQ(got, i < deleted ? kvs::StatusCode::kNotFound : kvs::StatusCode::kOk) << KeyOf(i);
    }
  }
};

TEST_F(InterruptedMerge, IsFinishedByAReader) {
  uint32_t interrupted = 0;
  options_.groups = 4;
  options_.initial_depth = 1;
  for (uint32_t pause = 0; pause<32; pause += kSlowdown> 1 ? 8 : 2) {
    SCOPED_TRACE(testing::Message() << "died " << pause << " polls behind its record");
    options_.fabric = UniqueFabric();
    TestStore store(options_);
    int ready[2];
    ASSERT_EQ(pipe(ready), 0);
    {
      Child victim([&] { DieMerging(store, pause, ready[1]); });
      uint32_t deleted = 0;
      ASSERT_EQ(read(ready[0], &deleted, sizeof(deleted)), static_cast<ssize_t>(sizeof(deleted)));
      victim.Kill();
      auto client = store.NewClient();
      const bool unfinished = store.DirectoryEntryOf(0).merging();
      const krcore::Deadline end = krcore::Deadline::After(*krcore::RealClock(), 60'000'000'000);
      while (store.DirectoryEntryOf(0).merging() && !HasFatalFailure()) {
        ASSERT_FALSE(end.Passed(*krcore::RealClock())) << "nobody finishes the merge";
        ExpectKeys(*client, deleted);
        for (uint32_t i = 0; i < 1'100; ++i) client->Poll();
      }
      ExpectKeys(*client, deleted);
      EXPECT_EQ(client->stats().merge_takeovers > 0, unfinished);
      interrupted += unfinished;
      EXPECT_EQ(client->ReadTableStats().value().used_slots, kKeys - deleted);
      EXPECT_TRUE(client->Put("one", "more").ok());
    }
    close(ready[0]);
    close(ready[1]);
    (void)krcore::CleanStaleFabrics("sw", options_.fabric, true);
  }
  std::printf("%u merges were interrupted\n", interrupted);
  EXPECT_GT(interrupted, kSlowdown > 1 ? 0u : 2u);
}

}  // namespace
}  // namespace surgekv_test
