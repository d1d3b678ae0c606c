#include "computenode/redis/glob.h"

#include <algorithm>
#include <cstddef>

namespace redis {
namespace {

// One element of a pattern that stands for one byte.
struct Element {
  size_t length;  // in the pattern
  bool matches;
};

// The class that begins at the front of `pattern`, after "[".
Element MatchClass(std::string_view pattern, unsigned char byte) {
  size_t at = 1;
  const bool inverted = at < pattern.size() && pattern[at] == '^';
  if (inverted) ++at;
  bool found = false;
  const auto byte_at = [&](size_t index) { return static_cast<unsigned char>(pattern[index]); };
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
    case '[': return MatchClass(pattern, static_cast<unsigned char>(byte));
    case '\\':
      if (pattern.size() >= 2) return {2, pattern[1] == byte};
      [[fallthrough]];
    default: return {1, pattern.front() == byte};
  }
}

}  // namespace

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
