// The command line of `ycsb`.
#ifndef YCSB_OPTIONS_H_
#define YCSB_OPTIONS_H_

#include <string>
#include <vector>

#include "cli/flags.h"
#include "krcore/status.h"
#include "kvs/client.h"
#include "ycsb/report.h"
#include "ycsb/runner.h"
#include "ycsb/workload/job.h"

namespace ycsb {

struct Options {
  kvs::StoreOptions store;
  JobOptions job;
  RunnerOptions runner;
  ReportContext report;
  std::string json_path;  // empty: no JSON
  bool table_stats = false;
  std::vector<std::string> warnings;
};

cli::Program ProgramDescription();
// Reads the flags, which cli::ParseFlags has set. kInvalidArgument and what Workload::FromProperties says: messages
// for the user.
Result<Options> OptionsFromFlags(const cli::CommandLine& line);

}  // namespace ycsb

#endif  // YCSB_OPTIONS_H_
