// What the two software NICs, sw and sim, have in common: their limits, and what they refuse to make.
#ifndef KRCORE_RNIC_SOFTWARE_NIC_H_
#define KRCORE_RNIC_SOFTWARE_NIC_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "krcore/rnic.h"

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

inline Status CheckRegistration(const void* addr, size_t length, uint32_t access_rights) {
  if (addr == nullptr || length == 0) return {StatusCode::kInvalidArgument, "an MR needs an address and a length"};
  if ((access_rights & (kRemoteWrite | kRemoteAtomic)) != 0 && (access_rights & kLocalWrite) == 0) {
    return {StatusCode::kInvalidArgument, "remote write and atomic rights require local write"};
  }
  return {};
}

inline Status CheckCqDepth(uint32_t depth) {
  if (depth > 0 && depth <= kMaxCqe) return {};
  return {StatusCode::kInvalidArgument, "CQ depth is not 1 to " + std::to_string(kMaxCqe)};
}

inline Status CheckReceives(uint32_t rq_depth, uint32_t max_recv_bytes) {
  if (rq_depth > kMaxQpWr) {
    return {StatusCode::kInvalidArgument,
            "rq_depth " + std::to_string(rq_depth) + " is above " + std::to_string(kMaxQpWr)};
  }
  if (rq_depth > 0 && max_recv_bytes > kMaxRecvBytes) {
    return {StatusCode::kInvalidArgument, "max_recv_bytes is above " + std::to_string(kMaxRecvBytes)};
  }
  return {};
}

inline Status CheckQp(const QpAttr& attr) {
  if (attr.send_cq == nullptr) return {StatusCode::kInvalidArgument, "a QP needs a send CQ"};
  if (attr.sq_depth == 0 || attr.sq_depth > kMaxQpWr) {
    return {StatusCode::kInvalidArgument, "sq_depth is not 1 to " + std::to_string(kMaxQpWr)};
  }
  if (attr.rq_depth > 0 && (attr.recv_cq == nullptr || attr.type == QpType::kDci)) {
    return {StatusCode::kInvalidArgument, "receives need a recv CQ, and a DC initiator has none"};
  }
  return CheckReceives(attr.rq_depth, attr.max_recv_bytes);
}

inline Status CheckDct(const DctAttr& attr) {
  if (attr.rq_depth > 0 && attr.recv_cq == nullptr) {
    return {StatusCode::kInvalidArgument, "receives need a recv CQ"};
  }
  return CheckReceives(attr.rq_depth, attr.max_recv_bytes);
}

}  // namespace krcore::rnic

#endif  // KRCORE_RNIC_SOFTWARE_NIC_H_
