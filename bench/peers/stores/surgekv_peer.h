// The parts of SurgeKV's peer that other files need: its memory node, and a session over any client.
#ifndef BENCH_PEERS_STORES_SURGEKV_PEER_H_
#define BENCH_PEERS_STORES_SURGEKV_PEER_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "bench/peers/peer.h"
#include "bench/peers/stores/server_process.h"
#include "kvs/client.h"

namespace peers {

class SurgekvSession final : public Session {
 public:
  explicit SurgekvSession(std::unique_ptr<kvs::Client> client) : client_(std::move(client)) {}
  // One in flight: blocking calls. More: that many begin together, after all of those before have ended; Gets by
  // MultiGet.
  void Run(Requests& requests, uint32_t in_flight) override;
  kvs::Client& client() { return *client_; }

 private:
  std::unique_ptr<kvs::Client> client_;
};

// A memory node of a fabric, the first of which, 1, hosts its metadata server; ready, and in huge pages where the
// kernel has some. `more`: further flags.
krcore::Result<std::unique_ptr<ServerProcess>> StartMemoryNode(const std::string& fabric, uint64_t bytes,
                                                               uint32_t node = 1,
                                                               const std::vector<std::string>& more = {});
// A name that no other fabric of this machine has.
std::string UniqueFabric();

}  // namespace peers

#endif  // BENCH_PEERS_STORES_SURGEKV_PEER_H_
