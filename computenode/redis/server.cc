// The server: what clients ask it about itself before they begin.
#include <algorithm>
#include <array>
#include <string>
#include <utility>
#include <vector>

#include "computenode/redis/command.h"
#include "computenode/redis/on_store.h"

namespace redis {
namespace {

void Time(Call& call) {
  const int64_t now = call.Now();
  call.reply.Array(2);
  call.reply.Bulk(std::to_string(now / 1'000));
  call.reply.Bulk(std::to_string(now % 1'000 * 1'000));
}

// What clients and benchmarks want to know. Nothing can be set.
struct Parameter {
  std::string_view name, value;
};
constexpr Parameter kParameters[] = {
    {"appendonly", "no"}, {"databases", "1"}, {"maxmemory", "0"}, {"save", ""}, {"timeout", "0"},
};

void ConfigGet(Call& call) {
  std::vector<const Parameter*> wanted;
  for (const Parameter& parameter : kParameters) {
    const auto names_it = [&](std::string_view pattern) { return GlobMatches(LowerCase(pattern), parameter.name); };
    const auto patterns = call.arguments.subspan(2);
    if (std::any_of(patterns.begin(), patterns.end(), names_it)) wanted.push_back(&parameter);
  }
  call.reply.Map(wanted.size());
  for (const Parameter* const parameter : wanted) {
    call.reply.Bulk(parameter->name);
    call.reply.Bulk(parameter->value);
  }
}

void Info(Call& call) {
  std::string text = "# Server\r\nredis_version:" + std::string(kRedisVersion) +
                     "\r\nredis_mode:standalone\r\nserver_name:surgekv\r\n";
  if (call.settings.info) text += call.settings.info();
  call.reply.Verbatim(text);
}

void ReplyFlags(Reply& reply, const Command& command) {
  constexpr std::pair<int, std::string_view> kNames[] = {{Command::kWrite, "write"},
                                                         {Command::kRead, "readonly"},
                                                         {Command::kFast, "fast"},
                                                         {Command::kWithoutPassword, "no_auth"}};
  const auto has = [&](const auto& flag) { return (command.flags & flag.first) != 0; };
  reply.Set(static_cast<size_t>(std::count_if(std::begin(kNames), std::end(kNames), has)));
  for (const auto& flag : kNames) {
    if (has(flag)) reply.Simple(flag.second);
  }
}

// As redis-server describes one, but without categories, hints, key specifications and subcommands.
void ReplyDescription(Reply& reply, const Command& command) {
  reply.Array(10);
  reply.Bulk(command.name);
  reply.Integer(command.arity);
  ReplyFlags(reply, command);
  reply.Integer(command.first_key);
  reply.Integer(command.last_key);
  reply.Integer(command.key_step);
  reply.Set(0);
  for (int i = 0; i < 3; ++i) reply.Array(0);
}

// Subcommands are no commands of their own here.
std::vector<const Command*> TopCommands() {
  std::vector<const Command*> commands;
  for (const Command* const command : AllCommands()) {
    if (command->name.find('|') == std::string_view::npos) commands.push_back(command);
  }
  return commands;
}

void DescribeAll(Call& call) {
  const std::vector<const Command*> commands = TopCommands();
  call.reply.Array(commands.size());
  for (const Command* const command : commands) ReplyDescription(call.reply, *command);
}

void CommandCount(Call& call) { call.reply.Integer(static_cast<int64_t>(TopCommands().size())); }

void CommandInfo(Call& call) {
  if (call.arguments.size() == 2) return DescribeAll(call);
  call.reply.Array(call.arguments.size() - 2);
  for (const std::string_view name : call.arguments.subspan(2)) {
    const Command* const command = FindCommand(name);
    if (command != nullptr) {
      ReplyDescription(call.reply, *command);
    } else {
      call.reply.Null();
    }
    if (!CheckReplyBytes(call, call.reply.bytes())) return;
  }
}

constexpr Command kServerCommands[] = {
    {"time", 1, Command::kFast, 0, 0, 0, Time},
    {"info", -1, Command::kNone, 0, 0, 0, Info},
    {"config", -2, Command::kContainer, 0, 0, 0, AtOnce{}},
    {"config|get", -3, Command::kNone, 0, 0, 0, ConfigGet},
    {"command", -1, Command::kContainer, 0, 0, 0, DescribeAll},
    {"command|count", 2, Command::kNone, 0, 0, 0, CommandCount},
    {"command|info", -2, Command::kNone, 0, 0, 0, CommandInfo},
};

}  // namespace

std::span<const Command> ServerCommands() { return kServerCommands; }

}  // namespace redis
