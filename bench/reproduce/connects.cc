// Figures "many_to_one" and "full_mesh": workers that connect at the same time, to one node and to each other.
//
// A thread of a warm process has its process's Node (krcore, lite), which has connected to the peer before; a fresh
// process and every worker of verbs have none. What a worker takes is counted from when it runs until its last queue is
// connected: `open` (device, pool), `datagrams` (a UD QP for the exchange, which stands for the kernel's connection
// manager) and `connect`. When all are connected, each READs from every peer, looks at what it got, and ends: no READ
// and no end of a worker is in what another one takes.
#include <algorithm>
#include <barrier>
#include <iostream>
#include <thread>

#include "bench/reproduce/report.h"
#include "bench/reproduce/roles.h"

namespace reproduce {
namespace {

constexpr uint64_t kPeerSeed = 42;
constexpr uint64_t kPeerBytes = 1 << 12;
constexpr size_t kLookBytes = 64;
constexpr NodeId kFirstMeshNode = 2;

// One worker's connects, as its process says it: begin, end, open, datagrams, and each connect, in ns.
using Times = std::vector<int64_t>;
enum : size_t { kBegin, kEnd, kOpen, kDatagrams, kFirstConnect };

bool OwnNode(const std::string& plane) { return plane == "verbs"; }

uint64_t SeedOf(NodeId node) { return kPeerSeed + node; }

// Connects a new worker to the peers. Calls `all_connected` with what that took, and READs from the peers when it
// returns.
Times ConnectTo(const std::string& plane, const std::string& fabric, Node* shared, const std::vector<NodeId>& peers,
                const std::function<void(const Times&)>& all_connected) {
  timed::TimedWorker worker(plane, {.fabric = fabric}, shared, 0);
  std::vector<VirtualQueue*> queues;
  for (const NodeId peer : peers) queues.push_back(&worker.Connect(peer));
  Times times = {worker.begun_ns(), timed::Now(), worker.open_ns(), worker.datagrams_ns()};
  times.insert(times.end(), worker.connect_ns().begin(), worker.connect_ns().end());
  all_connected(times);
  worker.MakeRegion(kLookBytes);
  for (VirtualQueue* const queue : queues) {
    const Sge sge = SgeOf(worker.region(), 0, kLookBytes);
    worker.Do(*queue, RequestOn(queue->regions()[0], 0, Opcode::kRead, sge));
    MustMatch(worker.region().bytes().first(kLookBytes), SeedOf(queue->peer()));
  }
  return times;
}

// What the workers of all waves took, as parts of a row.
struct Waves {
  Samples total, open, datagrams, connect;
  int64_t elapsed_ns = 0;  // from the first begin until the last end, of all waves

