#ifndef KRCORE_RNIC_SIM_ADDRESS_HANDLE_H_
#define KRCORE_RNIC_SIM_ADDRESS_HANDLE_H_

#include "krcore/rnic/rnic.h"
#include "krcore/rnic/sim/device_state.h"

namespace krcore::rnic::sim {

class SimAddressHandle final : public AddressHandle {
 public:
  explicit SimAddressHandle(DeviceState* device) : device_(device) {}
  DeviceState* device() const { return device_; }

 private:
  DeviceState* const device_;
};

inline DeviceState* DeviceOf(const AddressHandle* ah) { return static_cast<const SimAddressHandle*>(ah)->device(); }

}  // namespace krcore::rnic::sim

#endif  // KRCORE_RNIC_SIM_ADDRESS_HANDLE_H_
