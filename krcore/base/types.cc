#include "krcore/types.h"

namespace krcore {

std::string_view OpcodeName(Opcode opcode) {
  switch (opcode) {
    case Opcode::kRead: return "READ";
    case Opcode::kWrite: return "WRITE";
    case Opcode::kWriteImm: return "WRITE_WITH_IMM";
    case Opcode::kSend: return "SEND";
    case Opcode::kSendImm: return "SEND_WITH_IMM";
    case Opcode::kCompareSwap: return "CMP_AND_SWP";
    case Opcode::kFetchAdd: return "FETCH_AND_ADD";
    case Opcode::kRecv: return "RECV";
    case Opcode::kRecvWithImm: return "RECV_RDMA_WITH_IMM";
  }
  return "unknown opcode";
}

std::string_view WcStatusName(WcStatus status) {
  switch (status) {
    case WcStatus::kSuccess: return "success";
    case WcStatus::kLocalLengthError: return "local length error";
    case WcStatus::kLocalQpError: return "local QP operation error";
    case WcStatus::kLocalProtectionError: return "local protection error";
    case WcStatus::kFlushed: return "work request flushed";
    case WcStatus::kRemoteInvalidRequest: return "remote invalid request";
    case WcStatus::kRemoteAccessError: return "remote access error";
    case WcStatus::kRemoteOperationError: return "remote operation error";
    case WcStatus::kRetryExceeded: return "transport retry counter exceeded";
    case WcStatus::kRnrRetryExceeded: return "RNR retry counter exceeded";
    case WcStatus::kGeneralError: return "general error";
    case WcStatus::kDiscarded: return "discarded before it was posted";
  }
  return "unknown completion status";
}

}  // namespace krcore
