// What the objects of a device share.
#ifndef KRCORE_RNIC_VERBS_SHARED_DEVICE_H_
#define KRCORE_RNIC_VERBS_SHARED_DEVICE_H_

#include <memory>

#include "krcore/rnic/verbs/address_handle.h"
#include "krcore/rnic/verbs/agent.h"
#include "krcore/rnic/verbs/context.h"
#include "krcore/rnic/verbs/dc_counters.h"
#include "krcore/rnic/verbs/member.h"
#include "krcore/rnic/verbs/recent_keys.h"
#include "krcore/rnic/verbs/service.h"

namespace krcore::rnic::verbs {

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

}  // namespace krcore::rnic::verbs

#endif  // KRCORE_RNIC_VERBS_SHARED_DEVICE_H_
