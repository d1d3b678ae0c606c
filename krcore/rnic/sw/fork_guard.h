// Kernel locks of an open file description pass to forked children, and would keep a dead parent's devices
// "alive". So the descriptors that hold them are known here and closed in every child.
#ifndef KRCORE_RNIC_SW_FORK_GUARD_H_
#define KRCORE_RNIC_SW_FORK_GUARD_H_

#include <cstdint>

namespace krcore::rnic::sw {

// Counts the forks between the first process and this one, as far as this library saw them.
uint32_t ForkGeneration();

// From now until Unguard, `fd` is closed in forked children. Children that exec close it by O_CLOEXEC anyway.
void GuardDescriptor(int fd);
// Closes it. In a child, where it is closed already, does nothing.
void UnguardAndClose(int fd, uint32_t opened_in_generation);

}  // namespace krcore::rnic::sw

#endif  // KRCORE_RNIC_SW_FORK_GUARD_H_
