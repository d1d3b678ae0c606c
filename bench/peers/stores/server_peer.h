// The common part of servers on a unix socket: a program with a folder of its own, and sessions that send several
// requests before they read the first answer.
#ifndef BENCH_PEERS_STORES_SERVER_PEER_H_
#define BENCH_PEERS_STORES_SERVER_PEER_H_

#include <unistd.h>

#include <array>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "bench/peers/peer.h"
#include "bench/peers/stores/server_process.h"

namespace peers {

class PipelinedSession : public Session {
 public:
  void Run(Requests& requests, uint32_t in_flight) final {
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
      Send();
      for (size_t i = 0; i < count; ++i) Receive(requests, sent[i].first, sent[i].second);
    }
  }

 private:
  virtual void Append(const Request& request) = 0;
  // Sends all that was appended.
  virtual void Send() = 0;
  // Reads the oldest answer that is due.
  virtual void Receive(Requests& requests, uint32_t lane, Verb verb) = 0;
};

// Server: a PipelinedSession, made from a connected socket, which it owns.
template <typename Server>
class ServerPeer final : public Peer {
 public:
  // Starts `program` with `arguments(folder, socket)`: it listens on the socket and may write to the folder. Blocks
  // until it can be reached. As MakePeer.
  template <typename Arguments>
  static krcore::Result<std::unique_ptr<Peer>> Start(const std::string& program, Arguments arguments) {
    auto folder = PrivateFolder::Create();
    if (!folder.ok()) return folder.status();
    const std::string socket = (*folder)->path() + "/socket";
    auto server = ServerProcess::Start(program, arguments((*folder)->path(), socket));
    if (!server.ok()) return server.status();
    auto reached = (*server)->Connect(socket);
    if (!reached.ok()) return reached.status();
    close(*reached);
    return std::unique_ptr<Peer>(new ServerPeer(*std::move(folder), socket, *std::move(server)));
  }
  std::unique_ptr<Session> NewSession() override { return std::make_unique<Server>(server_->Connect(socket_).value()); }
  uint64_t MemoryBytes() override { return server_->ResidentBytes(); }

 private:
  ServerPeer(std::unique_ptr<PrivateFolder> folder, std::string socket, std::unique_ptr<ServerProcess> server)
      : folder_(std::move(folder)), socket_(std::move(socket)), server_(std::move(server)) {}

  std::unique_ptr<PrivateFolder> folder_;  // before the server: it goes last
  const std::string socket_;
  std::unique_ptr<ServerProcess> server_;
};

}  // namespace peers

#endif  // BENCH_PEERS_STORES_SERVER_PEER_H_
