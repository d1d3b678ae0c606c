#include "computenode/front_end/front_end.h"

#include <glog/logging.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cerrno>
#include <chrono>
#include <string_view>
#include <utility>

#include "computenode/front_end/front_end_worker.h"
#include "computenode/redis/command.h"
#include "krcore/base/os.h"
#include "krcore/resources.h"

namespace redis {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;
using krcore::Result;
using krcore::Status;
using krcore::StatusCode;

constexpr std::chrono::milliseconds kPause(100);  // before descriptors are tried again, if none is left
constexpr rlim_t kOtherDescriptors = 1024;        // of the process, those of clients aside: a worker has three
constexpr int kKeepIdleS = 300;                   // a client's host that has gone without a word is noticed after that

// Returns how many clients there can be, at most options.max_clients. Raises the limit of descriptors as far as it may.
uint32_t MostClients(const FrontEndOptions& options) {
  const rlim_t wanted = options.max_clients + kOtherDescriptors;
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= wanted) return options.max_clients;
  limit.rlim_cur = std::min(wanted, limit.rlim_max);
  if (setrlimit(RLIMIT_NOFILE, &limit) != 0) (void)getrlimit(RLIMIT_NOFILE, &limit);
  if (limit.rlim_cur >= wanted) return options.max_clients;
  const rlim_t most = limit.rlim_cur > 2 * kOtherDescriptors ? limit.rlim_cur - kOtherDescriptors : limit.rlim_cur / 2;
  LOG(WARNING) << "at most " << most << " clients of Redis at a time, because of" << krcore::LimitsOf(EMFILE);
  return static_cast<uint32_t>(most);
}

std::string PeerOf(int fd) {
  tcp::endpoint peer;
  auto length = static_cast<socklen_t>(peer.capacity());
  if (getpeername(fd, peer.data(), &length) != 0) return "?";
  if (peer.data()->sa_family != AF_INET && peer.data()->sa_family != AF_INET6) return "unix";
  const std::string host = peer.address().to_string();
  return (peer.address().is_v6() ? "[" + host + "]" : host) + ":" + std::to_string(peer.port());
}

bool IsSocket(const std::string& path) {
  struct stat found {};
  return lstat(path.c_str(), &found) == 0 && S_ISSOCK(found.st_mode);
}

// Returns whether the path is a Unix socket that nobody listens on.
bool IsLeftBehind(const sockaddr_un& at) {
  if (!IsSocket(at.sun_path)) return false;
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  const bool refused =
      fd >= 0 && connect(fd, reinterpret_cast<const sockaddr*>(&at), sizeof(at)) != 0 && errno == ECONNREFUSED;
  if (fd >= 0) close(fd);
  return refused;
}

// As cli::ListenAt, on a Unix socket. kInvalidArgument: the path is too long, or of something else.
Result<int> ListenOn(const std::string& path) {
  sockaddr_un at{.sun_family = AF_UNIX, .sun_path = {}};
  if (path.size() >= sizeof(at.sun_path)) {
    return Status(StatusCode::kInvalidArgument, "--redis=" + path + ": the path is too long for a Unix socket");
  }
  path.copy(at.sun_path, path.size());
  const int fd = krcore::AboveStandard(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const auto binds = [&] { return bind(fd, reinterpret_cast<const sockaddr*>(&at), sizeof(at)) == 0; };
  bool bound = fd >= 0 && binds();
  if (fd >= 0 && !bound && errno == EADDRINUSE) {
    const bool left_behind = IsLeftBehind(at);
    if (left_behind) unlink(at.sun_path);
    errno = EADDRINUSE;
    bound = left_behind && binds();
  }
  if (bound && listen(fd, SOMAXCONN) == 0) return fd;
  const int errnum = errno;
  if (fd >= 0) close(fd);
  if (errnum == EADDRINUSE && !IsSocket(path)) {
    return Status(StatusCode::kInvalidArgument, "--redis=" + path + ": it exists, and is no socket");
  }
  return cli::ListenFailed(errnum, "--redis=" + path);
}

}  // namespace

// ---- the listener

class FrontEnd::Listener {
 public:
  explicit Listener(FrontEnd& front_end) : front_end_(front_end) {}
  ~Listener() { RemovePath(); }

