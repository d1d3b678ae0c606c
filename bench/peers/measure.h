// Measurements of peers: slices of time in which workers execute requests, and loads of all records.
#ifndef BENCH_PEERS_MEASURE_H_
#define BENCH_PEERS_MEASURE_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "bench/peers/peer.h"
#include "bench/peers/requests.h"

namespace peers {

inline constexpr uint32_t kMaxWorkers = 16;
// A slice of a worker ends after this number of inserts, so that D does not fill the peers.
inline constexpr uint64_t kMostNewOfSlice = 50'000;

// What a peer has to do.
struct Load {
  Mix mix = Mix::kC;
  bool zipf = false;
  uint32_t workers = 1;
  uint32_t in_flight = 1;
  bool timed = false;  // each request, for percentiles: throughput is a little lower then
};
// "C uniform", "D latest", "load", ...
std::string MixAndDistribution(const Load& load);

struct Outcome {
  double ops_per_s = 0;
  double p50_ns = 0, p99_ns = 0;  // of timed ones; without the clock's own part
  double fairness = 1;            // the slowest worker's throughput over the fastest one's
  uint64_t failures = 0;
  std::string first_failure;
};

struct SliceOptions {
  int64_t warm_up_ns = 100'000'000;
  int64_t measure_ns = 250'000'000;
  uint64_t seed = 1;
  size_t trace_length = size_t{1} << 20;  // requests that a worker repeats
};

// Traces, and what was inserted by D. One thread.
class Bench {
 public:
  Bench(const Shape& shape, const SliceOptions& options) : shape_(shape), options_(options) {}

  const Shape& shape() const { return shape_; }
  // All records into an empty peer.
  Outcome LoadAll(Peer& peer, uint32_t workers, uint32_t in_flight);
  // `load`: not kLoad, on a peer that was loaded.
  Outcome RunSlice(Peer& peer, const Load& load);

 private:
  const Trace& TraceOf(Mix mix, bool zipf, uint32_t worker);

  const Shape shape_;
  const SliceOptions options_;
  uint64_t slices_ = 0;
  std::map<std::tuple<Mix, bool, uint32_t>, std::unique_ptr<Trace>> traces_;
  std::map<const Peer*, uint64_t> first_new_;  // number of the next record that D may insert
};

double Median(std::vector<double> values);
// As printf.
std::string Number(const char* format, double value);

}  // namespace peers

#endif  // BENCH_PEERS_MEASURE_H_
