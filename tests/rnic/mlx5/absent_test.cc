// What replaces the DC of mlx5 in a build without libmlx5.
#include <gtest/gtest.h>

#include "krcore/rnic/verbs/device.h"

namespace krcore::rnic::verbs {
namespace {

TEST(Mlx5Absent, ABuildWithoutLibmlx5LeavesDcToSoftware) {
  EXPECT_EQ(FindMlx5Dc(nullptr).value(), DcKind::kSoftware);
  EXPECT_EQ(CreateMlx5Dci(nullptr, nullptr, 0, {}).status(), StatusCode::kUnsupported);
  EXPECT_EQ(CreateMlx5Dct(nullptr, nullptr, {}).status(), StatusCode::kUnsupported);
}

}  // namespace
}  // namespace krcore::rnic::verbs
