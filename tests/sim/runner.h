// Runs seeds, each in a process of its own: a store whose protections were taken away may crash or never end.
#ifndef TESTS_SIM_RUNNER_H_
#define TESTS_SIM_RUNNER_H_

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>

#include "kvs/memory/mutation.h"
#include "tests/sim/simulation.h"

namespace surgekv_sim {

struct SeedResult {
  uint64_t seed = 0;
  RunResult run;
};

struct RunnerOptions {
  uint64_t from = 1;
  uint64_t seeds = 1;
  uint32_t replicas = 0;       // as MakePlan
  bool joins = false;          // likewise
  uint32_t jobs = 1;           // seeds at a time
  uint32_t seed_limit_s = 20;  // of CPU time; a seed that needs more counts as a violation, "stuck"
  kvs::Mutation mutation = kvs::Mutation::kNone;
  bool trace = false;
  std::function<RunResult(uint64_t seed)> run;  // empty: the simulation of the seed's plan
  bool quiet = false;                           // what a crashing seed prints is not shown
};

// Calls `on_result` for each seed, in any order of completion. If it returns false, no further seeds are run.
void RunSeeds(const RunnerOptions& options, const std::function<bool(const SeedResult&)>& on_result);

// ---- mutations by name

struct MutationInfo {
  kvs::Mutation mutation;
  const char* name;
  const char* what;
};
std::span<const MutationInfo> Mutations();
// Returns why the store is right even without this protection (tests/sim/README.md), or null if it is not.
const char* WhyHarmless(kvs::Mutation mutation);
// Returns how many replicas the pools have in runs that are to notice that the protection is missing; 0: any.
uint32_t ReplicasFor(kvs::Mutation mutation);
// Returns null if there is none of that name.
const MutationInfo* FindMutation(std::string_view name);

}  // namespace surgekv_sim

#endif  // TESTS_SIM_RUNNER_H_
