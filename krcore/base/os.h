// What this library asks of the operating system: descriptors, their handling in forked children, random numbers,
// limits, memory.
#ifndef KRCORE_BASE_OS_H_
#define KRCORE_BASE_OS_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "krcore/fork.h"
#include "krcore/status.h"

namespace krcore {

// Descriptors 0 to 2 are the user's, even while they are closed, because programs print to these numbers. So in any
// process this library keeps its own descriptors above them.

// The lowest of this library's descriptors.
inline constexpr int kFirstDescriptor = 3;

// Returns `fd`, which was just made and closes on exec, or a duplicate above 2 that replaces it. Returns a negative
// number, with errno, if `fd` is negative or there is no descriptor left. May be called in a forked child.
int AboveStandard(int fd);

// For descriptors that other libraries make: occupies those of 0 to 2 that are closed, so that nobody gets them.
// Reading or writing them fails as before, and their owner may still replace them by close() and dup2().
void HoldStandard();

// Kernel locks, connections and devices belong to open file descriptions, which forked children inherit; that would
// keep a dead parent's alive. So the descriptors that hold them are registered here and closed in every child: by
// fork's own handler or, after a bare clone, as soon as the child calls the library.

// From now until Unguard, `fd` is closed in forked children, in the order of these calls. Children that exec close it
// by O_CLOEXEC anyway.
void GuardDescriptor(int fd);
// Closes it. Does nothing in a child, where it is closed already.
void UnguardAndClose(int fd, uint32_t opened_in_generation);
// While it lives, forks wait: what is opened meanwhile is registered here before a child could inherit it. The same
// thread must not call the functions above meanwhile.
class ForksHeld {
 public:
  ForksHeld();
  void Guard(int fd);
  void Unguard(int fd);  // its owner closes it before this object ends

 private:
  const std::lock_guard<std::mutex> lock_;
};
// From now on `hook` runs in every forked child before descriptors are closed. It must be async-signal-safe.
void RunInForkedChildren(void (*hook)());

// Random numbers from the kernel, for telling apart parties that do not know each other.

// Makes a system call. Fails where the kernel has no such call.
Result<uint64_t> Random64();

// The limits that this process runs under: to name them in messages, and to offer no memory beyond them.

// Where the kernel describes control groups: this process's, and the file systems of all.
struct CgroupPlaces {
  std::string own = "/proc/self/cgroup";
  std::string mount = "/sys/fs/cgroup";
};

// Returns " (ulimit -n is 8)": the limits that may be why a call has failed with `errnum`; empty if none is known.
std::string LimitsOf(int errnum);
// The same for a thread or process that was not started.
std::string LimitsOfProcesses(const CgroupPlaces& places = {});
// The same for memory that was not locked.
std::string LimitOfLockedMemory();

// kOutOfMemory: this process's control groups (v1 or v2) do not allow `bytes` more, each page of which will be touched;
// the kernel would kill a process for it. Less than 16 MiB is always allowed, so that connecting needs no check.
Status CheckCgroupMemory(size_t bytes, const CgroupPlaces& places = {});

// Memory of this process, in huge pages where that helps. Any thread may call.

inline constexpr size_t kHugePageBytes = size_t{2} << 20;
inline constexpr size_t kMaxMemoryBytes = size_t{1} << 46;  // more than a process can map

// Zeroed anonymous memory. From 2 MiB up it begins at a multiple of a huge page.
class Pages {
 public:
  // kSparse: little of the memory will be touched. The system reserves nothing for it, and is not advised to use huge
  // pages. kOutOfMemory: also beyond what the cgroup allows, if dense.
  enum class Use { kDense, kSparse };
  static Result<std::unique_ptr<Pages>> Map(size_t length, Use use = Use::kDense);
  ~Pages();
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;

  std::span<std::byte> bytes() const { return bytes_; }

 private:
  Pages(void* mapping, size_t mapped, std::span<std::byte> bytes) : mapping_(mapping), mapped_(mapped), bytes_(bytes) {}
  void* const mapping_;
  const size_t mapped_;
  const std::span<std::byte> bytes_;
};

// Moves the whole huge pages inside the range to huge pages, while the memory is in use. kInvalidArgument: the range
// lies outside `memory`. kUnsupported: the kernel cannot do it with this memory. kOutOfMemory: no huge page is free.
Status CollapseToHugePages(std::span<std::byte> memory, size_t offset, size_t length);

}  // namespace krcore

#endif  // KRCORE_BASE_OS_H_
