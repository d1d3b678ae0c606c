// The checks a request passes before it may reach a queue that others share (KRCORE section 3.1): whatever this
// node can know to be wrong is refused to its sender.
#ifndef KRCORE_VQP_REQUEST_CHECK_H_
#define KRCORE_VQP_REQUEST_CHECK_H_

#include <cstdint>
#include <span>

#include "krcore/mr/region_table.h"
#include "krcore/node.h"
#include "krcore/status.h"
#include "krcore/types.h"

namespace krcore::vqp {

struct RequestLimits {
  uint32_t max_sge = 0;
  uint32_t max_inline_bytes = 0;
  uint64_t max_message_bytes = 0;
};

inline constexpr uint8_t kKnownFlags = kSignaled | kFence | kInline | kSolicited;

// kInvalidArgument: the request's form. kPermissionDenied: memory it names is not, or not wholly, in a live region of
// this node or a published one of the peer. kUnsupported: a message, which is not for here. A few nanoseconds; *bytes
// is the total length.
inline StatusCode CheckRequest(const WorkRequest& wr, const RequestLimits& limits, const mr::RegionView& local,
                               std::span<const RemoteRegion> remote, uint64_t* bytes) {
  const bool atomic = wr.opcode == Opcode::kCompareSwap || wr.opcode == Opcode::kFetchAdd;
  const bool one_sided = atomic || wr.opcode == Opcode::kRead || wr.opcode == Opcode::kWrite;
  if (!one_sided) [[unlikely]] {
    const bool two_sided =
        wr.opcode == Opcode::kSend || wr.opcode == Opcode::kSendImm || wr.opcode == Opcode::kWriteImm;
    return two_sided ? StatusCode::kUnsupported : StatusCode::kInvalidArgument;
  }
  if (wr.num_sge == 0 || wr.num_sge > limits.max_sge || wr.sg_list == nullptr || (wr.flags & ~kKnownFlags) != 0)
    return StatusCode::kInvalidArgument;

  // A read or atomic writes the SGEs, so these need an lkey; an inline payload is copied and does not.
  const bool is_inline = (wr.flags & kInline) != 0;
  if (is_inline && wr.opcode != Opcode::kWrite) return StatusCode::kInvalidArgument;
  const uint32_t needed = wr.opcode == Opcode::kWrite ? 0u : uint32_t{kLocalWrite};
  uint64_t total = 0;
  for (uint32_t i = 0; i < wr.num_sge; ++i) {
    const Sge& sge = wr.sg_list[i];
    if (sge.length == 0) return StatusCode::kInvalidArgument;  // means 2 GiB to some NICs
    total += sge.length;
    if (is_inline) continue;
    const mr::LocalRegion* region = local.Find(sge.lkey);
    if (region == nullptr || !region->Covers(sge.addr, sge.length) || (region->rights & needed) != needed)
      return StatusCode::kPermissionDenied;
  }
  if (atomic && (wr.num_sge != 1 || total != 8 || wr.remote_addr % 8 != 0)) return StatusCode::kInvalidArgument;
  if (total > limits.max_message_bytes || (is_inline && total > limits.max_inline_bytes))
    return StatusCode::kInvalidArgument;
  *bytes = total;

  for (const RemoteRegion& region : remote) {
    if (region.rkey != wr.rkey) continue;
    const bool covered = wr.remote_addr >= region.addr && total <= region.length &&
                         wr.remote_addr - region.addr <= region.length - total;
    return covered ? StatusCode::kOk : StatusCode::kPermissionDenied;
  }
  return StatusCode::kPermissionDenied;
}

}  // namespace krcore::vqp

#endif  // KRCORE_VQP_REQUEST_CHECK_H_
