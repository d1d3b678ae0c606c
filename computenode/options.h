// The command line of `computenode`.
#ifndef COMPUTENODE_OPTIONS_H_
#define COMPUTENODE_OPTIONS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cli/flags.h"
#include "computenode/elastic/autoscaler.h"
#include "computenode/front_end/front_end.h"
#include "krcore/status.h"
#include "kvs/client.h"
#include "metrics/exporter.h"
#include "ycsb/workload/job.h"

namespace computenode {

enum class WorkerKind : uint8_t { kThread, kFork, kExec };
const char* WorkerKindName(WorkerKind kind);

// Set if the load is a queue of requests (QueueLoad), or if standby workers or an autoscaler serve clients of Redis.
struct ElasticOptions {
  WorkerKind kind = WorkerKind::kFork;
  uint32_t standby = 0;  // standby workers
  double capacity = 0;   // requests a second of a worker; 0: as many as it can
  bool autoscale = false;
  bool dry_run = false;  // decisions are told but not carried out
  ScalePolicy policy;
  int64_t interval_ns = 5'000'000;  // between decisions
  std::string requests_file;        // empty: none
  // For a fresh program that is a worker: descriptors, and its slot. -1: it is none.
  int board_fd = -1, requests_fd = -1, slot = -1;
};

struct Options {
  kvs::StoreOptions store;
  ycsb::JobOptions job;
  uint32_t workers = 1;
  uint32_t in_flight = 16;
  double duration_s = 0;  // 0: no limit
  bool json_status = false;
  std::optional<cli::Address> metrics;          // nothing: off
  std::optional<ElasticOptions> elastic;        // nothing: the closed loop, or an open one of threads alone
  std::optional<redis::FrontEndOptions> redis;  // clients of Redis are the load; workers are threads
  std::vector<std::string> warnings;
};

cli::Program ProgramDescription();
// Returns the checked options. kInvalidArgument, kUnsupported: messages for the user.
krcore::Result<Options> OptionsFromFlags(const cli::CommandLine& line);

}  // namespace computenode

#endif  // COMPUTENODE_OPTIONS_H_
