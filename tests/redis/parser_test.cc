// RequestParser and SplitInline: requests in pieces, limits, rubbish.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "computenode/redis/request_parser.h"
#include "tests/redis/speakers.h"

namespace redis_test {
namespace {

using redis::RequestLimits;
using redis::RequestParser;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

// Reads what is whole. An error is a request of its own.
void ReadAll(RequestParser& parser, std::vector<Words>* requests, bool trusted = true) {
  while (true) {
    const RequestParser::Outcome outcome = parser.Next(trusted);
    if (outcome == RequestParser::Outcome::kNeedsInput) return;
    if (outcome == RequestParser::Outcome::kFailed) return requests->push_back({"error", parser.error()});
    requests->emplace_back(parser.arguments().begin(), parser.arguments().end());
  }
}

std::vector<Words> Parse(std::string_view bytes, const RequestLimits& limits = {}, bool trusted = true) {
  RequestParser parser(limits);
  parser.Append(bytes);
  std::vector<Words> requests;
  ReadAll(parser, &requests, trusted);
  return requests;
}

std::string Error(std::string_view bytes, const RequestLimits& limits = {}, bool trusted = true) {
  const std::vector<Words> requests = Parse(bytes, limits, trusted);
  return requests.empty() || requests.back().front() != "error" ? "" : requests.back().back();
}

TEST(Parser, ReadsArraysAndInlineCommandsInTurn) {
  EXPECT_THAT(
      Parse("PING\r\n*2\r\n$3\r\nGET\r\n$1\r\nk\r\n\r\n*0\r\nSET a \"b c\"\n*1\r\n$0\r\n\r\n"),
      ElementsAre(ElementsAre("PING"), ElementsAre("GET", "k"), ElementsAre("SET", "a", "b c"), ElementsAre("")));
}

TEST(Parser, RequestsMayBeSplitAtEveryByte) {
  const std::string bytes =
      Encode({"SET", "key", "a\r\nb"}) + "ECHO 'x y'\r\n\r\n*0\r\n" + Encode({"PING"}) + "GET k\n";
  const std::vector<Words> whole = Parse(bytes);
  ASSERT_EQ(whole.size(), 4U);
  const RequestLimits limits;
  for (size_t cut = 0; cut <= bytes.size(); ++cut) {
    RequestParser parser(limits);
    std::vector<Words> requests;
    parser.Append(std::string_view(bytes).substr(0, cut));
    ReadAll(parser, &requests);
    parser.Append(std::string_view(bytes).substr(cut));
    ReadAll(parser, &requests);
    EXPECT_EQ(requests, whole) << "cut at " << cut;
  }
  RequestParser parser(limits);
  std::vector<Words> requests;
  for (const char byte : bytes) {
    parser.Append({&byte, 1});
    ReadAll(parser, &requests);
  }
  EXPECT_EQ(requests, whole);
}

TEST(Parser, HoldsLittleMemoryAfterALargeRequest) {
  const RequestLimits limits;
  const std::string large = "*2\r\n$4\r\nECHO\r\n$4000000\r\n" + std::string(4'000'000, 'x') + "\r\n";
  std::string many = "*100000\r\n";
  for (int i = 0; i < 100'000; ++i) many += "$1\r\nx\r\n";
  for (const std::string& request : {large, many}) {
    for (const std::string_view next : {"", "*", "PING\r\n*1\r\n"}) {
      RequestParser parser(limits);
      std::vector<Words> requests;
      parser.Append(request);
      parser.Append(next);
      ReadAll(parser, &requests);
      EXPECT_EQ(requests.size(), next.size() > 1 ? 2u : 1u);
      EXPECT_LT(parser.held_bytes(), 400'000u) << request.substr(0, 10) << " before " << next;
      parser.Append(next.empty() ? "PING\r\n" : next == "*" ? "1\r\n$4\r\nPING\r\n" : "$4\r\nPING\r\n");
      ReadAll(parser, &requests);
      EXPECT_EQ(requests.back(), Words{"PING"});
    }
  }
}

TEST(Parser, RandomRequestsInRandomPieces) {
  std::mt19937_64 random(1);
  const RequestLimits limits;
  RequestParser parser(limits);
  std::vector<Words> sent, received;
  std::string bytes;
  for (int i = 0; i < 2'000; ++i) {
    Words words(1 + random() % 5);
    for (std::string& word : words) {
      word.resize(random() % (i % 100 == 0 ? 50'000 : 20));
      for (char& byte : word) byte = static_cast<char>(random());
    }
    bytes += i % 3 == 0 && i % 100 != 0 ? EncodeInline(words) : Encode(words);
    sent.push_back(std::move(words));
  }
  for (std::string_view left = bytes; !left.empty();) {
    const size_t length = std::min<size_t>(left.size(), 1 + random() % 3'000);
    parser.Append(left.substr(0, length));
    left.remove_prefix(length);
    ReadAll(parser, &received);
  }
  EXPECT_EQ(received, sent);
}

TEST(Parser, RubbishFailsAndNeverCrashes) {
  std::mt19937_64 random(2);
  constexpr std::string_view kBytes("*$\r\n0123456789-\"'\\xaAG \0\xff", 25);
  const RequestLimits limits{.argument_bytes = 100, .arguments = 10, .request_bytes = 200, .line_bytes = 50};
  for (int i = 0; i < 20'000; ++i) {
    RequestParser parser(limits);
    std::vector<Words> requests;
    for (int piece = 0; piece < 4; ++piece) {
      std::string bytes(random() % 40, ' ');
      for (char& byte : bytes) byte = kBytes[random() % kBytes.size()];
      parser.Append(bytes);
      ReadAll(parser, &requests);
    }
    for (const Words& request : requests) EXPECT_THAT(request, ::testing::Not(IsEmpty()));
  }
}

TEST(Parser, Limits) {
  const RequestLimits limits{.argument_bytes = 10, .arguments = 4, .request_bytes = 50, .line_bytes = 20};
  EXPECT_EQ(Error("*4\r\n", limits), "");
  EXPECT_EQ(Error("*5\r\n", limits), "invalid multibulk length");
  EXPECT_EQ(Error("*1\r\n$10\r\n", limits), "");
  EXPECT_EQ(Error("*1\r\n$11\r\n", limits), "invalid bulk length");
  EXPECT_EQ(Error("*4\r\n$10\r\n0123456789\r\n$10\r\n0123456789\r\n$10\r\n", limits), "too big request");
  EXPECT_EQ(Error(std::string(20, 'a'), limits), "");
  EXPECT_EQ(Error(std::string(21, 'a'), limits), "too big inline request");
  EXPECT_EQ(Error("*" + std::string(20, '1'), limits), "too big mbulk count string");
  EXPECT_EQ(Error("*1\r\n$" + std::string(20, '1'), limits), "too big bulk count string");
}

TEST(Parser, WithoutThePasswordRequestsMustBeSmall) {
  EXPECT_EQ(Error("*10\r\n", {}, false), "");
  EXPECT_EQ(Error("*11\r\n", {}, false), "unauthenticated multibulk length");
  EXPECT_EQ(Error("*1\r\n$16384\r\n", {}, false), "");
  EXPECT_EQ(Error("*1\r\n$16385\r\n", {}, false), "unauthenticated bulk length");
}

TEST(Parser, AnErrorStays) {
  const RequestLimits limits;
  RequestParser parser(limits);
  parser.Append("*x\r\n");
  EXPECT_EQ(parser.Next(true), RequestParser::Outcome::kFailed);
  parser.Append("PING\r\n");
  EXPECT_EQ(parser.Next(true), RequestParser::Outcome::kFailed);
}

TEST(Parser, WordsOfALine) {
  EXPECT_THAT(Split(R"(SET "a b" 'c d' "\x41\n\"" '\'\n')"), ElementsAre("SET", "a b", "c d", "A\n\"", "'\\n"));
  EXPECT_THAT(Split(R"("" '')"), ElementsAre("", ""));
  EXPECT_THAT(Split("  \t "), IsEmpty());
  for (const std::string_view wrong : {R"("abc)", R"('abc)", R"("a"b)", R"('a'b)", R"("\)", R"("\")"}) {
    EXPECT_FALSE(redis::SplitInline(wrong)) << wrong;
  }
}

}  // namespace
}  // namespace redis_test