  void Add(const std::vector<Times>& workers) {
    int64_t begin = INT64_MAX, end = 0;
    for (const Times& times : workers) {
      if (times.size() <= kFirstConnect) Must(Status(StatusCode::kInternal, "a worker made no connection"));
      begin = std::min(begin, times[kBegin]);
      end = std::max(end, times[kEnd]);
      total.push_back(times[kEnd] - times[kBegin]);
      open.push_back(times[kOpen]);
      datagrams.push_back(times[kDatagrams]);
      connect.insert(connect.end(), times.begin() + kFirstConnect, times.end());
    }
    elapsed_ns += end - begin;
  }
  void PutInto(Row& row) {
    row["workers"] = total.size();
    row["connects"] = connect.size();
    row["verified_bytes"] = connect.size() * kLookBytes;
    AddSpread(row, "worker_us", total);
    AddSpread(row, "open_us", open);
    AddSpread(row, "datagrams_us", datagrams);
    AddSpread(row, "connect_us", connect);
    row["connects_per_s"] = static_cast<double>(connect.size()) * 1e9 / static_cast<double>(elapsed_ns);
  }
};

// Lets all workers begin at once and collects what they took. They go on when all are connected, and end when all have
// READ.
std::vector<Times> Release(std::vector<Child>& workers) {
  for (Child& worker : workers) (void)worker.Hear();  // ready
  for (Child& worker : workers) worker.Say("go");
  std::vector<Times> times;
  for (Child& worker : workers) times.push_back(worker.HearNumbers());  // connected
  for (Child& worker : workers) worker.Say("go on");
  for (Child& worker : workers) (void)worker.Hear();  // verified
  for (Child& worker : workers) worker.Reap();
  return times;
}

// The other side of Release, in a worker's process: until it has READ from the peers.
void ConnectWhenTold(const Role& role, Node* shared, const std::vector<NodeId>& peers) {
  std::string line;
  std::cout << "ready" << std::endl;
  std::getline(std::cin, line);
  ConnectTo(role.plane, role.fabric, shared, peers, [&](const Times& times) {
    SayNumbers(stdout, times);
    std::getline(std::cin, line);
  });
  std::cout << "verified" << std::endl;
}

Row Processes(const Options& options, const std::string& plane, uint32_t count, uint32_t waves) {
  Row row = {{"control_plane", plane}, {"worker_kind", "process"}, {"in_flight", count}};
  Waves all;
  for (uint32_t wave = 0; wave < waves; ++wave) {
    std::vector<Child> workers;
    for (uint32_t i = 0; i < count; ++i)
      workers.push_back(StartRole({.name = "connector", .fabric = options.fabric, .plane = plane}));
    all.Add(Release(workers));
  }
  all.PutInto(row);
  return row;
}

Row Threads(const Options& options, const std::string& plane, uint32_t count, uint32_t waves) {
  Row row = {{"control_plane", plane}, {"worker_kind", "thread"}, {"in_flight", count}};
  Waves all;
  Child host = StartRole(
      {.name = "connecting-threads", .fabric = options.fabric, .plane = plane, .count = count, .waves = waves});
  for (uint32_t wave = 0; wave < waves; ++wave) {
    std::vector<Times> workers;
    for (uint32_t i = 0; i < count; ++i) workers.push_back(host.HearNumbers());
    all.Add(workers);
  }
  host.Reap();
  all.PutInto(row);
  return row;
}

Row Mesh(const Options& options, const std::string& plane, uint32_t nodes, uint32_t waves) {
  Row row = {{"control_plane", plane}, {"nodes", nodes}, {"in_flight", nodes}};
  Waves all;
  Samples complete;
  for (uint32_t wave = 0; wave < waves; ++wave) {
    std::vector<Child> workers;
    for (uint32_t i = 0; i < nodes; ++i) {
      workers.push_back(StartRole(
          {.name = "mesh-node", .fabric = options.fabric, .plane = plane, .id = kFirstMeshNode + i, .count = nodes}));
    }
    const std::vector<Times> times = Release(workers);
    int64_t begin = INT64_MAX, end = 0;
    for (const Times& worker : times) {
      begin = std::min(begin, worker.at(kBegin));
      end = std::max(end, worker.at(kEnd));
    }
    complete.push_back(end - begin);
    all.Add(times);
  }
  all.PutInto(row);
  AddSpread(row, "mesh_us", complete);
  return row;
}

}  // namespace

void BeConnector(const Role& role) { ConnectWhenTold(role, nullptr, {timed::Peer::kId}); }

void BeConnectingThreads(const Role& role) {
  std::unique_ptr<Node> node;
  if (!OwnNode(role.plane)) node = Must(OpenNode(role.plane, {.fabric = role.fabric}));
  std::barrier together(static_cast<std::ptrdiff_t>(role.count));
  std::vector<std::vector<Times>> times(role.waves, std::vector<Times>(role.count));
  {
    std::vector<std::jthread> threads;
    for (uint32_t i = 0; i < role.count; ++i) {
      threads.emplace_back([&, i] {
        for (uint32_t wave = 0; wave <= role.waves; ++wave) {  // the first warms up
          together.arrive_and_wait();
          const Times took = ConnectTo(role.plane, role.fabric, node.get(), {timed::Peer::kId},
                                       [&](const Times&) { together.arrive_and_wait(); });
          if (wave != 0) times[wave - 1][i] = took;
        }
      });
    }
  }
  for (const std::vector<Times>& wave : times)
    for (const Times& worker : wave) SayNumbers(stdout, worker);
}

void BeMeshNode(const Role& role) {
  auto node = Must(Node::Open({.fabric = role.fabric, .node = role.id}));
  auto region = Must(node->CreateRegion({.length = kPeerBytes, .remote_rights = kRemoteRead}));
  Fill(region->bytes(), SeedOf(role.id));
  Must(node->Publish(Deadline::Never()));
  std::optional<timed::AcceptorThread> acceptor;
  if (role.plane != "krcore") acceptor.emplace(*node);
  std::unique_ptr<Node> lite;
  if (role.plane == "lite") lite = Must(OpenNode("lite", {.fabric = role.fabric}));
  std::vector<NodeId> others;
  for (NodeId id = kFirstMeshNode; id < kFirstMeshNode + role.count; ++id)
    if (id != role.id) others.push_back(id);
  Node* const shared = OwnNode(role.plane) ? nullptr : lite ? lite.get() : node.get();
  ConnectWhenTold(role, shared, others);
  // The others may still READ from this one.
  std::string line;
  std::getline(std::cin, line);
}

void ManyToOne(const Options& options) {
  PeerProcess peer(options.fabric, kPeerBytes, SeedOf(timed::Peer::kId));
  std::vector<Configuration> configurations;
  for (const uint32_t count :
       options.quick ? std::vector<uint32_t>{1, 4, 16} : std::vector<uint32_t>{1, 2, 4, 8, 16, 32}) {
    for (const std::string plane : kPlanes) {
      const uint32_t processes = std::max(options.quick ? 16 / count : 64 / count, 1u);
      const uint32_t threads = options.quick ? 20 : 100;
      configurations.emplace_back([=, &options] { return Threads(options, plane, count, threads); });
      configurations.emplace_back([=, &options] { return Processes(options, plane, count, processes); });
    }
  }
  RunInterleaved(options, configurations);
  peer.End();
}

void FullMesh(const Options& options) {
  PeerProcess peer(options.fabric, kPeerBytes, SeedOf(timed::Peer::kId));  // for its metadata server
  std::vector<Configuration> configurations;
  for (const uint32_t nodes : options.quick ? std::vector<uint32_t>{2, 4, 8} : std::vector<uint32_t>{2, 4, 8, 16}) {
    for (const std::string plane : kPlanes) {
      const uint32_t waves = options.quick ? 2 : std::max(32 / nodes, 4u);
      configurations.emplace_back([=, &options] { return Mesh(options, plane, nodes, waves); });
    }
  }
  RunInterleaved(options, configurations);
  peer.End();
}

}  // namespace reproduce
