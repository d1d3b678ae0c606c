#include "computenode/channel.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <ctime>
#include <utility>

#include "cli/stop_signal.h"

namespace computenode {
namespace {

constexpr std::string_view kBlank = " \t\r";

std::string unwritten;  // used by the main thread only

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

using nlohmann::ordered_json;

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

void Channel::Print(const ordered_json& json) {
  unwritten += json.dump(-1, ' ', false, ordered_json::error_handler_t::replace) + "\n";
}

void Channel::Flush() {
  const std::string lines = std::exchange(unwritten, {});
  const bool written = std::fwrite(lines.data(), 1, lines.size(), stdout) == lines.size() && std::fflush(stdout) == 0;
  if (!written && errno == EPIPE) cli::StopSignal::Request();
}

void Channel::Wait(int64_t timeout_ns, const std::function<void(const Command&)>& obey) {
  pollfd events[2] = {{cli::StopSignal::fd(), POLLIN, 0}, {input_, POLLIN, 0}};  // poll skips a descriptor of -1
  const timespec timeout{timeout_ns / 1'000'000'000, timeout_ns % 1'000'000'000};
  if (ppoll(events, 2, &timeout, nullptr) <= 0) return;
  if ((events[1].revents & (POLLIN | POLLHUP | POLLERR | POLLNVAL)) == 0) return;
  char bytes[4096];
  const ssize_t got = read(input_, bytes, sizeof(bytes));
  if (got < 0 && (errno == EINTR || errno == EAGAIN)) return;
  if (got > 0) {
    lines_.Add({bytes, static_cast<size_t>(got)});
    while (const auto line = lines_.Next()) Obey(*line, obey);
    return;
  }
  input_ = -1;  // end of input, or a terminal that went away: go on serving
  if (const auto line = lines_.Rest()) Obey(*line, obey);
}

void Channel::Obey(const std::string& line, const std::function<void(const Command&)>& obey) {
  const auto command = ParseCommand(line);
  if (!command.ok()) return Print({{"event", "error"}, {"message", command.status().message()}});
  obey(*command);
}

}  // namespace computenode
