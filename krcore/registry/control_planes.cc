// Opens a Node by the name of its control plane. This is the only file that names all control planes.
#include <string>
#include <utility>

#include "krcore/baselines/rc_node.h"
#include "krcore/control_plane.h"
#include "krcore/kernel/kernel_node.h"

namespace krcore {

std::vector<std::string> ControlPlanes() { return {"krcore", "verbs", "lite", "kernel"}; }

Result<std::unique_ptr<Node>> OpenNode(std::string_view control_plane, const NodeOptions& options,
                                       std::function<void(ConnectStep)> done) {
  if (control_plane == "krcore") return Node::Open(options);
  if (control_plane == "verbs" || control_plane == "lite")
    return baselines::RcNode::Open(control_plane == "lite", options, std::move(done));
  if (control_plane == "kernel") return kernel::KernelNode::Open(options);
  return Status(StatusCode::kInvalidArgument,
                "no control plane '" + std::string(control_plane) + "': krcore, verbs, lite or kernel");
}

}  // namespace krcore
