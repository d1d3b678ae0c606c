// Keys whose hashes are equal, or equal in all bits that the table uses. They are made in advance, as anybody can do
// who knows the seed, and are also tried on a store whose seed nobody knows.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <string>
#include <vector>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "kvs/client.h"
#include "kvs/layout/pool.h"
#include "kvs/layout/subtable.h"
#include "tests/kvs/colliding_key.h"
#include "tests/kvs/test_store.h"

namespace surgekv_test {
namespace {

using kvs::Client;
using kvs::Status;
using kvs::StatusCode;

class Collisions : public ::testing::Test {
 protected:
  static constexpr uint32_t kSlots = 28;  // the slots that a key may have

  // For stores with kTestSeed.
  static std::string Key(uint64_t n) {
    static const kvs::Hasher hasher(kTestSeed);
    return CollidingKey(hasher.secret().data(), n);
  }
  // Returns keys of table `suffix` at the largest depth. Nothing else of their hashes is the same.
  static std::vector<std::string> KeysOfSuffix(size_t count) {
    std::vector<std::string> keys;
    for (uint64_t n = 0; keys.size() < count; ++n) {
      std::string key(reinterpret_cast<const char*>(&n), sizeof(n));
      if (HashKey(key).Suffix(kvs::kMaxDepth) == 0) keys.push_back(std::move(key));
    }
    return keys;
  }
  static void ExpectCollision(const Status& status) {
    EXPECT_EQ(status, StatusCode::kInvalidArgument) << status.ToString();
    EXPECT_THAT(std::string(status.message()), testing::HasSubstr("the key collides"));
  }
  static void ExpectValue(Client& client, const std::string& key, const std::string& value) {
    std::string found;
    const Status got = client.Get(key, &found);
    EXPECT_TRUE(got.ok()) << got.ToString();
    EXPECT_EQ(found, value);
  }
};

TEST_F(Collisions, KeysMadeToCollideInAdvanceAllGoIntoAStore) {
  std::array<uint64_t, 8> known;
  std::memcpy(known.data(), XXH3_kSecret, sizeof(known));
  const auto key = [&known](uint64_t n) { return CollidingKey(known.data(), n); };
  for (uint64_t n = 1; n < 100; ++n)
    ASSERT_TRUE(XXH128_isEqual(XXH3_128bits(key(0).data(), 64), XXH3_128bits(key(n).data(), 64)));
  const auto store = kvs::Store::OpenEmbedded({}).value();
  const auto client = store->NewClient().value();
  for (uint64_t n = 0; n < 100; ++n) {
    const Status put = client->Put(key(n), std::to_string(n));
    ASSERT_TRUE(put.ok()) << "key " << n << ": " << put.ToString();
  }
  for (uint64_t n = 0; n < 100; ++n) ExpectValue(*client, key(n), std::to_string(n));
}

TEST_F(Collisions, The29thKeyOfOneHashIsRefusedAtOnceWithTheReasonAndAllOthersGoOn) {
  TestStore store({.groups = 16});
  auto client = store.NewClient();
  ASSERT_EQ(HashKey(Key(0)).h1, HashKey(Key(1)).h1);
  for (uint32_t n = 0; n < kSlots; ++n) ASSERT_TRUE(client->Put(Key(n), "first").ok()) << n;
  const std::string late = Key(kSlots);
  ExpectCollision(client->Put(late, "v"));
  ExpectCollision(client->Insert(late, "v"));
  EXPECT_EQ(client->Update(late, "v"), StatusCode::kNotFound);
  const std::string another = Key(kSlots + 1);
  std::array<kvs::WriteRequest, 3> writes{{{kvs::WriteKind::kPut, late, "v"},
                                           {kvs::WriteKind::kPut, "other", "v"},
                                           {kvs::WriteKind::kInsert, another, "v"}}};
  client->MultiWrite(writes);
  ExpectCollision(writes[0].status);
  EXPECT_TRUE(writes[1].status.ok()) << writes[1].status.ToString();
  ExpectCollision(writes[2].status);
  EXPECT_EQ(client->stats().splits, 0u) << "in vain";

  for (uint32_t i = 0; i < 5'000; ++i) ASSERT_TRUE(client->Insert("other" + std::to_string(i), "v").ok()) << i;
  EXPECT_GT(client->stats().splits, 4u);
  for (uint32_t n = 0; n < kSlots; ++n) ASSERT_TRUE(client->Update(Key(n), std::to_string(n)).ok()) << n;
  for (uint32_t n = 0; n < kSlots; ++n) ExpectValue(*client, Key(n), std::to_string(n));
  std::string value;
  EXPECT_EQ(client->Get(late, &value), StatusCode::kNotFound);
  const uint64_t splits = client->stats().splits;
  ExpectCollision(client->Put(late, "v"));
  EXPECT_EQ(client->stats().splits, splits) << "in vain";
  ASSERT_TRUE(client->Delete(Key(7)).ok());
  EXPECT_TRUE(client->Put(late, "late").ok());
  ExpectValue(*client, late, "late");
}

// The tentative slot was left by the deletion of a value or by the death of its writer.
TEST_F(Collisions, ATentativeSlotAmongThemMakesRoomWhenItsWriterHasGone) {
  TestStore store({.groups = 16});
  auto client = store.NewClient();
  for (uint32_t n = 0; n < kSlots; ++n) ASSERT_TRUE(client->Put(Key(n), "v").ok()) << n;
  const uint64_t table = store.DirectoryEntryOf(0).subtable().offset;
  const kvs::SubtableGeometry geometry{16};
  for (uint32_t s = 0;; ++s) {
    ASSERT_LT(s, geometry.slots());
    auto& word = *reinterpret_cast<uint64_t*>(&store.memory()[table + kvs::SlotOffset(s)]);
    if (kvs::Slot(word).state() != kvs::SlotState::kVal) continue;
    word = kvs::Slot(word).WithState(kvs::SlotState::kIns).word();
    break;
  }
  const Status put = client->Put(Key(kSlots), "late");
  EXPECT_TRUE(put.ok()) << put.ToString();
  ExpectValue(*client, Key(kSlots), "late");
  ExpectCollision(client->Put(Key(kSlots + 1), "v"));
}

TEST_F(Collisions, KeysThatSplitsCannotSeparateAreRefusedBeforeTheTableIsSplitInVain) {
  TestStore store({.groups = 2});  // 42 slots, 28 of which a key may have
  auto client = store.NewClient();
  const std::vector<std::string> keys = KeysOfSuffix(43);
  size_t stored = 0;
  Status put;
  for (; stored < keys.size() && put.ok(); stored += put.ok() ? 1 : 0) put = client->Put(keys[stored], "v");
  ExpectCollision(put);
  EXPECT_GE(stored, kSlots);
  EXPECT_EQ(client->stats().splits, 0u);
  for (uint32_t i = 0; i < 1'000; ++i) {
    const Status other = client->Put("other" + std::to_string(i), "v");
    ASSERT_TRUE(other.ok()) << i << ": " << other.ToString();
  }
  for (size_t i = 0; i < stored; ++i) ExpectValue(*client, keys[i], "v");
}

TEST_F(Collisions, ATableOfTheLargestSizeSaysSoAndStillKnowsAKeyThatCollides) {
  TestStore store({.groups = 2, .initial_depth = kvs::kMaxDepth, .memory_bytes = size_t{128} << 20});
  auto client = store.NewClient();
  const std::vector<std::string> keys = KeysOfSuffix(43);
  Status put;
  for (size_t i = 0; i < keys.size() && put.ok(); ++i) put = client->Put(keys[i], "v");
  EXPECT_EQ(put, StatusCode::kOutOfMemory);
  EXPECT_THAT(std::string(put.message()), testing::HasSubstr("the table has its largest size"));
  for (uint32_t n = 0; n < kSlots; ++n) ASSERT_TRUE(client->Put(Key(n), "v").ok()) << n;
  ExpectCollision(client->Put(Key(kSlots), "v"));
}

}  // namespace
}  // namespace surgekv_test
