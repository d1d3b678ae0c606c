#include "krcore/rnic.h"

#include <sys/mman.h>

#include <cerrno>

#ifndef MADV_COLLAPSE
#  define MADV_COLLAPSE 25  // Linux 6.1; Debian 12's libc headers are older
#endif

namespace krcore::rnic {

std::string_view QpStateName(QpState state) {
  switch (state) {
    case QpState::kReset: return "RESET";
    case QpState::kInit: return "INIT";
    case QpState::kRtr: return "RTR";
    case QpState::kRts: return "RTS";
    case QpState::kErr: return "ERR";
  }
  return "unknown QP state";
}

Status WrongState(QpState state, QpState wanted) {
  return {StatusCode::kBadState, "QP is in " + std::string(QpStateName(state)) + ", which does not lead to " +
                                     std::string(QpStateName(wanted))};
}

bool Qp::Execute(std::span<const WorkRequest>, const Reach&) { return false; }

void Qp::Prefetch(std::span<const WorkRequest>, const AddressHandle*, uint32_t) {}

namespace {

constexpr int kCollapseTries = 4;  // the kernel answers EAGAIN while it cannot isolate a page

}  // namespace

Status CollapseToHugePages(std::span<std::byte> memory, size_t offset, size_t length) {
  if (offset > memory.size() || length > memory.size() - offset) {
    return {StatusCode::kInvalidArgument, "range to collapse lies outside the memory"};
  }
  const size_t begin = (offset + kHugePageBytes - 1) / kHugePageBytes * kHugePageBytes;
  const size_t end = (offset + length) / kHugePageBytes * kHugePageBytes;
  // Works page by huge page, so that a page that the kernel cannot take now does not keep the others back.
  for (size_t at = begin; at < end; at += kHugePageBytes) {
    int error = 0;
    for (int tries = 0; tries < kCollapseTries; ++tries) {
      error = madvise(memory.data() + at, kHugePageBytes, MADV_COLLAPSE) == 0 ? 0 : errno;
      if (error != EAGAIN) break;
    }
    if (error == EINVAL) return {StatusCode::kUnsupported, "this kernel cannot collapse this memory to huge pages"};
    if (error == ENOMEM) return {StatusCode::kOutOfMemory, "no huge page is free"};
    if (error != 0 && error != EAGAIN && error != EBUSY)
      return Status::FromErrno(error, "cannot collapse to huge pages");
  }
  return {};
}

}  // namespace krcore::rnic
