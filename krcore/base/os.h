// What this library asks of the operating system: descriptors, what becomes of them in forked children, random numbers,
// limits.
#ifndef KRCORE_BASE_OS_H_
#define KRCORE_BASE_OS_H_

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "krcore/fork.h"
#include "krcore/status.h"

namespace krcore {

// Descriptors 0 to 2 are the user's, even while they are closed: what a program prints goes to their numbers. So this
// library has its own above them, in any process.

// Where this process's own begin.
inline constexpr int kFirstDescriptor = 3;

// `fd`, which was just made and closes on exec, or a duplicate of it that is above 2 and replaces it. Negative, with
// errno: `fd` is, or there is no descriptor left. May be called in a forked child.
int AboveStandard(int fd);

// For descriptors that other libraries make: those of 0 to 2 that are closed are taken, so that nobody gets them. To
// read or write them fails as before, and their owner may still put something there, by close() and by dup2().
void HoldStandard();

// Kernel locks, connections and devices belong to open file descriptions, which pass to forked children and would keep
// what a dead parent had alive. So the descriptors that hold them are known here and closed in every child: by fork's
// own handler, or, after a bare clone, as soon as the child calls the library.

// From now until Unguard, `fd` is closed in forked children, in the order of these calls. Children that exec close it
// by O_CLOEXEC anyway.
void GuardDescriptor(int fd);
// Closes it. In a child, where it is closed already, does nothing.
void UnguardAndClose(int fd, uint32_t opened_in_generation);
// While it lives, whoever forks waits: what is opened meanwhile is known here before a child could inherit it. The
// functions above must not be called meanwhile on the same thread.
class ForksHeld {
 public:
  ForksHeld();
  void Guard(int fd);
  void Unguard(int fd);  // its owner closes it before this ends

 private:
  const std::lock_guard<std::mutex> lock_;
};
// From now on `hook` runs in every forked child before descriptors are closed. It may do what is async-signal-safe.
void RunInForkedChildren(void (*hook)());

// Random numbers of the kernel's: what tells apart those who know nothing of each other.

// Makes a system call. Fails where the kernel has no such call.
Result<uint64_t> Random64();

// The limits that this process runs under, for messages that name them, and to offer no memory beyond them.

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

#endif  // KRCORE_BASE_OS_H_
