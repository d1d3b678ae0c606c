#include "cli/nearest.h"

#include <algorithm>
#include <cstddef>
#include <vector>

namespace cli {
namespace {

size_t EditDistance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t change = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, change});
    }
  }
  return row[b.size()];
}

}  // namespace

std::string_view Nearest(std::string_view name, std::span<const std::string_view> known) {
  std::string_view best;
  size_t best_distance = 3;
  for (const std::string_view candidate : known) {
    const size_t distance = name.size() >= 3 && candidate.starts_with(name) ? 1 : EditDistance(name, candidate);
    if (distance < best_distance && distance < name.size()) {
      best_distance = distance;
      best = candidate;
    }
  }
  return best;
}

}  // namespace cli
