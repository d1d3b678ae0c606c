// Splits that stop at every possible round trip and go on much later, when others have taken over, finished, and
// begun the next split of the same table. One thread, no chance involved: a client that is not polled is paused.
#include <gtest/gtest.h>

#include <map>
#include <string>

#include "kvs/layout/block.h"
#include "kvs/layout/subtable.h"
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
  // `first` splits the root and pauses. `second` takes over, finishes that split, goes on to the next split of the root
  // and pauses. `first` wakes up and acts upon what it saw long ago. Returns false if one of them had ended before its
  // pause.
  bool Run(uint32_t first_pause, uint32_t second_pause) {
    ManualClock clock;
    TestStoreOptions options;
    options.memory_bytes = size_t{8} << 20;
    options.clock = &clock;
    options.lease_ns = kvs::kMaxLeaseNs;  // what a paused client posts when it wakes up is the subject of this test
    TestStore store(options);
    std::map<std::string, std::string> stored;  // outlives the clients, whose lanes write to it
    auto first = store.NewClient(4), second = store.NewClient(4), third = store.NewClient(4);
    uint32_t next = 0;
    // Keys that stay in the root at its first split; half of them leave it at the second one.
    const auto insert = [&](kvs::Client& client) {
      std::string key;
      do {
        key = "key-" + std::to_string(next++);
      } while (HashKey(key).h1 % 2 != 0);
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

// A scan finds a frozen slot whose value is too long for the buffer of matching blocks. It must go on to the other
// blocks in that buffer.
TEST(PausedReading, ALongFrozenValueIsReadBesideAnotherKeyOfItsFingerprint) {
  constexpr uint32_t kGroups = 2;
  const auto is_like = [](const kvs::KeyHash& a, const kvs::KeyHash& b) {
    const kvs::KeyPlaces one = kvs::PlacesOf(a, kGroups), other = kvs::PlacesOf(b, kGroups);
    for (size_t p = 0; p < 2; ++p) {
      if (kvs::CombinedOffset(one.place[p]) != kvs::CombinedOffset(other.place[p])) return false;
    }
    return a.fingerprint() == b.fingerprint() && a.h1 % 2 == b.h1 % 2;
  };
  uint32_t next = 0;
  const auto key_of = [&next](auto wanted) {
    std::string key;
    do {
      key = "key-" + std::to_string(next++);
    } while (!wanted(HashKey(key)));
    return key;
  };
  const std::string moving = key_of([](const kvs::KeyHash& hash) { return hash.h1 % 2 == 1; });
  const std::string like = key_of([&](const kvs::KeyHash& hash) { return is_like(hash, HashKey(moving)); });
  const uint32_t fillers_begin = next;
  uint32_t splitting = 0;
  for (uint32_t pause = 0; pause < 32; ++pause) {
    SCOPED_TRACE(testing::Message() << "paused behind " << pause << " round trips");
    ManualClock clock;
    TestStore store({.groups = kGroups,
                     .memory_bytes = size_t{8} << 20,
                     .operation_timeout_ms = 1'000,
                     .clock = &clock,
                     .lease_ns = kvs::kMaxLeaseNs});
    std::map<std::string, std::string> stored;
    auto first = store.NewClient(4), reader = store.NewClient(4);
    const std::string long_value(3 * kvs::kMaxSmallBlockBytes, 'v');
    ASSERT_TRUE(first->Insert(moving, long_value).ok());
    ASSERT_TRUE(first->Insert(like, "short").ok());
    for (next = fillers_begin; first->spawned() == 0;) {
      first->Spawn(InsertOne(*first, key_of([](const kvs::KeyHash& hash) { return hash.h1 % 2 == 0; }), &stored));
      for (int i = 0; i < 6 && first->spawned() > 0; ++i) first->Poll();
    }
    for (uint32_t i = 0; i < pause && first->spawned() > 0; ++i) first->Poll();
    splitting += first->stats().splits == 0;
    std::string value;
    kvs::Status got = reader->Get(moving, &value);
    ASSERT_TRUE(got.ok()) << got.ToString();
    EXPECT_TRUE(value == long_value);
    got = reader->Get(like, &value);
    ASSERT_TRUE(got.ok()) << got.ToString();
    EXPECT_EQ(value, "short");
    first->Drain();
  }
  EXPECT_GT(splitting, 8u) << "too few of the pauses fell into a split";
}

}  // namespace
}  // namespace surgekv_test
