#include "computenode/redis/numbers.h"

#include <cctype>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <system_error>

namespace redis {
namespace {

// A float may be spelled with so many bytes, and is never written with more.
constexpr size_t kMaxFloatBytes = 5 * 1024;

}  // namespace

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

}  // namespace redis
