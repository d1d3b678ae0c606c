#include "cli/common_flags.h"
#include "cli/flags.h"
#include "krcore/control_plane.h"

DEFINE_int64(operation_timeout_ms, 5'000, "Milliseconds, 1 to 86400000, after which an operation fails with a timeout");
DEFINE_int64(
    open_timeout_ms, 2'000,
    "Milliseconds, 1 to 86400000, to wait at the start for the fabric, its metadata server and its memory nodes");

namespace cli {

krcore::Status CheckClientFlags() {
  KRCORE_RETURN_IF_ERROR(CheckControlPlane(krcore::ControlPlanes()));
  KRCORE_RETURN_IF_ERROR(CheckRange("operation_timeout_ms", FLAGS_operation_timeout_ms, 1, kMaxTimeMs));
  return CheckRange("open_timeout_ms", FLAGS_open_timeout_ms, 1, kMaxTimeMs);
}

}  // namespace cli
