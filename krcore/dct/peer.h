// Peer: all that a queue needs to reach a node through a shared DC initiator. Immutable once made, so that
// queues of any thread share one.
#ifndef KRCORE_DCT_PEER_H_
#define KRCORE_DCT_PEER_H_

#include <array>
#include <cstdint>
#include <memory>
#include <span>

#include "krcore/node.h"
#include "krcore/rnic/rnic.h"

namespace krcore::dct {

// Where requests to a DC target go. The key includes the target's incarnation, so that what was meant for a dead
// process is refused by its successor.
struct Target {
  rnic::DeviceAddress address;
  uint32_t dct_num = 0;
  uint64_t dc_key = 0;
};

struct Peer {
  Target target;
  std::array<RemoteRegion, kMaxRegionsPerNode> regions;
  uint32_t region_count = 0;
  std::unique_ptr<rnic::AddressHandle> ah;

  std::span<const RemoteRegion> region_span() const { return {regions.data(), region_count}; }
};

}  // namespace krcore::dct

#endif  // KRCORE_DCT_PEER_H_
