#include "bench/spike/model/servers.h"

#include <algorithm>
#include <cassert>
#include <cmath>

namespace spike_model {
namespace {

constexpr double kBucketsPerOctave = 64;

size_t BucketOf(double wait_ns) {
  return wait_ns < 1 ? 0 : static_cast<size_t>(std::ceil(std::log2(wait_ns) * kBucketsPerOctave)) + 1;
}

}  // namespace

void Waits::Add(double wait_ns, double weight) {
  const size_t bucket = BucketOf(wait_ns);
  if (bucket >= buckets_.size()) buckets_.resize(bucket + 1);
  buckets_[bucket] += weight;
  weight_ += weight;
  sum_ += wait_ns * weight;
  max_ = std::max(max_, wait_ns);
}

double Waits::Percentile(double percent) const {
  double below = 0;
  for (size_t bucket = 0; bucket < buckets_.size(); ++bucket) {
    below += buckets_[bucket];
    if (below < weight_ * percent / 100) continue;
    return bucket == 0 ? 0 : std::min(max_, std::exp2(static_cast<double>(bucket - 1) / kBucketsPerOctave));
  }
  return max_;
}

double Waits::ShareAbove(double wait_ns) const {
  double above = 0;
  for (size_t bucket = BucketOf(wait_ns) + 1; bucket < buckets_.size(); ++bucket) above += buckets_[bucket];
  return weight_ == 0 ? 0 : above / weight_;
}

void Servers::Record(double arrived_ns, double wait_ns, double weight) {
  for (WaitWindow& window : windows_) {
    if (arrived_ns >= static_cast<double>(window.from_ns) && arrived_ns < static_cast<double>(window.to_ns)) {
      window.waits.Add(std::max(wait_ns, 0.0), weight);
    }
  }
}

double Servers::TakeUtilisation() {
  const double share = worker_ns_ == 0 ? 0 : std::min(1.0, busy_ns_ / worker_ns_);
  busy_ns_ = worker_ns_ = 0;
  return share;
}

namespace {

class FluidServers final : public Servers {
 public:
  FluidServers(std::vector<WaitWindow> windows, double limit_per_s)
      : Servers(std::move(windows)), limit_per_ns_(limit_per_s / 1e9) {}

  void Add(uint32_t id, double service_ns) override {
    service_ns_[id] = service_ns;
    rate_ += 1 / service_ns;
  }
  void SetService(uint32_t id, double service_ns) override {
    rate_ += 1 / service_ns - 1 / service_ns_.at(id);
    service_ns_[id] = service_ns;
  }
  void Remove(uint32_t id) override {
    rate_ -= 1 / service_ns_.at(id);
    service_ns_.erase(id);
    if (service_ns_.empty()) rate_ = 0;  // and not what rounding left
  }
  void Stall(uint32_t id, double ns) override { owed_ += ns / service_ns_.at(id); }

  void Arrive(int64_t to_ns, double count) override {
    arrived_ += count;
    if (count > 0) drops_.push_back({static_cast<double>(now_ns_), static_cast<double>(to_ns), count});
  }

  void Advance(int64_t to_ns) override {
    auto now = static_cast<double>(now_ns_);
    const auto to = static_cast<double>(to_ns);
    worker_ns_ += static_cast<double>(service_ns_.size()) * (to - now);
    const double rate = std::min(rate_, limit_per_ns_);
    now_ns_ = to_ns;
    if (rate <= 0) return;
    // Work that stalls have taken from the workers comes first.
    const double paid = std::min(owed_, rate * (to - now));
    owed_ -= paid;
    Busy(paid);
    now += paid / rate;
    while (!drops_.empty() && now < to) {
      Drop& drop = drops_.front();
      now = std::max(now, drop.from);
      if (now >= to) break;
      Drain(drop, &now, to, rate);
      if (drop.count <= 1e-9 || drop.from >= drop.to) drops_.pop_front();
    }
  }

  double backlog() const override { return drops_.empty() ? 0 : std::max(0.0, arrived_ - begun_); }
  int64_t oldest_wait_ns() const override {
    return drops_.empty() ? 0 : std::max<int64_t>(0, now_ns_ - static_cast<int64_t>(drops_.front().from));
  }

 private:
  // Requests that arrive evenly in [from, to).
  struct Drop {
    double from, to, count;
  };

  void Busy(double requests) { busy_ns_ += requests / rate_ * static_cast<double>(service_ns_.size()); }

  // Serves the head of `drop` from *now on: until it is empty, until `to`, or until the queue has caught up with the
  // arrivals, whose waits are 0 from then on.
  void Drain(Drop& drop, double* now, double to, double rate) {
    const double arrivals = drop.count / (drop.to - drop.from);
    const double wait = *now - drop.from;
    if (wait < 1 && rate >= arrivals) {  // as they come
      const double end = std::min(to, drop.to);
      Serve(drop, end - drop.from, 0, 0);
      *now = end;
      return;
    }
    const double speed = rate / arrivals;  // how fast the arrival times of those served go by
    double took = std::min(to - *now, (drop.to - drop.from) / speed);
    if (speed > 1) took = std::min(took, wait / (speed - 1));
    *now += took;
    Serve(drop, took * speed, wait, wait + took * (1 - speed));
  }

