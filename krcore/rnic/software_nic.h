// What the two software NICs, sw and sim, have in common: their limits, what they refuse to make, and how they receive.
#ifndef KRCORE_RNIC_SOFTWARE_NIC_H_
#define KRCORE_RNIC_SOFTWARE_NIC_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>

#include "krcore/rnic.h"
#include "krcore/rnic/request_form.h"

namespace krcore::rnic {

inline constexpr uint32_t kMaxQpWr = 16384;
inline constexpr uint32_t kMaxSge = 16;
inline constexpr uint32_t kMaxCqe = uint32_t{1} << 20;
inline constexpr uint32_t kMaxInlineBytes = 512;
inline constexpr uint32_t kUdMtuBytes = 4096;
inline constexpr uint32_t kMaxMessageBytes = uint32_t{1} << 30;  // READ and WRITE
inline constexpr uint32_t kMaxRecvBytes = uint32_t{1} << 20;
inline constexpr uint32_t kGrhBytes = 40;

inline Caps SoftwareCaps(const char* provider) {
  Caps caps;
  caps.provider = provider;
  caps.max_qp_wr = kMaxQpWr;
  caps.max_sge = kMaxSge;
  caps.max_cqe = kMaxCqe;
  caps.max_inline_bytes = kMaxInlineBytes;
  caps.ud_mtu_bytes = kUdMtuBytes;
  caps.max_message_bytes = kMaxMessageBytes;
  caps.dc = true;
  return caps;
}

inline Status CheckCqDepth(uint32_t depth) {
  if (depth > 0 && depth <= kMaxCqe) return {};
  return {StatusCode::kInvalidArgument, "CQ depth is not 1 to " + std::to_string(kMaxCqe)};
}

inline Status CheckReceiveBytes(uint32_t rq_depth, uint32_t max_recv_bytes) {
  if (rq_depth == 0 || max_recv_bytes <= kMaxRecvBytes) return {};
  return {StatusCode::kInvalidArgument, "max_recv_bytes is above " + std::to_string(kMaxRecvBytes)};
}

inline Status CheckSoftwareQp(const QpAttr& attr) {
  KRCORE_RETURN_IF_ERROR(CheckQp(attr, kMaxQpWr));
  return CheckReceiveBytes(attr.rq_depth, attr.max_recv_bytes);
}

inline Status CheckDct(const DctAttr& attr) {
  KRCORE_RETURN_IF_ERROR(CheckReceives(attr.rq_depth, attr.recv_cq, kMaxQpWr));
  return CheckReceiveBytes(attr.rq_depth, attr.max_recv_bytes);
}

inline Status TableFull(const char* what, uint32_t limit) {
  return {StatusCode::kOutOfMemory, "this device has " + std::to_string(limit) + " " + what + ", its limit"};
}

// A device's address has its place among the fabric's devices.
inline DeviceAddress MakeAddress(NodeId node, uint32_t incarnation, uint32_t index) {
  DeviceAddress address;
  address.node = node;
  address.incarnation = incarnation;
  std::memcpy(address.bytes, &index, sizeof(index));
  return address;
}
inline uint32_t IndexOf(const DeviceAddress& address) {
  uint32_t index = 0;
  std::memcpy(&index, address.bytes, sizeof(index));
  return index;
}

// What a number of a device's table names.
enum class EntryType : uint8_t { kRc, kUd, kDci, kDct };

constexpr EntryType EntryTypeOf(QpType type) {
  return type == QpType::kRc ? EntryType::kRc : type == QpType::kUd ? EntryType::kUd : EntryType::kDci;
}

// The progress of a send queue. Slots [freed, posted) are taken.
struct SendCounters {
  uint64_t posted = 0;
  uint64_t freed = 0;
};

// A memory region of a table of keys.
template <typename Table>
class SoftwareMr final : public Mr {
 public:
  SoftwareMr(Table* table, void* addr, size_t length, uint32_t key) : table_(table) {
    addr_ = addr;
    length_ = length;
    lkey_ = rkey_ = key;
  }
  ~SoftwareMr() override { table_->RemoveMr(lkey_); }

 private:
  Table* const table_;
};

// ---- receiving

// Of a Qp in `state`; a Dct is always in RTS. `receiver` is null if it receives nothing.
template <typename Receiver>
Status PostReceives(Receiver* receiver, QpState state, std::span<const RecvWr> wrs, size_t* bad_index) {
  if (bad_index != nullptr) *bad_index = 0;
  if (state == QpState::kReset) return StatusCode::kBadState;
  if (receiver == nullptr) return wrs.empty() ? Status{} : Status(StatusCode::kQueueFull);
  Status status = receiver->Post(wrs, bad_index);
  if (state == QpState::kErr) receiver->Flush();
  return status;
}

// Copies a message that fits, with copy(to, from, bytes). No datagram has a real GRH here: its bytes are zero.
template <typename Copy>
void ScatterMessage(std::span<const Sge> sges, EntryType type, const std::byte* from, size_t length, Copy copy) {
  uint32_t grh = type == EntryType::kUd ? kGrhBytes : 0;
  for (const Sge& sge : sges) {
    auto* const to = reinterpret_cast<std::byte*>(sge.addr);
    const uint32_t zeros = std::min(grh, sge.length);
    if (zeros != 0) std::memset(to, 0, zeros);
    grh -= zeros;
    const size_t part = std::min<size_t>(sge.length - zeros, length);
    if (part != 0) copy(to + zeros, from, part);
    from += part;
    length -= part;
  }
}

// What a receive's completion tells of its message.
struct Arrival {
  Opcode opcode = Opcode::kSend;  // the sender's
  uint32_t length = 0;
  uint32_t imm = 0;
  uint32_t src_qp = 0;
  NodeId src_node = kNoNode;
};

// The completion of a receive; `arrival` counts if it has succeeded.
inline Completion ReceiveCompletion(uint64_t wr_id, WcStatus status, EntryType type, uint32_t number,
                                    const Arrival& arrival) {
  Completion completion;
  completion.wr_id = wr_id;
  completion.status = status;
  completion.opcode = Opcode::kRecv;
  completion.qp_num = number;
  if (status != WcStatus::kSuccess) return completion;
  if (arrival.opcode == Opcode::kWriteImm) completion.opcode = Opcode::kRecvWithImm;
  completion.byte_len = arrival.length;
  if (arrival.opcode != Opcode::kSend) completion.flags |= kWithImm;
  completion.imm = arrival.imm;
  if (type == EntryType::kUd) {
    completion.flags |= kWithGrh;
    completion.byte_len += kGrhBytes;
    completion.src_qp = arrival.src_qp;
    completion.src_node = arrival.src_node;
  }
  return completion;
}

}  // namespace krcore::rnic

#endif  // KRCORE_RNIC_SOFTWARE_NIC_H_
