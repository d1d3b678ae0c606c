#include "krcore/rnic/sim/receiver.h"

#include <algorithm>
#include <cstring>

#include "krcore/rnic/request_form.h"
#include "krcore/rnic/sim/limits.h"

namespace krcore::rnic::sim {

bool LocalRange(const DeviceState& device, uint32_t pd, const Sge& sge, bool written) {
  if (sge.length == 0) return true;
  const MrEntry* mr = device.mrs.Find(sge.lkey);
  if (mr == nullptr || mr->pd != pd) return false;
  const uint64_t offset = sge.addr - mr->base;
  return offset <= mr->length && sge.length <= mr->length - offset && (!written || (mr->rights & kLocalWrite) != 0);
}

Status Receiver::Post(std::span<const RecvWr> wrs, size_t* bad_index) {
  for (size_t i = 0; i < wrs.size(); ++i) {
    const RecvWr& wr = wrs[i];
    StatusCode refused = StatusCode::kOk;
    if (HasBadSges(wr, kMaxSge)) refused = StatusCode::kInvalidArgument;
    if (posted_.size() == options_.depth) refused = StatusCode::kQueueFull;
    if (refused != StatusCode::kOk) {
      if (bad_index != nullptr) *bad_index = i;
      return refused;
    }
    posted_.push_back({wr.wr_id, {wr.sg_list, wr.sg_list + wr.num_sge}});
  }
  return {};
}

WcStatus Receiver::Deliver(const Message& message, bool* broken) {
  *broken = false;
  const bool datagram = options_.type == EntryType::kUd;
  if (posted_.empty()) return WcStatus::kRnrRetryExceeded;
  const Posted& next = posted_.front();
  const uint64_t needed = message.bytes.size() + (datagram ? kGrhBytes : 0);
  uint64_t room = 0;
  bool allowed = true;
  for (const Sge& sge : next.sges) {
    room += sge.length;
    allowed &= LocalRange(*device_, options_.pd, sge, true);
  }
  const bool fits = message.bytes.empty() ? room >= needed || message.opcode == Opcode::kWriteImm
                                          : room >= needed && message.bytes.size() <= options_.max_bytes;
  // One sender's mistake must not break a queue that everybody may send to: the receive stays for the next.
  if (datagram && allowed && !fits) return WcStatus::kRemoteInvalidRequest;
  const Posted recv = next;
  posted_.pop_front();
  if (!allowed) {
    Complete(recv, WcStatus::kLocalProtectionError, nullptr);
    *broken = true;
    return WcStatus::kRemoteOperationError;
  }
  if (!fits) {
    Complete(recv, WcStatus::kLocalLengthError, nullptr);
    *broken = true;
    return WcStatus::kRemoteInvalidRequest;
  }
  if (message.opcode != Opcode::kWriteImm) Scatter(recv, message.bytes);
  Complete(recv, WcStatus::kSuccess, &message);
  return WcStatus::kSuccess;
}

void Receiver::Scatter(const Posted& recv, std::span<const std::byte> bytes) {
  uint32_t grh = options_.type == EntryType::kUd ? kGrhBytes : 0;  // no datagram has a real one here: zeros
  for (const Sge& sge : recv.sges) {
    auto* to = reinterpret_cast<std::byte*>(sge.addr);
    uint32_t room = sge.length;
    const uint32_t zeros = std::min(grh, room);
    if (zeros != 0) std::memset(to, 0, zeros);
    to += zeros;
    room -= zeros;
    grh -= zeros;
    const size_t part = std::min<size_t>(room, bytes.size());
    if (part != 0) std::memcpy(to, bytes.data(), part);
    bytes = bytes.subspan(part);
  }
}

void Receiver::Complete(const Posted& recv, WcStatus status, const Message* message) {
  Completion completion;
  completion.wr_id = recv.wr_id;
  completion.status = status;
  completion.opcode = Opcode::kRecv;
  completion.qp_num = options_.number;
  if (message != nullptr) {
    if (message->opcode == Opcode::kWriteImm) completion.opcode = Opcode::kRecvWithImm;
    completion.byte_len = message->length;
    if (message->opcode != Opcode::kSend) completion.flags |= kWithImm;
    completion.imm = message->imm;
    if (options_.type == EntryType::kUd) {
      completion.flags |= kWithGrh;
      completion.byte_len += kGrhBytes;
      completion.src_qp = message->src_qp;
      completion.src_node = message->src_node;
    }
  }
  options_.cq->Push(completion, nullptr, 0);
}

void Receiver::Flush() {
  for (; !posted_.empty(); posted_.pop_front()) Complete(posted_.front(), WcStatus::kFlushed, nullptr);
}

void Receiver::Reset() {
  posted_.clear();
  options_.cq->Forget(options_.number, nullptr);
}

}  // namespace krcore::rnic::sim
