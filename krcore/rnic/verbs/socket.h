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
// Of a membership service whose address names none.
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
  // Of what `open` returns, which no child that is forked meanwhile inherits; without one if that is negative.
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
  // The same connection under a descriptor above `floor`, which becomes the only one.
  Status MoveAbove(int floor);
  // The same under the descriptor `fd`, which the caller gives up: what it was is closed.
  Status MoveTo(int fd);
  // Gives up the descriptor, open, but closed in forked children still.
  int Release() { return std::exchange(fd_, -1); }

  // All of it, or kTimeout, kUnavailable (the connection is gone). Once the descriptor `stop` is readable they wait for
  // kStopNs at most.
  Status Send(std::span<const std::byte> data, Deadline deadline, int stop = -1);
  // *got, if not null, becomes how many bytes have come, whatever it returns.
  Status Receive(std::span<std::byte> data, Deadline deadline, int stop = -1, size_t* got = nullptr);

 private:
  int fd_ = -1;
  uint32_t generation_ = 0;
};

// An eventfd, which a thread's poll() waits for.
Result<Socket> NewEvent();
void SetEvent(const Socket& event);

// kNotFound: nobody listens there. kTimeout, kUnavailable: no answer, no way. kInvalidArgument: no such host.
Result<Socket> Connect(const HostPort& address, Deadline deadline);
// kExists: somebody listens there. kNotFound: that address is not this host's.
Result<Socket> Listen(const HostPort& address);

}  // namespace krcore::rnic::verbs

#endif  // KRCORE_RNIC_VERBS_SOCKET_H_
