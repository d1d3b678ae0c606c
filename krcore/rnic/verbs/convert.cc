#include "krcore/rnic/verbs/convert.h"

#include <arpa/inet.h>

#include <cerrno>
#include <cstring>

#include "krcore/base/limits.h"

namespace krcore::rnic::verbs {

WcStatus FromWcStatus(ibv_wc_status status) {
  switch (status) {
    case IBV_WC_SUCCESS: return WcStatus::kSuccess;
    case IBV_WC_LOC_LEN_ERR: return WcStatus::kLocalLengthError;
    case IBV_WC_LOC_QP_OP_ERR: return WcStatus::kLocalQpError;
    case IBV_WC_LOC_PROT_ERR:
    case IBV_WC_LOC_ACCESS_ERR: return WcStatus::kLocalProtectionError;
    case IBV_WC_WR_FLUSH_ERR: return WcStatus::kFlushed;
    case IBV_WC_REM_INV_REQ_ERR: return WcStatus::kRemoteInvalidRequest;
    case IBV_WC_REM_ACCESS_ERR: return WcStatus::kRemoteAccessError;
    case IBV_WC_REM_OP_ERR: return WcStatus::kRemoteOperationError;
    case IBV_WC_RETRY_EXC_ERR:
    case IBV_WC_RESP_TIMEOUT_ERR: return WcStatus::kRetryExceeded;
    case IBV_WC_RNR_RETRY_EXC_ERR: return WcStatus::kRnrRetryExceeded;
    default: return WcStatus::kGeneralError;
  }
}

void FillReceived(const ibv_wc& wc, Completion* completion) {
  completion->status = FromWcStatus(wc.status);
  completion->opcode = Opcode::kRecv;
  if (wc.status != IBV_WC_SUCCESS) return;
  if (wc.opcode == IBV_WC_RECV_RDMA_WITH_IMM) completion->opcode = Opcode::kRecvWithImm;
  completion->byte_len = wc.byte_len;
  if ((wc.wc_flags & IBV_WC_WITH_IMM) != 0) {
    completion->flags |= kWithImm;
    completion->imm = ntohl(wc.imm_data);
  }
}

ibv_wr_opcode ToWrOpcode(Opcode opcode) {
  switch (opcode) {
    case Opcode::kRead: return IBV_WR_RDMA_READ;
    case Opcode::kWrite: return IBV_WR_RDMA_WRITE;
    case Opcode::kWriteImm: return IBV_WR_RDMA_WRITE_WITH_IMM;
    case Opcode::kSend: return IBV_WR_SEND;
    case Opcode::kSendImm: return IBV_WR_SEND_WITH_IMM;
    case Opcode::kCompareSwap: return IBV_WR_ATOMIC_CMP_AND_SWP;
    case Opcode::kFetchAdd: return IBV_WR_ATOMIC_FETCH_AND_ADD;
    case Opcode::kRecv:
    case Opcode::kRecvWithImm: break;  // never posted
  }
  return IBV_WR_SEND;
}

unsigned int ToAccessFlags(uint32_t access_rights) {
  unsigned int flags = 0;
  if ((access_rights & kLocalWrite) != 0) flags |= IBV_ACCESS_LOCAL_WRITE;
  if ((access_rights & kRemoteRead) != 0) flags |= IBV_ACCESS_REMOTE_READ;
  if ((access_rights & kRemoteWrite) != 0) flags |= IBV_ACCESS_REMOTE_WRITE;
  if ((access_rights & kRemoteAtomic) != 0) flags |= IBV_ACCESS_REMOTE_ATOMIC;
  return flags;
}

unsigned int ToSendFlags(uint8_t flags) {
  unsigned int converted = 0;
  if ((flags & kSignaled) != 0) converted |= IBV_SEND_SIGNALED;
  if ((flags & kFence) != 0) converted |= IBV_SEND_FENCE;
  if ((flags & kInline) != 0) converted |= IBV_SEND_INLINE;
  if ((flags & kSolicited) != 0) converted |= IBV_SEND_SOLICITED;
  return converted;
}

const char* DcKindName(DcKind kind) {
  switch (kind) {
    case DcKind::kSoftware: return "DC in software";
    case DcKind::kMlx5V1: return "DC of Connect-IB and ConnectX-4";
    case DcKind::kMlx5V2: return "DC of ConnectX-5 and newer";
  }
  return "DC of a kind that is not known here";
}

PortAddress PortOf(const DeviceAddress& address) {
  PortAddress port;
  std::memcpy(&port, address.bytes, sizeof(port));
  return port;
}

Status FailedCall(int error, const std::string& what) {
  const Status status = Status::FromErrno(error != 0 ? error : EIO, "cannot " + what);
  // What a NIC reads and writes is locked.
  return error == ENOMEM ? Status(status.code(), std::string(status.message()) + LimitOfLockedMemory()) : status;
}

}  // namespace krcore::rnic::verbs
