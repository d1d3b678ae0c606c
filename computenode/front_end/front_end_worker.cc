#include "computenode/front_end/front_end_worker.h"

#include <unistd.h>

#include <algorithm>
#include <boost/asio/buffer.hpp>
#include <boost/asio/post.hpp>
#include <chrono>
#include <cstring>
#include <string_view>
#include <utility>
#include <vector>

#include "krcore/clock.h"

namespace redis {
namespace {

namespace asio = boost::asio;
using asio::generic::stream_protocol;
using computenode::WorkerContext;

constexpr auto kOrder = std::memory_order_relaxed;
constexpr std::chrono::seconds kSweep(1);
constexpr int kHandlersPerRound = 16;            // then the store has its turn
constexpr int64_t kSlowNs = 60'000'000'000;      // for a client to take some of its replies
constexpr int64_t kLingerNs = 2'000'000'000;     // for a client to hang up after its last reply
constexpr size_t kKeptBytes = size_t{64} << 10;  // what a connection may keep allocated for replies

// Opens a socket of the protocol's kind over a descriptor.
stream_protocol ProtocolOf(int fd) {
  int family = 0;
  socklen_t length = sizeof(family);
  (void)getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &family, &length);
  return {family, 0};
}

}  // namespace

ClientSocket::~ClientSocket() {
  if (fd >= 0) close(fd);
}

FrontEndWorker::FrontEndWorker(FrontEnd& front_end, WorkerContext& context)
    : front_end_(front_end), context_(context), round_ns_(context.clock().NowNs()) {
  AwaitSweep();
  front_end_.Join(*this);
}

FrontEndWorker::~FrontEndWorker() { front_end_.Forget(*this); }

// ---- the worker's rounds

kvs::Task<void> FrontEndWorker::Lane(WorkerContext&, uint32_t lane) {
  if (lane != 0) co_return;
  struct UntilEmpty {
    FrontEndWorker& worker;
    bool await_ready() const noexcept { return false; }
    void await_suspend(std::coroutine_handle<> lane) { worker.lane_ = lane; }
    void await_resume() const noexcept {}
  };
  co_await UntilEmpty{*this};
}

int64_t FrontEndWorker::OnRound(WorkerContext& context) {
  const int64_t now_ns = context.clock().NowNs();
  if (did_something_) counts_.busy_ns.fetch_add(static_cast<uint64_t>(now_ns - round_ns_), kOrder);
  round_ns_ = now_ns;
  did_something_ = false;
  for (int handlers = 0; handlers < kHandlersPerRound && io_.poll_one() > 0; ++handlers) {
  }
  if (!context.retiring()) return kNever;
  if (!retires_) {
    retires_ = true;
    front_end_.Leave(*this);
    Ask();
  }
  if (lane_ && front_end_.ConnectionsOf(*this) == 0) kvs::RunQueue::OfThisThread().Push(std::exchange(lane_, {}));
  return kNever;
}

void FrontEndWorker::Sleep(krcore::Clock& clock, int64_t until_ns) {
  sleeps_ = true;
  // A timer ends on time; run_one_for would sleep for whole milliseconds.
  wake_.expires_after(std::chrono::nanoseconds(std::max<int64_t>(until_ns - clock.NowNs(), 0)));
  wake_.async_wait([](const Error&) {});
  io_.run_one();
  wake_.cancel();
  WakeUp();
}

void FrontEndWorker::WakeUp() {
  if (sleeps_) round_ns_ = context_.clock().NowNs();
  sleeps_ = false;
}

// ---- connections come and go

void FrontEndWorker::Give(std::unique_ptr<ClientSocket> socket) {
  asio::post(io_, [this, socket = std::move(socket)]() mutable { Attach(std::move(socket)); });
}

void FrontEndWorker::Ask() {
  asio::post(io_, [this] {
    uint64_t connections = front_end_.SurplusOf(*this);
    for (const auto& [id, socket] : sockets_) {
      if (socket->moves && connections > 0) --connections;
    }
    std::vector<ClientSocket*> asked;
    for (const auto& [id, socket] : sockets_) {
      if (asked.size() == connections) break;
      if (!socket->moves) asked.push_back(socket.get());
    }
    for (ClientSocket* const socket : asked) {
      socket->moves = true;
      if (!socket->runs) GoOn(*socket);
    }
  });
}

void FrontEndWorker::Attach(std::unique_ptr<ClientSocket> socket) {
  ClientSocket& attached = *socket;
  sockets_.emplace(attached.id, std::move(socket));
  Error error;
  attached.socket.emplace(io_);
  const int fd = std::exchange(attached.fd, -1);
  (void)attached.socket->assign(ProtocolOf(fd), fd, error);
  if (error) close(fd);
  if (!error) attached.socket->non_blocking(true, error);
  attached.broken = static_cast<bool>(error);
  attached.moves = retires_;
  attached.active_ns = round_ns_;
  GoOn(attached);
}

void FrontEndWorker::Move(ClientSocket& socket) {
  auto node = sockets_.extract(socket.id);
  Error error;
  socket.fd = socket.socket->release(error);
  socket.socket.reset();
  if (error) return front_end_.End(socket.id, *this);
  socket.moves = false;
  front_end_.Move(std::move(node.mapped()), *this);
}

void FrontEndWorker::Close(ClientSocket& socket) {
  const uint64_t id = socket.id;
  sockets_.erase(id);
  front_end_.End(id, *this);
}

ClientSocket* FrontEndWorker::Waiting(uint64_t id, uint64_t wait) {
  const auto found = sockets_.find(id);
  return found != sockets_.end() && found->second->wait == wait && !found->second->runs ? found->second.get() : nullptr;
}

