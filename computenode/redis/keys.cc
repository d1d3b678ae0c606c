// Keys, whatever their values: deleting some, asking whether they are there, going over all of them.
#include <algorithm>
#include <charconv>
#include <limits>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "computenode/redis/command.h"
#include "computenode/redis/on_store.h"

namespace redis {
namespace {

using kvs::ScanRecord;
using kvs::Status;
using kvs::Task;

// A longer pattern takes too long: its length counts for every byte of every key.
constexpr size_t kMaxPatternBytes = 1'024;
constexpr std::string_view kPatternTooLong = "ERR a pattern has at most 1024 bytes";

// Returns the keys of the command in order, equal ones next to each other.
std::vector<std::string_view> SortedKeys(const Call& call) {
  const std::span<const std::string_view> keys = call.arguments.subspan(1);
  std::vector<std::string_view> sorted(keys.begin(), keys.end());
  std::ranges::sort(sorted);
  return sorted;
}

Task<void> Del(Call& call) {
  std::vector<kvs::WriteRequest> writes;
  for (const std::string_view key : SortedKeys(call)) {
    if (!writes.empty() && writes.back().key == key) continue;  // it counts once
    writes.push_back({.kind = kvs::WriteKind::kDelete, .key = key});
  }
  const bool done = co_await WriteKeys(call, writes);
  if (!done) co_return;
  int64_t deleted = 0;
  for (const kvs::WriteRequest& write : writes) deleted += write.status.ok() ? 1 : 0;
  call.reply.Integer(deleted);
}

// A key counts as often as it is named, but is read once.
Task<void> Exists(Call& call) {
  const std::vector<std::string_view> keys = SortedKeys(call);
  std::vector<std::string_view> distinct = keys;
  distinct.erase(std::unique(distinct.begin(), distinct.end()), distinct.end());
  int64_t found = 0;
  auto next = distinct.cbegin();
  const std::function<void(const std::string*)> take = [&](const std::string* value) {
    const auto [first, last] = std::equal_range(keys.begin(), keys.end(), *next++);
    if (value != nullptr) found += last - first;
  };
  const bool done = co_await ReadKeys(call, distinct, take);
  if (done) call.reply.Integer(found);
}

Task<void> Type(Call& call) {
  std::optional<std::string> value;
  const bool done = co_await ReadKey(call, call.argument(1), &value);
  if (done) call.reply.Simple(value ? "string" : "none");
}

Task<void> Keys(Call& call) {
  const std::string_view pattern = call.argument(1);
  if (pattern.size() > kMaxPatternBytes) co_return call.reply.Error(kPatternTooLong);
  size_t count = 0;
  bool fits = true;
  std::string elements;
  const std::function<bool(std::vector<ScanRecord>&)> take = [&](std::vector<ScanRecord>& page) {
    Reply reply(elements, call.session.protocol);
    for (const ScanRecord& record : page) {
      if (!GlobMatches(pattern, record.key)) continue;
      reply.Bulk(record.key);
      ++count;
    }
    fits = CheckReplyBytes(call, elements.size());
    return fits;
  };
  const bool done = co_await ScanKeys(call, take);
  if (!done || !fits) co_return;
  call.reply.Array(count);
  call.reply.Raw(elements);
}

struct ScanArguments {
  uint64_t cursor = 0;
  int64_t count = 10;
  std::string_view pattern = "*";
  bool strings = true;  // whether keys of this type are wanted
};

// Returns the error; empty: there is none.
std::string_view ParseScan(std::span<const std::string_view> words, ScanArguments* arguments) {
  const std::string_view cursor = words.front();
  const auto [end, error] = std::from_chars(cursor.data(), cursor.data() + cursor.size(), arguments->cursor);
  if (error != std::errc() || end != cursor.data() + cursor.size()) return "ERR invalid cursor";
  for (words = words.subspan(1); words.size() >= 2; words = words.subspan(2)) {
    const std::string_view value = words[1];
    if (SameWord(words[0], "COUNT")) {
      const std::optional<int64_t> count = ParseInteger(value);
      if (!count) return kNotAnInteger;
      if (*count < 1) return kSyntaxError;
      arguments->count = *count;
    } else if (SameWord(words[0], "MATCH")) {
      if (value.size() > kMaxPatternBytes) return kPatternTooLong;
      arguments->pattern = value;
    } else if (SameWord(words[0], "TYPE")) {
      arguments->strings = SameWord(value, "string");
    } else {
      return kSyntaxError;
    }
  }
  return words.empty() ? std::string_view() : kSyntaxError;
}

Task<void> Scan(Call& call) {
  ScanArguments arguments;
  const std::string_view error = ParseScan(call.arguments.subspan(1), &arguments);
  if (!error.empty()) co_return call.reply.Error(error);
  // COUNT is a hint. Each call of the store reads a whole subtable, so a small one would waste nearly all of it.
  constexpr int64_t kLeast = 1'000, kMost = std::numeric_limits<uint32_t>::max();
  const auto count = static_cast<uint32_t>(std::clamp(arguments.count, kLeast, kMost));
  std::vector<ScanRecord> records;
  const Status status = co_await call.client.ScanAsync(&arguments.cursor, &records, {.count = count, .values = false});
  if (!status.ok()) co_return Fail(call, status);
  std::erase_if(records, [&](const ScanRecord& record) {
    return !arguments.strings || !GlobMatches(arguments.pattern, record.key);
  });
  call.reply.Array(2);
  call.reply.Bulk(std::to_string(arguments.cursor));
  call.reply.Array(records.size());
  for (const ScanRecord& record : records) call.reply.Bulk(record.key);
}

Task<void> Dbsize(Call& call) {
  int64_t count = 0;
  const std::function<bool(std::vector<ScanRecord>&)> take = [&](std::vector<ScanRecord>& page) {
    count += static_cast<int64_t>(page.size());
    return true;
  };
  const bool done = co_await ScanKeys(call, take);
  if (done) call.reply.Integer(count);
}

std::mt19937_64& Random() {
  static thread_local std::mt19937_64 random{std::random_device{}()};
  return random;
}

// Any number is a cursor. One of the keys after a random one is nearly a random key: the first alone would not be, for
// the distances between keys differ.
Task<void> Randomkey(Call& call) {
  constexpr size_t kCandidates = 64;
  std::vector<std::string> keys;
  std::vector<ScanRecord> records;
  uint64_t cursor = Random()();
  // Twice to the end at most: the second time from the beginning.
  for (int ends = 0; ends < 2 && keys.size() < kCandidates; ends += cursor == 0 ? 1 : 0) {
    const Status status = co_await call.client.ScanAsync(&cursor, &records, {.count = kCandidates, .values = false});
    if (!status.ok()) co_return Fail(call, status);
    for (ScanRecord& record : records) keys.push_back(std::move(record.key));
  }
  if (keys.empty()) co_return call.reply.Null();
  call.reply.Bulk(keys[Random()() % keys.size()]);
}

Task<void> Flush(Call& call) {
  const bool plain = call.arguments.size() == 1;
  const bool known = plain || (call.arguments.size() == 2 &&
                               (SameWord(call.argument(1), "ASYNC") || SameWord(call.argument(1), "SYNC")));
  if (!known) co_return call.reply.Error(kSyntaxError);
  uint64_t cursor = 0;
  std::vector<ScanRecord> records;
  std::vector<kvs::WriteRequest> writes;
  bool some_done = false;
  do {
    const Status status = co_await call.client.ScanAsync(&cursor, &records, {.values = false});
    if (!status.ok()) co_return Fail(call, status, some_done ? kOthersChanged : "");
    writes.clear();
    for (const ScanRecord& record : records) writes.push_back({.kind = kvs::WriteKind::kDelete, .key = record.key});
    const bool done = co_await WriteKeys(call, writes, some_done);
    if (!done) co_return;
    some_done |= !writes.empty();
  } while (cursor != 0);
  call.reply.Ok();
}

constexpr Command kKeyCommands[] = {
    {"del", -2, Command::kWrite, 1, -1, 1, Del},
    {"unlink", -2, Command::kWrite, 1, -1, 1, Del},
    {"exists", -2, Command::kRead, 1, -1, 1, Exists},
    {"touch", -2, Command::kRead, 1, -1, 1, Exists},
    {"type", 2, Command::kRead | Command::kFast, 1, 1, 1, Type},
    {"keys", 2, Command::kRead, 0, 0, 0, Keys},
    {"scan", -2, Command::kRead, 0, 0, 0, Scan},
    {"dbsize", 1, Command::kRead, 0, 0, 0, Dbsize},
    {"randomkey", 1, Command::kRead, 0, 0, 0, Randomkey},
    {"flushdb", -1, Command::kWrite, 0, 0, 0, Flush},
    {"flushall", -1, Command::kWrite, 0, 0, 0, Flush},
};

}  // namespace

std::span<const Command> KeyCommands() { return kKeyCommands; }

}  // namespace redis
