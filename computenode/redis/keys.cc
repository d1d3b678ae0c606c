// Single keys, whatever their values: deleting them, asking whether they are there.
#include <string>
#include <vector>

#include "computenode/redis/command.h"
#include "computenode/redis/on_store.h"

namespace redis {
namespace {

using kvs::Status;
using kvs::StatusCode;
using kvs::Task;

Task<void> Del(Call& call) {
  std::vector<kvs::WriteRequest> writes;
  for (const std::string_view key : call.arguments.subspan(1)) {
    writes.push_back({.kind = kvs::WriteKind::kDelete, .key = key});
  }
  const bool done = co_await WriteKeys(call, writes);
  if (!done) co_return;
  int64_t deleted = 0;
  for (const kvs::WriteRequest& write : writes) deleted += write.status.ok() ? 1 : 0;
  call.reply.Integer(deleted);
}

Task<void> Exists(Call& call) {
  int64_t found = 0;
  const std::function<void(const std::string*)> take = [&](const std::string* value) {
    found += value != nullptr ? 1 : 0;
  };
  const bool done = co_await ReadKeys(call, call.arguments.subspan(1), take);
  if (done) call.reply.Integer(found);
}

Task<void> Type(Call& call) {
  std::string value;
  const Status status = co_await call.client.GetAsync(call.argument(1), &value);
  if (!status.ok() && !(status == StatusCode::kNotFound)) co_return Fail(call, status);
  call.reply.Simple(status.ok() ? "string" : "none");
}

constexpr Command kCommands[] = {
    {"del", -2, Command::kWrite, 1, -1, 1, Del},
    {"unlink", -2, Command::kWrite, 1, -1, 1, Del},
    {"exists", -2, Command::kRead, 1, -1, 1, Exists},
    {"touch", -2, Command::kRead, 1, -1, 1, Exists},
    {"type", 2, Command::kRead | Command::kFast, 1, 1, 1, Type},
};

}  // namespace

std::span<const Command> KeyCommands() { return kCommands; }

}  // namespace redis
