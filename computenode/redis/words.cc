#include "computenode/redis/words.h"

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <system_error>

namespace redis {
namespace {

char Lower(char letter) { return 'A' <= letter && letter <= 'Z' ? static_cast<char>(letter - 'A' + 'a') : letter; }

// A float may be spelled with so many bytes, and is never written with more.
constexpr size_t kMaxFloatBytes = 5 * 1024;

// One element of a pattern that stands for one byte.
struct Element {
  size_t length;  // in the pattern
  bool matches;
};

// The class that begins at the front of `pattern`, after "[".
// Bytes are ordered as numbers from -128 to 127, as in redis-server.
Element MatchClass(std::string_view pattern, signed char byte) {
  size_t at = 1;
  const bool inverted = at < pattern.size() && pattern[at] == '^';
  if (inverted) ++at;
  bool found = false;
  const auto byte_at = [&](size_t index) { return static_cast<signed char>(pattern[index]); };
  for (; at < pattern.size() && pattern[at] != ']'; ++at) {
    const size_t left = pattern.size() - at;
    if (pattern[at] == '\\' && left >= 2) {
      ++at;
      found |= byte_at(at) == byte;
    } else if (left >= 3 && pattern[at + 1] == '-') {
      const auto [low, high] = std::minmax({byte_at(at), byte_at(at + 2)});
      found |= low <= byte && byte <= high;
      at += 2;
    } else {
      found |= byte_at(at) == byte;
    }
  }
  return {std::min(at + 1, pattern.size()), found != inverted};
}

Element MatchElement(std::string_view pattern, char byte) {
  switch (pattern.front()) {
    case '?': return {1, true};
    case '[': return MatchClass(pattern, static_cast<signed char>(byte));
    case '\\':
      if (pattern.size() >= 2) return {2, pattern[1] == byte};
      [[fallthrough]];
    default: return {1, pattern.front() == byte};
  }
}

}  // namespace

bool SameWord(std::string_view a, std::string_view b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](char x, char y) { return Lower(x) == Lower(y); });
}

std::string LowerCase(std::string_view text) {
  std::string lower(text);
  std::transform(lower.begin(), lower.end(), lower.begin(), Lower);
  return lower;
}

std::optional<int64_t> ParseInteger(std::string_view text) {
  const std::string_view digits = text.starts_with('-') ? text.substr(1) : text;
  if (digits.empty() || (digits.front() == '0' && text.size() > 1)) return std::nullopt;
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

std::optional<long double> ParseFloat(std::string_view text) {
  if (text.empty() || text.size() >= kMaxFloatBytes) return std::nullopt;
  if (std::isspace(static_cast<unsigned char>(text.front())) != 0) return std::nullopt;
  const std::string terminated(text);
  char* end = nullptr;
  errno = 0;
  const long double value = std::strtold(terminated.c_str(), &end);
  if (end != terminated.c_str() + terminated.size() || std::isnan(value)) return std::nullopt;
  if (errno == ERANGE && (std::isinf(value) || value == 0)) return std::nullopt;
  return value;
}

std::string FormatFloat(long double value) {
  char buffer[kMaxFloatBytes];
  const int length = std::snprintf(buffer, sizeof(buffer), "%.17Lf", value);
  std::string text(buffer, static_cast<size_t>(length));
  text.erase(text.find_last_not_of('0') + 1);
  if (text.ends_with('.')) text.pop_back();
  return text == "-0" ? "0" : text;
}

bool GlobMatches(std::string_view pattern, std::string_view text) {
  size_t at = 0;
  // After the last star: the pattern behind it, and where in `text` that was tried last. An earlier star never has to
  // take more than it has.
  bool starred = false;
  std::string_view after_star;
  size_t tried_at = 0;
  while (true) {
    if (pattern.starts_with('*')) {
      pattern.remove_prefix(1);
      starred = true;
      after_star = pattern;
      tried_at = at;
      continue;
    }
    if (at == text.size()) return pattern.empty();
    const Element element = pattern.empty() ? Element{0, false} : MatchElement(pattern, text[at]);
    if (element.matches) {
      pattern.remove_prefix(element.length);
      ++at;
      continue;
    }
    if (!starred) return false;
    pattern = after_star;
    at = ++tried_at;
  }
}

}  // namespace redis
