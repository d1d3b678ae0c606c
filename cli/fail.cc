#include "cli/fail.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "krcore/base/os.h"

namespace cli {
namespace {

std::string& Name() {
  static std::string name = program_invocation_short_name;
  return name;
}

}  // namespace

void SetProgramName(std::string_view name) { Name() = name; }
std::string_view ProgramName() { return Name(); }

int Fail(const krcore::Status& status, std::string_view way_out) {
  // One write, so that several processes on one terminal do not mix their lines.
  std::string text = Name() + ": ";
  // If there is a message, the code's name tells the user nothing more.
  text += status.message().empty() ? status.ToString() : std::string(status.message());
  text += '\n';
  if (!way_out.empty()) text.append(way_out).append("\n");
  std::fputs(text.c_str(), stderr);
  return status == krcore::StatusCode::kInvalidArgument ? kExitUsage : kExitFailure;
}

int FailUsage(std::string_view message) {
  return Fail({krcore::StatusCode::kInvalidArgument, std::string(message)}, "Try '" + Name() + " --help'.");
}

void Die(const krcore::Status& status, std::string_view way_out) { std::exit(Fail(status, way_out)); }

namespace {

void CheckOutput() {
  const bool flushed = std::fflush(stdout) == 0;
  const int error = flushed ? 0 : errno;  // the reason of an earlier failure is no longer known
  if (flushed && std::ferror(stdout) == 0) return;
  pollfd reader{STDOUT_FILENO, POLLOUT, 0};
  if (poll(&reader, 1, 0) == 1 && (reader.revents & (POLLERR | POLLHUP)) != 0) _exit(kExitClosedPipe);
  const std::string why = error == 0 ? "is the disk full?" : std::strerror(error);
  _exit(Fail({krcore::StatusCode::kUnavailable, "cannot write all output to stdout: " + why}));
}

}  // namespace

void UseStandardStreams() {
  constexpr char kNull[] = "/dev/null";
  for (int fd = 0; fd < krcore::kFirstDescriptor; ++fd) {
    // open() returns the lowest free descriptor, which is fd. Children inherit it.
    if (fcntl(fd, F_GETFD) < 0 && open(kNull, O_RDWR) < 0) Die(krcore::Status::FromErrno(errno, kNull));
  }
  (void)ProgramName();  // so that it is destroyed after CheckOutput has run
  if (std::atexit(CheckOutput) != 0) Die({krcore::StatusCode::kOutOfMemory, "atexit"});
}

}  // namespace cli
