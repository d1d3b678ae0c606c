// The program's --drain and --undrain, on a store in use.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "krcore/clock.h"
#include "kvs/client.h"
#include "tests/support/program.h"

namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;
using testing_support::Finished;
using testing_support::Program;
using testing_support::RunProgram;
using testing_support::TestFabric;

class DrainCommand : public ::testing::Test {
 protected:
  static constexpr int kKeys = 3'000;

  Finished Run(const std::string& flag) { return RunProgram("memnode", {fabric_.flag(), flag}); }
  void StartHome() {
    home_.emplace("memnode", std::vector<std::string>{fabric_.flag(), "--node=1", "--memory=64M", "--metaserver",
                                                      "--hugepages=off"});
    ASSERT_NE(home_->WaitForLine("ready"), "") << home_->Output();
  }
  // Starts a home and a member, with keys at both.
  void StartBoth() {
    ASSERT_NO_FATAL_FAILURE(StartHome());
    member_.emplace("memnode", std::vector<std::string>{fabric_.flag(), "--node=2", "--memory=64M", "--hugepages=off"});
    ASSERT_NE(member_->WaitForLine("ready"), "") << member_->Output();
    auto store = kvs::Store::Open({.fabric = fabric_.name()}).value();
    auto client = store->NewClient().value();
    for (int i = 0; i < kKeys; ++i) ASSERT_TRUE(client->Put(std::to_string(i), std::string(1'000, 'v')).ok());
  }

  TestFabric fabric_;
  std::optional<Program> home_, member_;
};

TEST_F(DrainCommand, ANodeIsEmptiedAndStoppedAndEveryKeyIsThere) {
  ASSERT_NO_FATAL_FAILURE(StartBoth());

  const Finished home = Run("--drain=1");
  EXPECT_EQ(home.status, 2);
  EXPECT_THAT(home.err, HasSubstr("home"));
  const Finished unknown = Run("--drain=9");
  EXPECT_EQ(unknown.status, 1);
  EXPECT_THAT(unknown.err, HasSubstr("memory node 9 has not joined"));

  const Finished drained = Run("--drain=2");
  EXPECT_EQ(drained.status, 0) << drained.err;
  EXPECT_THAT(drained.out, AllOf(HasSubstr("drained fabric=" + fabric_.name() + " node=2 chunks_left=0 tables_left=0"),
                                 HasSubstr("blocks_moved=")));
  const Finished undrained = Run("--undrain=2");
  EXPECT_EQ(undrained.status, 0) << undrained.err;
  EXPECT_THAT(undrained.out, StartsWith("undrained fabric="));
  EXPECT_EQ(Run("--drain=2").status, 0);
  EXPECT_EQ(member_->Stop(), 0) << member_->Output();
  EXPECT_THAT(member_->err(), Not(HasSubstr("keys and values are lost")));

  auto store = kvs::Store::Open({.fabric = fabric_.name()}).value();
  auto client = store->NewClient().value();
  std::string value;
  for (int i = 0; i < kKeys; ++i) {
    const kvs::Status got = client->Get(std::to_string(i), &value);
    ASSERT_TRUE(got.ok()) << i << ": " << got.ToString();
  }
  const Finished stopped = Run("--undrain=2");
  EXPECT_EQ(stopped.status, 1);
  EXPECT_THAT(stopped.err, HasSubstr("just start it"));
  client.reset();
  store.reset();
  EXPECT_EQ(home_->Stop(), 0) << home_->Output();
}

// The client's entry at the home is that of a living process, and only that process can know that the client has ended.
TEST_F(DrainCommand, AClientThatEndedWhileTheHomeWasAwayIsNotWaitedForWhenAnotherOneOfItsStoreLives) {
  ASSERT_NO_FATAL_FAILURE(StartBoth());
  auto store = kvs::Store::Open({.fabric = fabric_.name()}).value();
  auto ended = store->NewClient().value();
  home_->Kill();
  std::string value;
  const krcore::Deadline deadline = krcore::Deadline::After(*krcore::RealClock(), 20'000'000'000);
  for (int key = 0; ended->Get(std::to_string(key % kKeys), &value) != krcore::StatusCode::kUnavailable; ++key) {
    ASSERT_FALSE(deadline.Passed(*krcore::RealClock())) << "it does not notice";
  }
  ended.reset();
  StartHome();
  // The store finds the home again as soon as it has seen that the former one is dead.
  std::unique_ptr<kvs::Client> client;
  while (client == nullptr && !deadline.Passed(*krcore::RealClock())) {
    if (auto made = store->NewClient(); made.ok()) client = *std::move(made);
  }
  ASSERT_NE(client, nullptr);
  const kvs::Status drained = client->DrainNode(2, {.timeout_ms = 20'000});
  EXPECT_TRUE(drained.ok()) << drained.ToString();
  client.reset();
  EXPECT_EQ(Run("--undrain=2").status, 0);
  EXPECT_EQ(member_->Stop(), 0) << member_->Output();
  EXPECT_EQ(home_->Stop(), 0) << home_->Output();
}

TEST_F(DrainCommand, AMemberThatIsStoppedWithKeysSaysThatThereIsSuchACommand) {
  ASSERT_NO_FATAL_FAILURE(StartBoth());
  EXPECT_EQ(member_->Stop(), 0) << member_->Output();
  EXPECT_THAT(member_->err(), AllOf(HasSubstr("keys and values are lost"), HasSubstr("--drain=2 before the stop")));
  EXPECT_EQ(home_->Stop(), 0) << home_->Output();
}

TEST_F(DrainCommand, BadCommandLinesAreRefused) {
  for (const char* flag : {"--drain=0", "--drain=256", "--undrain=-1"}) {
    const Finished run = Run(flag);
    EXPECT_EQ(run.status, 2);
    EXPECT_THAT(run.err, AllOf(HasSubstr(flag), HasSubstr("1 to 255")));
  }
  const Finished both = RunProgram("memnode", {fabric_.flag(), "--drain=2", "--memory=64M"});
  EXPECT_EQ(both.status, 2);
  EXPECT_THAT(both.err, HasSubstr("--memory has no effect with --drain"));
  const Finished clean = RunProgram("memnode", {fabric_.flag(), "--clean", "--drain=2"});
  EXPECT_EQ(clean.status, 2);
  EXPECT_THAT(clean.err, HasSubstr("--drain has no effect with --clean"));
  const Finished nobody = RunProgram("memnode", {fabric_.flag(), "--drain=2", "--wait_ms=10"});
  EXPECT_EQ(nobody.status, 1);
  EXPECT_THAT(nobody.err, HasSubstr(fabric_.name()));
}

}  // namespace
