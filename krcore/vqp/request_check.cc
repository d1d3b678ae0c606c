#include "krcore/vqp/request_check.h"

namespace krcore::vqp {
// Not inlined, so that the loop has the registers for all that it compares with.
template <bool kAtomic>
[[gnu::noinline]] size_t LikeRequest::CountAlike(std::span<const WorkRequest> wrs) const {
  constexpr uint8_t kAllowedFlags = kKnownFlags & ~kInline;
  const Range local = local_, remote = remote_;
  const uint64_t longest = longest_;
  const uint16_t form = FormOf(wrs[0]);
  if (wrs[0].num_sge != 1) return 0;
  size_t count = 0;
  do {
    const WorkRequest& wr = wrs[count];
    if (FormOf(wr) != form || (wr.flags & ~kAllowedFlags) != 0 || wr.sg_list == nullptr) break;
    const Sge& sge = *wr.sg_list;
    const uint64_t length = sge.length;
    if (length - 1 >= longest) break;  // 0 is refused too
    if (sge.lkey != local.key || sge.addr - local.addr > local.length - length) break;
    if (wr.rkey != remote.key || wr.remote_addr - remote.addr > remote.length - length) break;
    if (kAtomic && (length != 8 || wr.remote_addr % 8 != 0)) break;
  } while (++count < wrs.size());
  return count;
}

size_t LikeRequest::CountAllowed(std::span<const WorkRequest> wrs) const {
  size_t allowed = 0;
  while (allowed < wrs.size()) {
    const std::span<const WorkRequest> rest = wrs.subspan(allowed);
    size_t alike = 0;
    switch (rest[0].opcode) {
      case Opcode::kRead:
      case Opcode::kWrite: alike = CountAlike<false>(rest); break;
      case Opcode::kCompareSwap:
      case Opcode::kFetchAdd: alike = CountAlike<true>(rest); break;
      default: break;
    }
    if (alike == 0) break;
    allowed += alike;
  }
  return allowed;
}

StatusCode CheckRequests(std::span<const WorkRequest> wrs, const RequestLimits& limits, const mr::RegionView& local,
                         std::span<const RemoteRegion> remote, LikeRequest* like, size_t* bad_index, bool* has_inline) {
  for (size_t i = like->CountAllowed(wrs); i < wrs.size();) {
    const WorkRequest& wr = wrs[i];
    uint64_t bytes;
    const StatusCode code = CheckRequest(wr, limits, local, remote, &bytes);
    if (code != StatusCode::kOk) [[unlikely]] {
      *bad_index = i;
      return code;
    }
    *has_inline |= (wr.flags & kInline) != 0;
    ++i;
    // Not for one request that is alone unlike, which costs less than to learn from it.
    if (i < wrs.size() || like->knows_nothing()) *like = LikeRequest(wr, limits, local, remote);
    if (i < wrs.size()) i += like->CountAllowed(wrs.subspan(i));
  }
  return StatusCode::kOk;
}

}  // namespace krcore::vqp
