// Autoscaler: how many workers there should be, from what was measured and what the operator wants.
//
// Pure policy: no clock, no thread, no I/O, no randomness. The same policy and the same samples give the same
// decisions, so a recorded run can be decided again. (A dry run is a caller that logs decisions and does nothing.) The
// caller provides the mechanism that starts and retires workers.
//
// The rule. With A arrivals a second, C the capacity of a worker, u the target utilisation, s the SLO, and
// T = reaction_ns + bootstrap_ns the time from a change of the load to the first request that a new worker takes:
//
//   load         A / (C u)
//   reserve      load x (1 + Reserve()). When the load rises at once from A to F A (F: surge_factor), n workers serve
//                F A until T has passed, and the longest wait is T (1 - n C / (F A)). It is within s if
//                n >= F (A / C) (1 - s / T). So Reserve() = max(0, F u (1 - s / T) - 1): none if T <= s, that is where
//                workers start within the SLO, and nearly F u - 1 where they take much longer. The surge that is
//                planned for never exceeds what max_workers can carry.
//   backlog      A / C + B' / (C x DrainNs()): B' is what will wait when a worker that is wanted now has started: the
//                backlog, plus what arrives meanwhile, less what the serving and the starting workers take. A backlog
//                that the headroom of u drains in time asks for nothing.
//   utilisation  workers x utilisation / u, if nobody waited in this and the last sample and none is starting: this
//                notices workers that are slower than declared
//   late         one more than there are, if somebody has waited longer than s + T, which none of the above explains
//
// The largest of these is what is needed. If that is more than the serving and starting workers together, workers are
// added at once. What a moment needed is held, with the margin, for scale_in_after_ns:
//
//   held         the maximum of (1 + scale_in_margin) x needed + sqrt(A W) / (W C u) over the last scale_in_after_ns
//
// where W = reaction_ns is the window in which arrivals are counted. A window sees A W requests, give or take
// sqrt(A W). (So a window should see some hundred of them; otherwise its peaks ask for workers that the mean does not
// need.) Workers beyond that are retired, at most scale_in_step at a time. Between needed and held nothing changes: the
// noise of a constant load has peaks that differ less from one period to the next than held exceeds them, so the number
// settles at the workers that they need. min_workers is kept as it is, without a margin.
//
// Thread safety: an Autoscaler belongs to one thread; the structs are values.
#ifndef COMPUTENODE_ELASTIC_AUTOSCALER_H_
#define COMPUTENODE_ELASTIC_AUTOSCALER_H_

#include <cstdint>
#include <deque>
#include <string>
#include <string_view>

#include "krcore/status.h"

namespace computenode {

// What was measured. Negative numbers and NaN count as 0.
struct ScaleSample {
  int64_t now_ns = 0;          // of a monotonic clock; a time before the last sample's counts as the last sample's
  uint32_t workers = 0;        // serving
  uint32_t starting = 0;       // wanted, but not serving yet
  double arrivals_per_s = 0;   // over the controller's last window
  double backlog = 0;          // requests that are due and not taken
  int64_t oldest_wait_ns = 0;  // of these; 0: nobody waits
  double utilisation = 0;      // busy share of the serving workers in the window, 0 to 1
};

struct ScalePolicy {
  static constexpr double kDerived = -1;

  double capacity_per_s = 0;        // requests a second that one worker can serve, as declared; required
  int64_t slo_ns = 10'000'000;      // queueing delay that users accept
  double target_utilisation = 0.7;  // of the workers, in (0, 1]
  uint32_t min_workers = 1;
  uint32_t max_workers = 1;
  uint32_t max_step = UINT32_MAX;  // workers added at a time
  uint32_t scale_in_step = 1;      // workers retired at a time, at most max_step
  int64_t bootstrap_ns = 0;        // known time from "wanted" to a worker's first request
  int64_t reaction_ns = 0;         // from a change of the load to the decision: the controller's interval
  double surge_factor = 1;         // by how much the load may rise at once; 1: no surge is planned for
  double reserve = kDerived;       // share of additional workers; kDerived: from the five above
  int64_t scale_in_after_ns = 10'000'000'000;
  double scale_in_margin = 0.1;  // of what was needed, kept when workers are retired

  // kInvalidArgument names the field, its value and what is allowed.
  krcore::Status Validate() const;
  // T above, in ns.
  int64_t StartNs() const { return reaction_ns + bootstrap_ns; }
  // Returns the time within which a backlog should be gone: slo_ns, or bootstrap_ns where workers take longer than
  // that.
  int64_t DrainNs() const;
  // Returns the share of additional workers: `reserve`, or what follows from the surge.
  double Reserve() const;
};

enum class ScaleReason : uint8_t {
  kEnough,  // the present number is right
  kLoad,    // added for this; see the rule above
  kReserve,
  kBacklog,
  kUtilisation,
  kLate,
  kMinimum,  // fewer than min_workers
  kHeld,     // fewer would do now, but not yet for scale_in_after_ns
  kScaleIn,  // retired: fewer would have done for scale_in_after_ns
  kMaximum,  // retired: more than max_workers
};
// "load", "scale in", ... Never null.
std::string_view ScaleReasonName(ScaleReason reason);

struct ScaleDecision {
  uint32_t workers = 0;  // wanted, serving and starting together
  ScaleReason reason = ScaleReason::kEnough;
  bool limited_by_step = false;     // max_step or scale_in_step allowed no more
  bool limited_by_maximum = false;  // more than max_workers were needed

  // What the decision was based on. Needs are in workers, neither rounded nor limited.
  ScaleSample sample;
  ScalePolicy policy;
  uint32_t before = 0;  // sample.workers + sample.starting
  double need_load = 0;
  double need_reserve = 0;
  double need_backlog = 0;
  double need_utilisation = 0;  // 0: not asked
  double need_late = 0;         // 0: nobody is late
  double held = 0;              // see above

  bool changes() const { return workers != before; }
  // Returns one line, without its end, with the sample, all needs and the relevant part of the policy:
  // "workers 24 -> 240 (load): serving 24, starting 0, arrivals 168000.0/s, ..."
  std::string ToString() const;
};

class Autoscaler {
 public:
  // Precondition: policy.Validate() is ok.
  explicit Autoscaler(const ScalePolicy& policy);

  // Returns how many workers there should be now. Call it at regular intervals, also while nothing happens. The result
  // is within [min_workers, max_workers], or on the way there if the present number is not: no decision changes more
  // than a step.
  ScaleDecision Decide(const ScaleSample& sample);

  const ScalePolicy& policy() const { return policy_; }

 private:
  struct Held {
    int64_t at_ns;
    double workers;
  };
  // Adds what is to be held from now on, and returns the maximum over the last scale_in_after_ns.
  double Hold(int64_t now_ns, double workers);

  ScalePolicy policy_;
  // The last scale_in_after_ns, falling: each entry is the maximum since the one before it.
  std::deque<Held> held_;
  bool started_ = false;
  int64_t first_ns_ = 0;  // of the first sample; what was needed before it is unknown
  int64_t last_ns_ = 0;
  bool calm_ = false;  // nobody waited in the last sample
};

}  // namespace computenode

#endif  // COMPUTENODE_ELASTIC_AUTOSCALER_H_
