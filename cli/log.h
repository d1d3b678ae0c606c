// The program's log: glog lines on stderr, what --log lets through. stdout belongs to results.
#ifndef CLI_LOG_H_
#define CLI_LOG_H_

#include "krcore/status.h"

namespace cli {

// Applies --log and starts glog; ParseFlags calls it. kInvalidArgument: unknown level. Idempotent.
krcore::Status InitLogging();

}  // namespace cli

#endif  // CLI_LOG_H_
