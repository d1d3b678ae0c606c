#include "cli/standard_streams.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "cli/fail.h"
#include "krcore/base/descriptor.h"

namespace cli {
namespace {

void CheckOutput() {
  const bool flushed = std::fflush(stdout) == 0;
  const int error = flushed ? 0 : errno;  // of what failed earlier, nobody knows it any more
  if (flushed && std::ferror(stdout) == 0) return;
  pollfd reader{STDOUT_FILENO, POLLOUT, 0};
  if (poll(&reader, 1, 0) == 1 && (reader.revents & (POLLERR | POLLHUP)) != 0) _exit(kExitClosedPipe);
  const std::string why = error == 0 ? "is the disk full?" : std::strerror(error);
  _exit(Fail({krcore::StatusCode::kUnavailable, "stdout: not all that was printed could be written: " + why}));
}

}  // namespace

void UseStandardStreams() {
  constexpr char kNull[] = "/dev/null";
  for (int fd = 0; fd < krcore::kFirstDescriptor; ++fd) {
    // The lowest that is free is the one that comes. Children inherit it.
    if (fcntl(fd, F_GETFD) < 0 && open(kNull, O_RDWR) < 0) Die(krcore::Status::FromErrno(errno, kNull));
  }
  (void)ProgramName();  // so that it is destroyed after CheckOutput has run
  if (std::atexit(CheckOutput) != 0) Die({krcore::StatusCode::kOutOfMemory, "atexit"});
}

}  // namespace cli
