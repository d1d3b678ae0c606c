// How a program ends when something is wrong: with one message on stderr, and an exit status that says whose mistake it
// was.
#ifndef CLI_FAIL_H_
#define CLI_FAIL_H_

#include <string_view>

#include "krcore/status.h"

namespace cli {

inline constexpr int kExitFailure = 1;       // the run failed
inline constexpr int kExitUsage = 2;         // the command line is wrong; nothing was done
inline constexpr int kExitInterrupt = 130;   // stopped by a signal before its end
inline constexpr int kExitClosedPipe = 141;  // nobody reads its output any more: as if SIGPIPE had ended it

// Prints "NAME: message" on stderr, and returns the exit status for main to return, so that everything main owns is
// closed on the way: kExitUsage for kInvalidArgument, else kExitFailure. `way_out`, if not empty, is a second line.
[[nodiscard]] int Fail(const krcore::Status& status, std::string_view way_out = {});
// Does the same for a mistake on the command line: adds "Try 'NAME --help'.", and returns kExitUsage.
[[nodiscard]] int FailUsage(std::string_view message);

// Calls exit(Fail(...)): only while nothing is open that a destructor must close.
[[noreturn]] void Die(const krcore::Status& status, std::string_view way_out = {});

// Sets the name that messages begin with; ParseFlags calls it. Before that, it is the name of the program's file.
void SetProgramName(std::string_view name);
std::string_view ProgramName();

// Sets up stdin, stdout and stderr. Call it before anything is opened; ParseFlags does.
//
// If any of the descriptors 0 to 2 is closed, it leads to /dev/null from now on. So nothing that the program opens gets
// one of these numbers, and with it what the program prints.
//
// When the program ends, by main or by exit(), and something that it printed on stdout (by stdio, or by std::cout)
// could not be written, it says so on stderr and its exit status is kExitFailure. If the reader of a pipe has left, as
// head does, it says nothing, and its exit status is kExitClosedPipe.
void UseStandardStreams();

}  // namespace cli

#endif  // CLI_FAIL_H_
