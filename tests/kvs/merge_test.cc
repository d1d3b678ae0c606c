// Tables that shrink: after most keys were deleted, few subtables are left, every survivor is there, and the table
// grows again. Merges under concurrent operations are tested in threads_test, those that stop in the middle in
// merge_pause_test, and those of killed processes in processes_test.
#include <gtest/gtest.h>

#include <array>
#include <string>
#include <vector>

#include "kvs/layout/pool.h"
#include "kvs/layout/subtable.h"
#include "tests/kvs/stress.h"
#include "tests/kvs/test_store.h"

namespace surgekv_test {
namespace {

using kvs::Status;
using kvs::StatusCode;

class Merge : public ::testing::Test {
 protected:
  static std::string KeyOf(uint32_t i) { return "key-" + std::to_string(i); }

  static void Fill(kvs::Client& client, uint32_t begin, uint32_t end) {
    for (uint32_t i = begin; i < end; ++i) {
      const Status put = client.Insert(KeyOf(i), ValueOf(i));
      ASSERT_TRUE(put.ok()) << KeyOf(i) << ": " << put.ToString();
    }
  }
  static void Erase(kvs::Client& client, uint32_t begin, uint32_t end, uint32_t keep_every) {
    for (uint32_t i = begin; i < end; ++i) {
      if (i % keep_every == 0) continue;
      const Status deleted = client.Delete(KeyOf(i));
      ASSERT_TRUE(deleted.ok()) << KeyOf(i) << ": " << deleted.ToString();
    }
  }
  static kvs::Task<void> ExpectAbsent(kvs::Client& client, std::string key) {
    std::string value;
    const Status got = co_await client.GetAsync(key, &value);
    EXPECT_EQ(got, StatusCode::kNotFound) << key;
  }
  static void CheckSurvivors(kvs::Client& client, uint32_t begin, uint32_t end, uint32_t keep_every) {
    for (uint32_t i = begin; i < end; ++i) {
      std::string value;
      const Status got = client.Get(KeyOf(i), &value);
      if (i % keep_every == 0) {
        ASSERT_TRUE(got.ok()) << KeyOf(i) << ": " << got.ToString();
        ASSERT_EQ(value, ValueOf(i));
      } else {
        ASSERT_EQ(got, StatusCode::kNotFound) << KeyOf(i);
      }
    }
  }
};

TEST_F(Merge, ATableThatLostMostKeysShrinksAndGrowsAndShrinksAgain) {
  TestStore store({.groups = 16, .memory_bytes = size_t{64} << 20});
  auto client = store.NewClient();
  constexpr uint32_t kKeys = 20'000, kKeepEvery = 50;
  for (uint32_t round = 0; round < 3; ++round) {
    SCOPED_TRACE(round);
    const uint32_t begin = round * kKeys, end = begin + kKeys;
    Fill(*client, begin, end);
    const uint64_t grown = client->ReadTableStats().value().subtables;
    EXPECT_GT(grown, 64u);
    Erase(*client, begin, end, kKeepEvery);
    const kvs::TableStats stats = client->ReadTableStats().value();
    EXPECT_LT(stats.subtables, grown / 4);
    EXPECT_EQ(stats.used_slots, (round + 1) * kKeys / kKeepEvery);
    CheckSurvivors(*client, 0, end, kKeepEvery);
  }
  EXPECT_GT(client->stats().merges, 100u);
}

TEST_F(Merge, AClientThatKnewTheTablesBeforeFindsEverything) {
  // The lease is longer than the test, because a client that is expelled forgets the tables.
  TestStore store({.groups = 16, .memory_bytes = size_t{64} << 20, .lease_ns = 600'000'000'000});
  auto client = store.NewClient(), stale = store.NewClient();
  constexpr uint32_t kKeys = 10'000, kKeepEvery = 10;
  Fill(*client, 0, kKeys);
  CheckSurvivors(*stale, 0, kKeys, 1);
  const uint64_t hits = stale->stats().stale_directory_hits;
  Erase(*client, 0, kKeys, kKeepEvery);
  EXPECT_GT(client->stats().merges, 10u);
  // All of these begin with what it knew of the tables; its first round of maintenance, which tells it of merges, comes
  // later.
  for (uint32_t i = 0; i < 50; ++i) {
    if (i % kKeepEvery != 0) stale->Spawn(ExpectAbsent(*stale, KeyOf(i)));
  }
  stale->Drain();
  EXPECT_GT(stale->stats().stale_directory_hits, hits);
  CheckSurvivors(*stale, 0, kKeys, kKeepEvery);
  for (uint32_t i = 0; i < kKeys; i += kKeepEvery) {
    ASSERT_TRUE(stale->Update(KeyOf(i), "new").ok());
    ASSERT_EQ(stale->Insert(KeyOf(i), "newer"), StatusCode::kExists);
  }
}

// Keys whose four buckets are the same, `count` in each of two sibling tables. They begin with `prefix`.
struct CrowdedKeys {
  std::vector<std::string> keys;

  CrowdedKeys(uint32_t groups, uint32_t count, const std::string& prefix) {
    const kvs::KeyPlaces wanted = kvs::PlacesOf(HashKey("here"), groups);
    std::array<uint32_t, 2> found{};
    for (uint32_t i = 0; found[0] < count || found[1] < count; ++i) {
      const std::string key = prefix + std::to_string(i);
      const kvs::KeyHash hash = HashKey(key);
      const kvs::KeyPlaces places = kvs::PlacesOf(hash, groups);
      bool same = true;
      for (int p = 0; p < 2; ++p) {
        same &= places.place[p].group == wanted.place[p].group && places.place[p].half == wanted.place[p].half;
      }
      if (!same || found[hash.h1 % 2] == count) continue;
      ++found[hash.h1 % 2];
      keys.push_back(key);
    }
  }
};

constexpr uint32_t kCrowdedGroups = 16;

// Puts and deletes other keys until `done`, so that deletes find few of their candidates in use.
template <typename Done>
void DeleteUntil(kvs::Client& client, const Done& done) {
  for (uint32_t i = 0; i < 20'000 && !done(); ++i) {
    const std::string key = "other-" + std::to_string(i % 64);
    ASSERT_TRUE(client.Put(key, "v").ok());
    ASSERT_TRUE(client.Delete(key).ok());
  }
  ASSERT_TRUE(done());
}

TEST_F(Merge, KeysOfAFullBucketFindRoomInTheirOthers) {
  // The keys are longer than what a reader READs of a block at first, and so are most blocks.
  const CrowdedKeys crowded(kCrowdedGroups, 11, std::string(9'000, 'k'));
  TestStore store({.groups = kCrowdedGroups, .initial_depth = 1, .memory_bytes = size_t{64} << 20});
  auto client = store.NewClient(), other = store.NewClient();
  for (const std::string& key : crowded.keys) ASSERT_TRUE(client->Insert(key, ValueOf(211)).ok());
  DeleteUntil(*client, [&] { return client->stats().merges > 0; });
  EXPECT_EQ(client->stats().table_replacements, 0u);
  EXPECT_EQ(client->ReadTableStats().value().subtables, 1u);
  for (const std::string& key : crowded.keys) {
    std::string value;
    ASSERT_TRUE(other->Get(key, &value).ok());
    ASSERT_EQ(value, ValueOf(211));
    ASSERT_EQ(other->Insert(key, "again"), StatusCode::kExists);
  }
  for (const std::string& key : crowded.keys) ASSERT_TRUE(other->Delete(key).ok());
}

TEST_F(Merge, TablesThatDoNotFitInOneAreReplacedByCopies) {
  const CrowdedKeys crowded(kCrowdedGroups, 20, "key-");  // 40 for 28 slots
  TestStore store({.groups = kCrowdedGroups, .initial_depth = 1, .memory_bytes = size_t{64} << 20});
  auto client = store.NewClient(), other = store.NewClient();
  for (const std::string& key : crowded.keys) ASSERT_TRUE(client->Insert(key, key + " value").ok());
  for (uint32_t round = 1; round <= 3; ++round) {
    for (const std::string& key : crowded.keys) {
      std::string value;
      ASSERT_TRUE(other->Get(key, &value).ok());
      ASSERT_EQ(value, key + (round == 1 ? " value" : " value " + std::to_string(round - 1)));
    }
    DeleteUntil(*client, [&] { return client->stats().table_replacements == round; });
    EXPECT_EQ(client->stats().merges, 0u);
    const kvs::TableStats stats = other->ReadTableStats().value();
    EXPECT_EQ(stats.subtables, 2u);
    EXPECT_EQ(stats.used_slots, crowded.keys.size());
    for (const std::string& key : crowded.keys) {
      ASSERT_TRUE(other->Update(key, key + " value " + std::to_string(round)).ok()) << key;
    }
  }
}

// Memory of retired subtables is used again, by whoever retired them, and no cache leads into it.
TEST_F(Merge, RetiredSubtablesAreUsedAgain) {
  TestStore store({.groups = 16, .memory_bytes = size_t{32} << 20});
  auto client = store.NewClient(), other = store.NewClient();
  constexpr uint32_t kKeys = 4'000;
  uint64_t taken = 0;
  for (uint32_t round = 0; round < 30 / kSlowdown + 4; ++round) {
    SCOPED_TRACE(round);
    for (uint32_t i = 0; i < kKeys; ++i) {
      ASSERT_TRUE(client->Insert(KeyOf(i), ValueOf(i)).ok());
      if (i % 16 == 0) (void)other->Poll();
    }
    CheckSurvivors(*other, 0, kKeys, 1);
    for (uint32_t i = 0; i < kKeys; ++i) {
      ASSERT_TRUE(client->Delete(KeyOf(i)).ok());
      if (i % 16 == 0) (void)other->Poll();
    }
    for (uint32_t i = 0; i < 5'000; ++i) {
      (void)client->Poll();
      (void)other->Poll();
    }
    const kvs::TableStats stats = other->ReadTableStats().value();
    EXPECT_EQ(stats.used_slots, 0u);
    if (round == 3) taken = stats.memory_nodes.at(0).taken_bytes;
    if (round > 3) {
      EXPECT_LE(stats.memory_nodes.at(0).taken_bytes, taken + (size_t{4} << 20));
    }
  }
  EXPECT_GT(client->stats().merges, 100u / kSlowdown);
}

}  // namespace
}  // namespace surgekv_test
