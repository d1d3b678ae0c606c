// What commands do on the store: each writes the error that a failure of the store becomes.
//
// Thread safety: as a Call.
#ifndef COMPUTENODE_REDIS_ON_STORE_H_
#define COMPUTENODE_REDIS_ON_STORE_H_

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "computenode/redis/command.h"

namespace redis {

// Replies what `status`, a failure, means, in place of what the reply has so far. If a write may or may not have
// happened, the conversation is over: an error alone would say that it has not. `note` ends the error.
void Fail(Call& call, const kvs::Status& status, std::string_view note = {});

// These return false if they have failed, and written the error.
kvs::Task<bool> ModifyKey(Call& call, std::string_view key, const kvs::ModifyFunction& function);
// Sets *value to the key's value, or to nothing where it is absent.
kvs::Task<bool> ReadKey(Call& call, std::string_view key, std::optional<std::string>* value);
// Calls `take` for each key, in order, with its value; null: it is absent.
kvs::Task<bool> ReadKeys(Call& call, std::span<const std::string_view> keys,
                         const std::function<void(const std::string* value)>& take);
// Writes them all. kNotFound and kExists are no failures here. `some_done`: the command has changed other keys before.
kvs::Task<bool> WriteKeys(Call& call, std::span<kvs::WriteRequest> writes, bool some_done = false);
inline constexpr std::string_view kOthersChanged = " Other keys of the command have been changed.";
// Calls `take` for keys of the whole store, a page at a time, until it returns false. The values are empty.
kvs::Task<bool> ScanKeys(Call& call, const std::function<bool(std::vector<kvs::ScanRecord>& page)>& take);

// Returns when what the key has expires; 0: never, or the key is absent.
inline uint64_t ExpiryOf(const std::optional<kvs::Record>& record) { return record ? record->expires_at_ms : 0; }
// Returns a copy of the key's value.
inline std::optional<std::string> ValueOf(const std::optional<kvs::Record>& record) {
  return record ? std::optional<std::string>(record->value) : std::nullopt;
}

// Returns whether the reply is still short enough. If not, an error takes its place.
bool CheckReplyBytes(Call& call, size_t bytes);

}  // namespace redis

#endif  // COMPUTENODE_REDIS_ON_STORE_H_
