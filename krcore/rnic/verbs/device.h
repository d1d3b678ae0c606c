// A device, its protection domains with their MRs, and the device's own DC, if it has one.
#ifndef KRCORE_RNIC_VERBS_DEVICE_H_
#define KRCORE_RNIC_VERBS_DEVICE_H_

#include <infiniband/verbs.h>

#include <memory>

#include "krcore/rnic/verbs/member.h"
#include "krcore/rnic/verbs/memory.h"
#include "krcore/rnic/verbs/nic.h"
#include "krcore/rnic/verbs/service.h"
#include "krcore/rnic/verbs/software_dct.h"
#include "krcore/rnic/verbs/ud_port.h"

namespace krcore::rnic::verbs {

// What the objects of a device share.
struct SharedDevice {
  std::unique_ptr<Service> service;  // null unless this device hosts it
  std::unique_ptr<Member> member;
  std::unique_ptr<Context> context;
  Caps caps;
  DcKind dc = DcKind::kSoftware;
  AddressHandles address_handles;
  RecentKeys recent_keys;
  DcCounters dc_counters;
  AgentSlot agent;  // of the software DC
};

// A protection domain and its MRs.
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

// The DC transport of mlx5 devices (ConnectX-4 and newer), by mlx5dv. docs/krcore.md, "DC of mlx5".

// Finds which DC of its own the device has, by making an initiator and a target and bringing them up; kSoftware: none,
// or libmlx5 is not installed.
// An error means that this could not be found out, for example for lack of memory. `device` has its context and caps.
Result<DcKind> FindMlx5Dc(SharedDevice* device);

// For devices that have it. `attr` was checked.
Result<std::unique_ptr<Qp>> CreateMlx5Dci(SharedDevice* device, ibv_pd* pd, uint32_t pd_index, const QpAttr& attr);
Result<std::unique_ptr<Dct>> CreateMlx5Dct(SharedDevice* device, ibv_pd* pd, const DctAttr& attr);

}  // namespace krcore::rnic::verbs

#endif  // KRCORE_RNIC_VERBS_DEVICE_H_
