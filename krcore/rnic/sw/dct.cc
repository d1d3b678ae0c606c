#include "krcore/rnic/sw/dct.h"

namespace krcore::rnic::sw {

SwDct::SwDct(SharedDevice* device, const DctAttr& attr, uint32_t number) : device_(device) {
  num_ = number;
  dc_key_ = attr.dc_key;
  QpEntry& entry = device_->tables.qp(number);
  entry.peer.store(attr.dc_key, std::memory_order_relaxed);
  entry.rights.store(attr.access_rights, std::memory_order_relaxed);
  entry.word.store(QpWord(number, EntryType::kDct, static_cast<uint8_t>(QpState::kRts)), std::memory_order_release);
}

SwDct::~SwDct() {
  if (!device_->fabric.inert()) device_->tables.RemoveQp(num_);
}

Status SwDct::PostRecv(std::span<const RecvWr>, size_t* bad_index) {
  if (bad_index != nullptr) *bad_index = 0;
  return StatusCode::kUnsupported;
}

}  // namespace krcore::rnic::sw
