// Commands: what one is, what it is called with, and where all of them are.
//
// Thread safety: the tables are constant; a Call belongs to the thread that runs its conversation.
#ifndef COMPUTENODE_REDIS_COMMAND_H_
#define COMPUTENODE_REDIS_COMMAND_H_

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <variant>

#include "computenode/redis/reply.h"
#include "computenode/redis/settings.h"
#include "computenode/redis/words.h"
#include "kvs/client.h"
#include "kvs/task.h"

namespace redis {

// What a connection has told about itself.
struct Session {
  uint64_t id = 0;
  int protocol = 2;
  bool trusted = false;  // has given the password, or there is none
  bool over = false;     // after the replies so far the connection ends
  std::string name{}, library{}, library_version{};

  friend bool operator==(const Session&, const Session&) = default;
};

// One line for CLIENT LIST, without its end.
std::string DescribeSession(const Session& session);

struct Call;
using AtOnce = void (*)(Call& call);
using OnStore = kvs::Task<void> (*)(Call& call);

struct Command {
  enum Flags : uint8_t {
    kNone = 0,
    kWrite = 1,  // may change the store
    kRead = 2,   // reads the store
    kFast = 4,   // takes a constant number of operations
    kWithoutPassword = 8,
    kContainer = 16,  // its first argument may name one of its subcommands, "name|sub" in the table
  };
  std::string_view name;  // in lower case
  int arity;              // the number of arguments, its name included; negative: at least so many
  int flags;
  // Which arguments are keys: the first, the last (-1: the last of all), and the step from one to the next. 0: none.
  int first_key, last_key, key_step;
  std::variant<AtOnce, OnStore> run;

  bool TakesArguments(size_t count) const {
    return arity >= 0 ? count == static_cast<size_t>(arity) : count >= static_cast<size_t>(-arity);
  }
};

struct Call {
  kvs::Client& client;
  const Settings& settings;
  Session& session;
  const Command& command;
  std::span<const std::string_view> arguments;  // [0] is the command's name
  Reply& reply;

  std::string_view argument(size_t index) const { return arguments[index]; }
  // The time of day in milliseconds.
  int64_t Now() const;
};

// The commands of each file, and all of them by name. Null: there is no such command.
std::span<const Command> StringCommands();      // strings.cc
std::span<const Command> SetCommands();         // set.cc
std::span<const Command> CounterCommands();     // counters.cc
std::span<const Command> ExpiryCommands();      // expiry.cc
std::span<const Command> KeyCommands();         // keys.cc
std::span<const Command> ConnectionCommands();  // connection.cc
std::span<const Command> ServerCommands();      // server.cc
std::span<const Command* const> AllCommands();
const Command* FindCommand(std::string_view name);
const Command* FindSubcommand(const Command& container, std::string_view name);

// Finds the command that the arguments name, checks their number and keys, and runs it. `reply` gets one reply.
kvs::Task<void> Execute(kvs::Client& client, const Settings& settings, Session& session,
                        std::span<const std::string_view> arguments, Reply& reply);

// The version of redis-server whose behaviour the commands have.
inline constexpr std::string_view kRedisVersion = "7.0.15";
inline constexpr std::string_view kSyntaxError = "ERR syntax error";
inline constexpr std::string_view kNotAnInteger = "ERR value is not an integer or out of range";
inline constexpr std::string_view kTooLong = "ERR string exceeds maximum allowed size (proto-max-bulk-len)";
std::string WrongNumberOfArguments(std::string_view command);

}  // namespace redis

#endif  // COMPUTENODE_REDIS_COMMAND_H_
