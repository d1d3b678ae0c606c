// The latency of one request at a time between two processes, over any provider: through a bare RC QP and through a
// VirtualQueue whose peer is on an RC queue. What perftest's ib_read_lat, ib_atomic_lat and ib_send_lat measure,
// counted as they do it: READ and CAS from posting to the completion, SEND half of there and back, all polling, none
// waiting for the other beside.
#ifndef BENCH_RNIC_LATENCY_H_
#define BENCH_RNIC_LATENCY_H_

#include <cstdint>
#include <string>

#include "bench/reproduce/child.h"
#include "krcore/node.h"

namespace rnic_latency {

inline constexpr uint32_t kMostBytes = 4096;

struct Options {
  krcore::NodeOptions fabric{};  // provider, name, address, port
  std::string path{};            // rc, queue
  std::string operation{};       // read, cas, send
  uint32_t bytes = 64;           // of READ and SEND, at most kMostBytes
  uint32_t requests = 1000;
};

// Prints a line of what it measured.
void Measure(const Options& options);
// Starts this program as the process at the other end, with the same options.
reproduce::Child StartTarget(const Options& options);
// The process at the other end, which Measure starts as this program with --target.
void RunTarget(const Options& options);

}  // namespace rnic_latency

#endif  // BENCH_RNIC_LATENCY_H_
