// Seeds of the modelled world (run.h); sdc_sim runs more of them and replays one.
#include <gtest/gtest.h>

#include "tests/rnic/sdc/run.h"

namespace sdc_test {
namespace {

#if defined(__SANITIZE_THREAD__)
constexpr uint64_t kSeeds = 40;
#elif defined(__SANITIZE_ADDRESS__)
constexpr uint64_t kSeeds = 150;
#else
constexpr uint64_t kSeeds = 1000;
#endif

TEST(SdcSim, SeedsAreFine) {
  Counts counts;
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    const RunResult result = RunSeed(seed);
    ASSERT_EQ(result.violation, "") << result.plan << "replay: sdc_sim --from=" << seed << " --seeds=1";
    counts += result.counts;
  }
  EXPECT_GT(counts.succeeded, kSeeds * 20);
  EXPECT_GT(counts.failed, 0u);
  EXPECT_GT(counts.waited_resets, 0u);
  EXPECT_GT(counts.sessions_gone, 0u);
}

TEST(SdcSim, ASeedGivesTheSameRunAgain) {
  for (const uint64_t seed : {3u, 7u}) EXPECT_EQ(RunSeed(seed).digest, RunSeed(seed).digest);
  EXPECT_NE(RunSeed(3).digest, RunSeed(7).digest);
}

// sdc_mutants tests all of them.
TEST(SdcSim, MutationsAreNoticed) {
  for (const char* name : {"atomic-repeated", "write-repeated", "gaps-ignored", "no-barrier", "gone-counts"}) {
    const MutationInfo* info = FindMutation(name);
    ASSERT_NE(info, nullptr) << name;
    std::string how;
    EXPECT_NE(Notice(info->mutation, 100, &how), 0u) << name;
  }
  EXPECT_EQ(FindMutation("no such protection"), nullptr);
}

TEST(SdcJudge, AStampIsOfOneWrAndOnePlace) {
  EXPECT_EQ(UidOf(StampOf(7, 3), 3), 7u);
  EXPECT_EQ(UidOf(StampOf(7, 3), 4), 0u);
  EXPECT_EQ(UidOf(0, 0), 0u);
  // A word that is half of one stamp and half of another.
  EXPECT_EQ(UidOf((StampOf(7, 3) & 0xffffffff00000000) | (StampOf(8, 3) & 0xffffffff), 3), 0u);
}

}  // namespace
}  // namespace sdc_test
