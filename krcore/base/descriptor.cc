#include "krcore/base/descriptor.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>

namespace krcore {

int AboveStandard(int fd) {
  if (fd < 0 || fd >= kFirstDescriptor) return fd;
  const int above = fcntl(fd, F_DUPFD_CLOEXEC, kFirstDescriptor);
  const int error = errno;
  close(fd);
  errno = error;
  return above;
}

void HoldStandard() {
  // The lowest that is free is the one that comes. An O_PATH descriptor can be neither read nor written.
  int fd = -1;
  do {
    fd = open("/", O_PATH | O_CLOEXEC);
  } while (fd >= 0 && fd < kFirstDescriptor);
  if (fd >= 0) close(fd);
}

}  // namespace krcore
