#include "cli/flags.h"

#include <gflags/gflags.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "cli/common_flags.h"

DEFINE_string(test_memory, "1G", "How much memory");
DEFINE_int32(test_node, 1, "Which node");
DEFINE_uint64(test_count, 7, "How many");
DEFINE_double(test_rate, 0.7, "How often");
DEFINE_bool(test_metaserver, false, "Whether to");
DEFINE_bool(test_on, true, "On by default");

namespace cli {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;

class Flags : public ::testing::Test {
 protected:
  krcore::Result<CommandLine> ParseWords(std::vector<const char*> words) { return Parse(program_, words); }

  // Returns the message of a refused command line.
  std::string Refused(std::vector<const char*> words) {
    const auto line = ParseWords(std::move(words));
    EXPECT_FALSE(line.ok());
    if (line.ok()) return "";
    EXPECT_EQ(line.status().code(), krcore::StatusCode::kInvalidArgument);
    return std::string(line.status().message());
  }

  Program program_{
      .name = "tester",
      .summary = "Tests.",
      .usage = "tester load [flags]\ntester run [flags]",
      .flags = {"fabric", "test_memory", "test_node", "test_count", "test_rate", "test_metaserver", "test_on",
                "operation_timeout_ms", "log"},
      .examples = "tester load --fabric=demo",
      .max_arguments = 1,
      .short_options = "Pp",
      .short_help = "  -P FILE\n    Properties.\n",
  };
  gflags::FlagSaver restore_;
};

TEST_F(Flags, ValuesAreTakenInEverySpelling) {
  ASSERT_TRUE(ParseWords({"--test_memory=2G", "--test_node", "7", "-test_count=9", "--test-rate=-2.5"}).ok());
  EXPECT_EQ(FLAGS_test_memory, "2G");
  EXPECT_EQ(FLAGS_test_node, 7);
  EXPECT_EQ(FLAGS_test_count, 9u);
  EXPECT_EQ(FLAGS_test_rate, -2.5);
}

TEST_F(Flags, AValueMayBeEmptyNegativeOrHoldAnEqualsSign) {
  ASSERT_TRUE(ParseWords({"--test_memory=", "--test_node", "-3"}).ok());
  EXPECT_EQ(FLAGS_test_memory, "");
  EXPECT_EQ(FLAGS_test_node, -3);
  ASSERT_TRUE(ParseWords({"--test_memory=a=b"}).ok());
  EXPECT_EQ(FLAGS_test_memory, "a=b");
}

TEST_F(Flags, BooleansAreSwitchedOnOffAndByValue) {
  ASSERT_TRUE(ParseWords({"--test_metaserver", "--notest_on"}).ok());
  EXPECT_TRUE(FLAGS_test_metaserver);
  EXPECT_FALSE(FLAGS_test_on);
  ASSERT_TRUE(ParseWords({"--test_metaserver=false", "--test_on=true"}).ok());
  EXPECT_FALSE(FLAGS_test_metaserver);
  EXPECT_TRUE(FLAGS_test_on);
}

TEST_F(Flags, ABooleanDoesNotSwallowTheNextWord) {
  const auto line = ParseWords({"--test_metaserver", "load"});
  ASSERT_TRUE(line.ok());
  EXPECT_THAT(line->arguments, ElementsAre("load"));
}

TEST_F(Flags, BadValuesAreRefusedWithTheFlagsNameAndWhatItTakes) {
  EXPECT_EQ(Refused({"--test_node=abc"}), "--test_node=abc: not a whole number in range");
  EXPECT_EQ(Refused({"--test_node=99999999999"}), "--test_node=99999999999: not a whole number in range");
  EXPECT_EQ(Refused({"--test_count=-1"}), "--test_count=-1: not a whole number, 0 or more");
  EXPECT_EQ(Refused({"--test_rate=fast"}), "--test_rate=fast: not a number");
  EXPECT_EQ(Refused({"--test_metaserver=maybe"}), "--test_metaserver=maybe: not true or false");
  EXPECT_EQ(FLAGS_test_node, 1) << "a refused value must not be set";
}

TEST_F(Flags, MissingValuesAreRefusedInsteadOfTakingTheNextFlag) {
  EXPECT_THAT(Refused({"--test_memory"}), StartsWith("--test_memory needs a value"));
  EXPECT_THAT(Refused({"--test_memory", "--test_metaserver"}), StartsWith("--test_memory needs a value"));
  EXPECT_FALSE(FLAGS_test_metaserver);
}

TEST_F(Flags, UnknownFlagsAreRefusedWithTheNearestName) {
  EXPECT_EQ(Refused({"--fabrik=demo"}), "unknown flag --fabrik; did you mean --fabric?");
  EXPECT_EQ(Refused({"--operation=5"}), "unknown flag --operation; did you mean --operation_timeout_ms?");
  EXPECT_EQ(Refused({"--wholly_different"}), "unknown flag --wholly_different");
  EXPECT_EQ(Refused({"--nosuch"}), "unknown flag --nosuch");
  EXPECT_EQ(Refused({"--notest_metaserver=1"}), "unknown flag --notest_metaserver; did you mean --test_metaserver?");
}

TEST_F(Flags, StrayArgumentsAreRefused) {
  EXPECT_EQ(Refused({"load", "more"}), "unexpected argument \"more\"");
  EXPECT_THAT(Refused({"load", "fabric=demo"}), EndsWith("a flag begins with --, for example --fabric=demo"));
  program_.max_arguments = 0;
  EXPECT_EQ(Refused({"load"}), "unexpected argument \"load\"");
}

TEST_F(Flags, TwoDashesEndTheFlags) {
  program_.max_arguments = 2;
  const auto line = ParseWords({"--", "--fabric=x", "-p"});
  ASSERT_TRUE(line.ok());
  EXPECT_THAT(line->arguments, ElementsAre("--fabric=x", "-p"));
  EXPECT_EQ(FLAGS_fabric, "");
}

TEST_F(Flags, ShortOptionsAreCollectedInOrderWhereverTheyStand) {
  const auto line = ParseWords({"-p", "a=1", "load", "-P", "file", "--test_node=2", "-p=b=2", "-p", "--c=3"});
  ASSERT_TRUE(line.ok()) << line.status().ToString();
  std::vector<std::string> seen;
  for (const ShortOption& option : line->short_options) seen.push_back(option.letter + (":" + option.value));
  EXPECT_THAT(seen, ElementsAre("p:a=1", "P:file", "p:b=2", "p:--c=3"));
  EXPECT_THAT(line->arguments, ElementsAre("load"));
  EXPECT_EQ(FLAGS_test_node, 2);
}

TEST_F(Flags, ShortOptionsWithoutAValueAreRefused) {
  EXPECT_EQ(Refused({"load", "-p"}), "-p needs a value after it");
  EXPECT_EQ(Refused({"-p="}), "-p has an empty value");
  EXPECT_EQ(Refused({"-q", "a=1"}), "unknown flag -q");
}

TEST_F(Flags, HelpShowsUsageExamplesAndOnlyThisProgramsFlags) {
  const auto line = ParseWords({"load", "--help"});
  ASSERT_TRUE(line.ok());
  EXPECT_THAT(line->show,
              AllOf(StartsWith("usage: tester load [flags]\n       tester run [flags]\n"),
                    HasSubstr("--test_memory=1G\n    How much memory"), HasSubstr("  tester load --fabric"),
                    HasSubstr("--test_rate=0.7\n"), HasSubstr("--notest_on turns it off"), HasSubstr("-P FILE")));
  EXPECT_THAT(line->show, AllOf(Not(HasSubstr("logtostderr")), Not(HasSubstr("flagfile"))));
}

TEST_F(Flags, ANumberOutOfRangeIsShownAsItWasWritten) {
  ASSERT_TRUE(ParseWords({"--test_rate=1.1"}).ok());
  EXPECT_EQ(CheckRange("test_rate", FLAGS_test_rate, 0, 1).message(), "--test_rate=1.1: expected 0 to 1");
  ASSERT_TRUE(ParseWords({"--test_count=9007199254740993"}).ok());
  EXPECT_EQ(CheckRange("test_count", 2, 0, 1).message(), "--test_count=9007199254740993: expected 0 to 1");
}

TEST_F(Flags, HelpfullShowsTheLibrariesFlagsToo) {
  const auto line = ParseWords({"--helpfull"});
  ASSERT_TRUE(line.ok());
  EXPECT_THAT(line->show, AllOf(HasSubstr("--test_memory=1G"), HasSubstr("--logtostderr")));
}

TEST_F(Flags, VersionNamesProgramAndVersion) {
  const auto line = ParseWords({"--version"});
  ASSERT_TRUE(line.ok());
  EXPECT_THAT(line->show, ::testing::MatchesRegex("tester [0-9]+\\.[0-9]+\\.[0-9]+\n"));
}

TEST_F(Flags, ARunShowsNothing) {
  const auto line = ParseWords({"load"});
  ASSERT_TRUE(line.ok());
  EXPECT_THAT(line->show, IsEmpty());
}

TEST_F(Flags, FlagGivenTellsTheUsersValueFromTheDefault) {
  EXPECT_FALSE(FlagGiven("test_memory"));
  ASSERT_TRUE(ParseWords({"--test_memory=1G"}).ok());
  EXPECT_TRUE(FlagGiven("test_memory"));
}

TEST_F(Flags, TheFabricsNameIsRequiredAndChecked) {
  EXPECT_THAT(std::string(CheckFabricFlags().message()), HasSubstr("--fabric is missing"));
  for (const char* good : {"demo", "A-b_9", "inproc", "0123456789012345678901234567890123456789"}) {
    FLAGS_fabric = good;
    EXPECT_TRUE(CheckFabricFlags().ok()) << good;
  }
  for (const char* bad : {"a/b", "a b", "..", "inproc:x", "01234567890123456789012345678901234567890"}) {
    FLAGS_fabric = bad;
    EXPECT_THAT(std::string(CheckFabricFlags().message()), StartsWith("--fabric=")) << bad;
  }
}

TEST_F(Flags, AnUnknownRnicIsRefusedByFlagWithTheKnownOnes) {
  FLAGS_fabric = "demo";
  FLAGS_rnic = "fast";
  const std::string message(CheckFabricFlags().message());
  FLAGS_rnic = "sw";
  EXPECT_THAT(message, StartsWith("--rnic=fast:"));
  EXPECT_THAT(message, HasSubstr("--rnic=sw"));
  EXPECT_TRUE(CheckFabricFlags().ok());
}

TEST_F(Flags, AnAddressAndAPortGoWithARnicOnANetworkAndNoOther) {
  FLAGS_fabric = "demo";
  EXPECT_EQ(FabricFlags(), "--fabric=demo");
  FLAGS_rnic_port = "rxe0";
  EXPECT_THAT(std::string(CheckFabricFlags().message()), "--rnic_port=rxe0: this flag needs --rnic=verbs");
  FLAGS_fabric_address = "10.0.0.1";
  EXPECT_THAT(std::string(CheckFabricFlags().message()), "--fabric_address=10.0.0.1: this flag needs --rnic=verbs");
  FLAGS_rnic = "verbs";
  EXPECT_TRUE(CheckFabricFlags().ok());
  EXPECT_EQ(FabricFlags(), "--fabric=demo --rnic=verbs --fabric_address=10.0.0.1");
  struct {
    std::string rnic, fabric, fabric_address, rnic_port;
  } options;
  SetFabric(&options);
  EXPECT_EQ(options.rnic + options.fabric + options.fabric_address + options.rnic_port, "verbsdemo10.0.0.1rxe0");
  FLAGS_fabric_address = "";
  EXPECT_THAT(std::string(CheckFabricFlags().message()), StartsWith("--fabric_address is missing"));
}

TEST_F(Flags, TimeoutsAreOneMillisecondToADay) {
  EXPECT_TRUE(CheckClientFlags().ok());
  FLAGS_operation_timeout_ms = 0;
  EXPECT_THAT(std::string(CheckClientFlags().message()), StartsWith("--operation_timeout_ms=0: "));
  FLAGS_operation_timeout_ms = 1;
  FLAGS_open_timeout_ms = INT64_MAX;
  EXPECT_THAT(std::string(CheckClientFlags().message()), HasSubstr("1 to 86400000"));
}

TEST_F(Flags, ControlPlanesAreThoseOfKrcore) {
  for (const char* plane : {"krcore", "verbs", "lite", "kernel"}) {
    FLAGS_control_plane = plane;
    EXPECT_TRUE(CheckClientFlags().ok()) << plane;
  }
  for (const char* plane : {"", "tcp", "KRCORE", "lite "}) {
    FLAGS_control_plane = plane;
    EXPECT_EQ(std::string(CheckClientFlags().message()),
              std::string("--control_plane=") + plane + ": expected krcore, verbs, lite or kernel");
  }
}

using FlagsDeathTest = Flags;

void ParseAndLeave(const Program& program, std::vector<const char*> words) {
  words.insert(words.begin(), "tester");
  ParseFlags(program, static_cast<int>(words.size()), const_cast<char**>(words.data()));
  std::exit(0);
}

TEST_F(FlagsDeathTest, AMistakeExitsWith2AndPointsToHelp) {
  EXPECT_EXIT(ParseAndLeave(program_, {"--fabrik=x"}), ::testing::ExitedWithCode(2),
              "tester: unknown flag --fabrik; did you mean --fabric.\nTry 'tester --help'");
  EXPECT_EXIT(ParseAndLeave(program_, {"--log=loud"}), ::testing::ExitedWithCode(2),
              "--log=loud: expected info, warning, error or off");
}

TEST_F(FlagsDeathTest, HelpExitsWith0) {
  EXPECT_EXIT(ParseAndLeave(program_, {"--help"}), ::testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace cli
