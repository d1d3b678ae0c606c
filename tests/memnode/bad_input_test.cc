// What a memory node refuses: each case exits with a message that names the flag and the way out, and leaves nothing.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "tests/support/program.h"

namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using testing_support::Finished;
using testing_support::Program;
using testing_support::RunProgram;
using testing_support::TestFabric;

class BadInput : public ::testing::Test {
 protected:
  // Runs memnode on the fabric with `args`, which it must refuse as a wrong command line. Returns the message.
  std::string Refused(std::vector<std::string> args) {
    args.insert(args.begin(), fabric_.flag());
    return RefusedAsIs(std::move(args));
  }
  std::string RefusedAsIs(std::vector<std::string> args) {
    const Finished run = RunProgram("memnode", args);
    EXPECT_EQ(run.status, 2) << run.err;
    EXPECT_THAT(run.out, IsEmpty());
    EXPECT_THAT(run.err, HasSubstr("Try 'memnode --help'."));
    EXPECT_THAT(fabric_.Files(), IsEmpty());
    return run.err;
  }

  TestFabric fabric_;
};

TEST_F(BadInput, MissingFabric) {
  EXPECT_THAT(RefusedAsIs({"--node=1", "--memory=64M"}), HasSubstr("--fabric is missing"));
}

TEST_F(BadInput, MalformedFabric) {
  EXPECT_THAT(RefusedAsIs({"--fabric=a/b", "--node=1", "--memory=64M"}), HasSubstr("--fabric=a/b: "));
}

TEST_F(BadInput, MissingNode) { EXPECT_THAT(Refused({"--memory=64M"}), HasSubstr("--node is missing")); }

TEST_F(BadInput, ControlPlaneOfClients) {
  for (const char* plane : {"--control_plane=verbs", "--control_plane=lite"})
    EXPECT_THAT(Refused({"--node=1", "--memory=64M", plane}), AllOf(HasSubstr(plane), HasSubstr("krcore or kernel")));
}

TEST_F(BadInput, NodeOutOfRange) {
  for (const char* node : {"--node=0", "--node=256", "--node=-1"}) {
    EXPECT_THAT(Refused({node, "--memory=64M"}), AllOf(HasSubstr(node), HasSubstr("1 to 255")));
  }
}

TEST_F(BadInput, NodeThatIsNotANumber) {
  EXPECT_THAT(Refused({"--node=one", "--memory=64M"}), HasSubstr("--node=one: not a whole number"));
}

TEST_F(BadInput, MissingMemory) {
  EXPECT_THAT(Refused({"--node=1"}), AllOf(HasSubstr("--memory is missing"), HasSubstr("--memory=1G")));
}

TEST_F(BadInput, MemoryThatIsNotASize) {
  EXPECT_THAT(Refused({"--node=1", "--memory=1.5G"}), AllOf(HasSubstr("--memory=1.5G: "), HasSubstr("512M")));
}

TEST_F(BadInput, MemoryBelowTheLayoutsMinimum) {
  EXPECT_THAT(Refused({"--node=1", "--memory=1M"}), AllOf(HasSubstr("--memory=1M"), HasSubstr("at least 6M")));
}

TEST_F(BadInput, MemoryAboveTheLayoutsMaximum) {
  EXPECT_THAT(Refused({"--node=1", "--memory=257G"}), AllOf(HasSubstr("--memory=257G"), HasSubstr("at most 256G")));
}

TEST_F(BadInput, NoMemoryAndNoMetaServerIsNothingToDo) {
  EXPECT_THAT(Refused({"--memory=0"}), AllOf(HasSubstr("--memory=0"), HasSubstr("--metaserver")));
}

TEST_F(BadInput, FlagsThatWouldHaveNoEffect) {
  for (const char* flag : {"--keep_memory", "--rc_acceptor=spin", "--expected_records=9"}) {
    EXPECT_THAT(Refused({"--memory=0", "--metaserver", flag}), HasSubstr("has no effect with --memory=0"));
  }
  EXPECT_THAT(Refused({"--node=1", "--memory=64M", "--control_plane=kernel", "--rc_acceptor=spin"}),
              HasSubstr("--rc_acceptor has no effect with --control_plane=kernel"));
}

TEST_F(BadInput, UnknownFlagAndStrayArgument) {
  EXPECT_THAT(Refused({"--nod=1"}), HasSubstr("did you mean --node?"));
  EXPECT_THAT(Refused({"serve"}), HasSubstr("unexpected argument \"serve\""));
}

TEST_F(BadInput, UnknownHugepagesMode) {
  EXPECT_THAT(Refused({"--node=1", "--memory=64M", "--hugepages=on"}),
              HasSubstr("--hugepages=on: expected auto or off"));
  EXPECT_THAT(Refused({"--node=1", "--memory=64M", "--rc_acceptor=yes"}),
              HasSubstr("--rc_acceptor=yes: expected sleep, spin or off"));
}

TEST_F(BadInput, WaitOutOfRange) {
  for (const char* wait : {"--wait_ms=-1", "--wait_ms=9223372036854775807"}) {
    EXPECT_THAT(Refused({"--node=1", "--memory=64M", wait}), HasSubstr(wait));
  }
}

