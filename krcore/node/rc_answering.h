// RcAnswering: a node's desk (peers/rc_desk.h), and the half of an RC connection that it makes for each who asks there.
#ifndef KRCORE_NODE_RC_ANSWERING_H_
#define KRCORE_NODE_RC_ANSWERING_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <utility>

#include "krcore/node.h"
#include "krcore/peers/rc_desk.h"
#include "krcore/rnic.h"

namespace krcore::node {

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

#endif  // KRCORE_NODE_RC_ANSWERING_H_
