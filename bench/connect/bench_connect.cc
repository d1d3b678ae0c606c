// Measures connecting: krcore's qconnect, compared with what verbs programs and LITE do (krcore/control_plane.h), in
// one process and from fresh ones; qconnect among many records and after a metadata server has died; what a host keeps
// for many peers; and how many connects a second one and two threads make. All of it is measured on sw, that is on
// shared memory: a NIC's round trip and its driver's control path are not in it. --model=connectx prints modelled
// figures for those instead. --rnic=verbs measures warm and fresh processes on an RDMA device; --control_plane=kernel
// measures the kernel module there, too.
#include "bench/connect/bench_connect.h"

#include <gflags/gflags.h>
#include <malloc.h>

#include "cli/common_flags.h"
#include "cli/fail.h"
#include "cli/flags.h"
#include "krcore/peers/meta_client.h"
#include "krcore/queue/queue_pool_impl.h"
#include "krcore/rnic.h"

DEFINE_string(model, "", "connectx: print modelled costs in virtual time, and nothing measured");
DEFINE_bool(quick, false, "a few samples of everything, to see that it works");
DEFINE_string(child, "", "internal: be a worker process of this control plane");
DEFINE_int64(started_ns, 0, "internal: of --child, when it was forked");

namespace connect_bench {
namespace {

int Scaled(int samples) { return FLAGS_quick ? std::max(samples / 500, 3) : samples; }

std::unique_ptr<Node> Open(const std::string& fabric, NodeId id) {
  return Must(Node::Open({.fabric = fabric, .node = id, .create_fabric = true}));
}

// Workers that open, connect and close one after the other. Returns the median of their totals.
// `plain_ns`: how long a program that joins no fabric takes to open the device; counted in place of the measured time
// unless 0.
int64_t VerbsWorkers(const NodeOptions& fabric, int samples, int64_t plain_ns = 0) {
  std::vector<std::byte> buffer(kWorkerBytes);
  std::array<Samples, kConnectSteps> steps;
  Samples total, mr;
  for (int i = 0; i < samples; ++i) {
    const WorkerParts parts =
        ConnectWorker("verbs", fabric, Peer::kId, buffer.data(), Now, [](Node&, QueuePool&, VirtualQueue&) {});
    total.push_back(parts.total());
    if (plain_ns != 0) total.back() += plain_ns - parts.step[static_cast<size_t>(ConnectStep::kContext)];
    mr.push_back(parts.mr);
    for (size_t s = 0; s < kConnectSteps; ++s) steps[s].push_back(parts.step[s]);
  }
  const int64_t median = Percentile(total, 50);
  Report("verbs, per worker", total, median);
  for (size_t s = 0; s < kConnectSteps; ++s) {
    const auto step = static_cast<ConnectStep>(s);
    const std::string note = step == ConnectStep::kDatagrams                  ? ", not counted: the kernel has one"
                             : step == ConnectStep::kContext && plain_ns != 0 ? " and joining the fabric, not counted"
                             : step == ConnectStep::kExchange                 ? ", with the peer's QP"
                                                                              : "";
    Report("  " + std::string(ConnectStepName(step)) + note, steps[s]);
  }
  Report("  MR of 1 MiB", mr);
  return median;
}

void LiteConnects(const NodeOptions& fabric, int64_t verbs_ns, int samples) {
  Samples first, repeated;
  for (int i = 0; i < samples; ++i) {
    auto node = Must(OpenNode("lite", fabric));
    auto pool = Must(node->CreateQueuePool({}));
    for (int connects = 0; connects < 5; ++connects) {
      auto queue = Must(pool->CreateQueue(64));
      const int64_t start = Now();
      Must(queue->Connect(Peer::kId, Deadline::Never()));
      (connects == 0 ? first : repeated).push_back(Now() - start);
    }
  }
  Report("lite, first connect to a peer", first, verbs_ns);
  Report("lite, repeated", repeated, verbs_ns);
}

// Appends the times of connects that ask the metadata server afresh. Before each of them but the first, it times a
// connect to a peer that is known, and appends that to `cached` unless it is null.
void LookUp(QueuePool& pool, int connects, Samples& samples, Samples* cached) {
  for (int i = 0; i < connects; ++i) {
    auto queue = Must(pool.CreateQueue(64));
    for (Samples* to : {i == 0 ? nullptr : cached, &samples}) {
      const int64_t start = Now();
      Must(queue->Connect(Peer::kId, Deadline::Never()));  // the second time looks up afresh
      if (to != nullptr) to->push_back(Now() - start);
    }
  }
}

// Waits until the node, which has looked up often enough, has an RC connection to its metadata server. False: it needs
// none.
bool LinkToMetaServer(Peer& peer, QueuePool& pool) {
  auto& impl = static_cast<queue::QueuePoolImpl&>(pool);
  if (impl.context().meta == nullptr) return false;  // DC is the NIC's own
  const Deadline deadline = Deadline::After(*RealClock(), 10'000'000'000);
  for (bool begun = false; !deadline.Passed(*RealClock());) {
    if (begun && !impl.rc()->has_work()) return true;
    begun |= impl.rc()->has_work();
    if (!begun) impl.rc()->Tick(Now());
    pool.Poll();
    (void)peer.node().PollConnections();
  }
  Must(Status(StatusCode::kTimeout, "no RC connection to the metadata server"));
  return false;
}

void KrcoreConnects(Peer& peer, const NodeOptions& fabric, int64_t verbs_ns, int connects) {
  auto node = Must(Node::Open(fabric));
  auto pool = Must(node->CreateQueuePool({}));
  Samples cached, uncached;
  const bool sw = fabric.rnic == "sw";
  const char* const goal = sw ? "goal: p99 <= 10" : "goal: verbs / it >= 30";
  LookUp(*pool, connects, uncached, &cached);
  Report("krcore, qconnect cached", cached, verbs_ns, sw ? "goal: p99 <= 1" : "goal: verbs / it >= 1000");
  if (!LinkToMetaServer(peer, *pool)) return Report("krcore, qconnect looked up one-sided", uncached, verbs_ns, goal);
  Report("krcore, qconnect looked up, by software DC", uncached, verbs_ns);
  Samples over_rc;
  LookUp(*pool, connects, over_rc, nullptr);
  Report("krcore, qconnect looked up, over RC", over_rc, verbs_ns, goal);
}

// Times connects to a peer that has an RC queue, as if the peer had proved hot. It also times how long making such a
// queue takes where the peer answers at once.
void RcConnects(int64_t verbs_ns) {
  auto node = Must(Node::Open({.fabric = "inproc:bench_connect-rc", .node = 1, .create_fabric = true, .rc_peers = 1}));
  Must(node->HostMetaServer(64));
  Must(node->Publish(Deadline::Never()));
  auto pool = Must(node->CreateQueuePool({.rc_hot_wrs = UINT32_MAX}));
  auto& impl = static_cast<queue::QueuePoolImpl&>(*pool);
  auto first = Must(pool->CreateQueue(4));
  Must(first->Connect(1, Deadline::Never()));
  const auto settle = [&] {
    while (impl.rc()->busy()) {
      pool->Poll();
      node->PollConnections();
    }
  };
  Samples connected, made;
  for (int round = 0; round < Scaled(200); ++round) {
    const int64_t start = Now();
    if (!impl.rc()->Connect(impl.peers().Cached(1))) Must(Status(StatusCode::kInternal));
    settle();
    made.push_back(Now() - start);
    if (impl.rc()->in_use() != 1) Must(Status(StatusCode::kInternal));
    for (int i = 0; i < 100; ++i) {
      auto queue = Must(pool->CreateQueue(64));
      const int64_t connect = Now();
      Must(queue->Connect(1, Deadline::Never()));
      connected.push_back(Now() - connect);
    }
    impl.rc()->Leave(1);
    settle();
    node->PollConnections();  // the place is free again
  }
  Report("krcore, qconnect to a peer on RC", connected, verbs_ns);
  Report("krcore, an RC queue made in the background", made, verbs_ns);
}

void WarmProcess() {
  const NodeOptions fabric{.fabric = "inproc:bench_connect"};
  Peer peer(fabric);
  Heading("one warm process, measured on sw", "us");
  const int64_t verbs_ns = VerbsWorkers(fabric, Scaled(1000));
  LiteConnects(fabric, verbs_ns, Scaled(1000));
  KrcoreConnects(peer, fabric, verbs_ns, Scaled(20'000));
  RcConnects(verbs_ns);
}

// A worker of verbs joins the fabric as it opens the device, by TCP, which a plain program does not: so the
// time that opening the device alone takes is counted instead.
int64_t OpenPlain(const NodeOptions& fabric, int samples) {
  Samples ns;
  for (int i = 0; i < samples; ++i) {
    const int64_t start = Now();
    Must(rnic::TryNic({.provider = fabric.rnic, .port = fabric.rnic_port}));
    ns.push_back(Now() - start);
  }
  Report("the device alone: open, query, choose a port, close", ns);
  return Percentile(ns, 50);
}

void OnADevice(const char* executable, const NodeOptions& fabric, bool kernel) {
  int64_t verbs_ns;
  {
    Peer peer(fabric);
    Heading(("one warm process, measured on " + fabric.rnic).c_str(), "us");
    const int samples = FLAGS_quick ? 3 : 50;
    verbs_ns = VerbsWorkers(fabric, samples, OpenPlain(fabric, samples));
    LiteConnects(fabric, verbs_ns, samples);
    KrcoreConnects(peer, fabric, verbs_ns, FLAGS_quick ? 10 : 2'000);
  }
  // No acceptor of the process may wait for requests to connect now.
  if (kernel) KernelConnects(fabric, verbs_ns, FLAGS_quick ? 20 : 500);
  PrintFreshProcesses(executable, fabric, FLAGS_quick ? 3 : 20, kernel);
}

// Records of nodes kFirst, kFirst + 1, ... that one device stands for.
constexpr NodeId kFirst = 100'000;

struct HostMemory {
  size_t pool_before = 0, pool_after = 0;  // bytes, of connecting to all
  size_t cache = 0;                        // bytes by which the heap grew
};

HostMemory LookupsAmong(NodeId records) {
  const std::string fabric = "inproc:bench_connect-" + std::to_string(records);
  auto host = Open(fabric, 1);
  Must(host->HostMetaServer(std::max(records, 64u)));
  auto device = Must(rnic::OpenDevice({.provider = "sw", .fabric = fabric}));
  auto pd = Must(device->CreatePd());
  rnic::DeviceAddress self = device->address();
  for (NodeId id = kFirst; id < kFirst + records; ++id) {
    self.node = id;
    auto client = Must(peers::MetaClient::Create(*device, *pd, *RealClock(), self));
    const peers::NodePayload payload{.dc_key = id};
    Must(client->Publish(peers::Key::Node(id), std::as_bytes(std::span(&payload, 1)), Deadline::Never()));
  }
  auto pool = Must(host->CreateQueuePool({}));
  const size_t heap_before = mallinfo2().uordblks;
  const size_t empty_pool = pool->memory_bytes();
  for (NodeId id = kFirst; id < kFirst + records; ++id) {
    auto queue = Must(pool->CreateQueue(4));
    Must(queue->Connect(id, Deadline::Never()));
  }
  const size_t cache = mallinfo2().uordblks - heap_before;
  const HostMemory memory{empty_pool, pool->memory_bytes(), cache};
  Samples ns;
  uint32_t random = 1;
  for (int i = 0; i < Scaled(20'000); ++i) {
    random = random * 1664525 + 1013904223;
    const NodeId peer = kFirst + static_cast<NodeId>(uint64_t{random} * records >> 32);
    auto queue = Must(pool->CreateQueue(4));
    Must(queue->Connect(peer, Deadline::Never()));
    const int64_t start = Now();
    Must(queue->Connect(peer, Deadline::Never()));
    ns.push_back(Now() - start);
  }
  Report("looked up among " + std::to_string(records) + " records", ns);
  return memory;
}

// The first qconnect of a node after the server that it asks has died, and the later ones.
void WithADeadServer() {
  constexpr NodeId kServers = 2;
  Samples before, first, later;
  for (int round = 0; round < Scaled(1000); ++round) {
    const std::string fabric = "inproc:bench_connect-dead" + std::to_string(round);
    std::vector<std::unique_ptr<Node>> servers;
    for (NodeId id = 1; id <= kServers; ++id) {
      servers.push_back(Open(fabric, id));
      Must(servers.back()->HostMetaServer(64));
    }
    auto node = Open(fabric, 10 + kServers);  // asks the first
    Must(node->Publish(Deadline::Never()));
    auto pool = Must(node->CreateQueuePool({}));
    auto queue = Must(pool->CreateQueue(4));
    const auto connect = [&](Samples* samples) {
      const int64_t start = Now();
      Must(queue->Connect(node->id(), Deadline::Never()));
      samples->push_back(Now() - start);
    };
    Samples warm_up;
    connect(&warm_up);
    for (int i = 0; i < 10; ++i) connect(&before);
    servers.front().reset();
    connect(&first);
    for (int i = 0; i < 10; ++i) connect(&later);
  }
  Report("two metadata servers", before);
  Report("... the first after the one asked has died", first);
  Report("... after that", later);
}

// `connect(thread)` makes a thread's function that connects once, called over and over by all threads for a while.
template <typename MakeConnect>
void Throughput(const char* what, int threads, MakeConnect make_connect) {
  std::atomic<bool> stop{false};  // relaxed: nothing else is communicated through it
  std::atomic<int64_t> connects{0};
  std::vector<std::thread> workers;
  const int64_t start = Now();
  for (int t = 0; t < threads; ++t) {
    workers.emplace_back([&] {
      auto connect = make_connect();
      int64_t count = 0;
      for (; !stop.load(std::memory_order_relaxed); ++count) connect();
      connects.fetch_add(count, std::memory_order_relaxed);
    });
  }
  while (Now() - start < (FLAGS_quick ? 10'000'000 : 500'000'000)) RealClock()->Relax(1'000'000);
  stop.store(true, std::memory_order_relaxed);
  for (std::thread& worker : workers) worker.join();
  const double seconds = static_cast<double>(Now() - start) / 1e9;
  std::printf("%-50s %10d %12.0f\n", what, threads, static_cast<double>(connects.load()) / seconds);
}

void Throughputs() {
  const std::string fabric = "inproc:bench_connect-threads";
  Peer peer({.fabric = fabric});
  auto node = Must(Node::Open({.fabric = fabric}));
  std::printf(
      "\nconnects a second, measured on sw; the peer's thread takes a core too where it is asked\n%-50s %10s %12s\n",
      "", "threads", "1/s");
  const auto krcore = [&](bool cached) {
    return [&, cached] {
      auto pool = std::shared_ptr<QueuePool>(Must(node->CreateQueuePool({})));
      auto queue = std::shared_ptr<VirtualQueue>(Must(pool->CreateQueue(4)));
      return [pool, queue, cached]() mutable {
        if (cached) queue = Must(pool->CreateQueue(4));  // connecting one again looks up
        Must(queue->Connect(Peer::kId, Deadline::Never()));
      };
    };
  };
  auto lite_node = std::shared_ptr<Node>(Must(OpenNode("lite", {.fabric = fabric})));
  const auto lite = [&] {
    auto pool = std::shared_ptr<QueuePool>(Must(lite_node->CreateQueuePool({})));
    return [pool] { Must(Must(pool->CreateQueue(4))->Connect(Peer::kId, Deadline::Never())); };
  };
  const auto verbs = [&] {
    return [&fabric, buffer = std::vector<std::byte>(kWorkerBytes)]() mutable {
      (void)ConnectWorker("verbs", {.fabric = fabric}, Peer::kId, buffer.data(), Now,
                          [](Node&, QueuePool&, VirtualQueue&) {});
    };
  };
  for (const int threads : {1, 2}) {
    Throughput("krcore, queue and qconnect, cached", threads, krcore(true));
    Throughput("krcore, qconnect, looked up one-sided", threads, krcore(false));
    Throughput("lite, queue and connect, repeated", threads, lite);
    Throughput("verbs, worker opened, connected and closed", threads, verbs);
  }
}

void ManyPeers() {
  Heading("among many peers, measured on sw", "us");
  constexpr NodeId kPeers[] = {10, 1'000, 10'000};
  std::array<HostMemory, std::size(kPeers)> memory;
  for (size_t i = 0; i < std::size(kPeers); ++i) memory[i] = LookupsAmong(kPeers[i]);
  WithADeadServer();
  std::printf(
      "\nmemory of a host, bytes: a pool (one per thread), and what the node keeps of the peers it has connected to\n"
      "%10s %12s %12s %14s %10s\n",
      "peers", "pool before", "pool after", "metadata cache", "per peer");
  for (size_t i = 0; i < std::size(kPeers); ++i) {
    std::printf("%10u %12zu %12zu %14zu %10.0f\n", kPeers[i], memory[i].pool_before, memory[i].pool_after,
                memory[i].cache, static_cast<double>(memory[i].cache) / kPeers[i]);
  }
}

}  // namespace
}  // namespace connect_bench

int main(int argc, char** argv) {
  cli::ParseFlags(
      {.name = "bench_connect",
       .summary = "Measures connecting: krcore's qconnect, compared with what verbs programs and LITE do.",
       .usage =
           "bench_connect [--quick] [--model=connectx]\nbench_connect --rnic=verbs [--fabric_address=HOST] [--quick]\n"
           "bench_connect --control_plane=kernel [--quick]",
       .flags = {"quick", "model", "rnic", "fabric_address", "rnic_port", "fabric", "control_plane", "log"},
       .examples = "bench_connect --rnic=verbs\nbench_connect --control_plane=kernel",
       .max_arguments = 0,
       .short_options = "",
       .short_help = ""},
      argc, argv);
  if (FLAGS_fabric.empty()) FLAGS_fabric = "bench_connect-" + std::to_string(getpid());
  // The module's device is one that verbs finds, too.
  const bool kernel = FLAGS_control_plane == "kernel";
  if (kernel) FLAGS_rnic = "verbs";
  if (FLAGS_rnic == "verbs" && FLAGS_fabric_address.empty()) FLAGS_fabric_address = "localhost";
  for (const krcore::Status& status : {cli::CheckControlPlane({"krcore", "kernel"}), cli::CheckFabricFlags()})
    if (!status.ok()) return cli::FailUsage(status.message());
  krcore::NodeOptions fabric;
  cli::SetFabric(&fabric);
  if (!FLAGS_child.empty()) return connect_bench::RunChild(FLAGS_child, fabric, FLAGS_started_ns);
  if (FLAGS_model == "connectx") {
    connect_bench::PrintModel();
    return 0;
  }
  if (!FLAGS_model.empty()) return cli::FailUsage("--model is connectx or nothing");
  if (fabric.rnic != "sw") {
    connect_bench::OnADevice(argv[0], fabric, kernel);
    return 0;
  }
  connect_bench::WarmProcess();
  connect_bench::PrintFreshProcesses(argv[0], fabric, FLAGS_quick ? 3 : 200);
  connect_bench::ManyPeers();
  connect_bench::Throughputs();
  return 0;
}
