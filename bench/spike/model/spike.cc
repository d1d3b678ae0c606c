#include "bench/spike/model/spike.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <random>

#include "bench/spike/model/bootstrap.h"
#include "bench/spike/model/servers.h"

namespace spike_model {
namespace {

constexpr int64_t kSecond = 1'000'000'000;

uint32_t SteadyQueues(const SpikeConfig& config) {
  if (config.plane != Plane::kKrcoreRc) return 0;
  return PromotedQueues(config.cluster, config.constants, config.target_utilisation);
}

double RcShare(const SpikeConfig& config, uint32_t queues) {
  return static_cast<double>(queues) / config.cluster.memory_nodes;
}

class Run {
 public:
  explicit Run(const SpikeConfig& config)
      : config_(config),
        spike_ns_(config.before_ns),
        end_of_spike_ns_(spike_ns_ + config.spike_ns),
        scaler_(PolicyOf(config)),
        random_(config.seed),
        bootstrap_(config.plane, config.spawn, config.cluster, config.constants, SteadyQueues(config), config.seed + 1,
                   {.serving = [this](uint32_t worker) { Serving(worker); },
                    .promoted = [this](uint32_t worker, uint32_t queues) { SetService(worker, queues); },
                    .stalled = [this](uint32_t worker, double ns) { servers_->Stall(worker, ns); }}) {
    const int64_t steady_ns = end_of_spike_ns_ - config.spike_ns / 4;
    std::vector<WaitWindow> windows = {
        {spike_ns_, spike_ns_ + kSecond, {}}, {steady_ns, end_of_spike_ns_, {}}, {spike_ns_, end_of_spike_ns_, {}}};
    servers_ = config.exact ? MakeExactServers(std::move(windows), config.seed + 2)
                            : MakeFluidServers(std::move(windows), NicLimitPerS(config.cluster, config.constants));
  }

  SpikeResult Execute() {
    StartInitial();
    const int64_t end_ns = end_of_spike_ns_ + config_.after_ns;
    for (int64_t now_ns = 0; now_ns < end_ns; now_ns += config_.interval_ns) {
      if (now_ns == spike_ns_) SpikeBegins();
      if (!spike_ended_ && now_ns >= end_of_spike_ns_) SpikeEnds();
      Interval(now_ns, now_ns + config_.interval_ns);
    }
    if (!spike_ended_) SpikeEnds();
    Finish();
    return result_;
  }

 private:
  double LoadAt(int64_t now_ns) const {
    const bool in_spike = now_ns >= spike_ns_ && now_ns < end_of_spike_ns_;
    return config_.base_per_s * (in_spike ? config_.spike_factor : 1);
  }

  void StartInitial() {
    const computenode::ScalePolicy& policy = scaler_.policy();
    const double needed = config_.base_per_s / (policy.capacity_per_s * policy.target_utilisation);
    const double kept = std::ceil(needed * (1 + policy.Reserve()) * (1 + policy.scale_in_margin));
    const auto count = static_cast<uint32_t>(std::min<double>(kept, policy.max_workers));
    for (uint32_t i = 0; i < count; ++i) {
      const uint32_t worker = bootstrap_.AddServing();
      AddToServers(worker, SteadyQueues(config_));
    }
  }

  void AddToServers(uint32_t worker, uint32_t queues) {
    if (service_ns_.size() <= worker) service_ns_.resize(worker + 1);
    service_ns_[worker] = ServiceOf(queues);
    servers_->Add(worker, service_ns_[worker]);
    capacity_ += 1e9 / service_ns_[worker];
  }
  void SetService(uint32_t worker, uint32_t queues) {
    const double before = service_ns_[worker];
    service_ns_[worker] = ServiceOf(queues);
    capacity_ += 1e9 / service_ns_[worker] - 1e9 / before;
    servers_->SetService(worker, service_ns_[worker]);
  }
  void Serving(uint32_t worker) {
    AddToServers(worker, 0);
    serving_times_ns_.push_back(event_ns_);
    NoteFull(event_ns_);
  }
  double ServiceOf(uint32_t queues) const {
    return ServiceNs(config_.plane, config_.cluster, config_.constants, RcShare(config_, queues));
  }

  void NoteFull(int64_t now_ns) {
    if (result_.to_full_ns >= 0 || now_ns < spike_ns_) return;
    if (capacity_ >= 0.9 * LoadAt(spike_ns_)) result_.to_full_ns = now_ns - spike_ns_;
  }

  void SpikeBegins() {
    result_.workers_before = bootstrap_.workers();
    made_before_ = bootstrap_.connections_made();
    paid_before_ = result_.worker_seconds;
    NoteFull(spike_ns_);
  }
  void SpikeEnds() {
    spike_ended_ = true;
    result_.workers_plateau = bootstrap_.workers() - bootstrap_.starting();
    result_.connections_made = bootstrap_.connections_made() - made_before_;
    result_.connections_plateau = bootstrap_.connections();
    result_.connection_bytes = ConnectionBytes(config_.plane, config_.cluster, bootstrap_.workers(),
                                               bootstrap_.hosts_used(), bootstrap_.connections());
    result_.steady_per_worker_per_s = capacity_ / std::max(1U, result_.workers_plateau);
  }

