#include "cli/stop_signal.h"

#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <ctime>

#include "cli/fail.h"
#include "krcore/base/os.h"

namespace cli {
namespace {

// These are lock-free, and so fit for a signal handler. They pair with nothing: no data is passed through them.
std::atomic<bool> g_requested{false};
std::atomic<int> g_signal{0};
std::atomic<int> g_fd{-1};
static_assert(std::atomic<bool>::is_always_lock_free && std::atomic<int>::is_always_lock_free);

void Raise(int signal_number) {
  const int saved_errno = errno;
  if (!g_requested.exchange(true)) g_signal.store(signal_number);
  const uint64_t one = 1;
  const int fd = g_fd.load();
  // Signals cannot overflow the counter; even a full one is readable.
  if (fd >= 0 && write(fd, &one, sizeof(one)) < 0) {
  }
  errno = saved_errno;
}

extern "C" void OnStopSignal(int signal_number) {
  if (signal_number == SIGINT && g_requested.load()) _exit(kExitInterrupt);
  Raise(signal_number);
}

bool IsIgnored(int number) {
  struct sigaction inherited = {};
  return sigaction(number, nullptr, &inherited) == 0 && inherited.sa_handler == SIG_IGN;
}

int64_t NowMs() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * int64_t{1000} + now.tv_nsec / 1'000'000;
}

}  // namespace

krcore::Status StopSignal::Install(Hangup hangup) {
  if (g_fd.load() >= 0) return krcore::Status::Ok();
  const int fd = krcore::AboveStandard(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (fd < 0) return krcore::Status::FromErrno(errno, "eventfd");
  g_fd.store(fd);
  struct sigaction action = {};
  action.sa_handler = OnStopSignal;
  sigemptyset(&action.sa_mask);
  action.sa_flags = SA_RESTART;
  struct sigaction ignore = {};
  ignore.sa_handler = SIG_IGN;
  sigemptyset(&ignore.sa_mask);
  sigset_t stops;
  sigemptyset(&stops);
  for (const int number : {SIGINT, SIGTERM, SIGHUP, SIGPIPE}) {
    sigaddset(&stops, number);
    const bool ignored = number == SIGPIPE || (number == SIGHUP && hangup == Hangup::kIgnored) ||
                         (number != SIGTERM && IsIgnored(number));
    if (sigaction(number, ignored ? &ignore : &action, nullptr) != 0)
      return krcore::Status::FromErrno(errno, "sigaction");
  }
  pthread_sigmask(SIG_UNBLOCK, &stops, nullptr);
  return krcore::Status::Ok();
}

const std::atomic<bool>& StopSignal::flag() { return g_requested; }
int StopSignal::signal_number() { return g_signal.load(); }
int StopSignal::fd() { return g_fd.load(); }
void StopSignal::Request() { Raise(0); }

bool StopSignal::WaitFor(int64_t timeout_ms) {
  const int64_t end = timeout_ms < 0 ? 0 : NowMs() + timeout_ms;
  while (!Requested()) {
    const int64_t left = timeout_ms < 0 ? -1 : end - NowMs();
    if (timeout_ms >= 0 && left <= 0) break;
    pollfd wait{g_fd.load(), POLLIN, 0};  // poll ignores a negative fd
    if (poll(&wait, 1, static_cast<int>(std::min<int64_t>(left, INT_MAX))) < 0 && errno != EINTR) break;
  }
  return Requested();
}

}  // namespace cli
