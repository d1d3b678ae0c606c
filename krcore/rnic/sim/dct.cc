#include "krcore/rnic/sim/dct.h"

namespace krcore::rnic::sim {

Result<std::unique_ptr<Dct>> SimDct::Create(Fabric* fabric, DeviceState* device, const DctAttr& attr, uint32_t pd) {
  KRCORE_RETURN_IF_ERROR(fabric->CheckAlive(*device));
  auto number = device->qps.Add(EntryType::kDct, pd);
  if (!number.ok()) return number.status();
  device->control_ns += fabric->engine().cost().create_qp_ns;
  std::unique_ptr<SimDct> dct(new SimDct(device));
  dct->num_ = *number;
  dct->dc_key_ = attr.dc_key;
  QpEntry& entry = *device->qps.Find(*number);
  entry.dc_key = attr.dc_key;
  entry.rights = attr.access_rights;
  entry.state = QpState::kRts;
  if (attr.rq_depth > 0) {
    dct->receiver_ = std::make_unique<Receiver>(
        device, Receiver::Options{EntryType::kDct, *number, pd, static_cast<SimCq*>(attr.recv_cq), attr.rq_depth,
                                  attr.max_recv_bytes});
    entry.receiver = dct->receiver_.get();
  }
  return std::unique_ptr<Dct>(std::move(dct));
}

Status SimDct::PostRecv(std::span<const RecvWr> wrs, size_t* bad_index) {
  if (receiver_ != nullptr) return receiver_->Post(wrs, bad_index);
  if (bad_index != nullptr) *bad_index = 0;
  return wrs.empty() ? Status{} : Status(StatusCode::kQueueFull);
}

}  // namespace krcore::rnic::sim
