// Flags that several programs share. Each is defined once, with one default and one help text. Each group lives in an
// object file of its own, so a program has only the flags that it (or what it links) uses.
#ifndef CLI_COMMON_FLAGS_H_
#define CLI_COMMON_FLAGS_H_

#include <gflags/gflags.h>

#include <cstdint>
#include <string>
#include <vector>

#include "krcore/status.h"

DECLARE_string(log);  // flags.cc; every program

// fabric_flags.cc: which fabric
DECLARE_string(fabric);
DECLARE_string(rnic);
DECLARE_string(fabric_address);
DECLARE_string(rnic_port);

// control_plane_flag.cc: how nodes connect
DECLARE_string(control_plane);

// client_flags.cc: how long users of the store wait
DECLARE_int64(operation_timeout_ms);
DECLARE_int64(open_timeout_ms);

namespace cli {

// The longest time that a flag may give, a day: it fits in nanoseconds many times over.
inline constexpr int64_t kMaxTimeMs = int64_t{24} * 3600 * 1000;

// kInvalidArgument, with a message for the user: --fabric missing or malformed, --rnic not in this build,
// --fabric_address missing where --rnic needs it, or given with --rnic_port where it does not.
krcore::Status CheckFabricFlags();
// Copies the fabric's flags into the fields that krcore::NodeOptions, kvs::StoreOptions and others have.
template <typename Options>
void SetFabric(Options* options) {
  options->rnic = FLAGS_rnic;
  options->fabric = FLAGS_fabric;
  options->fabric_address = FLAGS_fabric_address;
  options->rnic_port = FLAGS_rnic_port;
}
// Returns the flags by which another program finds the same fabric, as they would be typed: "--fabric=demo".
std::string FabricFlags();
// Fail() for a fabric or store that could not be opened. The second line says which fabrics there are, if not this one,
// and how to start a store on it.
[[nodiscard]] int FailToOpen(const krcore::Status& status);
// kInvalidArgument: --control_plane is none of these.
krcore::Status CheckControlPlane(const std::vector<std::string>& planes);
// kInvalidArgument: no such control plane, or a timeout that is not 1 ms to a day.
krcore::Status CheckClientFlags();

}  // namespace cli

#endif  // CLI_COMMON_FLAGS_H_
