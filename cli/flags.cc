#include "cli/flags.h"

#include <gflags/gflags.h>
#include <glog/logging.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "cli/common_flags.h"
#include "cli/fail.h"

DEFINE_string(log, "info", "The least severe messages to log on stderr: info, warning, error or off");

namespace cli {
namespace {

using gflags::CommandLineFlagInfo;
using krcore::Result;
using krcore::Status;
using krcore::StatusCode;

Status Mistake(std::string message) { return {StatusCode::kInvalidArgument, std::move(message)}; }

// Returns the value of a flag as people write it: gflags prints a double with 17 digits, 0.7 as 0.69999999999999996.
std::string AsWritten(const CommandLineFlagInfo& flag, const std::string& value) {
  if (flag.type != "double") return value;
  std::array<char, 32> text;
  std::snprintf(text.data(), text.size(), "%.15g", std::strtod(value.c_str(), nullptr));
  return text.data();
}

// Returns what a value of a gflags type looks like.
std::string Expected(const CommandLineFlagInfo& flag) {
  if (flag.type == "bool") return "true or false";
  if (flag.type == "double") return "a number";
  if (flag.type[0] == 'u') return "a whole number, 0 or more";
  if (flag.type.find("int") != std::string::npos) return "a whole number in range";
  return "text";
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
                     (word.find('=') != std::string::npos ? ": a flag begins with --, for example --" + word : ""));
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
      return Mistake(word + " needs a value after it");
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

// Applies --log and starts glog: lines go to stderr, because stdout belongs to results. Idempotent.
Status InitLogging() {
  if (FLAGS_log == "info") {
    FLAGS_minloglevel = google::GLOG_INFO;
  } else if (FLAGS_log == "warning") {
    FLAGS_minloglevel = google::GLOG_WARNING;
  } else if (FLAGS_log == "error") {
    FLAGS_minloglevel = google::GLOG_ERROR;
  } else if (FLAGS_log == "off") {
    FLAGS_minloglevel = google::GLOG_FATAL;  // a broken invariant always speaks
  } else {
    return {StatusCode::kInvalidArgument, "--log=" + FLAGS_log + ": expected info, warning, error or off"};
  }
  FLAGS_logtostderr = true;
  if (!google::IsGoogleLoggingInitialized()) {
    static const std::string name(ProgramName());  // glog keeps the pointer
    google::InitGoogleLogging(name.c_str());
  }
  return Status::Ok();
}

size_t EditDistance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t change = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, change});
    }
  }
  return row[b.size()];
}

// ---- help

constexpr size_t kTextColumn = 4;
constexpr size_t kLineWidth = 100;

// Wraps `text` at kLineWidth, and indents every line by `indent` spaces.
void AppendWrapped(std::string& out, const std::string& text, size_t indent) {
  std::istringstream words(text);
  std::string line;
  for (std::string word; words >> word;) {
    if (!line.empty() && indent + line.size() + 1 + word.size() > kLineWidth) {
      out.append(indent, ' ').append(line).append("\n");
      line.clear();
    }
    if (!line.empty()) line += ' ';
    line += word;
  }
  if (!line.empty()) out.append(indent, ' ').append(line).append("\n");
}

void AppendIndented(std::string& out, const std::string& lines) {
  std::istringstream in(lines);
  for (std::string line; std::getline(in, line);) out.append("  ").append(line).append("\n");
}

void AppendFlag(std::string& out, const gflags::CommandLineFlagInfo& flag) {
  out += "  --" + flag.name;
  if (flag.type != "bool") {
    out += '=';
    out += flag.default_value.empty() ? "..." : AsWritten(flag, flag.default_value);
  } else if (flag.default_value == "true") {
    out += "  (on; --no" + flag.name + " turns it off)";
  }
  out += '\n';
  AppendWrapped(out, flag.description, kTextColumn);
}

void AppendHead(std::string& out, const Program& program) {
  std::istringstream usage(program.usage);
  const char* label = "usage: ";
  for (std::string line; std::getline(usage, line); label = "       ") out.append(label).append(line).append("\n");
  out += '\n' + program.summary + '\n';
}

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
  const CommandLineFlagInfo info = gflags::GetCommandLineFlagInfoOrDie(flag);
  std::array<char, 64> expected;
  std::snprintf(expected.data(), expected.size(), ": expected %.10g to %.10g", min, max);
  return Mistake("--" + info.name + "=" + AsWritten(info, info.current_value) + expected.data());
}

Status CheckNotGiven(std::initializer_list<const char*> flags, std::string_view why) {
  for (const char* flag : flags) {
    if (FlagGiven(flag)) return Mistake("--" + std::string(flag) + " " + std::string(why));
  }
  return {};
}

std::string HelpText(const Program& program) {
  std::string out;
  AppendHead(out, program);
  out += "\nflags, with their defaults:\n";
  for (const std::string& name : program.flags) AppendFlag(out, gflags::GetCommandLineFlagInfoOrDie(name.c_str()));
  out += program.short_help;
  out += "  --help, --helpfull, --version\n";
  out.append(kTextColumn, ' ').append("Print this text; the flags of the libraries as well; the version.\n");
  if (!program.examples.empty()) {
    out += "\nexamples:\n";
    AppendIndented(out, program.examples);
  }
  return out;
}

std::string FullHelpText(const Program& program) {
  std::string out = HelpText(program);
  out += "\nflags of the libraries:\n";
  std::vector<gflags::CommandLineFlagInfo> flags;
  gflags::GetAllFlags(&flags);
  for (const gflags::CommandLineFlagInfo& flag : flags) {
    // gflags' own help flags are not honoured here: --help and --helpfull replace them.
    if (flag.name.compare(0, 4, "help") == 0 || flag.name == "version") continue;
    if (std::find(program.flags.begin(), program.flags.end(), flag.name) == program.flags.end()) AppendFlag(out, flag);
  }
  return out;
}

std::string_view Nearest(std::string_view name, std::span<const std::string_view> known) {
  std::string_view best;
  size_t best_distance = 3;
  for (const std::string_view candidate : known) {
    const size_t distance = name.size() >= 3 && candidate.starts_with(name) ? 1 : EditDistance(name, candidate);
    if (distance < best_distance && distance < name.size()) {
      best_distance = distance;
      best = candidate;
    }
  }
  return best;
}

}  // namespace cli
