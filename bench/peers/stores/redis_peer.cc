// redis-server over a unix socket, by hiredis; requests in flight are a pipeline.
#include <hiredis/hiredis.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "bench/peers/stores/server_peer.h"

namespace peers {
namespace {

using krcore::Result;

class RedisSession final : public PipelinedSession {
 public:
  explicit RedisSession(int socket) : context_(redisConnectFd(socket)) {}
  ~RedisSession() override { redisFree(context_); }

 private:
  void Append(const Request& request) override {
    std::array<const char*, 4> words;
    std::array<size_t, 4> lengths;
    int count = 0;
    const auto add = [&](std::string_view word) {
      words[static_cast<size_t>(count)] = word.data();
      lengths[static_cast<size_t>(count++)] = word.size();
    };
    add(request.verb == Verb::kGet ? "GET" : "SET");
    add(request.key);
    if (request.verb != Verb::kGet) {
      add(request.value);
      add(request.verb == Verb::kUpdate ? "XX" : "NX");
    }
    (void)redisAppendCommandArgv(context_, count, words.data(), lengths.data());
  }
  void Send() override {}  // redisGetReply does
  void Receive(Requests& requests, uint32_t lane, Verb verb) override {
    void* answer = nullptr;
    if (redisGetReply(context_, &answer) != REDIS_OK) {
      std::fprintf(stderr, "redis-server has hung up: %s\n", context_->errstr);
      std::abort();
    }
    auto* const reply = static_cast<redisReply*>(answer);
    if (verb == Verb::kGet) {
      const bool found = reply->type == REDIS_REPLY_STRING;
      requests.Done(lane, found, found ? std::string_view(reply->str, static_cast<size_t>(reply->len)) : "");
    } else {
      requests.Done(lane, reply->type == REDIS_REPLY_STATUS);
    }
    freeReplyObject(reply);
  }

  redisContext* const context_;
};

}  // namespace

Result<std::unique_ptr<Peer>> MakeRedis(const Shape& /*shape*/) {
  return ServerPeer<RedisSession>::Start("redis-server", [](const std::string& folder, const std::string& socket) {
    return std::vector<std::string>{"--port",       "0",  "--unixsocket", socket, "--save", "",
                                    "--appendonly", "no", "--dir",        folder};
  });
}

}  // namespace peers
