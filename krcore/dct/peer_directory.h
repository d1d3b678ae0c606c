// PeerDirectory: the node-wide cache of DC metadata that makes qconnect cheap.
//
// Thread safety: from any thread; the mutex is not held across a verb. Control path only.
#ifndef KRCORE_DCT_PEER_DIRECTORY_H_
#define KRCORE_DCT_PEER_DIRECTORY_H_

#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_map>

#include "krcore/clock.h"
#include "krcore/dct/peer.h"
#include "krcore/meta/meta_client.h"
#include "krcore/rnic/rnic.h"

namespace krcore::dct {

class PeerDirectory {
 public:
  PeerDirectory(rnic::Device& device, meta::MetaClient& meta, Clock& clock)
      : device_(device), meta_(meta), clock_(clock) {}

  // The cached metadata of a peer; null if there is none.
  std::shared_ptr<const Peer> Cached(NodeId node);
  // Looks the peer up at the metadata server and caches what it found. kNotFound: no record. kUnavailable: its
  // record is of a dead incarnation, or no metadata server.
  Result<std::shared_ptr<const Peer>> Refresh(NodeId node, Deadline deadline);
  struct Renewed {
    std::shared_ptr<const Peer> peer;  // to be used from now on; null: that incarnation is gone
    bool looked_up = false;            // ... by this call; else another thread of the node had done it
    bool extended = false;             // without a lookup, because no metadata server answers
  };
  // For a peer whose lease has run out at `now_ns`, on Clock::CoarseNowNs: looks its record up again, once for the
  // whole node. What is returned has a lease that has not run out. Waits for a metadata server some milliseconds at
  // most.
  Renewed Renew(const std::shared_ptr<const Peer>& peer, int64_t now_ns);
  // Forgets `peer` unless it has been refreshed since, so that the next qconnect anywhere on the node looks anew.
  void Invalidate(const std::shared_ptr<const Peer>& peer);

 private:
  rnic::Device& device_;
  meta::MetaClient& meta_;
  Clock& clock_;
  std::mutex renew_mutex_;  // one renewal at a time
  std::mutex mutex_;
  std::unordered_map<NodeId, std::shared_ptr<const Peer>> peers_;  // guarded by mutex_
};

}  // namespace krcore::dct

#endif  // KRCORE_DCT_PEER_DIRECTORY_H_
