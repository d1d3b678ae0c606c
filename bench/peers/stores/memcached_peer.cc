// memcached over a unix socket, in its text protocol; requests in flight are sent in one write, for which libmemcached
// has no interface: it buffers sets without their answers, and pipelines nothing else.
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

#include "bench/peers/stores/server_peer.h"

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

class MemcachedSession final : public PipelinedSession {
 public:
  explicit MemcachedSession(int file) : file_(file), reader_(file) {}
  ~MemcachedSession() override { close(file_); }

 private:
  void Append(const Request& request) override {
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
  void Send() override {
    reader_.Forget();
    for (size_t sent = 0; sent < out_.size();) {
      const ssize_t count = send(file_, out_.data() + sent, out_.size() - sent, MSG_NOSIGNAL);
      if (count <= 0) {
        std::fprintf(stderr, "memcached has hung up\n");
        std::abort();
      }
      sent += static_cast<size_t>(count);
    }
    out_.clear();
  }
  void Receive(Requests& requests, uint32_t lane, Verb verb) override {
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

}  // namespace

Result<std::unique_ptr<Peer>> MakeMemcached(const Shape& shape) {
  const uint64_t mib = kLeastMib + (shape.most_records() * (shape.data_bytes() + kBesidesBytes) >> 20);
  return ServerPeer<MemcachedSession>::Start(
      "memcached", [&](const std::string& /*folder*/, const std::string& socket) {
        std::vector<std::string> arguments = {"-s", socket, "-m", std::to_string(mib), "-t", "2"};
        if (geteuid() == 0) arguments.insert(arguments.end(), {"-u", "root"});  // it refuses to be root unless told so
        return arguments;
      });
}

}  // namespace peers
