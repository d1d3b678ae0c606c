// SET and GETEX with their options, SETEX, PSETEX.
#include <optional>
#include <string>
#include <utility>

#include "computenode/redis/command.h"
#include "computenode/redis/on_store.h"

namespace redis {
namespace {

using kvs::Modification;
using kvs::Record;
using kvs::Status;
using kvs::StatusCode;
using kvs::Task;

enum class Condition : uint8_t { kNone, kAbsent, kPresent, kEqual };

struct Options {
  Condition condition = Condition::kNone;
  std::string_view compared{};  // kEqual
  bool get = false;
  bool keep_ttl = false;
  bool persist = false;
  std::optional<TimeForm> form{};
  std::string_view amount{};

  bool has_lifetime() const { return keep_ttl || persist || form; }
};

struct LifetimeWord {
  std::string_view word;
  TimeForm form;
};
constexpr LifetimeWord kLifetimeWords[] = {{"EX", {.seconds = true, .absolute = false}},
                                           {"PX", {.seconds = false, .absolute = false}},
                                           {"EXAT", {.seconds = true, .absolute = true}},
                                           {"PXAT", {.seconds = false, .absolute = true}}};

std::optional<TimeForm> FormOf(std::string_view word) {
  for (const LifetimeWord& known : kLifetimeWords) {
    if (SameWord(word, known.word)) return known.form;
  }
  return std::nullopt;
}

// A condition may be repeated, but not combined with another.
bool SetCondition(Options* options, Condition condition) {
  if (options->condition != Condition::kNone && options->condition != condition) return false;
  options->condition = condition;
  return true;
}

// These take an option and what belongs to it from the front of `words`. They return false if it is none, or does not
// go with the others.
bool TakeLifetime(std::span<const std::string_view>* words, Options* options) {
  const std::optional<TimeForm> form = FormOf(words->front());
  if (!form || words->size() < 2 || options->keep_ttl || options->persist) return false;
  if (options->form && *options->form != *form) return false;
  options->form = form;
  options->amount = (*words)[1];
  *words = words->subspan(2);
  return true;
}

bool TakeSetOption(std::span<const std::string_view>* words, Options* options) {
  const std::string_view word = words->front();
  bool fits = true;
  if (SameWord(word, "NX")) {
    fits = SetCondition(options, Condition::kAbsent);
  } else if (SameWord(word, "XX")) {
    fits = SetCondition(options, Condition::kPresent);
  } else if (SameWord(word, "IFEQ") && words->size() >= 2) {
    fits = SetCondition(options, Condition::kEqual);
    options->compared = (*words)[1];
    *words = words->subspan(1);
  } else if (SameWord(word, "GET")) {
    options->get = true;
  } else if (SameWord(word, "KEEPTTL") && !options->form) {
    options->keep_ttl = true;
  } else {
    return TakeLifetime(words, options);
  }
  *words = words->subspan(1);
  return fits;
}

bool TakeGetexOption(std::span<const std::string_view>* words, Options* options) {
  if (!SameWord(words->front(), "PERSIST")) return TakeLifetime(words, options);
  if (options->form) return false;
  options->persist = true;
  *words = words->subspan(1);
  return true;
}

std::optional<Options> ParseOptions(std::span<const std::string_view> words,
                                    bool (*take)(std::span<const std::string_view>*, Options*)) {
  Options options;
  while (!words.empty()) {
    if (!take(&words, &options)) return std::nullopt;
  }
  return options;
}

// The end of a lifetime that must not be empty; 0: there is none. Otherwise sets `error`.
uint64_t ExpiresAt(const Call& call, const std::optional<TimeForm>& form, std::string_view amount, std::string* error) {
  if (!form) return 0;
  const std::optional<int64_t> number = ParseInteger(amount);
  if (!number) {
    *error = kNotAnInteger;
    return 0;
  }
  const std::optional<int64_t> instant = *number > 0 ? Instant(*number, *form, call.Now()) : std::nullopt;
  if (!instant) *error = InvalidExpireTime(call.command.name);
  return static_cast<uint64_t>(instant.value_or(0));
}

// A SET that need not know what the key had.
Task<void> SetBlindly(Call& call, std::string_view value, Condition condition, uint64_t expires_at_ms) {
  const std::string_view key = call.argument(1);
  Status status;
  if (condition == Condition::kNone) {
    status = co_await call.client.PutAsync(key, value, expires_at_ms);
  } else if (condition == Condition::kAbsent) {
    status = co_await call.client.InsertAsync(key, value, expires_at_ms);
  } else {
    status = co_await call.client.UpdateAsync(key, value, expires_at_ms);
  }
  if (status.ok()) co_return call.reply.Ok();
  if (status == StatusCode::kExists || status == StatusCode::kNotFound) co_return call.reply.Null();
  Fail(call, status);
}

bool IsMet(const Options& options, const std::optional<Record>& record) {
  switch (options.condition) {
    case Condition::kNone: return true;
    case Condition::kAbsent: return !record;
    case Condition::kPresent: return record.has_value();
    case Condition::kEqual: return record && record->value == options.compared;
  }
  return false;
}

Task<void> Set(Call& call) {
  const std::optional<Options> options = ParseOptions(call.arguments.subspan(3), TakeSetOption);
  if (!options) co_return call.reply.Error(kSyntaxError);
  std::string error;
  const uint64_t expires_at_ms = ExpiresAt(call, options->form, options->amount, &error);
  if (!error.empty()) co_return call.reply.Error(error);
  const std::string_view value = call.argument(2);
  if (!options->get && !options->keep_ttl && options->condition != Condition::kEqual) {
    co_await SetBlindly(call, value, options->condition, expires_at_ms);
    co_return;
  }
  std::optional<std::string> old;
  bool met = false;
  const kvs::ModifyFunction decide = [&](const std::optional<Record>& record) {
    old = ValueOf(record);
    met = IsMet(*options, record);
    if (!met) return Modification::Keep();
    return Modification::Set(std::string(value), options->keep_ttl ? ExpiryOf(record) : expires_at_ms);
  };
  const bool done = co_await ModifyKey(call, call.argument(1), decide);
  if (!done) co_return;
  if (options->get && old) co_return call.reply.Bulk(*old);
  if (options->get || !met) co_return call.reply.Null();
  call.reply.Ok();
}

Task<void> SetFor(Call& call, TimeForm form) {
  std::string error;
  const uint64_t expires_at_ms = ExpiresAt(call, form, call.argument(2), &error);
  if (!error.empty()) co_return call.reply.Error(error);
  co_await SetBlindly(call, call.argument(3), Condition::kNone, expires_at_ms);
}

Task<void> Setex(Call& call) { return SetFor(call, {.seconds = true}); }
Task<void> Psetex(Call& call) { return SetFor(call, {.seconds = false}); }

Task<void> Getex(Call& call) {
  const std::optional<Options> options = ParseOptions(call.arguments.subspan(2), TakeGetexOption);
  if (!options) co_return call.reply.Error(kSyntaxError);
  std::string error;
  const uint64_t expires_at_ms = ExpiresAt(call, options->form, options->amount, &error);
  std::optional<std::string> value;
  const kvs::ModifyFunction decide = [&](const std::optional<Record>& record) {
    value = ValueOf(record);
    if (!record || !error.empty() || !options->has_lifetime()) return Modification::Keep();
    if (options->persist && record->expires_at_ms == 0) return Modification::Keep();
    return Modification::Set(*value, expires_at_ms);
  };
  const bool done = co_await ModifyKey(call, call.argument(1), decide);
  if (!done) co_return;
  if (!value) co_return call.reply.Null();
  if (!error.empty()) co_return call.reply.Error(error);
  call.reply.Bulk(*value);
}

constexpr Command kSetCommands[] = {
    {"set", -3, Command::kWrite, 1, 1, 1, Set},
    {"setex", 4, Command::kWrite, 1, 1, 1, Setex},
    {"psetex", 4, Command::kWrite, 1, 1, 1, Psetex},
    {"getex", -2, Command::kWrite | Command::kFast, 1, 1, 1, Getex},
};

}  // namespace

std::span<const Command> SetCommands() { return kSetCommands; }

}  // namespace redis
