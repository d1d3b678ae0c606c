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
  // `first` and `second` both come to split the root, one after the other; both pause in the middle.
  // Returns false when `first` had ended before its pause.
  bool Run(uint32_t first_pause, uint32_t second_pause) {
    ManualClock clock;
    TestStoreOptions options;
    options.memory_bytes = size_t{8} << 20;
    options.clock = &clock;
    TestStore store(options);
    auto first = store.NewClient(4), second = store.NewClient(4), third = store.NewClient(4);
    std::map<std::string, std::string> stored;
    uint32_t next = 0;
    // Keys that stay in the root by its next two splits and keys that leave at the first or at the second.
    const auto key_of = [&next](uint32_t residue, uint32_t modulus) {
      for (;;) {
        std::string key = "key-" + std::to_string(next++);
        if (kvs::HashKey(key).h1 % modulus == residue) return key;
      }
    };
    const auto insert = [&](kvs::Client& client, uint32_t residue, uint32_t modulus) {
      client.Spawn(InsertOne(client, key_of(residue, modulus), &stored));
    };
    // Fill the root with keys of the two children that the second split makes, until an insert begins to split.
    while (first->stats().atomics < 64 && next < 10'000) {
      insert(*first, next % 2 * 2, 4);
      const uint64_t chunks = first->stats().chunks_taken;
      for (uint32_t polls = 0; first->spawned() > 0; ++polls) {
        // A split takes far more round trips than an insert: what is still going on behind six is one.
        if (polls == 6 + first_pause && chunks == first->stats().chunks_taken) goto paused;
        first->Poll();
      }
      if (first->stats().splits > 0) return false;
    }
  paused:
    // Others finish it, and split the root again, pausing in the middle of that.
    const auto run = [&](kvs::Client& client, uint64_t polls) {
      for (uint64_t i = 0; client.spawned() > 0 && i < polls; ++i) {
        client.Poll();
        clock.Advance(kLongerThanATakeoverNs / 64);
      }
    };
    while (second->stats().splits < 1 && next < 20'000) {
      insert(*second, 0, 4);
      run(*second, 100'000);
    }
    const uint64_t before = second->stats().slots_migrated;
    while (second->stats().splits < 2 && next < 20'000) {
      insert(*second, next % 2 * 2, 4);
      for (uint32_t i = 0; second->spawned() > 0; ++i) {
        if (second->stats().slots_migrated > before && i >= second_pause) break;
        if (i > 12 + second_pause) break;
        second->Poll();
      }
      if (second->spawned() > 0) break;
    }
    // The first one wakes up and acts upon what it saw long ago.
    run(*first, 100'000);
    CheckAll(*third, stored);
    run(*second, 100'000);
    EXPECT_EQ(first->spawned() + second->spawned(), 0u) << "an operation hangs";
    CheckAll(*third, stored);
    return true;
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
    for (uint32_t second_pause = 0; second_pause < 24; ++second_pause) {
      SCOPED_TRACE(testing::Message() << "paused behind " << first_pause << " and " << second_pause << " round trips");
      if (Run(first_pause, second_pause)) ++runs;
      ASSERT_FALSE(HasFailure());
    }
  }
  EXPECT_GT(runs, 300u);
}

}  // namespace
}  // namespace surgekv_test
