// What KernelQueue says where there is no module. With one, all tests of the module go through it (queue_test.cc).
#include "krcore/kernel/kernel_queue.h"

#include <gtest/gtest.h>

namespace krcore::kernel {
namespace {

TEST(KernelQueue, SaysThatThereIsNoModule) {
  KernelQueue queue;
  const Status status = queue.Open("/dev/krcore-that-is-nowhere");
  EXPECT_EQ(status.code(), StatusCode::kNotFound);
  EXPECT_NE(status.message().find("/dev/krcore-that-is-nowhere"), std::string_view::npos);
  krc_completion completion;
  EXPECT_EQ(queue.Pop({&completion, 1}), 0u);
}

// A module of another version, whose requests have other numbers, is refused too.
TEST(KernelQueue, RefusesWhatDoesNotSpeakItsVersion) {
  KernelQueue queue;
  EXPECT_EQ(queue.Open("/dev/null").code(), StatusCode::kUnsupported);
}

}  // namespace
}  // namespace krcore::kernel
