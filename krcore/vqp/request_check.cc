#include "krcore/vqp/request_check.h"

#include <algorithm>
#include <bit>

namespace krcore::vqp {

size_t LikeRequest::CountAllowed(std::span<const WorkRequest> wrs) const {
  size_t count = 0;
  while (count < wrs.size() && Allows(wrs[count])) ++count;
  return count;
}

StatusCode CheckRequests(std::span<const WorkRequest> wrs, const RequestLimits& limits, const RegionView& local,
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

void RegionTable::Add(const LocalRegion& region) {
  std::lock_guard lock(mutex_);
  regions_.push_back(region);
  version_.fetch_add(1, std::memory_order_release);
}

void RegionTable::Remove(uint32_t lkey) {
  std::lock_guard lock(mutex_);
  std::erase_if(regions_, [lkey](const LocalRegion& region) { return region.lkey == lkey; });
  version_.fetch_add(1, std::memory_order_release);
}

std::vector<LocalRegion> RegionTable::Copy() const {
  std::lock_guard lock(mutex_);
  return regions_;
}

void RegionView::Refresh() {
  version_ = table_.version();  // before the copy: a change in between is then taken over next time
  const std::vector<LocalRegion> regions = table_.Copy();
  const size_t places = std::bit_ceil(std::max<size_t>(8, 2 * regions.size()));
  places_.assign(places, LocalRegion{});
  mask_ = static_cast<uint32_t>(places - 1);
  last_ = places_.data();
  for (const LocalRegion& region : regions) {
    uint32_t i = Hash(region.lkey);
    while (places_[i & mask_].length != 0) ++i;
    places_[i & mask_] = region;
  }
}

}  // namespace krcore::vqp
