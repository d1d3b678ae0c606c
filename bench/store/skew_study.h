// Many simulated clients update keys by Zipf's law: how often does a write have to try, and does throughput hold?
// Everything in virtual time, under the cost model of krcore/rnic/sim: modelled, not measured, and the same on every
// machine. Each client is a process of its own (its own Store).
#ifndef BENCH_STORE_SKEW_STUDY_H_
#define BENCH_STORE_SKEW_STUDY_H_

#include <cstdint>
#include <memory>

#include "kvs/client.h"

namespace surgekv_bench {

struct SkewOptions {
  uint64_t seed = 1;
  uint64_t keys = 1'000'000;
  double zipf = 0.99;
  uint32_t read_percent = 0;  // the others are updates
  uint32_t value_bytes = 64;
  uint32_t lanes = 1;  // operations in flight of each client
  uint32_t address_cache_entries = 65'536;
  int64_t warm_up_ns = 2'000'000;
  int64_t measured_ns = 20'000'000;
};

struct SkewResult {
  uint32_t clients = 0;
  uint64_t operations = 0;  // in the measured time
  double mops = 0;          // millions a virtual second
  double p50_us = 0, p99_us = 0, p999_us = 0, max_us = 0;
  kvs::ClientStats stats;  // of all clients, in the measured time
  double attempts_per_write() const {
    return static_cast<double>(stats.write_attempts) / static_cast<double>(stats.writes_done);
  }
};

// A store with the keys loaded; each Run makes its clients anew.
class SkewStudy {
 public:
  explicit SkewStudy(const SkewOptions& options);
  ~SkewStudy();
  SkewResult Run(uint32_t clients);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace surgekv_bench

#endif  // BENCH_STORE_SKEW_STUDY_H_
