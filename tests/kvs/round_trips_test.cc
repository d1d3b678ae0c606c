// What operations cost without contention, false fingerprint or split, in counted round trips and verbs; what a split
// costs; and how full a table gets before it splits.
#include <gtest/gtest.h>

#include <optional>
#include <ostream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kvs/layout/candidates.h"
#include "kvs/layout/subtable.h"
#include "tests/kvs/manual_clock.h"
#include "tests/kvs/test_store.h"

namespace surgekv_test {
namespace {

using kvs::Status;
using kvs::StatusCode;

class RoundTrips : public ::testing::Test {
 protected:
  RoundTrips() : store_(Options(&clock_)), client_(NewClient(0)), knowing_(NewClient(1'024)) {
    // This takes a chunk and learns the table.
    EXPECT_TRUE(client_->Put("warm", "").ok());
    EXPECT_TRUE(knowing_->Put("warm too", "").ok());
  }
  static TestStoreOptions Options(krcore::Clock* clock) {
    TestStoreOptions options;
    options.groups = 128;
    options.clock = clock;
    return options;
  }
  std::unique_ptr<kvs::Client> NewClient(uint32_t address_cache_entries) {
    return store_.store().NewClient({.address_cache_entries = address_cache_entries}).value();
  }
  template <typename Body>
  static uint64_t Of(kvs::Client& client, Body body) {
    const uint64_t before = client.stats().operation_round_trips;
    body();
    return client.stats().operation_round_trips - before;
  }

  ManualClock clock_;  // so that no lease runs out while a slow machine stalls
  TestStore store_;
  std::unique_ptr<kvs::Client> client_, knowing_;  // without and with the address cache
  std::string value_;
};

TEST_F(RoundTrips, GetTakesTwo) {
  ASSERT_TRUE(client_->Put("a", "1").ok());
  EXPECT_EQ(Of(*client_, [&] { ASSERT_TRUE(client_->Get("a", &value_).ok()); }), 2u);
  EXPECT_EQ(Of(*client_, [&] { ASSERT_TRUE(client_->Get("a", &value_).ok()); }), 2u);
  EXPECT_EQ(Of(*client_, [&] { ASSERT_EQ(client_->Get("b", &value_), StatusCode::kNotFound); }), 2u);
}

TEST_F(RoundTrips, GetTakesOneOnAnAddressCacheHit) {
  ASSERT_TRUE(client_->Put("a", "1").ok());
  EXPECT_EQ(Of(*knowing_, [&] { ASSERT_TRUE(knowing_->Get("a", &value_).ok()); }), 2u);
  EXPECT_EQ(Of(*knowing_, [&] { ASSERT_TRUE(knowing_->Get("a", &value_).ok()); }), 1u);
  EXPECT_EQ(value_, "1");
  ASSERT_TRUE(knowing_->Update("a", "2").ok());
  EXPECT_EQ(Of(*knowing_, [&] { ASSERT_TRUE(knowing_->Get("a", &value_).ok()); }), 1u) << "its own change";
  EXPECT_EQ(value_, "2");
}

TEST_F(RoundTrips, WritesTakeThree) {
  EXPECT_EQ(Of(*client_, [&] { ASSERT_TRUE(client_->Insert("a", "1").ok()); }), 3u);
  EXPECT_EQ(Of(*client_, [&] { ASSERT_TRUE(client_->Put("a", "2").ok()); }), 3u);
  EXPECT_EQ(Of(*client_, [&] { ASSERT_TRUE(client_->Put("b", "2").ok()); }), 3u);
  EXPECT_EQ(Of(*client_, [&] { ASSERT_TRUE(client_->Update("a", "3").ok()); }), 3u);
  EXPECT_EQ(Of(*client_, [&] { ASSERT_TRUE(client_->Delete("a").ok()); }), 3u);
}

TEST_F(RoundTrips, WritesThatAreRefusedTakeTwo) {
  ASSERT_TRUE(client_->Put("a", "1").ok());
  EXPECT_EQ(Of(*client_, [&] { ASSERT_EQ(client_->Insert("a", "4"), StatusCode::kExists); }), 2u);
  EXPECT_EQ(Of(*client_, [&] { ASSERT_EQ(client_->Update("c", "4"), StatusCode::kNotFound); }), 2u);
  EXPECT_EQ(Of(*client_, [&] { ASSERT_EQ(client_->Delete("c"), StatusCode::kNotFound); }), 2u);
}

TEST_F(RoundTrips, WritesOfAKeyInTheAddressCacheTakeTwo) {
  EXPECT_EQ(Of(*knowing_, [&] { ASSERT_TRUE(knowing_->Insert("a", "1").ok()); }), 3u);
  EXPECT_EQ(Of(*knowing_, [&] { ASSERT_TRUE(knowing_->Update("a", "2").ok()); }), 2u);
  EXPECT_EQ(Of(*knowing_, [&] { ASSERT_TRUE(knowing_->Put("a", "3").ok()); }), 2u);
  EXPECT_EQ(Of(*knowing_, [&] { ASSERT_TRUE(knowing_->Delete("a").ok()); }), 2u);
}

TEST_F(RoundTrips, AModifyTakesOneMoreThanAnUpdateAndTwoMoreWhereTheKeyIsAbsent) {
  const auto set = [](std::string value) {
    return [value = std::move(value)](std::optional<std::string_view>) { return kvs::Modification::Set(value); };
  };
  const auto keep = [](std::optional<std::string_view>) { return kvs::Modification::Keep(); };
  const auto remove = [](std::optional<std::string_view>) { return kvs::Modification::Delete(); };
  EXPECT_EQ(Of(*client_, [&] { ASSERT_TRUE(client_->Modify("a", keep).ok()); }), 2u);
  EXPECT_EQ(Of(*client_, [&] { ASSERT_TRUE(client_->Modify("a", set("1")).ok()); }), 5u);
  EXPECT_EQ(Of(*client_, [&] { ASSERT_TRUE(client_->Modify("a", set("2")).ok()); }), 4u);
  EXPECT_EQ(Of(*client_, [&] { ASSERT_TRUE(client_->Modify("a", keep).ok()); }), 2u);
  EXPECT_EQ(Of(*client_, [&] { ASSERT_TRUE(client_->Modify("a", remove).ok()); }), 3u);
  ASSERT_TRUE(knowing_->Put("a", "3").ok());
  EXPECT_EQ(Of(*knowing_, [&] { ASSERT_TRUE(knowing_->Modify("a", set("4")).ok()); }), 3u) << "its place is known";
}

TEST_F(RoundTrips, AModifyThatKeepsLearnsWhereTheKeyIs) {
  ASSERT_TRUE(knowing_->Put("a", "1").ok());
  ASSERT_TRUE(client_->Put("a", "2").ok());
  const auto compare = [&] { ASSERT_EQ(knowing_->CompareAndSet("a", "1", "3"), StatusCode::kExists); };
  EXPECT_EQ(Of(*knowing_, compare), 2u) << "it knew another place";
  EXPECT_EQ(Of(*knowing_, compare), 1u);
}

TEST_F(RoundTrips, MultiGetOf64KeysTakesTwo) {
  std::vector<std::string> names;
  for (int i = 0; i < 64; ++i) {
    names.push_back("key" + std::to_string(i));
    ASSERT_TRUE(client_->Put(names.back(), names.back()).ok());
  }
  const std::vector<std::string_view> keys(names.begin(), names.end());
  std::vector<std::string> values(keys.size());
  std::vector<Status> statuses(keys.size());
  EXPECT_EQ(Of(*client_, [&] { client_->MultiGet(keys, values, statuses); }), 2u);
  for (int i = 0; i < 64; ++i) {
    ASSERT_TRUE(statuses[i].ok());
    ASSERT_EQ(values[i], names[i]);
  }
  int ended = 0;
  const auto get = [](kvs::Client& client, std::string key, int* count) -> kvs::Task<void> {
    std::string value;
    const Status got = co_await client.GetAsync(key, &value);
    *count += got.ok() ? 1 : 0;
  };
  for (const std::string& name : names) client_->Spawn(get(*client_, name, &ended));
  client_->Poll();
  client_->Poll();
  EXPECT_EQ(ended, 64);
}

// READs, WRITEs and atomics. A scan is two READs, and one of each block that matches; a miss reads four headers again.
struct Verbs {
  uint64_t reads, writes, atomics;
  friend bool operator==(const Verbs&, const Verbs&) = default;
  friend void PrintTo(const Verbs& verbs, std::ostream* out) {
    *out << verbs.reads << " READs, " << verbs.writes << " WRITEs, " << verbs.atomics << " atomics";
  }
};
template <typename Body>
Verbs VerbsOf(kvs::Client& client, Body body) {
  const kvs::ClientStats before = client.stats();
  body();
  const kvs::ClientStats& after = client.stats();
  return {after.reads - before.reads, after.writes - before.writes, after.atomics - before.atomics};
}

TEST_F(RoundTrips, AndVerbs) {
  EXPECT_EQ(VerbsOf(*client_, [&] { ASSERT_TRUE(client_->Insert("a", "1").ok()); }), (Verbs{4, 1, 2}));
  EXPECT_EQ(VerbsOf(*client_, [&] { ASSERT_TRUE(client_->Update("a", "2").ok()); }), (Verbs{3, 1, 1}));
  EXPECT_EQ(VerbsOf(*client_, [&] { ASSERT_TRUE(client_->Get("a", &value_).ok()); }), (Verbs{3, 0, 0}));
  EXPECT_EQ(VerbsOf(*client_, [&] { ASSERT_TRUE(client_->Delete("a").ok()); }), (Verbs{3, 0, 1}));
  EXPECT_EQ(VerbsOf(*client_, [&] { ASSERT_EQ(client_->Get("a", &value_), StatusCode::kNotFound); }), (Verbs{6, 0, 0}));
}

// A split READs each block's hash, and CASes each header once and each slot that moves twice: FRZ, and at last FREE.
TEST_F(RoundTrips, ASplitCasesWhatMovesTwice) {
  uint64_t splits = 0;
  Verbs cost{};
  uint64_t keys = 1;  // "warm too" is the other client's
  const auto insert = [&](const std::string& key) {
    cost = VerbsOf(*client_, [&] { ASSERT_TRUE(client_->Insert(key, "v").ok()); });
    splits = client_->stats().splits;
  };
  for (int i = 0; splits == 0; ++i, ++keys) insert("key" + std::to_string(i));
  const uint64_t moved = client_->stats().slots_migrated;
  EXPECT_NEAR(static_cast<double>(moved), static_cast<double>(keys) / 2, 150);
  constexpr uint64_t kHeaders = 128 * kvs::kBucketsPerGroup;
  // Of the Insert, which begins again, and of the lock, the directory and the memory for the table.
  constexpr uint64_t kSome = 40;
  EXPECT_GE(cost.atomics, kHeaders + 2 * moved);
  EXPECT_LE(cost.atomics, kHeaders + 2 * moved + kSome);
  EXPECT_GE(cost.reads, keys);
  EXPECT_LE(cost.reads, keys + kSome + kvs::kCandidates);  // whether a split helps, the blocks of the candidates tell
  EXPECT_LE(cost.writes, 3u);
}

TEST_F(RoundTrips, OfMaintenanceAndReportsAreNoOperations) {
  const kvs::ClientStats before = client_->stats();
  for (int i = 0; i < 640; ++i) {
    clock_.Advance(1'000'000);
    client_->Poll();
  }
  const uint64_t maintained = client_->stats().round_trips;
  EXPECT_GT(maintained, before.round_trips);
  ASSERT_TRUE(client_->ReadTableStats().ok());
  EXPECT_GT(client_->stats().round_trips, maintained);
  EXPECT_EQ(client_->stats().operation_round_trips, before.operation_round_trips);
  EXPECT_EQ(client_->stats().operations, before.operations);
}

// ---- load factor at the first split

double LoadAtFirstSplit(uint32_t groups) {
  TestStoreOptions options;
  options.groups = groups;
  options.memory_bytes = size_t{128} << 20;
  TestStore store(options);
  auto client = store.store().NewClient({.address_cache_entries = 0}).value();
  const uint32_t slots = groups * 21;
  uint32_t inserted = 0;
  const auto insert = [&slots, &inserted](kvs::Client& c) -> kvs::Task<void> {
    while (c.stats().splits + c.stats().slots_migrated == 0 && inserted < slots) {
      const std::string key = "user" + std::to_string(inserted++);
      const Status status = co_await c.InsertAsync(key, "v");
      EXPECT_TRUE(status.ok()) << status.ToString();
    }
  };
  for (int lane = 0; lane < 16; ++lane) client->Spawn(insert(*client));
  client->Drain();
  return static_cast<double>(inserted) / slots;
}

TEST(LoadFactor, ATableOf1500SlotsIsNearlyFullAtItsFirstSplit) { EXPECT_GE(LoadAtFirstSplit(72), 0.93); }

// For a table larger than a subtable may be, only the placement is tested, with the keys' own hashes.
TEST(LoadFactor, ATableOf400000SlotsIsNearlyFullWhenAKeyFindsNoRoom) {
  constexpr uint32_t kGroups = 19'048;
  std::vector<bool> used(size_t{kGroups} * kvs::kBucketsPerGroup * kvs::kSlotsPerBucket);
  const auto slot = [](const kvs::KeyPlaces& places, uint32_t c) {
    return kvs::FirstBucket(places.place[c / kvs::kCombinedSlots]) * kvs::kSlotsPerBucket + c % kvs::kCombinedSlots;
  };
  uint32_t inserted = 0;
  for (;; ++inserted) {
    const kvs::KeyPlaces places = kvs::PlacesOf(HashKey("user" + std::to_string(inserted)), kGroups);
    uint32_t free = 0;
    for (uint32_t c = 0; c < kvs::kCandidates; ++c) free |= static_cast<uint32_t>(!used[slot(places, c)]) << c;
    const int chosen = kvs::ChooseFreeSlot(places, free);
    if (chosen < 0) break;
    used[slot(places, static_cast<uint32_t>(chosen))] = true;
  }
  EXPECT_GE(static_cast<double>(inserted) / static_cast<double>(used.size()), 0.89);
}

}  // namespace
}  // namespace surgekv_test
