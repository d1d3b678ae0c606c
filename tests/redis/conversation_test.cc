// Conversation: when it stops, when it is over, and what failures of the store become.
#include "computenode/redis/conversation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "tests/redis/speakers.h"
#include "tests/support/fake_store.h"

namespace redis_test {
namespace {

using kvs::Status;
using kvs::StatusCode;
using redis::Conversation;
using ::testing::StartsWith;
using State = redis::Conversation::State;

class Conversations : public ::testing::Test {
 protected:
  Conversations() : client_(store_.NewClient({}).value()), other_(store_.NewClient({}).value()) {}
  // One Run.
  std::string Run(Conversation& conversation, kvs::Client& client) {
    client.Spawn(conversation.Run(client));
    client.Drain();
    return std::exchange(conversation.out(), {});
  }
  std::string Ask(Conversation& conversation, std::string_view line) {
    conversation.Append(line);
    conversation.Append("\r\n");
    return Run(conversation, *client_);
  }
  void FailAll(Status status) {
    store_.fault = [status = std::move(status)](const char*, std::string_view) { return status; };
  }

  surgekv_test::FakeStore store_;
  std::unique_ptr<kvs::Client> client_, other_;
  redis::Settings settings_;
};

TEST_F(Conversations, NeedInputUntilACommandIsWhole) {
  Conversation conversation(settings_, 7);
  EXPECT_EQ(conversation.state(), State::kNeedsInput);
  conversation.Append("PING\r\nSET k");
  EXPECT_EQ(conversation.state(), State::kHasMore);
  EXPECT_EQ(Run(conversation, *client_), "+PONG\r\n");
  EXPECT_EQ(conversation.state(), State::kNeedsInput);
  EXPECT_EQ(Ask(conversation, " v"), "+OK\r\n");
}

TEST_F(Conversations, GoOnWithAnotherClient) {
  Conversation conversation(settings_, 7);
  conversation.Append("SET k v\r\nAPPEND k");
  EXPECT_EQ(Run(conversation, *client_), "+OK\r\n");
  client_.reset();
  conversation.Append(" w\r\nGET k\r\n");
  EXPECT_EQ(Run(conversation, *other_), ":2\r\n$2\r\nvw\r\n");
}

TEST_F(Conversations, StopWhenMuchIsToBeSent) {
  settings_.output_bytes = 100;
  Conversation conversation(settings_, 7);
  std::string bytes;
  for (int i = 0; i < 50; ++i) bytes += "ECHO 0123456789\r\n";
  conversation.Append(bytes);
  client_->Spawn(conversation.Run(*client_));
  client_->Drain();
  EXPECT_EQ(conversation.state(), State::kHasMore);
  const size_t length = conversation.out().size();
  EXPECT_GE(length, 100U);
  EXPECT_LT(length, 120U);
  // Nothing was sent, so nothing is executed.
  client_->Spawn(conversation.Run(*client_));
  client_->Drain();
  EXPECT_EQ(conversation.out().size(), length);
  std::string sent;
  while (conversation.state() == State::kHasMore) {
    sent += std::exchange(conversation.out(), {});
    sent += Run(conversation, *client_);
  }
  EXPECT_EQ(sent.size(), 50 * std::string_view("$10\r\n0123456789\r\n").size());
}

TEST_F(Conversations, AreOverAfterQuit) {
  Conversation conversation(settings_, 7);
  EXPECT_EQ(Ask(conversation, "QUIT\r\nPING"), "+OK\r\n");
  EXPECT_EQ(conversation.state(), State::kOver);
  EXPECT_EQ(Ask(conversation, "PING"), "");
  EXPECT_EQ(conversation.state(), State::kOver);
}

TEST_F(Conversations, AreOverAfterAProtocolError) {
  Conversation conversation(settings_, 7);
  EXPECT_EQ(Ask(conversation, "PING\r\n*x"), "+PONG\r\n-ERR Protocol error: invalid multibulk length\r\n");
  EXPECT_EQ(conversation.state(), State::kOver);
}

TEST_F(Conversations, AnswerNothingToABrowser) {
  Conversation conversation(settings_, 7);
  EXPECT_EQ(Ask(conversation, "POST / HTTP/1.1"), "");
  EXPECT_EQ(conversation.state(), State::kOver);
}

TEST_F(Conversations, GoOnAfterFailuresThatChangedNothing) {
  Conversation conversation(settings_, 7);
  FailAll({StatusCode::kOutOfMemory, "no chunks left"});
  for (const char* const line : {"SET k v", "SETNX k v", "MSET a 1 b 2", "INCR k", "SET k v GET"}) {
    EXPECT_EQ(Ask(conversation, line), "-OOM command not allowed when used memory > 'maxmemory'.\r\n") << line;
  }
  FailAll({StatusCode::kUnavailable, "memory node 2 is dead"});
  for (const char* const line :
       {"GET k", "MGET a b", "DEL k", "DEL a b", "TTL k", "STRLEN k", "TYPE k", "GETRANGE k 0 1"}) {
    EXPECT_EQ(Ask(conversation, line), "-ERR unavailable: memory node 2 is dead\r\n") << line;
  }
  FailAll(StatusCode::kTimeout);
  for (const char* const line : {"GET k", "MGET a b", "TTL k"})
    EXPECT_THAT(Ask(conversation, line), StartsWith("-ERR timeout"));
  EXPECT_EQ(conversation.state(), State::kNeedsInput);
}

TEST_F(Conversations, AreOverWhenAnOutcomeIsUnknown) {
  for (const StatusCode code : {StatusCode::kUnknown, StatusCode::kTimeout}) {
    FailAll(code);
    for (const char* const line : {"SET k v", "MSET a 1 b 2", "DEL k", "INCR k", "EXPIRE k 5"}) {
      Conversation conversation(settings_, 7);
      EXPECT_THAT(Ask(conversation, std::string(line) + "\r\nPING"), StartsWith("-ERR the outcome is unknown")) << line;
      EXPECT_EQ(conversation.state(), State::kOver);
    }
  }
}

TEST_F(Conversations, AnUnknownOutcomeOfOneKeyCountsMost) {
  store_.fault = [](const char*, std::string_view key) -> Status {
    return key == "a" ? StatusCode::kUnavailable : key == "b" ? StatusCode::kUnknown : StatusCode::kOk;
  };
  Conversation conversation(settings_, 7);
  EXPECT_THAT(Ask(conversation, "MSET a 1 b 2 c 3"), StartsWith("-ERR the outcome is unknown"));
  EXPECT_EQ(conversation.state(), State::kOver);
}

TEST_F(Conversations, AFailureOfSomeKeysSaysThatOthersAreWritten) {
  store_.fault = [](const char*, std::string_view key) -> Status {
    return key == "a" ? StatusCode::kOutOfMemory : StatusCode::kOk;
  };
  Conversation conversation(settings_, 7);
  EXPECT_EQ(
      Ask(conversation, "MSET a 1 b 2"),
      "-OOM command not allowed when used memory > 'maxmemory'. Other keys of the command have been changed.\r\n");
  EXPECT_EQ(conversation.state(), State::kNeedsInput);
}

TEST_F(Conversations, AFlushThatFailsSaysWhenSomeKeysAreGone) {
  Conversation conversation(settings_, 7);
  for (int i = 0; i < 10; ++i) Ask(conversation, "SET key" + std::to_string(i) + " v");
  store_.fault = [](const char*, std::string_view key) -> Status {
    return key == "key5" ? StatusCode::kUnavailable : StatusCode::kOk;
  };
  EXPECT_THAT(Ask(conversation, "FLUSHALL"),
              testing::AllOf(StartsWith("-ERR unavailable"),
                             testing::HasSubstr("Other keys of the command have been changed.")));
}

TEST_F(Conversations, AFailureReplacesWhatTheReplyHad) {
  store_.fault = [](const char*, std::string_view key) -> Status {
    return key == "key40" ? StatusCode::kUnavailable : StatusCode::kOk;
  };
  Conversation conversation(settings_, 7);
  std::string mget = "MGET";
  for (int i = 0; i < 50; ++i) mget += " key" + std::to_string(i);
  EXPECT_THAT(Ask(conversation, "PING\r\n" + mget), StartsWith("+PONG\r\n-ERR unavailable"));
}

}  // namespace
}  // namespace redis_test
