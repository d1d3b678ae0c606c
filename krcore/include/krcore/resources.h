// What the system may refuse, as a Status whose message names the limits that may be why: threads, processes, memory.
//
// Thread safety: any thread may call.
#ifndef KRCORE_RESOURCES_H_
#define KRCORE_RESOURCES_H_

#include <functional>
#include <new>
#include <string>
#include <thread>

#include "krcore/status.h"

namespace krcore {

// A new thread that runs `run`. kUnavailable: "cannot start thread `name`", and the limits.
Result<std::thread> StartThread(const std::string& name, std::function<void()> run);
// Of a thread or process that the system did not start, with `errnum`.
Status StartRefused(int errnum, const std::string& what);

// kOutOfMemory: "`what`: no memory", and the limits.
Status MemoryRefused(const std::string& what);
// What `make` returns, or MemoryRefused for std::bad_alloc: no exception crosses an interface.
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
