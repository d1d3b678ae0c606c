// How workers come to serve: a discrete-event simulation of spawning, registering memory and connecting. Every
// connection takes its turn at two control paths, its host's and the memory node's, which serve handshakes one by one
// at the published rate; the rest of the published connect time passes in parallel. So a storm of connects queues where
// it would queue, and a single connect on an idle fabric takes verbs_connect_ns.
//
// Workers are packed: a host is filled before the next is used.
#ifndef BENCH_SPIKE_MODEL_BOOTSTRAP_H_
#define BENCH_SPIKE_MODEL_BOOTSTRAP_H_

#include <cstdint>
#include <functional>
#include <queue>
#include <random>
#include <set>
#include <vector>

#include "bench/spike/model/control_plane.h"

namespace spike_model {

class Bootstrap {
 public:
  // Called at the time of the event; they must not call back.
  struct Listener {
    std::function<void(uint32_t worker)> serving;
    // One more of its peers is on an RC queue of its own.
    std::function<void(uint32_t worker, uint32_t queues)> promoted;
    // The worker makes a queue itself and serves no request while it does.
    std::function<void(uint32_t worker, double ns)> stalled;
  };

  // `promoted_queues`: that each worker gets in the background (kKrcoreRc).
  Bootstrap(Plane plane, Spawn spawn, const Cluster& cluster, const Constants& constants, uint32_t promoted_queues,
            uint64_t seed, Listener listener);

  // A worker that serves already, with all that it ever gets. Returns its number.
  uint32_t AddServing();
  // Begins to start a worker on the first host with a free core. Returns its number.
  uint32_t Start(int64_t now_ns);
  // Ends the youngest worker. Returns its number; *was_serving says whether it had got so far.
  uint32_t RetireYoungest(bool* was_serving);

  // When the next event is due; INT64_MAX: none.
  int64_t next_ns() const { return events_.empty() ? INT64_MAX : events_.top().at_ns; }
  // Executes it.
  void Step();

  uint32_t workers() const { return static_cast<uint32_t>(alive_.size()); }
  uint32_t starting() const { return starting_; }
  uint64_t hosts_used() const { return hosts_used_; }
  // RC connections that exist, and that were ever made by Start()ed workers (or for their hosts).
  uint64_t connections() const { return connections_; }
  uint64_t connections_made() const { return connections_made_; }
  // From Start() until it serves, of those that do, in the order in which they came.
  const std::vector<int64_t>& bootstraps_ns() const { return bootstraps_ns_; }

 private:
  enum class Stage : uint8_t { kSpawned, kHostPath, kNodePath, kConnected, kServing, kHot, kAsk, kPromoted };
  struct Event {
    int64_t at_ns;
    uint64_t order;
    Stage stage;
    uint32_t worker;
    bool operator>(const Event& other) const {
      return at_ns != other.at_ns ? at_ns > other.at_ns : order > other.order;
    }
  };
  struct Worker {
    uint32_t host = 0;
    int64_t wanted_ns = 0;
    bool alive = true, serving = false, promoting = false;
    bool for_host = false;   // its connections are the host's (lite)
    uint32_t connected = 0;  // peers
    uint32_t promoted = 0;
  };
  struct Host {
    int64_t spawner_free_ns = 0, path_free_ns = 0;
    uint32_t workers = 0;
    bool connected = false;        // to all memory nodes (lite)
    int64_t known_ns = INT64_MAX;  // when all peers' metadata is cached (krcore)
    bool connecting = false;
    std::vector<uint32_t> waiting;  // workers that wait for the host's connections
  };
  struct MemoryNode {
    int64_t path_free_ns = 0;
    uint32_t places = 0;  // taken
  };

  uint32_t Place(int64_t now_ns);
  void At(int64_t at_ns, Stage stage, uint32_t worker);
  void Spawned(int64_t now_ns, uint32_t id);
  void NextConnection(int64_t now_ns, uint32_t id);
  void Connected(int64_t now_ns, uint32_t id);
  void Serving(int64_t now_ns, uint32_t id);
  void NextPromotion(int64_t now_ns, uint32_t id);
  uint32_t Peer(uint32_t worker, uint32_t nth) const { return (worker + nth) % cluster_.memory_nodes; }
  // When a handshake that comes now has had its turn.
  int64_t Turn(int64_t* free_ns, int64_t now_ns) const;
  // What a connect takes in addition to its turns at the two control paths. `first`: it is the first of its process,
  // which opens the device then.
  double RestOfConnect(bool first) const;

  const Plane plane_;
  const Cluster cluster_;
  const Constants constants_;
  const uint32_t promoted_queues_;
  const double spawn_ns_, register_ns_, handshake_ns_;
  const double own_ns_;  // what a worker makes for itself before it connects (kKrcoreUser)
  std::mt19937_64 random_;
  const Listener listener_;
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
  uint64_t order_ = 0;
  std::vector<Worker> workers_;
  std::vector<uint32_t> alive_;  // numbers, oldest first
  std::vector<Host> hosts_;
  std::vector<MemoryNode> memory_nodes_;
  std::set<uint32_t> hosts_with_room_;
  uint32_t starting_ = 0;
  uint64_t hosts_used_ = 0, connections_ = 0, connections_made_ = 0;
  std::vector<int64_t> bootstraps_ns_;
};

}  // namespace spike_model

#endif  // BENCH_SPIKE_MODEL_BOOTSTRAP_H_
