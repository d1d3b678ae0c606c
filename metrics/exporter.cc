#include "metrics/exporter.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <poll.h>
#include <prometheus/text_serializer.h>
#include <pthread.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <string_view>
#include <utility>
#include <vector>

#include "krcore/base/descriptor.h"
#include "krcore/clock.h"
#include "krcore/resources.h"

namespace metrics {
namespace {

using krcore::Result;
using krcore::Status;
using krcore::StatusCode;

constexpr char kTextFormat[] = "text/plain; version=0.0.4; charset=utf-8";
constexpr char kPlain[] = "text/plain; charset=utf-8";
constexpr size_t kMostConnections = 64;
constexpr size_t kMostRequestBytes = 8192;
constexpr int kBacklog = 128;
constexpr int64_t kPatienceNs = 2'000'000'000;  // for a client to ask, to take its answer, and to hang up
constexpr int64_t kStopNs = 1'000'000'000;      // the same of a server that ends
constexpr int kPauseMs = 100;                   // until descriptors are tried again, where none is left

Status Mistake(const std::string& text, const std::string& what) {
  return {StatusCode::kInvalidArgument, "--metrics=" + text + ": " + what};
}

struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t length = 0;
  sockaddr* get() { return reinterpret_cast<sockaddr*>(&storage); }
};

SocketAddress ToSocketAddress(const Address& address) {
  SocketAddress made;
  if (address.v6) {
    auto* const in = reinterpret_cast<sockaddr_in6*>(&made.storage);
    in->sin6_family = AF_INET6;
    in->sin6_port = htons(address.port);
    inet_pton(AF_INET6, address.host.c_str(), &in->sin6_addr);
    made.length = sizeof(sockaddr_in6);
  } else {
    auto* const in = reinterpret_cast<sockaddr_in*>(&made.storage);
    in->sin_family = AF_INET;
    in->sin_port = htons(address.port);
    inet_pton(AF_INET, address.host.c_str(), &in->sin_addr);
    made.length = sizeof(sockaddr_in);
  }
  return made;
}

std::string Answer(const char* status, const char* type, const std::string& body, bool with_body = true) {
  std::string answer = std::string("HTTP/1.1 ") + status + "\r\nContent-Type: " + type +
                       "\r\nContent-Length: " + std::to_string(body.size()) + "\r\nConnection: close\r\n\r\n";
  return with_body ? answer + body : answer;
}

// To the request whose first line is given.
std::string AnswerTo(std::string_view line, const Source& source) {
  const size_t method_end = line.find(' ');
  const size_t path_end = method_end == std::string_view::npos ? method_end : line.find(' ', method_end + 1);
  if (path_end == std::string_view::npos) return Answer("400 Bad Request", kPlain, "that is no request of HTTP\n");
  const std::string_view method = line.substr(0, method_end);
  std::string_view path = line.substr(method_end + 1, path_end - method_end - 1);
  path = path.substr(0, path.find('?'));
  if (path != "/metrics" && path != "/healthz")
    return Answer("404 Not Found", kPlain, "there are /metrics and /healthz\n");
  const bool with_body = method == "GET";
  if (!with_body && method != "HEAD") return Answer("405 Method Not Allowed", kPlain, "only GET is answered here\n");
  if (path == "/metrics") {
    return Answer("200 OK", kTextFormat, prometheus::TextSerializer().Serialize(source.Collect()), with_body);
  }
  const std::string trouble = source.Trouble();
  return trouble.empty() ? Answer("200 OK", kPlain, "ok\n", with_body)
                         : Answer("503 Service Unavailable", kPlain, trouble + "\n", with_body);
}

int64_t NowNs() { return krcore::RealClock()->NowNs(); }

}  // namespace

std::string Address::ToString() const { return (v6 ? "[" + host + "]" : host) + ":" + std::to_string(port); }

Result<Address> ParseAddress(const std::string& text) {
  const size_t colon = text.rfind(':');
  if (colon == std::string::npos) return Mistake(text, "expected HOST:PORT, for example 127.0.0.1:9464");
  Address address;
  address.host = text.substr(0, colon);
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data() + colon + 1, end, address.port);
  if (error != std::errc() || stop != end || colon + 1 == text.size()) {
    return Mistake(text, "the port must be 0 to 65535; 0: any that is free");
  }
  if (address.host == "localhost") address.host = "127.0.0.1";
  if (address.host.size() > 2 && address.host.front() == '[' && address.host.back() == ']') {
    address.host = address.host.substr(1, address.host.size() - 2);
    address.v6 = true;
  }
  std::array<unsigned char, sizeof(in6_addr)> bytes{};
  if (inet_pton(address.v6 ? AF_INET6 : AF_INET, address.host.c_str(), bytes.data()) != 1) {
    return Mistake(text, "the host must be an IP address of this machine, an IPv6 one in brackets, or localhost");
  }
  return address;
}

