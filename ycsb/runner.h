// RunWorkload: runs a phase from its first worker to its report.
//
// Blocks until the phase is over. Thread safety: one run of a job.
#ifndef YCSB_RUNNER_H_
#define YCSB_RUNNER_H_

#include <cstdint>
#include <functional>
#include <iosfwd>
#include <vector>

#include "computenode/elastic/fleet.h"
#include "krcore/status.h"
#include "kvs/client.h"
#include "ycsb/workload/job.h"
#include "ycsb/workload/measurements.h"

namespace ycsb {

struct RunnerOptions {
  uint32_t workers = 1;
  uint32_t in_flight = 16;                 // operations per worker
  double warmup_s = 0;                     // run phase: not measured
  std::ostream* log = nullptr;             // status lines and problems as they come; null: none
  std::function<bool()> interrupted = {};  // asked every few milliseconds; true ends the phase early
};

enum class RunEnd : uint8_t { kFinished, kTimeLimit, kInterrupted, kTooManyFailures };

struct RunResult {
  RunEnd end = RunEnd::kFinished;
  Status error;  // why a worker could not start; the rest is of those that could
  Measurements measured;
  int64_t measured_ns = 0;
  kvs::ClientStats client_stats;
  std::vector<computenode::WorkerRecord> workers;

  // Returns whether everything asked for was done, verified, without a failure.
  bool good() const {
    return error.ok() && end != RunEnd::kTooManyFailures && measured.failed_operations == 0 && measured.mismatches == 0;
  }
};

RunResult RunWorkload(kvs::Store& store, WorkloadJob& job, const RunnerOptions& options);

}  // namespace ycsb

#endif  // YCSB_RUNNER_H_
