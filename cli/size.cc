#include "cli/size.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cstdio>
#include <utility>

namespace cli {
namespace {

using krcore::Result;
using krcore::Status;
using krcore::StatusCode;

constexpr std::array<std::pair<char, int>, 4> kUnits = {{{'T', 40}, {'G', 30}, {'M', 20}, {'K', 10}}};

Status NotASize(const char* why) {
  return {StatusCode::kInvalidArgument,
          std::string(why) + "; give a size in bytes, or with K, M, G or T after it, such as 512M or 1G"};
}

// Returns the shift that a unit stands for, or -1.
int ShiftOf(std::string_view unit) {
  if (unit.empty() || unit == "B" || unit == "b") return 0;
  const char letter = static_cast<char>(std::toupper(static_cast<unsigned char>(unit[0])));
  std::string rest(unit.substr(1));
  std::transform(rest.begin(), rest.end(), rest.begin(), [](unsigned char c) { return std::tolower(c); });
  if (!rest.empty() && rest != "b" && rest != "ib") return -1;
  for (const auto& [name, shift] : kUnits) {
    if (letter == name) return shift;
  }
  return -1;
}

}  // namespace

Result<uint64_t> ParseSize(std::string_view text) {
  if (text.empty()) return NotASize("the size is empty");
  if (text[0] == '-') return NotASize("a size cannot be negative");
  uint64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error == std::errc::result_out_of_range) return NotASize("the size is too large");
  if (error != std::errc()) return NotASize("not a size");
  const std::string_view unit(end, static_cast<size_t>(text.data() + text.size() - end));
  if (!unit.empty() && (unit[0] == '.' || unit[0] == ',')) return NotASize("not a whole number");
  const int shift = ShiftOf(unit);
  if (shift < 0) return NotASize(("unknown unit \"" + std::string(unit) + "\"").c_str());
  if (shift > 0 && number >> (64 - shift) != 0) return NotASize("the size is too large");
  return number << shift;
}

Result<uint64_t> ParseSizeFlag(std::string_view name, std::string_view text) {
  Result<uint64_t> size = ParseSize(text);
  if (size.ok()) return size;
  return Status(size.status().code(),
                "--" + std::string(name) + "=" + std::string(text) + ": " + std::string(size.status().message()));
}

std::string FormatSize(uint64_t bytes) {
  for (const auto& [name, shift] : kUnits) {
    const uint64_t unit = uint64_t{1} << shift;
    if (bytes < unit) continue;
    char text[32];
    if (bytes % unit == 0) {
      std::snprintf(text, sizeof(text), "%llu%c", static_cast<unsigned long long>(bytes / unit), name);
    } else {
      std::snprintf(text, sizeof(text), "%.1f%c", static_cast<double>(bytes) / static_cast<double>(unit), name);
    }
    return text;
  }
  return std::to_string(bytes) + " bytes";
}

}  // namespace cli
