// Scripted scenarios (README.md), for the protections whose absence random load needs too long to notice. In each, a
// client is held at some point of its work while others split, merge, update or reuse memory, and goes on from there. A
// scenario is all the points at which the client can be held.
#ifndef TESTS_SIM_SCENARIOS_H_
#define TESTS_SIM_SCENARIOS_H_

#include <cstdint>
#include <functional>
#include <span>
#include <string_view>
#include <vector>

#include "tests/sim/runner.h"
#include "tests/sim/simulation.h"

namespace surgekv_sim {

// Where a scenario is run. A sanitizer makes it ten times as slow; what is kByHand takes minutes without one.
enum class RunsIn : uint8_t { kAllTests, kTestsWithoutSanitizer, kByHand };

struct Scenario {
  const char* name;
  std::vector<kvs::Mutation> catches;  // it is red with any of these, and green without
  uint32_t points;
  // Like RunSimulation; call it in a process of its own. `counts.pauses`: how often the client was held in the
  // scenario's subject.
  RunResult (*run)(uint64_t point);
  RunsIn runs_in = RunsIn::kAllTests;
};

std::span<const Scenario> Scenarios();
// Returns the first one that catches the mutation, or null if none does.
const Scenario* ScenarioFor(kvs::Mutation mutation);

// Runs all points, until `on_result` returns false.
void RunScenario(const Scenario& scenario, RunnerOptions options,
                 const std::function<bool(const SeedResult&)>& on_result);

}  // namespace surgekv_sim

#endif  // TESTS_SIM_SCENARIOS_H_
