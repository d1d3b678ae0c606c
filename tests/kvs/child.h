// Child: a process of a test.
#ifndef TESTS_KVS_CHILD_H_
#define TESTS_KVS_CHILD_H_

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <utility>

#include "tests/support/kill_process.h"

namespace surgekv_test {

// Runs `body` in a forked process, which is killed when this object is destroyed if it still runs.
class Child {
 public:
  template <typename Body>
  explicit Child(const Body& body) : pid_(fork()) {
    if (pid_ < 0) std::abort();  // waiting for -1 would wait for any child
    if (pid_ != 0) return;
    body();
    _exit(testing::Test::HasFailure() ? 1 : 0);
  }
  Child(Child&& other) noexcept : pid_(std::exchange(other.pid_, -1)) {}
  ~Child() {
    if (pid_ <= 0) return;
    Kill();
  }
  void Kill() {
    (void)testing_support::KillProcess(pid_);
    (void)Wait();
  }
  // The exit status; -1 if a signal ended it.
  int Wait() {
    int status = 0;
    while (waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
    }
    pid_ = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }
  bool Ended() const {
    siginfo_t info{};
    return waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid != 0;
  }

 private:
  pid_t pid_;
};

}  // namespace surgekv_test

#endif  // TESTS_KVS_CHILD_H_
