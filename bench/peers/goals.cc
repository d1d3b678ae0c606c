#include "bench/peers/goals.h"

#include <algorithm>
#include <utility>

#include "bench/peers/verb_latency.h"

namespace peers {
namespace {

constexpr uint32_t kInFlight = 16;
constexpr uint32_t kPipelined = 32;

struct Goal {
  const char* measure;
  bool at_least;
  double goal;
  std::vector<Ratio> ratios;  // the worst one counts
};

Row Get(const std::string& peer, uint32_t in_flight, uint32_t workers = 1) {
  return {peer, {.mix = Mix::kC, .workers = workers, .in_flight = in_flight}};
}
Row TimedGet(const std::string& peer) { return {peer, {.mix = Mix::kC, .timed = true}}; }
Row UpdateHeavy(const std::string& peer, uint32_t in_flight, uint32_t workers = 1) {
  return {peer, {.mix = Mix::kA, .zipf = true, .workers = workers, .in_flight = in_flight}};
}
Row Load16(const std::string& peer) { return {peer, {.mix = Mix::kLoad, .in_flight = kInFlight}}; }

std::vector<Goal> Goals() {
  std::vector<Ratio> batched, single;
  for (const char* map : {"tbb", "absl"}) {
    for (const uint32_t workers : {1u, 2u}) {
      batched.push_back({{Get("surgekv", kInFlight, workers)}, {Get(map, 1, workers)}});
      single.push_back({{Get("surgekv", 1, workers)}, {Get(map, 1, workers)}});
    }
  }
  return {
      {"Get, 16 in flight, uniform, against the bare bound at 16 (same accesses)",
       true,
       0.80,
       {{{Get("surgekv", kInFlight)}, {Get("bound", kInFlight)}}}},
      {"Get, one at a time, p50 against the bare bound's",
       false,
       1.30,
       {{{TimedGet("surgekv")}, {TimedGet("bound")}, Metric::kP50}}},
      {"YCSB-A Zipf, 16 in flight, against the bare bound",
       true,
       0.75,
       {{{UpdateHeavy("surgekv", kInFlight)}, {UpdateHeavy("bound", kInFlight)}}}},
      {"load, against the bare bound", true, 0.60, {{{Load16("surgekv")}, {Load16("bound")}}}},
      {"load of a store that was told the number of records, against one that was not",
       true,
       1.4,
       {{{Load16("surgekv-sized")}, {Load16("surgekv")}}}},
      {"Get, 16 in flight, against TBB and the sharded absl maps (one at a time), same workers", true, 3, batched},
      {"Get, one at a time, against the same maps", true, 1.2, single},
      {"YCSB-A Zipf against LMDB, 2 workers",
       true,
       25,
       {{{UpdateHeavy("surgekv", kInFlight, 2)}, {UpdateHeavy("lmdb", 1, 2)}}}},
      {"Get one at a time against memcached / redis on a unix socket pipelined 32 deep, throughput",
       true,
       5,
       {{{Get("surgekv", 1)}, {Get("memcached", kPipelined)}}, {{Get("surgekv", 1)}, {Get("redis", kPipelined)}}}},
      {"2 workers over 1, against the bound's own scaling",
       true,
       0.95,
       {{{Get("surgekv", kInFlight, 2), Get("bound", kInFlight, 1)},
         {Get("surgekv", kInFlight, 1), Get("bound", kInFlight, 2)}}}},
  };
}

// Rows that no goal needs, for readers.
std::vector<Row> Others() { return {Get("bound-unsafe", kInFlight), UpdateHeavy("bound-unsafe", kInFlight)}; }

std::string ValueOf(const Comparison& comparison, const Row& row, Metric metric) {
  const auto value = comparison.MedianOf(row, metric);
  if (!value) return row.peer + " not run";
  const std::string what = metric == Metric::kP50 ? Number("%.3f us", *value / 1e3) : Number("%.3f M/s", *value / 1e6);
  return row.peer + (row.load.workers > 1 ? " (" + std::to_string(row.load.workers) + " workers) " : " ") + what;
}

GoalResult ResultOf(const Comparison& comparison, const Goal& goal) {
  GoalResult result{goal.measure, goal.at_least, goal.goal, std::nullopt, ""};
  for (const Ratio& ratio : goal.ratios) {
    const auto median = comparison.MedianOf(ratio);
    for (const auto* rows : {&ratio.times, &ratio.over}) {
      for (const Row& row : *rows) {
        const std::string value = ValueOf(comparison, row, ratio.metric);
        if (result.detail.find(value) != std::string::npos) continue;
        result.detail += (result.detail.empty() ? "" : ", ") + value;
      }
    }
    if (!median) continue;
    if (!result.measured) result.measured = median;
    result.measured = goal.at_least ? std::min(*result.measured, *median) : std::max(*result.measured, *median);
  }
  return result;
}

// Nanoseconds, one value a repetition; none: it does not run.
struct VerbTimes {
  std::vector<double> virtual_queue, uct, ucp;
  std::string problem;

