// When keys expire: setting it, asking for it.
#include <algorithm>
#include <optional>
#include <string>

#include "computenode/redis/command.h"
#include "computenode/redis/on_store.h"

namespace redis {
namespace {

using kvs::Modification;
using kvs::Record;
using kvs::Task;

struct Conditions {
  bool nx = false, xx = false, gt = false, lt = false;
};

// Sets `error` if the words do not go together.
Conditions ParseConditions(std::span<const std::string_view> words, std::string* error) {
  Conditions conditions;
  for (const std::string_view word : words) {
    bool* const condition = SameWord(word, "NX")   ? &conditions.nx
                            : SameWord(word, "XX") ? &conditions.xx
                            : SameWord(word, "GT") ? &conditions.gt
                            : SameWord(word, "LT") ? &conditions.lt
                                                   : nullptr;
    if (condition == nullptr) {
      *error = "ERR Unsupported option " + std::string(Printable(word));
      return {};
    }
    *condition = true;
  }
  if (conditions.nx && (conditions.xx || conditions.gt || conditions.lt)) {
    *error = "ERR NX and XX, GT or LT options at the same time are not compatible";
  } else if (conditions.gt && conditions.lt) {
    *error = "ERR GT and LT options at the same time are not compatible";
  }
  return conditions;
}

// `old`: when the key expires now; 0: never, which is later than any time.
bool AreMet(const Conditions& conditions, int64_t old, int64_t wanted) {
  if (conditions.nx && old != 0) return false;
  if (conditions.xx && old == 0) return false;
  if (conditions.gt && (old == 0 || wanted <= old)) return false;
  return !conditions.lt || old == 0 || wanted < old;
}

Task<void> ExpireAs(Call& call, TimeForm form) {
  std::string error;
  const Conditions conditions = ParseConditions(call.arguments.subspan(3), &error);
  if (!error.empty()) co_return call.reply.Error(error);
  const std::optional<int64_t> amount = ParseInteger(call.argument(2));
  if (!amount) co_return call.reply.Error(kNotAnInteger);
  const int64_t now = call.Now();
  const std::optional<int64_t> wanted = Instant(*amount, form, now);
  if (!wanted) co_return call.reply.Error(InvalidExpireTime(call.command.name));
  bool changed = false;
  const kvs::ModifyFunction decide = [&](const std::optional<Record>& record) {
    changed = record && AreMet(conditions, static_cast<int64_t>(record->expires_at_ms), *wanted);
    if (!changed) return Modification::Keep();
    if (*wanted <= now) return Modification::Delete();
    return Modification::Set(std::string(record->value), static_cast<uint64_t>(*wanted));
  };
  const bool done = co_await ModifyKey(call, call.argument(1), decide);
  if (done) call.reply.Integer(changed ? 1 : 0);
}

Task<void> Expire(Call& call) { return ExpireAs(call, {.seconds = true, .absolute = false}); }
Task<void> Pexpire(Call& call) { return ExpireAs(call, {.seconds = false, .absolute = false}); }
Task<void> Expireat(Call& call) { return ExpireAs(call, {.seconds = true, .absolute = true}); }
Task<void> Pexpireat(Call& call) { return ExpireAs(call, {.seconds = false, .absolute = true}); }

Task<void> Persist(Call& call) {
  bool changed = false;
  const kvs::ModifyFunction decide = [&](const std::optional<Record>& record) {
    changed = record && record->expires_at_ms != 0;
    return changed ? Modification::Set(std::string(record->value)) : Modification::Keep();
  };
  const bool done = co_await ModifyKey(call, call.argument(1), decide);
  if (done) call.reply.Integer(changed ? 1 : 0);
}

// Replies when the key expires; -1: never; -2: it is absent.
Task<void> ReplyExpiry(Call& call, TimeForm form) {
  int64_t expires_at_ms = 0;
  bool found = false;
  const kvs::ModifyFunction look = [&](const std::optional<Record>& record) {
    found = record.has_value();
    expires_at_ms = static_cast<int64_t>(ExpiryOf(record));
    return Modification::Keep();
  };
  const bool done = co_await ModifyKey(call, call.argument(1), look);
  if (!done) co_return;
  const int64_t now = call.Now();
  if (!found || expires_at_ms == 0) co_return call.reply.Integer(found ? -1 : -2);
  const int64_t ms = form.absolute ? expires_at_ms : std::max<int64_t>(expires_at_ms - now, 0);
  call.reply.Integer(form.seconds ? ms / 1'000 + (ms % 1'000 >= 500 ? 1 : 0) : ms);
}

Task<void> Ttl(Call& call) { return ReplyExpiry(call, {.seconds = true, .absolute = false}); }
Task<void> Pttl(Call& call) { return ReplyExpiry(call, {.seconds = false, .absolute = false}); }
Task<void> Expiretime(Call& call) { return ReplyExpiry(call, {.seconds = true, .absolute = true}); }
Task<void> Pexpiretime(Call& call) { return ReplyExpiry(call, {.seconds = false, .absolute = true}); }

constexpr Command kExpiryCommands[] = {
    {"expire", -3, Command::kWrite | Command::kFast, 1, 1, 1, Expire},
    {"pexpire", -3, Command::kWrite | Command::kFast, 1, 1, 1, Pexpire},
    {"expireat", -3, Command::kWrite | Command::kFast, 1, 1, 1, Expireat},
    {"pexpireat", -3, Command::kWrite | Command::kFast, 1, 1, 1, Pexpireat},
    {"persist", 2, Command::kWrite | Command::kFast, 1, 1, 1, Persist},
    {"ttl", 2, Command::kRead | Command::kFast, 1, 1, 1, Ttl},
    {"pttl", 2, Command::kRead | Command::kFast, 1, 1, 1, Pttl},
    {"expiretime", 2, Command::kRead | Command::kFast, 1, 1, 1, Expiretime},
    {"pexpiretime", 2, Command::kRead | Command::kFast, 1, 1, 1, Pexpiretime},
};

}  // namespace

std::span<const Command> ExpiryCommands() { return kExpiryCommands; }

}  // namespace redis
