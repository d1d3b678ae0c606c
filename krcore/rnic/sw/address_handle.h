#ifndef KRCORE_RNIC_SW_ADDRESS_HANDLE_H_
#define KRCORE_RNIC_SW_ADDRESS_HANDLE_H_

#include <memory>
#include <utility>

#include "krcore/rnic/sw/peer.h"

namespace krcore::rnic::sw {

class SwAddressHandle final : public AddressHandle {
 public:
  explicit SwAddressHandle(std::shared_ptr<Peer> peer) : peer_(std::move(peer)) {}
  Peer* peer() const { return peer_.get(); }

 private:
  const std::shared_ptr<Peer> peer_;
};

}  // namespace krcore::rnic::sw

#endif  // KRCORE_RNIC_SW_ADDRESS_HANDLE_H_
