// Four client processes on one store that lives through many rounds. All the time one of them is killed with SIGKILL
// and replaced. After each round every history is linearizable and nothing acknowledged is missing. After the last
// round the store gives back all that the dead have held.
#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <ctime>
#include <memory>
#include <random>
#include <string>

#include "krcore/node.h"
#include "kvs/layout/pool.h"
#include "tests/kvs/child.h"
#include "tests/kvs/pool_check.h"
#include "tests/kvs/repeat.h"
#include "tests/kvs/stress.h"
#include "tests/kvs/test_store.h"

namespace surgekv_test {
namespace {

void Nap(int64_t us) {
  const timespec nap{us / 1'000'000, us % 1'000'000 * 1'000};
  nanosleep(&nap, nullptr);
}

constexpr uint64_t kChunkBytes = uint64_t{64} << 10;

// The sums over all rounds, which are printed to explain the run.
struct Totals {
  uint32_t rounds = 0, kills = 0;
  uint64_t operations = 0, splits = 0, merges = 0;
};

std::array<uint64_t, 6> CountChunks(const TestStore& store) {
  std::array<uint64_t, 6> counts{};
  const std::span<const std::byte> pool = store.memory();
  for (uint64_t chunk = 0; chunk < pool.size() / kChunkBytes; ++chunk) {
    kvs::ChunkWord word;
    std::memcpy(&word, &pool[kvs::ChunkWordOffset(chunk)], sizeof(word));
    ++counts.at(static_cast<size_t>(word.kind()));
  }
  return counts;
}

kvs::Task<void> PutSurvivor(kvs::Client& client, uint32_t n) {
  const std::string key = "survivor-" + std::to_string(n), value = ValueOf(n);
  const kvs::Status put = co_await client.PutAsync(key, value);
  EXPECT_TRUE(put.ok()) << key << ": " << put.ToString();
}

class KillStress : public ::testing::Test {
 protected:
  static constexpr uint32_t kProcesses = 4;
  static constexpr uint32_t kWorkersOfRound = 20;  // processes of a round, one after another in four places

  KillStress() { options_.fabric = UniqueFabric(); }
  ~KillStress() override { (void)krcore::CleanStaleFabrics("sw", options_.fabric, true); }

  void Round(TestStore& store, uint32_t seed, Totals* totals) {
    StressOptions load;
    load.seed = seed;
    load.prefix = std::to_string(totals->rounds++) + ":";
    load.lanes = 6;
    load.operations = 30'000 / kSlowdown;
    load.operations_per_hot = 1'500;
    load.long_pause_every = 20'000;
    StressLogs logs(kWorkersOfRound, load.operations);
    uint32_t begun = 0;
    const auto start = [&] {
      const uint32_t w = begun++;
      return std::make_unique<Child>([&, w] {
        auto attached = TestStore::Attach(options_.fabric, options_);
        (void)RunWorker(*attached, load, logs, w);
      });
    };
    std::array<std::unique_ptr<Child>, kProcesses> places;
    for (auto& place : places) place = start();
    std::mt19937 random(seed);
    while (begun < kWorkersOfRound && !logs.stop().load()) {
      // Kill by the work done and not by the clock, or a fast machine has no work left to die at. Between two deaths
      // there is, on average, half of the work of one worker, so that about nine of ten workers are killed.
      auto& place = places[random() % kProcesses];
      const uint64_t at = logs.operations().load() + random() % load.operations;
      while (logs.operations().load() < at && !place->Ended() && !logs.stop().load()) Nap(20);
      if (place->Ended()) {
        EXPECT_EQ(place->Wait(), 0);
      } else {
        place->Kill();
        ++totals->kills;
      }
      place = start();
    }
    for (auto& place : places) EXPECT_EQ(place->Wait(), 0);
    VerifyLogs(store.store(), load, logs);
    totals->operations += logs.operations().load();
    auto client = store.NewClient();
    DeleteAll(*client, load, logs);
    totals->merges += client->stats().merges;
    for (uint32_t w = 0; w < kWorkersOfRound; ++w) {
      totals->splits += logs.log(w).splits.load();
      totals->merges += logs.log(w).merges.load();
    }
  }

  // Everybody but this process is dead or gone, and every key was deleted. The store then holds no more than a few keys
  // need: their blocks, in chunks that are not sparse, and their subtables.
  static void ExpectNoLeak(TestStore& store) {
    constexpr uint32_t kSurvivors = 2'000;
    {
      auto client = store.NewClient();
      for (uint32_t n = 0; n < kSurvivors; ++n) {
        while (client->spawned() >= 16) client->Poll();
        client->Spawn(PutSurvivor(*client, n));
      }
      client->Drain();
      const kvs::Status compacted = client->Compact({.thorough = true, .timeout_ms = 60'000});
      EXPECT_TRUE(compacted.ok()) << compacted.ToString();
    }
    // A table that nobody has split or merged since keeps the lock of a client that was killed there. It is in nobody's
    // way, and whoever needs the table takes the lock over. Nothing else is left.
    PoolCheckOptions check;
    check.after_deaths = true;
    const PoolReport report = CheckPools(store.images(), check);
    EXPECT_TRUE(report.ok()) << report.ToString();
    for (const Leftover& left : report.leftovers) EXPECT_EQ(left.kind, Leftover::Kind::kLock) << left.what;
    EXPECT_EQ(report.live_blocks, kSurvivors);
    EXPECT_EQ(report.clients, 0u);
    const auto chunks = CountChunks(store);
    const auto of = [&chunks](kvs::ChunkKind kind) { return chunks.at(static_cast<size_t>(kind)); };
    // A client may keep three chunks from which it cuts blocks, and one to which it moves them.
    EXPECT_LE(of(kvs::ChunkKind::kBlocks), report.live_bytes * 100 / 85 / kChunkBytes + 4) << report.ToString();
    EXPECT_LE(of(kvs::ChunkKind::kTables), report.subtables) << report.ToString();
    EXPECT_EQ(of(kvs::ChunkKind::kRun) + of(kvs::ChunkKind::kRunRest), 0u);
  }

  TestStoreOptions options_;
};

TEST_F(KillStress, FourProcessesAreKilledAndReplacedAndNothingIsWrongOrLost) {
  options_.memory_bytes = size_t{96} << 20;
  options_.chunk_bytes = kChunkBytes;
  TestStore store(options_);
  Totals totals;
  Repeat([&](uint32_t seed) { Round(store, seed, &totals); });
  std::printf("%u rounds, %u processes killed, %llu operations, %llu splits, %llu merges\n", totals.rounds,
              totals.kills, static_cast<unsigned long long>(totals.operations),
              static_cast<unsigned long long>(totals.splits), static_cast<unsigned long long>(totals.merges));
  EXPECT_GT(totals.kills, 0u);
  EXPECT_GT(totals.splits, 0u);
  EXPECT_GT(totals.merges, 0u);
  if (!HasFailure()) ExpectNoLeak(store);
}

}  // namespace
}  // namespace surgekv_test
