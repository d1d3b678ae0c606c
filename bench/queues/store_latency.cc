#include "bench/queues/store_latency.h"

#include <poll.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <memory>
#include <string>

#include "kvs/client.h"
#include "kvs/layout/pool.h"
#include "kvs/memory/join.h"

namespace rnic_latency {
namespace {

using namespace krcore;
using timed::Must;

constexpr NodeId kMemoryNode = 1;
constexpr size_t kPoolBytes = size_t{64} << 20;
constexpr int kWarmUp = 100;
constexpr char kKey[] = "key";

// One client, whose Gets are timed.
class Reader {
 public:
  Reader(kvs::Store& store, const Options& options, bool cached)
      : options_(options), cached_(cached), value_(options.bytes, 'v') {
    options_.operation = cached ? "get_cached" : "get";
    client_ = Must(store.NewClient(
        {.max_in_flight = 1, .address_cache_entries = cached ? 1024U : 0, .queues = {.rc_hot_wrs = 1}}));
    Must(client_->Put(kKey, value_));
    const Deadline deadline = Soon();
    while (client_->stats().rc_connects == 0) {  // hot from the first request on
      Get();
      if (deadline.Passed(*RealClock())) Must(Status(StatusCode::kTimeout, "no RC connection"));
    }
    for (int i = 0; i < kWarmUp; ++i) Get();
  }
  // One Get. With the cache it is one whose place the cache knew: now and then the cache turns itself off, to see
  // whether it pays.
  void Time() {
    const Deadline deadline = Soon();
    for (;;) {
      const kvs::ClientStats before = client_->stats();
      const int64_t start = Now();
      Get();
      const int64_t end = Now();
      const kvs::ClientStats after = client_->stats();
      if (!cached_ || after.cache_hits != before.cache_hits) {
        ns_.push_back(end - start);
        trips_ += after.operation_round_trips - before.operation_round_trips;
        return;
      }
      if (deadline.Passed(*RealClock())) Must(Status(StatusCode::kTimeout, "no hit of the address cache"));
    }
  }
  void PrintBeside(double read_ns) {
    const double trips = static_cast<double>(trips_) / static_cast<double>(ns_.size());
    const double ratio = static_cast<double>(timed::Percentile(ns_, 50)) / read_ns;
    std::array<char, 80> more;
    std::snprintf(more.data(), more.size(), " round_trips=%.3f ratio_to_read=%.3f", trips, ratio);
    Print(options_, ns_, more.data());
  }

 private:
  void Get() {
    std::string value;
    Must(client_->Get(kKey, &value));
    if (value != value_) Must(Status(StatusCode::kInternal, "Get answered another value"));
  }

  Options options_;
  const bool cached_;
  const std::string value_;
  std::unique_ptr<kvs::Client> client_;
  uint64_t trips_ = 0;
  timed::Samples ns_;
};

void TimeGets(kvs::Store& store, const Options& options) {
  BareReader bare(options);
  for (int i = 0; i < kWarmUp; ++i) bare.Read(options.bytes);
  Reader plain(store, options, false), cached(store, options, true);
  timed::Samples read_ns;
  for (uint32_t i = 0; i < options.requests; ++i) {
    const int64_t start = Now();
    bare.Read(options.bytes);
    read_ns.push_back(Now() - start);
    plain.Time();
    cached.Time();
  }
  Options read = options;
  read.path = "rc";
  read.operation = "read";
  Print(read, read_ns);
  const auto median = static_cast<double>(timed::Percentile(read_ns, 50));
  plain.PrintBeside(median);
  cached.PrintBeside(median);
}

}  // namespace

void RunStoreTarget(const Options& options) {
  NodeOptions open = options.fabric;
  open.node = kMemoryNode;
  open.create_fabric = true;
  open.rc_peers = 8;
  auto node = Must(Node::Open(open));
  Must(node->HostMetaServer(16));
  auto pool = Must(node->CreateRegion(kvs::PoolRegion(kPoolBytes)));
  (void)Must(kvs::JoinStore(*node, *pool, kvs::HomeOptions{}, Soon()));
  reproduce::SayNumbers(stdout, {});
  for (pollfd input{STDIN_FILENO, POLLIN, 0}; poll(&input, 1, 10) == 0;) node->PollConnections();  // until its end
}

void MeasureStore(const Options& options) {
  reproduce::Child target = StartTarget(options);
  target.HearNumbers();
  {
    auto store = Must(kvs::Store::Open({.rnic = options.fabric.rnic,
                                        .fabric = options.fabric.fabric,
                                        .fabric_address = options.fabric.fabric_address,
                                        .rnic_port = options.fabric.rnic_port,
                                        .open_timeout_ms = 20'000}));
    TimeGets(*store, options);
  }
  target.Reap();
}

}  // namespace rnic_latency
