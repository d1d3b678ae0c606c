#include "cli/stop_signal.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <cstdlib>
#include <thread>

namespace cli {
namespace {

// Handlers and the flag belong to the process, so each case runs in a child of its own, which exits with 0 on success.
#define EXPECT_IN_CHILD(body) EXPECT_EXIT(body, ::testing::ExitedWithCode(0), "")

[[noreturn]] void Leave(bool right) { std::exit(right ? 0 : 1); }

// Sends SIGTERM to a thread other than the calling one.
void TerminateThisProcess() {
  sigset_t signals;
  sigfillset(&signals);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  kill(getpid(), SIGTERM);
#ifdef __SANITIZE_THREAD__
  // ThreadSanitizer's runtime loses a signal that comes while a thread starts in a forked child. More of them do no
  // harm.
  while (!StopSignal::Requested()) {
    poll(nullptr, 0, 10);
    kill(getpid(), SIGTERM);
  }
#endif
}

bool Readable(int fd) {
  pollfd wait{fd, POLLIN, 0};
  return poll(&wait, 1, 0) == 1;
}

void ASignalRequestsTheStop(int number) {
  signal(number, SIG_DFL);  // the tests may run in the background
  if (!StopSignal::Install().ok() || StopSignal::Requested() || Readable(StopSignal::fd())) Leave(false);
  raise(number);
  Leave(StopSignal::Requested() && StopSignal::flag().load() && StopSignal::signal_number() == number &&
        Readable(StopSignal::fd()) && StopSignal::WaitFor(-1));
}

TEST(StopSignalDeathTest, EachStopSignalRequestsTheStop) {
  for (const int number : {SIGINT, SIGTERM, SIGHUP}) EXPECT_IN_CHILD(ASignalRequestsTheStop(number)) << number;
}

TEST(StopSignalDeathTest, WaitForEndsByASignalThatArrivesMeanwhile) {
  EXPECT_IN_CHILD({
    if (!StopSignal::Install().ok()) Leave(false);
    std::thread sender(TerminateThisProcess);
    const bool requested = StopSignal::WaitFor(-1);
    sender.join();
    Leave(requested);
  });
}

TEST(StopSignalDeathTest, WaitForEndsByItsTimeoutWithoutASignal) {
  EXPECT_IN_CHILD({
    if (!StopSignal::Install().ok()) Leave(false);
    Leave(!StopSignal::WaitFor(1) && !StopSignal::WaitFor(0));
  });
}

TEST(StopSignalDeathTest, ASecondInterruptExitsWith130) {
  EXPECT_EXIT(
      {
        signal(SIGINT, SIG_DFL);
        (void)StopSignal::Install();
        raise(SIGINT);
        raise(SIGINT);
        std::exit(0);
      },
      ::testing::ExitedWithCode(130), "");
}

TEST(StopSignalDeathTest, FurtherTerminatesLeaveTheShutdownAlone) {
  EXPECT_IN_CHILD({
    signal(SIGINT, SIG_DFL);
    if (!StopSignal::Install().ok()) Leave(false);
    raise(SIGINT);
    raise(SIGTERM);
    raise(SIGTERM);
    Leave(StopSignal::signal_number() == SIGINT);
  });
}

TEST(StopSignalDeathTest, AClosedStdoutDoesNotKill) {
  EXPECT_IN_CHILD({
    if (!StopSignal::Install().ok()) Leave(false);
    int ends[2];
    if (pipe(ends) != 0) Leave(false);
    close(ends[0]);
    Leave(write(ends[1], "x", 1) < 0 && errno == EPIPE && !StopSignal::Requested());
  });
}

TEST(StopSignalDeathTest, WhatNohupAndScriptsHaveIgnoredStaysIgnored) {
  for (const int number : {SIGINT, SIGHUP}) {
    EXPECT_IN_CHILD({
      signal(number, SIG_IGN);
      if (!StopSignal::Install().ok()) Leave(false);
      raise(number);
      Leave(!StopSignal::Requested());
    }) << number;
  }
}

TEST(StopSignalDeathTest, AProgramThatOthersLoseDataWithIgnoresAClosedTerminal) {
  EXPECT_IN_CHILD({
    signal(SIGHUP, SIG_DFL);
    if (!StopSignal::Install(StopSignal::Hangup::kIgnored).ok()) Leave(false);
    raise(SIGHUP);
    Leave(!StopSignal::Requested());
  });
}

TEST(StopSignalDeathTest, ItStopsThoughItWasStartedWithItsSignalsBlocked) {
  EXPECT_IN_CHILD({
    sigset_t all;
    sigfillset(&all);
    sigprocmask(SIG_SETMASK, &all, nullptr);
    if (!StopSignal::Install().ok()) Leave(false);
    raise(SIGTERM);
    Leave(StopSignal::Requested());
  });
}

TEST(StopSignalDeathTest, RequestNeedsNoSignal) {
  EXPECT_IN_CHILD({
    if (!StopSignal::Install().ok()) Leave(false);
    StopSignal::Request();
    Leave(StopSignal::WaitFor(-1) && StopSignal::signal_number() == 0);
  });
}

}  // namespace
}  // namespace cli
