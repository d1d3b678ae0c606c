#include "krcore/status.h"

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <system_error>

#include "krcore/base/os.h"
#include "krcore/types.h"

namespace krcore {

std::string_view StatusCodeName(StatusCode code) {
  switch (code) {
    case StatusCode::kOk: return "ok";
    case StatusCode::kNotFound: return "not found";
    case StatusCode::kExists: return "exists";
    case StatusCode::kInvalidArgument: return "invalid argument";
    case StatusCode::kOutOfMemory: return "out of memory";
    case StatusCode::kUnavailable: return "unavailable";
    case StatusCode::kTimeout: return "timeout";
    case StatusCode::kUnknown: return "unknown outcome";
    case StatusCode::kUnsupported: return "unsupported";
    case StatusCode::kPermissionDenied: return "permission denied";
    case StatusCode::kQueueFull: return "queue full";
    case StatusCode::kBadState: return "bad state";
    case StatusCode::kCorrupt: return "corrupt";
    case StatusCode::kInternal: return "internal error";
  }
  return "unknown status code";
}

namespace {

StatusCode CodeFromErrno(int errnum) {
  switch (errnum) {
    case 0: return StatusCode::kOk;
    case ENOENT: return StatusCode::kNotFound;
    case EEXIST: return StatusCode::kExists;
    case EINVAL:
    case ENAMETOOLONG: return StatusCode::kInvalidArgument;
    case ENOMEM:
    case ENOSPC: return StatusCode::kOutOfMemory;
    case EACCES:
    case EPERM: return StatusCode::kPermissionDenied;
    case EOPNOTSUPP:
    case ENOSYS: return StatusCode::kUnsupported;
    case ETIMEDOUT: return StatusCode::kTimeout;
    case ECONNREFUSED:
    case EHOSTUNREACH:
    case ENETUNREACH:
    case ENODEV:
    case EMFILE:
    case ENFILE:
    case EAGAIN: return StatusCode::kUnavailable;
    default: return StatusCode::kInternal;
  }
}

}  // namespace

Status Status::FromErrno(int errnum, std::string what) {
  what += ": ";
  what += std::generic_category().message(errnum);
  what += LimitsOf(errnum);
  return {CodeFromErrno(errnum), std::move(what)};
}

void DieOfMissingValue(const Status& status) {
  std::fprintf(stderr, "Result::value() called on: %s\n", status.ToString().c_str());
  std::abort();
}

std::string Status::ToString() const {
  std::string text(StatusCodeName(code_));
  if (message_) {
    text += ": ";
    text += *message_;
  }
  return text;
}

// ---- names of opcodes and completion statuses

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