TEST_F(BadInput, CleanTakesNoOtherFlags) {
  EXPECT_THAT(Refused({"--clean", "--memory=64M"}), HasSubstr("--memory has no effect with --clean"));
}

TEST_F(BadInput, UnknownRnic) {
  const Finished run = RunProgram("memnode", {fabric_.flag(), "--node=1", "--memory=64M", "--rnic=fast"});
  EXPECT_EQ(run.status, 2);
  EXPECT_THAT(run.err, AllOf(HasSubstr("--rnic=fast"), HasSubstr("--rnic=sw")));
}

TEST_F(BadInput, AFabricOnANetworkNeedsItsAddressAndADevice) {
  EXPECT_THAT(Refused({"--node=1", "--memory=64M", "--rnic=verbs"}), HasSubstr("--fabric_address is missing"));
  EXPECT_THAT(Refused({"--node=1", "--memory=64M", "--rnic_port=rxe0"}), HasSubstr("this flag needs --rnic=verbs"));
  const std::vector<std::string> verbs = {fabric_.flag(), "--node=1", "--memory=64M", "--rnic=verbs"};
  const auto run = [&](std::vector<std::string> more) {
    more.insert(more.begin(), verbs.begin(), verbs.end());
    return RunProgram("memnode", more);
  };
  EXPECT_THAT(run({"--fabric_address=::1"}).err, HasSubstr("brackets belong around a host with colons"));
  EXPECT_THAT(run({"--fabric_address=localhost", "--rnic_port=rxe0:x"}).err, HasSubstr("'rxe0:x' names no port"));
  const Finished none = run({"--fabric_address=localhost:7481", "--rnic_port=no_such_device"});
  EXPECT_EQ(none.status, 1);
  EXPECT_THAT(none.err, HasSubstr("no RDMA device no_such_device with an active port"));
}

TEST_F(BadInput, MoreMemoryThanThereIsNamesWhatIsAvailable) {
  const Finished run = RunProgram("memnode", {fabric_.flag(), "--node=1", "--memory=256G", "--metaserver"});
  EXPECT_EQ(run.status, 1);
  EXPECT_THAT(run.err,
              AllOf(HasSubstr("--memory=256G is too much"), HasSubstr("/dev/shm has"), HasSubstr("available")));
}

TEST_F(BadInput, MoreRecordsThanTheMemoryHasRoomFor) {
  const Finished run =
      RunProgram("memnode", {fabric_.flag(), "--node=1", "--memory=64M", "--metaserver", "--expected_records=9000000"});
  EXPECT_EQ(run.status, 1);
  EXPECT_THAT(run.err, AllOf(HasSubstr("8192 initial subtables"), HasSubstr("a smaller --expected_records")));
  EXPECT_THAT(fabric_.Files(), IsEmpty());
  EXPECT_THAT(Refused({"--node=1", "--memory=64M", "--expected_records=-1"}), HasSubstr("--expected_records=-1"));
}

TEST_F(BadInput, NoMetaServerIsSaidAfterTheWait) {
  const Finished run = RunProgram("memnode", {fabric_.flag(), "--node=1", "--memory=64M", "--wait_ms=50"});
  EXPECT_EQ(run.status, 1);
  EXPECT_THAT(run.err, AllOf(HasSubstr("--wait_ms=50"), HasSubstr("--metaserver")));
  EXPECT_THAT(run.out, Not(HasSubstr("ready")));
}

TEST_F(BadInput, ATakenNodeIdNamesItsHolder) {
  Program first("memnode", {fabric_.flag(), "--node=1", "--memory=64M", "--metaserver", "--hugepages=off"});
  ASSERT_NE(first.WaitForLine("ready"), "") << first.Output();
  const Finished second = RunProgram("memnode", {fabric_.flag(), "--node=1", "--memory=64M"});
  EXPECT_EQ(second.status, 1);
  EXPECT_THAT(second.err, AllOf(HasSubstr(std::to_string(first.pid())), HasSubstr("--node")));
  EXPECT_EQ(first.Stop(), 0) << "the holder must not suffer" << first.Output();
}

TEST_F(BadInput, ANinthMetaServerIsRefused) {
  const std::vector<std::string> args = {fabric_.flag(), "--memory=0", "--metaserver"};
  std::vector<std::unique_ptr<Program>> servers;
  for (int i = 0; i < 8; ++i) {
    servers.push_back(std::make_unique<Program>("memnode", args));
    ASSERT_NE(servers.back()->WaitForLine("ready"), "") << servers.back()->Output();
  }
  const std::vector<std::string> files = fabric_.Files();
  const Finished ninth = RunProgram("memnode", args);
  EXPECT_EQ(ninth.status, 1);
  EXPECT_THAT(ninth.err, HasSubstr("Leave out --metaserver"));
  EXPECT_THAT(fabric_.Files(), ::testing::UnorderedElementsAreArray(files));
  for (const auto& server : servers) EXPECT_EQ(server->Stop(), 0) << server->Output();
}

}  // namespace
