#include <gtest/gtest.h>

#include <set>

#include "ycsb/workload/records.h"

namespace ycsb {
namespace {

std::string Value(uint64_t record, Version version, size_t size) {
  std::string value(size, '\0');
  FillValue(record, version, value.data(), size);
  return value;
}

TEST(Values, VerifyAtEverySize) {
  for (size_t size = 0; size <= 200; ++size) {
    for (const Version version : {Version{}, Version{1, 1}, Version{65535, (uint64_t{1} << 48) - 1}}) {
      EXPECT_TRUE(VerifyValue(7, Value(7, version, size), size)) << size;
    }
  }
}

TEST(Values, EveryFlippedBitIsNoticed) {
  for (const size_t size : {1, 7, 8, 9, 23, 24, 25, 31, 100}) {
    const std::string value = Value(123456, {3, 77}, size);
    for (size_t bit = 0; bit < 8 * size; ++bit) {
      std::string wrong = value;
      wrong[bit / 8] = static_cast<char>(wrong[bit / 8] ^ (1 << (bit % 8)));
      EXPECT_FALSE(VerifyValue(123456, wrong, size)) << "size " << size << ", bit " << bit;
    }
  }
}

TEST(Values, TornAndForeignAndTruncatedValuesAreNoticed) {
  constexpr size_t kSize = 100;
  const std::string one = Value(5, {1, 1}, kSize);
  const std::string two = Value(5, {1, 2}, kSize);
  for (size_t cut = 8; cut < kSize; cut += 8) {
    EXPECT_FALSE(VerifyValue(5, one.substr(0, cut) + two.substr(cut), kSize)) << cut;
  }
  EXPECT_FALSE(VerifyValue(6, one, kSize));
  EXPECT_FALSE(VerifyValue(5, one.substr(0, kSize - 1), kSize));
  EXPECT_FALSE(VerifyValue(5, one + "x", kSize));
  // Where lengths are drawn at random, any length would do.
  for (size_t size = 1; size < kSize; ++size) EXPECT_FALSE(VerifyValue(5, one.substr(0, size), size)) << size;
}

TEST(Values, DifferByRecordAndVersion) {
  std::set<std::string> values;
  for (const size_t size : {16, 100}) {
    for (uint64_t record = 0; record < 20; ++record) {
      for (uint16_t writer = 0; writer < 5; ++writer) {
        for (uint64_t count = 0; count < 20; ++count) {
          EXPECT_TRUE(values.insert(Value(record, {writer, count}, size)).second);
        }
      }
    }
  }
}

TEST(Values, MismatchesAreExplained) {
  std::string value = Value(5, {2, 9}, 100);
  EXPECT_EQ(ExplainMismatch(5, value.substr(0, 96), 100), "expected 100 bytes, got 96");
  EXPECT_EQ(ExplainMismatch(6, value, 100), "expected a value of record 6, got an intact one of record 5");
  value[40] = static_cast<char>(value[40] ^ 1);
  const std::string why = ExplainMismatch(5, value, 100);
  EXPECT_NE(why.find("writer 2, version 9; first wrong byte at 40"), std::string::npos) << why;
}

}  // namespace
}  // namespace ycsb
