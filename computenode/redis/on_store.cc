#include "computenode/redis/on_store.h"

#include <algorithm>
#include <array>

namespace redis {
namespace {

using kvs::Status;
using kvs::StatusCode;
using kvs::Task;

// So many keys are read together: their values, of up to 16 MiB each, are in memory at the same time. More are read
// only where the values before have been small.
constexpr size_t kMostKeys = 32, kLeastKeys = 4, kSmallBytes = size_t{1} << 20;

bool Writes(const Call& call) { return (call.command.flags & Command::kWrite) != 0; }
bool IsUnknown(const Call& call, const Status& status) {
  return Writes(call) && (status == StatusCode::kUnknown || status == StatusCode::kTimeout);
}

}  // namespace

void Fail(Call& call, const Status& status, std::string_view note) {
  call.reply.TakeBack();
  if (IsUnknown(call, status)) {
    call.session.over = true;
    return call.reply.Error("ERR the outcome is unknown: the write may or may not have happened (" + status.ToString() +
                            ")");
  }
  if (status == StatusCode::kOutOfMemory && Writes(call)) {
    return call.reply.Error("OOM command not allowed when used memory > 'maxmemory'." + std::string(note));
  }
  call.reply.Error("ERR " + status.ToString() + std::string(note));
}

Task<bool> ModifyKey(Call& call, std::string_view key, const kvs::ModifyFunction& function) {
  const Status status = co_await call.client.ModifyAsync(key, &function);
  if (!status.ok()) Fail(call, status);
  co_return status.ok();
}

Task<bool> ReadKey(Call& call, std::string_view key, std::optional<std::string>* value) {
  value->emplace();
  const Status status = co_await call.client.GetAsync(key, &**value);
  if (!status.ok()) value->reset();
  if (status.ok() || status == StatusCode::kNotFound) co_return true;
  Fail(call, status);
  co_return false;
}

Task<bool> ReadKeys(Call& call, std::span<const std::string_view> keys,
                    const std::function<void(const std::string* value)>& take) {
  std::array<std::string, kMostKeys> values;
  std::array<Status, kMostKeys> statuses;
  size_t at_once = kLeastKeys;
  while (!keys.empty()) {
    const size_t count = std::min(keys.size(), at_once);
    co_await call.client.MultiGetAsync(keys.first(count), std::span(values).first(count),
                                       std::span(statuses).first(count));
    size_t bytes = 0;
    for (size_t i = 0; i < count; ++i) {
      bytes += statuses[i].ok() ? values[i].size() : 0;
      if (!statuses[i].ok() && !(statuses[i] == StatusCode::kNotFound)) {
        Fail(call, statuses[i]);
        co_return false;
      }
      take(statuses[i].ok() ? &values[i] : nullptr);
      if (!CheckReplyBytes(call, call.reply.bytes())) co_return false;
    }
    keys = keys.subspan(count);
    at_once = bytes < kSmallBytes ? std::min(2 * at_once, kMostKeys) : kLeastKeys;
  }
  co_return true;
}

Task<bool> WriteKeys(Call& call, std::span<kvs::WriteRequest> writes, bool some_done) {
  co_await call.client.MultiWriteAsync(writes);
  const Status* failure = nullptr;
  for (const kvs::WriteRequest& write : writes) {
    const Status& status = write.status;
    some_done |= status.ok();
    if (status.ok() || status == StatusCode::kNotFound || status == StatusCode::kExists) continue;
    if (failure == nullptr || IsUnknown(call, status)) failure = &status;
  }
  if (failure != nullptr) Fail(call, *failure, some_done ? kOthersChanged : "");
  co_return failure == nullptr;
}

Task<bool> ScanKeys(Call& call, const std::function<bool(std::vector<kvs::ScanRecord>& page)>& take) {
  uint64_t cursor = 0;
  std::vector<kvs::ScanRecord> page;
  do {
    const Status status = co_await call.client.ScanAsync(&cursor, &page, {.values = false});
    if (!status.ok()) {
      Fail(call, status);
      co_return false;
    }
    if (!take(page)) break;
  } while (cursor != 0);
  co_return true;
}

bool CheckReplyBytes(Call& call, size_t bytes) {
  if (bytes <= call.settings.reply_bytes) return true;
  call.reply.TakeBack();
  call.reply.Error("ERR the reply would be longer than " + std::to_string(call.settings.reply_bytes) + " bytes");
  return false;
}

}  // namespace redis
