// Four client processes, of which one or another is killed with SIGKILL all the time and replaced, on one store that
// lives through many rounds. After each round every history is linearizable and nothing acknowledged is missing.
#include <gtest/gtest.h>

#include <ctime>
#include <memory>
#include <random>
#include <string>

#include "krcore/node.h"
#include "tests/kvs/child.h"
#include "tests/kvs/repeat.h"
#include "tests/kvs/stress.h"
#include "tests/kvs/test_store.h"

namespace surgekv_test {
namespace {

void Nap(int64_t us) {
  const timespec nap{us / 1'000'000, us % 1'000'000 * 1'000};
  nanosleep(&nap, nullptr);
}

// The sum over all rounds, so that a run explains itself.
struct Totals {
  uint32_t rounds = 0, kills = 0;
  uint64_t operations = 0, splits = 0;
};

class KillStress : public ::testing::Test {
 protected:
  static constexpr uint32_t kProcesses = 4;
  static constexpr uint32_t kWorkersOfRound = 20;  // processes of a round, one after the other in four places

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
      Nap(random() % 60'000 * kSlowdown);
      auto& place = places[random() % kProcesses];
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
    for (uint32_t w = 0; w < kWorkersOfRound; ++w) totals->splits += logs.log(w).splits.load();
    auto client = store.NewClient();
    DeleteAll(*client, load, logs);
  }

  TestStoreOptions options_;
};

TEST_F(KillStress, FourProcessesAreKilledAndReplacedAndNothingIsWrongOrLost) {
  options_.memory_bytes = size_t{96} << 20;
  TestStore store(options_);
  Totals totals;
  Repeat([&](uint32_t seed) { Round(store, seed, &totals); });
  std::printf("%u rounds, %u processes killed, %llu operations, %llu splits\n", totals.rounds, totals.kills,
              static_cast<unsigned long long>(totals.operations), static_cast<unsigned long long>(totals.splits));
  EXPECT_GT(totals.kills, 0u);
  EXPECT_GT(totals.splits, 0u);
}

}  // namespace
}  // namespace surgekv_test