  void Measure() {
    const auto add = [this](std::vector<double>* to, const krcore::Result<double>& ns) {
      if (ns.ok()) {
        to->push_back(*ns);
      } else {
        problem = ns.status().ToString();
      }
    };
    add(&virtual_queue, VirtualQueueReadNs());
    add(&uct, UcxGetNs(/*uct=*/true));
    add(&ucp, UcxGetNs(/*uct=*/false));
  }
  GoalResult Result() const {
    GoalResult result{"one 64 B READ through VirtualQueue post + poll, warm line, against UCX shared-memory get", false,
                      1.0, std::nullopt, problem.empty() ? "" : "not run: " + problem};
    if (!problem.empty()) return result;
    std::vector<double> ratios;
    for (size_t i = 0; i < uct.size(); ++i) ratios.push_back(virtual_queue[i] / uct[i]);
    result.measured = Median(ratios);
    result.detail = "VirtualQueue " + Number("%.1f ns", Median(virtual_queue)) + ", UCT get " +
                    Number("%.1f ns", Median(uct)) + "; UCP get " + Number("%.1f ns", Median(ucp));
    return result;
  }
};

}  // namespace

std::vector<GoalResult> MeasureGoals(Comparison& comparison) {
  const std::vector<Goal> goals = Goals();
  for (const Goal& goal : goals) {
    for (const Ratio& ratio : goal.ratios) {
      for (const Row& row : ratio.times) comparison.Add(row);
      for (const Row& row : ratio.over) comparison.Add(row);
    }
  }
  for (const Row& row : Others()) comparison.Add(row);
  VerbTimes verbs;
  comparison.Run([&verbs] { verbs.Measure(); });

  std::vector<GoalResult> results;
  for (const Goal& goal : goals) results.push_back(ResultOf(comparison, goal));
  GoalResult memory{"memory per record beyond key + value, 16 B/100 B, everything counted", false, 64,
                    comparison.OverheadOf("surgekv"), ""};
  for (const char* peer : {"surgekv", "bound", "tbb", "absl", "lmdb", "memcached", "redis"}) {
    const auto bytes = comparison.OverheadOf(peer);
    if (bytes) memory.detail += (memory.detail.empty() ? "" : ", ") + std::string(peer) + Number(" %.1f B", *bytes);
  }
  results.insert(results.end() - 1, {verbs.Result(), memory});
  return results;
}

std::string GoalTable(const std::vector<GoalResult>& results) {
  std::string text = "| measure | goal | measured | met | medians |\n|---|---|---|---|---|\n";
  for (const GoalResult& result : results) {
    const std::string unit = result.measure.starts_with("memory") ? " B" : "";
    text += "| " + result.measure + " | " + (result.at_least ? ">= " : "<= ") + Number("%.4g", result.goal) + unit +
            " | " + (result.measured ? Number("%.2f", *result.measured) + unit : "not run") + " | " +
            (!result.measured ? "-"
             : result.met()   ? "yes"
                              : "no") +
            " | " + result.detail + " |\n";
  }
  return text;
}

}  // namespace peers
