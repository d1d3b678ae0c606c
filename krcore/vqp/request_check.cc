#include "krcore/vqp/request_check.h"

namespace krcore::vqp {

// Not inlined, so that the loop has the registers for all that it compares with.
[[gnu::noinline]] size_t LikeRequest::CountAllowed(std::span<const WorkRequest> wrs) const {
  const Range local = local_, remote = remote_;
  const uint64_t longest = longest_;
  size_t count = 0;
  for (const WorkRequest& wr : wrs) {
    const auto opcode = static_cast<uint32_t>(wr.opcode);
    if (opcode >= 32 || (kOneSided >> opcode & 1) == 0 || wr.num_sge != 1 || wr.sg_list == nullptr ||
        (wr.flags & ~(kKnownFlags & ~kInline)) != 0)
      break;
    const Sge& sge = *wr.sg_list;
    const uint64_t length = sge.length;
    if (length - 1 >= longest) break;  // 0 is refused too
    if (sge.lkey != local.key || sge.addr - local.addr > local.length - length) break;
    if (wr.rkey != remote.key || wr.remote_addr - remote.addr > remote.length - length) break;
    if ((kAtomic >> opcode & 1) != 0 && (length != 8 || wr.remote_addr % 8 != 0)) break;
    ++count;
  }
  return count;
}

StatusCode CheckRequests(std::span<const WorkRequest> wrs, const RequestLimits& limits, const mr::RegionView& local,
                         std::span<const RemoteRegion> remote, size_t* bad_index, bool* has_inline) {
  for (size_t i = 0; i < wrs.size();) {
    const WorkRequest& wr = wrs[i];
    uint64_t bytes;
    const StatusCode code = CheckRequest(wr, limits, local, remote, &bytes);
    if (code != StatusCode::kOk) [[unlikely]] {
      *bad_index = i;
      return code;
    }
    *has_inline |= (wr.flags & kInline) != 0;
    ++i;
    if (i < wrs.size()) i += LikeRequest(wr, limits, local, remote).CountAllowed(wrs.subspan(i));
  }
  return StatusCode::kOk;
}

}  // namespace krcore::vqp