Address ReachableAddress(const Address& listening) {
  if (listening.host != "0.0.0.0" && listening.host != "::") return listening;
  Address reachable = listening;
  reachable.host = listening.v6 ? "::1" : "127.0.0.1";
  ifaddrs* all = nullptr;
  if (getifaddrs(&all) != 0) return reachable;
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> owner(all, &freeifaddrs);
  for (const ifaddrs* entry = all; entry != nullptr; entry = entry->ifa_next) {
    if (entry->ifa_addr == nullptr || (entry->ifa_flags & IFF_UP) == 0 || (entry->ifa_flags & IFF_LOOPBACK) != 0)
      continue;
    std::array<char, INET6_ADDRSTRLEN> host{};
    const void* bytes = nullptr;
    if (!listening.v6 && entry->ifa_addr->sa_family == AF_INET) {
      bytes = &reinterpret_cast<const sockaddr_in*>(entry->ifa_addr)->sin_addr;
    } else if (listening.v6 && entry->ifa_addr->sa_family == AF_INET6) {
      const in6_addr& address = reinterpret_cast<const sockaddr_in6*>(entry->ifa_addr)->sin6_addr;
      if (!IN6_IS_ADDR_LINKLOCAL(&address)) bytes = &address;  // that means something on its link only
    }
    if (bytes == nullptr) continue;
    inet_ntop(entry->ifa_addr->sa_family, bytes, host.data(), host.size());
    reachable.host = host.data();
    return reachable;
  }
  return reachable;
}

// One client, from its connection to its end.
struct Exporter::Connection {
  int fd;
  int64_t until_ns;
  std::string in, out;  // out: what is still to be sent
  bool answered = false;

  short Wanted() const { return out.empty() ? POLLIN : POLLOUT; }
};

