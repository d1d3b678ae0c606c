#include "computenode/elastic/autoscaler.h"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <cstdio>

namespace computenode {
namespace {

using krcore::Status;
using krcore::StatusCode;

Status Refuse(const char* field, double value, const char* allowed) {
  char text[160];
  std::snprintf(text, sizeof text, "scale policy: %s is %.10g; allowed: %s", field, value, allowed);
  return {StatusCode::kInvalidArgument, text};
}

// Also handles NaN: std::max(0, NaN) is 0.
double NotNegative(double value) { return std::max(0.0, value); }

ScaleSample Cleaned(ScaleSample sample) {
  sample.arrivals_per_s = NotNegative(sample.arrivals_per_s);
  sample.backlog = NotNegative(sample.backlog);
  sample.oldest_wait_ns = std::max<int64_t>(0, sample.oldest_wait_ns);
  sample.utilisation = std::min(NotNegative(sample.utilisation), 1.0);
  return sample;
}

// Returns whole workers, at most `max`. A value that exceeds a whole number only by a rounding error counts as that
// number.
uint32_t WholeWorkers(double needed, uint32_t max) {
  const double whole = std::ceil(needed * (1 - 1e-9));
  return whole >= max ? max : static_cast<uint32_t>(NotNegative(whole));
}

double BacklogNeed(const ScalePolicy& policy, const ScaleSample& sample) {
  const double start_s = static_cast<double>(policy.bootstrap_ns) / 1e9;
  // Those that are starting have part of their start behind them: on average half.
  const double serving = sample.workers + 0.5 * sample.starting;
  const double later =
      NotNegative(sample.backlog + (sample.arrivals_per_s - serving * policy.capacity_per_s) * start_s);
  const double drain_s = static_cast<double>(policy.DrainNs()) / 1e9;
  return (sample.arrivals_per_s + later / drain_s) / policy.capacity_per_s;
}

// Returns the standard deviation of a Poisson load, in workers.
double NoiseWorkers(const ScalePolicy& policy, const ScaleSample& sample) {
  if (policy.reaction_ns == 0) return 0;
  const double window_s = static_cast<double>(policy.reaction_ns) / 1e9;
  const double per_s = std::sqrt(sample.arrivals_per_s * window_s) / window_s;
  return per_s / (policy.capacity_per_s * policy.target_utilisation);
}

double ReserveNeed(const ScalePolicy& policy, double load) {
  const double planned = load * (1 + policy.Reserve());
  if (policy.reserve >= 0) return planned;
  // The largest surge is the load that max_workers can carry; for it, the share (1 - s / T) of them must be there.
  const double share = NotNegative(1 - static_cast<double>(policy.slo_ns) / static_cast<double>(policy.StartNs()));
  const double largest = policy.max_workers * policy.target_utilisation * share;
  return std::max(load, std::min(planned, largest));
}

}  // namespace

Status ScalePolicy::Validate() const {
  if (!(capacity_per_s > 0 && std::isfinite(capacity_per_s))) {
    return Refuse("capacity_per_s", capacity_per_s, "more than 0, the requests per second that one worker can serve");
  }
  if (slo_ns <= 0) return Refuse("slo_ns", static_cast<double>(slo_ns), "more than 0");
  if (!(target_utilisation > 0 && target_utilisation <= 1)) {
    return Refuse("target_utilisation", target_utilisation, "more than 0 and at most 1");
  }
  if (max_workers == 0) return Refuse("max_workers", max_workers, "1 or more");
  if (min_workers > max_workers) return Refuse("min_workers", min_workers, "at most max_workers");
  if (max_step == 0) return Refuse("max_step", max_step, "1 or more");
  if (scale_in_step == 0 || scale_in_step > max_step) {
    return Refuse("scale_in_step", scale_in_step, "1 to max_step");
  }
  if (bootstrap_ns < 0) return Refuse("bootstrap_ns", static_cast<double>(bootstrap_ns), "0 or more");
  if (reaction_ns < 0) return Refuse("reaction_ns", static_cast<double>(reaction_ns), "0 or more");
  if (!(surge_factor >= 1 && std::isfinite(surge_factor))) return Refuse("surge_factor", surge_factor, "1 or more");
  if (!((reserve >= 0 && std::isfinite(reserve)) || reserve == kDerived)) {
    return Refuse("reserve", reserve, "0 or more, or -1 to derive it from surge_factor, bootstrap_ns and slo_ns");
  }
  if (scale_in_after_ns < 0) return Refuse("scale_in_after_ns", static_cast<double>(scale_in_after_ns), "0 or more");
  if (!(scale_in_margin >= 0 && std::isfinite(scale_in_margin))) {
    return Refuse("scale_in_margin", scale_in_margin, "0 or more");
  }
  return Status::Ok();
}

int64_t ScalePolicy::DrainNs() const { return std::max(slo_ns, bootstrap_ns); }

double ScalePolicy::Reserve() const {
  if (reserve >= 0) return reserve;
  const double share = 1 - static_cast<double>(slo_ns) / static_cast<double>(StartNs());
  return NotNegative(surge_factor * target_utilisation * share - 1);
}

std::string_view ScaleReasonName(ScaleReason reason) {
  switch (reason) {
    case ScaleReason::kEnough: return "enough";
    case ScaleReason::kLoad: return "load";
    case ScaleReason::kReserve: return "reserve";
    case ScaleReason::kBacklog: return "backlog";
    case ScaleReason::kUtilisation: return "utilisation";
    case ScaleReason::kLate: return "late";
    case ScaleReason::kMinimum: return "minimum";
    case ScaleReason::kHeld: return "held";
    case ScaleReason::kScaleIn: return "scale in";
    case ScaleReason::kMaximum: return "maximum";
  }
  return "?";
}

std::string ScaleDecision::ToString() const {
  const std::string reason_name(ScaleReasonName(reason));
  char text[768];
  std::snprintf(
      text, sizeof text,
      "workers %u -> %u (%s%s%s): serving %u, starting %u, arrivals %.1f/s, backlog %.1f, oldest wait %.3f ms, "
      "utilisation %.3f; needs load %.2f, reserve %.2f, backlog %.2f, utilisation %.2f, late %.2f, held %.2f; "
      "policy: capacity %.1f/s at %.2f, reserve %.3f, SLO %.3f ms, start %.3f ms, workers %u to %u, "
      "steps +%u -%u, scale in after %.3f s; at %.6f s",
      before, workers, reason_name.c_str(), limited_by_step ? ", limited by step" : "",
      limited_by_maximum ? ", limited by maximum" : "", sample.workers, sample.starting, sample.arrivals_per_s,
      sample.backlog, static_cast<double>(sample.oldest_wait_ns) / 1e6, sample.utilisation, need_load, need_reserve,
      need_backlog, need_utilisation, need_late, held, policy.capacity_per_s, policy.target_utilisation,
      policy.Reserve(), static_cast<double>(policy.slo_ns) / 1e6, static_cast<double>(policy.StartNs()) / 1e6,
      policy.min_workers, policy.max_workers, policy.max_step, policy.scale_in_step,
      static_cast<double>(policy.scale_in_after_ns) / 1e9, static_cast<double>(sample.now_ns) / 1e9);
  return text;
}

Autoscaler::Autoscaler(const ScalePolicy& policy) : policy_(policy) { assert(policy.Validate().ok()); }

double Autoscaler::Hold(int64_t now_ns, double workers) {
  while (!held_.empty() && held_.back().workers <= workers) held_.pop_back();
  held_.push_back({now_ns, workers});
  while (now_ns - held_.front().at_ns > policy_.scale_in_after_ns) held_.pop_front();
  return held_.front().workers;
}

ScaleDecision Autoscaler::Decide(const ScaleSample& sample) {
  ScaleDecision decision;
  decision.policy = policy_;
  decision.sample = Cleaned(sample);
  ScaleSample& seen = decision.sample;
  if (!started_) first_ns_ = last_ns_ = seen.now_ns;
  started_ = true;
  seen.now_ns = last_ns_ = std::max(last_ns_, seen.now_ns);
  const uint64_t sum = uint64_t{seen.workers} + seen.starting;
  const auto before = static_cast<uint32_t>(std::min<uint64_t>(sum, UINT32_MAX));
  decision.before = before;

  decision.need_load = seen.arrivals_per_s / (policy_.capacity_per_s * policy_.target_utilisation);
  decision.need_reserve = ReserveNeed(policy_, decision.need_load);
  decision.need_backlog = BacklogNeed(policy_, seen);
  const bool calm = seen.backlog == 0 && seen.oldest_wait_ns == 0;
  if (calm && calm_ && seen.starting == 0) {
    decision.need_utilisation = seen.workers * seen.utilisation / policy_.target_utilisation;
  }
  calm_ = calm;
  if (seen.oldest_wait_ns - policy_.slo_ns > policy_.StartNs()) decision.need_late = before + 1.0;

  // If several needs are equal, the first is the reason.
  double needed = decision.need_load;
  ScaleReason reason = ScaleReason::kLoad;
  const auto consider = [&](double need, ScaleReason why) {
    if (need <= needed) return;
    needed = need;
    reason = why;
  };
  consider(decision.need_reserve, ScaleReason::kReserve);
  consider(decision.need_backlog, ScaleReason::kBacklog);
  consider(decision.need_utilisation, ScaleReason::kUtilisation);
  consider(decision.need_late, ScaleReason::kLate);
  decision.held = Hold(seen.now_ns, needed * (1 + policy_.scale_in_margin) + NoiseWorkers(policy_, seen));
  consider(policy_.min_workers, ScaleReason::kMinimum);

  const uint32_t max = policy_.max_workers;
  const uint32_t wanted = WholeWorkers(needed, max);
  decision.limited_by_maximum = needed > max;
  decision.workers = before;
  if (wanted > before) {
    decision.reason = reason;
    const uint32_t step = std::min(wanted - before, policy_.max_step);
    decision.workers = before + step;
    decision.limited_by_step = decision.workers < wanted;
    return decision;
  }
  if (wanted == before) return decision;
  // Before the first sample nothing is known of what was needed; but more than max_workers is too many in any case.
  const bool known = seen.now_ns - first_ns_ >= policy_.scale_in_after_ns;
  const uint32_t keep = known ? std::max(WholeWorkers(decision.held, max), policy_.min_workers) : max;
  if (keep >= before) {
    decision.reason = ScaleReason::kHeld;
    return decision;
  }
  decision.reason = before > max ? ScaleReason::kMaximum : ScaleReason::kScaleIn;
  decision.workers = before - std::min(before - keep, policy_.scale_in_step);
  decision.limited_by_step = decision.workers > keep;
  return decision;
}

}  // namespace computenode
