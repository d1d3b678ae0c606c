// The software RNIC: one-sided verbs as memory accesses of the initiator, over shared memory. docs/krcore.md.
#ifndef KRCORE_RNIC_SW_SW_H_
#define KRCORE_RNIC_SW_SW_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "krcore/rnic.h"

namespace krcore::rnic::sw {

Result<std::unique_ptr<Device>> Open(const DeviceOptions& options);
Result<CleanReport> CleanStale(const std::string& fabric, bool also_kept);
std::vector<std::string> ListFabrics();
std::vector<int32_t> ProcessesOfRemovedFabric(const std::string& fabric);

}  // namespace krcore::rnic::sw

#endif  // KRCORE_RNIC_SW_SW_H_
