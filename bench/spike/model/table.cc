#include "bench/spike/model/table.h"

#include <algorithm>
#include <cstdarg>
#include <cstdio>

namespace spike_model {

std::string Format(const char* format, ...) {
  char text[256];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  return text;
}

std::string Ns(double ns) {
  if (ns < 0) return "never";
  if (ns < 1e6) return Format("%.1f us", ns / 1e3);
  if (ns < 1e9) return Format("%.2f ms", ns / 1e6);
  return Format("%.2f s", ns / 1e9);
}

std::string Bytes(double bytes) {
  if (bytes < 1 << 20) return Format("%.1f KiB", bytes / 1024);
  if (bytes < 1 << 30) return Format("%.1f MiB", bytes / (1 << 20));
  return Format("%.2f GiB", bytes / (1 << 30));
}

void Table(const std::vector<std::vector<std::string>>& rows) {
  std::vector<size_t> widths(rows[0].size());
  for (const auto& row : rows)
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  for (size_t r = 0; r < rows.size(); ++r) {
    for (size_t i = 0; i < rows[r].size(); ++i) {
      const char* align = i == 0 ? "| %-*s " : "| %*s ";
      std::printf(align, static_cast<int>(widths[i]), rows[r][i].c_str());
    }
    std::printf("|\n");
    if (r > 0) continue;
    for (const size_t width : widths) std::printf("|%s", std::string(width + 2, '-').c_str());
    std::printf("|\n");
  }
  std::printf("\n");
  std::fflush(stdout);
}

}  // namespace spike_model
