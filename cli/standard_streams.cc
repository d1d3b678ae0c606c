#include "cli/standard_streams.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>

#include "cli/fail.h"
#include "krcore/base/descriptor.h"

namespace cli {

void UseStandardStreams() {
  constexpr char kNull[] = "/dev/null";
  int fd = -1;
  do {
    fd = open(kNull, O_RDWR);  // the lowest that is free; children inherit it
  } while (fd >= 0 && fd < krcore::kFirstDescriptor);
  if (fd < 0) Die(krcore::Status::FromErrno(errno, kNull));
  close(fd);
}

}  // namespace cli
