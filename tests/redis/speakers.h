// Two that speak the protocol of Redis, for tests that compare them: a redis-server, and a Conversation over an
// embedded store.
#ifndef TESTS_REDIS_SPEAKERS_H_
#define TESTS_REDIS_SPEAKERS_H_

#include <memory>
#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "bench/peers/stores/server_process.h"
#include "computenode/redis/conversation.h"
#include "kvs/client.h"

namespace redis_test {

using Words = std::vector<std::string>;

// A request as an array of bulk strings, or as an inline command in which every byte is escaped where it must be.
std::string Encode(const Words& words);
std::string EncodeInline(const Words& words);
// The words of a line: 'SET key "a value"'.
Words Split(std::string_view line);

// The length of the reply at the front of `bytes`; nothing: it is not whole.
std::optional<size_t> ReplyLength(std::string_view bytes);
// Cuts `bytes` into replies. A rest that is no whole reply is the last element.
std::vector<std::string> CutReplies(std::string_view bytes);
// The elements of an array or map of strings, sorted.
std::vector<std::string> SortedElements(std::string_view reply);

// One connection.
class Speaker {
 public:
  virtual ~Speaker() = default;
  // Sends `bytes` and returns the replies to the `count` requests in them.
  virtual std::vector<std::string> Ask(std::string_view bytes, size_t count) = 0;
  // Sends `bytes`, then ends the connection. Returns all that came back.
  virtual std::string AskLast(std::string_view bytes) = 0;
};

// Over a socket that is connected; the speaker closes it.
std::unique_ptr<Speaker> SpeakOver(int socket);

// redis-server as a child process. Ends the test program if it is not installed: tools/setup installs it.
class RedisServer {
 public:
  explicit RedisServer(const std::vector<std::string>& options = {});
  std::unique_ptr<Speaker> Connect() const;

 private:
  std::string Socket() const { return folder_->path() + "/socket"; }

  std::unique_ptr<peers::PrivateFolder> folder_;
  std::unique_ptr<peers::ServerProcess> process_;
};

// A store in this process. Conversations with it run on two clients in turn, and get their input in random pieces.
class OurServer {
 public:
  explicit OurServer(redis::Settings settings = {});
  std::unique_ptr<Speaker> Connect();
  kvs::Client& client() { return *clients_[0]; }
  const redis::Settings& settings() const { return settings_; }

  // Runs what `conversation` has until it needs input or is over. Returns what it sends.
  std::string Run(redis::Conversation& conversation);

 private:
  const redis::Settings settings_;
  std::unique_ptr<kvs::Store> store_;
  std::vector<std::unique_ptr<kvs::Client>> clients_;
  size_t turn_ = 0;
};

}  // namespace redis_test

#endif  // TESTS_REDIS_SPEAKERS_H_
