#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "cli/common_flags.h"

DEFINE_string(
    control_plane, "krcore",
    "How workers connect to memory nodes. krcore: by the process's pool of connections that reach every node. "
    "To compare with: verbs, each worker opens a device and makes its own RC connections; lite, the process's "
    "workers share an RC connection to each node. These two need memory nodes without --rc_acceptor=off. "
    "kernel: by connections that the module krcore.ko has, for all processes of the host, and --rnic means "
    "nothing. memnode takes kernel, or krcore, which serves clients of verbs and lite, too");
namespace cli {

krcore::Status CheckControlPlane(const std::vector<std::string>& planes) {
  if (std::find(planes.begin(), planes.end(), FLAGS_control_plane) != planes.end()) return krcore::Status::Ok();
  std::string message = "--control_plane=" + FLAGS_control_plane + ": not one of";
  for (const std::string& plane : planes) message += " " + plane;
  return {krcore::StatusCode::kInvalidArgument, std::move(message)};
}

}  // namespace cli
