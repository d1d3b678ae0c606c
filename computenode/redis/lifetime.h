// Lifetimes: how a command says from when on a key is absent.
//
// Thread safety: functions without state.
#ifndef COMPUTENODE_REDIS_LIFETIME_H_
#define COMPUTENODE_REDIS_LIFETIME_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "computenode/redis/numbers.h"

namespace redis {

// What a number means: seconds or milliseconds, from now on or since 1970.
struct TimeForm {
  bool seconds = false;
  bool absolute = false;
  friend bool operator==(const TimeForm&, const TimeForm&) = default;
};

// In milliseconds since 1970; nothing: it overflows.
inline std::optional<int64_t> Instant(int64_t amount, TimeForm form, int64_t now_ms) {
  std::optional<int64_t> instant = form.seconds ? Multiply(amount, 1'000) : amount;
  if (instant && !form.absolute) instant = Add(*instant, now_ms);
  return instant;
}

inline std::string InvalidExpireTime(std::string_view command) {
  return "ERR invalid expire time in '" + std::string(command) + "' command";
}

}  // namespace redis

#endif  // COMPUTENODE_REDIS_LIFETIME_H_
