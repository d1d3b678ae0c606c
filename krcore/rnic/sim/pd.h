// Protection domain, and the MRs, Qps and Dcts made from it.
#ifndef KRCORE_RNIC_SIM_PD_H_
#define KRCORE_RNIC_SIM_PD_H_

#include <memory>

#include "krcore/rnic/rnic.h"
#include "krcore/rnic/sim/fabric.h"

namespace krcore::rnic::sim {

class SimPd final : public Pd {
 public:
  SimPd(Fabric* fabric, DeviceState* device) : fabric_(fabric), device_(device), number_(device->next_pd++) {}
  Result<std::unique_ptr<Mr>> RegisterMemory(void* addr, size_t length, uint32_t access_rights) override;
  Result<std::unique_ptr<Qp>> CreateQp(const QpAttr& attr) override;
  Result<std::unique_ptr<Dct>> CreateDct(const DctAttr& attr) override;

 private:
  Fabric* const fabric_;
  DeviceState* const device_;
  const uint32_t number_;
};

}  // namespace krcore::rnic::sim

#endif  // KRCORE_RNIC_SIM_PD_H_
