// How a test ends a process that it started. kill(2) with a pid of 0 or less ends a whole process group, and the test
// runner with it. So a pid that was not reported yet must never get there.
#ifndef TESTS_SUPPORT_KILL_PROCESS_H_
#define TESTS_SUPPORT_KILL_PROCESS_H_

#include <sys/types.h>

#include <cerrno>
#include <csignal>

namespace testing_support {

// Sends `signal`. Returns false if `pid` names no single process (errno EINVAL), or if that process is gone.
[[nodiscard]] inline bool SignalProcess(pid_t pid, int signal) {
  if (pid <= 1) {
    errno = EINVAL;
    return false;
  }
  return kill(pid, signal) == 0;
}
[[nodiscard]] inline bool KillProcess(pid_t pid) { return SignalProcess(pid, SIGKILL); }

}  // namespace testing_support

#endif  // TESTS_SUPPORT_KILL_PROCESS_H_
