// The hazards that lose data in a store like this one (README.md), each as a test of its name. With a protection
// against the hazard taken away, the simulator goes red, at a point of a scenario or within a few seeds. With the
// protection it is green at all points, and on the very seeds that were red.
#include <gtest/gtest.h>

#include <cstdint>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tests/sim/scenario_testing.h"

namespace surgekv_sim {
namespace {

constexpr uint64_t kBudget = 500;  // seeds until a mutant counts as unnoticed

class HazardTest : public ::testing::Test {
 protected:
  // Expects that each named mutant is noticed, and that what noticed it is fine without the mutation.
  static void ExpectNoticed(const std::vector<std::string>& mutants) {
    std::set<const Scenario*> scenarios;
    std::set<std::pair<uint64_t, uint32_t>> seeds;  // with the number of replicas
    for (const std::string& name : mutants) {
      const MutationInfo* info = FindMutation(name);
      ASSERT_NE(info, nullptr) << "no mutant " << name;
      if (const Scenario* scenario = ScenarioFor(info->mutation); scenario != nullptr) {
        surgekv_sim::ExpectNoticed(*scenario, info->mutation);
        scenarios.insert(scenario);
      } else if (const uint64_t seed = NoticedBySeed(*info); seed != 0) {
        seeds.insert({seed, ReplicasFor(info->mutation)});
      }
    }
    for (const Scenario* scenario : scenarios) ExpectFine(*scenario);
    for (const auto& [seed, replicas] : seeds) ExpectSeedFine(seed, replicas);
  }

  // Returns the seed that noticed it, or 0.
  static uint64_t NoticedBySeed(const MutationInfo& mutant) {
    RunnerOptions options = OptionsOfTests();
    options.seeds = kBudget;
    options.replicas = ReplicasFor(mutant.mutation);
    options.mutation = mutant.mutation;
    options.quiet = true;
    uint64_t runs = 0;
    SeedResult noticed;
    RunSeeds(options, [&](const SeedResult& result) {
      ++runs;
      if (!result.run.violation.empty()) noticed = result;
      return noticed.seed == 0;
    });
    EXPECT_NE(noticed.seed, 0u) << mutant.name << " was not noticed in " << runs << " seeds";
    std::printf("%s: %s after %lu seeds\n", mutant.name, noticed.run.violation.c_str(), runs);
    return noticed.seed;
  }

  static void ExpectSeedFine(uint64_t seed, uint32_t replicas) {
    RunnerOptions options = OptionsOfTests();
    options.from = seed;
    options.replicas = replicas;
    RunSeeds(options, [](const SeedResult& result) {
      EXPECT_EQ(result.run.violation, "") << "seed " << result.seed << "\n" << result.run.text;
      return true;
    });
  }
};

TEST_F(HazardTest, UpdateDuringMigration) {
  ExpectNoticed({"copy-without-freeze", "update-of-frz", "slot-before-header", "migration-ignores-lost-freeze",
                 "decision-by-write", "lost-cas-ok"});
}

TEST_F(HazardTest, LookupDuringMigration) {
  ExpectNoticed({"frz-without-child", "no-second-child-scan", "frz-cleared-early", "get-miss-without-revalidation",
                 "child-miss-without-revalidation", "frz-from-any-parent"});
}

// Slot i moves to slot i of a table in which nothing can be inserted before slot i is decided.
TEST_F(HazardTest, DestinationFullDuringASplit) { ExpectNoticed({"child-starts-free", "write-at-child-without-help"}); }

TEST_F(HazardTest, InsertWithAStaleDirectory) {
  ExpectNoticed({"insert-without-headers", "migration-ignores-ins", "decision-before-headers", "directory-cache-kept"});
}

TEST_F(HazardTest, TwoInsertersOfOneKey) {
  ExpectNoticed({"insert-without-ins", "confirm-without-kill", "confirm-after-failed-kill", "exists-on-ins",
                 "failed-confirm-ok", "confirm-by-write", "rescan-ignores-val", "ins-visible"});
}

TEST_F(HazardTest, RecycledBlock) {
  ExpectNoticed({"no-grace", "no-pin", "early-stamp", "chunk-freed-without-grace", "kept-memory-unchecked"});
}

TEST_F(HazardTest, ClientDiesOrPausesPastItsLeaseAndWakesUp) {
  ExpectNoticed({"no-lease-check", "expelled-blocks-reused", "death-unconfirmed", "no-hold-while-frozen",
                 "frz-cleared-late", "helper-trusts-indexes"});
}

TEST_F(HazardTest, DirectoryGrowthWhileEntriesChange) {
  for (const Scenario& scenario : Scenarios()) {
    const std::string name = scenario.name;
    if (name != "DirectoryGrowthWhileEntriesChange" && name != "MergeInsideASplit") continue;
    for (const kvs::Mutation mutation : scenario.catches) surgekv_sim::ExpectNoticed(scenario, mutation);
    ExpectFine(scenario);
  }
}

TEST_F(HazardTest, MirroredPools) {
  ExpectNoticed({"read-head", "tail-first", "tail-before-middle", "no-help", "lost-hop-is-loss", "cas-at-head-only",
                 "writes-to-head-only", "unknown-is-lost", "number-unchecked", "number-not-written", "posts-to-closed",
                 "view-active-at-once", "hops-without-lease", "acknowledged-early", "sweep-ignores-head",
                 "promotion-unchecked"});
}

TEST_F(HazardTest, MirroredPoolsThatMemoryNodesJoin) {
  ExpectNoticed({"learner-ignored", "push-without-block", "own-block-not-copied", "sweep-skips-tables"});
}

TEST_F(HazardTest, UnknownOutcome) { ExpectNoticed({"unknown-is-failure", "unknown-is-success", "free-repeats"}); }

}  // namespace
}  // namespace surgekv_sim
