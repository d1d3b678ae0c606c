// Connecting in virtual time, over the sim provider: what a ConnectX's control path would cost, by the named constants
// of krcore/rnic/sim/cost_model.h, whose sources docs/hacking.md gives. All modelled; the CPU's time is not in it.
#include "bench/connect/bench_connect.h"
#include "krcore/rnic/sim/world.h"

namespace connect_bench {
namespace {

namespace sim = rnic::sim;

// While a client waits for an answer, its peer's CPU answers.
class ServingClock final : public Clock {
 public:
  explicit ServingClock(Clock& inner) : inner_(inner) {}
  int64_t NowNs() override { return inner_.NowNs(); }
  void Relax(uint32_t spins) override {
    if (acceptor != nullptr) acceptor->Serve();
    inner_.Relax(spins);
  }
  Acceptor* acceptor = nullptr;

 private:
  Clock& inner_;
};

class ModelledFabric {
 public:
  ModelledFabric()
      : peer_(Must(Node::Open({.rnic = "sim", .fabric = kName, .node = Peer::kId, .clock = &clock_}))),
        region_(Must(peer_->CreateRegion({.length = 1 << 16, .remote_rights = kRemoteRead}))) {
    Must(peer_->HostMetaServer(64));
    Must(peer_->Publish(Deadline::Never()));
    acceptor_ = Must(Acceptor::Create(*peer_));
    clock_.acceptor = acceptor_.get();
  }
  ~ModelledFabric() { clock_.acceptor = nullptr; }  // it goes before its node, which waits once more
  // A client that has taken no time yet.
  NodeOptions NextClient() { return {.rnic = "sim", .fabric = kName, .node = ++client_, .clock = &clock_}; }
  // Virtual time, and what the control paths of both sides would take.
  int64_t Now() const { return world_.now_ns() + world_.control_ns(client_) + world_.control_ns(Peer::kId); }
  static int64_t published_ns() { return sim::CostModel().verbs_connect_ns; }

 private:
  NodeId client_ = Peer::kId;
  static constexpr char kName[] = "bench_connect";
  sim::World world_{{.fabric = kName}};
  ServingClock clock_{world_.clock()};
  std::unique_ptr<Node> peer_;
  std::unique_ptr<Region> region_;
  std::unique_ptr<Acceptor> acceptor_;
};

void Row(const char* what, int64_t ns, int64_t verbs_ns) {
  std::printf("%-50s %10.2f", what, static_cast<double>(ns) / 1e3);
  if (ns > 0 && verbs_ns != 0) std::printf(" %10.4g", static_cast<double>(verbs_ns) / static_cast<double>(ns));
  std::printf("\n");
}

}  // namespace

void PrintModel() {
  std::printf(
      "modelled: ConnectX costs (krcore/rnic/sim/cost_model.h, see docs/hacking.md), virtual time; no CPU time\n");
  std::printf("%-50s %10s %10s\n", "us", "modelled", "verbs / it");
  std::vector<std::byte> buffer(kWorkerBytes);
  ModelledFabric fabric;
  const auto now = [&] { return fabric.Now(); };
  const auto nothing = [](Node&, QueuePool&, VirtualQueue&) {};
  const WorkerParts verbs = ConnectWorker("verbs", fabric.NextClient(), Peer::kId, buffer.data(), now, nothing);
  Row("verbs, per worker", verbs.total(), verbs.total());
  for (size_t i = 0; i < kConnectSteps; ++i) {
    const auto step = static_cast<ConnectStep>(i);
    const std::string name = "  " + std::string(ConnectStepName(step)) +
                             (step == ConnectStep::kDatagrams  ? ", not counted: the kernel has one"
                              : step == ConnectStep::kExchange ? ", with the peer's QP"
                                                               : "");
    Row(name.c_str(), verbs.step[i], 0);
  }
  Row("  MR of 1 MiB", verbs.mr, 0);
  Row("verbs as KRCORE published it, all included", ModelledFabric::published_ns(), verbs.total());

  int64_t first = 0, repeated = 0;
  {
    auto node = Must(OpenNode("lite", fabric.NextClient()));
    auto pool = Must(node->CreateQueuePool({}));
    for (int64_t* took : {&first, &repeated}) {
      auto queue = Must(pool->CreateQueue(64));
      const int64_t start = now();
      Must(queue->Connect(Peer::kId, Deadline::Never()));
      *took = now() - start;
    }
  }
  Row("lite, first connect to a peer", first, verbs.total());
  Row("lite, repeated", repeated, verbs.total());

  int64_t uncached = 0, cached = 0;
  {
    auto node = Must(Node::Open(fabric.NextClient()));
    auto pool = Must(node->CreateQueuePool({}));
    for (int64_t* took : {&uncached, &cached}) {
      auto queue = Must(pool->CreateQueue(64));
      const int64_t start = now();
      Must(queue->Connect(Peer::kId, Deadline::Never()));
      *took = now() - start;
    }
  }
  Row("krcore, qconnect looked up", uncached, verbs.total());
  Row("krcore, qconnect cached: no verb at all", cached, verbs.total());

  const NodeOptions fresh = fabric.NextClient();
  const int64_t before = now();
  auto node = Must(Node::Open(fresh));
  const int64_t opened = now();
  auto pool = Must(node->CreateQueuePool({}));
  const int64_t pooled = now();
  auto queue = Must(pool->CreateQueue(64));
  Must(queue->Connect(Peer::kId, Deadline::Never()));
  Row("krcore in a fresh process: open the node", opened - before, verbs.total());
  Row("  its pool: CQ, two DC initiators", pooled - opened, verbs.total());
  Row("  its first qconnect", now() - pooled, verbs.total());
}

}  // namespace connect_bench
