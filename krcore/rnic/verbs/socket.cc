#include "krcore/rnic/verbs/socket.h"

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <memory>

namespace krcore::rnic::verbs {
namespace {

constexpr int kBacklog = 1024;

using AddrInfo = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

Result<AddrInfo> Resolve(const HostPort& address, int flags) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(address.host.c_str(), address.port.c_str(), &hints, &found);
  if (error != 0)
    return Status(StatusCode::kInvalidArgument, "no address of host '" + address.host + "': " + gai_strerror(error));
  return AddrInfo(found, &freeaddrinfo);
}

std::string Name(const HostPort& address) { return address.host + " port " + address.port; }

Result<Socket> NewSocket(const addrinfo& info) {
  const int fd = socket(info.ai_family, info.ai_socktype | SOCK_CLOEXEC | SOCK_NONBLOCK, info.ai_protocol);
  if (fd < 0) return Status::FromErrno(errno, "cannot make a socket");
  const int on = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  return Socket(fd);
}

// Waits for `events` of one descriptor. False: the deadline passed.
bool AwaitEvents(int fd, short events, Deadline deadline) {
  for (;;) {
    const int64_t left_ms = (deadline.at_ns - RealClock()->NowNs()) / 1'000'000;
    pollfd entry{fd, events, 0};
    const int ready = poll(&entry, 1, static_cast<int>(std::clamp<int64_t>(left_ms + 1, 0, 60'000)));
    if (ready > 0) return true;
    if (deadline.Passed(*RealClock())) return false;
  }
}

Result<Socket> ConnectTo(const addrinfo& info, const HostPort& address, Deadline deadline) {
  auto made = NewSocket(info);
  if (!made.ok()) return made;
  int error = connect(made->fd(), info.ai_addr, info.ai_addrlen) == 0 ? 0 : errno;
  if (error == EINPROGRESS || error == EAGAIN) {
    if (!AwaitEvents(made->fd(), POLLOUT, deadline))
      return Status(StatusCode::kTimeout, "no answer from " + Name(address));
    socklen_t length = sizeof(error);
    getsockopt(made->fd(), SOL_SOCKET, SO_ERROR, &error, &length);
  }
  if (error == 0) return made;
  const StatusCode code = error == ECONNREFUSED ? StatusCode::kNotFound : StatusCode::kUnavailable;
  return Status(code, std::string(Status::FromErrno(error, "cannot connect to " + Name(address)).message()));
}

}  // namespace

Result<HostPort> ParseHostPort(const std::string& text) {
  const auto wrong = [&](const char* why) {
    return Status(StatusCode::kInvalidArgument,
                  "'" + text + "' is no address: " + why + "; say host:port, or [host]:port for IPv6");
  };
  HostPort parsed;
  size_t colon = text.rfind(':');
  if (colon == std::string::npos) return wrong("it has no port");
  parsed.port = text.substr(colon + 1);
  parsed.host = text.substr(0, colon);
  if (parsed.host.size() >= 2 && parsed.host.front() == '[' && parsed.host.back() == ']') {
    parsed.host = parsed.host.substr(1, parsed.host.size() - 2);
  } else if (parsed.host.find_first_of(":[]") != std::string::npos) {
    return wrong("brackets belong around a host with colons");
  }
  if (parsed.host.empty()) return wrong("it has no host");
  const bool digits = std::all_of(parsed.port.begin(), parsed.port.end(), [](char c) { return c >= '0' && c <= '9'; });
  if (!digits || parsed.port.empty() || parsed.port.size() > 5 || std::stoul(parsed.port) == 0 ||
      std::stoul(parsed.port) > 65535)
    return wrong("the port is not 1 to 65535");
  return parsed;
}

void Socket::Close() {
  if (fd_ >= 0) UnguardAndClose(std::exchange(fd_, -1), generation_);
}

Status Socket::MoveAbove(int floor) {
  if (fd_ > floor) return {};
  const int higher = fcntl(fd_, F_DUPFD_CLOEXEC, floor + 1);
  if (higher < 0) return Status::FromErrno(errno, "cannot duplicate a connection's descriptor");
  *this = Socket(higher);
  return {};
}

Status Socket::MoveTo(int fd) {
  if (dup3(fd_, fd, O_CLOEXEC) < 0) return Status::FromErrno(errno, "cannot move a connection's descriptor");
  Close();
  fd_ = fd;  // guarded since it was the caller's
  generation_ = ForkGeneration();
  return {};
}

Status Socket::Await(short events, Deadline deadline) const {
  return AwaitEvents(fd_, events, deadline) ? Status{} : Status(StatusCode::kTimeout, "no answer within the deadline");
}

Status Socket::Send(std::span<const std::byte> data, Deadline deadline) {
  while (!data.empty()) {
    const ssize_t sent = send(fd_, data.data(), data.size(), MSG_NOSIGNAL);
    if (sent >= 0) {
      data = data.subspan(static_cast<size_t>(sent));
    } else if (errno == EAGAIN) {
      KRCORE_RETURN_IF_ERROR(Await(POLLOUT, deadline));
    } else if (errno != EINTR) {
      return {StatusCode::kUnavailable, std::string(Status::FromErrno(errno, "the connection broke").message())};
    }
  }
  return {};
}

Status Socket::Receive(std::span<std::byte> data, Deadline deadline) {
  while (!data.empty()) {
    const ssize_t got = recv(fd_, data.data(), data.size(), 0);
    if (got > 0) {
      data = data.subspan(static_cast<size_t>(got));
    } else if (got == 0) {
      return {StatusCode::kUnavailable, "the other end closed the connection"};
    } else if (errno == EAGAIN) {
      KRCORE_RETURN_IF_ERROR(Await(POLLIN, deadline));
    } else if (errno != EINTR) {
      return {StatusCode::kUnavailable, std::string(Status::FromErrno(errno, "the connection broke").message())};
    }
  }
  return {};
}

Result<Socket> Connect(const HostPort& address, Deadline deadline) {
  auto resolved = Resolve(address, 0);
  if (!resolved.ok()) return resolved.status();
  Status last(StatusCode::kUnavailable, "host " + address.host + " has no address");
  for (const addrinfo* info = resolved->get(); info != nullptr; info = info->ai_next) {
    auto connected = ConnectTo(*info, address, deadline);
    if (connected.ok()) return connected;
    last = connected.status();
  }
  return last;
}

Result<Socket> Listen(const HostPort& address) {
  auto resolved = Resolve(address, AI_PASSIVE);
  if (!resolved.ok()) return resolved.status();
  Status last(StatusCode::kUnavailable, "host " + address.host + " has no address");
  for (const addrinfo* info = resolved->get(); info != nullptr; info = info->ai_next) {
    auto made = NewSocket(*info);
    if (!made.ok()) return made;
    const int on = 1;
    setsockopt(made->fd(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));  // what connections in TIME_WAIT would forbid
    if (bind(made->fd(), info->ai_addr, info->ai_addrlen) == 0 && listen(made->fd(), kBacklog) == 0) return made;
    const StatusCode code = errno == EADDRINUSE      ? StatusCode::kExists
                            : errno == EADDRNOTAVAIL ? StatusCode::kNotFound
                                                     : StatusCode::kUnavailable;
    last = Status(code, std::string(Status::FromErrno(errno, "cannot listen at " + Name(address)).message()));
  }
  return last;
}

}  // namespace krcore::rnic::verbs
