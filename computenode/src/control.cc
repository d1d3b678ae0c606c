#include "computenode/control.h"

#include <algorithm>
#include <charconv>
#include <utility>

namespace computenode {
namespace {

constexpr std::string_view kBlank = " \t\r";

std::string_view NextWord(std::string_view* text) {
  text->remove_prefix(std::min(text->find_first_not_of(kBlank), text->size()));
  const size_t end = std::min(text->find_first_of(kBlank), text->size());
  const std::string_view word = text->substr(0, end);
  text->remove_prefix(end);
  return word;
}

krcore::Status Unknown(std::string_view line) {
  return {krcore::StatusCode::kInvalidArgument, "\"" + std::string(line) + "\": expected \"workers N\" (0 to " +
                                                    std::to_string(kMaxWorkers) + "), \"status\" or \"quit\""};
}

}  // namespace

krcore::Result<Command> ParseCommand(std::string_view line) {
  std::string_view rest = line;
  const std::string_view word = NextWord(&rest);
  const std::string_view argument = NextWord(&rest);
  if (!NextWord(&rest).empty()) return Unknown(line);
  if (word == "status" && argument.empty()) return Command{.kind = Command::Kind::kStatus};
  if (word == "quit" && argument.empty()) return Command{.kind = Command::Kind::kQuit};
  if (word != "workers") return Unknown(line);
  Command command{.kind = Command::Kind::kWorkers};
  const auto [end, error] = std::from_chars(argument.data(), argument.data() + argument.size(), command.workers);
  if (error != std::errc() || end != argument.data() + argument.size() || command.workers > kMaxWorkers) {
    return Unknown(line);
  }
  return command;
}

std::optional<std::string> LineReader::Next() {
  while (!buffer_.empty()) {
    const size_t newline = buffer_.find('\n');
    if (newline == std::string::npos && buffer_.size() < kMaxLineBytes) return std::nullopt;
    const size_t end = std::min(newline, kMaxLineBytes);
    std::string line = buffer_.substr(0, end);
    buffer_.erase(0, end == newline ? end + 1 : end);
    if (line.find_first_not_of(kBlank) != std::string::npos) return line;
  }
  return std::nullopt;
}

std::optional<std::string> LineReader::Rest() {
  std::string line = std::exchange(buffer_, {});
  if (line.find_first_not_of(kBlank) == std::string::npos) return std::nullopt;
  return line;
}

}  // namespace computenode