void FrontEndWorker::AddCounts(FrontEndCounts* sum) const {
  sum->commands += counts_.commands.load(kOrder);
  sum->errors += counts_.errors.load(kOrder);
  sum->received_bytes += counts_.received_bytes.load(kOrder);
  sum->sent_bytes += counts_.sent_bytes.load(kOrder);
  sum->idle += counts_.idle.load(kOrder);
  sum->slow += counts_.slow.load(kOrder);
  sum->busy_ns += counts_.busy_ns.load(kOrder);
}

void FrontEndWorker::Sweep() {
  std::vector<ClientSocket*> silent;
  for (const auto& [id, socket] : sockets_) {
    if (socket->runs) continue;
    const int64_t silent_ns = round_ns_ - socket->active_ns;
    if (socket->lingers) {
      if (silent_ns > kLingerNs) silent.push_back(socket.get());
    } else if (socket->unsent() > 0) {
      if (silent_ns <= (front_end_.stopped_ ? kLingerNs : kSlowNs)) continue;
      counts_.slow.fetch_add(1, kOrder);
      silent.push_back(socket.get());
    } else if (front_end_.options_.idle_ns > 0 && silent_ns > front_end_.options_.idle_ns) {
      counts_.idle.fetch_add(1, kOrder);
      silent.push_back(socket.get());
    }
  }
  for (ClientSocket* const socket : silent) Close(*socket);
}

void FrontEndWorker::AwaitSweep() {
  sweep_.expires_after(kSweep);
  sweep_.async_wait([this](const Error& error) {
    if (error) return;
    Sweep();
    AwaitSweep();
  });
}

// ---- one connection

void FrontEndWorker::GoOn(ClientSocket& socket) {
  if (socket.broken) return Close(socket);
  // At the end of the front end nobody else will send what is left.
  if (socket.moves && (socket.unsent() == 0 || !front_end_.stopped_)) return Move(socket);
  if (socket.unsent() > 0) return AwaitWritable(socket);
  switch (socket.conversation.state()) {
    case Conversation::State::kNeedsInput: return AwaitReadable(socket);
    case Conversation::State::kHasMore: return context_.client().Spawn(RunCommands(socket));
    case Conversation::State::kOver: return Linger(socket);
  }
}

kvs::Task<void> FrontEndWorker::RunCommands(ClientSocket& socket) {
  Conversation& conversation = socket.conversation;
  socket.runs = true;
  context_.NoteBegin();
  for (;;) {
    const uint64_t commands = conversation.commands(), errors = conversation.errors();
    co_await conversation.Run(context_.client());
    did_something_ = true;
    counts_.commands.fetch_add(conversation.commands() - commands, kOrder);
    counts_.errors.fetch_add(conversation.errors() - errors, kOrder);
    if (!(socket.described == conversation.session())) {
      socket.described = conversation.session();
      front_end_.Describe(socket.id, "addr=" + socket.peer + " " + DescribeSession(socket.described));
    }
    Send(socket);
    const bool more = conversation.state() == Conversation::State::kHasMore;
    if (!more || socket.unsent() > 0 || socket.broken || socket.moves) break;
    co_await context_.Yield();  // to other connections
  }
  context_.NoteReply();
  socket.runs = false;
  GoOn(socket);
}

void FrontEndWorker::AwaitReadable(ClientSocket& socket) {
  socket.wait = ++waits_;
  const auto receive = [this, id = socket.id, wait = waits_](const Error& error) {
    ClientSocket* const found = error ? nullptr : Waiting(id, wait);
    if (found != nullptr) Receive(*found);
  };
  socket.socket->async_wait(stream_protocol::socket::wait_read, receive);
}

void FrontEndWorker::Receive(ClientSocket& socket) {
  WakeUp();
  did_something_ = true;
  Error error;
  const size_t length = socket.socket->read_some(asio::buffer(received_), error);
  if (error == asio::error::would_block) return AwaitReadable(socket);
  if (error) return Close(socket);
  if (socket.lingers) return AwaitReadable(socket);
  counts_.received_bytes.fetch_add(length, kOrder);
  socket.active_ns = round_ns_;
  socket.conversation.Append({received_.data(), length});
  GoOn(socket);
}

void FrontEndWorker::AwaitWritable(ClientSocket& socket) {
  socket.wait = ++waits_;
  const auto send = [this, id = socket.id, wait = waits_](const Error& error) {
    ClientSocket* const found = error ? nullptr : Waiting(id, wait);
    if (found == nullptr) return;
    Send(*found);
    GoOn(*found);
  };
  socket.socket->async_wait(stream_protocol::socket::wait_write, send);
}

void FrontEndWorker::Send(ClientSocket& socket) {
  std::string& out = socket.conversation.out();
  while (socket.unsent() > 0) {
    Error error;
    const size_t length = socket.socket->write_some(asio::buffer(std::string_view(out).substr(socket.sent)), error);
    if (error == asio::error::would_block) return;
    if (error) {
      socket.broken = true;
      return;
    }
    counts_.sent_bytes.fetch_add(length, kOrder);
    socket.active_ns = round_ns_;
    socket.sent += length;
  }
  socket.sent = 0;
  out.clear();
  if (out.capacity() > kKeptBytes) out = std::string();
}

// If we closed while something from the client is unread, our reset could overtake the last reply.
void FrontEndWorker::Linger(ClientSocket& socket) {
  Error error;
  (void)socket.socket->shutdown(stream_protocol::socket::shutdown_send, error);
  if (error) return Close(socket);
  socket.lingers = true;
  socket.active_ns = round_ns_;
  AwaitReadable(socket);
}

}  // namespace redis
