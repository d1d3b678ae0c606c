// RDMA NICs, or Soft-RoCE if there is none, through libibverbs: RC and UD queues. docs/krcore.md.
#ifndef KRCORE_RNIC_VERBS_VERBS_H_
#define KRCORE_RNIC_VERBS_VERBS_H_

#include <memory>
#include <string>

#include "krcore/rnic.h"

namespace krcore::rnic::verbs {

Result<std::unique_ptr<Device>> Open(const DeviceOptions& options);
Status TryNic(const DeviceOptions& options);
// There is nothing to clean: a NIC's objects and the members of a fabric end with their processes.
Result<CleanReport> CleanStale(const std::string& fabric, bool also_kept);

}  // namespace krcore::rnic::verbs

#endif  // KRCORE_RNIC_VERBS_VERBS_H_
