// Scripted scenarios (README.md): for the protections that random load needs too long to miss. In each a client
// is held at some point of what it does while others split, merge, update or reuse memory, and goes on from there; a
// scenario is all the points at which it can be held.
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

struct Scenario {
  const char* name;
  std::vector<kvs::Mutation> catches;  // with any of these it is red, without it is green
  uint32_t points;
  // Like RunSimulation, in a process of its own. `counts.pauses`: how often the client was held in what it is about.
  RunResult (*run)(uint64_t point);
};

std::span<const Scenario> Scenarios();
// The first one that catches the mutation; null: none does.
const Scenario* ScenarioFor(kvs::Mutation mutation);

// All points, until `on_result` says false.
void RunScenario(const Scenario& scenario, RunnerOptions options,
                 const std::function<bool(const SeedResult&)>& on_result);

}  // namespace surgekv_sim

#endif  // TESTS_SIM_SCENARIOS_H_
