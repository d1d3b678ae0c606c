// What the threads that serve next to a memory node's main thread have in common.
#ifndef MEMNODE_SERVICE_THREAD_H_
#define MEMNODE_SERVICE_THREAD_H_

#include <pthread.h>
#include <signal.h>

#include <cstdint>
#include <ctime>

namespace memnode {

// The thread itself must call it: a thread that sleeps, or is starved of CPU, must not be the one that handles a
// request to stop.
inline void BecomeServiceThread(const char* name) {
  sigset_t signals;
  sigfillset(&signals);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  pthread_setname_np(pthread_self(), name);
}

// Returns the CPU time of `thread`, which has not been joined.
inline int64_t CpuNsOf(pthread_t thread) {
  clockid_t clock{};
  timespec time{};
  if (pthread_getcpuclockid(thread, &clock) != 0 || clock_gettime(clock, &time) != 0) return 0;
  return time.tv_sec * int64_t{1'000'000'000} + time.tv_nsec;
}

}  // namespace memnode

#endif  // MEMNODE_SERVICE_THREAD_H_
