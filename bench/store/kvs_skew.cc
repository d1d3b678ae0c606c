// kvs_skew: the skew study as a program. Virtual time: modelled, not measured.
#include <gflags/gflags.h>

#include <cstdio>
#include <sstream>
#include <string>

#include "bench/store/skew_study.h"
#include "cli/fail.h"

DEFINE_string(clients, "8,16,32,64", "numbers of simulated clients, each a process of its own");
DEFINE_uint64(keys, 1'000'000, "keys in the store");
DEFINE_double(zipf, 0.99, "exponent of the keys' distribution; 0: uniform");
DEFINE_uint32(reads, 0, "percentage of Gets; the others are Updates");
DEFINE_uint32(lanes, 1, "operations in flight of each client");
DEFINE_uint32(cache, 65'536, "entries of each client's address cache");
DEFINE_uint64(seed, 1, "of everything random");
DEFINE_double(ms, 20, "virtual milliseconds measured, after 2 of warming up");

int main(int argc, char** argv) {
  cli::UseStandardStreams();
  gflags::SetUsageMessage("what simulated clients that update the same keys cost one another");
  gflags::ParseCommandLineFlags(&argc, &argv, true);
  surgekv_bench::SkewOptions options;
  options.seed = FLAGS_seed;
  options.keys = FLAGS_keys;
  options.zipf = FLAGS_zipf;
  options.read_percent = FLAGS_reads;
  options.lanes = FLAGS_lanes;
  options.address_cache_entries = FLAGS_cache;
  options.measured_ns = static_cast<int64_t>(FLAGS_ms * 1e6);
  surgekv_bench::SkewStudy study(options);
  std::printf("virtual time: modelled, not measured; keys=%lu zipf=%g reads=%u%% lanes=%u cache=%u seed=%lu\n",
              static_cast<unsigned long>(FLAGS_keys), FLAGS_zipf, FLAGS_reads, FLAGS_lanes, FLAGS_cache,
              static_cast<unsigned long>(FLAGS_seed));
  std::printf("%8s %8s %14s %9s %9s %8s %8s %8s %8s\n", "clients", "Mops/s", "attempts/write", "trips/op", "hits/op",
              "p50 us", "p99 us", "p99.9 us", "max us");
  std::istringstream list(FLAGS_clients);
  for (std::string item; std::getline(list, item, ',');) {
    const surgekv_bench::SkewResult r = study.Run(static_cast<uint32_t>(std::stoul(item)));
    const auto operations = static_cast<double>(r.stats.operations);
    std::printf("%8u %8.3f %14.3f %9.3f %9.3f %8.1f %8.1f %8.1f %8.1f\n", r.clients, r.mops,
                r.stats.writes_done == 0 ? 0.0 : r.attempts_per_write(),
                static_cast<double>(r.stats.operation_round_trips) / operations,
                static_cast<double>(r.stats.cache_hits) / operations, r.p50_us, r.p99_us, r.p999_us, r.max_us);
    std::fflush(stdout);
  }
  return 0;
}
