// kvs_sim itself: a seed determines everything about its run, and a run that goes wrong is reported.
#include <gtest/gtest.h>

#include <map>
#include <string>

#include "tests/sim/history.h"
#include "tests/sim/runner.h"

namespace surgekv_sim {
namespace {

std::map<uint64_t, SeedResult> RunAll(RunnerOptions options) {
  options.seed_limit_s = 100;  // AddressSanitizer makes a run ten times slower
  std::map<uint64_t, SeedResult> results;
  RunSeeds(options, [&](const SeedResult& result) {
    results[result.seed] = result;
    return true;
  });
  return results;
}

TEST(KvsSim, AFewSeedsAreFine) {
  for (const auto& [seed, result] : RunAll({.from = 1, .seeds = 4, .jobs = 2})) {
    EXPECT_EQ(result.run.violation, "") << "seed " << seed << "\n" << result.run.text;
    EXPECT_GT(result.run.counts.checked, 1'000u);
  }
}

TEST(KvsSim, SeedsWithMirroredPoolsAreFineAndRepeat) {
  for (const uint32_t replicas : {2u, 3u}) {
    RunnerOptions options{.from = 1, .seeds = 3, .replicas = replicas, .jobs = 2};
    const auto first = RunAll(options), again = RunAll(options);
    for (const auto& [seed, result] : first) {
      EXPECT_EQ(result.run.violation, "") << "seed " << seed << "\n" << result.run.text;
      EXPECT_EQ(result.run.digest, again.at(seed).run.digest) << "seed " << seed;
      EXPECT_EQ(result.run.counts.mirrored_runs, 1u);
    }
  }
}

TEST(KvsSim, ASeedGivesTheSameRunAgain) {
  const auto first = RunAll({.from = 7, .seeds = 2, .jobs = 1}), again = RunAll({.from = 7, .seeds = 2, .jobs = 2});
  ASSERT_EQ(first.size(), 2u);
  ASSERT_EQ(again.size(), 2u);
  for (const auto& [seed, result] : first) {
    EXPECT_EQ(result.run.digest, again.at(seed).run.digest) << "seed " << seed;
    EXPECT_NE(result.run.digest, 0u);
  }
  EXPECT_NE(first.at(7).run.digest, first.at(8).run.digest);
}

TEST(KvsSim, AFailingSeedFailsAgainInTheSameWayAndShowsTheHistory) {
  RunnerOptions options{.from = 1, .seeds = 50, .replicas = 1, .jobs = 1, .mutation = kvs::Mutation::kFailedConfirmOk};
  SeedResult failed;
  RunSeeds(options, [&](const SeedResult& result) {
    failed = result;
    return result.run.violation.empty();
  });
  ASSERT_EQ(failed.run.violation, "history");
  EXPECT_NE(failed.run.text.find("history of key-"), std::string::npos) << failed.run.text;
  EXPECT_NE(failed.run.text.find("seed " + std::to_string(failed.seed)), std::string::npos);
  options.from = failed.seed;
  options.seeds = 1;
  const auto again = RunAll(options);
  EXPECT_EQ(again.at(failed.seed).run.text, failed.run.text);
  EXPECT_EQ(again.at(failed.seed).run.digest, failed.run.digest);
}

TEST(KvsSim, WhatIsTakenOutOfTheStoreIsKnownByName) {
  EXPECT_GT(Mutations().size(), 30u);
  for (const MutationInfo& info : Mutations()) EXPECT_EQ(FindMutation(info.name)->mutation, info.mutation);
  EXPECT_EQ(FindMutation("no such protection"), nullptr);
}

TEST(KvsSim, ValuesTellWhoWroteThemAndEveryByteOfThemCounts) {
  for (const uint32_t id : {1u, 2u, 5u, 67u, 66u, 12345u}) {
    std::string value = ValueOf(id);
    uint32_t read = 0;
    ASSERT_TRUE(IdOf(value, &read));
    EXPECT_EQ(read, id);
    if (value.size() == sizeof(id)) continue;
    value.back() = static_cast<char>(value.back() ^ 1);
    EXPECT_FALSE(IdOf(value, &read));
  }
}

TEST(KvsSim, HistoriesAreCheckedByTheirResults) {
  using enum OpKind;
  using krcore::StatusCode;
  const auto violations = [](StatusCode put, StatusCode get, bool ends) {
    History history({"a"});
    const uint32_t first = history.Begin(0, kPut, 1, 10);
    if (ends) history.End(first, put, 0, 20);
    const uint32_t second = history.Begin(0, kGet, 2, 30);
    history.End(second, get, get == StatusCode::kOk ? history[first].value : 0, 40);
    uint32_t gave_up = 0;
    return history.Violations(&gave_up).size() + gave_up;
  };
  EXPECT_EQ(violations(StatusCode::kOk, StatusCode::kOk, true), 0u);
  EXPECT_EQ(violations(StatusCode::kOk, StatusCode::kNotFound, true), 1u);
  // "Nothing was changed" means it.
  EXPECT_EQ(violations(StatusCode::kUnavailable, StatusCode::kNotFound, true), 0u);
  EXPECT_EQ(violations(StatusCode::kUnavailable, StatusCode::kOk, true), 1u);
  EXPECT_EQ(violations(StatusCode::kOutOfMemory, StatusCode::kOk, true), 1u);
  // Unknown means that either may be the case, and so does a client that died.
  EXPECT_EQ(violations(StatusCode::kUnknown, StatusCode::kNotFound, true), 0u);
  EXPECT_EQ(violations(StatusCode::kUnknown, StatusCode::kOk, true), 0u);
  EXPECT_EQ(violations(StatusCode::kOk, StatusCode::kOk, false), 0u);
  EXPECT_EQ(violations(StatusCode::kOk, StatusCode::kNotFound, false), 0u);
}

}  // namespace
}  // namespace surgekv_sim
