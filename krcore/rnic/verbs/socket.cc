#include "krcore/rnic/verbs/socket.h"

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <future>
#include <iterator>
#include <memory>
#include <thread>

#include "krcore/resources.h"

namespace krcore::rnic::verbs {
namespace {

constexpr int kBacklog = 1024;

using AddrInfo = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

Result<AddrInfo> Resolve(const HostPort& address, int flags) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags | AI_NUMERICSERV;
  HoldStandard();  // for the resolver's sockets
  addrinfo* found = nullptr;
  const int error = getaddrinfo(address.host.c_str(), address.port.c_str(), &hints, &found);
  if (error != 0)
    return Status(StatusCode::kInvalidArgument, "no address of host '" + address.host + "': " + gai_strerror(error));
  return AddrInfo(found, &freeaddrinfo);
}

// A thread looks names up, and is left behind if it takes too long, because getaddrinfo has no deadline.
Result<AddrInfo> ResolveBefore(const HostPort& address, Deadline deadline) {
  if (auto numeric = Resolve(address, AI_NUMERICHOST); numeric.ok()) return numeric;
  const auto lookup =
      std::make_shared<std::packaged_task<Result<AddrInfo>()>>([address] { return Resolve(address, 0); });
  auto resolved = lookup->get_future();
  auto thread = StartThread("look-up of a host's address", [lookup] { (*lookup)(); });
  if (!thread.ok()) return thread.status();
  thread->detach();
  const std::chrono::nanoseconds left(std::max<int64_t>(deadline.at_ns - RealClock()->NowNs(), 0));
  if (resolved.wait_for(left) != std::future_status::ready)
    return Status(StatusCode::kTimeout, "no answer to the question for the address of host '" + address.host + "'");
  return resolved.get();
}

std::string Name(const HostPort& address) { return address.host + " port " + address.port; }

Result<Socket> NewSocket(const addrinfo& info) {
  Socket made = Socket::Of(
      [&] { return socket(info.ai_family, info.ai_socktype | SOCK_CLOEXEC | SOCK_NONBLOCK, info.ai_protocol); });
  if (!made) return Status::FromErrno(errno, "cannot make a socket");
  const int on = 1;
  setsockopt(made.fd(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  return made;
}

// Waits for `events` of one descriptor, but not much longer once `stop` (-1: none) is readable.
Status Await(int fd, short events, Deadline deadline, int stop) {
  for (;;) {
    const int64_t left_ms = (deadline.at_ns - RealClock()->NowNs()) / 1'000'000;
    pollfd entries[] = {{fd, events, 0}, {stop, POLLIN, 0}};
    poll(entries, std::size(entries), static_cast<int>(std::clamp<int64_t>(left_ms + 1, 0, 60'000)));
    if (entries[0].revents != 0) return {};
    if (deadline.Passed(*RealClock())) return {StatusCode::kTimeout, "no answer within the deadline"};
    if (entries[1].revents == 0) continue;
    deadline.at_ns = std::min(deadline.at_ns, RealClock()->NowNs() + kStopNs);
    stop = -1;
  }
}

Result<Socket> ConnectTo(const addrinfo& info, const HostPort& address, Deadline deadline) {
  auto made = NewSocket(info);
  if (!made.ok()) return made;
  int error = connect(made->fd(), info.ai_addr, info.ai_addrlen) == 0 ? 0 : errno;
  if (error == EINPROGRESS || error == EAGAIN) {
    if (!Await(made->fd(), POLLOUT, deadline, -1).ok())
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
                  "'" + text + "' is no address: " + why + "; say host, host:port, or [host]:port for IPv6");
  };
  HostPort parsed;
  const size_t colon = text.rfind(':');
  const bool names_port = colon != std::string::npos && text.back() != ']';
  parsed.port = names_port ? text.substr(colon + 1) : kDefaultPort;
  parsed.host = names_port ? text.substr(0, colon) : text;
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
  Socket higher = Of([&] { return fcntl(fd_, F_DUPFD_CLOEXEC, floor + 1); });
  if (!higher) return Status::FromErrno(errno, "cannot duplicate a connection's descriptor");
  *this = std::move(higher);
  return {};
}

Status Socket::MoveTo(int fd) {
  if (dup3(fd_, fd, O_CLOEXEC) < 0) return Status::FromErrno(errno, "cannot move a connection's descriptor");
  Close();
  fd_ = fd;  // guarded since the caller had it
  generation_ = ForkGeneration();
  return {};
}

Status Socket::Send(std::span<const std::byte> data, Deadline deadline, int stop) {
  while (!data.empty()) {
    const ssize_t sent = send(fd_, data.data(), data.size(), MSG_NOSIGNAL);
    if (sent >= 0) {
      data = data.subspan(static_cast<size_t>(sent));
    } else if (errno == EAGAIN) {
      KRCORE_RETURN_IF_ERROR(Await(fd_, POLLOUT, deadline, stop));
    } else if (errno != EINTR) {
      return {StatusCode::kUnavailable, std::string(Status::FromErrno(errno, "the connection broke").message())};
    }
  }
  return {};
}

Status Socket::Receive(std::span<std::byte> data, Deadline deadline, int stop, size_t* got) {
  size_t unused = 0;
  if (got == nullptr) got = &unused;
  *got = 0;
  while (*got < data.size()) {
    const ssize_t part = recv(fd_, data.data() + *got, data.size() - *got, 0);
    if (part > 0) {
      *got += static_cast<size_t>(part);
    } else if (part == 0) {
      return {StatusCode::kUnavailable, "the other end closed the connection"};
    } else if (errno == EAGAIN) {
      KRCORE_RETURN_IF_ERROR(Await(fd_, POLLIN, deadline, stop));
    } else if (errno != EINTR) {
      return {StatusCode::kUnavailable, std::string(Status::FromErrno(errno, "the connection broke").message())};
    }
  }
  return {};
}

// Each address gets its share of the time, so that one that does not answer leaves time for the next.
Result<Socket> Connect(const HostPort& address, Deadline deadline) {
  auto resolved = ResolveBefore(address, deadline);
  if (!resolved.ok()) return resolved.status();
  int64_t untried = 0;
  for (const addrinfo* info = resolved->get(); info != nullptr; info = info->ai_next) ++untried;
  Status last(StatusCode::kTimeout, "no time was left to connect to " + Name(address));
  for (const addrinfo* info = resolved->get(); info != nullptr; info = info->ai_next) {
    const int64_t left_ns = deadline.at_ns - RealClock()->NowNs();
    if (left_ns <= 0) break;
    auto connected = ConnectTo(*info, address, Deadline::After(*RealClock(), left_ns / untried--));
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
    setsockopt(made->fd(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));  // connections in TIME_WAIT would forbid it
    if (bind(made->fd(), info->ai_addr, info->ai_addrlen) == 0 && listen(made->fd(), kBacklog) == 0) return made;
    const StatusCode code = errno == EADDRINUSE      ? StatusCode::kExists
                            : errno == EADDRNOTAVAIL ? StatusCode::kNotFound
                                                     : StatusCode::kUnavailable;
    last = Status(code, std::string(Status::FromErrno(errno, "cannot listen at " + Name(address)).message()));
    if (code == StatusCode::kExists) return last;  // otherwise the same name would have two services
  }
  return last;
}

Result<Socket> NewEvent() {
  Socket made = Socket::Of([] { return eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK); });
  if (!made) return Status::FromErrno(errno, "cannot make an eventfd");
  return made;
}

void SetEvent(const Socket& event) {
  const uint64_t one = 1;
  (void)!write(event.fd(), &one, sizeof(one));
}

}  // namespace krcore::rnic::verbs
