// What the words of a command mean: names, numbers, times, patterns.
//
// Thread safety: functions without state.
#ifndef COMPUTENODE_REDIS_WORDS_H_
#define COMPUTENODE_REDIS_WORDS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace redis {

// ---- names

// ASCII letters are equal to their capitals.
bool SameWord(std::string_view a, std::string_view b);
std::string LowerCase(std::string_view text);
// What stands before a byte 0: as much as redis-server repeats in an error.
inline std::string_view Printable(std::string_view text) { return text.substr(0, text.find('\0')); }

// ---- numbers

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

// ---- times

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

// ---- patterns

// Returns whether the whole of `text` matches. "*": any bytes; "?": one byte; "[ab-d]", "[^ab]": one byte of a class;
// "\x": x itself, in a class too. A class without "]" ends with the pattern. Takes time in proportion to the product of
// both lengths at most.
bool GlobMatches(std::string_view pattern, std::string_view text);

}  // namespace redis

#endif  // COMPUTENODE_REDIS_WORDS_H_
