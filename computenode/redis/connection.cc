// The connection itself: who is there, in which version of the protocol, with which password.
#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>

#include "computenode/redis/command.h"

namespace redis {
namespace {

constexpr std::string_view kWrongPassword = "WRONGPASS invalid username-password pair or user is disabled.";
constexpr std::string_view kWrongName = "ERR Client names cannot contain spaces, newlines or special characters.";

void Ping(Call& call) {
  if (call.arguments.size() > 2) return call.reply.Error(WrongNumberOfArguments(call.command.name));
  if (call.arguments.size() == 1) return call.reply.Simple("PONG");
  call.reply.Bulk(call.argument(1));
}

void Echo(Call& call) { call.reply.Bulk(call.argument(1)); }

void Select(Call& call) {
  const std::optional<int64_t> index = ParseInteger(call.argument(1));
  if (!index) return call.reply.Error(kNotAnInteger);
  if (*index < INT32_MIN || *index > INT32_MAX) {
    return call.reply.Error("ERR value is out of range, value must between -2147483648 and 2147483647");
  }
  if (*index != 0) return call.reply.Error("ERR DB index is out of range");
  call.reply.Ok();
}

// Takes time that does not depend on where the two differ.
bool SamePassword(std::string_view given, std::string_view password) {
  unsigned difference = given.size() == password.size() ? 0 : 1;
  for (size_t i = 0; i < given.size() && !password.empty(); ++i) {
    difference |= static_cast<unsigned char>(given[i] ^ password[i % password.size()]);
  }
  return difference == 0;
}

// There is one user, as in redis-server without access lists. Where there is no password, any will do.
bool IsAllowed(const Settings& settings, std::string_view user, std::string_view password) {
  return user == "default" && (settings.password.empty() || SamePassword(password, settings.password));
}

void Auth(Call& call) {
  if (call.arguments.size() > 3) return call.reply.Error(kSyntaxError);
  const bool has_user = call.arguments.size() == 3;
  if (!has_user && call.settings.password.empty()) {
    return call.reply.Error(
        "ERR AUTH <password> called without any password configured for the default user. Are you sure your "
        "configuration is correct?");
  }
  if (!IsAllowed(call.settings, has_user ? call.argument(1) : "default", call.arguments.back())) {
    return call.reply.Error(kWrongPassword);
  }
  call.session.trusted = true;
  call.reply.Ok();
}

bool IsName(std::string_view name) {
  constexpr size_t kMostBytes = 256;  // each connection keeps its names
  if (name.size() > kMostBytes) return false;
  return std::all_of(name.begin(), name.end(), [](char letter) { return letter >= '!' && letter <= '~'; });
}

void ReplyGreeting(Call& call) {
  Reply& reply = call.reply;
  reply.SetProtocol(call.session.protocol);
  reply.Map(7);
  reply.Bulk("server");
  reply.Bulk("redis");
  reply.Bulk("version");
  reply.Bulk(kRedisVersion);
  reply.Bulk("proto");
  reply.Integer(call.session.protocol);
  reply.Bulk("id");
  reply.Integer(static_cast<int64_t>(call.session.id));
  reply.Bulk("mode");
  reply.Bulk("standalone");
  reply.Bulk("role");
  reply.Bulk("master");
  reply.Bulk("modules");
  reply.Array(0);
}

// Its words take effect one after the other, as in redis-server, but the version comes last.
void Hello(Call& call) {
  std::span<const std::string_view> words = call.arguments.subspan(1);
  int protocol = call.session.protocol;
  if (!words.empty()) {
    const std::optional<int64_t> version = ParseInteger(words.front());
    if (!version) return call.reply.Error("ERR Protocol version is not an integer or out of range");
    if (*version != 2 && *version != 3) return call.reply.Error("NOPROTO unsupported protocol version");
    protocol = static_cast<int>(*version);
    words = words.subspan(1);
  }
  while (!words.empty()) {
    if (SameWord(words[0], "AUTH") && words.size() >= 3) {
      if (!IsAllowed(call.settings, words[1], words[2])) return call.reply.Error(kWrongPassword);
      call.session.trusted = true;
      words = words.subspan(3);
    } else if (SameWord(words[0], "SETNAME") && words.size() >= 2) {
      if (!IsName(words[1])) return call.reply.Error(kWrongName);
      call.session.name = words[1];
      words = words.subspan(2);
    } else {
      return call.reply.Error("ERR Syntax error in HELLO option '" + std::string(Printable(words[0])) + "'");
    }
  }
  if (!call.session.trusted) {
    return call.reply.Error(
        "NOAUTH HELLO must be called with the client already authenticated, otherwise the HELLO AUTH <user> <pass> "
        "option can be used to authenticate the client and select the RESP protocol version at the same time");
  }
  call.session.protocol = protocol;
  ReplyGreeting(call);
}

void Quit(Call& call) {
  call.session.over = true;
  call.reply.Ok();
}

void Reset(Call& call) {
  call.session = {.id = call.session.id, .trusted = call.settings.password.empty()};
  call.reply.Simple("RESET");
}

void ClientId(Call& call) { call.reply.Integer(static_cast<int64_t>(call.session.id)); }

void ClientSetname(Call& call) {
  if (!IsName(call.argument(2))) return call.reply.Error(kWrongName);
  call.session.name = call.argument(2);
  call.reply.Ok();
}

void ClientGetname(Call& call) {
  if (call.session.name.empty()) return call.reply.Null();
  call.reply.Bulk(call.session.name);
}

void ClientSetinfo(Call& call) {
  const std::string_view attribute = call.argument(2);
  std::string* const field = SameWord(attribute, "LIB-NAME")  ? &call.session.library
                             : SameWord(attribute, "LIB-VER") ? &call.session.library_version
                                                              : nullptr;
  if (field == nullptr) return call.reply.Error("ERR Unrecognized option '" + std::string(attribute) + "'");
  if (!IsName(call.argument(3))) {
    return call.reply.Error("ERR " + LowerCase(attribute) + " cannot contain spaces, newlines or special characters.");
  }
  *field = call.argument(3);
  call.reply.Ok();
}

void ClientList(Call& call) {
  if (call.settings.client_list) return call.reply.Verbatim(call.settings.client_list());
  call.reply.Verbatim(DescribeSession(call.session) + "\n");
}

constexpr int kOpen = Command::kFast | Command::kWithoutPassword;

constexpr Command kConnectionCommands[] = {
    {"ping", -1, Command::kFast, 0, 0, 0, Ping},
    {"echo", 2, Command::kFast, 0, 0, 0, Echo},
    {"select", 2, Command::kFast, 0, 0, 0, Select},
    {"auth", -2, kOpen, 0, 0, 0, Auth},
    {"hello", -1, kOpen, 0, 0, 0, Hello},
    {"quit", -1, kOpen, 0, 0, 0, Quit},
    {"reset", 1, kOpen, 0, 0, 0, Reset},
    {"client", -2, Command::kContainer, 0, 0, 0, AtOnce{}},
    {"client|id", 2, Command::kFast, 0, 0, 0, ClientId},
    {"client|setname", 3, Command::kFast, 0, 0, 0, ClientSetname},
    {"client|getname", 2, Command::kFast, 0, 0, 0, ClientGetname},
    {"client|setinfo", 4, Command::kFast, 0, 0, 0, ClientSetinfo},
    {"client|list", 2, Command::kNone, 0, 0, 0, ClientList},
};

}  // namespace

std::string DescribeSession(const Session& session) {
  return "id=" + std::to_string(session.id) + " name=" + session.name +
         " db=0 resp=" + std::to_string(session.protocol) + " lib-name=" + session.library +
         " lib-ver=" + session.library_version;
}

std::span<const Command> ConnectionCommands() { return kConnectionCommands; }

}  // namespace redis
