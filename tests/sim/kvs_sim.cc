// kvs_sim: thousands of simulated runs of the store, each with its own load and faults, and each checked in every way
// that we know. See docs/hacking.md.
#include <gflags/gflags.h>
#include <unistd.h>

#include <array>
#include <cstdint>
#include <cstdio>
#include <map>
#include <string>

#include "kvs/layout/configuration.h"
#include "tests/sim/plan.h"
#include "tests/sim/runner.h"
#include "tests/sim/scenarios.h"

DEFINE_uint64(seeds, 100, "runs");
DEFINE_uint64(from, 1, "first seed");
DEFINE_bool(joins, false, "memory nodes join in all runs with mirrored pools; else in about half of them");
DEFINE_uint32(replicas, 0,
              "of each pool, 1 to 3; more than 1: mirrored pools, whose memory nodes die; 0: as each seed says");
DEFINE_uint32(jobs, 0, "runs at a time; 0: one for each core");
DEFINE_string(mutant, "", "takes one protection away (--list_mutants)");
DEFINE_bool(mutants, false, "takes away one protection after the other, each until a scenario or a run notices");
DEFINE_string(scenario, "", "runs this scripted scenario, all points of it, or the one that --point says");
DEFINE_int64(point, -1, "--scenario: where the client is held; in this very process");
DEFINE_bool(list_mutants, false, "prints their names");
DEFINE_uint64(mutant_seeds, 1000, "--mutants: runs until one counts as not caught");
DEFINE_bool(keep_going, false, "does not stop at the first violation");
DEFINE_bool(verbose, false, "a line for each run");
DEFINE_bool(trace, false, "every operation and fault of every run, on stderr");
DEFINE_bool(in_process, false, "runs the first seed in this very process, for a debugger");
DEFINE_uint32(seed_limit_s, 20, "of CPU for one run");

namespace surgekv_sim {
namespace {

RunnerOptions Options() {
  RunnerOptions options;
  options.from = FLAGS_from;
  options.seeds = FLAGS_seeds;
  options.replicas = FLAGS_replicas;
  options.joins = FLAGS_joins;
  options.jobs = FLAGS_jobs != 0 ? FLAGS_jobs : static_cast<uint32_t>(sysconf(_SC_NPROCESSORS_ONLN));
  options.seed_limit_s = FLAGS_seed_limit_s;
  options.trace = FLAGS_trace;
  return options;
}

void PrintViolation(const SeedResult& result, uint32_t replicas, const std::string& mutant) {
  std::printf("seed %lu: VIOLATION (%s)\n%s", result.seed, result.run.violation.c_str(), result.run.text.c_str());
  std::printf("replay: kvs_sim --from=%lu --seeds=1 --trace%s%s%s\n", result.seed, FLAGS_joins ? " --joins" : "",
              replicas == 0 ? "" : (" --replicas=" + std::to_string(replicas)).c_str(),
              mutant.empty() ? "" : (" --mutant=" + mutant).c_str());
}

// What so many runs have counted, and in how many of them there was any.
class Tally {
 public:
  void Add(const Plan& plan, const Counts& counts) {
    ++runs_[kAny];
    runs_[kDrawn] += FLAGS_replicas == 0;
    ++runs_[plan.replicas > 1 ? kMirrored : kSingle];
    runs_[kJoins] += plan.joins;
    counts_ += counts;
#define COUNT(member, what, of, after) in_runs_.member += counts.member > 0;
#include "tests/sim/counts.def"
#undef COUNT
  }
  uint64_t runs() const { return runs_[kAny]; }
  // Prints all. Returns how much of it should have happened and did not.
  int Print() const {
    int missing = 0;
#define COUNT(member, what, of, after) missing += PrintOne(counts_.member, in_runs_.member, what, of, after);
#include "tests/sim/counts.def"
#undef COUNT
    return missing;
  }

 private:
  enum Kind : uint8_t { kAny, kDrawn, kSingle, kMirrored, kJoins, kKinds };

