// The hazards that need a client to be held at one certain point (tests/sim/README.md). Each point is tried with the
// protection, which must always pass, and without it, which must be noticed.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/sim/scenario_testing.h"

namespace surgekv_sim {
namespace {

class ScenarioTest : public ::testing::TestWithParam<const Scenario*> {};

TEST_P(ScenarioTest, IsProtectedAgainst) { ExpectFine(*GetParam()); }

TEST_P(ScenarioTest, IsNoticedWithoutTheProtection) {
  for (const kvs::Mutation mutation : GetParam()->catches) ExpectNoticed(*GetParam(), mutation);
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr RunsIn kMost = RunsIn::kAllTests;
#else
constexpr RunsIn kMost = RunsIn::kTestsWithoutSanitizer;
#endif

std::vector<const Scenario*> All() {
  std::vector<const Scenario*> all;
  for (const Scenario& scenario : Scenarios()) {
    if (scenario.runs_in <= kMost) all.push_back(&scenario);
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(Scenarios, ScenarioTest, ::testing::ValuesIn(All()),
                         [](const auto& info) { return std::string(info.param->name); });

}  // namespace
}  // namespace surgekv_sim
