// DC target: an entry in the device's Qp table that any initiator with the key may use.
#ifndef KRCORE_RNIC_SW_DCT_H_
#define KRCORE_RNIC_SW_DCT_H_

#include <memory>

#include "krcore/rnic/rnic.h"
#include "krcore/rnic/sw/receiver.h"
#include "krcore/rnic/sw/shared_device.h"

namespace krcore::rnic::sw {

class SwDct final : public Dct {
 public:
  static Result<std::unique_ptr<Dct>> Create(SharedDevice* device, const DctAttr& attr, uint32_t pd);
  ~SwDct() override;
  Status PostRecv(std::span<const RecvWr> wrs, size_t* bad_index) override;

 private:
  SwDct(SharedDevice* device, const DctAttr& attr, uint32_t number);

  SharedDevice* const device_;
  std::unique_ptr<Receiver> receiver_;  // null: one-sided requests only
};

}  // namespace krcore::rnic::sw

#endif  // KRCORE_RNIC_SW_DCT_H_
