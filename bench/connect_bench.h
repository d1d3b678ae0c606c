// What the parts of bench_connect share: samples and their rows, and a peer that answers connection requests.
#ifndef BENCH_CONNECT_BENCH_H_
#define BENCH_CONNECT_BENCH_H_

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "krcore/baseline.h"
#include "krcore/node.h"
#include "krcore/queue_pool.h"
#include "krcore/virtual_queue.h"

namespace connect_bench {

using namespace krcore;

template <typename T>
T Must(Result<T> result) {
  return std::move(result).value();
}
inline void Must(const Status& status) {
  if (!status.ok()) DieOfMissingValue(status);
}

using Samples = std::vector<int64_t>;  // ns

inline int64_t Percentile(Samples& ns, double percent) {
  std::sort(ns.begin(), ns.end());
  return ns[static_cast<size_t>(static_cast<double>(ns.size() - 1) * percent / 100)];
}

// One row. `verbs_ns`: median of a verbs worker's connect, 0: no ratio. `goal`: of the project, or empty.
inline void Report(const std::string& what, Samples& ns, int64_t verbs_ns = 0, const char* goal = "") {
  const auto median = static_cast<double>(Percentile(ns, 50));
  std::printf("%-50s %10.2f %10.2f", what.c_str(), median / 1e3, static_cast<double>(Percentile(ns, 99)) / 1e3);
  if (verbs_ns != 0 && median > 0)
    std::printf(" %10.4g", static_cast<double>(verbs_ns) / median);
  else
    std::printf(" %10s", "");
  std::printf("  %s\n", goal);
  std::fflush(stdout);
}

inline void Heading(const char* what, const char* unit) {
  std::printf("\n%s\n%-50s %10s %10s %10s\n", what, unit, "median", "p99", "verbs / it");
}

// A worker of "verbs" or "lite" from nothing to its first connection, in parts.
inline constexpr size_t kWorkerBytes = size_t{1} << 20;

struct WorkerParts {
  std::array<int64_t, kConnectSteps> step{};
  int64_t mr = 0;
  // Without the datagram QP, which stands for what a kernel has ready.
  int64_t total() const {
    int64_t sum = mr;
    for (size_t i = 0; i < kConnectSteps; ++i)
      if (static_cast<ConnectStep>(i) != ConnectStep::kDatagrams) sum += step[i];
    return sum;
  }
};

// `now` tells the time that passes; `buffer` is of kWorkerBytes. `then` gets the pool and its connected queue.
template <typename Now, typename Then>
WorkerParts ConnectWorker(const std::string& plane, const NodeOptions& options, NodeId peer, std::byte* buffer, Now now,
                          Then then) {
  WorkerParts parts;
  int64_t last = now();
  auto node = Must(OpenNode(plane, options, [&](ConnectStep step) {
    const int64_t at = now();
    parts.step[static_cast<size_t>(step)] += at - std::exchange(last, at);
  }));
  last = now();
  auto region = Must(node->RegisterLocal(buffer, kWorkerBytes));
  parts.mr = now() - last;
  last = now();
  auto pool = Must(node->CreateQueuePool({}));
  auto queue = Must(pool->CreateQueue(64));
  last = now();
  Must(queue->Connect(peer, Deadline::Never()));
  then(*node, *pool, *queue);
  return parts;
}

// A memory node whose own thread answers connection requests until it is destroyed.
class Peer {
 public:
  static constexpr NodeId kId = 1;

  explicit Peer(const std::string& fabric)
      : node_(Must(Node::Open({.fabric = fabric, .node = kId, .create_fabric = true}))),
        region_(Must(node_->CreateRegion({.length = 1 << 16, .remote_rights = kRemoteRead | kRemoteWrite}))) {
    Must(node_->HostMetaServer(4096));
    Must(node_->Publish(Deadline::Never()));
    acceptor_ = Must(Acceptor::Create(*node_));
    thread_ = std::thread([this] {
      for (uint32_t spins = 0; !stop_.load(std::memory_order_relaxed); ++spins) {
        if (acceptor_->Serve() != 0) spins = 0;
        node_->clock().Relax(spins);
      }
    });
  }
  ~Peer() {
    stop_.store(true, std::memory_order_relaxed);
    thread_.join();
  }
  Node& node() { return *node_; }

 private:
  std::unique_ptr<Node> node_;
  std::unique_ptr<Region> region_;
  std::unique_ptr<Acceptor> acceptor_;
  std::atomic<bool> stop_{false};  // relaxed: nothing else is communicated through it
  std::thread thread_;
};

// connect_model.cc: the same in virtual time, with modelled costs.
void PrintModel();
// connect_process.cc: from fork to the first reply. `executable`: this program, which calls RunChild.
void PrintFreshProcesses(const char* executable, int samples);
int RunChild(const std::string& plane, const std::string& fabric, int64_t started_ns);

}  // namespace connect_bench

#endif  // BENCH_CONNECT_BENCH_H_