  int PrintOne(uint64_t count, uint64_t in_runs, const char* what, Kind of, uint64_t after) const {
    const bool none = after != 0 && count == 0, misses = none && runs_[of] >= after;
    std::printf("%14lu in %5lu runs  %s%s\n", count, in_runs, what,
                misses ? "   <-- did not happen"
                : none ? "   <-- did not happen, in too few runs to be demanded"
                       : "");
    return misses ? 1 : 0;
  }

  std::array<uint64_t, kKinds> runs_{};
  Counts counts_, in_runs_;
};

int RunAll(kvs::Mutation mutation) {
  RunnerOptions options = Options();
  options.mutation = mutation;
  Tally tally;
  uint64_t violations = 0;
  RunSeeds(options, [&](const SeedResult& result) {
    tally.Add(MakePlan(result.seed, options.replicas, options.joins), result.run.counts);
    if (FLAGS_verbose) {
      std::printf("seed %lu: %s, %lu operations, %lu splits, %lu epochs, digest %016lx\n", result.seed,
                  result.run.violation.empty() ? "ok" : result.run.violation.c_str(), result.run.counts.operations,
                  result.run.counts.splits, result.run.counts.epochs, result.run.digest);
    }
    if (result.run.violation.empty()) return true;
    ++violations;
    PrintViolation(result, options.replicas, FLAGS_mutant);
    std::fflush(stdout);
    return FLAGS_keep_going;
  });
  std::printf("%lu seeds, %lu violations\n", tally.runs(), violations);
  const int missing = tally.Print();
  if (violations > 0) return 1;
  if (missing > 0) {
    std::printf("FAILED: a run that did not do it proves nothing\n");
    return 1;
  }
  return 0;
}

// Runs of a mutant that is thought to be harmless.
constexpr uint64_t kHarmlessSeeds = 20;

// How a mutant was noticed.
struct Noticed {
  uint64_t runs = 0;  // points of a scenario, or seeds
  std::string what;   // what noticed it; empty: nothing did
  std::string by;
  bool fine_without = true;  // a seed that noticed it is fine without the mutation
};

Noticed Notice(const MutationInfo& mutant) {
  Noticed noticed;
  RunnerOptions options = Options();
  options.mutation = mutant.mutation;
  options.quiet = true;
  const auto on_result = [&](const SeedResult& result) {
    ++noticed.runs;
    noticed.what = result.run.violation;
    return noticed.what.empty();
  };
  if (const Scenario* scenario = ScenarioFor(mutant.mutation); scenario != nullptr) {
    noticed.by = scenario->name;
    RunScenario(*scenario, options, on_result);
    if (!noticed.what.empty()) return noticed;
  }
  noticed.by = "random load";
  noticed.runs = 0;
  if (FLAGS_replicas == 0) options.replicas = ReplicasFor(mutant.mutation);
  options.seeds = WhyHarmless(mutant.mutation) != nullptr ? kHarmlessSeeds : FLAGS_mutant_seeds;
  uint64_t seed = 0;  // of the last run
  RunSeeds(options, [&](const SeedResult& result) {
    if (!result.run.violation.empty() && FLAGS_verbose) PrintViolation(result, options.replicas, mutant.name);
    seed = result.seed;
    return on_result(result);
  });
  if (noticed.what.empty()) return noticed;
  options.from = seed;
  options.seeds = 1;
  options.mutation = kvs::Mutation::kNone;
  RunSeeds(options, [&](const SeedResult& result) {
    noticed.fine_without = result.run.violation.empty();
    if (!noticed.fine_without) PrintViolation(result, options.replicas, "");
    return true;
  });
  return noticed;
}

int RunMutants() {
  uint32_t missed = 0, surprises = 0, red_without = 0;
  std::printf("%-30s %5s  %-8s %-33s %s\n", "mutant", "runs", "noticed", "caught by", "what was taken away");
  for (const MutationInfo& info : Mutations()) {
    const Noticed noticed = Notice(info);
    const char* harmless = WhyHarmless(info.mutation);
    const bool caught = !noticed.what.empty();
    missed += !caught && harmless == nullptr;
    surprises += caught && harmless != nullptr;
    red_without += !noticed.fine_without;
    std::printf("%-30s %5lu  %-8s %-33s %s\n", info.name, noticed.runs,
                caught                ? noticed.what.c_str()
                : harmless != nullptr ? "harmless"
                                      : "NO",
                caught ? noticed.by.c_str() : "", info.what);
    if (harmless != nullptr) std::printf("%81s%s\n", "", harmless);
    std::fflush(stdout);
  }
  std::printf("%u of %zu not caught\n", missed, Mutations().size());
  if (surprises > 0) std::printf("%u that were thought harmless are not\n", surprises);
  if (red_without > 0) std::printf("%u seeds that noticed a mutant are not fine without it\n", red_without);
  return missed + surprises + red_without > 0 ? 1 : 0;
}

int RunOneScenario(const std::string& name, kvs::Mutation mutation) {
  for (const Scenario& scenario : Scenarios()) {
    if (scenario.name != name) continue;
    uint64_t points = 0, held = 0, violations = 0;
    const auto on_result = [&](const SeedResult& result) {
      ++points;
      held += result.run.counts.pauses;
      if (result.run.violation.empty()) return true;
      ++violations;
      std::printf("point %lu: VIOLATION (%s)\n%s", result.seed, result.run.violation.c_str(), result.run.text.c_str());
      return FLAGS_keep_going;
    };
    if (FLAGS_point >= 0) {
      kvs::active_mutation = mutation;
      (void)on_result({static_cast<uint64_t>(FLAGS_point), scenario.run(static_cast<uint64_t>(FLAGS_point))});
    } else {
      RunnerOptions options = Options();
      options.mutation = mutation;
      RunScenario(scenario, options, on_result);
    }
    std::printf("%lu points, %lu runs with the client held in it, %lu violations\n", points, held, violations);
    return violations > 0 ? 1 : 0;
  }
  std::fprintf(stderr, "kvs_sim: no scenario \"%s\"\n", name.c_str());
  return 2;
}

int Main() {
  if (FLAGS_list_mutants) {
    for (const MutationInfo& info : Mutations()) std::printf("%-32s %s\n", info.name, info.what);
    return 0;
  }
  if (FLAGS_replicas > kvs::kMaxReplicas) {
    std::fprintf(stderr, "kvs_sim: --replicas is at most %zu\n", kvs::kMaxReplicas);
    return 2;
  }
  if (FLAGS_mutants) return RunMutants();
  kvs::Mutation mutation = kvs::Mutation::kNone;
  if (!FLAGS_mutant.empty()) {
    const MutationInfo* info = FindMutation(FLAGS_mutant);
    if (info == nullptr) {
      std::fprintf(stderr, "kvs_sim: no mutant \"%s\" (--list_mutants)\n", FLAGS_mutant.c_str());
      return 2;
    }
    mutation = info->mutation;
  }
  if (!FLAGS_scenario.empty()) return RunOneScenario(FLAGS_scenario, mutation);
  if (FLAGS_in_process) {
    kvs::active_mutation = mutation;
    const SeedResult result{FLAGS_from, RunSimulation(MakePlan(FLAGS_from, FLAGS_replicas, FLAGS_joins), FLAGS_trace)};
    if (!result.run.violation.empty()) PrintViolation(result, FLAGS_replicas, FLAGS_mutant);
    return result.run.violation.empty() ? 0 : 1;
  }
  return RunAll(mutation);
}

}  // namespace
}  // namespace surgekv_sim

int main(int argc, char** argv) {
  gflags::SetUsageMessage("simulated runs of the store, each from a seed");
  gflags::ParseCommandLineFlags(&argc, &argv, true);
  return surgekv_sim::Main();
}
