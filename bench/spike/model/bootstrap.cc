#include "bench/spike/model/bootstrap.h"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <utility>

namespace spike_model {
namespace {

int64_t After(int64_t now_ns, double ns) { return now_ns + std::llround(ns); }

constexpr double kPageBytes = 4096;

}  // namespace

Bootstrap::Bootstrap(Plane plane, Spawn spawn, const Cluster& cluster, const Constants& constants,
                     uint32_t promoted_queues, uint64_t seed, Listener listener)
    : plane_(plane),
      cluster_(cluster),
      constants_(constants),
      promoted_queues_(plane == Plane::kKrcoreRc ? promoted_queues : 0),
      spawn_ns_(SpawnNs(spawn, constants)),
      register_ns_(constants.register_ns + cluster.worker_bytes / kPageBytes * constants.register_page_ns),
      handshake_ns_(1e9 / constants.handshakes_per_s),
      own_ns_(plane != Plane::kKrcoreUser
                  ? 0
                  : MakePoolNs(cluster, constants) + (spawn == Spawn::kThread ? 0 : OpenNodeNs(constants))),
      random_(seed),
      listener_(std::move(listener)),
      hosts_(cluster.hosts),
      memory_nodes_(cluster.memory_nodes) {
  for (uint32_t host = 0; host < cluster.hosts; ++host) hosts_with_room_.insert(host);
}

void Bootstrap::At(int64_t at_ns, Stage stage, uint32_t worker) { events_.push({at_ns, order_++, stage, worker}); }

int64_t Bootstrap::Turn(int64_t* free_ns, int64_t now_ns) const {
  *free_ns = After(std::max(*free_ns, now_ns), handshake_ns_);
  return *free_ns;
}

double Bootstrap::RestOfConnect(bool first) const {
  const double opened = first ? 0 : constants_.open_device_ns + constants_.create_cq_ns;
  return std::max(0.0, constants_.verbs_connect_ns - opened - 2 * handshake_ns_);
}

uint32_t Bootstrap::Place(int64_t now_ns) {
  assert(!hosts_with_room_.empty());
  const uint32_t host = *hosts_with_room_.begin();
  if (hosts_[host].workers++ == 0) ++hosts_used_;
  if (hosts_[host].workers == cluster_.cores) hosts_with_room_.erase(host);
  Worker worker;
  worker.host = host;
  worker.wanted_ns = now_ns;
  workers_.push_back(worker);
  const auto id = static_cast<uint32_t>(workers_.size() - 1);
  alive_.push_back(id);
  return id;
}

uint32_t Bootstrap::AddServing() {
  const uint32_t id = Place(0);
  Worker& worker = workers_[id];
  worker.serving = true;
  worker.connected = cluster_.memory_nodes;
  Host& host = hosts_[worker.host];
  if (plane_ == Plane::kVerbs || (plane_ == Plane::kLite && !host.connected)) connections_ += cluster_.memory_nodes;
  host.connected = true;
  host.known_ns = 0;
  for (; worker.promoted < promoted_queues_; ++worker.promoted) {
    MemoryNode& node = memory_nodes_[Peer(id, worker.promoted)];
    if (node.places == cluster_.rc_places) break;
    ++node.places;
    ++connections_;
  }
  return id;
}

uint32_t Bootstrap::Start(int64_t now_ns) {
  const uint32_t id = Place(now_ns);
  ++starting_;
  Host& host = hosts_[workers_[id].host];
  // One process of the host spawns its workers, one after the other.
  host.spawner_free_ns = After(std::max(host.spawner_free_ns, now_ns), spawn_ns_);
  At(host.spawner_free_ns, Stage::kSpawned, id);
  return id;
}

uint32_t Bootstrap::RetireYoungest(bool* was_serving) {
  const uint32_t id = alive_.back();
  alive_.pop_back();
  Worker& worker = workers_[id];
  worker.alive = false;
  *was_serving = worker.serving;
  if (!worker.serving) --starting_;
  if (plane_ == Plane::kVerbs) connections_ -= worker.connected;
  for (uint32_t nth = 0; nth < worker.promoted + (worker.promoting ? 1 : 0); ++nth)
    --memory_nodes_[Peer(id, nth)].places;
  connections_ -= worker.promoted;
  Host& host = hosts_[worker.host];
  if (--host.workers == 0) --hosts_used_;
  hosts_with_room_.insert(worker.host);
  return id;
}

void Bootstrap::Step() {
  const Event event = events_.top();
  events_.pop();
  Worker& worker = workers_[event.worker];
  // What a retired worker had begun ends here, but for connections that others wait for.
  if (!worker.alive && !worker.for_host) return;
  const int64_t now_ns = event.at_ns;
  switch (event.stage) {
    case Stage::kSpawned: return Spawned(now_ns, event.worker);
    case Stage::kHostPath: return At(Turn(&hosts_[worker.host].path_free_ns, now_ns), Stage::kNodePath, event.worker);
    case Stage::kNodePath: {
      const uint32_t nth = worker.promoting ? worker.promoted : worker.connected;
      return At(Turn(&memory_nodes_[Peer(event.worker, nth)].path_free_ns, now_ns),
                worker.promoting ? Stage::kPromoted : Stage::kConnected, event.worker);
    }
    case Stage::kConnected: return Connected(now_ns, event.worker);
    case Stage::kServing: return Serving(now_ns, event.worker);
    case Stage::kHot: return NextPromotion(now_ns, event.worker);
    case Stage::kAsk: return At(After(now_ns, RestOfConnect(false)), Stage::kHostPath, event.worker);
    case Stage::kPromoted:
      ++worker.promoted;
      ++connections_;
      ++connections_made_;
      listener_.promoted(event.worker, worker.promoted);
      return NextPromotion(now_ns, event.worker);
  }
}

void Bootstrap::Spawned(int64_t now_ns, uint32_t id) {
  Worker& worker = workers_[id];
  Host& host = hosts_[worker.host];
  const int64_t registered_ns = After(now_ns, register_ns_);
  const double peers = cluster_.memory_nodes;
  switch (plane_) {
    case Plane::kVerbs: return NextConnection(registered_ns, id);
    case Plane::kLite:
      if (host.connected) return At(After(registered_ns, peers * constants_.syscall_ns), Stage::kServing, id);
      host.waiting.push_back(id);
      if (host.connecting) return;
      host.connecting = worker.for_host = true;
      return NextConnection(registered_ns, id);
    case Plane::kKrcore:
    case Plane::kKrcoreRc:
    case Plane::kKrcoreUser: {
      // A worker that comes while the first still looks up, looks up too.
      const int64_t begin_ns = After(registered_ns, own_ns_);
      const bool cached = host.known_ns <= begin_ns;
      const int64_t end_ns = After(begin_ns, peers * (cached ? constants_.syscall_ns : constants_.lookup_ns));
      host.known_ns = std::min(host.known_ns, end_ns);
      return At(end_ns, Stage::kServing, id);
    }
  }
}

void Bootstrap::NextConnection(int64_t now_ns, uint32_t id) {
  const bool first = plane_ == Plane::kVerbs && workers_[id].connected == 0;
  At(After(now_ns, RestOfConnect(first)), Stage::kHostPath, id);
}

void Bootstrap::Connected(int64_t now_ns, uint32_t id) {
  Worker& worker = workers_[id];
  ++connections_;
  ++connections_made_;
  if (++worker.connected < cluster_.memory_nodes) return NextConnection(now_ns, id);
  if (plane_ == Plane::kVerbs) return Serving(now_ns, id);
  worker.for_host = false;
  Host& host = hosts_[worker.host];
  host.connected = true;
  const int64_t ready_ns = After(now_ns, cluster_.memory_nodes * constants_.syscall_ns);
  for (const uint32_t waiting : host.waiting) At(ready_ns, Stage::kServing, waiting);
  host.waiting.clear();
}

void Bootstrap::Serving(int64_t now_ns, uint32_t id) {
  Worker& worker = workers_[id];
  worker.serving = true;
  --starting_;
  bootstraps_ns_.push_back(now_ns - worker.wanted_ns);
  listener_.serving(id);
  if (promoted_queues_ > 0) At(After(now_ns, constants_.rc_heat_ns), Stage::kHot, id);
}

void Bootstrap::NextPromotion(int64_t now_ns, uint32_t id) {
  Worker& worker = workers_[id];
  worker.promoting = false;
  if (worker.promoted == promoted_queues_) return;
  MemoryNode& node = memory_nodes_[Peer(id, worker.promoted)];
  if (node.places == cluster_.rc_places) return;  // refused; the others of its peers are as full
  ++node.places;
  worker.promoting = true;
  listener_.stalled(id, constants_.create_qp_ns + 3 * constants_.modify_qp_ns);
  // The memory node looks at its desk once in a while.
  const double answer_ns = std::uniform_real_distribution<double>(0, constants_.rc_answer_period_ns)(random_);
  At(After(now_ns, answer_ns), Stage::kAsk, id);
}

}  // namespace spike_model
