#include "bench/store_latency.h"

#include <poll.h>
#include <unistd.h>

#include <cstdio>
#include <string>

#include "bench/reproduce/child.h"
#include "bench/timed_worker.h"
#include "kvs/client.h"
#include "kvs/layout/join.h"
#include "kvs/layout/pool.h"

namespace rnic_latency {
namespace {

using namespace krcore;
using reproduce::Child;
using timed::Must;

constexpr NodeId kMemoryNode = 1;
constexpr size_t kPoolBytes = size_t{64} << 20;
constexpr int64_t kPatienceNs = 20'000'000'000;
constexpr char kKey[] = "key";

int64_t Now() { return RealClock()->NowNs(); }
Deadline Soon() { return Deadline::After(*RealClock(), kPatienceNs); }

void Get(kvs::Client& client, const std::string& wanted) {
  std::string value;
  Must(client.Get(kKey, &value));
  if (value != wanted) Must(Status(StatusCode::kInternal, "Get answered another value"));
}

void TimeGets(kvs::Store& store, const Options& options, bool cached) {
  const std::string value(options.bytes, 'v');
  auto client = Must(
      store.NewClient({.max_in_flight = 1, .address_cache_entries = cached ? 1024U : 0, .queues = {.rc_hot_wrs = 1}}));
  Must(client->Put(kKey, value));
  const Deadline deadline = Soon();
  while (client->stats().rc_connects == 0) {  // hot from the first request on
    Get(*client, value);
    if (deadline.Passed(*RealClock())) Must(Status(StatusCode::kTimeout, "no RC connection"));
  }
  for (int i = 0; i < 100; ++i) Get(*client, value);
  const kvs::ClientStats before = client->stats();
  timed::Samples ns;
  for (uint32_t i = 0; i < options.requests; ++i) {
    const int64_t start = Now();
    Get(*client, value);
    ns.push_back(Now() - start);
  }
  const kvs::ClientStats after = client->stats();
  const double trips = static_cast<double>(after.operation_round_trips - before.operation_round_trips) /
                       static_cast<double>(after.operations - before.operations);
  const auto us = [&](double percent) { return static_cast<double>(timed::Percentile(ns, percent)) / 1e3; };
  std::printf(
      "rnic=%s path=store operation=%s bytes=%u requests=%zu min_us=%.2f median_us=%.2f p99_us=%.2f round_trips=%.3f\n",
      options.fabric.rnic.c_str(), cached ? "get_cached" : "get", options.bytes, ns.size(), us(0), us(50), us(99),
      trips);
  std::fflush(stdout);
}

}  // namespace

void RunStoreTarget(const Options& options) {
  NodeOptions open = options.fabric;
  open.node = kMemoryNode;
  open.create_fabric = true;
  open.rc_peers = 8;
  auto node = Must(Node::Open(open));
  Must(node->HostMetaServer(16));
  auto pool = Must(node->CreateRegion(
      {.length = kPoolBytes, .remote_rights = kRemoteRead | kRemoteWrite | kRemoteAtomic, .tag = kvs::kPoolRegionTag}));
  (void)Must(kvs::JoinStore(*node, *pool, kvs::HomeOptions{}, Soon()));
  reproduce::SayNumbers(stdout, {});
  for (pollfd input{STDIN_FILENO, POLLIN, 0}; poll(&input, 1, 10) == 0;) node->PollConnections();  // until its end
}

void MeasureStore(const Options& options) {
  Child target = StartTarget(options);
  target.HearNumbers();
  {
    auto store = Must(kvs::Store::Open({.rnic = options.fabric.rnic,
                                        .fabric = options.fabric.fabric,
                                        .fabric_address = options.fabric.fabric_address,
                                        .rnic_port = options.fabric.rnic_port,
                                        .open_timeout_ms = 20'000}));
    for (const bool cached : {false, true}) TimeGets(*store, options, cached);
  }
  target.Reap();
}

}  // namespace rnic_latency
