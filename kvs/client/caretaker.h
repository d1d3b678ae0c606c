// Caretaker: looks after the idle clients of a store with mirrored pools, while their own threads do something else.
//
// Whoever changes a view waits for each client: until it has acknowledged, or its lease must be over; and a replica
// that joins waits for those that were expelled (docs/replication.md). An application may leave its client alone for
// hours. So one thread of each Store polls clients that nobody has called since its last round and that have nothing
// in flight: they keep their leases, and acknowledge. Clients of stores without mirrored pools need none of this.
//
// Thread safety: all methods from any thread.
#ifndef KVS_CLIENT_CARETAKER_H_
#define KVS_CLIENT_CARETAKER_H_

#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "krcore/status.h"
#include "kvs/client.h"

namespace kvs {

class ClientCore;

class Caretaker {
 public:
  // kUnavailable: the thread cannot be started.
  static Result<std::unique_ptr<Caretaker>> Start();
  // Ends the thread. The clients must have ended.
  ~Caretaker();
  // Returns the client as its user gets it: each of its calls keeps the caretaker's thread out.
  std::unique_ptr<Client> Keep(std::unique_ptr<ClientCore> client);

 private:
  class KeptClient;
  struct Kept;

  Caretaker() = default;
  void Run();

  std::mutex mutex_;
  std::condition_variable ends_;
  bool end_ = false;                         // guarded by mutex_
  std::vector<std::shared_ptr<Kept>> kept_;  // guarded by mutex_
  std::thread thread_;
};

}  // namespace kvs

#endif  // KVS_CLIENT_CARETAKER_H_
