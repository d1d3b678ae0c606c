// A comparison as tables in Markdown, and as JSON (for bench/peers/plot.py).
#ifndef BENCH_PEERS_REPORT_H_
#define BENCH_PEERS_REPORT_H_

#include <string>
#include <vector>

#include "bench/peers/comparison.h"
#include "bench/peers/goals.h"

namespace peers {

// A line for each load, a column for each peer: million operations a second, and SurgeKV's over it. Then the latencies
// of timed rows, and what a record takes in memory.
std::string ComparisonTables(const Comparison& comparison, const std::vector<std::string>& peers);

// Writes {"shape", "rows", "overhead_bytes", "goals", "problems"}.
krcore::Status WriteJson(const std::string& path, const Comparison& comparison, const std::vector<std::string>& peers,
                         const std::vector<GoalResult>& goals);

}  // namespace peers

#endif  // BENCH_PEERS_REPORT_H_
