// Our replies are those of redis-server: the same requests go to both, and the replies are compared byte by byte. What
// is meant to differ is in differences.h.
#include <gtest/gtest.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "tests/redis/differences.h"
#include "tests/redis/edge_cases.h"
#include "tests/redis/generator.h"
#include "tests/redis/speakers.h"

namespace redis_test {
namespace {

constexpr int64_t kMomentSeconds = 60;
constexpr int64_t kExactFromSeconds = 4'000'000'000;

const LenientReply* LenienceFor(const Words& request) {
  const auto found = std::find_if(
      std::begin(kLenientReplies), std::end(kLenientReplies),
      [&](const LenientReply& reply) { return !request.empty() && redis::SameWord(request[0], reply.command); });
  return found != std::end(kLenientReplies) ? found : nullptr;
}

// Without the numbers of connections in replies to HELLO.
std::string WithoutIds(std::string replies) {
  constexpr std::string_view kId = "$2\r\nid\r\n:";
  for (size_t at = replies.find(kId); at != std::string::npos; at = replies.find(kId, at + 1)) {
    const size_t number = at + kId.size();
    replies.erase(number, replies.find('\r', number) - number);
  }
  return replies;
}

bool SameReply(const Words& request, const std::string& theirs, const std::string& ours) {
  const LenientReply* const lenience = LenienceFor(request);
  if (theirs == ours || lenience == nullptr) return theirs == ours;
  if (lenience->leniency == Leniency::kOrder) {
    return theirs.front() == ours.front() && SortedElements(theirs) == SortedElements(ours);
  }
  if (lenience->leniency == Leniency::kConnection) return WithoutIds(theirs) == WithoutIds(ours);
  int64_t their_number = 0, our_number = 0;
  if (theirs.front() != ':' || ours.front() != ':') return false;
  std::from_chars(theirs.data() + 1, theirs.data() + theirs.size(), their_number);
  std::from_chars(ours.data() + 1, ours.data() + ours.size(), our_number);
  // Negative numbers say that there is no time.
  if (their_number < 0 || our_number < 0) return false;
  const int64_t unit = request[0][0] == 'P' || request[0][0] == 'p' ? 1'000 : 1;  // of a second
  if (lenience->leniency == Leniency::kInstant && their_number > kExactFromSeconds * unit) return false;
  return std::abs(their_number - our_number) <= kMomentSeconds * unit;
}

std::string Describe(const Words& request) {
  std::string text;
  for (const std::string& word : request) text += "\"" + word.substr(0, 80) + "\" ";
  return text;
}

class Conformance : public ::testing::Test {
 protected:
  Conformance() { Reconnect(); }
  void Reconnect() {
    theirs_ = redis_.Connect();
    ours_ = our_server_.Connect();
  }
  // Sends all requests at once to each of the two.
  void Compare(const std::vector<Words>& requests, bool inline_commands = false) {
    std::string bytes;
    for (const Words& request : requests) bytes += inline_commands ? EncodeInline(request) : Encode(request);
    const std::vector<std::string> theirs = theirs_->Ask(bytes, requests.size());
    const std::vector<std::string> ours = ours_->Ask(bytes, requests.size());
    ASSERT_EQ(theirs.size(), requests.size());
    ASSERT_EQ(ours.size(), requests.size());
    bool same = true;
    for (size_t i = 0; i < requests.size(); ++i) {
      ++compared_;
      if (SameReply(requests[i], theirs[i], ours[i])) continue;
      same = false;
      ADD_FAILURE() << Describe(requests[i]) << "\n  theirs: " << theirs[i] << "\n  ours:   " << ours[i];
    }
    ASSERT_TRUE(same);
  }
  void Compare(std::string_view line) { Compare(std::vector<Words>{Split(line)}); }
  // Random requests in pipelines of random length.
  void CompareRandom(uint64_t seed, size_t requests, bool inline_commands) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Generator generator(seed);
    while (requests > 0) {
      std::vector<Words> batch(std::min(requests, 1 + generator.Below(40)));
      for (Words& request : batch) request = generator.Next();
      requests -= batch.size();
      ASSERT_NO_FATAL_FAILURE(Compare(batch, inline_commands));
    }
  }
  void TearDown() override { RecordProperty("compared", std::to_string(compared_)); }

