// The providers of the NIC interface. Only the registry names them.
#ifndef KRCORE_RNIC_PROVIDERS_H_
#define KRCORE_RNIC_PROVIDERS_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "krcore/rnic.h"

namespace krcore::rnic {

// The software RNIC: one-sided verbs as memory accesses of the initiator, over shared memory. docs/krcore.md.
namespace sw {
Result<std::unique_ptr<Device>> Open(const DeviceOptions& options);
Result<CleanReport> CleanStale(const std::string& fabric, bool also_kept);
std::vector<std::string> ListFabrics();
std::vector<int32_t> ProcessesOfRemovedFabric(const std::string& fabric);
}  // namespace sw

// RDMA NICs, or Soft-RoCE if there is none, through libibverbs: RC and UD queues. docs/krcore.md.
namespace verbs {
Result<std::unique_ptr<Device>> Open(const DeviceOptions& options);
Status TryNic(const DeviceOptions& options);
// There is nothing to clean: a NIC's objects and the members of a fabric end with their processes.
Result<CleanReport> CleanStale(const std::string& fabric, bool also_kept);
}  // namespace verbs

// The simulated RNIC: events in virtual time. Its fabrics are the Worlds (sim/world.h) of this process.
namespace sim {
// kNotFound: no World of that name. DeviceOptions::create_fabric is ignored: a fabric is a World.
Result<std::unique_ptr<Device>> Open(const DeviceOptions& options);
// Nothing survives a process, so there is never anything to clean.
Result<CleanReport> CleanStale(const std::string& fabric, bool also_kept);
}  // namespace sim

}  // namespace krcore::rnic

#endif  // KRCORE_RNIC_PROVIDERS_H_
