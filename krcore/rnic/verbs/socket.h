// TCP sockets with deadlines, over IPv4 and IPv6. Non-blocking, closed on exec and in forked children (base/os.h).
#ifndef KRCORE_RNIC_VERBS_SOCKET_H_
#define KRCORE_RNIC_VERBS_SOCKET_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "krcore/base/os.h"
#include "krcore/clock.h"
#include "krcore/status.h"

namespace krcore::rnic::verbs {

inline constexpr int64_t kStopNs = 3'000'000'000;
// The port of a membership service whose address names none.
inline constexpr char kDefaultPort[] = "7480";

// "host", "host:port" or "[host]:port"; a host with colons must be in brackets.
struct HostPort {
  std::string host;
  std::string port;
};
Result<HostPort> ParseHostPort(const std::string& text);

class Socket {
 public:
  Socket() = default;
  // Wraps what `open` returns, which no child that is forked meanwhile inherits; an empty Socket if that is negative.
  template <typename Open>
  static Socket Of(Open open) {
    Socket made;
    made.generation_ = ForkGeneration();
    ForksHeld forks;
    if ((made.fd_ = AboveStandard(open())) >= 0) forks.Guard(made.fd_);
    return made;
  }
  ~Socket() { Close(); }
  Socket(Socket&& other) noexcept : fd_(std::exchange(other.fd_, -1)), generation_(other.generation_) {}
  Socket& operator=(Socket&& other) noexcept {
    Close();
    fd_ = std::exchange(other.fd_, -1);
    generation_ = other.generation_;
    return *this;
  }
  int fd() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }
  void Close();
  // Moves the connection to a descriptor above `floor`, which becomes its only one.
  Status MoveAbove(int floor);
  // Moves it to the descriptor `fd`, which the caller gives up: what that was is closed.
  Status MoveTo(int fd);
  // Gives up the descriptor; it stays open, but is still closed in forked children.
  int Release() { return std::exchange(fd_, -1); }

  // Transfers all of it, or returns kTimeout or kUnavailable (the connection is gone). Once the descriptor `stop` is
  // readable, they wait for kStopNs at most.
  Status Send(std::span<const std::byte> data, Deadline deadline, int stop = -1);
  // *got, if not null, becomes the number of bytes that have arrived, whatever it returns.
  Status Receive(std::span<std::byte> data, Deadline deadline, int stop = -1, size_t* got = nullptr);

 private:
  int fd_ = -1;
  uint32_t generation_ = 0;
};

// Makes an eventfd for a thread's poll() to wait for.
Result<Socket> NewEvent();
void SetEvent(const Socket& event);

// kNotFound: nobody listens there. kTimeout, kUnavailable: no answer, no route. kInvalidArgument: no such host.
Result<Socket> Connect(const HostPort& address, Deadline deadline);
// kExists: somebody listens there. kNotFound: that address is not this host's.
Result<Socket> Listen(const HostPort& address);

}  // namespace krcore::rnic::verbs

#endif  // KRCORE_RNIC_VERBS_SOCKET_H_