  void Interval(int64_t from_ns, int64_t to_ns) {
    const double seconds = static_cast<double>(to_ns - from_ns) / 1e9;
    std::poisson_distribution<int64_t> arrivals(LoadAt(from_ns) * seconds);
    const auto count = static_cast<double>(arrivals(random_));
    if (from_ns >= spike_ns_ && from_ns < spike_ns_ + kBeginNs) arrived_in_begin_ += count;
    servers_->Arrive(to_ns, count);
    for (event_ns_ = bootstrap_.next_ns(); event_ns_ < to_ns; event_ns_ = bootstrap_.next_ns()) {
      servers_->Advance(std::max(event_ns_, servers_->now_ns()));
      bootstrap_.Step();
    }
    servers_->Advance(to_ns);
    result_.worker_seconds += bootstrap_.workers() * seconds;
    result_.workers_peak = std::max(result_.workers_peak, bootstrap_.workers());
    Decide(to_ns, count / seconds);
  }

  void Decide(int64_t now_ns, double arrivals_per_s) {
    computenode::ScaleSample sample;
    sample.now_ns = now_ns;
    sample.starting = bootstrap_.starting();
    sample.workers = bootstrap_.workers() - sample.starting;
    sample.arrivals_per_s = arrivals_per_s;
    sample.backlog = servers_->backlog();
    sample.oldest_wait_ns = servers_->oldest_wait_ns();
    sample.utilisation = result_.utilisation_end = servers_->TakeUtilisation();
    const computenode::ScaleDecision decision = scaler_.Decide(sample);
    if (!decision.changes()) return;
    result_.decisions.push_back(decision.ToString());
    for (uint32_t i = decision.before; i < decision.workers; ++i) {
      bootstrap_.Start(now_ns);
      ++result_.workers_started;
    }
    for (uint32_t i = decision.workers; i < decision.before; ++i) {
      bool was_serving = false;
      const uint32_t worker = bootstrap_.RetireYoungest(&was_serving);
      if (!was_serving) continue;
      servers_->Remove(worker);
      capacity_ -= 1e9 / service_ns_[worker];
    }
  }

  void Finish() {
    result_.declared_per_s = scaler_.policy().capacity_per_s;
    const std::vector<WaitWindow>& windows = servers_->windows();
    result_.wait_p99_ns = windows[0].waits.Percentile(99);
    // What still waits at the end has waited since the spike's begin.
    if (windows[0].waits.weight() < 0.999 * arrived_in_begin_) {
      result_.wait_p99_ns = std::max(result_.wait_p99_ns, static_cast<double>(servers_->oldest_wait_ns()));
    }
    result_.wait_max_ns = windows[2].waits.max_ns();
    result_.late_share = windows[2].waits.ShareAbove(static_cast<double>(config_.slo_ns));
    result_.service_ns = 1e9 / result_.steady_per_worker_per_s;
    const double steady_utilisation =
        LoadAt(spike_ns_) / (result_.steady_per_worker_per_s * std::max(1U, result_.workers_plateau));
    // The fluid has no waits by chance.
    result_.steady_wait_p99_ns =
        std::max(windows[1].waits.Percentile(99),
                 config_.exact ? 0 : MdnWaitNs(result_.workers_plateau, result_.service_ns, steady_utilisation, 99));
    result_.worker_seconds_spike = result_.worker_seconds - paid_before_;
    std::vector<int64_t> took;
    for (size_t i = 0; i < serving_times_ns_.size(); ++i) {
      const int64_t bootstrap_ns = bootstrap_.bootstraps_ns()[i];
      const int64_t wanted_ns = serving_times_ns_[i] - bootstrap_ns - spike_ns_;
      if (wanted_ns < 0 || wanted_ns >= kSecond + config_.interval_ns) continue;
      took.push_back(bootstrap_ns);
      result_.all_serving_ns = std::max(result_.all_serving_ns, wanted_ns + bootstrap_ns);
    }
    std::sort(took.begin(), took.end());
    if (!took.empty()) {
      result_.bootstrap_p50_ns = took[took.size() / 2];
      result_.bootstrap_p99_ns = took[took.size() * 99 / 100];
      result_.bootstrap_max_ns = took.back();
    }
    result_.workers_end = bootstrap_.workers();
    result_.arrived = servers_->arrived();
    result_.begun = servers_->begun();
    result_.left = servers_->backlog();
  }

  const SpikeConfig config_;
  const int64_t spike_ns_, end_of_spike_ns_;
  computenode::Autoscaler scaler_;
  std::mt19937_64 random_;
  std::unique_ptr<Servers> servers_;
  Bootstrap bootstrap_;
  std::vector<double> service_ns_;  // of each worker
  double capacity_ = 0;             // a second, of those serving
  int64_t event_ns_ = 0;
  std::vector<int64_t> serving_times_ns_;
  bool spike_ended_ = false;
  uint64_t made_before_ = 0;
  double paid_before_ = 0;
  double arrived_in_begin_ = 0;  // requests that arrived in the spike's
  SpikeResult result_;
};

}  // namespace

double DeclaredPerS(const SpikeConfig& config) {
  const double share = PromotedShare(config.cluster, SteadyQueues(config));
  return 1e9 / ServiceNs(config.plane, config.cluster, config.constants, share);
}

computenode::ScalePolicy PolicyOf(const SpikeConfig& config) {
  computenode::ScalePolicy policy;
  policy.capacity_per_s = DeclaredPerS(config);
  policy.slo_ns = config.slo_ns;
  policy.target_utilisation = config.target_utilisation;
  policy.max_workers = config.cluster.workers();
  policy.max_step = policy.max_workers;
  policy.scale_in_step = std::max(1U, policy.max_workers / 100);
  policy.bootstrap_ns = config.bootstrap_ns;
  policy.reaction_ns = config.interval_ns;
  policy.surge_factor = config.spike_factor;
  policy.reserve = config.reserve;
  policy.scale_in_after_ns = config.scale_in_after_ns;
  return policy;
}

SpikeResult Simulate(const SpikeConfig& config) { return Run(config).Execute(); }

}  // namespace spike_model
