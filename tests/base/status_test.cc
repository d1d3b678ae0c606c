#include "krcore/status.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <memory>
#include <set>
#include <string>

namespace krcore {
namespace {

TEST(Status, EveryCodeHasItsOwnName) {
  std::set<std::string_view> names;
  for (int code = 0; code <= static_cast<int>(StatusCode::kInternal); ++code) {
    const std::string_view name = StatusCodeName(static_cast<StatusCode>(code));
    EXPECT_NE(name, "unknown status code") << code;
    EXPECT_TRUE(names.insert(name).second) << name;
  }
}

TEST(Status, ToStringJoinsCodeAndMessage) {
  EXPECT_EQ(Status().ToString(), "ok");
  EXPECT_EQ(Status(StatusCode::kNotFound).ToString(), "not found");
  EXPECT_EQ(Status(StatusCode::kOutOfMemory, "node 1 is full").ToString(), "out of memory: node 1 is full");
}

TEST(Status, CopyKeepsTheMessageOfBoth) {
  const Status original(StatusCode::kTimeout, "after 5 s");
  Status copy = original;
  EXPECT_EQ(copy.message(), "after 5 s");
  copy = Status(StatusCode::kExists);
  EXPECT_EQ(copy.message(), "");
  EXPECT_EQ(original.message(), "after 5 s");
}

TEST(Status, AssigningToItselfKeepsTheMessage) {
  Status status(StatusCode::kTimeout, "after 5 s");
  const Status& alias = status;
  status = alias;
  EXPECT_EQ(status.message(), "after 5 s");
}

TEST(Status, FromErrnoTellsMissingFromForbiddenFromFull) {
  EXPECT_EQ(Status::FromErrno(ENOENT, "open x"), StatusCode::kNotFound);
  EXPECT_EQ(Status::FromErrno(EACCES, "open x"), StatusCode::kPermissionDenied);
  EXPECT_EQ(Status::FromErrno(ENOSPC, "open x"), StatusCode::kOutOfMemory);
  EXPECT_EQ(Status::FromErrno(EHOSTUNREACH, "open x"), StatusCode::kUnavailable);
  EXPECT_EQ(Status::FromErrno(EIO, "open x"), StatusCode::kInternal);
  EXPECT_EQ(Status::FromErrno(ENOENT, "open x").message(), "open x: No such file or directory");
}

TEST(Result, HoldsMoveOnlyValues) {
  Result<std::unique_ptr<int>> result(std::make_unique<int>(7));
  ASSERT_TRUE(result.ok());
  const std::unique_ptr<int> value = std::move(result).value();
  EXPECT_EQ(*value, 7);
}

TEST(Result, ValueOfAFailureEndsTheProcessAndSaysWhy) {
  const Result<int> result(Status(StatusCode::kNotFound, "no fabric named demo"));
  EXPECT_DEATH((void)result.value(), "not found: no fabric named demo");
}

}  // namespace
}  // namespace krcore
