// The local MRs of a Node, against which every SGE is checked before it reaches a shared queue.
#ifndef KRCORE_PEERS_REGION_TABLE_H_
#define KRCORE_PEERS_REGION_TABLE_H_

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <vector>

namespace krcore::peers {

struct LocalRegion {
  uint64_t addr = 0;
  uint64_t length = 0;  // 0: an empty place of a RegionView
  uint32_t lkey = 0;
  uint32_t rights = 0;  // of AccessRights
  uint32_t rkey = 0;

  bool Covers(uint64_t sge_addr, uint64_t sge_length) const {
    return sge_addr >= addr && sge_length <= length && sge_addr - addr <= length - sge_length;
  }
};

// The table changes rarely (when a region is created or destroyed) and is read for every SGE. So each pool reads a
// private copy, RegionView, and compares one version number per batch.
//
// Thread safety: any thread may use RegionTable; a RegionView belongs to one thread.
class RegionTable {
 public:
  void Add(const LocalRegion& region) {
    std::lock_guard lock(mutex_);
    regions_.push_back(region);
    version_.fetch_add(1, std::memory_order_release);
  }
  void Remove(uint32_t lkey) {
    std::lock_guard lock(mutex_);
    std::erase_if(regions_, [lkey](const LocalRegion& region) { return region.lkey == lkey; });
    version_.fetch_add(1, std::memory_order_release);
  }
  std::vector<LocalRegion> Copy() const {
    std::lock_guard lock(mutex_);
    return regions_;
  }
  // Acquire; pairs with the release in Add and Remove, so that a Copy() made after a new version was seen includes it.
  uint64_t version() const { return version_.load(std::memory_order_acquire); }

 private:
  mutable std::mutex mutex_;
  std::vector<LocalRegion> regions_;  // guarded by mutex_
  std::atomic<uint64_t> version_{1};
};

class RegionView {
 public:
  explicit RegionView(const RegionTable& table) : table_(table) { Refresh(); }
  // Call once per batch: takes over changes made since. Allocates only if there were any.
  void Sync() {
    if (table_.version() != version_) [[unlikely]]
      Refresh();
  }
  // Version of what it has taken over, never 0.
  uint64_t version() const { return version_; }
  // Returns null if no live region has this key.
  const LocalRegion* Find(uint32_t lkey) const {
    if (last_->lkey == lkey && last_->length != 0) return last_;
    for (uint32_t i = Hash(lkey);; ++i) {
      const LocalRegion& place = places_[i & mask_];
      if (place.length == 0) return nullptr;
      if (place.lkey == lkey) return last_ = &place;
    }
  }
  size_t memory_bytes() const { return places_.size() * sizeof(LocalRegion); }

 private:
  void Refresh() {
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
  static uint32_t Hash(uint32_t lkey) { return (lkey * 0x9E3779B1u) >> 16; }

  const RegionTable& table_;
  uint64_t version_ = 0;
  std::vector<LocalRegion> places_;  // open addressing, at most half full
  uint32_t mask_ = 0;
  mutable const LocalRegion* last_ = nullptr;  // consecutive SGEs usually name one region
};

}  // namespace krcore::peers

#endif  // KRCORE_PEERS_REGION_TABLE_H_
