#include "krcore/peers/region_table.h"

#include <algorithm>
#include <bit>

namespace krcore::peers {

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
  version_ = table_.version();  // before the copy: a change in between is taken over next time
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

}  // namespace krcore::peers
