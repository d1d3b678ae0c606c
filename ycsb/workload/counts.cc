#include "ycsb/workload/counts.h"

#include <cmath>
#include <nlohmann/json.hpp>

namespace ycsb {

using nlohmann::ordered_json;

double Ratio(uint64_t count, uint64_t of) {
  return of == 0 ? 0 : std::round(1'000 * static_cast<double>(count) / static_cast<double>(of)) / 1'000;
}

ordered_json SoftwareDcJson(const krcore::SoftwareDcStats& stats) {
  return {{"sent", stats.sent},
          {"sent_again", stats.sent_again},
          {"timeouts", stats.timeouts},
          {"sessions", stats.sessions},
          {"sessions_gone", stats.sessions_gone},
          {"served", stats.served},
          {"served_again", stats.served_again},
          {"early", stats.early},
          {"expired", stats.expired},
          {"busy", stats.busy},
          {"atomic_repairs", stats.atomic_repairs},
          {"agent_cpu_us", stats.agent_cpu_ns / 1000}};
}

ordered_json PartUs(int64_t from_ns, int64_t to_ns) {
  if (from_ns == 0 || to_ns == 0) return nullptr;
  return static_cast<double>(to_ns - from_ns) / 1000;
}

}  // namespace ycsb
