// Small named values in the control segment, owned by the devices that published them.
#ifndef KRCORE_RNIC_SW_RECORDS_H_
#define KRCORE_RNIC_SW_RECORDS_H_

#include <span>
#include <string>
#include <vector>

#include "krcore/rnic/sw/fabric.h"

namespace krcore::rnic::sw {

Status PublishRecord(Fabric& fabric, const std::string& name, std::span<const std::byte> value);
Result<std::vector<std::byte>> LookupRecord(Fabric& fabric, const std::string& name);

}  // namespace krcore::rnic::sw

#endif  // KRCORE_RNIC_SW_RECORDS_H_
