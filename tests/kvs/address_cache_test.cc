// The address cache: what it remembers, when it is believed, and when it is on.
#include "kvs/table/address_cache.h"

#include <gtest/gtest.h>

#include <random>
#include <string>

#include "tests/kvs/manual_clock.h"
#include "tests/kvs/test_store.h"

namespace surgekv_test {
namespace {

using kvs::AddressCache;
using kvs::ClientStats;
using kvs::Slot;
using kvs::SlotState;
using kvs::Status;
using kvs::StatusCode;

// ---- in a client

class AddressCacheOfAClient : public ::testing::Test {
 protected:
  AddressCacheOfAClient() : store_(Options()), reader_(NewClient(1'024)), writer_(NewClient(0)) {}
  static TestStoreOptions Options() {
    TestStoreOptions options;
    options.memory_bytes = size_t{16} << 20;
    return options;
  }
  std::unique_ptr<kvs::Client> NewClient(uint32_t entries) {
    return store_.store().NewClient({.address_cache_entries = entries}).value();
  }
  std::string Get(const std::string& key) {
    std::string value;
    const Status got = reader_->Get(key, &value);
    return got.ok() ? value : got.ToString();
  }

  TestStore store_;
  std::unique_ptr<kvs::Client> reader_, writer_;
};

TEST_F(AddressCacheOfAClient, AStaleEntryIsNotBelieved) {
  ASSERT_TRUE(writer_->Put("k", "old").ok());
  EXPECT_EQ(Get("k"), "old");
  ASSERT_TRUE(writer_->Update("k", "new").ok());
  EXPECT_EQ(Get("k"), "new") << "the block that the cache knew is still there, but not in the slot";
  EXPECT_EQ(reader_->stats().cache_speculations, 1u);
  EXPECT_EQ(reader_->stats().cache_hits, 0u);
  EXPECT_EQ(Get("k"), "new");
  EXPECT_EQ(reader_->stats().cache_hits, 1u);
}

TEST_F(AddressCacheOfAClient, ADeletedKeyIsAbsentAndAReinsertedOneIsThere) {
  ASSERT_TRUE(writer_->Put("k", "1").ok());
  EXPECT_EQ(Get("k"), "1");
  ASSERT_TRUE(writer_->Delete("k").ok());
  EXPECT_EQ(Get("k"), Status(StatusCode::kNotFound).ToString());
  ASSERT_TRUE(writer_->Insert("k", "2").ok());
  EXPECT_EQ(Get("k"), "2");
  ASSERT_TRUE(reader_->Delete("k").ok());
  EXPECT_EQ(Get("k"), Status(StatusCode::kNotFound).ToString());
}

// A small store soon reuses blocks and slot words, so that cache entries become stale.
TEST_F(AddressCacheOfAClient, EveryValueIsRightWhileSlotsAndBlocksAreReused) {
  std::mt19937 random(7);
  std::vector<uint32_t> version(200, 0);
  for (int i = 0; i < 60'000; ++i) {
    const auto key = static_cast<uint32_t>(random() % version.size());
    const std::string name = "key" + std::to_string(key);
    if (random() % 4 == 0) {
      ASSERT_TRUE(writer_->Put(name, name + ":" + std::to_string(++version[key])).ok());
    } else if (version[key] > 0) {
      ASSERT_EQ(Get(name), name + ":" + std::to_string(version[key]));
    }
  }
  EXPECT_GT(writer_->stats().blocks_reused, 5'000u);
  EXPECT_GT(reader_->stats().cache_hits, 1'000u);
  EXPECT_GT(reader_->stats().cache_speculations, reader_->stats().cache_hits + 1'000);
}

TEST_F(AddressCacheOfAClient, EntriesOutliveASplit) {
  for (int i = 0; i < 10; ++i) {
    const std::string name = "key" + std::to_string(i);
    ASSERT_TRUE(writer_->Put(name, name).ok());
    ASSERT_EQ(Get(name), name);
  }
  for (int i = 0; writer_->stats().splits < 8; ++i) ASSERT_TRUE(writer_->Put("filler" + std::to_string(i), "x").ok());
  const uint64_t before = reader_->stats().cache_hits;
  for (int round = 0; round < 2; ++round) {  // the first round brings the directory up to date
    for (int i = 0; i < 10; ++i) ASSERT_EQ(Get("key" + std::to_string(i)), "key" + std::to_string(i));
  }
  EXPECT_GE(reader_->stats().cache_hits - before, 10u);
}

TEST_F(AddressCacheOfAClient, LargeValuesAreNotGuessedAt) {
  const std::string large(10'000, 'x');
  ASSERT_TRUE(writer_->Put("k", large).ok());
  EXPECT_EQ(Get("k"), large);
  EXPECT_EQ(Get("k"), large);
  EXPECT_EQ(reader_->stats().cache_speculations, 0u);
}

// ---- the cache alone, under a load whose times the test chooses

Slot SlotOf(uint64_t key) {
  return Slot::Make(SlotState::kVal, static_cast<uint8_t>(key), 10, {1, (key + 1) * 1'024}, 0);
}

struct Load {
  uint64_t keys = 1'000;
  uint32_t stale_percent = 0;  // keys whose slot has changed since
  int64_t hit_ns = 2'000;      // how long a Get takes, by what the cache gave it
  int64_t stale_ns = 4'000;
  int64_t unknown_ns = 4'000;
};

class AddressCacheAlone : public ::testing::Test {
 protected:
  AddressCacheAlone() { cache_.SetSize(4'096); }

  void Run(const Load& load, uint32_t operations) {
    for (uint32_t i = 0; i < operations; ++i) {
      const uint64_t key = random_() % load.keys;
      const uint64_t hash = key * 0x9e3779b97f4a7c15;
      cache_.Count(clock_);
      const Slot guess = cache_.Lookup(hash);
      if (guess != Slot() && random_() % 100 >= load.stale_percent) {
        ASSERT_EQ(guess, SlotOf(key));
        cache_.CountHit();
        clock_.Advance(load.hit_ns);
      } else {
        clock_.Advance(guess == Slot() ? load.unknown_ns : load.stale_ns);
      }
      cache_.Learn(hash, SlotOf(key));
    }
  }

  ManualClock clock_;
  ClientStats stats_;
  AddressCache cache_{stats_};
  std::mt19937_64 random_{1};
};

TEST_F(AddressCacheAlone, StaysOnWhereARoundTripIsDear) {
  Run({}, 2'000'000);
  EXPECT_TRUE(cache_.on());
  EXPECT_EQ(stats_.cache_switches, 0u);
  EXPECT_GT(stats_.cache_hits, 1'900'000u) << "it pauses for its trials only";
  EXPECT_LT(clock_.looks(), 2'000u);
}

TEST_F(AddressCacheAlone, GoesOffWhereReadingMoreAtOnceTakesLonger) {
  Run({.hit_ns = 4'400}, 2'000'000);
  EXPECT_FALSE(cache_.on());
  EXPECT_EQ(stats_.cache_switches, 1u);
  EXPECT_LT(stats_.cache_speculations, 200'000u);
}

TEST_F(AddressCacheAlone, GoesOffWhereHardlyAnyKeyComesTwice) {
  Run({.keys = 1'000'000}, 2'000'000);
  EXPECT_FALSE(cache_.on());
  EXPECT_LT(stats_.cache_misses, 200'000u);
}

TEST_F(AddressCacheAlone, GoesOffWhereOthersChangeEverything) {
  Run({.stale_percent = 80}, 2'000'000);
  EXPECT_FALSE(cache_.on());
  EXPECT_LT(stats_.cache_speculations, 200'000u);
}

TEST_F(AddressCacheAlone, TriesAgainWhenTheLoadHasChanged) {
  Run({.keys = 1'000'000}, 1'000'000);
  ASSERT_FALSE(cache_.on());
  Run({}, 3'000'000);
  EXPECT_TRUE(cache_.on());
  EXPECT_EQ(stats_.cache_switches, 2u);
  Run({.stale_percent = 80}, 100'000);
  EXPECT_FALSE(cache_.on()) << "it need not wait for the next trial";
}

TEST_F(AddressCacheAlone, HotKeysSurviveManyColdOnes) {
  for (uint64_t hot = 0; hot < 100; ++hot) cache_.Learn(hot * 0x9e3779b97f4a7c15, SlotOf(hot));
  uint32_t lost = 0;
  for (uint64_t cold = 1'000; cold < 10'000; ++cold) {
    cache_.Learn(cold * 0x9e3779b97f4a7c15, SlotOf(cold));
    const uint64_t hot = cold % 100;
    for (int i = 0; i < 2; ++i) {
      if (cache_.Lookup(hot * 0x9e3779b97f4a7c15) == Slot()) ++lost;
    }
    cache_.Learn(hot * 0x9e3779b97f4a7c15, SlotOf(hot));
  }
  EXPECT_LT(lost, 20u);
}

TEST_F(AddressCacheAlone, WithoutEntriesDoesNothing) {
  AddressCache none(stats_);
  none.SetSize(0);
  for (int i = 0; i < 100'000; ++i) {
    none.Count(clock_);
    none.Learn(1, SlotOf(1));
    none.Refresh(1, SlotOf(1));
    ASSERT_EQ(none.Lookup(1), Slot());
  }
  EXPECT_EQ(stats_.cache_misses, 0u);
  EXPECT_EQ(clock_.looks(), 0u);
}

}  // namespace
}  // namespace surgekv_test
