// Child processes for the software RNIC's tests. Each runs a function, reports progress by bytes on a pipe, and is
// killed and reaped at the latest when the test ends.
#ifndef TESTS_RNIC_SW_CHILD_H_
#define TESTS_RNIC_SW_CHILD_H_

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>

#include "tests/support/kill_process.h"

namespace krcore::rnic::testing {

class Child {
 public:
  // What the child's function calls: Ready() once; Sleep() until it is killed.
  class Self {
   public:
    explicit Self(int fd) : fd_(fd) {}
    void Ready() {
      if (write(fd_, "r", 1) != 1) _exit(3);
    }
    [[noreturn]] void Sleep() {
      for (;;) pause();
    }

   private:
    int fd_;
  };

  explicit Child(const std::function<void(Self&)>& run) {
    int fds[2];
    if (pipe(fds) != 0) abort();
    pid_ = fork();
    if (pid_ < 0) abort();  // waiting for it would wait for any child
    if (pid_ == 0) {
      close(fds[0]);
      Self self(fds[1]);
      run(self);
      _exit(::testing::Test::HasFailure() ? 1 : 0);
    }
    close(fds[1]);
    fd_ = fds[0];
  }
  ~Child() {
    if (pid_ > 0) Kill();
    close(fd_);
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  pid_t pid() const { return pid_; }
  // Returns false if it ended without Ready().
  bool WaitReady() {
    char byte;
    return read(fd_, &byte, 1) == 1;
  }
  void Kill() {
    (void)testing_support::KillProcess(pid_);
    Reap();
  }
  int Wait() { return Reap(); }

 private:
  int Reap() {
    int status = 0;
    waitpid(pid_, &status, 0);
    pid_ = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }
  pid_t pid_ = -1;
  int fd_ = -1;
};

}  // namespace krcore::rnic::testing

#endif  // TESTS_RNIC_SW_CHILD_H_
