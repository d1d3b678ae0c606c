#include "tests/sim/plan.h"

#include <algorithm>
#include <cmath>

#include "kvs/layout/pool.h"

namespace surgekv_sim {
namespace {

// Longer than the takeover of a split (100 ms), and longer than the lease (1 s).
constexpr int64_t kLongestDelayNs = 400 * kMs, kLongestPauseNs = 4'000 * kMs;

constexpr const char* kPhaseNames[] = {"growth", "hot", "churn", "delete", "mixed"};

// Memory nodes that join: behind most deaths of others, and now and then without one. Many an old replica dies while
// they copy or when they have just become the tail, and so do some of them.
void AddJoins(std::mt19937_64& random, Plan* plan) {
  const auto below = [&random](uint64_t n) { return static_cast<uint32_t>(random() % n); };
  std::vector<Fault> more;
  const auto join_after = [&](uint32_t at) {
    Fault join;
    join.kind = FaultKind::kJoin;
    join.at_operation = std::min(at + 1 + below(plan->operations / 4), plan->operations - 1);
    join.duration_ns = LogUniform(random, kUs, kLongestDelayNs);
    join.slow_ns = LogUniform(random, 20 * kMs, 1'000 * kMs);
    if (below(4) == 0) join.verb = static_cast<uint64_t>(LogUniform(random, 10, 1'000'000));
    join.before = below(2) == 0;
    more.push_back(join);
    if (below(2) == 0) {
      Fault death;
      death.kind = FaultKind::kKillMemoryNode;
      death.at_operation =
          std::min(join.at_operation + static_cast<uint32_t>(LogUniform(random, 4, 1'000)), plan->operations - 1);
      death.duration_ns = LogUniform(random, 5 * kUs, kLongestPauseNs);
      more.push_back(death);
    }
  };
  for (const Fault& fault : plan->faults) {
    if (fault.kind != FaultKind::kKillMemoryNode || below(5) == 0) continue;
    for (uint32_t count = below(4) == 0 ? 2 : 1; count > 0; --count) join_after(fault.at_operation);
  }
  if (below(4) == 0) {
    const uint32_t at = below(plan->operations);
    for (uint32_t count = 1 + below(3); count > 0; --count) join_after(at);
  }
  plan->faults.insert(plan->faults.end(), more.begin(), more.end());
  std::ranges::stable_sort(plan->faults, {}, &Fault::at_operation);
}

}  // namespace

const char* FaultName(FaultKind kind) {
  static constexpr const char* kNames[kFaultKinds] = {"kill",
                                                      "pause",
                                                      "pause of a splitter",
                                                      "pause of a process",
                                                      "stall",
                                                      "queues break",
                                                      "node breaks",
                                                      "arrival",
                                                      "departure",
                                                      "compaction",
                                                      "drain",
                                                      "memory node dies",
                                                      "memory node joins",
                                                      "memory node is cut off",
                                                      "memory node stops",
                                                      "number of replicas"};
  return kNames[static_cast<int>(kind)];
}

int64_t LogUniform(std::mt19937_64& random, int64_t low, int64_t high) {
  const double span = std::log(static_cast<double>(high) / static_cast<double>(low));
  const double x = static_cast<double>(random() >> 11) * 0x1p-53;
  return static_cast<int64_t>(static_cast<double>(low) * std::exp(span * x));
}

Plan MakePlan(uint64_t seed, uint32_t replicas, bool joins) {
  std::mt19937_64 random(seed * 0x9e3779b97f4a7c15 + 1);
  const auto below = [&random](uint64_t n) { return static_cast<uint32_t>(random() % n); };
  const auto one_of = [&below](auto... values) {
    const std::common_type_t<decltype(values)...> all[] = {values...};
    return all[below(sizeof...(values))];
  };
  Plan plan;
  plan.seed = seed;
  plan.memory_nodes = below(3) + 1;
  plan.groups = below(4) == 0 ? 3 : 2;
  plan.initial_depth = below(3);
  plan.keys = 80 + below(below(3) == 0 ? 1'500 : 400);
  plan.operations = 1'500 + below(2'500) + plan.keys;
  const uint32_t kind = below(8);
  plan.storm = kind < 2 ? Storm::kSplits : kind < 4 ? Storm::kReuse : Storm::kNone;
  const bool storm = plan.storm != Storm::kNone;
  if (plan.storm == Storm::kSplits) {
    plan.initial_depth = 0;
    plan.keys = 500 + below(1'000);
    plan.operations = 6 * plan.keys;
  }
  plan.suffix_bits = below(2) * below(5);
  plan.fingerprints = below(3) == 0 ? 1 + below(8) : 256;
  if (plan.storm == Storm::kReuse) plan.keys = 10 + below(60);
  plan.suffix = below(2) == 0 ? 0 : below(uint64_t{1} << plan.suffix_bits);
  const uint32_t processes = 2 + below(4);
  uint32_t clients = 0;
  for (uint32_t p = 0; p < processes; ++p) {
    plan.processes.push_back(1 + below(3));
    clients += plan.processes.back();
  }
  plan.lanes = one_of(1, 2, 3, 4, 6, 8);
  plan.spin = one_of(0.01, 0.05, 0.3);
  // The smaller the chunks, the more of them are emptied and used again.
  plan.chunk_bytes = uint64_t{1} << one_of(15, 15, 16, 20);
  const size_t fixed = size_t{2} << 20;
  const bool tiny = below(4) == 0;
  plan.uneven = below(3) == 0;
  // A client that waits for memory polls, which in a storm of polls costs more CPU than it shows.
  plan.tiny = tiny && !storm;
  const uint64_t few = 4 + below(3);
  plan.pool_bytes = plan.tiny
                        ? (kvs::ReservedChunks(fixed, plan.chunk_bytes) + few) * plan.chunk_bytes
                        : fixed + (2 * clients + 16) * std::min<uint64_t>(plan.chunk_bytes * 4, uint64_t{1} << 20);

  plan.chaos.tear = one_of(0.0, 0.02, 0.1, 0.3);
  plan.chaos.delay = one_of(0.0, 0.001, 0.01, 0.1);
  plan.chaos.max_delay_ns = LogUniform(random, 5 * kUs, kLongestDelayNs);
  plan.chaos.break_queue = one_of(0.0, 0.0, 1e-5, 1e-4, 1e-3);
  plan.queues_break = plan.chaos.break_queue > 0;

  if (storm) {
    // Slow readers meet splits, or reuse, that are quick.
    const bool reuse = plan.storm == Storm::kReuse;
    plan.slow.tear = 0.7;
    plan.slow.delay = reuse ? 0.1 : 0.4;
    plan.slow.max_delay_ns = LogUniform(random, 60 * kUs, reuse ? 20 * kMs : 600 * kUs);
    plan.chaos = {};
    if (reuse) {
      plan.spin = 1;  // epochs pass with polls
      plan.operations += 3'000;
    }
    plan.queues_break = false;
  }

  plan.phases.push_back(Phase::kGrowth);
  const uint32_t phases = 2 + below(5);
  while (plan.phases.size() < phases)
    plan.phases.push_back(plan.storm == Storm::kSplits  ? Phase::kGrowth
                          : plan.storm == Storm::kReuse ? Phase::kChurn
                                                        : static_cast<Phase>(below(5)));

  const auto add = [&](FaultKind kind, uint32_t count) {
    for (; count > 0; --count) {
      Fault fault;
      fault.kind = kind;
      fault.at_operation = below(plan.operations);
      if (kind == FaultKind::kDrain && !plan.joins) fault.at_operation /= 4;  // a drain takes long
      fault.duration_ns = LogUniform(random, 5 * kUs, kLongestPauseNs);
      if (kind == FaultKind::kJoin) fault.slow_ns = LogUniform(random, 20 * kMs, 1'000 * kMs);
      if (kind == FaultKind::kPauseSplitter) fault.duration_ns = (105 + below(150)) * kMs;
      if (kind == FaultKind::kKill) {
        fault.duration_ns = LogUniform(random, kUs, kLongestDelayNs);
        fault.verb = 1 + below(below(2) == 0 ? 8 : 400);
        fault.before = below(2) == 0;
      }
      plan.faults.push_back(fault);
    }
  };
  const auto sort_faults = [&plan] { std::ranges::stable_sort(plan.faults, {}, &Fault::at_operation); };
  if (!storm && below(4) != 0) {  // the other runs go without faults of this kind: nothing may fail there
    add(FaultKind::kKill, below(3));
    add(FaultKind::kBreakQueues, below(4) == 0 ? 1 + below(3) : 0);
    add(FaultKind::kBreakNode, below(8) == 0 ? 1 : 0);
  }
  add(FaultKind::kPause, below(4));
  add(FaultKind::kPauseSplitter, plan.storm == Storm::kSplits ? 2 + below(4) : below(2));
  add(FaultKind::kPauseAll, below(2));
  add(FaultKind::kStall, below(3));
  add(FaultKind::kArrive, below(3));
  add(FaultKind::kLeave, below(3));
  add(FaultKind::kCompact, below(8));
  sort_faults();
  for (const Fault& fault : plan.faults) {
    plan.queues_break |= fault.kind == FaultKind::kBreakQueues || fault.kind == FaultKind::kBreakNode;
  }
  // These are drawn last, so that the rest of a run is the same as without them.
  if (below(2) == 0) {
    plan.rc_peers = one_of(3u, 64u);
    plan.rc_hot_wrs = static_cast<uint32_t>(LogUniform(random, 4, 100));
    plan.rc_queues = one_of(1u, 1u, 4u);  // with one, the hottest memory node takes it from the others
    plan.rc_poll_ns = LogUniform(random, 20 * kUs, 5 * kMs);
  }
  if (!storm && plan.memory_nodes > 1 && below(2) == 0) {
    plan.drains = true;
    add(FaultKind::kDrain, 1 + below(3));
    sort_faults();
  }
  plan.housekeeper = below(3) == 0;
  const uint32_t drawn = below(5) < 2 ? 2 + below(2) : 1;
  plan.replicas = replicas != 0 ? replicas : drawn;
  if (plan.replicas > 1) {
    // Only memory nodes that join can be drained there.
    plan.drains = false;
    std::erase_if(plan.faults, [](const Fault& fault) { return fault.kind == FaultKind::kDrain; });
    add(FaultKind::kKillMemoryNode, below(4));
    sort_faults();
    plan.joins = joins || below(2) == 0;
    if (plan.joins) AddJoins(random, &plan);
  }
  if (plan.replicas > 1 || plan.queues_break) {
    add(FaultKind::kCutOff, below(2) * below(3));
    add(FaultKind::kStop, below(2) * below(3));
    if (plan.joins && below(2) == 0) {
      add(FaultKind::kDrain, 1 + below(4));
      add(FaultKind::kJoin, 1 + below(2));  // somebody takes the place
    }
    if (plan.joins && below(3) == 0) add(FaultKind::kSetReplicas, 1 + below(3));
    sort_faults();
  }
  plan.scans = one_of(0.0, 0.003, 0.01, 0.03);
  plan.expiring = one_of(0.0, 0.05, 0.1, 0.3);
  plan.clocks_differ_ms = one_of(0, 2, 20, 1'000);
  return plan;
}

std::string Plan::ToString() const {
  std::string text = "seed " + std::to_string(seed) + ": " + std::to_string(memory_nodes) +
                     (replicas > 1 ? " pools with " + std::to_string(replicas) + " replicas each, of "
                                   : std::string(" memory nodes of ")) +
                     std::to_string(pool_bytes >> 20) + (uneven ? " MiB, the others more, " : " MiB, ") +
                     std::to_string(groups) + " groups, depth " + std::to_string(initial_depth) + ", " +
                     std::to_string(keys) + " keys (most end in " + std::to_string(suffix) + " of " +
                     std::to_string(suffix_bits) + " bits), " + std::to_string(operations) + " operations, clients";
  for (const uint32_t clients : processes) text += " " + std::to_string(clients);
  if (fingerprints < 256) text += " (" + std::to_string(fingerprints) + " fingerprints)";
  static constexpr const char* kStorms[] = {"", ", storm of splits", ", storm of reuse"};
  text += kStorms[static_cast<int>(storm)];
  text += " with " + std::to_string(lanes) + " lanes\n  tear " + std::to_string(chaos.tear) + ", delay " +
          std::to_string(chaos.delay) + " up to " + std::to_string(chaos.max_delay_ns / kUs) + " us, break " +
          std::to_string(chaos.break_queue);
  if (rc_peers != 0) {
    text += "\n  RC queues: " + std::to_string(rc_queues) + " of a client, from " + std::to_string(rc_hot_wrs) +
            " WRs in 10 ms on, " + std::to_string(rc_peers) + " at a memory node, looked for every " +
            std::to_string(rc_poll_ns / kUs) + " us";
  }
  if (housekeeper) text += "\n  a housekeeper";
  if (expiring > 0) {
    text += "\n  of the values, " + std::to_string(expiring) + " expire; clocks differ by up to " +
            std::to_string(clocks_differ_ms) + " ms";
  }
  text += "\n  phases";
  for (const Phase phase : phases) text += std::string(" ") + kPhaseNames[static_cast<int>(phase)];
  text += "\n";
  for (const Fault& fault : faults) {
    text += "  at operation " + std::to_string(fault.at_operation) + ": " + FaultName(fault.kind);
    if (fault.kind == FaultKind::kKill) {
      text += std::string(fault.before ? " before" : " behind") + " verb " + std::to_string(fault.verb);
    }
    if (fault.kind == FaultKind::kJoin && fault.verb != 0) {
      text += std::string(", and is killed ") + (fault.before ? "before" : "behind") + " verb " +
              std::to_string(fault.verb);
    }
    if (fault.kind <= FaultKind::kStall || fault.kind >= FaultKind::kCutOff)
      text += ", " + std::to_string(fault.duration_ns / kUs) + " us";
    text += "\n";
  }
  return text;
}

}  // namespace surgekv_sim
