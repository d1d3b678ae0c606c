#include "metrics/exporter.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <unistd.h>

#include <array>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <boost/beast/http.hpp>
#include <cerrno>
#include <chrono>
#include <list>
#include <optional>
#include <string_view>
#include <utility>

#include "krcore/base/os.h"
#include "krcore/resources.h"

namespace metrics {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
using asio::ip::tcp;
using boost::system::error_code;
using krcore::Result;
using krcore::Status;
using krcore::StatusCode;
using Response = http::response<http::string_body>;

constexpr char kTextFormat[] = "text/plain; version=0.0.4; charset=utf-8";
constexpr char kPlain[] = "text/plain; charset=utf-8";
constexpr size_t kMostConnections = 64;
constexpr size_t kMostRequestBytes = 8192;
constexpr std::chrono::seconds kPatience(2);           // for a client to ask, to take its answer, and to hang up
constexpr std::chrono::milliseconds kUnreadGrace(20);  // to read a request that came before the end
constexpr std::chrono::milliseconds kPause(100);       // before descriptors are tried again, if none is left

Response Answer(http::status status, const char* type, std::string body) {
  Response response(status, 11);
  response.set(http::field::content_type, type);
  response.keep_alive(false);
  response.body() = std::move(body);
  response.prepare_payload();
  return response;
}

Response AnswerTo(const http::request<http::empty_body>& request, const Source& source) {
  const auto target = request.target();
  const auto path = target.substr(0, target.find('?'));
  if (path != "/metrics" && path != "/healthz")
    return Answer(http::status::not_found, kPlain, "not found; this server has /metrics and /healthz\n");
  if (request.method() != http::verb::get && request.method() != http::verb::head)
    return Answer(http::status::method_not_allowed, kPlain, "method not allowed; use GET\n");
  if (path == "/metrics") return Answer(http::status::ok, kTextFormat, source.Collect());
  const std::string trouble = source.Trouble();
  if (!trouble.empty()) return Answer(http::status::service_unavailable, kPlain, trouble + "\n");
  const std::string remark = source.Remark();
  return Answer(http::status::ok, kPlain, remark.empty() ? "ok\n" : "ok: " + remark + "\n");
}

// Returns the answer to something that is no request. Nothing: the client has hung up, or said nothing in time.
std::optional<Response> AnswerTo(const error_code& error) {
  if (error == http::error::header_limit || error == http::error::buffer_overflow)
    return Answer(http::status::request_header_fields_too_large, kPlain, "the request is too long\n");
  if (error == http::error::end_of_stream || error == http::error::partial_message) return {};
  if (error.category() != make_error_code(http::error::bad_method).category()) return {};
  return Answer(http::status::bad_request, kPlain, "not an HTTP request\n");
}

// One client, from its connection to its end. Lives as long as one of its operations is under way.
class Connection : public std::enable_shared_from_this<Connection> {
 public:
  Connection(tcp::socket socket, const Source& source) : stream_(std::move(socket)), source_(source) {
    parser_.header_limit(kMostRequestBytes);
    stream_.expires_after(kPatience);
  }

  void Serve() {
    http::async_read_header(stream_, buffer_, parser_, [self = shared_from_this()](const error_code& error, size_t) {
      std::optional<Response> response = error ? AnswerTo(error) : AnswerTo(self->parser_.get(), self->source_);
      if (response) self->Send(*std::move(response));
    });
  }
  bool has_asked() const { return response_.has_value(); }
  void Close() { stream_.close(); }

 private:
  void Send(Response response) {
    if (parser_.get().method() == http::verb::head) response.body().clear();  // the length stays
    response_ = std::move(response);
    http::async_write(stream_, *response_, [self = shared_from_this()](const error_code& error, size_t) {
      error_code ignored;
      self->stream_.socket().shutdown(tcp::socket::shutdown_send, ignored);
      if (!error) self->AwaitHangUp();
    });
  }
  // If we closed before everything from the client was read, our reset could overtake the answer.
  void AwaitHangUp() {
    stream_.async_read_some(asio::buffer(rest_), [self = shared_from_this()](const error_code& error, size_t) {
      if (!error) self->AwaitHangUp();
    });
  }

  beast::tcp_stream stream_;
  const Source& source_;
  beast::flat_buffer buffer_{2 * kMostRequestBytes};
  http::request_parser<http::empty_body> parser_;
  std::optional<Response> response_;
  std::array<char, 4096> rest_{};
};

}  // namespace

