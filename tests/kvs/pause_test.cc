// Splits that stop at every possible round trip and go on much later, when others have taken over, finished, and
// begun the next split of the same table. One thread, no chance involved: a client that is not polled is paused.
#include <gtest/gtest.h>

#include <map>
#include <string>

#include "kvs/layout/hash.h"
#include "tests/kvs/stress.h"
#include "tests/kvs/test_store.h"

namespace surgekv_test {
namespace {

// Time moves only when the test says so, and by polling a little.
class ManualClock final : public krcore::Clock {
 public:
  int64_t NowNs() override { return now_ns_ += 100; }
  void Relax(uint32_t) override { now_ns_ += 1'000; }
  void Advance(int64_t ns) { now_ns_ += ns; }

 private:
  int64_t now_ns_ = 1'000'000;
};

constexpr int64_t kLongerThanATakeoverNs = 200'000'000;

kvs::Task<void> InsertOne(kvs::Client& client, std::string key, std::map<std::string, std::string>* stored) {
  const std::string value = "value of " + key;
  const kvs::Status inserted = co_await client.InsertAsync(key, value);
  EXPECT_TRUE(inserted.ok()) << key << ": " << inserted.ToString();
  (*stored)[key] = value;
}

class PausedSplit : public ::testing::Test {
 protected:
  // `first` splits the root and pauses; `second` takes over, finishes that split, goes on to the next split of the root
  // and pauses; `first` wakes up and acts upon what it saw long ago. False: one of them had ended before its pause.
  bool Run(uint32_t first_pause, uint32_t second_pause) {
    ManualClock clock;
    TestStoreOptions options;
    options.memory_bytes = size_t{8} << 20;
    options.clock = &clock;
    options.lease_ns = kvs::kMaxLeaseNs;  // what a paused client posts when it wakes up is what this is about
    TestStore store(options);
    std::map<std::string, std::string> stored;  // outlives the clients, whose lanes write to it
    auto first = store.NewClient(4), second = store.NewClient(4), third = store.NewClient(4);
    uint32_t next = 0;
    // Keys that stay in the root at its first split; half of them leave it at the second one.
    const auto insert = [&](kvs::Client& client) {
      std::string key;
      do {
        key = "key-" + std::to_string(next++);
      } while (kvs::HashKey(key).h1 % 2 != 0);
      client.Spawn(InsertOne(client, key, &stored));
    };
    const auto run = [&](kvs::Client& client, uint64_t polls) {
      for (uint64_t i = 0; client.spawned() > 0 && i < polls; ++i) {
        client.Poll();
        clock.Advance(kLongerThanATakeoverNs / 64);
      }
    };
    // An insert takes up to six round trips; one that is still going on splits.
    for (;;) {
      insert(*first);
      run(*first, 6);
      if (first->spawned() > 0) break;
    }
    run(*first, first_pause);
    if (first->stats().splits > 0) return false;

    insert(*second);
    for (uint64_t i = 0; second->spawned() > 0 && second->stats().splits == 0 && i < 100'000; ++i) run(*second, 1);
    run(*second, second_pause);
    const bool both = second->spawned() > 0;

    run(*first, 100'000);
    CheckAll(*third, stored);
    run(*second, 100'000);
    EXPECT_EQ(first->spawned() + second->spawned(), 0u) << "an operation hangs";
    CheckAll(*third, stored);
    return both;
  }

  static void CheckAll(kvs::Client& client, const std::map<std::string, std::string>& stored) {
    for (const auto& [key, value] : stored) {
      std::string read;
      const kvs::Status got = client.Get(key, &read);
      ASSERT_TRUE(got.ok()) << key << ": " << got.ToString();
      ASSERT_EQ(read, value);
    }
  }
};

TEST_F(PausedSplit, WakingUpDuringTheNextSplitLosesNothing) {
  uint32_t runs = 0;
  for (uint32_t first_pause = 0; first_pause < 32; ++first_pause) {
    for (uint32_t second_pause = 0; second_pause < 32; ++second_pause) {
      SCOPED_TRACE(testing::Message() << "paused behind " << first_pause << " and " << second_pause << " round trips");
      if (Run(first_pause, second_pause)) ++runs;
      ASSERT_FALSE(HasFailure());
    }
  }
  EXPECT_GT(runs, 250u) << "too few of the pauses fell into a split";
}

}  // namespace
}  // namespace surgekv_test
