// PeerDirectory: the node-wide cache of DC metadata that makes qconnect cheap, in front of the host's (host_cache.h).
//
// Thread safety: from any thread; the mutex is not held across a verb. Control path only.
#ifndef KRCORE_DCT_PEER_DIRECTORY_H_
#define KRCORE_DCT_PEER_DIRECTORY_H_

#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_map>

#include "krcore/clock.h"
#include "krcore/dct/host_cache.h"
#include "krcore/dct/peer.h"
#include "krcore/meta/meta_client.h"
#include "krcore/rnic/rnic.h"

namespace krcore::dct {

class PeerDirectory {
 public:
  // share_host: whether to use what the host's processes share.
  PeerDirectory(rnic::Device& device, meta::MetaClient& meta, Clock& clock, bool share_host)
      : device_(device), meta_(meta), clock_(clock), share_host_(share_host), host_(device.HostMemory()) {}

  // The cached metadata of a peer, the node's or, with a lease that has not run out, the host's; null if there is none.
  std::shared_ptr<const Peer> Cached(NodeId node);
  // Looks the peer up at the metadata server and caches what it found. kNotFound: no record. kUnavailable: its
  // record is of a dead incarnation (where that is asked over the network, perhaps not if it lived a second ago), or no
  // metadata server.
  Result<std::shared_ptr<const Peer>> Refresh(NodeId node, Deadline deadline);
  struct Renewed {
    std::shared_ptr<const Peer> peer;  // to be used from now on; null: that incarnation is gone
    bool looked_up = false;            // ... by this call; else another thread or process of the host had done it
    bool extended = false;             // without a lookup, because no metadata server answers
  };
  // For a peer whose lease is to be renewed, or has run out, at `now_ns`, on Clock::CoarseNowNs: looks its record up
  // again, once for the whole node and, but for processes that do so at the same moment, host. What is returned has a
  // lease that has not run out. Waits for a metadata server, and for the fabric, some milliseconds at most; while the
  // lease lasts, for no other thread.
  Renewed Renew(const std::shared_ptr<const Peer>& peer, int64_t now_ns);
  // Forgets `peer` unless it has been refreshed since, so that the next qconnect anywhere on the node looks anew.
  void Invalidate(const std::shared_ptr<const Peer>& peer);
  // Forgets what the host's processes know of `node`, which is one of them and has published itself anew, whether it
  // shares anything or not: leases would have them use what it said before for a while.
  void ForgetOnHost(NodeId node) { host_.Drop(node); }

 private:
  // A lease is renewed so long before it runs out.
  int64_t RenewAheadNs() const { return std::max<int64_t>(meta_.mr_lease_ns() / 4, 0); }
  // Makes `record`, with its lease, the cached metadata of its node unless that is newer.
  Result<std::shared_ptr<const Peer>> Use(const HostRecord& record);
  // The host's metadata of `node`. Null: there is none whose lease lasts longer than `now_ns`.
  std::shared_ptr<const Peer> FromHost(NodeId node, int64_t now_ns);
  std::shared_ptr<const Peer> Own(NodeId node);
  bool IsDead(const rnic::DeviceAddress& address, Deadline deadline);

  struct Alive {
    uint32_t incarnation;
    int64_t asked_ns;
  };
  rnic::Device& device_;
  meta::MetaClient& meta_;
  Clock& clock_;
  const bool share_host_;
  HostCache host_;
  std::mutex renew_mutex_;  // one renewal at a time
  std::mutex mutex_;
  std::unordered_map<NodeId, std::shared_ptr<const Peer>> peers_;  // guarded by mutex_
  std::unordered_map<NodeId, Alive> alive_;                        // likewise; where liveness is asked over the network
};

}  // namespace krcore::dct

#endif  // KRCORE_DCT_PEER_DIRECTORY_H_
