// The only file that names all control planes and all NIC providers.
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "krcore/baselines/rc_node.h"
#include "krcore/control_plane.h"
#include "krcore/kernel/kernel_node.h"
#include "krcore/rnic.h"
#include "krcore/rnic/providers.h"

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
  return Status(StatusCode::kInvalidArgument,
                "no control plane '" + std::string(control_plane) + "'; there are: " + known);
}

}  // namespace krcore

namespace krcore::rnic {
namespace {

struct Provider {
  const char* name;
  Result<std::unique_ptr<Device>> (*open)(const DeviceOptions&);
  Result<CleanReport> (*clean)(const std::string& fabric, bool also_kept);
  std::vector<std::string> (*list)();                             // null: it keeps no list of fabrics
  std::vector<int32_t> (*of_removed)(const std::string& fabric);  // null likewise
  // Null: the provider is not on a network, and cannot use DeviceOptions::address and port.
  Status (*try_nic)(const DeviceOptions&) = nullptr;
};

constexpr Provider kProviders[] = {
    {"sw", sw::Open, sw::CleanStale, sw::ListFabrics, sw::ProcessesOfRemovedFabric},
    {"sim", sim::Open, sim::CleanStale, nullptr, nullptr},
    {"verbs", verbs::Open, verbs::CleanStale, nullptr, nullptr, verbs::TryNic},
};

Result<const Provider*> FindProvider(const std::string& name) {
  std::string known;
  for (const Provider& provider : kProviders) {
    if (name == provider.name) return &provider;
    known += (known.empty() ? "" : ", ") + std::string(provider.name);
  }
  return Status(StatusCode::kUnsupported, "this build has no RNIC provider '" + name + "'; it has: " + known);
}

}  // namespace

Result<std::unique_ptr<Device>> OpenDevice(const DeviceOptions& options) {
  auto provider = FindProvider(options.provider);
  if (!provider.ok()) return provider.status();
  if ((*provider)->try_nic == nullptr && !(options.address.empty() && options.port.empty()))
    return Status(StatusCode::kInvalidArgument, "provider " + options.provider + " has no use for " +
                                                    (options.address.empty() ? "a NIC's port" : "a fabric's address"));
  return (*provider)->open(options);
}

Status TryNic(const DeviceOptions& options) {
  auto provider = FindProvider(options.provider);
  if (!provider.ok()) return provider.status();
  if ((*provider)->try_nic != nullptr) return (*provider)->try_nic(options);
  return {StatusCode::kUnsupported, "provider " + options.provider + " has no NICs to choose from"};
}

std::vector<std::string> ProviderNames() {
  std::vector<std::string> names;
  for (const Provider& provider : kProviders) names.emplace_back(provider.name);
  return names;
}

Result<std::vector<std::string>> ListFabrics(const std::string& provider) {
  auto found = FindProvider(provider);
  if (!found.ok()) return found.status();
  return (*found)->list == nullptr ? std::vector<std::string>() : (*found)->list();
}

Result<std::vector<int32_t>> ProcessesOfRemovedFabric(const std::string& provider, const std::string& fabric) {
  auto found = FindProvider(provider);
  if (!found.ok()) return found.status();
  return (*found)->of_removed == nullptr ? std::vector<int32_t>() : (*found)->of_removed(fabric);
}

Result<CleanReport> CleanStaleFabrics(const std::string& provider, const std::string& fabric, bool also_kept) {
  auto found = FindProvider(provider);
  if (!found.ok()) return found.status();
  return (*found)->clean(fabric, also_kept);
}

}  // namespace krcore::rnic
