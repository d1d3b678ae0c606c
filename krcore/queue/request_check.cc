#include "krcore/queue/request_check.h"

namespace krcore::queue {

size_t LikeRequest::CountAllowed(std::span<const WorkRequest> wrs) const {
  size_t count = 0;
  while (count < wrs.size() && Allows(wrs[count])) ++count;
  return count;
}

StatusCode CheckRequests(std::span<const WorkRequest> wrs, const RequestLimits& limits, const peers::RegionView& local,
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
    // Learns nothing from a single request that is unlike: that would cost more than its check.
    if (i < wrs.size() || like->knows_nothing()) *like = LikeRequest(wr, limits, local, remote);
    if (i < wrs.size()) i += like->CountAllowed(wrs.subspan(i));
  }
  return StatusCode::kOk;
}

}  // namespace krcore::queue
