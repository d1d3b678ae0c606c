// The command line of SurgeKV's programs: the same syntax, help and errors everywhere, on top of gflags.
//
// A program DEFINEs its flags with gflags, describes itself in a Program, and calls ParseFlags first thing in main.
// --help shows that program's flags only (gflags' own would be hundreds of lines of the logging library's);
// --helpfull shows all; --version the version. A mistake ends the process with status 2 and a message that names the
// flag and the way out.
//
// Accepted: --name=value, --name value, -name=value, --bool, --nobool, --bool=false; `--` ends the flags. A name may
// have dashes for its underscores. Short options that may be repeated (ycsb's `-P file -p key=value`) are collected
// in order: `-p k=v`, `-p=k=v`.
//
// Thread safety: main thread only, before there are others.
#ifndef CLI_FLAGS_H_
#define CLI_FLAGS_H_

#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "krcore/status.h"

namespace cli {

struct Program {
  std::string name;     // "memnode"
  std::string summary;  // what it does, a few lines
  std::string usage;    // "memnode --fabric=NAME --node=ID --memory=SIZE [flags]", without "usage:"
  // Names of the gflags that --help lists, in this order.
  std::vector<std::string> flags;
  std::string examples;       // as they would be typed; shown indented
  size_t max_arguments = 0;   // words that are not flags, e.g. 1 for a command
  std::string short_options;  // letters that take a value and may be repeated, e.g. "Pp"
  std::string short_help;     // their lines for --help, ready to print
  // Flags that users may know from another program, by name, and what to do instead.
  std::vector<std::pair<std::string, std::string>> hints = {};
};

struct ShortOption {
  char letter;
  std::string value;
};

struct CommandLine {
  std::vector<std::string> arguments;
  std::vector<ShortOption> short_options;  // in the order given
  // The text that the user asked to see instead of a run, to be printed on stdout. Empty: run.
  std::string show;
};

// Sets the flags that `args` (without the program's name) name. kInvalidArgument: a message for the user; flags
// before the bad one are set.
krcore::Result<CommandLine> Parse(const Program& program, std::span<const char* const> args);

// Calls Parse(argc, argv); prints help or the error and exits (0, 2) if need be. Sets up the standard streams (fail.h)
// and logging, and remembers `program` for Fail().
CommandLine ParseFlags(const Program& program, int argc, char** argv);

// Returns the texts of --help and --helpfull.
std::string HelpText(const Program& program);
std::string FullHelpText(const Program& program);

// Returns whether the user, and not the default, gave the flag's value.
bool FlagGiven(const char* name);
// kInvalidArgument: the flag's value, which is `value`, is not in [min, max].
krcore::Status CheckRange(const char* flag, double value, double min, double max);
// kInvalidArgument: the user gave one of these flags; the message is its name and `why`.
krcore::Status CheckNotGiven(std::initializer_list<const char*> flags, std::string_view why);

// Returns the one of `known` that looks most like `name`: at most two letters differ, or it begins with `name` (of
// three letters or more). Empty: none does.
std::string_view Nearest(std::string_view name, std::span<const std::string_view> known);

}  // namespace cli

#endif  // CLI_FLAGS_H_
