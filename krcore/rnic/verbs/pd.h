// A protection domain and its MRs.
#ifndef KRCORE_RNIC_VERBS_PD_H_
#define KRCORE_RNIC_VERBS_PD_H_

#include <infiniband/verbs.h>

#include <memory>

#include "krcore/rnic/verbs/regions.h"
#include "krcore/rnic/verbs/shared_device.h"

namespace krcore::rnic::verbs {

class VerbsPd final : public Pd {
 public:
  static Result<std::unique_ptr<Pd>> Create(SharedDevice* device);
  ~VerbsPd() override;
  Result<std::unique_ptr<Mr>> RegisterMemory(void* addr, size_t length, uint32_t access_rights) override;
  Result<std::unique_ptr<Qp>> CreateQp(const QpAttr& attr) override;
  Result<std::unique_ptr<Dct>> CreateDct(const DctAttr& attr) override;

 private:
  VerbsPd(SharedDevice* device, ibv_pd* pd, uint32_t index) : device_(device), pd_(pd), index_(index) {}

  SharedDevice* const device_;
  ibv_pd* const pd_;
  const uint32_t index_;
  Regions regions_;  // for the software DC
};

}  // namespace krcore::rnic::verbs

#endif  // KRCORE_RNIC_VERBS_PD_H_
