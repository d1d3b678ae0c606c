#include "cli/flags.h"

#include <gflags/gflags.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <optional>

#include "cli/fail.h"
#include "cli/log.h"
#include "cli/nearest.h"
#include "cli/standard_streams.h"

namespace cli {
namespace {

using gflags::CommandLineFlagInfo;
using krcore::Result;
using krcore::Status;
using krcore::StatusCode;

Status Mistake(std::string message) { return {StatusCode::kInvalidArgument, std::move(message)}; }

// What a value of a gflags type looks like.
std::string Expected(const CommandLineFlagInfo& flag) {
  if (flag.type == "bool") return "true or false";
  if (flag.type == "double") return "a number";
  if (flag.type[0] == 'u') return "a whole number, 0 or more";
  if (flag.type.find("int") != std::string::npos) return "a whole number in range";
  return "a text";
}

class Parser {
 public:
  Parser(const Program& program, std::span<const char* const> args) : program_(program), args_(args) {}

  Result<CommandLine> Run() {
    bool flags_ended = false;
    while (next_ < args_.size()) {
      const std::string word = args_[next_++];
      if (flags_ended || word.size() < 2 || word[0] != '-') {
        KRCORE_RETURN_IF_ERROR(AddArgument(word));
      } else if (word == "--") {
        flags_ended = true;
      } else if (IsShortOption(word)) {
        KRCORE_RETURN_IF_ERROR(AddShortOption(word));
      } else {
        KRCORE_RETURN_IF_ERROR(AddFlag(word));
        if (!line_.show.empty()) break;
      }
    }
    return std::move(line_);
  }

 private:
  Status AddArgument(const std::string& word) {
    if (line_.arguments.size() == program_.max_arguments) {
      return Mistake("unexpected argument \"" + word + "\"" +
                     (word.find('=') != std::string::npos ? ": a flag begins with --, as in --" + word : ""));
    }
    line_.arguments.push_back(word);
    return Status::Ok();
  }

  bool IsShortOption(const std::string& word) const {
    return program_.short_options.find(word[1]) != std::string::npos && (word.size() == 2 || word[2] == '=');
  }

  Status AddShortOption(const std::string& word) {
    if (word.size() > 2) {
      line_.short_options.push_back({word[1], word.substr(3)});
    } else if (next_ < args_.size()) {
      line_.short_options.push_back({word[1], args_[next_++]});
    } else {
      return Mistake(word + " needs a value behind it");
    }
    if (line_.short_options.back().value.empty()) return Mistake(word.substr(0, 2) + " has an empty value");
    return Status::Ok();
  }

  Status AddFlag(const std::string& word) {
    const size_t start = word[1] == '-' ? 2 : 1;
    const size_t equals = word.find('=');
    std::string name = word.substr(start, equals == std::string::npos ? equals : equals - start);
    std::replace(name.begin(), name.end(), '-', '_');
    std::optional<std::string> value;
    if (equals != std::string::npos) value = word.substr(equals + 1);

    if (name == "help" || name == "h") {
      line_.show = HelpText(program_);
      return Status::Ok();
    }
    if (name == "helpfull") {
      line_.show = FullHelpText(program_);
      return Status::Ok();
    }
    if (name == "version") {
      line_.show = program_.name + " " SURGEKV_VERSION "\n";
      return Status::Ok();
    }

    CommandLineFlagInfo flag;
    if (!gflags::GetCommandLineFlagInfo(name.c_str(), &flag)) {
      const bool negated = name.compare(0, 2, "no") == 0 && !value.has_value() &&
                           gflags::GetCommandLineFlagInfo(name.c_str() + 2, &flag) && flag.type == "bool";
      if (!negated) return Unknown(word, name);
      value = "false";
    }
    if (!value.has_value()) {
      if (flag.type == "bool") {
        value = "true";
      } else if (next_ < args_.size() && std::string_view(args_[next_]).substr(0, 2) != "--") {
        value = args_[next_++];
      } else {
        return Mistake("--" + flag.name + " needs a value: --" + flag.name + "=VALUE, " + Expected(flag));
      }
    }
    // Empty: refused. gflags parses and checks the range.
    if (gflags::SetCommandLineOption(flag.name.c_str(), value->c_str()).empty()) {
      return Mistake("--" + flag.name + "=" + *value + ": not " + Expected(flag));
    }
    return Status::Ok();
  }

  Status Unknown(const std::string& word, const std::string& name) const {
    std::string message = "unknown flag " + word.substr(0, word.find('='));
    for (const auto& [flag, instead] : program_.hints) {
      if (name == flag) return Mistake(message.append(": ").append(instead));
    }
    const std::vector<std::string_view> flags(program_.flags.begin(), program_.flags.end());
    if (const std::string nearest(Nearest(name, flags)); !nearest.empty())
      message += "; did you mean --" + nearest + "?";
    return Mistake(std::move(message));
  }

  const Program& program_;
  std::span<const char* const> args_;
  size_t next_ = 0;
  CommandLine line_;
};

}  // namespace

Result<CommandLine> Parse(const Program& program, std::span<const char* const> args) {
  return Parser(program, args).Run();
}

CommandLine ParseFlags(const Program& program, int argc, char** argv) {
  SetProgramName(program.name);
  UseStandardStreams();
  Result<CommandLine> line = Parse(program, {argv + 1, static_cast<size_t>(std::max(argc - 1, 0))});
  if (!line.ok()) std::exit(FailUsage(line.status().message()));
  if (!line->show.empty()) {
    std::fputs(line->show.c_str(), stdout);
    std::exit(0);
  }
  if (const Status logging = InitLogging(); !logging.ok()) std::exit(FailUsage(logging.message()));
  return *std::move(line);
}

bool FlagGiven(const char* name) { return !gflags::GetCommandLineFlagInfoOrDie(name).is_default; }

Status CheckRange(const char* flag, double value, double min, double max) {
  if (value >= min && value <= max) return {};
  std::string given;
  gflags::GetCommandLineOption(flag, &given);
  return Mistake("--" + std::string(flag) + "=" + given + ": expected " + std::to_string(static_cast<int64_t>(min)) +
                 " to " + std::to_string(static_cast<int64_t>(max)));
}

Status CheckNotGiven(std::initializer_list<const char*> flags, std::string_view why) {
  for (const char* flag : flags) {
    if (FlagGiven(flag)) return Mistake("--" + std::string(flag) + " " + std::string(why));
  }
  return {};
}

}  // namespace cli
