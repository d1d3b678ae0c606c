// memcached over a unix socket, in its text protocol; requests in flight are sent in one write.
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <utility>

#include "bench/peers/peer.h"
#include "bench/peers/server_process.h"

namespace peers {
namespace {

using krcore::Result;

constexpr uint64_t kBesidesBytes = 128;  // of a record: generously
constexpr uint64_t kLeastMib = 256;

// Lines and bodies that a socket brings.
class Reader {
 public:
  explicit Reader(int file) : file_(file) {}
  // Without its end. Valid until the next call.
  std::string_view Line() {
    size_t end;
    while ((end = buffer_.find("\r\n", at_)) == std::string::npos) More();
    const std::string_view line(buffer_.data() + at_, end - at_);
    at_ = end + 2;
    return line;
  }
  std::string_view Body(size_t bytes) {
    while (buffer_.size() - at_ < bytes + 2) More();
    const std::string_view body(buffer_.data() + at_, bytes);
    at_ += bytes + 2;
    return body;
  }
  // All that was read has been looked at.
  void Forget() {
    buffer_.erase(0, at_);
    at_ = 0;
  }

 private:
  void More() {
    std::array<char, 16384> bytes;
    const ssize_t count = recv(file_, bytes.data(), bytes.size(), 0);
    if (count <= 0) {
      std::fprintf(stderr, "memcached has hung up\n");
      std::abort();
    }
    buffer_.append(bytes.data(), static_cast<size_t>(count));
  }

  const int file_;
  std::string buffer_;
  size_t at_ = 0;
};

class MemcachedSession final : public Session {
 public:
  explicit MemcachedSession(int file) : file_(file), reader_(file) {}
  ~MemcachedSession() override { close(file_); }

  void Run(Requests& requests, uint32_t in_flight) override {
    std::array<std::pair<uint32_t, Verb>, kMaxInFlight> sent;
    for (;;) {
      size_t count = 0;
      out_.clear();
      for (uint32_t lane = 0; lane < in_flight; ++lane) {
        Request request;
        if (!requests.Next(lane, &request)) continue;
        Append(request);
        sent[count++] = {lane, request.verb};
      }
      if (count == 0) return;
      Send();
      for (size_t i = 0; i < count; ++i) Receive(requests, sent[i].first, sent[i].second);
      reader_.Forget();
    }
  }

 private:
  void Append(const Request& request) {
    static constexpr const char* kCommands[] = {"get ", "replace ", "add "};
    out_ += kCommands[static_cast<size_t>(request.verb)];
    out_ += request.key;
    if (request.verb != Verb::kGet) {
      out_ += " 0 0 ";
      out_ += std::to_string(request.value.size());
      out_ += "\r\n";
      out_ += request.value;
    }
    out_ += "\r\n";
  }
  void Send() {
    for (size_t sent = 0; sent < out_.size();) {
      const ssize_t count = send(file_, out_.data() + sent, out_.size() - sent, MSG_NOSIGNAL);
      if (count <= 0) {
        std::fprintf(stderr, "memcached has hung up\n");
        std::abort();
      }
      sent += static_cast<size_t>(count);
    }
  }
  void Receive(Requests& requests, uint32_t lane, Verb verb) {
    std::string_view line = reader_.Line();
    if (verb != Verb::kGet) return requests.Done(lane, line == "STORED");
    if (!line.starts_with("VALUE ")) return requests.Done(lane, false);
    line.remove_prefix(line.rfind(' ') + 1);
    size_t bytes = 0;
    std::from_chars(line.data(), line.data() + line.size(), bytes);
    requests.Done(lane, true, reader_.Body(bytes));
    (void)reader_.Line();  // END
  }

  const int file_;
  Reader reader_;
  std::string out_;
};

class MemcachedPeer final : public Peer {
 public:
  MemcachedPeer(std::unique_ptr<PrivateFolder> folder, std::unique_ptr<ServerProcess> server)
      : folder_(std::move(folder)), server_(std::move(server)) {}
  std::unique_ptr<Session> NewSession() override {
    return std::make_unique<MemcachedSession>(server_->Connect(folder_->path() + "/socket").value());
  }
  uint64_t MemoryBytes() override { return server_->ResidentBytes(); }

 private:
  std::unique_ptr<PrivateFolder> folder_;
  std::unique_ptr<ServerProcess> server_;
};

}  // namespace

Result<std::unique_ptr<Peer>> MakeMemcached(const Shape& shape) {
  auto folder = PrivateFolder::Create();
  if (!folder.ok()) return folder.status();
  const uint64_t mib = kLeastMib + (shape.most_records() * (shape.data_bytes() + kBesidesBytes) >> 20);
  std::vector<std::string> arguments = {"-s", (*folder)->path() + "/socket", "-m", std::to_string(mib), "-t", "2"};
  if (geteuid() == 0) arguments.insert(arguments.end(), {"-u", "root"});  // it refuses to be root unless told so
  auto server = ServerProcess::Start("memcached", arguments);
  if (!server.ok()) return server.status();
  auto reached = (*server)->Connect((*folder)->path() + "/socket");
  if (!reached.ok()) return reached.status();
  close(*reached);
  return std::unique_ptr<Peer>(std::make_unique<MemcachedPeer>(*std::move(folder), *std::move(server)));
}

}  // namespace peers
