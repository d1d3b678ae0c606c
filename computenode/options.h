// The command line of `computenode`.
#ifndef COMPUTENODE_OPTIONS_H_
#define COMPUTENODE_OPTIONS_H_

#include <string>
#include <vector>

#include "cli/flags.h"
#include "krcore/status.h"
#include "kvs/client.h"
#include "ycsb/job.h"

namespace computenode {

struct Options {
  kvs::StoreOptions store;
  ycsb::JobOptions job;
  uint32_t workers = 1;
  uint32_t in_flight = 16;
  double duration_s = 0;  // 0: no limit
  bool json_status = false;
  std::vector<std::string> warnings;
};

cli::Program ProgramDescription();
// kInvalidArgument, kUnsupported: messages for the user.
krcore::Result<Options> OptionsFromFlags(const cli::CommandLine& line);

}  // namespace computenode

#endif  // COMPUTENODE_OPTIONS_H_
