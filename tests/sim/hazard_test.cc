// The hazards that lose data in a store like this one (docs/testing.md), each as a test: with the protection against it
// taken away the simulator sees red within a few seeds, and green with it on the very seeds that were red.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdint>
#include <string>
#include <vector>

#include "tests/sim/runner.h"

namespace surgekv_sim {
namespace {

constexpr uint64_t kBudget = 300;  // seeds until a mutant counts as not noticed

class HazardTest : public ::testing::Test {
 protected:
  // Each of the named mutants is noticed, and the same seed is fine without it.
  static void ExpectNoticed(const std::vector<std::string>& mutants) {
    std::vector<uint64_t> red;
    for (const std::string& name : mutants) {
      const MutationInfo* info = FindMutation(name);
      ASSERT_NE(info, nullptr) << "no mutant " << name;
      RunnerOptions options = Options();
      options.seeds = kBudget;
      options.mutation = info->mutation;
      options.quiet = true;
      uint64_t runs = 0;
      SeedResult noticed;
      RunSeeds(options, [&](const SeedResult& result) {
        ++runs;
        if (!result.run.violation.empty()) noticed = result;
        return noticed.seed == 0;
      });
      EXPECT_NE(noticed.seed, 0u) << name << " was not noticed in " << runs << " seeds";
      if (noticed.seed == 0) continue;
      std::printf("%s: %s after %lu seeds\n", name.c_str(), noticed.run.violation.c_str(), runs);
      red.push_back(noticed.seed);
    }
    for (const uint64_t seed : red) ExpectFine(seed);
  }

  static RunnerOptions Options() {
    RunnerOptions options;
    options.jobs = static_cast<uint32_t>(sysconf(_SC_NPROCESSORS_ONLN));
    return options;
  }

  static void ExpectFine(uint64_t seed) {
    RunnerOptions options = Options();
    options.from = seed;
    RunSeeds(options, [](const SeedResult& result) {
      EXPECT_EQ(result.run.violation, "") << "seed " << result.seed << "\n" << result.run.text;
      return true;
    });
  }
};

TEST_F(HazardTest, UpdateDuringMigration) {
  ExpectNoticed(
      {"copy-without-freeze", "update-of-frz", "migration-ignores-lost-freeze", "decision-by-write", "lost-cas-ok"});
}

TEST_F(HazardTest, LookupDuringMigration) {
  ExpectNoticed({"frz-without-child", "no-second-child-scan", "frz-cleared-early"});
}

// Slot i goes to slot i of a table in which nothing can be inserted before slot i is decided.
TEST_F(HazardTest, DestinationFullDuringASplit) { ExpectNoticed({"child-starts-free", "write-at-child-without-help"}); }

TEST_F(HazardTest, InsertWithAStaleDirectory) {
  ExpectNoticed({"insert-without-headers", "migration-ignores-ins", "decision-before-headers"});
}

TEST_F(HazardTest, TwoInsertersOfOneKey) {
  ExpectNoticed({"insert-without-ins", "confirm-without-kill", "confirm-after-failed-kill", "exists-on-ins",
                 "failed-confirm-ok", "confirm-by-write", "rescan-ignores-val", "ins-visible"});
}

TEST_F(HazardTest, RecycledBlock) { ExpectNoticed({"no-grace"}); }

TEST_F(HazardTest, UnknownOutcome) { ExpectNoticed({"unknown-is-failure", "unknown-is-success"}); }

}  // namespace
}  // namespace surgekv_sim
