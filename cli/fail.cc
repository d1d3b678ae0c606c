#include "cli/fail.h"

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <string>

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
  // The code's name says nothing to the user that the message does not, where there is one.
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

}  // namespace cli
