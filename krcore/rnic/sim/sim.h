// The simulated RNIC as a provider. Its fabrics are the Worlds of this process (world.h). docs/hacking.md.
#ifndef KRCORE_RNIC_SIM_SIM_H_
#define KRCORE_RNIC_SIM_SIM_H_

#include <memory>
#include <string>

#include "krcore/rnic/registry.h"

namespace krcore::rnic::sim {

// kNotFound: no World of that name. DeviceOptions::create_fabric means nothing here: a fabric is a World.
Result<std::unique_ptr<Device>> Open(const DeviceOptions& options);
// Nothing survives a process, so there is never anything to clean.
Result<CleanReport> CleanStale(const std::string& fabric, bool also_kept);

}  // namespace krcore::rnic::sim

#endif  // KRCORE_RNIC_SIM_SIM_H_
