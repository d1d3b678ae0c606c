#include "bench/spike/model/study.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/support/program.h"

namespace spike_model {
namespace {

using ::testing::HasSubstr;
using ::testing_support::Finished;
using ::testing_support::RunProgram;

TEST(SpikeStudy, TheReserveFoundKeepsTheSloAndALittleLessDoesNot) {
  const StudyOptions options;
  const PlaneResult verbs = StudyPlane(ConfigOf(options, 1, Plane::kVerbs, Spawn::kPrefork));
  ASSERT_GT(verbs.reserve, 0.5);
  const auto slo_ns = static_cast<double>(verbs.config.slo_ns);
  EXPECT_LE(verbs.with.wait_p99_ns, slo_ns);
  EXPECT_GT(verbs.none.wait_p99_ns, slo_ns);
  SpikeConfig less = verbs.config;
  less.reserve = verbs.reserve - 0.05;
  EXPECT_GT(Simulate(less).wait_p99_ns, slo_ns);
  // The autoscaler's own rule is on the safe side: it expects all workers as late as the last.
  EXPECT_GE(verbs.by_rule, verbs.reserve);
  EXPECT_LE(verbs.rule.wait_p99_ns, slo_ns);
}

TEST(SpikeStudy, FastBootstrapTakesNoReserveAndLessCompute) {
  const StudyOptions options;
  const PlaneResult verbs = StudyPlane(ConfigOf(options, 1, Plane::kVerbs, Spawn::kPrefork));
  const PlaneResult krcore = StudyPlane(ConfigOf(options, 1, Plane::kKrcoreRc, Spawn::kPrefork));
  EXPECT_EQ(krcore.reserve, 0);
  EXPECT_EQ(krcore.by_rule, 0);
  EXPECT_LT(krcore.with.workers_before, verbs.with.workers_before);
  EXPECT_LT(krcore.with.worker_seconds, verbs.with.worker_seconds);
}

TEST(SpikeStudy, TheLoadIsTheSameForAllPlanesAndFitsTheCluster) {
  for (const uint32_t scale : {1U, 10U, 100U}) {
    for (const Plane plane : kPlanes) {
      const SpikeConfig config = ConfigOf({}, scale, plane, Spawn::kPrefork);
      EXPECT_EQ(config.base_per_s, ConfigOf({}, scale, Plane::kVerbs, Spawn::kPrefork).base_per_s);
      const double peak = config.base_per_s * config.spike_factor;
      EXPECT_LE(peak, 0.9 * config.cluster.workers() * 0.7 * 1e9 / ServiceNs(plane, config.cluster, {}, 0) + 1);
      EXPECT_LT(peak, NicLimitPerS(config.cluster, {}));
    }
  }
}

TEST(SpikeStudy, AConstantThatMattersChangesTheHeadline) {
  const StudyOptions options;
  const Headlines published = HeadlinesOf(options, {});
  Constants slower;
  slower.handshakes_per_s /= 2;
  const Headlines with = HeadlinesOf(options, slower);
  EXPECT_GT(with.verbs_full_ms, 1.7 * published.verbs_full_ms);
  EXPECT_GT(with.cold_start_shorter, published.cold_start_shorter);
  EXPECT_EQ(with.krcore_full_ms, published.krcore_full_ms);
}

TEST(SpikeModelProgram, PrintsItsTablesAsModelledAndTheSameAsJson) {
  const std::filesystem::path folder =
      std::filesystem::temp_directory_path() / ("spike_model." + std::to_string(getpid()));
  std::filesystem::create_directory(folder);
  const std::string file = folder / "spike.json";
  const Finished first = RunProgram("spike_model", {"--scale=1", "--spike_s=4", "--seed=7", "--json=" + file});
  ASSERT_EQ(first.status, 0) << first.err;
  for (const char* part : {"# The modelled spike", "Everything below is modelled", "seed 7", "## Constants",
                           "verbs_connect_ns", "## Back-test", "## Scale 1, modelled", "smallest reserve",
                           "83% shorter", "## Sensitivity, modelled", "| krcore + RC"}) {
    EXPECT_THAT(first.out, HasSubstr(part));
  }
  std::ifstream stream(file);
  const auto json = nlohmann::json::parse(stream);
  EXPECT_EQ(json["kind"], "modelled");
  EXPECT_EQ(json["seed"], 7);
  for (const Plane plane : kPlanes) {
    const auto& row = json["scales"]["1"][std::string(PlaneName(plane))];
    EXPECT_GT(row["without_reserve"]["to_full_ns"], 0) << PlaneName(plane);
  }
  for (const ConstantInfo& info : ConstantTable()) {
    EXPECT_EQ(json["constants"][info.name]["source"], info.source);
    EXPECT_EQ(json["sensitivity"][info.name].size(), 2u) << info.name;
  }
  const Finished again = RunProgram("spike_model", {"--scale=1", "--spike_s=4", "--seed=7"});
  EXPECT_EQ(again.out, first.out);
  std::filesystem::remove_all(folder);
}

TEST(SpikeModelProgram, HelpAndMistakesAreAsInTheOtherPrograms) {
  const Finished help = RunProgram("spike_model", {"--help"});
  EXPECT_EQ(help.status, 0);
  for (const char* flag : {"--scale", "--seed", "--json", "--spawn"}) EXPECT_THAT(help.out, HasSubstr(flag));
  const auto refused = [](const std::string& flag, const char* text) {
    const Finished run = RunProgram("spike_model", {flag});
    EXPECT_EQ(run.status, 2) << flag;
    EXPECT_THAT(run.err, HasSubstr(text)) << flag;
  };
  refused("--scale=0", "\"0\" is not a number from 1 to 100");
  refused("--scale=1,,2", "\"\" is not a number");
  refused("--scale=1x", "\"1x\" is not a number");
  refused("--scale=1000", "\"1000\" is not a number from 1 to 100");
  refused("--spawn=vm", "expected thread, prefork or exec");
  refused("--slo_ms=0", "--slo_ms=0: expected");
  refused("--interval_ms=nan", "--interval_ms=nan: expected");
  refused("--spike_s=1", "--spike_s=1: expected 4");
  refused("--sclae=1", "did you mean --scale");
  const Finished file = RunProgram("spike_model", {"--json=/nowhere/x.json"});
  EXPECT_EQ(file.status, 1);
  EXPECT_THAT(file.err, HasSubstr("/nowhere/x.json"));
}

}  // namespace
}  // namespace spike_model
