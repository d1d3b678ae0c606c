#include "krcore/vqp/request_check.h"

namespace krcore::vqp {
namespace {

// Of those at the beginning. Not inlined, so that the loop has the registers for all that it compares with.
template <bool kAtomic>
[[gnu::noinline]] size_t CountAlike(const LikeRequest& like, std::span<const WorkRequest> wrs) {
  const AlikeRequests<kAtomic> alike(like, wrs[0]);
  size_t count = 0;
  while (count < wrs.size() && alike.Allows(wrs[count])) ++count;
  return count;
}

}  // namespace

size_t LikeRequest::CountAllowed(std::span<const WorkRequest> wrs) const {
  size_t allowed = 0;
  while (allowed < wrs.size()) {
    const std::span<const WorkRequest> rest = wrs.subspan(allowed);
    size_t alike = 0;
    if (IsReadOrWrite(rest[0].opcode))
      alike = CountAlike<false>(*this, rest);
    else if (IsAtomic(rest[0].opcode))
      alike = CountAlike<true>(*this, rest);
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
