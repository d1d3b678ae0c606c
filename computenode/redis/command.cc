#include "computenode/redis/command.h"

#include <algorithm>
#include <cctype>
#include <unordered_map>
#include <vector>

namespace redis {
namespace {

constexpr size_t kQuotedBytes = 128;  // of a wrong request, in an error

std::string UnknownCommand(std::span<const std::string_view> arguments) {
  std::string words;
  for (size_t i = 1; i < arguments.size() && words.size() < kQuotedBytes; ++i) {
    words += "'" + std::string(Printable(arguments[i].substr(0, kQuotedBytes - words.size()))) + "' ";
  }
  return "ERR unknown command '" + std::string(Printable(arguments[0].substr(0, kQuotedBytes))) +
         "', with args beginning with: " + words;
}

std::string UnknownSubcommand(const Command& container, std::string_view name) {
  std::string upper(container.name);
  std::transform(upper.begin(), upper.end(), upper.begin(), [](unsigned char c) { return std::toupper(c); });
  return "ERR unknown subcommand '" + std::string(Printable(name.substr(0, kQuotedBytes))) + "'. Try " + upper +
         " HELP.";
}

bool KeysAreValid(const Command& command, std::span<const std::string_view> arguments) {
  if (command.first_key == 0) return true;
  const auto count = static_cast<int>(arguments.size());
  const int last = command.last_key < 0 ? count + command.last_key : command.last_key;
  for (int i = command.first_key; i <= last; i += command.key_step) {
    const size_t length = arguments[static_cast<size_t>(i)].size();
    if (length == 0 || length > kvs::kMaxKeyBytes) return false;
  }
  return true;
}

// Returns whether this is what a browser sends that was lured into a request of HTTP. Such a connection ends at once,
// before its body is taken for commands.
bool IsHttp(std::string_view word) { return SameWord(word, "post") || SameWord(word, "host:"); }

}  // namespace

int64_t Call::Now() const {
  krcore::Clock* const clock = settings.clock != nullptr ? settings.clock : krcore::RealClock();
  return static_cast<int64_t>(clock->UnixMs());
}

std::span<const Command* const> AllCommands() {
  static const std::vector<const Command*> all = [] {
    std::vector<const Command*> commands;
    for (const std::span<const Command> some : {StringCommands(), SetCommands(), CounterCommands(), ExpiryCommands(),
                                                KeyCommands(), ConnectionCommands(), ServerCommands()}) {
      for (const Command& command : some) commands.push_back(&command);
    }
    return commands;
  }();
  return all;
}

const Command* FindCommand(std::string_view name) {
  static const std::unordered_map<std::string_view, const Command*> by_name = [] {
    std::unordered_map<std::string_view, const Command*> commands;
    for (const Command* const command : AllCommands()) commands.emplace(command->name, command);
    return commands;
  }();
  constexpr size_t kLongestName = 32;
  if (name.size() > kLongestName) return nullptr;
  const auto found = by_name.find(LowerCase(name));
  return found != by_name.end() ? found->second : nullptr;
}

const Command* FindSubcommand(const Command& container, std::string_view name) {
  return FindCommand(std::string(container.name) + "|" + std::string(name));
}

std::string WrongNumberOfArguments(std::string_view command) {
  return "ERR wrong number of arguments for '" + std::string(command) + "' command";
}

kvs::Task<void> Execute(kvs::Client& client, const Settings& settings, Session& session,
                        std::span<const std::string_view> arguments, Reply& reply) {
  if (IsHttp(arguments[0])) {
    session.over = true;
    co_return;
  }
  const bool is_sub = arguments[0].find('|') != std::string_view::npos;
  const Command* command = is_sub ? nullptr : FindCommand(arguments[0]);
  if (command == nullptr) co_return reply.Error(UnknownCommand(arguments));
  if ((command->flags & Command::kContainer) != 0 && arguments.size() > 1) {
    const Command* const sub = FindSubcommand(*command, arguments[1]);
    if (sub == nullptr) co_return reply.Error(UnknownSubcommand(*command, arguments[1]));
    command = sub;
  }
  if (!command->TakesArguments(arguments.size())) co_return reply.Error(WrongNumberOfArguments(command->name));
  if (!session.trusted && (command->flags & Command::kWithoutPassword) == 0) {
    co_return reply.Error("NOAUTH Authentication required.");
  }
  if (!KeysAreValid(*command, arguments)) co_return reply.Error("ERR a key must have 1 to 65535 bytes");
  Call call{client, settings, session, *command, arguments, reply};
  if (const AtOnce* const at_once = std::get_if<AtOnce>(&command->run)) {
    (*at_once)(call);
  } else {
    co_await std::get<OnStore>(command->run)(call);
  }
}

}  // namespace redis
