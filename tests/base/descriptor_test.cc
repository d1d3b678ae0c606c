#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>

#include "krcore/base/os.h"

namespace krcore {
namespace {

// Each check runs in a child, which exits with 0 if it holds.
[[noreturn]] void Leave(bool right) { _exit(right ? 0 : 1); }
void CloseStandard() {
  for (int fd = 0; fd < kFirstDescriptor; ++fd) close(fd);
}

TEST(DescriptorDeathTest, OneThatGetsAStandardNumberIsMovedAndClosesOnExec) {
  EXPECT_EXIT(
      {
        CloseStandard();
        const int fd = AboveStandard(open("/dev/null", O_RDWR | O_CLOEXEC));
        Leave(fd >= kFirstDescriptor && fcntl(fd, F_GETFD) == FD_CLOEXEC && fcntl(0, F_GETFD) < 0 && errno == EBADF);
      },
      ::testing::ExitedWithCode(0), "");
}

TEST(DescriptorDeathTest, AFailureKeepsItsErrno) {
  EXPECT_EXIT(
      {
        CloseStandard();
        Leave(AboveStandard(open("/none", O_RDONLY)) < 0 && errno == ENOENT);
      },
      ::testing::ExitedWithCode(0), "");
}

TEST(DescriptorDeathTest, StandardNumbersThatAreHeldAreNobodysAndCannotBeWritten) {
  EXPECT_EXIT(
      {
        close(STDOUT_FILENO);
        HoldStandard();
        const bool nowhere = write(STDOUT_FILENO, "x", 1) < 0 && errno == EBADF;
        const int fd = open("/dev/null", O_RDWR);
        Leave(nowhere && fd >= kFirstDescriptor && dup2(fd, STDOUT_FILENO) == STDOUT_FILENO &&
              write(STDOUT_FILENO, "x", 1) == 1);
      },
      ::testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace krcore
