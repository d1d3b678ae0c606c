// One simulated run: unmodified kvs clients on a World, with the load and the faults of a Plan.
//
// Call it in a process of its own (runner.h): a mutated store may crash or hang.
#ifndef TESTS_SIM_SIMULATION_H_
#define TESTS_SIM_SIMULATION_H_

#include <cstdint>
#include <string>

#include "tests/sim/plan.h"

namespace surgekv_sim {

struct Counts {
#define COUNT(member, what, of, after) uint64_t member = 0;
#include "tests/sim/counts.def"
#undef COUNT

  Counts& operator+=(const Counts& other) {
#define COUNT(member, what, of, after) member += other.member;
#include "tests/sim/counts.def"
#undef COUNT
    return *this;
  }
};

struct RunResult {
  std::string violation;  // the kind: "history", "pool", ...; empty: none
  std::string text;       // the details
  Counts counts;
  uint64_t digest = 0;  // equal for equal runs
};

RunResult RunSimulation(const Plan& plan, bool trace);

}  // namespace surgekv_sim

#endif  // TESTS_SIM_SIMULATION_H_
