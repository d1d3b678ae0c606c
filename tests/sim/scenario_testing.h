// What tests do with scenarios.
#ifndef TESTS_SIM_SCENARIO_TESTING_H_
#define TESTS_SIM_SCENARIO_TESTING_H_

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>

#include "tests/sim/scenarios.h"

namespace surgekv_sim {

inline RunnerOptions OptionsOfTests() {
  RunnerOptions options;
  options.jobs = static_cast<uint32_t>(sysconf(_SC_NPROCESSORS_ONLN));
  return options;
}

inline const char* NameOf(kvs::Mutation mutation) {
  for (const MutationInfo& info : Mutations()) {
    if (info.mutation == mutation) return info.name;
  }
  return "";
}

// Expects that no point of it is red, and that at many points the client was held in the scenario's subject.
inline void ExpectFine(const Scenario& scenario) {
  uint64_t held = 0;
  RunScenario(scenario, OptionsOfTests(), [&](const SeedResult& result) {
    EXPECT_EQ(result.run.violation, "") << scenario.name << ", point " << result.seed << "\n" << result.run.text;
    held += result.run.counts.pauses;
    return result.run.violation.empty();
  });
  EXPECT_GE(held, scenario.points / 4) << "too few of the pauses fell where they should";
  std::printf("%s: %lu runs with the client held in it\n", scenario.name, held);
}

// Expects that some point of it is red without the protection.
inline void ExpectNoticed(const Scenario& scenario, kvs::Mutation mutation) {
  RunnerOptions options = OptionsOfTests();
  options.mutation = mutation;
  options.quiet = true;
  SeedResult noticed;
  uint64_t points = 0;
  RunScenario(scenario, options, [&](const SeedResult& result) {
    ++points;
    noticed = result;
    return result.run.violation.empty();
  });
  EXPECT_NE(noticed.run.violation, "") << NameOf(mutation) << " was not noticed at any point of " << scenario.name;
  std::printf("%s: %s at point %lu of %s, after %lu\n", NameOf(mutation), noticed.run.violation.c_str(), noticed.seed,
              scenario.name, points);
}

}  // namespace surgekv_sim

#endif  // TESTS_SIM_SCENARIO_TESTING_H_
