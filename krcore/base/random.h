// Random numbers of the kernel's: what tells apart those who know nothing of each other.
#ifndef KRCORE_BASE_RANDOM_H_
#define KRCORE_BASE_RANDOM_H_

#include <cstdint>

#include "krcore/status.h"

namespace krcore {

// Makes a system call. Fails where the kernel has no such call.
Result<uint64_t> Random64();

}  // namespace krcore

#endif  // KRCORE_BASE_RANDOM_H_
