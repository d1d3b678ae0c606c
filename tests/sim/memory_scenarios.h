// The scenarios about memory that is used again too early (tests/sim/README.md).
#ifndef TESTS_SIM_MEMORY_SCENARIOS_H_
#define TESTS_SIM_MEMORY_SCENARIOS_H_

#include <vector>

#include "tests/sim/scenarios.h"

namespace surgekv_sim {

std::vector<Scenario> MemoryScenarios();

}  // namespace surgekv_sim

#endif  // TESTS_SIM_MEMORY_SCENARIOS_H_
