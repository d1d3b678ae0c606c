// Flags that several programs share, each defined once with one default and one help text. A program has those that
// it (or what it links) uses: each group lives in an object file of its own.
#ifndef CLI_COMMON_FLAGS_H_
#define CLI_COMMON_FLAGS_H_

#include <gflags/gflags.h>

#include "krcore/status.h"

DECLARE_string(log);  // log.cc; every program

// fabric_flags.cc: which fabric
DECLARE_string(fabric);
DECLARE_string(rnic);

// client_flags.cc: how users of the store connect, and how long they wait
DECLARE_string(control_plane);
DECLARE_int64(operation_timeout_ms);
DECLARE_int64(open_timeout_ms);

namespace cli {

// kInvalidArgument, with a message for the user: --fabric missing or malformed, --rnic not in this build.
krcore::Status CheckFabricFlags();
// kInvalidArgument: no such control plane, or a timeout that is not 1 ms to a day.
krcore::Status CheckClientFlags();

}  // namespace cli

#endif  // CLI_COMMON_FLAGS_H_