  // The requests that arrived in the first `span` of `drop` are served; their waits go from `first` to `last`.
  void Serve(Drop& drop, double span, double first, double last) {
    const double share = std::min(1.0, span / (drop.to - drop.from));
    const double served = drop.count * share;
    const int parts = std::abs(last - first) < 1000 ? 1 : 8;
    for (int part = 0; part < parts; ++part) {
      const double at = (part + 0.5) / parts;
      Record(drop.from + span * at, first + (last - first) * at, served / parts);
    }
    begun_ += served;
    Busy(served);
    drop.count -= served;
    drop.from = share >= 1 ? drop.to : drop.from + span;
  }

  const double limit_per_ns_;
  std::unordered_map<uint32_t, double> service_ns_;
  double rate_ = 0;  // requests a ns
  double owed_ = 0;  // requests not served because of stalls
  std::deque<Drop> drops_;
};

class ExactServers final : public Servers {
 public:
  ExactServers(std::vector<WaitWindow> windows, uint64_t seed) : Servers(std::move(windows)), random_(seed) {}

  void Add(uint32_t id, double service_ns) override { Insert(id, {static_cast<double>(now_ns_), service_ns}); }
  void SetService(uint32_t id, double service_ns) override { workers_.at(id).service_ns = service_ns; }
  void Remove(uint32_t id) override {
    free_.erase({workers_.at(id).free_ns, id});
    workers_.erase(id);
  }
  void Stall(uint32_t id, double ns) override {
    Worker worker = workers_.at(id);
    Remove(id);
    worker.free_ns = std::max(worker.free_ns, static_cast<double>(now_ns_)) + ns;
    Insert(id, worker);
  }

  void Arrive(int64_t to_ns, double count) override {
    const auto requests = static_cast<size_t>(std::llround(count));
    std::uniform_real_distribution<double> at(static_cast<double>(now_ns_), static_cast<double>(to_ns));
    std::vector<double> times(requests);
    for (double& time : times) time = at(random_);
    std::sort(times.begin(), times.end());
    waiting_.insert(waiting_.end(), times.begin(), times.end());
    arrived_ += static_cast<double>(requests);
  }

  void Advance(int64_t to_ns) override {
    worker_ns_ += static_cast<double>(workers_.size()) * static_cast<double>(to_ns - now_ns_);
    while (!waiting_.empty() && !free_.empty()) {
      const auto [free_ns, id] = *free_.begin();
      const double begin = std::max(free_ns, waiting_.front());
      if (begin >= static_cast<double>(to_ns)) break;
      Record(waiting_.front(), begin - waiting_.front(), 1);
      waiting_.pop_front();
      begun_ += 1;
      Worker& worker = workers_.at(id);
      busy_ns_ += worker.service_ns;
      free_.erase(free_.begin());
      worker.free_ns = begin + worker.service_ns;
      free_.insert({worker.free_ns, id});
    }
    now_ns_ = to_ns;
  }

  double backlog() const override { return static_cast<double>(waiting_.size()); }
  int64_t oldest_wait_ns() const override {
    return waiting_.empty() ? 0 : std::max<int64_t>(0, now_ns_ - static_cast<int64_t>(waiting_.front()));
  }

 private:
  struct Worker {
    double free_ns, service_ns;
  };
  void Insert(uint32_t id, const Worker& worker) {
    assert(workers_.count(id) == 0);
    workers_[id] = worker;
    free_.insert({worker.free_ns, id});
  }

  std::mt19937_64 random_;
  std::unordered_map<uint32_t, Worker> workers_;
  std::set<std::pair<double, uint32_t>> free_;  // when each is free, earliest first
  std::deque<double> waiting_;                  // arrival times
};

}  // namespace

std::unique_ptr<Servers> MakeFluidServers(std::vector<WaitWindow> windows, double limit_per_s) {
  return std::make_unique<FluidServers>(std::move(windows), limit_per_s);
}

std::unique_ptr<Servers> MakeExactServers(std::vector<WaitWindow> windows, uint64_t seed) {
  return std::make_unique<ExactServers>(std::move(windows), seed);
}

double ErlangC(uint32_t n, double load) {
  // By the recursion of Erlang B, which cannot overflow.
  double blocked = 1;
  for (uint32_t k = 1; k <= n; ++k) blocked = load * blocked / (k + load * blocked);
  const double utilisation = load / n;
  return utilisation >= 1 ? 1 : blocked / (1 - utilisation * (1 - blocked));
}

double MdnWaitNs(uint32_t n, double service_ns, double utilisation, double percent) {
  if (utilisation >= 1) return std::numeric_limits<double>::infinity();
  const double waits = ErlangC(n, utilisation * n);
  const double tail = 1 - percent / 100;
  if (waits <= tail) return 0;
  return 0.5 * std::log(waits / tail) * service_ns / (n * (1 - utilisation));
}

}  // namespace spike_model
