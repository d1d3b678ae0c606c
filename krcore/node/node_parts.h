// What a node is made of besides its device: the regions that it exposes, and its answers to those who ask for an RC
// connection.
#ifndef KRCORE_NODE_NODE_PARTS_H_
#define KRCORE_NODE_NODE_PARTS_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

#include "krcore/node.h"
#include "krcore/peers/meta_table.h"
#include "krcore/peers/rc_desk.h"
#include "krcore/rnic.h"

namespace krcore::node {

// A node's regions with remote rights, and which of them its record in the metadata servers names.
//
// Thread safety: any thread may call.
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

// A node's desk (peers/rc_desk.h), and the half of an RC connection that it makes for whoever asks there.
class RcAnswering {
 public:
  // Without it there is no desk, and nobody is answered. `desk`: a region of places.
  Status Start(rnic::Device& device, rnic::Pd& pd, Clock& clock, std::unique_ptr<Region> desk) {
    desk_ = std::move(desk);
    auto acceptor = peers::Acceptor::Create(device, pd, clock, places());
    if (!acceptor.ok()) return acceptor.status();
    acceptor_ = *std::move(acceptor);
    return {};
  }
  std::span<peers::DeskPlace> places() const {
    if (desk_ == nullptr) return {};
    const std::span<std::byte> bytes = desk_->bytes();
    return {reinterpret_cast<peers::DeskPlace*>(bytes.data()), bytes.size() / sizeof(peers::DeskPlace)};
  }
  uint32_t rkey() const { return desk_ ? desk_->rkey() : 0; }
  // As Acceptor::Poll; any thread may call.
  size_t Poll() {
    std::lock_guard lock(mutex_);
    return acceptor_ ? acceptor_->Poll() : 0;
  }

 private:
  std::unique_ptr<Region> desk_;
  std::mutex mutex_;
  std::unique_ptr<peers::Acceptor> acceptor_;  // guarded by mutex_
};

}  // namespace krcore::node

#endif  // KRCORE_NODE_NODE_PARTS_H_