  RedisServer redis_;
  OurServer our_server_;
  std::unique_ptr<Speaker> theirs_, ours_;
  size_t compared_ = 0;
};

TEST_F(Conformance, RandomRequestsAsArrays) {
  for (uint64_t seed = 1; seed <= 3; ++seed) ASSERT_NO_FATAL_FAILURE(CompareRandom(seed, 3'000, false));
}

TEST_F(Conformance, RandomRequestsAsInlineCommands) { ASSERT_NO_FATAL_FAILURE(CompareRandom(11, 2'000, true)); }

TEST_F(Conformance, RandomRequestsInVersion3) {
  theirs_->Ask(Encode({"HELLO", "3"}), 1);
  ours_->Ask(Encode({"HELLO", "3"}), 1);
  for (uint64_t seed = 21; seed <= 22; ++seed) ASSERT_NO_FATAL_FAILURE(CompareRandom(seed, 2'000, false));
}

TEST_F(Conformance, EdgeCases) {
  for (const std::string& line : EdgeCases()) Compare(line);
  Compare("HELLO 3 SETNAME somebody");
  for (const std::string& line : EdgeCases()) Compare(line);
}

TEST_F(Conformance, LongArguments) {
  const std::string mebibyte(size_t{1} << 20, 'm');
  const std::string limit(size_t{16} << 20, 'l');
  Compare({{"SET", "k", limit}, {"STRLEN", "k"}, {"APPEND", "k", ""}, {"APPEND", "k", "x"}, {"STRLEN", "k"}});
  Compare(
      {{"SETRANGE", "k", "16777215", "y"}, {"SETRANGE", "k", "16777216", "y"}, {"SETRANGE", "k", "16777215", "yz"}});
  Compare({{"GETRANGE", "k", "16777210", "-1"}, {"GET", "k"}, {"SET", "k", mebibyte}, {"APPEND", "k", mebibyte}});
  Compare({{"GET", "k"}, {mebibyte, "x"}, {"x", mebibyte}, {"EXPIRE", "k", mebibyte}, {"INCRBYFLOAT", "f", mebibyte}});
}

TEST_F(Conformance, ScanReturnsTheSameKeys) {
  const auto scan = [](Speaker& speaker, const Words& options) {
    std::vector<std::string> keys;
    std::string cursor = "0";
    do {
      Words request{"SCAN", cursor};
      request.insert(request.end(), options.begin(), options.end());
      const std::string reply = speaker.Ask(Encode(request), 1).at(0);
      const size_t begin = reply.find("\r\n", 4) + 2;
      cursor = reply.substr(begin, reply.find("\r\n", begin) - begin);
      const std::vector<std::string> page = SortedElements(std::string_view(reply).substr(begin + cursor.size() + 2));
      keys.insert(keys.end(), page.begin(), page.end());
    } while (cursor != "0");
    std::sort(keys.begin(), keys.end());
    keys.erase(std::unique(keys.begin(), keys.end()), keys.end());
    return keys;
  };
  for (int i = 0; i < 500; ++i) Compare("SET key" + std::to_string(i) + " v");
  Compare("DBSIZE");
  const std::vector<Words> all_options = {{},
                                          {"COUNT", "1"},
                                          {"count", "100000000000"},
                                          {"MATCH", "key1*"},
                                          {"MATCH", "*9", "COUNT", "7", "TYPE", "String"},
                                          {"TYPE", "list"},
                                          {"TYPE", "nosuchtype"}};
  for (const Words& options : all_options) {
    EXPECT_EQ(scan(*theirs_, options), scan(*ours_, options)) << Describe(options);
  }
  Compare("FLUSHDB");
  Compare("DBSIZE");
  Compare("RANDOMKEY");
  Compare("KEYS *");
}

TEST_F(Conformance, KeysExpire) {
  Compare("MSET a 1 b 2 c 3");
  Compare("PEXPIRE a 20");
  Compare("SET d 4 PX 20");
  Compare("GETEX b PX 20");
  Compare("PSETEX e 20 v");
  // redis-server goes by the real time of day. Both have begun the 20 ms by now.
  std::this_thread::sleep_for(std::chrono::milliseconds(60));
  for (const std::string_view line :
       {"GET a", "TTL a", "EXISTS a b c d e", "KEYS *", "DBSIZE", "INCR a", "TTL a", "APPEND d x", "TTL d", "SETNX e w",
        "PERSIST e", "GETSET b 1", "SET a 2 XX", "MGET a b c d e"}) {
    Compare(line);
  }
}

// The bytes end, or an error ends the conversation.
TEST_F(Conformance, WrongFraming) {
  for (const std::string& bytes : WrongFramings()) {
    Reconnect();
    EXPECT_EQ(theirs_->AskLast(bytes), ours_->AskLast(bytes)) << bytes.substr(0, 200);
    ++compared_;
  }
}

TEST_F(Conformance, IntendedDifferences) {
  for (const OtherReply& other : kOtherReplies) {
    Reconnect();
    Compare("FLUSHALL");
    EXPECT_EQ(theirs_->AskLast(other.request), other.theirs) << other.request << other.reason;
    EXPECT_EQ(ours_->AskLast(other.request), other.ours) << other.request << other.reason;
  }
}

TEST(ConformanceWithPassword, Replies) {
  const RedisServer redis({"--requirepass", "secret"});
  OurServer our_server({.password = "secret"});
  for (const std::string& bytes : PasswordDialogues()) {
    const std::string theirs = WithoutIds(redis.Connect()->AskLast(bytes));
    const std::string ours = WithoutIds(our_server.Connect()->AskLast(bytes));
    EXPECT_EQ(theirs, ours) << bytes.substr(0, 200);
  }
}

}  // namespace
}  // namespace redis_test
