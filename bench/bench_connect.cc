// qconnect on the sw provider in one process: cached, looked up at tables of several sizes, with one metadata server
// dead, and how many a second with one and two threads. Measured on sw, that is on shared memory; a NIC's round trip is
// not in it.
#include <algorithm>
#include <atomic>
#include <cstdio>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "krcore/meta/meta_client.h"
#include "krcore/node.h"
#include "krcore/queue_pool.h"
#include "krcore/rnic/registry.h"
#include "krcore/virtual_queue.h"

namespace {

using namespace krcore;

template <typename T>
T Must(Result<T> result) {
  return std::move(result).value();
}
void Must(const Status& status) {
  if (!status.ok()) DieOfMissingValue(status);
}

void Report(const char* what, std::vector<int64_t>& ns) {
  std::sort(ns.begin(), ns.end());
  std::printf("%-46s median %7.2f us   p99 %7.2f us   (%zu samples, measured on sw)\n", what,
              static_cast<double>(ns[ns.size() / 2]) / 1e3, static_cast<double>(ns[ns.size() * 99 / 100]) / 1e3,
              ns.size());
}

std::unique_ptr<Node> Open(const std::string& fabric, NodeId id) {
  return Must(Node::Open({.fabric = fabric, .node = id, .create_fabric = true}));
}

void CachedAndUncached() {
  constexpr int kSamples = 20'000;
  auto node = Open("inproc:bench_connect", 1);
  Must(node->HostMetaServer(1024));
  Must(node->Publish(Deadline::Never()));
  auto pool = Must(node->CreateQueuePool({}));
  std::vector<int64_t> cached, uncached;
  Clock& clock = node->clock();
  for (int i = 0; i < kSamples; ++i) {
    auto queue = Must(pool->CreateQueue(64));
    for (std::vector<int64_t>* samples : {i == 0 ? nullptr : &cached, &uncached}) {
      const int64_t start = clock.NowNs();
      Must(queue->Connect(1, Deadline::Never()));  // the second time looks up afresh
      if (samples != nullptr) samples->push_back(clock.NowNs() - start);
    }
  }
  Report("qconnect, metadata cached", cached);
  Report("qconnect, looked up one-sided", uncached);
}

// Records of nodes kFirst, kFirst + 1, ... that one device stands for.
constexpr NodeId kFirst = 100'000;

void LookupsAmong(NodeId records) {
  const std::string fabric = "inproc:bench_connect-" + std::to_string(records);
  auto host = Open(fabric, 1);
  Must(host->HostMetaServer(std::max(records, 64u)));
  auto device = Must(rnic::OpenDevice({.provider = "sw", .fabric = fabric}));
  auto pd = Must(device->CreatePd());
  rnic::DeviceAddress self = device->address();
  for (NodeId id = kFirst; id < kFirst + records; ++id) {
    self.node = id;
    auto client = Must(meta::MetaClient::Create(*device, *pd, *RealClock(), self));
    const meta::NodePayload payload{.dc_key = id};
    Must(client->Publish(meta::Key::Node(id), std::as_bytes(std::span(&payload, 1)), Deadline::Never()));
  }
  auto pool = Must(host->CreateQueuePool({}));
  std::vector<int64_t> ns;
  uint32_t random = 1;
  for (int i = 0; i < 20'000; ++i) {
    random = random * 1664525 + 1013904223;
    const NodeId peer = kFirst + static_cast<NodeId>(uint64_t{random} * records >> 32);
    auto queue = Must(pool->CreateQueue(4));
    Must(queue->Connect(peer, Deadline::Never()));
    const int64_t start = RealClock()->NowNs();
    Must(queue->Connect(peer, Deadline::Never()));
    ns.push_back(RealClock()->NowNs() - start);
  }
  Report(("qconnect, looked up among " + std::to_string(records) + " records").c_str(), ns);
}

// The first qconnect of a node after the server that it asks has died, and the later ones.
void WithADeadServer() {
  constexpr NodeId kServers = 2;
  std::vector<int64_t> before, first, later;
  for (int round = 0; round < 200; ++round) {
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
    const auto connect = [&](std::vector<int64_t>* samples) {
      const int64_t start = RealClock()->NowNs();
      Must(queue->Connect(node->id(), Deadline::Never()));
      samples->push_back(RealClock()->NowNs() - start);
    };
    std::vector<int64_t> warm_up;
    connect(&warm_up);
    for (int i = 0; i < 10; ++i) connect(&before);
    servers.front().reset();
    connect(&first);
    for (int i = 0; i < 10; ++i) connect(&later);
  }
  Report("... two metadata servers", before);
  Report("... the first after the one asked has died", first);
  Report("... after that", later);
}

// Connects a second, all threads together, for a while.
void Throughput(int threads, bool cached) {
  auto node = Open("inproc:bench_connect-threads", 1);
  Must(node->HostMetaServer(64));
  Must(node->Publish(Deadline::Never()));
  std::atomic<bool> stop{false};  // relaxed: nothing else is communicated through it
  std::atomic<int64_t> connects{0};
  std::vector<std::thread> workers;
  const int64_t start = RealClock()->NowNs();
  for (int t = 0; t < threads; ++t) {
    workers.emplace_back([&] {
      auto pool = Must(node->CreateQueuePool({}));
      auto queue = Must(pool->CreateQueue(4));
      int64_t count = 0;
      for (; !stop.load(std::memory_order_relaxed); ++count) {
        if (cached) queue = Must(pool->CreateQueue(4));  // connecting one again looks up
        Must(queue->Connect(1, Deadline::Never()));
      }
      connects.fetch_add(count, std::memory_order_relaxed);
    });
  }
  while (RealClock()->NowNs() - start < 500'000'000) RealClock()->Relax(1'000'000);
  stop.store(true, std::memory_order_relaxed);
  for (std::thread& worker : workers) worker.join();
  const double seconds = static_cast<double>(RealClock()->NowNs() - start) / 1e9;
  std::printf("%-46s %7.2f M/s with %d thread%s (measured on sw)\n",
              cached ? "queue and qconnect, cached" : "qconnect, looked up one-sided",
              static_cast<double>(connects.load()) / seconds / 1e6, threads, threads == 1 ? "" : "s");
}

}  // namespace

int main() {
  CachedAndUncached();
  for (const NodeId records : {10u, 1'000u, 10'000u}) LookupsAmong(records);
  WithADeadServer();
  for (const bool cached : {true, false})
    for (const int threads : {1, 2}) Throughput(threads, cached);
  return 0;
}
