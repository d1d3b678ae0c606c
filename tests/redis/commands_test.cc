// Commands that are not compared with redis-server (conformance_test.cc): those that it answers differently by their
// nature, those that are newer than it, and our own limits.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "tests/redis/speakers.h"
#include "tests/support/fake_clock.h"

namespace redis_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

class Commands : public ::testing::Test {
 protected:
  explicit Commands(redis::Settings settings = {}) : server_(std::move(settings)), speaker_(server_.Connect()) {}
  std::string Ask(const Words& request) { return speaker_->AskLast(Encode(request)); }
  std::string Ask(std::string_view line) { return Ask(Split(line)); }

  OurServer server_;
  std::unique_ptr<Speaker> speaker_;
};

TEST_F(Commands, SetIfEqual) {
  EXPECT_EQ(Ask("SET k new IFEQ old"), "$-1\r\n");
  EXPECT_EQ(Ask("EXISTS k"), ":0\r\n");
  Ask("SET k old EX 1000");
  EXPECT_EQ(Ask("SET k new IFEQ other"), "$-1\r\n");
  EXPECT_EQ(Ask("SET k new IFEQ other GET"), "$3\r\nold\r\n");
  EXPECT_EQ(Ask("GET k"), "$3\r\nold\r\n");
  EXPECT_EQ(Ask("SET k new ifeq old KEEPTTL"), "+OK\r\n");
  EXPECT_EQ(Ask("TTL k"), ":1000\r\n");
  EXPECT_EQ(Ask("SET k newer IFEQ new GET"), "$3\r\nnew\r\n");
  EXPECT_EQ(Ask("GET k"), "$5\r\nnewer\r\n");
  EXPECT_EQ(Ask("TTL k"), ":-1\r\n");
  for (const char* const wrong : {"SET k v IFEQ", "SET k v IFEQ a NX", "SET k v XX IFEQ a", "SET k v NX IFEQ a"}) {
    EXPECT_EQ(Ask(wrong), "-ERR syntax error\r\n") << wrong;
  }
}

