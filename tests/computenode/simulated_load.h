// Load and workers in virtual time, for tests of the Autoscaler.
#ifndef TESTS_COMPUTENODE_SIMULATED_LOAD_H_
#define TESTS_COMPUTENODE_SIMULATED_LOAD_H_

#include <algorithm>
#include <cstdint>
#include <deque>
#include <functional>
#include <vector>

#include "computenode/elastic/autoscaler.h"

namespace computenode {

inline constexpr int64_t kMs = 1'000'000;
inline constexpr int64_t kSecond = 1'000'000'000;

inline ScalePolicy Policy() {
  return {.capacity_per_s = 1000,
          .slo_ns = 10 * kMs,
          .target_utilisation = 0.7,
          .min_workers = 1,
          .max_workers = 100,
          .bootstrap_ns = kMs / 10,
          .reaction_ns = kMs,
          .scale_in_after_ns = kSecond};
}

inline ScaleSample Calm(int64_t now_ns, uint32_t workers, double arrivals_per_s) {
  return {.now_ns = now_ns, .workers = workers, .arrivals_per_s = arrivals_per_s};
}

// A queue in virtual time whose workers the Autoscaler starts and retires: each tick some requests arrive, the workers
// that have started take what they can, first come first served.
class Simulated {
 public:
  Simulated(const ScalePolicy& policy, uint32_t workers, int64_t tick_ns)
      : scaler_(policy), tick_ns_(tick_ns), workers_(workers) {}

  // `arrivals(now_ns)`: how many come in this tick.
  void Run(int64_t until_ns, const std::function<double(int64_t)>& arrivals) {
    for (; now_ns_ < until_ns; now_ns_ += tick_ns_) {
      Tick(arrivals(now_ns_));
      const ScaleDecision decision = scaler_.Decide(Sample());
      decisions_.push_back(decision);
      if (decision.workers > decision.before)
        starting_.push_back({now_ns_ + scaler_.policy().bootstrap_ns, decision.workers - decision.before});
      for (uint32_t fewer = decision.before - std::min(decision.workers, decision.before); fewer > 0; --fewer) {
        if (starting_.empty()) {
          --workers_;
        } else if (--starting_.back().workers == 0) {
          starting_.pop_back();
        }
      }
    }
  }
  uint32_t workers() const { return workers_ + Starting(); }
  int64_t now_ns() const { return now_ns_; }
  int64_t worst_wait_ns() const { return worst_wait_ns_; }
  void ForgetWorstWait() { worst_wait_ns_ = 0; }
  double slowness = 1;  // real capacity: declared / slowness
  const std::vector<ScaleDecision>& decisions() const { return decisions_; }
  int ChangesSince(int64_t ns) const {
    return static_cast<int>(std::count_if(decisions_.begin(), decisions_.end(), [ns](const ScaleDecision& decision) {
      return decision.sample.now_ns >= ns && decision.changes();
    }));
  }

 private:
  struct Group {
    int64_t at_ns;
    uint32_t workers;
  };
  struct Waiting {
    int64_t at_ns;
    double requests;
  };
  uint32_t Starting() const {
    uint32_t sum = 0;
    for (const Group& group : starting_) sum += group.workers;
    return sum;
  }
  void Tick(double arrived) {
    const double seconds = static_cast<double>(tick_ns_) / 1e9;
    while (!starting_.empty() && starting_.front().at_ns <= now_ns_) {
      workers_ += starting_.front().workers;
      starting_.pop_front();
    }
    rate_ = arrived / seconds;
    if (arrived > 0) queue_.push_back({now_ns_, arrived});
    const double can = workers_ * scaler_.policy().capacity_per_s * seconds / slowness;
    double left = can;
    while (!queue_.empty() && left > 0) {
      worst_wait_ns_ = std::max(worst_wait_ns_, now_ns_ - queue_.front().at_ns);
      const double taken = std::min(left, queue_.front().requests);
      left -= taken;
      queue_.front().requests -= taken;
      if (queue_.front().requests < 1e-9) queue_.pop_front();
    }
    utilisation_ = can > 0 ? 1 - left / can : 0;
  }
  ScaleSample Sample() const {
    ScaleSample sample{.now_ns = now_ns_, .workers = workers_, .starting = Starting(), .arrivals_per_s = rate_};
    for (const Waiting& waiting : queue_) sample.backlog += waiting.requests;
    sample.oldest_wait_ns = queue_.empty() ? 0 : now_ns_ - queue_.front().at_ns;
    sample.utilisation = utilisation_;
    return sample;
  }

  Autoscaler scaler_;
  const int64_t tick_ns_;
  int64_t now_ns_ = 0;
  uint32_t workers_;
  std::deque<Group> starting_;
  std::deque<Waiting> queue_;
  double rate_ = 0, utilisation_ = 0;
  int64_t worst_wait_ns_ = 0;
  std::vector<ScaleDecision> decisions_;
};

inline std::function<double(int64_t)> Constant(double per_s, int64_t tick_ns) {
  return [=](int64_t) { return per_s * static_cast<double>(tick_ns) / 1e9; };
}

}  // namespace computenode

#endif  // TESTS_COMPUTENODE_SIMULATED_LOAD_H_
