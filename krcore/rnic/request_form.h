// What the verbs refuse at once: a malformed request, a wrong state, attributes that no object can have. It is in
// one place, so that no provider takes what another refuses. Everything else is found while the request executes
// (rnic.h, Qp::PostSend).
#ifndef KRCORE_RNIC_REQUEST_FORM_H_
#define KRCORE_RNIC_REQUEST_FORM_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "krcore/base/os.h"
#include "krcore/base/word_pair.h"
#include "krcore/rnic.h"
#include "krcore/rnic/sdc/types.h"

namespace krcore::rnic {

// Returns the total bytes of its SGEs.
inline uint64_t TotalLength(const WorkRequest& wr) {
  uint64_t total = 0;
  for (uint8_t i = 0; i < wr.num_sge; ++i) total += wr.sg_list[i].length;
  return total;
}

// Whether there are more SGEs than `max_sge`, or a count without SGEs. For WorkRequest and RecvWr.
template <typename Wr>
bool HasBadSges(const Wr& wr, uint32_t max_sge) {
  return wr.num_sge > max_sge || (wr.num_sge != 0 && wr.sg_list == nullptr);
}

// Flags that change neither what a request names nor what it is allowed to name.
inline constexpr uint8_t kPlainFlags = kSignaled | kFence | kSolicited;

// The number of SGEs, the opcode and all flags but the plain ones, as they lie in memory, for one comparison.
inline uint32_t FormOf(const WorkRequest& wr) {
  static_assert(offsetof(WorkRequest, opcode) == offsetof(WorkRequest, num_sge) + 1);
  static_assert(offsetof(WorkRequest, flags) == offsetof(WorkRequest, num_sge) + 2);
  static_assert(offsetof(WorkRequest, imm) == offsetof(WorkRequest, num_sge) + sizeof(uint32_t));
  constexpr uint32_t kMask = 0xffffu | uint32_t{static_cast<uint8_t>(~kPlainFlags)} << 16;
  return WordAt<offsetof(WorkRequest, num_sge), uint32_t>(wr) & kMask;
}

static_assert(static_cast<int>(Opcode::kRead) == SDC_OP_READ && static_cast<int>(Opcode::kSend) == SDC_OP_SEND &&
              static_cast<int>(Opcode::kFetchAdd) == SDC_OP_FETCH_ADD);

// `bytes`: the total of all SGEs of `wr`.
inline bool IsWellFormed(const WorkRequest& wr, uint64_t bytes, uint32_t max_inline_bytes) {
  return sdc_is_well_formed(static_cast<uint8_t>(wr.opcode), wr.num_sge, bytes, wr.remote_addr,
                            (wr.flags & kInline) != 0, max_inline_bytes);
}

inline bool IsMalformed(const SendWr& wr, QpType type, uint32_t max_sge, uint32_t max_inline_bytes) {
  if (HasBadSges(wr, max_sge)) return true;
  if (type != QpType::kRc && wr.ah == nullptr) return true;
  if (type == QpType::kUd && !sdc_is_send(static_cast<uint8_t>(wr.opcode))) return true;
  return !IsWellFormed(wr, TotalLength(wr), max_inline_bytes);
}

inline Status CheckRegistration(const void* addr, size_t length, uint32_t access_rights) {
  if (addr == nullptr || length == 0) return {StatusCode::kInvalidArgument, "an MR needs an address and a length"};
  if ((access_rights & (kRemoteWrite | kRemoteAtomic)) != 0 && (access_rights & kLocalWrite) == 0) {
    return {StatusCode::kInvalidArgument, "remote write and atomic rights require local write"};
  }
  return {};
}

inline Status CheckMemoryLength(size_t length) {
  if (length == 0) return {StatusCode::kInvalidArgument, "memory of 0 bytes"};
  if (length <= kMaxMemoryBytes) return {};
  return {StatusCode::kOutOfMemory, "memory of " + std::to_string(length) + " bytes is more than this machine has"};
}

// The empty name, of memory without one, passes.
Status CheckMemoryName(const std::string& name);

// Of the fabric's records. A name's bytes include its NUL.
inline constexpr size_t kRecordNameBytes = 16;
inline constexpr size_t kRecordValueBytes = 112;
Status CheckRecordName(const std::string& name);
Status CheckRecord(const std::string& name, std::span<const std::byte> value);
// Of the records that no device owns.
Status CheckFabricRecord(const std::string& name, std::span<const std::byte> value);
// What CompareAndSetRecord returns if the record's version is not the expected one.
Status RecordIsAt(const std::string& name, uint64_t version, uint64_t expected);

inline Status CheckReceives(uint32_t rq_depth, const Cq* recv_cq, uint32_t max_wr) {
  if (rq_depth > max_wr) {
    return {StatusCode::kInvalidArgument,
            "rq_depth " + std::to_string(rq_depth) + " is above " + std::to_string(max_wr)};
  }
  if (rq_depth > 0 && recv_cq == nullptr) return {StatusCode::kInvalidArgument, "receives need a recv CQ"};
  return {};
}

inline Status CheckQp(const QpAttr& attr, uint32_t max_wr) {
  if (attr.send_cq == nullptr) return {StatusCode::kInvalidArgument, "a QP needs a send CQ"};
  if (attr.sq_depth == 0 || attr.sq_depth > max_wr) {
    return {StatusCode::kInvalidArgument, "sq_depth is not 1 to " + std::to_string(max_wr)};
  }
  if (attr.rq_depth > 0 && attr.type == QpType::kDci) {
    return {StatusCode::kInvalidArgument, "a DC initiator receives nothing: its rq_depth is 0"};
  }
  return CheckReceives(attr.rq_depth, attr.recv_cq, max_wr);
}

// The kBadState of a Qp in `state` that cannot go to `wanted` from there.
inline Status WrongState(QpState state, QpState wanted) {
  return {StatusCode::kBadState, "QP is in " + std::string(QpStateName(state)) + ", which does not lead to " +
                                     std::string(QpStateName(wanted))};
}

}  // namespace krcore::rnic

#endif  // KRCORE_RNIC_REQUEST_FORM_H_