TEST_F(Commands, KeysHaveALimit) {
  const std::string longest(65'535, 'k');
  EXPECT_EQ(Ask({"SET", longest, "v"}), "+OK\r\n");
  EXPECT_EQ(Ask({"GET", longest}), "$1\r\nv\r\n");
  const std::string error = "-ERR a key must have 1 to 65535 bytes\r\n";
  EXPECT_EQ(Ask({"GET", longest + "k"}), error);
  EXPECT_EQ(Ask({"MSET", "a", "1", longest + "k", "2"}), error);
  EXPECT_EQ(Ask({"DEL", "a", ""}), error);
  EXPECT_EQ(Ask("GET a"), "$-1\r\n");
}

TEST_F(Commands, KeysThatAreNamedSeveralTimes) {
  Ask("MSET a 1 b 2 a 3");
  EXPECT_EQ(Ask("GET a"), "$1\r\n3\r\n") << "the last one counts";
  EXPECT_EQ(Ask("EXISTS a nosuch b a a"), ":4\r\n");
  EXPECT_EQ(Ask("MGET a b a"), "*3\r\n$1\r\n3\r\n$1\r\n2\r\n$1\r\n3\r\n");
  Words del = {"DEL", "b"};
  del.resize(20'000, "a");
  EXPECT_EQ(Ask(del), ":2\r\n");
}

TEST_F(Commands, PatternsAndNamesHaveALimit) {
  const std::string longest(1'024, 'p');
  EXPECT_EQ(Ask({"KEYS", longest}), "*0\r\n");
  const std::string error = "-ERR a pattern has at most 1024 bytes\r\n";
  EXPECT_EQ(Ask({"KEYS", longest + "p"}), error);
  EXPECT_EQ(Ask({"SCAN", "0", "MATCH", longest + "p"}), error);
  EXPECT_EQ(Ask({"CLIENT", "SETNAME", std::string(256, 'n')}), "+OK\r\n");
  EXPECT_THAT(Ask({"CLIENT", "SETNAME", std::string(257, 'n')}), StartsWith("-ERR Client names cannot contain"));
}

TEST_F(Commands, AboutTheClient) {
  EXPECT_EQ(Ask("CLIENT ID"), ":1\r\n");
  EXPECT_EQ(Ask("CLIENT SETINFO LIB-NAME some(lib)"), "+OK\r\n");
  EXPECT_EQ(Ask("CLIENT SETINFO lib-ver 1.2"), "+OK\r\n");
  EXPECT_THAT(Ask("CLIENT SETINFO nosuch 1"), StartsWith("-ERR Unrecognized option 'nosuch'"));
  EXPECT_THAT(Ask("CLIENT SETINFO LIB-NAME 'a b'"), StartsWith("-ERR lib-name cannot contain spaces"));
  Ask("CLIENT SETNAME me");
  EXPECT_THAT(Ask("CLIENT LIST"), HasSubstr("id=1 name=me db=0 resp=2 lib-name=some(lib) lib-ver=1.2\n"));
}

TEST_F(Commands, AboutTheServer) {
  EXPECT_THAT(Ask("INFO"), HasSubstr("redis_version:7.0.15\r\n"));
  EXPECT_THAT(Ask("INFO everything"), HasSubstr("server_name:surgekv\r\n"));
  EXPECT_EQ(Ask("CONFIG GET APPEND*"), "*2\r\n$10\r\nappendonly\r\n$2\r\nno\r\n");
  EXPECT_THAT(Ask("CONFIG GET save maxmemory"), StartsWith("*4\r\n$9\r\nmaxmemory\r\n$1\r\n0\r\n$4\r\nsave\r\n"));
  EXPECT_THAT(Ask("CONFIG SET save x"), StartsWith("-ERR unknown subcommand 'SET'. Try CONFIG HELP."));
  EXPECT_EQ(Ask("COMMAND COUNT"), ":" + std::to_string(SortedElements(Ask("COMMAND")).size()) + "\r\n");
  EXPECT_THAT(Ask("COMMAND INFO get"),
              StartsWith("*1\r\n*10\r\n$3\r\nget\r\n:2\r\n*2\r\n+readonly\r\n+fast\r\n:1\r\n:1\r\n:1\r\n*0\r\n"));
  Ask("HELLO 3");
  EXPECT_THAT(Ask("INFO"), HasSubstr("\r\ntxt:# Server\r\n"));
  EXPECT_THAT(Ask("CONFIG GET save"), StartsWith("%1\r\n"));
}

TEST_F(Commands, AllThatArePromised) {
  for (const std::string_view name :
       {"get",      "set",      "setnx",     "setex",      "psetex",      "getset",  "getdel", "getex",       "mget",
        "mset",     "msetnx",   "del",       "unlink",     "exists",      "touch",   "type",   "strlen",      "append",
        "getrange", "substr",   "setrange",  "incr",       "decr",        "incrby",  "decrby", "incrbyfloat", "expire",
        "pexpire",  "expireat", "pexpireat", "expiretime", "pexpiretime", "persist", "ttl",    "pttl",        "keys",
        "scan",     "dbsize",   "randomkey", "flushdb",    "flushall",    "ping",    "echo",   "select",      "hello",
        "auth",     "client",   "config",    "info",       "command",     "time",    "quit",   "reset"}) {
    EXPECT_NE(redis::FindCommand(name), nullptr) << name;
  }
}

TEST_F(Commands, AnyNumberIsACursor) {
  for (int i = 0; i < 200; ++i) Ask("SET key" + std::to_string(i) + " v");
  std::mt19937_64 random(1);
  for (int i = 0; i < 50; ++i) EXPECT_THAT(Ask("SCAN " + std::to_string(random())), StartsWith("*2\r\n"));
  EXPECT_EQ(Ask("SCAN 18446744073709551616"), "-ERR invalid cursor\r\n");
}

TEST_F(Commands, RandomkeyReturnsAnyKey) {
  EXPECT_EQ(Ask("RANDOMKEY"), "$-1\r\n");
  Ask("MSET a 1 b 2 c 3");
  std::set<std::string> seen;
  for (int i = 0; i < 1'000 && seen.size() < 3; ++i) seen.insert(Ask("RANDOMKEY"));
  EXPECT_THAT(seen, ElementsAre("$1\r\na\r\n", "$1\r\nb\r\n", "$1\r\nc\r\n"));
}

TEST_F(Commands, FlushDeletesThousandsOfKeys) {
  for (int i = 0; i < 50; ++i) {
    Words mset{"MSET"};
    for (int j = 0; j < 100; ++j) mset.insert(mset.end(), {"key" + std::to_string(100 * i + j), "v"});
    ASSERT_EQ(Ask(mset), "+OK\r\n");
  }
  EXPECT_EQ(Ask("DBSIZE"), ":5000\r\n");
  EXPECT_EQ(SortedElements(Ask("KEYS *")).size(), 5'000U);
  EXPECT_EQ(Ask("FLUSHALL"), "+OK\r\n");
  EXPECT_EQ(Ask("DBSIZE"), ":0\r\n");
}

// Many connections of one client, each with several requests under way in turn.
TEST_F(Commands, ConnectionsSideBySideLoseNothing) {
  std::vector<std::unique_ptr<redis::Conversation>> conversations;
  for (uint64_t id = 0; id < 32; ++id) {
    conversations.push_back(std::make_unique<redis::Conversation>(server_.settings(), id));
    for (int i = 0; i < 50; ++i) conversations.back()->Append("INCR n\r\nAPPEND s x\r\n");
  }
  for (int commands = 0; commands <= 100; commands += redis::Conversation::kCommandsPerRun) {
    for (const auto& conversation : conversations) server_.client().Spawn(conversation->Run(server_.client()));
    server_.client().Drain();
  }
  EXPECT_EQ(Ask("GET n"), "$4\r\n1600\r\n");
  EXPECT_EQ(Ask("STRLEN s"), ":1600\r\n");
  for (const std::unique_ptr<redis::Conversation>& conversation : conversations) {
    EXPECT_EQ(conversation->state(), redis::Conversation::State::kNeedsInput);
  }
}

class ShortReplies : public Commands {
 protected:
  ShortReplies() : Commands({.reply_bytes = 1'000}) {}
};

TEST_F(ShortReplies, LongOnesBecomeErrors) {
  for (int i = 0; i < 150; ++i) Ask("SET key" + std::to_string(i) + " 0123456789");
  const std::string error = "-ERR the reply would be longer than 1000 bytes\r\n";
  EXPECT_EQ(Ask("KEYS *"), error);
  EXPECT_EQ(SortedElements(Ask("KEYS key1")).size(), 1U);
  Words mget{"MGET"};
  for (int i = 0; i < 150; ++i) mget.push_back("key" + std::to_string(i));
  EXPECT_EQ(Ask(mget), error);
  EXPECT_EQ(Ask("PING"), "+PONG\r\n");
}

class Hooks : public Commands {
 protected:
  Hooks()
      : Commands({.clock = &Clock(),
                  .info = [] { return std::string("# Clients\r\nconnected_clients:3\r\n"); },
                  .client_list = [] { return std::string("id=1\nid=2\n"); }}) {}
  static surgekv_test::FakeClock& Clock() {
    static surgekv_test::FakeClock clock;
    return clock;
  }
};

TEST_F(Hooks, AreAsked) {
  EXPECT_THAT(Ask("INFO"), HasSubstr("\r\n# Clients\r\nconnected_clients:3\r\n"));
  EXPECT_EQ(Ask("CLIENT LIST"), "$10\r\nid=1\nid=2\n\r\n");
  const uint64_t now = Clock().UnixMs();
  const std::string seconds = std::to_string(now / 1'000);
  EXPECT_THAT(Ask("TIME"), StartsWith("*2\r\n$" + std::to_string(seconds.size()) + "\r\n" + seconds + "\r\n"));
}

}  // namespace
}  // namespace redis_test
