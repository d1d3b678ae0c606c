// Kernel locks, connections and devices belong to open file descriptions, which pass to forked children and would keep
// what a dead parent had alive. So the descriptors that hold them are known here and closed in every child: by fork's
// own handler, or, after a bare clone, as soon as the child calls the library.
#ifndef KRCORE_RNIC_FORK_GUARD_H_
#define KRCORE_RNIC_FORK_GUARD_H_

#include <mutex>

#include "krcore/fork.h"

namespace krcore::rnic {

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

}  // namespace krcore::rnic

#endif  // KRCORE_RNIC_FORK_GUARD_H_
