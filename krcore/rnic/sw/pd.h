// Protection domain, and the MRs, Qps and Dcts made from it.
#ifndef KRCORE_RNIC_SW_PD_H_
#define KRCORE_RNIC_SW_PD_H_

#include <memory>

#include "krcore/rnic/rnic.h"
#include "krcore/rnic/sw/shared_device.h"

namespace krcore::rnic::sw {

class SwPd final : public Pd {
 public:
  explicit SwPd(SharedDevice* device) : device_(device), number_(device->tables.NextPd()) {}
  Result<std::unique_ptr<Mr>> RegisterMemory(void* addr, size_t length, uint32_t access_rights) override;
  Result<std::unique_ptr<Qp>> CreateQp(const QpAttr& attr) override;
  Result<std::unique_ptr<Dct>> CreateDct(const DctAttr& attr) override;

 private:
  SharedDevice* const device_;
  const uint32_t number_;
};

}  // namespace krcore::rnic::sw

#endif  // KRCORE_RNIC_SW_PD_H_
