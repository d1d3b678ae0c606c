// qconnect, cached and by one-sided lookup, on the sw provider in one process: medians and p99. Measured on sw, that
// is on shared memory; a NIC's round trip is not in it.
#include <algorithm>
#include <cstdio>
#include <vector>

#include "krcore/node.h"
#include "krcore/queue_pool.h"
#include "krcore/virtual_queue.h"

namespace {

using namespace krcore;

void Report(const char* what, std::vector<int64_t>& ns) {
  std::sort(ns.begin(), ns.end());
  std::printf("%-34s median %7.2f us   p99 %7.2f us   (%zu samples, measured on sw)\n", what,
              static_cast<double>(ns[ns.size() / 2]) / 1e3, static_cast<double>(ns[ns.size() * 99 / 100]) / 1e3,
              ns.size());
}

}  // namespace

int main() {
  constexpr int kSamples = 20'000;
  auto node = Node::Open({.fabric = "inproc:bench_connect", .node = 1, .create_fabric = true}).value();
  if (!node->HostMetaServer(1024).ok() || !node->Publish(Deadline::Never()).ok()) return 1;
  auto pool = node->CreateQueuePool({}).value();
  std::vector<int64_t> cached, uncached;
  Clock& clock = node->clock();
  for (int i = 0; i < kSamples; ++i) {
    auto queue = pool->CreateQueue(64).value();
    for (std::vector<int64_t>* samples : {i == 0 ? nullptr : &cached, &uncached}) {
      const int64_t start = clock.NowNs();
      if (!queue->Connect(1, Deadline::Never()).ok()) return 1;  // the second time looks up afresh
      if (samples != nullptr) samples->push_back(clock.NowNs() - start);
    }
  }
  Report("qconnect, metadata cached", cached);
  Report("qconnect, looked up one-sided", uncached);
  return 0;
}
