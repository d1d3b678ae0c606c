// ExposedRegions: a node's regions with remote rights, and which of them its record in the metadata servers names.
//
// Thread safety: any thread may call.
#ifndef KRCORE_NODE_EXPOSED_REGIONS_H_
#define KRCORE_NODE_EXPOSED_REGIONS_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <vector>

#include "krcore/node.h"
#include "krcore/peers/meta_table.h"
#include "krcore/peers/rc_desk.h"

namespace krcore::node {

class ExposedRegions {
 public:
  // Whether a record has room for one more.
  bool HasRoom() {
    std::lock_guard lock(mutex_);
    const auto listed = std::count_if(regions_.begin(), regions_.end(), [](const Exposed& e) { return !e.withdrawn; });
    return static_cast<size_t>(listed) != kMaxRegionsPerNode;
  }
  void Add(const RemoteRegion& region) {
    std::lock_guard lock(mutex_);
    regions_.push_back({region});
  }
  void Remove(uint32_t rkey) {
    std::lock_guard lock(mutex_);
    std::erase_if(regions_, [rkey](const Exposed& exposed) { return exposed.region.rkey == rkey; });
  }
  // No record names it from now on. Returns whether one has.
  bool Withdraw(uint32_t rkey) {
    bool published = false;
    std::lock_guard lock(mutex_);
    for (Exposed& exposed : regions_) {
      if (exposed.region.rkey != rkey) continue;
      exposed.withdrawn = true;
      published = exposed.published;
    }
    return published;
  }
  // Names them in a record that is about to be published.
  void PutInto(peers::NodePayload* payload) {
    std::lock_guard lock(mutex_);
    for (Exposed& exposed : regions_) {
      if (exposed.withdrawn) continue;
      exposed.published = true;
      payload->regions[payload->region_count++] = exposed.region;
    }
  }
  // Those that a record names, without krcore's own.
  std::vector<RemoteRegion> Published() {
    std::lock_guard lock(mutex_);
    std::vector<RemoteRegion> regions;
    for (const Exposed& exposed : regions_)
      if (exposed.published && !exposed.withdrawn && exposed.region.tag != peers::kDeskTag)
        regions.push_back(exposed.region);
    return regions;
  }

 private:
  struct Exposed {
    RemoteRegion region;
    bool published = false;  // or about to be
    bool withdrawn = false;
  };

  std::mutex mutex_;
  std::vector<Exposed> regions_;  // guarded by mutex_
};

}  // namespace krcore::node

#endif  // KRCORE_NODE_EXPOSED_REGIONS_H_
