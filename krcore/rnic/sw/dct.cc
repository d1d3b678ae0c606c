#include "krcore/rnic/sw/dct.h"

namespace krcore::rnic::sw {

SwDct::SwDct(SharedDevice* device, const DctAttr& attr, uint32_t number) : device_(device) {
  num_ = number;
  dc_key_ = attr.dc_key;
}

Result<std::unique_ptr<Dct>> SwDct::Create(SharedDevice* device, const DctAttr& attr, uint32_t pd) {
  auto number = device->tables.AddQp(pd, EntryType::kDct);
  if (!number.ok()) return number.status();
  std::unique_ptr<SwDct> dct(new SwDct(device, attr, *number));
  if (attr.rq_depth > 0) {
    const Receiver::Options options{EntryType::kDct,    *number, pd, static_cast<SwCq*>(attr.recv_cq), attr.rq_depth,
                                    attr.max_recv_bytes};
    // A failed receive does not break a target that everybody may send to.
    auto receiver = Receiver::Create(device, options, nullptr);
    if (!receiver.ok()) return receiver.status();
    dct->receiver_ = *std::move(receiver);
  }
  QpEntry& entry = device->tables.qp(*number);
  entry.peer.store(attr.dc_key, std::memory_order_relaxed);
  entry.rights.store(attr.access_rights, std::memory_order_relaxed);
  entry.word.store(QpWord(*number, EntryType::kDct, static_cast<uint8_t>(QpState::kRts)), std::memory_order_release);
  return std::unique_ptr<Dct>(std::move(dct));
}

SwDct::~SwDct() {
  receiver_.reset();
  device_->tables.RemoveQp(num_);
}

Status SwDct::PostRecv(std::span<const RecvWr> wrs, size_t* bad_index) {
  if (receiver_ != nullptr) return receiver_->Post(wrs, bad_index);
  if (bad_index != nullptr) *bad_index = 0;
  return wrs.empty() ? Status{} : Status(StatusCode::kQueueFull);
}

}  // namespace krcore::rnic::sw
