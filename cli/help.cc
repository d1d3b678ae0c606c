#include <gflags/gflags.h>

#include <algorithm>
#include <sstream>

#include "cli/flags.h"

namespace cli {
namespace {

constexpr size_t kTextColumn = 4;
constexpr size_t kLineWidth = 100;

// Wraps `text` at kLineWidth, every line behind `indent` spaces.
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
    out += flag.default_value.empty() ? "..." : flag.default_value;
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

std::string HelpText(const Program& program) {
  std::string out;
  AppendHead(out, program);
  out += "\nflags, with their defaults:\n";
  for (const std::string& name : program.flags) AppendFlag(out, gflags::GetCommandLineFlagInfoOrDie(name.c_str()));
  out += program.short_help;
  out += "  --help, --helpfull, --version\n";
  out.append(kTextColumn, ' ').append("This text; every flag, also those of the logging library; the version.\n");
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

}  // namespace cli
