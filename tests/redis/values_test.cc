// Numbers, patterns and replies.
#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <string>

#include "computenode/redis/reply.h"
#include "computenode/redis/words.h"

namespace redis_test {
namespace {

using redis::FormatFloat;
using redis::GlobMatches;
using redis::Instant;
using redis::ParseFloat;
using redis::ParseInteger;
using redis::Reply;

constexpr int64_t kMax = std::numeric_limits<int64_t>::max();

TEST(Numbers, IntegersHaveOneSpelling) {
  EXPECT_EQ(ParseInteger("0"), 0);
  EXPECT_EQ(ParseInteger("-12"), -12);
  EXPECT_EQ(ParseInteger("9223372036854775807"), kMax);
  EXPECT_EQ(ParseInteger("-9223372036854775808"), -kMax - 1);
  for (const char* const wrong :
       {"", "-", "+1", "01", "-0", "-01", "1 ", " 1", "1.0", "x", "--1", "9223372036854775808"}) {
    EXPECT_FALSE(ParseInteger(wrong)) << wrong;
  }
}

TEST(Numbers, FloatsLoseZerosAtTheEnd) {
  EXPECT_EQ(FormatFloat(3.0L), "3");
  EXPECT_EQ(FormatFloat(-0.0L), "0");
  EXPECT_EQ(FormatFloat(100.0L), "100");
  EXPECT_EQ(FormatFloat(0.1L + 0.2L), "0.3");
  EXPECT_EQ(FormatFloat(-1.5L), "-1.5");
  EXPECT_EQ(FormatFloat(*ParseFloat("1e-17")), "0.00000000000000001");
  for (const char* const wrong : {"", " 1", "1 ", "nan", "1e5000", "1e-5000", "1,5", "x"}) {
    EXPECT_FALSE(ParseFloat(wrong)) << wrong;
  }
}

TEST(Numbers, InstantsDoNotOverflow) {
  EXPECT_EQ(Instant(2, {.seconds = true, .absolute = false}, 500), 2'500);
  EXPECT_EQ(Instant(2, {.seconds = false, .absolute = true}, 500), 2);
  EXPECT_EQ(Instant(kMax, {.seconds = false, .absolute = true}, 500), kMax);
  EXPECT_FALSE(Instant(kMax, {.seconds = false, .absolute = false}, 1));
  EXPECT_FALSE(Instant(kMax / 1'000 + 1, {.seconds = true, .absolute = true}, 0));
}

TEST(Patterns, Match) {
  EXPECT_TRUE(GlobMatches("*", ""));
  EXPECT_TRUE(GlobMatches("a*c*e", "abcde"));
  EXPECT_FALSE(GlobMatches("a*c*e", "abcdef"));
  EXPECT_TRUE(GlobMatches("[^a-c]?", "dx"));
  EXPECT_FALSE(GlobMatches("[^a-c]?", "bx"));
  EXPECT_TRUE(GlobMatches("[\\]]", "]"));
  EXPECT_TRUE(GlobMatches("\\*", "*"));
  EXPECT_FALSE(GlobMatches("\\*", "a"));
}

TEST(Patterns, ManyStarsTakeNoLongTime) {
  std::string pattern;
  for (int i = 0; i < 50; ++i) pattern += "a*";
  // With a search that goes back to earlier stars it would not end.
  EXPECT_FALSE(GlobMatches(pattern + "b", std::string(10'000, 'a')));
}

TEST(Replies, InBothVersions) {
  const auto write = [](int protocol) {
    std::string out;
    Reply reply(out, protocol);
    reply.Map(1);
    reply.Bulk("k");
    reply.Null();
    reply.Set(0);
    reply.Verbatim("text");
    reply.Integer(-5);
    return out;
  };
  EXPECT_EQ(write(2), "*2\r\n$1\r\nk\r\n$-1\r\n*0\r\n$4\r\ntext\r\n:-5\r\n");
  EXPECT_EQ(write(3), "%1\r\n$1\r\nk\r\n_\r\n~0\r\n=8\r\ntxt:text\r\n:-5\r\n");
}

TEST(Replies, ErrorsHaveOneLine) {
  std::string out = "before";
  Reply reply(out, 2);
  reply.Error("ERR a\r\nb\r\n");
  EXPECT_EQ(out, "before-ERR a  b\r\n");
  reply.TakeBack();
  EXPECT_EQ(out, "before");
}

}  // namespace
}  // namespace redis_test
