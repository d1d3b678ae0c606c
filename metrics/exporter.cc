#include "metrics/exporter.h"

#include <arpa/inet.h>
#include <civetweb.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <prometheus/text_serializer.h>
#include <pthread.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <string_view>
#include <thread>
#include <utility>

namespace metrics {
namespace {

using krcore::Result;
using krcore::Status;
using krcore::StatusCode;

constexpr char kTextFormat[] = "text/plain; version=0.0.4; charset=utf-8";
constexpr std::chrono::milliseconds kKnockPeriod(20);
constexpr int kMostKnocks = 50;
constexpr char kPlain[] = "text/plain; charset=utf-8";

Status Mistake(const std::string& text, const std::string& what) {
  return {StatusCode::kInvalidArgument, "--metrics=" + text + ": " + what};
}

int Answer(mg_connection* connection, int code, const char* reason, const char* type, const std::string& body) {
  const bool with_body = std::string_view(mg_get_request_info(connection)->request_method) != "HEAD";
  mg_printf(connection, "HTTP/1.1 %d %s\r\nContent-Type: %s\r\nContent-Length: %zu\r\nConnection: close\r\n\r\n", code,
            reason, type, body.size());
  if (with_body) mg_write(connection, body.data(), body.size());
  return code;
}

bool MayAsk(mg_connection* connection) {
  const std::string_view method = mg_get_request_info(connection)->request_method;
  return method == "GET" || method == "HEAD";
}

int RefuseMethod(mg_connection* connection) {
  return Answer(connection, 405, "Method Not Allowed", kPlain, "only GET is answered here\n");
}

// Connects to it, and hangs up.
void Knock(const Address& address) {
  sockaddr_storage storage{};
  socklen_t length = sizeof(sockaddr_in);
  if (address.v6) {
    auto* const in = reinterpret_cast<sockaddr_in6*>(&storage);
    in->sin6_family = AF_INET6;
    in->sin6_port = htons(address.port);
    inet_pton(AF_INET6, address.host.c_str(), &in->sin6_addr);
    length = sizeof(sockaddr_in6);
  } else {
    auto* const in = reinterpret_cast<sockaddr_in*>(&storage);
    in->sin_family = AF_INET;
    in->sin_port = htons(address.port);
    inet_pton(AF_INET, address.host.c_str(), &in->sin_addr);
  }
  const int fd = socket(storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return;
  (void)connect(fd, reinterpret_cast<const sockaddr*>(&storage), length);
  close(fd);
}

// A stop signal is for the main thread: threads inherit what their maker blocks.
class SignalsBlocked {
 public:
  SignalsBlocked() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &before_);
  }
  ~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;

 private:
  sigset_t before_{};
};

// Counts an answer while it is made and sent.
class UnderWay {
 public:
  explicit UnderWay(std::atomic<int>& count) : count_(count) { count_.fetch_add(1, std::memory_order_relaxed); }
  ~UnderWay() { count_.fetch_sub(1, std::memory_order_relaxed); }
  UnderWay(const UnderWay&) = delete;
  UnderWay& operator=(const UnderWay&) = delete;

 private:
  std::atomic<int>& count_;
};

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

Result<std::unique_ptr<Exporter>> Exporter::Start(const Address& address, const Source& source) {
  std::unique_ptr<Exporter> exporter(new Exporter(address, source));
  const std::string listen = address.ToString();
  const std::array<const char*, 11> options = {
      "listening_ports",   listen.c_str(), "num_threads", "8", "request_timeout_ms", "1000", "enable_keep_alive", "no",
      "linger_timeout_ms", "1000",         nullptr};
  mg_callbacks callbacks{};
  callbacks.log_message = OnComplaint;
  {
    const SignalsBlocked blocked;
    exporter->server_ = mg_start(&callbacks, exporter.get(), const_cast<const char**>(options.data()));
  }
  if (exporter->server_ == nullptr) {
    const std::string& why = exporter->complaint_;
    const bool taken = why.find(std::strerror(EADDRINUSE)) != std::string::npos;
    return Status(taken ? StatusCode::kExists : StatusCode::kUnavailable,
                  "--metrics=" + listen + ": " + (taken ? "the address is in use by another program" : why));
  }
  exporter->started_.store(true, std::memory_order_relaxed);
  mg_server_port port{};
  if (mg_get_server_ports(exporter->server_, 1, &port) == 1) exporter->address_.port = static_cast<uint16_t>(port.port);
  mg_set_request_handler(exporter->server_, "/metrics$", OnMetrics, exporter.get());
  mg_set_request_handler(exporter->server_, "/healthz$", OnHealth, exporter.get());
  mg_set_request_handler(exporter->server_, "/", OnOther, exporter.get());
  return exporter;
}

// A server that is to stop sends nothing any more, and looks only every two seconds whether it is, unless somebody
// comes.
Exporter::~Exporter() {
  if (server_ == nullptr) return;
  // Sleeps, for civetweb tells nobody: neither that an answer has been sent nor that it has ended.
  for (int waited = 0; under_way_.load(std::memory_order_relaxed) > 0 && waited < kMostKnocks; ++waited) {
    std::this_thread::sleep_for(kKnockPeriod);
  }
  std::atomic<bool> stopped{false};  // a hint; the join orders the rest
  std::thread stopper([&] {
    mg_stop(server_);
    stopped.store(true, std::memory_order_relaxed);
  });
  while (!stopped.load(std::memory_order_relaxed)) {
    Knock(address_);
    std::this_thread::sleep_for(kKnockPeriod);
  }
  stopper.join();
}

int Exporter::OnComplaint(const mg_connection* connection, const char* message) {
  auto* const exporter = static_cast<Exporter*>(mg_get_user_context_data(connection));
  // Later ones are of what clients send.
  if (!exporter->started_.load(std::memory_order_relaxed) && exporter->complaint_.empty()) {
    exporter->complaint_ = message;
  }
  return 1;  // it is not to be printed
}

int Exporter::OnMetrics(mg_connection* connection, void* self) {
  if (!MayAsk(connection)) return RefuseMethod(connection);
  auto* const exporter = static_cast<Exporter*>(self);
  const UnderWay under_way(exporter->under_way_);
  const std::string text = prometheus::TextSerializer().Serialize(exporter->source_.Collect());
  return Answer(connection, 200, "OK", kTextFormat, text);
}

int Exporter::OnHealth(mg_connection* connection, void* self) {
  if (!MayAsk(connection)) return RefuseMethod(connection);
  auto* const exporter = static_cast<Exporter*>(self);
  const UnderWay under_way(exporter->under_way_);
  const std::string trouble = exporter->source_.Trouble();
  if (trouble.empty()) return Answer(connection, 200, "OK", kPlain, "ok\n");
  return Answer(connection, 503, "Service Unavailable", kPlain, trouble + "\n");
}

int Exporter::OnOther(mg_connection* connection, void*) {
  return Answer(connection, 404, "Not Found", kPlain, "there are /metrics and /healthz\n");
}

}  // namespace metrics
