// The hazards that need a client to be held at one certain point (docs/testing.md): each point is tried, with the
// protection, which must never be missed, and without it, which must be noticed.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <string>

#include "tests/sim/scenarios.h"

namespace surgekv_sim {
namespace {

class HazardTest : public ::testing::TestWithParam<const Scenario*> {
 protected:
  static RunnerOptions Options() {
    RunnerOptions options;
    options.jobs = static_cast<uint32_t>(sysconf(_SC_NPROCESSORS_ONLN));
    return options;
  }
  static const char* NameOf(kvs::Mutation mutation) {
    for (const MutationInfo& info : Mutations()) {
      if (info.mutation == mutation) return info.name;
    }
    return "";
  }
};

TEST_P(HazardTest, IsProtectedAgainst) {
  const Scenario& scenario = *GetParam();
  uint64_t held = 0;
  RunScenario(scenario, Options(), [&](const SeedResult& result) {
    EXPECT_EQ(result.run.violation, "") << "point " << result.seed << "\n" << result.run.text;
    held += result.run.counts.pauses;
    return result.run.violation.empty();
  });
  EXPECT_GE(held, scenario.points / 4) << "too few of the pauses fell where they should";
  std::printf("%lu runs with the client held in it\n", held);
}

TEST_P(HazardTest, IsNoticedWithoutTheProtection) {
  const Scenario& scenario = *GetParam();
  for (const kvs::Mutation mutation : scenario.catches) {
    RunnerOptions options = Options();
    options.mutation = mutation;
    options.quiet = true;
    SeedResult noticed;
    uint64_t points = 0;
    RunScenario(scenario, options, [&](const SeedResult& result) {
      ++points;
      noticed = result;
      return result.run.violation.empty();
    });
    EXPECT_NE(noticed.run.violation, "") << NameOf(mutation) << " was not noticed at any point";
    std::printf("%s: %s at point %lu, after %lu\n", NameOf(mutation), noticed.run.violation.c_str(), noticed.seed,
                points);
  }
}

std::vector<const Scenario*> All() {
  std::vector<const Scenario*> all;
  for (const Scenario& scenario : Scenarios()) all.push_back(&scenario);
  return all;
}

INSTANTIATE_TEST_SUITE_P(Scenarios, HazardTest, ::testing::ValuesIn(All()),
                         [](const auto& info) { return std::string(info.param->name); });

}  // namespace
}  // namespace surgekv_sim
