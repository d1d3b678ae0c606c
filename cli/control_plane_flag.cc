#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "cli/common_flags.h"

DEFINE_string(
    control_plane, "krcore",
    "How workers connect to memory nodes. krcore: all workers of a process share a pool of DC connections, which reach "
    "every node. kernel: all processes of the host share the connections of the kernel module krcore.ko; leave --rnic "
    "at its default. Two more are there for comparison. verbs: each worker opens the device and makes its own RC "
    "connections. lite: the workers of a process share one RC connection to each node. memnode and surge status accept "
    "only krcore and kernel. A memnode with krcore also serves clients of verbs and lite, unless it has "
    "--rc_acceptor=off");

namespace cli {

krcore::Status CheckControlPlane(const std::vector<std::string>& planes) {
  if (std::find(planes.begin(), planes.end(), FLAGS_control_plane) != planes.end()) return krcore::Status::Ok();
  std::string message = "--control_plane=" + FLAGS_control_plane + ": expected ";
  for (size_t i = 0; i < planes.size(); ++i) {
    if (i > 0) message += i + 1 < planes.size() ? ", " : " or ";
    message += planes[i];
  }
  return {krcore::StatusCode::kInvalidArgument, std::move(message)};
}

}  // namespace cli
