// What clients do when they want the same keys: lost races and back-off. One thread, and nothing is random: a client
// that is not polled stands still between two round trips.
#include <gtest/gtest.h>

#include <string>

#include "kvs/layout/subtable.h"
#include "kvs/memory/connections.h"
#include "tests/kvs/manual_clock.h"
#include "tests/kvs/test_store.h"

namespace surgekv_test {
namespace {

using kvs::Client;
using kvs::Status;
using kvs::StatusCode;
using kvs::Task;

Task<void> UpdateOne(Client& client, std::string key, std::string value, Status* result) {
  *result = co_await client.UpdateAsync(key, value);
}

void Poll(Client& client, uint32_t rounds) {
  for (uint32_t i = 0; i < rounds; ++i) client.Poll();
}

std::string MustGet(Client& client, const std::string& key) {
  std::string value;
  const Status got = client.Get(key, &value);
  EXPECT_TRUE(got.ok()) << key << ": " << got.ToString();
  return value;
}

TEST(BackOff, IsAboutARoundTripThenTwiceAsLongAndBounded) {
  for (uint32_t losses = 0; losses < 40; ++losses) {
    const int64_t mean = 2'000ll << std::min(losses, 6u);
    EXPECT_GE(kvs::BackOffNs(2'000, losses, 0), mean / 2);
    EXPECT_LE(kvs::BackOffNs(2'000, losses, 0x7fffffff), mean * 3 / 2);
    EXPECT_LT(kvs::BackOffNs(2'000, losses, 1), kvs::BackOffNs(2'000, losses, 0xf000));
  }
}

TEST(BackOff, TheEstimateFollowsRoundTripsAndNotAStop) {
  kvs::RoundTripEstimate estimate;
  estimate.Add(3'000);
  EXPECT_EQ(estimate.ns(), 3'000);
  estimate.Add(5'000'000'000);
  EXPECT_LT(estimate.ns(), 6'000);
  for (int i = 0; i < 100; ++i) estimate.Add(10'000);
  EXPECT_NEAR(static_cast<double>(estimate.ns()), 10'000, 100);
}

class Skew : public ::testing::Test {
 protected:
  Skew() : store_(Options(&clock_)) {}
  static TestStoreOptions Options(krcore::Clock* clock) {
    TestStoreOptions options;
    options.memory_bytes = size_t{16} << 20;
    options.clock = clock;
    return options;
  }

  // The address cache is off, so that every operation takes its full number of round trips.
  std::unique_ptr<Client> NewClient() { return store_.store().NewClient({.address_cache_entries = 0}).value(); }

  ManualClock clock_;
  TestStore store_;
};

TEST_F(Skew, APollWithNothingToWaitForHardlyEverReadsTheClock) {
  auto client = store_.NewClient();
  ASSERT_TRUE(client->Put("k", "1").ok());
  const uint64_t before = clock_.looks();
  Poll(*client, 640);  // now and then, to keep its lease
  EXPECT_LE(clock_.looks() - before, 10u);
}

TEST_F(Skew, ALostCasIsTriedAgainFromTheWordThatWon) {
  auto first = NewClient(), second = NewClient();
  ASSERT_TRUE(first->Put("k", "0").ok());
  ASSERT_TRUE(second->Put("warm", "0").ok());
  const kvs::ClientStats before = first->stats();
  Status result;
  first->Spawn(UpdateOne(*first, "k", "first", &result));
  Poll(*first, 2);  // it has scanned and read the block; its CAS is staged
  ASSERT_TRUE(second->Update("k", "second").ok());
  FinishAll(*first, clock_);
  EXPECT_TRUE(result.ok()) << result.ToString();
  EXPECT_EQ(MustGet(*second, "k"), "first");
  EXPECT_EQ(first->stats().write_attempts - before.write_attempts, 2u);
  EXPECT_EQ(first->stats().writes_done - before.writes_done, 1u);
  EXPECT_EQ(first->stats().operation_round_trips - before.operation_round_trips, 5u) << "scan, block, CAS; block, CAS";
  EXPECT_EQ(first->stats().restarts, before.restarts);
}

// By then the slot's word belongs to another key: the writer must find that out before it may CAS the word.
TEST_F(Skew, ALostCasDoesNotOverwriteAnotherKeyThatGotTheSlot) {
  const std::string key = "victim";
  const kvs::KeyHash hash = HashKey(key);
  const kvs::KeyPlaces places = kvs::PlacesOf(hash, 2);
  std::string other;
  for (uint32_t i = 0; other.empty(); ++i) {
    const std::string candidate = "other!" + std::to_string(100'000 + i);
    const kvs::KeyHash h = HashKey(candidate);
    const kvs::KeyPlaces p = kvs::PlacesOf(h, 2);
    if (h.fingerprint() == hash.fingerprint() && p.place[0].group == places.place[0].group &&
        p.place[0].half == places.place[0].half) {
      other = candidate;
    }
  }
  auto first = NewClient(), second = NewClient();
  ASSERT_TRUE(first->Put(key, "0").ok());
  Status result;
  first->Spawn(UpdateOne(*first, key, "first", &result));
  Poll(*first, 2);
  ASSERT_TRUE(second->Delete(key).ok());
  ASSERT_TRUE(second->Insert(other, "precious").ok());
  FinishAll(*first, clock_);
  EXPECT_EQ(first->stats().cas_failures, 1u) << "the other key is not in the slot";
  EXPECT_EQ(result, StatusCode::kNotFound) << result.ToString();
  EXPECT_EQ(MustGet(*second, other), "precious");
}

// A CAS that would be lost is not tried: the slot is read again after the block of the word that won.
TEST_F(Skew, WhileTheSlotGoesOnChangingNoCasIsTried) {
  auto first = NewClient(), second = NewClient();
  ASSERT_TRUE(first->Put("k", "0").ok());
  const kvs::ClientStats before = first->stats();
  Status result = StatusCode::kUnknown;
  first->Spawn(UpdateOne(*first, "k", "first", &result));
  Poll(*first, 2);
  ASSERT_TRUE(second->Update("k", "second").ok());
  Poll(*first, 1);  // the lost CAS
  ASSERT_TRUE(second->Update("k", "third").ok());
  Poll(*first, 500);
  EXPECT_EQ(first->stats().write_attempts - before.write_attempts, 1u);
  EXPECT_EQ(first->spawned(), 1u) << "it went on though no time had passed";
  FinishAll(*first, clock_);
  EXPECT_TRUE(result.ok()) << result.ToString();
  EXPECT_EQ(first->stats().write_attempts - before.write_attempts, 2u);
  EXPECT_EQ(MustGet(*second, "k"), "first");
}

// A writer that loses twice in a row waits, for a time and not for a number of polls.
TEST_F(Skew, AWriterThatLosesAgainBacksOffForAboutARoundTrip) {
  auto first = NewClient(), second = NewClient();
  ASSERT_TRUE(first->Put("k", "0").ok());
  Status result = StatusCode::kUnknown;
  first->Spawn(UpdateOne(*first, "k", "first", &result));
  Poll(*first, 2);
  ASSERT_TRUE(second->Update("k", "second").ok());
  Poll(*first, 2);  // the lost CAS; the block that won
  ASSERT_TRUE(second->Update("k", "third").ok());
  Poll(*first, 500);
  EXPECT_EQ(first->stats().cas_failures, 2u);
  EXPECT_EQ(first->spawned(), 1u) << "it went on though no time had passed";
  clock_.Advance(100'000'000);
  Poll(*first, 10);
  EXPECT_EQ(first->spawned(), 0u);
  EXPECT_TRUE(result.ok()) << result.ToString();
  EXPECT_EQ(MustGet(*second, "k"), "first");
  EXPECT_EQ(first->stats().restarts, 1u);
}

}  // namespace
}  // namespace surgekv_test
