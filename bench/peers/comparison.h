// Comparison: rows, each a peer and what it has to do. They take turns: every repetition measures all of them, in an
// order of its own, so that other work on the machine disturbs all alike. A ratio is the median of the ratios within
// the repetitions.
#ifndef BENCH_PEERS_COMPARISON_H_
#define BENCH_PEERS_COMPARISON_H_

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "bench/peers/measure.h"

namespace peers {

struct Row {
  std::string peer;
  Load load;
  std::string Name() const;
  friend bool operator<(const Row& a, const Row& b) { return a.Name() < b.Name(); }
};

enum class Metric : uint8_t { kThroughput, kP50, kFairness };

// The product of some rows' metrics over that of others.
struct Ratio {
  std::vector<Row> times, over;
  Metric metric = Metric::kThroughput;
};

class Comparison {
 public:
  Comparison(const Shape& shape, const SliceOptions& options, uint32_t repetitions);

  void Add(const Row& row) { rows_[row] = {}; }
  // Measures all rows that were added. Loads are into fresh peers, before the peers of the other rows are made. Prints
  // its progress on stderr. `every_repetition` is called once in each repetition.
  void Run(const std::function<void()>& every_repetition = {});

  const Shape& shape() const { return bench_.shape(); }
  uint32_t repetitions() const { return repetitions_; }
  const std::map<Row, std::vector<Outcome>>& rows() const { return rows_; }
  // Nothing: one of its rows was not run.
  std::optional<double> MedianOf(const Row& row, Metric metric) const;
  std::optional<double> MedianOf(const Ratio& ratio) const;
  // Bytes a record takes in addition to its key and value: the median of its loads.
  std::optional<double> OverheadOf(const std::string& peer) const;
  // Peers that were not run, and why; requests that failed or values that were wrong.
  const std::vector<std::string>& problems() const { return problems_; }
  bool all_right() const { return failures_ == 0; }

 private:
  std::unique_ptr<Peer> MakeAndLoad(const Row& row);
  void Note(const Row& row, const Outcome& outcome);

  Bench bench_;
  const uint64_t seed_;
  const uint32_t repetitions_;
  std::map<Row, std::vector<Outcome>> rows_;
  std::map<std::string, std::unique_ptr<Peer>> loaded_;
  std::map<std::string, std::vector<double>> overhead_;  // after each load
  std::set<std::string> missing_;
  std::vector<std::string> problems_;
  uint64_t failures_ = 0;
};

}  // namespace peers

#endif  // BENCH_PEERS_COMPARISON_H_
