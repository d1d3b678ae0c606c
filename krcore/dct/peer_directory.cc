#include "krcore/dct/peer_directory.h"

#include <algorithm>
#include <string>

namespace krcore::dct {
namespace {

// A lookup that raced with a newer one must not overwrite it.
bool SameTarget(const Peer& a, const Peer& b) {
  return a.target.address.incarnation == b.target.address.incarnation && a.target.dct_num == b.target.dct_num &&
         a.target.dc_key == b.target.dc_key && a.region_count == b.region_count &&
         std::equal(a.regions.begin(), a.regions.begin() + a.region_count, b.regions.begin(),
                    [](const RemoteRegion& x, const RemoteRegion& y) {
                      return x.addr == y.addr && x.length == y.length && x.rkey == y.rkey && x.tag == y.tag;
                    });
}

}  // namespace

std::shared_ptr<const Peer> PeerDirectory::Cached(NodeId node) {
  std::lock_guard lock(mutex_);
  const auto found = peers_.find(node);
  return found == peers_.end() ? nullptr : found->second;
}

Result<std::shared_ptr<const Peer>> PeerDirectory::Refresh(NodeId node, Deadline deadline) {
  auto record = meta_.Lookup(meta::NodeKey(node), deadline);
  if (!record.ok()) {
    if (record.status() == StatusCode::kNotFound)
      return Status(StatusCode::kNotFound, "node " + std::to_string(node) + " has not published itself");
    return record.status();
  }
  const meta::NodePayload payload = record->node();
  if (record->kind != meta::RecordKind::kNode || record->address.node != node ||
      payload.region_count > kMaxRegionsPerNode)
    return Status(StatusCode::kCorrupt, "the record of node " + std::to_string(node) + " is not one of a node");
  if (device_.QueryPeer(record->address) == rnic::PeerState::kDead)
    return Status(StatusCode::kUnavailable, "node " + std::to_string(node) + " (incarnation " +
                                                std::to_string(record->address.incarnation) + ") is dead");
  auto peer = std::make_shared<Peer>();
  peer->target = {record->address, payload.dct_num, payload.dc_key};
  peer->region_count = payload.region_count;
  std::copy_n(payload.regions, peer->region_count, peer->regions.begin());

  std::lock_guard lock(mutex_);
  std::shared_ptr<const Peer>& cached = peers_[node];
  if (cached && SameTarget(*cached, *peer)) return cached;  // keeps its address handle
  auto ah = device_.CreateAddressHandle(record->address);
  if (!ah.ok()) {
    if (!cached) peers_.erase(node);
    return Status(StatusCode::kUnavailable, "address handle: " + ah.status().ToString());
  }
  peer->ah = *std::move(ah);
  cached = std::move(peer);
  return cached;
}

void PeerDirectory::Invalidate(const std::shared_ptr<const Peer>& peer) {
  std::lock_guard lock(mutex_);
  const auto found = peers_.find(peer->target.address.node);
  if (found != peers_.end() && found->second == peer) peers_.erase(found);
}

}  // namespace krcore::dct
