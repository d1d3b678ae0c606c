// DC target: an entry among the device's Qps that any initiator with the key may use.
#ifndef KRCORE_RNIC_SIM_DCT_H_
#define KRCORE_RNIC_SIM_DCT_H_

#include <memory>

#include "krcore/rnic/rnic.h"
#include "krcore/rnic/sim/fabric.h"
#include "krcore/rnic/sim/receiver.h"

namespace krcore::rnic::sim {

class SimDct final : public Dct {
 public:
  static Result<std::unique_ptr<Dct>> Create(Fabric* fabric, DeviceState* device, const DctAttr& attr, uint32_t pd);
  ~SimDct() override { device_->qps.Remove(num_); }
  Status PostRecv(std::span<const RecvWr> wrs, size_t* bad_index) override;

 private:
  explicit SimDct(DeviceState* device) : device_(device) {}
  DeviceState* const device_;
  std::unique_ptr<Receiver> receiver_;  // null: one-sided requests only
};

}  // namespace krcore::rnic::sim

#endif  // KRCORE_RNIC_SIM_DCT_H_
