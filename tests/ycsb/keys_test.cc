#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <unordered_set>
#include <vector>

#include "ycsb/workload/records.h"

namespace ycsb {
namespace {

std::string Key(const KeyCodec& codec, uint64_t number) {
  std::string key(codec.key_bytes(), '?');
  key.resize(codec.Format(number, key.data()));
  return key;
}

TEST(KeyCodec, SixteenBytesBeginWithUser) {
  EXPECT_EQ(Key(KeyCodec(16, false), 42), "user000000000042");
  const std::string hashed = Key(KeyCodec(16, true), 42);
  EXPECT_EQ(hashed.size(), 16u);
  EXPECT_EQ(hashed.substr(0, 4), "user");
}

TEST(KeyCodec, OrderedKeysSortAsTheirNumbers) {
  const KeyCodec codec(16, false);
  EXPECT_LT(Key(codec, 9), Key(codec, 10));
  EXPECT_LT(Key(codec, 999'999'999'998), Key(codec, 999'999'999'999));
  EXPECT_EQ(codec.capacity(), 1'000'000'000'000u);
}

TEST(KeyCodec, PaddedKeysAreThoseOfYcsb) {
  EXPECT_EQ(Key(KeyCodec(16, false, 1), 0), "user0");
  EXPECT_EQ(Key(KeyCodec(16, false, 1), 1234567890123456789), "user1234567890123456789");
  EXPECT_EQ(Key(KeyCodec(16, false, 8), 5), "user00000005");
  EXPECT_EQ(Key(KeyCodec(16, false, 3), 1000), "user1000");
  EXPECT_EQ(Key(KeyCodec(16, false, 30), 5).size(), 34u);
}

TEST(KeyCodec, HashedKeysNeverCollide) {
  for (const size_t bytes : {size_t{8}, size_t{16}, size_t{40}}) {
    const KeyCodec codec(bytes, true);
    std::unordered_set<std::string> keys;
    constexpr uint64_t kEach = 100'000;
    // The lowest numbers, the highest, and some whose low words are equal.
    for (uint64_t i = 0; i < kEach; ++i) {
      EXPECT_TRUE(keys.insert(Key(codec, i)).second);
      EXPECT_TRUE(keys.insert(Key(codec, codec.capacity() - 1 - i)).second);
      EXPECT_TRUE(keys.insert(Key(codec, (i + 1) << 24)).second || (i + 1) << 24 < kEach);
    }
  }
}

TEST(KeyCodec, HashedKeysOfNeighboursLookUnrelated) {
  const KeyCodec codec(16, true);
  // Equal characters at equal places among neighbours: 11 of 12 places vary, so about 1/64 of them by chance.
  uint64_t equal = 0;
  constexpr uint64_t kPairs = 10'000;
  for (uint64_t i = 0; i < kPairs; ++i) {
    const std::string a = Key(codec, i);
    const std::string b = Key(codec, i + 1);
    for (size_t place = 6; place < 16; ++place) equal += a[place] == b[place];
  }
  EXPECT_LT(equal, kPairs * 10 / 64 * 2);
}

}  // namespace
}  // namespace ycsb
