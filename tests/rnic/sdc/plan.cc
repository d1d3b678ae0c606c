#include "tests/rnic/sdc/plan.h"

#include <algorithm>

namespace sdc_test {
namespace {

class Dice {
 public:
  explicit Dice(uint64_t seed) : random_(seed * 0x9e3779b97f4a7c15 + 1) {}
  uint64_t In(uint64_t low, uint64_t high) { return low + random_() % (high - low + 1); }
  bool Chance(double p) { return static_cast<double>(random_() >> 11) * 0x1.0p-53 < p; }

 private:
  std::mt19937_64 random_;
};

void AddFaults(Dice& dice, Plan* plan) {
  const uint64_t count = dice.In(1, 5);
  for (uint64_t i = 0; i < count; ++i) {
    Fault fault;
    fault.at_ns = dice.In(0, 40) * kMs / 4 + dice.In(0, 300) * kUs;
    fault.kind = static_cast<FaultKind>(dice.In(0, kFaultKinds - 1));
    fault.initiator = static_cast<uint32_t>(dice.In(0, plan->initiators - 1));
    fault.target = static_cast<uint32_t>(dice.In(0, plan->targets - 1));
    fault.for_ns = dice.Chance(0.5) ? dice.In(1, 20) * kMs : dice.In(50, 500) * kMs;
    plan->faults.push_back(fault);
  }
  std::sort(plan->faults.begin(), plan->faults.end(), [](const Fault& a, const Fault& b) { return a.at_ns < b.at_ns; });
}

}  // namespace

Plan MakePlan(uint64_t seed) {
  Dice dice(seed);
  Plan plan;
  plan.seed = seed;
  plan.calm = dice.Chance(0.35);
  plan.initiators = static_cast<uint32_t>(dice.In(1, 4));
  plan.targets = static_cast<uint32_t>(dice.In(1, 3));
  plan.sessions = dice.Chance(0.4) ? static_cast<uint32_t>(dice.In(1, 2)) : 8;
  plan.peers = dice.Chance(0.5) ? SDC_PEER_WAYS : 2 * SDC_PEER_WAYS;
  plan.receives = static_cast<uint32_t>(dice.In(1, 12));
  plan.depth = dice.Chance(0.3) ? 4 : 32;
  plan.outstanding = static_cast<uint32_t>(dice.In(1, plan.depth));
  plan.wrs = static_cast<uint32_t>(dice.In(10, 40));
  plan.mtu_bytes = dice.Chance(0.6) ? SDC_MIN_MTU_BYTES : 1024;
  plan.max_bytes = dice.Chance(0.2) ? 16384 : 1024;
  plan.timing = {.limit_ns = 200 * kMs,
                 .grace_ns = 60 * kMs,
                 .retry_ns = 400 * kUs,
                 .retry_max_ns = 3200 * kUs,
                 .idle_ns = 4 * kMs,
                 .rnr_ns = 300 * kUs,
                 .retries = 9,
                 .rnr_retries = 200};
  plan.wire_ns = dice.In(2, 60) * kUs;
  plan.duplicate = dice.Chance(0.5) ? 0.1 : 0;
  if (dice.Chance(0.5)) {
    plan.late = 0.1;
    plan.late_ns = dice.Chance(0.5) ? 3 * kMs : 500 * kUs;
  }
  if (dice.Chance(0.6)) plan.loss = dice.Chance(0.5) || plan.calm ? 0.02 : 0.2;
  if (dice.Chance(0.5)) {
    plan.slow_atomic = dice.Chance(0.5) ? 0.3 : 0.05;
    plan.slow_ns = dice.Chance(0.5) ? 50 * kMs : 5 * kMs;
    if (plan.calm) plan.outstanding = std::min(plan.outstanding, 3u);
  }
  plan.repost_ns = dice.In(0, 2) * kMs;
  plan.bad = dice.Chance(0.5) ? 0.05 : 0;
  plan.atomics = dice.Chance(0.5) ? 0.3 : 0.6;
  plan.reads = 0.25;
  plan.messages = 0.15;
  if (plan.calm && dice.Chance(0.2)) {
    // Only READs survive the restart of a target.
    plan.atomics = plan.bad = 0;
    plan.reads = 1;
    for (uint64_t i = 0; i < 3; ++i) {
      plan.faults.push_back({.at_ns = (2 * i + 1) * kMs + dice.In(0, 1000) * kUs, .kind = FaultKind::kRestartTarget});
    }
  }
  // An initiator that finds no session waits until the others are idle.
  if (plan.calm) plan.timing.limit_ns = 4000 * kMs;
  if (!plan.calm) {
    if (dice.Chance(0.3)) plan.timing.rnr_retries = 3;
    AddFaults(dice, &plan);
    if (dice.Chance(0.15)) {
      // A refusal is lost, and its request is repeated when the memory is there again.
      plan.doomed = 0.5;
      plan.loss = 0.2;
      for (uint64_t i = 0; i < 12; ++i) {
        plan.faults.push_back({.at_ns = i * kMs + dice.In(0, 500) * kUs,
                               .kind = FaultKind::kDeregister,
                               .target = static_cast<uint32_t>(dice.In(0, plan.targets - 1)),
                               .for_ns = dice.In(100, 500) * kUs});
      }
    }
  }
  return plan;
}

std::string Plan::ToString() const {
  std::string text =
      "plan of seed " + std::to_string(seed) + ": " + (calm ? "calm, " : "") + std::to_string(initiators) +
      " initiators, " + std::to_string(targets) + " targets of " + std::to_string(sessions) + " sessions and " +
      std::to_string(receives) + " receives, " + std::to_string(wrs) + " WRs each, " + std::to_string(outstanding) +
      " at a time, MTU " + std::to_string(mtu_bytes) + ", up to " + std::to_string(max_bytes) + " bytes, loss " +
      std::to_string(loss) + ", duplicates " + std::to_string(duplicate) + ", late " + std::to_string(late_ns / kUs) +
      " us, slow atomics " + std::to_string(slow_atomic) + " by " + std::to_string(slow_ns / kMs) + " ms\n";
  static const char* const kNames[] = {
      "restart-target", "restart-initiator", "pause-target",    "pause-initiator", "partition", "hold", "reset",
      "fail",           "deregister",        "deregister-local"};
  for (const Fault& fault : faults) {
    text += "  at " + std::to_string(fault.at_ns / kUs) + " us " + kNames[static_cast<int>(fault.kind)] +
            " initiator " + std::to_string(fault.initiator) + " target " + std::to_string(fault.target) + " for " +
            std::to_string(fault.for_ns / kUs) + " us\n";
  }
  return text;
}

}  // namespace sdc_test
