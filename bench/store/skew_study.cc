#include "bench/store/skew_study.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdio>
#include <random>
#include <string>
#include <type_traits>
#include <vector>

#include "krcore/node.h"
#include "krcore/rnic/sim/world.h"
#include "kvs/memory/join.h"

namespace surgekv_bench {
namespace {

namespace sim = krcore::rnic::sim;
using kvs::Client;
using kvs::Status;
using kvs::Task;

using Counts = std::array<uint64_t, sizeof(kvs::ClientStats) / sizeof(uint64_t)>;

void AddDifference(const kvs::ClientStats& from, const kvs::ClientStats& to, kvs::ClientStats* sum) {
  Counts total = std::bit_cast<Counts>(*sum);
  const Counts begin = std::bit_cast<Counts>(from), end = std::bit_cast<Counts>(to);
  for (size_t i = 0; i < total.size(); ++i) total[i] += end[i] - begin[i];
  *sum = std::bit_cast<kvs::ClientStats>(total);
}

void Check(const Status& status) {
  if (!status.ok()) krcore::DieOfMissingValue(status);
}

}  // namespace

class SkewStudy::Impl {
 public:
  explicit Impl(const SkewOptions& options)
      : options_(options), world_({.fabric = "skew-study", .seed = options.seed}), random_(options.seed) {
    krcore::NodeOptions node;
    node.rnic = "sim";
    node.fabric = "skew-study";
    node.create_fabric = true;
    node.node = 1;
    node.clock = &world_.clock();
    node_ = krcore::Node::Open(node).value();
    const size_t bytes = (size_t{64} << 20) + options.keys * (options.value_bytes + 256);
    pool_ = node_->CreateRegion(kvs::PoolRegion(bytes)).value();
    Check(node_->HostMetaServer(256));
    kvs::HomeOptions home;
    home.hash_seed = kvs::HashSeed{};  // the same options give the same run
    home.initial_depth = kvs::DepthFor(options.keys, home.geometry);
    (void)kvs::JoinStore(*node_, *pool_, home, krcore::Deadline::After(world_.clock(), 10'000'000'000)).value();
    DrawSums();
    Load();
  }

  ~Impl() {
    pool_.reset();
    node_.reset();
  }

  SkewResult Run(uint32_t count) {
    SkewResult result;
    result.clients = count;
    measuring_ = stopping_ = false;
    latencies_ns_.clear();
    std::vector<Process> processes;
    for (uint32_t i = 0; i < count; ++i) {
      Process process;
      process.store = OpenStore();
      process.client =
          process.store
              ->NewClient({.max_in_flight = options_.lanes, .address_cache_entries = options_.address_cache_entries})
              .value();
      processes.push_back(std::move(process));
    }
    for (Process& process : processes) {
      for (uint32_t lane = 0; lane < options_.lanes; ++lane) process.client->Spawn(Lane(*process.client, random_()));
    }
    Drive(processes, world_.now_ns() + options_.warm_up_ns);
    for (Process& process : processes) process.before = process.client->stats();
    measuring_ = true;
    Drive(processes, world_.now_ns() + options_.measured_ns);
    measuring_ = false;
    for (Process& process : processes) AddDifference(process.before, process.client->stats(), &result.stats);
    stopping_ = true;
    while (std::any_of(processes.begin(), processes.end(), [](Process& p) { return p.client->spawned() > 0; })) {
      Drive(processes, world_.now_ns() + 100'000);
    }
    for (Process& process : processes) process.client.reset();
    result.operations = latencies_ns_.size();
    result.mops = static_cast<double>(result.operations) * 1e3 / static_cast<double>(options_.measured_ns);
    std::sort(latencies_ns_.begin(), latencies_ns_.end());
    const auto at = [this](double part) {
      if (latencies_ns_.empty()) return 0.0;
      return static_cast<double>(latencies_ns_[static_cast<size_t>(part * (latencies_ns_.size() - 1))]) / 1e3;
    };
    result.p50_us = at(0.5);
    result.p99_us = at(0.99);
    result.p999_us = at(0.999);
    result.max_us = at(1);
    return result;
  }

 private:
  struct Process {
    std::unique_ptr<kvs::Store> store;
    std::unique_ptr<Client> client;
    kvs::ClientStats before;
    bool again = true;  // the last Poll did something: what it staged goes out with the next one
  };

  static std::string KeyOf(uint64_t number) { return "user" + std::to_string(number); }

  std::unique_ptr<kvs::Store> OpenStore() {
    kvs::StoreOptions store;
    store.rnic = "sim";
    store.fabric = "skew-study";
    store.clock = &world_.clock();
    return kvs::Store::Open(store).value();
  }

  void DrawSums() {
    sums_.resize(options_.keys);
    double sum = 0;
    for (uint64_t rank = 0; rank < options_.keys; ++rank) {
      sum += std::pow(static_cast<double>(rank + 1), -options_.zipf);
      sums_[rank] = sum;
    }
  }
  std::string DrawKey(std::mt19937_64& random) {
    const double drawn = std::uniform_real_distribution<double>(0, sums_.back())(random);
    return KeyOf(static_cast<uint64_t>(std::lower_bound(sums_.begin(), sums_.end(), drawn) - sums_.begin()));
  }

  Task<void> LoadLane(Client& client, uint64_t* next) {
    const std::string value(options_.value_bytes, 'v');
    while (*next < options_.keys) {
      const std::string key = KeyOf((*next)++);
      const Status status = co_await client.InsertAsync(key, value);
      Check(status);
    }
  }

  void Load() {
    std::vector<Process> loader(1);
    loader[0].store = OpenStore();
    loader[0].client = loader[0].store->NewClient({.max_in_flight = 256, .address_cache_entries = 0}).value();
    uint64_t next = 0;
    for (int i = 0; i < 256; ++i) loader[0].client->Spawn(LoadLane(*loader[0].client, &next));
    while (loader[0].client->spawned() > 0) Drive(loader, world_.now_ns() + 100'000);
  }

  Task<void> Lane(Client& client, uint64_t seed) {
    std::mt19937_64 random(seed);
    std::string value(options_.value_bytes, 'u'), read;
    while (!stopping_) {
      const std::string key = DrawKey(random);
      const bool reads = random() % 100 < options_.read_percent;
      const int64_t from_ns = world_.now_ns();
      Status status;
      if (reads) {
        status = co_await client.GetAsync(key, &read);
      } else {
        status = co_await client.UpdateAsync(key, value);
      }
      Check(status);
      if (measuring_) latencies_ns_.push_back(world_.now_ns() - from_ns);
    }
  }

  // Clients are polled when they have completions, when they have just staged something, and now and then for their
  // back-offs; a Poll takes as long as the cost model says.
  void Drive(std::vector<Process>& processes, int64_t until_ns) {
    constexpr uint32_t kIdlePollEvery = 4;
    const int64_t step_ns = sim::CostModel{}.poll_ns;
    for (; world_.now_ns() < until_ns; ++turns_) {
      world_.RunUntil(world_.now_ns() + step_ns);
      for (size_t i = 0; i < processes.size(); ++i) {
        Process& process = processes[i];
        const bool due = (turns_ + i) % kIdlePollEvery == 0;
        if (!process.again && !due && !world_.HasCompletions(process.store->node().id())) continue;
        const uint64_t trips = process.client->stats().round_trips;
        (void)process.client->Poll();
        process.again = process.client->stats().round_trips != trips;
      }
    }
  }

  const SkewOptions options_;
  sim::World world_;
  std::mt19937_64 random_;
  std::unique_ptr<krcore::Node> node_;
  std::unique_ptr<krcore::Region> pool_;
  std::vector<double> sums_;
  std::vector<int64_t> latencies_ns_;
  bool measuring_ = false, stopping_ = false;
  uint64_t turns_ = 0;
};

SkewStudy::SkewStudy(const SkewOptions& options) : impl_(std::make_unique<Impl>(options)) {}
SkewStudy::~SkewStudy() = default;
SkewResult SkewStudy::Run(uint32_t clients) { return impl_->Run(clients); }

}  // namespace surgekv_bench
