// The goals of the store's performance (bench/results/README.md), and how far it is from each: bench_peers --quick.
#ifndef BENCH_PEERS_GOALS_H_
#define BENCH_PEERS_GOALS_H_

#include <optional>
#include <string>
#include <vector>

#include "bench/peers/comparison.h"

namespace peers {

struct GoalResult {
  std::string measure;
  bool at_least = true;  // else: at most
  double goal = 0;
  std::optional<double> measured;  // nothing: not run
  std::string detail;              // the numbers of the ratio

  bool met() const { return measured && (at_least ? *measured >= goal : *measured <= goal); }
};

// Measures all of them. `comparison`: of 16 B/100 B, with nothing added yet.
std::vector<GoalResult> MeasureGoals(Comparison& comparison);
// A table in Markdown.
std::string GoalTable(const std::vector<GoalResult>& results);

}  // namespace peers

#endif  // BENCH_PEERS_GOALS_H_