Result<std::unique_ptr<Exporter>> Exporter::Start(const Address& address, const Source& source) {
  std::unique_ptr<Exporter> exporter(new Exporter(address, source));
  const auto failed = [&] {
    const int errnum = errno;
    if (errnum == EADDRINUSE)
      return Status(StatusCode::kExists,
                    "--metrics=" + address.ToString() + ": the address is in use by another program");
    const Status status = Status::FromErrno(errnum, "--metrics=" + address.ToString() + ": cannot listen");
    return Status(StatusCode::kUnavailable, std::string(status.message()));
  };
  SocketAddress at = ToSocketAddress(address);
  exporter->stop_ = krcore::AboveStandard(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  exporter->listener_ =
      krcore::AboveStandard(socket(at.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (exporter->stop_ < 0 || exporter->listener_ < 0) return failed();
  exporter->spare_ = fcntl(exporter->stop_, F_DUPFD_CLOEXEC, krcore::kFirstDescriptor);
  if (exporter->spare_ < 0) return failed();
  const int on = 1;
  setsockopt(exporter->listener_, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  if (address.v6) setsockopt(exporter->listener_, IPPROTO_IPV6, IPV6_V6ONLY, &on, sizeof(on));
  if (bind(exporter->listener_, at.get(), at.length) != 0 || listen(exporter->listener_, kBacklog) != 0 ||
      getsockname(exporter->listener_, at.get(), &at.length) != 0) {
    return failed();
  }
  exporter->address_.port = ntohs(address.v6 ? reinterpret_cast<sockaddr_in6*>(&at.storage)->sin6_port
                                             : reinterpret_cast<sockaddr_in*>(&at.storage)->sin_port);
  auto thread = krcore::StartThread("metrics", [self = exporter.get()] { self->Run(); });
  if (!thread.ok()) return Status(thread.status().code(), "--metrics: " + std::string(thread.status().message()));
  exporter->thread_ = *std::move(thread);
  return exporter;
}

Exporter::~Exporter() {
  if (thread_.joinable()) {
    (void)eventfd_write(stop_, 1);
    thread_.join();
  }
  for (const int fd : {listener_, stop_, spare_})
    if (fd >= 0) close(fd);
}

// Takes all who have come. Who has been there longest makes room: an answer takes microseconds, so that one is silent.
// False: there is no descriptor for anybody.
bool Exporter::Accept(std::list<Connection>* connections) {
  for (;;) {
    const int fd = krcore::AboveStandard(accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (fd >= 0) {
      if (connections->size() == kMostConnections) Drop(connections, connections->begin());
      connections->push_back({fd, NowNs() + kPatienceNs, "", ""});
      // Most have asked already, and are answered before a crowd behind them wants the place.
      if (!Serve(&connections->back())) Drop(connections, std::prev(connections->end()));
      continue;
    }
    if (errno == EINTR || errno == ECONNABORTED) continue;
    if (errno == EAGAIN) return true;
    if (!connections->empty()) {
      Drop(connections, connections->begin());
    } else if (spare_ >= 0) {
      close(std::exchange(spare_, -1));
    } else {
      return false;
    }
  }
}

std::list<Exporter::Connection>::iterator Exporter::Drop(std::list<Connection>* connections,
                                                         std::list<Connection>::iterator connection) {
  close(connection->fd);
  if (spare_ < 0) spare_ = fcntl(stop_, F_DUPFD_CLOEXEC, krcore::kFirstDescriptor);
  return connections->erase(connection);
}

// False: it is over.
bool Exporter::Serve(Connection* connection) const {
  std::array<char, 4096> bytes{};
  for (;;) {
    while (!connection->out.empty()) {
      const ssize_t sent = send(connection->fd, connection->out.data(), connection->out.size(), MSG_NOSIGNAL);
      if (sent < 0) return errno == EAGAIN || errno == EINTR;
      connection->out.erase(0, static_cast<size_t>(sent));
      // It hangs up then. If we did, before all that it has sent was read, our reset could overtake the answer.
      if (connection->out.empty()) shutdown(connection->fd, SHUT_WR);
    }
    const ssize_t got = recv(connection->fd, bytes.data(), bytes.size(), 0);
    if (got <= 0) return got < 0 && (errno == EAGAIN || errno == EINTR);
    if (connection->answered) continue;
    connection->in.append(bytes.data(), static_cast<size_t>(got));
    const bool whole = connection->in.find("\r\n\r\n") != std::string::npos;
    if (!whole && connection->in.size() <= kMostRequestBytes) continue;
    connection->answered = true;
    connection->out = whole ? AnswerTo(std::string_view(connection->in).substr(0, connection->in.find("\r\n")), source_)
                            : Answer("431 Request Header Fields Too Large", kPlain, "the request is too long\n");
  }
}

void Exporter::Run() {
  sigset_t signals;  // a request to stop is for the main thread
  sigfillset(&signals);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  pthread_setname_np(pthread_self(), "metrics");
  std::list<Connection> connections;
  std::vector<pollfd> polled;
  bool stopping = false, room = true;
  int64_t end_ns = 0;
  while (!stopping || (!connections.empty() && NowNs() < end_ns)) {
    polled.clear();
    polled.push_back({stopping ? -1 : stop_, POLLIN, 0});
    polled.push_back({stopping || !room ? -1 : listener_, POLLIN, 0});
    int64_t wake_ns = stopping ? end_ns : NowNs() + kPatienceNs;
    for (const Connection& connection : connections) {
      polled.push_back({connection.fd, connection.Wanted(), 0});
      wake_ns = std::min(wake_ns, connection.until_ns);
    }
    const int64_t wait_ms = std::max<int64_t>((wake_ns - NowNs()) / 1'000'000 + 1, 0);
    const bool idle = connections.empty() && room;
    const int patience_ms = room ? static_cast<int>(wait_ms) : kPauseMs;
    // Refused where the limit of descriptors is below their number by now: it must not spin for that.
    if (poll(polled.data(), polled.size(), idle ? -1 : patience_ms) < 0 && errno != EINTR) poll(nullptr, 0, kPauseMs);
    room = true;
    size_t index = 2;
    for (auto connection = connections.begin(); connection != connections.end();) {
      const bool over = (polled[index++].revents != 0 && !Serve(&*connection)) || NowNs() >= connection->until_ns ||
                        (stopping && !connection->answered);
      connection = over ? Drop(&connections, connection) : std::next(connection);
    }
    if (polled[1].revents != 0) room = Accept(&connections);
    if (polled[0].revents == 0) continue;
    stopping = true;
    end_ns = NowNs() + kStopNs;
    // Who has asked by now is answered still.
    room = Accept(&connections);
    for (auto connection = connections.begin(); connection != connections.end();) {
      const bool goes_on = Serve(&*connection) && connection->answered;
      connection = goes_on ? std::next(connection) : Drop(&connections, connection);
    }
  }
  while (!connections.empty()) Drop(&connections, connections.begin());
}

}  // namespace metrics