  // Returns where it listens.
  Result<std::string> Listen(const FrontEndOptions& options) {
    cli::Address address = options.address;
    const Result<int> fd = options.path.empty() ? cli::ListenAt(&address, "--redis") : ListenOn(options.path);
    if (!fd.ok()) return fd.status();
    path_ = options.path;
    error_code error;
    listening_.assign(*fd, error);
    if (!error) return path_.empty() ? address.ToString() : path_;
    close(*fd);
    return cli::ListenFailed(error.value(), "--redis");
  }

  void Run() {
    AwaitClient();
    io_.run();
  }
  void Stop() {
    asio::post(io_, [this] {
      error_code none;
      RemovePath();  // first: when nobody listens on it, another program may make its own
      listening_.close(none);
      pause_.cancel();
      io_.stop();
    });
  }

 private:
  void RemovePath() {
    if (!path_.empty()) unlink(std::exchange(path_, {}).c_str());
  }

  void AwaitClient() {
    listening_.async_wait(asio::posix::stream_descriptor::wait_read, [this](const error_code& error) {
      if (error) return;
      const int fd =
          krcore::AboveStandard(accept4(listening_.native_handle(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
      if (fd >= 0) {
        front_end_.Accept(fd, PeerOf(fd));
      } else if (errno != ECONNABORTED && errno != EINTR && errno != EAGAIN) {
        pause_.expires_after(kPause);
        return pause_.async_wait([this](const error_code& ended) {
          if (!ended) AwaitClient();
        });
      }
      AwaitClient();
    });
  }

  FrontEnd& front_end_;
  asio::io_context io_{1};
  asio::posix::stream_descriptor listening_{io_};
  asio::steady_timer pause_{io_};
  std::string path_;  // to be removed
};

// ---- the front end

FrontEnd::FrontEnd(const FrontEndOptions& options) : options_(options), max_clients_(MostClients(options)) {
  settings_.password = options.password;
  settings_.clock = options.clock;
  settings_.info = [this] { return Info(); };
  settings_.client_list = [this] { return ListClients(); };
}

Result<std::unique_ptr<FrontEnd>> FrontEnd::Listen(const FrontEndOptions& options) {
  std::unique_ptr<FrontEnd> front_end(new FrontEnd(options));
  krcore::HoldStandard();
  try {
    front_end->listener_ = std::make_unique<Listener>(*front_end);
  } catch (const boost::system::system_error& error) {
    const Status status = Status::FromErrno(error.code().value(), "--redis");
    return Status(StatusCode::kUnavailable, std::string(status.message()));
  }
  Result<std::string> address = front_end->listener_->Listen(options);
  if (!address.ok()) return address.status();
  front_end->address_ = *std::move(address);
  auto thread = krcore::StartServiceThread("redis", [listener = front_end->listener_.get()] { listener->Run(); });
  if (!thread.ok()) return thread.status();
  front_end->thread_ = *std::move(thread);
  return front_end;
}

FrontEnd::~FrontEnd() { Stop(); }

void FrontEnd::Stop() {
  {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
    for (const auto& socket : waiting_) clients_.erase(socket->id);
    waiting_.clear();
  }
  if (!thread_.joinable()) return;
  listener_->Stop();
  thread_.join();
  listener_.reset();
}

std::unique_ptr<computenode::WorkerJob> FrontEnd::StartWorker(computenode::WorkerContext& context) {
  try {
    return std::make_unique<FrontEndWorker>(*this, context);
  } catch (const boost::system::system_error&) {  // of its event loop
    return nullptr;
  }
}

void FrontEnd::Accept(int fd, std::string peer) {
  // They fail where they mean nothing, on a Unix socket.
  const int yes = 1;
  (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof(yes));
  (void)setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &yes, sizeof(yes));
  (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &kKeepIdleS, sizeof(kKeepIdleS));
  const std::lock_guard lock(mutex_);
  if (clients_.size() >= max_clients_) {
    ++counts_.refused;
    constexpr std::string_view kFull = "-ERR max number of clients reached\r\n";
    (void)!send(fd, kFull.data(), kFull.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    close(fd);
    return;
  }
  ++counts_.accepted;
  const uint64_t id = next_id_++;
  clients_.emplace(id, "addr=" + peer + " id=" + std::to_string(id));
  Place(std::make_unique<ClientSocket>(fd, id, std::move(peer), settings_), nullptr);
}

// ---- for workers

void FrontEnd::Place(std::unique_ptr<ClientSocket> socket, const FrontEndWorker* from) {
  FrontEndWorker* least = nullptr;
  for (FrontEndWorker* const worker : workers_) {
    if (!worker->leaves && (least == nullptr || worker->connections < least->connections)) least = worker;
  }
  if (least != nullptr) {
    if (from != nullptr && least != from) ++counts_.moved;
    ++least->connections;
    least->Give(std::move(socket));
  } else if (stopped_) {
    clients_.erase(socket->id);
  } else {
    waiting_.push_back(std::move(socket));
  }
}

void FrontEnd::Join(FrontEndWorker& worker) {
  const std::lock_guard lock(mutex_);
  workers_.push_back(&worker);
  for (auto& socket : std::exchange(waiting_, {})) Place(std::move(socket), nullptr);
  for (FrontEndWorker* const one : workers_) {
    if (one != &worker && !one->leaves) one->Ask();
  }
}

void FrontEnd::Leave(FrontEndWorker& worker) {
  const std::lock_guard lock(mutex_);
  worker.leaves = true;
}

void FrontEnd::Forget(FrontEndWorker& worker) {
  const std::lock_guard lock(mutex_);
  std::erase(workers_, &worker);
  worker.AddCounts(&counts_);
}

uint64_t FrontEnd::ConnectionsOf(const FrontEndWorker& worker) const {
  const std::lock_guard lock(mutex_);
  return worker.connections;
}

uint64_t FrontEnd::SurplusOf(const FrontEndWorker& worker) const {
  const std::lock_guard lock(mutex_);
  if (worker.leaves) return worker.connections;
  uint64_t connections = 0, workers = 0;
  for (const FrontEndWorker* const one : workers_) {
    if (one->leaves) continue;
    connections += one->connections;
    ++workers;
  }
  const uint64_t share = (connections + workers - 1) / workers;
  return worker.connections - std::min(worker.connections, share);
}

void FrontEnd::Move(std::unique_ptr<ClientSocket> socket, FrontEndWorker& from) {
  const std::lock_guard lock(mutex_);
  --from.connections;
  Place(std::move(socket), &from);
}

void FrontEnd::End(uint64_t id, FrontEndWorker& worker) {
  const std::lock_guard lock(mutex_);
  --worker.connections;
  clients_.erase(id);
}

void FrontEnd::Describe(uint64_t id, std::string text) {
  const std::lock_guard lock(mutex_);
  clients_[id] = std::move(text);
}

// ---- what it tells

FrontEndCounts FrontEnd::Counts() const {
  const std::lock_guard lock(mutex_);
  FrontEndCounts counts = counts_;
  counts.clients = clients_.size();
  counts.waiting = waiting_.size();
  for (const FrontEndWorker* const worker : workers_) {
    worker->AddCounts(&counts);
    if (!worker->leaves) counts.of_workers.push_back(worker->connections);
  }
  return counts;
}

std::string FrontEnd::ListClients() const {
  const std::lock_guard lock(mutex_);
  std::string text;
  for (const auto& [id, description] : clients_) text += description + "\n";
  return text;
}

std::string FrontEnd::Info() const {
  const FrontEndCounts counts = Counts();
  const auto line = [](std::string_view name, uint64_t value) {
    return std::string(name) + ":" + std::to_string(value) + "\r\n";
  };
  return "process_id:" + std::to_string(getpid()) + "\r\n\r\n# Clients\r\n" +
         line("connected_clients", counts.clients) + line("maxclients", max_clients_) + "\r\n# Stats\r\n" +
         line("total_connections_received", counts.accepted) + line("rejected_connections", counts.refused) +
         line("total_commands_processed", counts.commands) + line("total_error_replies", counts.errors) +
         line("total_net_input_bytes", counts.received_bytes) + line("total_net_output_bytes", counts.sent_bytes);
}

}  // namespace redis
