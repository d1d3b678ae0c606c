// Values as strings of bytes: reading and writing one or several, and parts of one.
#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "computenode/redis/command.h"
#include "computenode/redis/on_store.h"

namespace redis {
namespace {

using kvs::Modification;
using kvs::Record;
using kvs::Status;
using kvs::StatusCode;
using kvs::Task;

void ReplyValue(Call& call, const std::optional<std::string>& value) {
  if (value) return call.reply.Bulk(*value);
  call.reply.Null();
}

Task<void> Get(Call& call) {
  std::optional<std::string> value;
  const bool done = co_await ReadKey(call, call.argument(1), &value);
  if (done) ReplyValue(call, value);
}

Task<void> Mget(Call& call) {
  const std::span<const std::string_view> keys = call.arguments.subspan(1);
  call.reply.Array(keys.size());
  const std::function<void(const std::string*)> take = [&](const std::string* value) {
    if (value != nullptr) return call.reply.Bulk(*value);
    call.reply.Null();
  };
  co_await ReadKeys(call, keys, take);
}

// The writes have no order, so only the last one of each key is made.
std::vector<kvs::WriteRequest> LastPuts(std::span<const std::string_view> keys_and_values) {
  std::vector<kvs::WriteRequest> writes;
  for (size_t i = keys_and_values.size(); i >= 2; i -= 2) {
    writes.push_back({.key = keys_and_values[i - 2], .value = keys_and_values[i - 1]});
  }
  std::ranges::stable_sort(writes, {}, &kvs::WriteRequest::key);
  const auto same_key = [](const kvs::WriteRequest& a, const kvs::WriteRequest& b) { return a.key == b.key; };
  writes.erase(std::unique(writes.begin(), writes.end(), same_key), writes.end());
  return writes;
}

Task<void> Mset(Call& call) {
  if (call.arguments.size() % 2 == 0) co_return call.reply.Error(WrongNumberOfArguments(call.command.name));
  std::vector<kvs::WriteRequest> writes = LastPuts(call.arguments.subspan(1));
  const bool done = co_await WriteKeys(call, writes);
  if (done) call.reply.Ok();
}

Task<void> InsertOne(Call& call) {
  const Status status = co_await call.client.InsertAsync(call.argument(1), call.argument(2));
  if (status.ok() || status == StatusCode::kExists) co_return call.reply.Integer(status.ok() ? 1 : 0);
  Fail(call, status);
}

Task<void> Msetnx(Call& call) {
  if (call.arguments.size() % 2 == 0) co_return call.reply.Error(WrongNumberOfArguments(call.command.name));
  if (call.arguments.size() > 3) {
    co_return call.reply.Error("ERR MSETNX of several keys is not supported: it could not be atomic");
  }
  co_await InsertOne(call);
}

Task<void> Strlen(Call& call) {
  std::optional<std::string> value;
  const bool done = co_await ReadKey(call, call.argument(1), &value);
  if (done) call.reply.Integer(static_cast<int64_t>(value.value_or("").size()));
}

Task<void> Append(Call& call) {
  const std::string_view more = call.argument(2);
  size_t length = 0;
  const kvs::ModifyFunction decide = [&](const std::optional<Record>& record) {
    const std::string_view old = record ? record->value : std::string_view();
    length = old.size() + more.size();
    if (length > kvs::kMaxValueBytes || (record && more.empty())) return Modification::Keep();
    std::string value;
    value.reserve(length);
    value.append(old).append(more);
    return Modification::Set(std::move(value), ExpiryOf(record));
  };
  const bool done = co_await ModifyKey(call, call.argument(1), decide);
  if (!done) co_return;
  if (length > kvs::kMaxValueBytes) co_return call.reply.Error(kTooLong);
  call.reply.Integer(static_cast<int64_t>(length));
}

// The bytes from `first` to `last`; negative numbers count from the end.
std::string_view Part(std::string_view value, int64_t first, int64_t last) {
  const auto length = static_cast<int64_t>(value.size());
  if (first < 0 && last < 0 && first > last) return {};
  if (first < 0) first = std::max<int64_t>(first + length, 0);
  if (last < 0) last = std::max<int64_t>(last + length, 0);
  last = std::min(last, length - 1);
  if (first > last) return {};
  return value.substr(static_cast<size_t>(first), static_cast<size_t>(last - first + 1));
}

Task<void> Getrange(Call& call) {
  const std::optional<int64_t> first = ParseInteger(call.argument(2));
  const std::optional<int64_t> last = ParseInteger(call.argument(3));
  if (!first || !last) co_return call.reply.Error(kNotAnInteger);
  std::optional<std::string> value;
  const bool done = co_await ReadKey(call, call.argument(1), &value);
  if (done) call.reply.Bulk(Part(value ? *value : std::string_view(), *first, *last));
}

Task<void> Setrange(Call& call) {
  const std::optional<int64_t> offset = ParseInteger(call.argument(2));
  if (!offset) co_return call.reply.Error(kNotAnInteger);
  if (*offset < 0) co_return call.reply.Error("ERR offset is out of range");
  const std::string_view part = call.argument(3);
  const std::optional<int64_t> end = Add(*offset, static_cast<int64_t>(part.size()));
  if (!part.empty() && (!end || *end > static_cast<int64_t>(kvs::kMaxValueBytes))) {
    co_return call.reply.Error(kTooLong);
  }
  size_t length = 0;
  const kvs::ModifyFunction decide = [&](const std::optional<Record>& record) {
    length = record ? record->value.size() : 0;
    if (part.empty()) return Modification::Keep();
    std::string value(record ? record->value : std::string_view());
    value.resize(std::max(value.size(), static_cast<size_t>(*end)));
    value.replace(static_cast<size_t>(*offset), part.size(), part);
    length = value.size();
    return Modification::Set(std::move(value), ExpiryOf(record));
  };
  const bool done = co_await ModifyKey(call, call.argument(1), decide);
  if (done) call.reply.Integer(static_cast<int64_t>(length));
}

// Replies what the key had, and makes `wanted` of it.
Task<void> Exchange(Call& call, const Modification& wanted) {
  std::optional<std::string> old;
  const kvs::ModifyFunction decide = [&](const std::optional<Record>& record) {
    old = ValueOf(record);
    return wanted;
  };
  const bool done = co_await ModifyKey(call, call.argument(1), decide);
  if (done) ReplyValue(call, old);
}

Task<void> Getdel(Call& call) {
  const Modification wanted = Modification::Delete();
  co_await Exchange(call, wanted);
}

Task<void> Getset(Call& call) {
  const Modification wanted = Modification::Set(std::string(call.argument(2)));
  co_await Exchange(call, wanted);
}

constexpr Command kStringCommands[] = {
    {"get", 2, Command::kRead | Command::kFast, 1, 1, 1, Get},
    {"mget", -2, Command::kRead, 1, -1, 1, Mget},
    {"mset", -3, Command::kWrite, 1, -1, 2, Mset},
    {"msetnx", -3, Command::kWrite, 1, -1, 2, Msetnx},
    {"setnx", 3, Command::kWrite | Command::kFast, 1, 1, 1, InsertOne},
    {"strlen", 2, Command::kRead | Command::kFast, 1, 1, 1, Strlen},
    {"append", 3, Command::kWrite | Command::kFast, 1, 1, 1, Append},
    {"getrange", 4, Command::kRead, 1, 1, 1, Getrange},
    {"substr", 4, Command::kRead, 1, 1, 1, Getrange},
    {"setrange", 4, Command::kWrite, 1, 1, 1, Setrange},
    {"getdel", 2, Command::kWrite | Command::kFast, 1, 1, 1, Getdel},
    {"getset", 3, Command::kWrite | Command::kFast, 1, 1, 1, Getset},
};

}  // namespace

std::span<const Command> StringCommands() { return kStringCommands; }

}  // namespace redis
