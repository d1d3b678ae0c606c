#include "computenode/channel.h"

#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <ctime>

#include "cli/stop_signal.h"

namespace computenode {

using nlohmann::ordered_json;

void Channel::Print(const ordered_json& json) {
  const std::string line = json.dump(-1, ' ', false, ordered_json::error_handler_t::replace) + "\n";
  const bool written = std::fwrite(line.data(), 1, line.size(), stdout) == line.size() && std::fflush(stdout) == 0;
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
  input_ = -1;  // the end, or a terminal that went away: serve on
  if (const auto line = lines_.Rest()) Obey(*line, obey);
}

void Channel::Obey(const std::string& line, const std::function<void(const Command&)>& obey) {
  const auto command = ParseCommand(line);
  if (!command.ok()) return Print({{"event", "error"}, {"message", command.status().message()}});
  obey(*command);
}

}  // namespace computenode
