// FrontEnd: clients of Redis, over TCP or a Unix socket, served by the workers of a fleet
// (computenode/elastic/fleet.h).
//
// One thread accepts connections. Each is given to the worker that has the fewest, and stays with it. A worker that is
// added takes over its share of the others' connections, and one that is retired hands on what it has: a connection
// moves between two commands, with whatever it has received and is still to send. While there is no worker, they wait.
//
// Thread safety: any thread, except where noted. Counts and lists are under one lock, which is taken when connections
// come, move and go, not for commands.
#ifndef COMPUTENODE_FRONT_END_FRONT_END_H_
#define COMPUTENODE_FRONT_END_FRONT_END_H_

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "cli/address.h"
#include "computenode/elastic/worker.h"
#include "computenode/redis/settings.h"
#include "krcore/status.h"

namespace redis {

struct FrontEndOptions {
  cli::Address address;
  std::string path;      // of a Unix socket, in place of the address; empty: none
  std::string password;  // empty: none is asked for
  uint32_t max_clients = 10'000;
  int64_t idle_ns = 0;             // a client that says nothing for so long is disconnected; 0: never
  krcore::Clock* clock = nullptr;  // the store's, whose time of day commands go by; null: the host's
};

struct FrontEndCounts {
  uint64_t clients = 0, waiting = 0;   // connections now, and those of them that no worker serves
  std::vector<uint64_t> of_workers{};  // those of each worker that is not retired
  // So far:
  uint64_t accepted = 0;
  uint64_t refused = 0;  // there were max_clients
  uint64_t moved = 0;    // from worker to worker
  uint64_t idle = 0;     // disconnected because they said nothing
  uint64_t slow = 0;     // ... because they did not take their replies
  uint64_t commands = 0;
  uint64_t errors = 0;  // commands with an error as reply, and protocol errors
  uint64_t received_bytes = 0, sent_bytes = 0;
  uint64_t busy_ns = 0;  // time in which workers did something, summed up over them
};

struct ClientSocket;
class FrontEndWorker;

class FrontEnd final : public computenode::Job {
 public:
  // Binds the address or path, and begins to accept. kExists: it is in use. kInvalidArgument: the path is too long.
  // kUnavailable: another failure, with its reason. A Unix socket that nobody listens on any more is replaced.
  static krcore::Result<std::unique_ptr<FrontEnd>> Listen(const FrontEndOptions& options);
  // After the workers.
  ~FrontEnd() override;

  // From now on nobody is accepted, and the connections of a worker that ends are closed instead of handed on, once the
  // replies that they have are sent.
  void Stop();
  // Where it listens, with the port that was chosen, or the path.
  const std::string& address() const { return address_; }
  FrontEndCounts Counts() const;

  // Null: the process has no descriptor left.
  std::unique_ptr<computenode::WorkerJob> StartWorker(computenode::WorkerContext& context) override;

 private:
  friend class FrontEndWorker;
  class Listener;

  explicit FrontEnd(const FrontEndOptions& options);
  // Takes over a connection that was accepted.
  void Accept(int fd, std::string peer);

  // ---- for workers

  // Adds a worker, and asks the others for its share.
  void Join(FrontEndWorker& worker);
  // The worker gets no more connections.
  void Leave(FrontEndWorker& worker);
  // The worker has ended.
  void Forget(FrontEndWorker& worker);
  // How many connections the worker has, those that are on the way to it included.
  uint64_t ConnectionsOf(const FrontEndWorker& worker) const;
  // How many it has more than its share; of one that leaves: all.
  uint64_t SurplusOf(const FrontEndWorker& worker) const;
  // Hands a connection of `from` to the worker that has the fewest.
  void Move(std::unique_ptr<ClientSocket> socket, FrontEndWorker& from);
  // A connection of `worker` has ended.
  void End(uint64_t id, FrontEndWorker& worker);
  // What CLIENT LIST says of a connection.
  void Describe(uint64_t id, std::string text);

  // Requires mutex_. `from`: the worker that it comes from; null: none.
  void Place(std::unique_ptr<ClientSocket> socket, const FrontEndWorker* from);
  std::string ListClients() const;
  std::string Info() const;

  const FrontEndOptions options_;
  const uint32_t max_clients_;
  Settings settings_;
  std::string address_;
  std::unique_ptr<Listener> listener_;
  std::thread thread_;

  std::atomic<bool> stopped_{false};

  mutable std::mutex mutex_;
  uint64_t next_id_ = 1;
  std::vector<FrontEndWorker*> workers_;  // all that have not ended
  std::vector<std::unique_ptr<ClientSocket>> waiting_;
  std::map<uint64_t, std::string> clients_;  // by id, with what CLIENT LIST says of them
  FrontEndCounts counts_;                    // of connections, and of workers that have ended
};

}  // namespace redis

#endif  // COMPUTENODE_FRONT_END_FRONT_END_H_
