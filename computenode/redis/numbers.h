// Numbers as Redis reads and writes them.
//
// Thread safety: functions without state.
#ifndef COMPUTENODE_REDIS_NUMBERS_H_
#define COMPUTENODE_REDIS_NUMBERS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace redis {

// Parses a decimal number in its one spelling: no blanks, no "+", no leading zeros, no "-0".
std::optional<int64_t> ParseInteger(std::string_view text);
// Parses what strtold takes whole, infinities included. Nothing: it begins with a blank, is no number, or is too large
// or too small for a long double.
std::optional<long double> ParseFloat(std::string_view text);
// Writes 17 digits after the point, and drops zeros at the end.
std::string FormatFloat(long double value);

// a + b, or nothing if that overflows.
inline std::optional<int64_t> Add(int64_t a, int64_t b) {
  int64_t sum = 0;
  if (__builtin_add_overflow(a, b, &sum)) return std::nullopt;
  return sum;
}
inline std::optional<int64_t> Multiply(int64_t a, int64_t b) {
  int64_t product = 0;
  if (__builtin_mul_overflow(a, b, &product)) return std::nullopt;
  return product;
}

}  // namespace redis

#endif  // COMPUTENODE_REDIS_NUMBERS_H_
