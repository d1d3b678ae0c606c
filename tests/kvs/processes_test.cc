// Client processes that are killed with SIGKILL at random moments: the survivors go on, every history with the
// victims' unfinished operations in it is linearizable, nothing acknowledged is missing, and memory is reused.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <ctime>
#include <random>
#include <vector>

#include "krcore/node.h"
#include "tests/kvs/repeat.h"
#include "tests/kvs/stress.h"
#include "tests/kvs/test_store.h"

namespace surgekv_test {
namespace {

// A child process that attaches to the store and runs `body`, ended with the test at the latest.
class Child {
 public:
  template <typename Body>
  explicit Child(const Body& body) : pid_(fork()) {
    if (pid_ != 0) return;
    body();
    _exit(testing::Test::HasFailure() ? 1 : 0);
  }
  Child(Child&& other) noexcept : pid_(std::exchange(other.pid_, -1)) {}
  ~Child() {
    if (pid_ <= 0) return;
    Kill();
  }
  void Kill() {
    kill(pid_, SIGKILL);
    (void)Wait();
  }
  // The exit status; -1 if a signal ended it.
  int Wait() {
    int status = 0;
    while (waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
    }
    pid_ = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }
  bool Ended() const {
    siginfo_t info{};
    return waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid != 0;
  }

 private:
  pid_t pid_;
};

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
      // In the middle of its work, wherever that is.
      const uint32_t records = random() % 2'000 / kSlowdown + 1;
      while (logs.log(w).records.load() < records && !victim.Ended()) Nap(20);
      if (!victim.Ended()) ++killed;
      victim.Kill();
    }
    EXPECT_GT(killed, 0u);
    for (Child& survivor : survivors) EXPECT_EQ(survivor.Wait(), 0);
    VerifyLogs(store.store(), logs);
  });
}

// Each victim is killed while it splits a table that a survivor then needs.
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
    VerifyLogs(store.store(), logs);
  });
}

kvs::Task<void> InsertOne(kvs::Client& client, std::string key) {
  const kvs::Status inserted = co_await client.InsertAsync(key, "12345678");
  if (!inserted.ok()) ADD_FAILURE() << key << ": " << inserted.ToString();
}

// A victim dies in the middle of a split, and the survivor only updates: it never needs a free slot, but the blocks
// that it replaces in the half-born table can be reused only when somebody has finished the split.
TEST_F(Processes, UpdatesOfATableWhoseSplitterDiedDoNotRunOutOfMemory) {
  // Round trips of the splitting insert before its death: around the publication of the new table and behind it.
  for (const uint32_t pause : {2u, 5u, 7u, 9u, 11u}) {
    if (kSlowdown > 1 && pause != 9) continue;
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

}  // namespace
}  // namespace surgekv_test
