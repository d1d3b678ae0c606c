#include "bench/peers/report.h"

#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

namespace peers {
namespace {

std::string Millions(double ops_per_s) { return Number(ops_per_s < 1e6 ? "%.3f" : "%.2f", ops_per_s / 1e6); }

std::string Heading(const char* first, const std::vector<std::string>& peers) {
  std::string names = std::string("| ") + first, lines = "|---";
  for (const std::string& peer : peers) {
    names += " | " + peer;
    lines += "|---";
  }
  return names + " |\n" + lines + "|\n";
}

}  // namespace

std::string ComparisonTables(const Comparison& comparison, const std::vector<std::string>& peers) {
  struct Less {
    bool operator()(const Load& a, const Load& b) const { return Row{"", a} < Row{"", b}; }
  };
  std::set<Load, Less> loads;
  for (const auto& [row, outcomes] : comparison.rows()) loads.insert(row.load);
  std::string rates = Heading("million operations a second (SurgeKV's over it)", peers);
  std::string latencies = Heading("p50, us (SurgeKV's over it)", peers);
  std::string fairness = Heading("the slowest worker's throughput over the fastest one's", peers);
  bool any_timed = false, any_shared = false;
  for (const Load& load : loads) {
    const Metric metric = load.timed ? Metric::kP50 : Metric::kThroughput;
    any_timed |= load.timed;
    std::string line = "| " + MixAndDistribution(load) + ", " + std::to_string(load.workers) +
                       (load.workers == 1 ? " worker, " : " workers, ") +
                       (load.in_flight == 1 ? "one at a time" : std::to_string(load.in_flight) + " in flight");
    if (load.workers > 1 && !load.timed) {
      any_shared = true;
      fairness += line;
      for (const std::string& peer : peers) {
        const auto value = comparison.MedianOf(Row{peer, load}, Metric::kFairness);
        fairness += " | " + (value ? Number("%.2f", *value) : "");
      }
      fairness += " |\n";
    }
    for (const std::string& peer : peers) {
      const Row row{peer, load}, ours{"surgekv", load};
      const auto value = comparison.MedianOf(row, metric);
      const auto ratio = comparison.MedianOf(Ratio{.times = {ours}, .over = {row}, .metric = metric});
      line += " | " + (value ? load.timed ? Number("%.3f", *value / 1e3) : Millions(*value) : "");
      if (ratio && peer != "surgekv") line += Number(" (%.2f)", *ratio);
    }
    (load.timed ? latencies : rates) += line + " |\n";
  }
  std::string memory = Heading("bytes a record takes in addition to key and value", peers) + "| after the load";
  for (const std::string& peer : peers) {
    const auto bytes = comparison.OverheadOf(peer);
    memory += " | " + (bytes ? Number("%.1f", *bytes) : "");
  }
  return rates + (any_timed ? "\n" + latencies : "") + (any_shared ? "\n" + fairness : "") + "\n" + memory + " |\n";
}

krcore::Status WriteJson(const std::string& path, const Comparison& comparison, const std::vector<std::string>& peers,
                         const std::vector<GoalResult>& goals) {
  nlohmann::json json;
  const Shape& shape = comparison.shape();
  json["shape"] = {{"records", shape.records}, {"key_bytes", shape.key_bytes}, {"value_bytes", shape.value_bytes}};
  json["repetitions"] = comparison.repetitions();
  json["problems"] = comparison.problems();
  json["rows"] = nlohmann::json::array();
  for (const auto& [row, outcomes] : comparison.rows()) {
    nlohmann::json entry = {{"peer", row.peer},
                            {"load", MixAndDistribution(row.load)},
                            {"workers", row.load.workers},
                            {"in_flight", row.load.in_flight},
                            {"timed", row.load.timed},
                            {"ops_per_s", nlohmann::json::array()}};
    for (const Outcome& outcome : outcomes) {
      entry["ops_per_s"].push_back(outcome.ops_per_s);
      entry["fairness"].push_back(outcome.fairness);
      if (!row.load.timed) continue;
      entry["p50_us"].push_back(outcome.p50_ns / 1e3);
      entry["p99_us"].push_back(outcome.p99_ns / 1e3);
    }
    json["rows"].push_back(entry);
  }
  for (const std::string& peer : peers) {
    if (const auto bytes = comparison.OverheadOf(peer)) json["overhead_bytes"][peer] = *bytes;
  }
  json["goals"] = nlohmann::json::array();
  for (const GoalResult& goal : goals) {
    nlohmann::json entry = {{"measure", goal.measure},
                            {"goal", goal.goal},
                            {"at_least", goal.at_least},
                            {"met", goal.met()},
                            {"detail", goal.detail}};
    if (goal.measured) entry["measured"] = *goal.measured;
    json["goals"].push_back(entry);
  }
  std::ofstream file(path);
  file << json.dump(1) << '\n';
  file.close();
  return file ? krcore::Status::Ok() : krcore::Status(krcore::StatusCode::kUnavailable, "cannot write " + path);
}

}  // namespace peers
