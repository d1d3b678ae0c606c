// What the objects of one device share. Outlives them all.
#ifndef KRCORE_RNIC_SW_SHARED_DEVICE_H_
#define KRCORE_RNIC_SW_SHARED_DEVICE_H_

#include <memory>
#include <utility>

#include "krcore/rnic/sw/fabric.h"
#include "krcore/rnic/sw/peer.h"
#include "krcore/rnic/sw/tables.h"

namespace krcore::rnic::sw {

struct SharedDevice {
  explicit SharedDevice(std::unique_ptr<Fabric> joined)
      : owned(std::move(joined)), fabric(*owned), tables(&fabric), peers(&fabric) {}
  const std::unique_ptr<Fabric> owned;
  Fabric& fabric;
  Tables tables;
  PeerCache peers;
};

}  // namespace krcore::rnic::sw

#endif  // KRCORE_RNIC_SW_SHARED_DEVICE_H_
