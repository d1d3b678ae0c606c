// The latency of one request at a time between two processes, over any provider: through a bare RC QP and through a
// VirtualQueue whose peer is on an RC queue. It measures what perftest's ib_read_lat, ib_atomic_lat and ib_send_lat
// measure, and counts as they do: READ and CAS from posting to the completion, SEND half of a round trip. Both ends
// poll all the time.
#ifndef BENCH_QUEUES_RNIC_LATENCY_H_
#define BENCH_QUEUES_RNIC_LATENCY_H_

#include <cstdint>
#include <memory>
#include <string>

#include "bench/common/timed_worker.h"
#include "bench/reproduce/child.h"
#include "krcore/node.h"

namespace rnic_latency {

inline constexpr uint32_t kMostBytes = 4096;

struct Options {
  krcore::NodeOptions fabric{};  // provider, name, address, port
  std::string path{};            // rc, queue, store
  std::string operation{};       // of the first two: read, cas, send
  uint32_t bytes = 64;           // of READ, SEND and a value, at most kMostBytes; of CAS 8
  uint32_t requests = 1000;
};

// Prints a line of what it measured. Ends the program if anything fails, or nothing happens for 20 s.
void Measure(const Options& options);
// The process at the other end, which Measure starts as this program with --target.
void RunTarget(const Options& options);

// ---- what store_latency.cc uses too

using timed::Now;
krcore::Deadline Soon();  // 20 s from now
// Starts this program as the process at the other end, with the same options.
reproduce::Child StartTarget(const Options& options);
// A line: the least, the median and the 99th percentile of `ns`, and `more`.
void Print(const Options& options, timed::Samples& ns, const std::string& more = "");

// READs through a bare RC QP, to be timed in turns with something else. The fabric may have a node 1 already.
class BareReader {
 public:
  explicit BareReader(Options options);
  BareReader(const BareReader&) = delete;
  BareReader& operator=(const BareReader&) = delete;
  ~BareReader();
  // One; over when it has succeeded.
  void Read(uint32_t bytes);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace rnic_latency

#endif  // BENCH_QUEUES_RNIC_LATENCY_H_
