#include "cli/fail.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace cli {
namespace {

using krcore::StatusCode;

class FailTest : public ::testing::Test {
 protected:
  void SetUp() override { SetProgramName("memnode"); }
};

TEST_F(FailTest, WrongArgumentsExitWith2AndFailedRunsWith1) {
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(Fail({StatusCode::kInvalidArgument, "--node=0"}), 2);
  EXPECT_EQ(Fail({StatusCode::kTimeout, "late"}), 1);
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "memnode: --node=0\nmemnode: late\n");
}

TEST_F(FailTest, AStatusWithoutAMessageSaysItsCode) {
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(Fail(StatusCode::kTimeout), 1);
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "memnode: timeout\n");
}

TEST_F(FailTest, TheWayOutIsALineOfItsOwn) {
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(Fail({StatusCode::kNotFound, "no fabric"}, "Start a memory node."), 1);
  EXPECT_EQ(FailUsage("--x"), 2);
  EXPECT_EQ(::testing::internal::GetCapturedStderr(),
            "memnode: no fabric\nStart a memory node.\nmemnode: --x\nTry 'memnode --help'.\n");
}

}  // namespace
}  // namespace cli
