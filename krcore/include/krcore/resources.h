// Threads and memory from the system. A refusal becomes a Status that names the likely limits.
//
// Thread safety: any thread may call.
#ifndef KRCORE_RESOURCES_H_
#define KRCORE_RESOURCES_H_

#include <pthread.h>

#include <cstdint>
#include <functional>
#include <new>
#include <string>
#include <thread>

#include "krcore/status.h"

namespace krcore {

// Starts a thread that runs `run`. kUnavailable: "cannot start thread `name`", and the limits.
Result<std::thread> StartThread(const std::string& name, std::function<void()> run);
// The same for a thread that serves next to the program's own. It gets no signals: a thread that sleeps, or is starved
// of CPU, must not be the one that handles a request to stop. The system knows it by the first 15 bytes of `name`.
Result<std::thread> StartServiceThread(const std::string& name, std::function<void()> run);
// Returns the CPU time of a thread that has not been joined, in ns.
int64_t ThreadCpuNs(pthread_t thread);
// The Status for a thread or process that the system did not start, with `errnum`.
Status StartRefused(int errnum, const std::string& what);

// kOutOfMemory: "`what`: no memory", and the limits.
Status MemoryRefused(const std::string& what);
// Returns what `make` returns, or MemoryRefused for std::bad_alloc: no exception crosses an interface.
template <typename Make>
auto OrOutOfMemory(const char* what, const Make& make) -> decltype(make()) {
  try {
    return make();
  } catch (const std::bad_alloc&) {
    return MemoryRefused(what);
  }
}

}  // namespace krcore

#endif  // KRCORE_RESOURCES_H_
