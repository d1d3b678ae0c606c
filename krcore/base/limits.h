// The limits that this process runs under, for messages that name them, and to offer no memory beyond them.
#ifndef KRCORE_BASE_LIMITS_H_
#define KRCORE_BASE_LIMITS_H_

#include <cstddef>
#include <string>
#include <vector>

#include "krcore/status.h"

namespace krcore {

// Where the kernel tells of control groups: this process's, and the file systems of all.
struct CgroupPlaces {
  std::string own = "/proc/self/cgroup";
  std::string mount = "/sys/fs/cgroup";
};

// " (ulimit -n is 8)": the limits that may be why a call has failed with `errnum`; empty if none is known.
std::string LimitsOf(int errnum);
// The same for a thread or process that was not started.
std::string LimitsOfProcesses(const CgroupPlaces& places = {});
// The same for memory that was not locked.
std::string LimitOfLockedMemory();

// kOutOfMemory: this process's control groups (v1 or v2) do not allow `bytes` more, of which each page is to be
// touched: the kernel would end a process for it. Less than 16 MiB is always allowed, so that connecting costs no look.
Status CheckCgroupMemory(size_t bytes, const CgroupPlaces& places = {});

}  // namespace krcore

#endif  // KRCORE_BASE_LIMITS_H_
