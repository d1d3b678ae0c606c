// The scenarios about mirrored pools (tests/sim/README.md): what a client does that does not know yet of another view.
#ifndef TESTS_SIM_MIRROR_SCENARIOS_H_
#define TESTS_SIM_MIRROR_SCENARIOS_H_

#include <vector>

#include "tests/sim/scenarios.h"

namespace surgekv_sim {

std::vector<Scenario> MirrorScenarios();

}  // namespace surgekv_sim

#endif  // TESTS_SIM_MIRROR_SCENARIOS_H_
