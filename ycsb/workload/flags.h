// The part of the command line that ycsb and computenode share: which store, which workload, how many workers, and when
// operations are due. A program has these flags if it calls a function of this file.
//
// Thread safety: main thread only.
#ifndef YCSB_WORKLOAD_FLAGS_H_
#define YCSB_WORKLOAD_FLAGS_H_

#include <gflags/gflags.h>

#include <cstdint>
#include <string>
#include <vector>

#include "cli/flags.h"
#include "kvs/client.h"
#include "ycsb/workload/job.h"
#include "ycsb/workload/workload.h"

DECLARE_uint32(in_flight);
DECLARE_string(profile);

namespace ycsb {

// What cli::Program needs for -P FILE and -p KEY=VALUE.
inline constexpr char kPropertyOptions[] = "Pp";
inline constexpr char kPropertyHelp[] =
    "  -P FILE\n    File with properties of the workload, in YCSB's syntax. ycsb/workloads/ has the standard\n"
    "    workloads. Repeatable.\n"
    "  -p KEY=VALUE\n    One property, such as recordcount, operationcount (0: no end) or maxexecutiontime (seconds). "
    "It\n    overrides the files. Repeatable.\n";

// The functions below return kInvalidArgument, or what Workload::FromProperties says, with a message for the user.

struct WorkloadFlags {
  Properties properties;
  kvs::StoreOptions store;
  JobOptions job;  // of the run phase, without arrivals
  uint32_t workers = 1;
  std::vector<std::string> warnings;
};
// The store and the workers alone, for a program that runs no workload. `fewest`: the smallest number of workers that
// may be asked for.
Result<WorkloadFlags> StoreFromFlags(uint32_t fewest);
Result<WorkloadFlags> WorkloadFromFlags(const cli::CommandLine& line, uint32_t fewest);

// Plans job->arrivals. `most`: operations, 0: any number; `seconds`: how long the run lasts, 0: no limit.
Status PlanFromFlags(uint64_t most, double seconds, JobOptions* job, std::vector<std::string>* warnings);

}  // namespace ycsb

#endif  // YCSB_WORKLOAD_FLAGS_H_
