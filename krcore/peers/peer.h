// Peers, and the DC initiators and targets that reach them.
#ifndef KRCORE_PEERS_PEER_H_
#define KRCORE_PEERS_PEER_H_

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <span>

#include "krcore/base/os.h"
#include "krcore/node.h"
#include "krcore/rnic.h"
#include "krcore/status.h"

namespace krcore::peers {

// Where requests to a DC target go. The key includes the target's incarnation, so that a request meant for a dead
// process is refused by its successor.
struct Target {
  rnic::DeviceAddress address;
  uint32_t dct_num = 0;
  uint64_t dc_key = 0;
};

// Peer: all that a queue needs to reach a node through a shared DC initiator. Immutable once made, except for its
// lease, so queues of any thread share one.
struct Peer {
  Target target;
  uint32_t sequence = 0;  // of its metadata record
  std::array<RemoteRegion, kMaxRegionsPerNode> regions;
  uint32_t region_count = 0;
  RemoteRegion desk;  // where it takes requests for RC connections (peers/rc_desk.h); length 0: it does not
  std::shared_ptr<const rnic::AddressHandle> ah;

  std::span<const RemoteRegion> region_span() const { return {regions.data(), region_count}; }

  // The time at which the regions must have been looked up again before another request names them. Relaxed: a number
  // on its own, and a thread that reads an old one looks up once more.
  int64_t lease_until_ns() const { return lease_until_ns_.load(std::memory_order_relaxed); }
  // The time from which a user of the regions should look them up: it is earlier, so that queues which connect
  // meanwhile find a lease that lasts. Relaxed, likewise.
  int64_t renew_ns() const { return renew_ns_.load(std::memory_order_relaxed); }
  void StartLease(int64_t until_ns, int64_t renew_ns) const {
    lease_until_ns_.store(until_ns, std::memory_order_relaxed);
    renew_ns_.store(renew_ns, std::memory_order_relaxed);
  }
  void Extend(int64_t until_ns, int64_t renew_ns) const {
    if (until_ns > lease_until_ns()) StartLease(until_ns, renew_ns);
  }
  // A thread is looking the peer up, or has done so in vain.
  void PutRenewalOff() const { renew_ns_.store(lease_until_ns(), std::memory_order_relaxed); }

 private:
  // INT64_MAX unless the peer came from the metadata server.
  mutable std::atomic<int64_t> lease_until_ns_{INT64_MAX}, renew_ns_{INT64_MAX};
};

// Identifies who has a place in a peer's memory, at a desk (rc_desk.h) or at a port (messages/wire.h): the node in 20
// bits, a number that tells the owners of one node apart in 12, the incarnation in 32. No owner word is 0 or 1, because
// node ids are not 0.
inline constexpr uint32_t kPlaceOwnerNodeBits = 20;
inline constexpr uint32_t kPlaceOwnerNumberMask = 0xfff;
constexpr uint64_t PlaceOwner(NodeId node, uint32_t number, uint32_t incarnation) {
  return uint64_t{node} << 44 | uint64_t{number & kPlaceOwnerNumberMask} << 32 | incarnation;
}
constexpr NodeId PlaceOwnerNode(uint64_t owner) { return static_cast<NodeId>(owner >> 44); }
constexpr uint32_t PlaceOwnerNumber(uint64_t owner) {
  return static_cast<uint32_t>(owner >> 32) & kPlaceOwnerNumberMask;
}
constexpr uint32_t PlaceOwnerIncarnation(uint64_t owner) { return static_cast<uint32_t>(owner); }

// Setting up DC initiators and targets.

// Takes it from any state through RESET to RTS. Drops what was posted and has not completed.
inline Status ResetToRts(rnic::Qp& initiator) {
  if (initiator.state() != rnic::QpState::kReset) KRCORE_RETURN_IF_ERROR(initiator.ToReset());
  KRCORE_RETURN_IF_ERROR(initiator.ToInit(0, 0));
  KRCORE_RETURN_IF_ERROR(initiator.ToRtr({}));
  return initiator.ToRts();
}

// Creates a DC initiator in RTS that completes into `cq`; see QpAttr for `host_qp`.
inline Result<std::unique_ptr<rnic::Qp>> CreateInitiator(rnic::Pd& pd, rnic::Cq& cq, uint32_t sq_depth,
                                                         uint32_t host_qp = rnic::kPrivateQp) {
  auto qp = pd.CreateQp(
      {.type = rnic::QpType::kDci, .send_cq = &cq, .recv_cq = &cq, .sq_depth = sq_depth, .host_qp = host_qp});
  if (!qp.ok()) return qp;
  KRCORE_RETURN_IF_ERROR(ResetToRts(**qp));
  return qp;
}

// Creates a target for one-sided requests. Its key: incarnation in the high half, random low half.
inline Result<std::unique_ptr<rnic::Dct>> CreateTarget(rnic::Pd& pd, uint32_t incarnation) {
  const auto random = Random64();
  if (!random.ok()) return random.status();
  return pd.CreateDct({.dc_key = uint64_t{incarnation} << 32 | (*random & 0xffff'ffff)});
}

}  // namespace krcore::peers

#endif  // KRCORE_PEERS_PEER_H_
