// FrontEndWorker: the connections of one worker, on its thread. Each has a coroutine while commands of it run, so that
// those of many connections share round trips; it waits for its socket otherwise.
//
// Thread safety: the worker's thread, except Give, Ask and counts().
#ifndef COMPUTENODE_FRONT_END_FRONT_END_WORKER_H_
#define COMPUTENODE_FRONT_END_FRONT_END_WORKER_H_

#include <array>
#include <atomic>
#include <boost/asio/generic/stream_protocol.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <coroutine>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>

#include "computenode/elastic/worker.h"
#include "computenode/front_end/front_end.h"
#include "computenode/redis/conversation.h"

namespace redis {

// One client: its socket and its conversation. Between workers it has a descriptor alone.
struct ClientSocket {
  ClientSocket(int fd_in, uint64_t id_in, std::string peer_in, const Settings& settings)
      : fd(fd_in), id(id_in), peer(std::move(peer_in)), conversation(settings, id_in) {}
  ~ClientSocket();
  ClientSocket(const ClientSocket&) = delete;
  ClientSocket& operator=(const ClientSocket&) = delete;

  size_t unsent() { return conversation.out().size() - sent; }

  int fd;  // -1 while `socket` owns it
  std::optional<boost::asio::generic::stream_protocol::socket> socket{};
  const uint64_t id;
  const std::string peer;  // its address
  Conversation conversation;
  Session described{};  // as CLIENT LIST has it
  size_t sent = 0;      // of conversation.out()
  uint64_t wait = 0;    // the last one for the socket: earlier ones do not count
  bool runs = false;    // commands run: nobody else touches it
  bool broken = false;
  bool moves = false;    // to another worker, as soon as no command runs
  bool lingers = false;  // everything is sent; its client is to hang up
  int64_t active_ns = 0;
};

class FrontEndWorker final : public computenode::WorkerJob {
 public:
  FrontEndWorker(FrontEnd& front_end, computenode::WorkerContext& context);
  ~FrontEndWorker() override;

  kvs::Task<void> Lane(computenode::WorkerContext& context, uint32_t lane) override;
  int64_t OnRound(computenode::WorkerContext& context) override;
  void Sleep(krcore::Clock& clock, int64_t until_ns) override;

  // ---- for the front end, which calls them under its lock, and not after the worker has left
  void Give(std::unique_ptr<ClientSocket> socket);
  // Asks it to move connections that are more than its share.
  void Ask();
  uint64_t connections = 0;  // that it has or that are on the way to it
  bool leaves = false;       // it gets no more

  // What it has done so far; the counts order nothing.
  struct Counts {
    std::atomic<uint64_t> commands{0}, errors{0}, received_bytes{0}, sent_bytes{0}, idle{0}, slow{0}, busy_ns{0};
  };
  void AddCounts(FrontEndCounts* sum) const;

 private:
  using Error = boost::system::error_code;

  void Attach(std::unique_ptr<ClientSocket> socket);
  // Begins what a connection does next. No command of it runs. It may be gone when this returns.
  void GoOn(ClientSocket& socket);
  kvs::Task<void> RunCommands(ClientSocket& socket);
  void AwaitReadable(ClientSocket& socket);
  void Receive(ClientSocket& socket);
  void AwaitWritable(ClientSocket& socket);
  void Send(ClientSocket& socket);
  void Linger(ClientSocket& socket);
  void Move(ClientSocket& socket);
  void Close(ClientSocket& socket);
  // The round begins now, if the worker has slept.
  void WakeUp();
  // Ends those that have been silent for too long.
  void Sweep();
  void AwaitSweep();
  // Returns the connection that has begun this wait and still waits; null: there is none.
  ClientSocket* Waiting(uint64_t id, uint64_t wait);

  FrontEnd& front_end_;
  computenode::WorkerContext& context_;
  boost::asio::io_context io_{1};
  const boost::asio::executor_work_guard<boost::asio::io_context::executor_type> work_ =
      boost::asio::make_work_guard(io_);
  boost::asio::steady_timer sweep_{io_}, wake_{io_};
  std::unordered_map<uint64_t, std::unique_ptr<ClientSocket>> sockets_;
  uint64_t waits_ = 0;
  bool retires_ = false;
  std::coroutine_handle<> lane_{};  // waits until the worker has nothing left
  int64_t round_ns_ = 0;            // when the last round began
  bool did_something_ = false;      // in it
  bool sleeps_ = false;
  Counts counts_;
  std::array<char, size_t{64} << 10> received_;
};

}  // namespace redis

#endif  // COMPUTENODE_FRONT_END_FRONT_END_WORKER_H_
