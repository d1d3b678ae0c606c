#include "bench/peers/comparison.h"

#include <malloc.h>

#include <algorithm>
#include <cstdio>
#include <random>
#include <utility>

#include "cli/stop_signal.h"

namespace peers {
namespace {

constexpr uint32_t kLoadInFlight = 32;  // of loads for the other rows, which are not measured

double MetricOf(const Outcome& outcome, Metric metric) {
  switch (metric) {
    case Metric::kThroughput: return outcome.ops_per_s;
    case Metric::kP50: return outcome.p50_ns;
    case Metric::kFairness: return outcome.fairness;
  }
  return 0;
}

}  // namespace

std::string Row::Name() const {
  return peer + ", " + MixAndDistribution(load) + ", " + std::to_string(load.workers) + " worker(s), " +
         std::to_string(load.in_flight) + " in flight" + (load.timed ? ", timed" : "");
}

Comparison::Comparison(const Shape& shape, const SliceOptions& options, uint32_t repetitions)
    : bench_(shape, options), seed_(options.seed), repetitions_(repetitions) {}

void Comparison::Note(const Row& row, const Outcome& outcome) {
  if (const auto wanted = rows_.find(row); wanted != rows_.end()) wanted->second.push_back(outcome);
  failures_ += outcome.failures;
  if (outcome.failures == 0) return;
  problems_.push_back("WRONG: " + row.Name() + ": " + std::to_string(outcome.failures) +
                      " requests, the first: " + outcome.first_failure);
}

// Null: it was not run, now or before.
std::unique_ptr<Peer> Comparison::MakeAndLoad(const Row& row) {
  const std::string& name = row.peer;
  if (missing_.contains(name) || cli::StopSignal::Requested()) return nullptr;
  malloc_trim(0);  // or a map might use memory that others have freed, and seem to take none
  auto peer = MakePeer(name, shape());
  if (!peer.ok()) {
    problems_.push_back("not run: " + name + ": " + peer.status().ToString());
    missing_.insert(name);
    return nullptr;
  }
  Note(row, bench_.LoadAll(**peer, row.load.workers, row.load.in_flight));
  malloc_trim(0);  // memory that the load's traces have freed must not count as the map's
  const auto records = static_cast<double>(shape().records);
  const double bytes = static_cast<double>((*peer)->MemoryBytes()) / records;
  overhead_[name].push_back(bytes - static_cast<double>(shape().data_bytes()));
  return *std::move(peer);
}

void Comparison::Run(const std::function<void()>& every_repetition) {
  std::vector<Row> loads, others;
  for (const auto& [row, outcomes] : rows_) (row.load.mix == Mix::kLoad ? loads : others).push_back(row);
  std::mt19937_64 random(seed_);
  for (uint32_t repetition = 0; repetition < repetitions_ && !loads.empty(); ++repetition) {
    std::fprintf(stderr, "loads, repetition %u of %u\n", repetition + 1, repetitions_);
    std::shuffle(loads.begin(), loads.end(), random);
    for (const Row& row : loads) (void)MakeAndLoad(row);
  }
  for (const Row& row : others) {
    if (loaded_.contains(row.peer)) continue;
    auto peer = MakeAndLoad({row.peer, {.mix = Mix::kLoad, .in_flight = kLoadInFlight}});
    if (peer != nullptr) loaded_[row.peer] = std::move(peer);
  }
  for (uint32_t repetition = 0; repetition < repetitions_ && !others.empty(); ++repetition) {
    std::fprintf(stderr, "repetition %u of %u\n", repetition + 1, repetitions_);
    std::shuffle(others.begin(), others.end(), random);
    for (const Row& row : others) {
      if (cli::StopSignal::Requested()) return;
      if (const auto peer = loaded_.find(row.peer); peer != loaded_.end())
        Note(row, bench_.RunSlice(*peer->second, row.load));
    }
    if (every_repetition) every_repetition();
  }
}

std::optional<double> Comparison::MedianOf(const Row& row, Metric metric) const {
  return MedianOf(Ratio{.times = {row}, .over = {}, .metric = metric});
}

std::optional<double> Comparison::MedianOf(const Ratio& ratio) const {
  std::vector<double> quotients(repetitions_, 1);
  const auto apply = [&](const std::vector<Row>& rows, bool divide) {
    for (const Row& row : rows) {
      const auto outcomes = rows_.find(row);
      if (outcomes == rows_.end() || outcomes->second.size() != repetitions_) return false;
      for (uint32_t i = 0; i < repetitions_; ++i) {
        const double value = MetricOf(outcomes->second[i], ratio.metric);
        if (value <= 0) return false;
        quotients[i] *= divide ? 1 / value : value;
      }
    }
    return true;
  };
  if (!apply(ratio.times, false) || !apply(ratio.over, true)) return std::nullopt;
  return Median(quotients);
}

std::optional<double> Comparison::OverheadOf(const std::string& peer) const {
  const auto overhead = overhead_.find(peer);
  if (overhead == overhead_.end()) return std::nullopt;
  return Median(overhead->second);
}

}  // namespace peers
