// Scenarios in which a memory node fails at every verb of something (tests/sim/README.md).
#ifndef TESTS_SIM_NODE_POINTS_H_
#define TESTS_SIM_NODE_POINTS_H_

#include <vector>

#include "tests/sim/scenarios.h"

namespace surgekv_sim {

std::vector<Scenario> NodePointScenarios();

}  // namespace surgekv_sim

#endif  // TESTS_SIM_NODE_POINTS_H_
