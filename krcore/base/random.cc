#include "krcore/base/random.h"

#include <sys/random.h>

#include <cerrno>

namespace krcore {

Result<uint64_t> Random64() {
  uint64_t value = 0;
  if (getrandom(&value, sizeof(value), 0) != sizeof(value))
    return Status::FromErrno(errno, "cannot get random numbers");
  return value;
}

}  // namespace krcore
