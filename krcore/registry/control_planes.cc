// The only file that names all control planes.
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "krcore/baselines/rc_node.h"
#include "krcore/control_plane.h"
#include "krcore/kernel/kernel_node.h"

namespace krcore {
namespace {

using Done = std::function<void(ConnectStep)>;

struct ControlPlane {
  std::string_view name;
  Result<std::unique_ptr<Node>> (*open)(const NodeOptions&, Done);
};

constexpr ControlPlane kControlPlanes[] = {
    {"krcore", [](const NodeOptions& options, Done) { return Node::Open(options); }},
    {"verbs", [](const NodeOptions& options, Done done) { return baselines::RcNode::Open(false, options, done); }},
    {"lite", [](const NodeOptions& options, Done done) { return baselines::RcNode::Open(true, options, done); }},
    {"kernel", [](const NodeOptions& options, Done) { return kernel::KernelNode::Open(options); }},
};

}  // namespace

std::vector<std::string> ControlPlanes() {
  std::vector<std::string> names;
  for (const ControlPlane& plane : kControlPlanes) names.emplace_back(plane.name);
  return names;
}

Result<std::unique_ptr<Node>> OpenNode(std::string_view control_plane, const NodeOptions& options, Done done) {
  std::string known;
  for (const ControlPlane& plane : kControlPlanes) {
    if (control_plane == plane.name) return plane.open(options, std::move(done));
    known += (known.empty() ? "" : ", ") + std::string(plane.name);
  }
  return Status(StatusCode::kInvalidArgument, "no control plane '" + std::string(control_plane) + "': " + known);
}

}  // namespace krcore