cli::Address ReachableAddress(const cli::Address& listening) {
  if (listening.host != "0.0.0.0" && listening.host != "::") return listening;
  cli::Address reachable = listening;
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
      if (!IN6_IS_ADDR_LINKLOCAL(&address)) bytes = &address;  // such an address means something on its link only
    }
    if (bytes == nullptr) continue;
    inet_ntop(entry->ifa_addr->sa_family, bytes, host.data(), host.size());
    reachable.host = host.data();
    return reachable;
  }
  return reachable;
}

class Exporter::Server {
 public:
  explicit Server(const Source& source) : source_(source) {}
  ~Server() {
    if (spare_ >= 0) close(spare_);
  }

  // Sets the port that was chosen.
  Status Listen(cli::Address* address) {
    const Result<int> fd = cli::ListenAt(address, "--metrics");
    if (!fd.ok()) return fd.status();
    error_code error;
    acceptor_.assign(address->v6 ? tcp::v6() : tcp::v4(), *fd, error);
    if (error) close(*fd);
    if (!error) KeepSpare();
    if (error || spare_ < 0)
      return cli::ListenFailed(error ? error.value() : errno, "--metrics=" + address->ToString());
    Accept();
    return {};
  }

  void Run() { io_.run(); }

  // Called from another thread. Clients that have asked by now still get an answer.
  void Stop() {
    asio::post(io_, [this] {
      error_code none;
      acceptor_.non_blocking(true, none);
      for (;;) {
        tcp::socket socket = acceptor_.accept(none);
        if (none) break;
        Take(std::move(socket));
      }
      acceptor_.close(none);
      pause_.expires_after(kUnreadGrace);
      pause_.async_wait([this](const error_code&) {
        for (const auto& connection : connections_) {
          const auto living = connection.lock();
          if (living && !living->has_asked()) living->Close();
        }
      });
    });
  }

 private:
  void Accept() {
    acceptor_.async_accept([this](const error_code& error, tcp::socket socket) {
      if (!acceptor_.is_open()) {
        if (!error) Take(std::move(socket));  // it came just before the end
        return;
      }
      if (!error) {
        Take(std::move(socket));
      } else if (error != asio::error::connection_aborted && !(error == asio::error::no_descriptors && MakeRoom())) {
        pause_.expires_after(kPause);
        return pause_.async_wait([this](const error_code&) {
          if (acceptor_.is_open()) Accept();
        });
      }
      Accept();
    });
  }

  void Take(tcp::socket socket) {
    std::erase_if(connections_, [](const auto& connection) { return connection.expired(); });
    if (connections_.size() == kMostConnections) CloseOldest();
    const auto connection = std::make_shared<Connection>(std::move(socket), source_);
    connections_.push_back(connection);
    connection->Serve();
    KeepSpare();
  }

  // An answer takes microseconds, so the client that has been there longest is a silent one.
  void CloseOldest() {
    if (const auto living = connections_.front().lock()) living->Close();
    connections_.pop_front();
  }

  // Frees a descriptor for the next client when the process has none left. False: nothing can be given up.
  bool MakeRoom() {
    std::erase_if(connections_, [](const auto& connection) { return connection.expired(); });
    if (!connections_.empty()) {
      CloseOldest();
      return true;
    }
    if (spare_ < 0) KeepSpare();
    if (spare_ < 0) return false;
    close(std::exchange(spare_, -1));
    return true;
  }

  void KeepSpare() {
    if (spare_ < 0) spare_ = fcntl(acceptor_.native_handle(), F_DUPFD_CLOEXEC, krcore::kFirstDescriptor);
  }

  const Source& source_;
  asio::io_context io_{1};
  tcp::acceptor acceptor_{io_};
  asio::steady_timer pause_{io_};
  std::list<std::weak_ptr<Connection>> connections_;  // in the order in which they came
  int spare_ = -1;
};

Result<std::unique_ptr<Exporter>> Exporter::Start(const cli::Address& address, const Source& source) {
  std::unique_ptr<Exporter> exporter(new Exporter(address));
  krcore::HoldStandard();
  try {
    exporter->server_ = std::make_unique<Server>(source);
  } catch (const boost::system::system_error& error) {
    const Status status = Status::FromErrno(error.code().value(), "--metrics");
    return Status(StatusCode::kUnavailable, std::string(status.message()));
  }
  if (const Status status = exporter->server_->Listen(&exporter->address_); !status.ok()) return status;
  auto thread = krcore::StartServiceThread("metrics", [server = exporter->server_.get()] { server->Run(); });
  if (!thread.ok()) return Status(thread.status().code(), "--metrics: " + std::string(thread.status().message()));
  exporter->thread_ = *std::move(thread);
  return exporter;
}

Exporter::Exporter(cli::Address address) : address_(std::move(address)) {}

Exporter::~Exporter() {
  if (!thread_.joinable()) return;
  server_->Stop();
  thread_.join();
}

}  // namespace metrics
