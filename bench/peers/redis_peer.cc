// redis-server over a unix socket, by hiredis; requests in flight are a pipeline.
#include <hiredis/hiredis.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <utility>

#include "bench/peers/peer.h"
#include "bench/peers/server_process.h"

namespace peers {
namespace {

using krcore::Result;

class RedisSession final : public Session {
 public:
  explicit RedisSession(const std::string& socket) : context_(redisConnectUnix(socket.c_str())) {}
  ~RedisSession() override { redisFree(context_); }

  void Run(Requests& requests, uint32_t in_flight) override {
    std::array<std::pair<uint32_t, Verb>, kMaxInFlight> sent;
    for (;;) {
      size_t count = 0;
      for (uint32_t lane = 0; lane < in_flight; ++lane) {
        Request request;
        if (!requests.Next(lane, &request)) continue;
        Append(request);
        sent[count++] = {lane, request.verb};
      }
      if (count == 0) return;
      for (size_t i = 0; i < count; ++i) Receive(requests, sent[i].first, sent[i].second);
    }
  }

 private:
  void Append(const Request& request) {
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
  void Receive(Requests& requests, uint32_t lane, Verb verb) {
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

class RedisPeer final : public Peer {
 public:
  RedisPeer(std::unique_ptr<PrivateFolder> folder, std::unique_ptr<ServerProcess> server)
      : folder_(std::move(folder)), server_(std::move(server)) {}
  std::unique_ptr<Session> NewSession() override { return std::make_unique<RedisSession>(folder_->path() + "/socket"); }
  uint64_t MemoryBytes() override { return server_->ResidentBytes(); }

 private:
  std::unique_ptr<PrivateFolder> folder_;
  std::unique_ptr<ServerProcess> server_;
};

}  // namespace

Result<std::unique_ptr<Peer>> MakeRedis(const Shape& /*shape*/) {
  auto folder = PrivateFolder::Create();
  if (!folder.ok()) return folder.status();
  const std::string socket = (*folder)->path() + "/socket";
  auto server = ServerProcess::Start("redis-server", {"--port", "0", "--unixsocket", socket, "--save", "",
                                                      "--appendonly", "no", "--dir", (*folder)->path()});
  if (!server.ok()) return server.status();
  auto reached = (*server)->Connect(socket);
  if (!reached.ok()) return reached.status();
  close(*reached);
  return std::unique_ptr<Peer>(std::make_unique<RedisPeer>(*std::move(folder), *std::move(server)));
}

}  // namespace peers
