// What the parts of bench_connect share: rows of samples, and the parts of a worker's connect.
#ifndef BENCH_CONNECT_BENCH_CONNECT_H_
#define BENCH_CONNECT_BENCH_CONNECT_H_

#include <array>
#include <cstdint>
#include <cstdio>
#include <string>

#include "bench/common/timed_worker.h"

namespace connect_bench {

using namespace krcore;
using timed::Must;
using timed::Now;
using timed::Peer;
using timed::Percentile;
using timed::Samples;
using timed::Time;

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
  timed::TimedNode node(plane, options, now);
  int64_t last = now();
  auto region = Must(node.node().RegisterLocal(buffer, kWorkerBytes));
  parts.mr = now() - last;
  node.Restart(now());
  auto pool = Must(node.node().CreateQueuePool({}));
  auto queue = Must(pool->CreateQueue(64));
  node.Restart(now());
  Must(queue->Connect(peer, Deadline::Never()));
  parts.step = node.steps();
  then(node.node(), *pool, *queue);
  return parts;
}

// What Peer is, over the kernel module.
class KernelPeer {
 public:
  explicit KernelPeer(const NodeOptions& fabric);
  Node& node() { return *node_; }

 private:
  std::unique_ptr<Node> node_;
  std::unique_ptr<Region> region_;
};

// kernel.cc: a queue of the kernel module, in the process, with its parts.
void KernelConnects(const NodeOptions& fabric, int64_t verbs_ns, int samples);
// Opens the module's device and connects to the peer, by the module's own calls.
void ConnectByTheModule(const NodeOptions& fabric);
// model.cc: the same in virtual time, with modelled costs.
void PrintModel();
// process.cc: from fork to the first reply. `executable`: this program, which calls RunChild. `kernel`: of the
// kernel module, too.
void PrintFreshProcesses(const char* executable, const NodeOptions& fabric, int samples, bool kernel = false);
int RunChild(const std::string& plane, NodeOptions fabric, int64_t started_ns);

}  // namespace connect_bench

#endif  // BENCH_CONNECT_BENCH_CONNECT_H_
