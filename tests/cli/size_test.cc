#include "cli/size.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace cli {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

TEST(ParseSize, PlainNumbersAreBytes) {
  EXPECT_EQ(*ParseSize("0"), 0u);
  EXPECT_EQ(*ParseSize("4096"), 4096u);
  EXPECT_EQ(*ParseSize("4096B"), 4096u);
  EXPECT_EQ(*ParseSize("18446744073709551615"), UINT64_MAX);
}

TEST(ParseSize, UnitsArePowersOf1024InEitherCase) {
  EXPECT_EQ(*ParseSize("64K"), uint64_t{64} << 10);
  EXPECT_EQ(*ParseSize("512M"), uint64_t{512} << 20);
  EXPECT_EQ(*ParseSize("1g"), uint64_t{1} << 30);
  EXPECT_EQ(*ParseSize("3T"), uint64_t{3} << 40);
  EXPECT_EQ(*ParseSize("2GiB"), uint64_t{2} << 30);
  EXPECT_EQ(*ParseSize("2gb"), uint64_t{2} << 30);
}

TEST(ParseSize, RefusesWhatIsNotASizeAndSaysWhatOneLooksLike) {
  for (const char* text : {"", "G", "1X", "1.5G", "-1", "1 G", "1GG", "0x10", "1G2", "one", " 1", "+1", "1,5G"}) {
    const auto size = ParseSize(text);
    ASSERT_FALSE(size.ok()) << text;
    EXPECT_EQ(size.status().code(), krcore::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(size.status().message()), HasSubstr("such as 512M or 1G")) << text;
  }
}

TEST(ParseSize, RefusesWhatDoesNotFitIn64Bits) {
  for (const char* text : {"18446744073709551616", "16777216T", "99999999999999999999G"}) {
    const auto size = ParseSize(text);
    ASSERT_FALSE(size.ok()) << text;
    EXPECT_THAT(std::string(size.status().message()), StartsWith("the size is too large"));
  }
  EXPECT_EQ(*ParseSize("16777215T"), uint64_t{16777215} << 40);
}

TEST(ParseSizeFlag, NamesTheFlagAndItsValue) {
  const auto size = ParseSizeFlag("memory", "1X");
  ASSERT_FALSE(size.ok());
  EXPECT_THAT(std::string(size.status().message()), AllOf(StartsWith("--memory=1X: "), HasSubstr("\"X\"")));
}

TEST(FormatSize, WhatItPrintsParsesBackWhenExact) {
  for (const uint64_t bytes : {uint64_t{64} << 10, uint64_t{512} << 20, uint64_t{1} << 30, uint64_t{3} << 40}) {
    EXPECT_EQ(*ParseSize(FormatSize(bytes)), bytes);
  }
  EXPECT_EQ(FormatSize(1000), "1000 bytes");
  EXPECT_EQ(FormatSize(uint64_t{3} << 29), "1.5G");
  EXPECT_EQ(FormatSize(0), "0 bytes");
}

}  // namespace
}  // namespace cli
