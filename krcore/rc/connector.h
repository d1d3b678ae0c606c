// Connector: the one-sided verbs by which a node asks at its peers' desks for RC connections. They go through a DC
// initiator of its own, so that a desk that is gone or a peer that is dead breaks nothing that others share, and none
// of them is waited for. Each lane has one verb under way at most.
//
// Thread safety: belongs to one thread at a time. Nothing blocks but IsDead, and that not for long.
#ifndef KRCORE_RC_CONNECTOR_H_
#define KRCORE_RC_CONNECTOR_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "krcore/base/page_array.h"
#include "krcore/dct/peer.h"
#include "krcore/rc/desk.h"
#include "krcore/rnic/rnic.h"

namespace krcore::rc {

class Connector {
 public:
  enum class Outcome : uint8_t {
    kNone,
    kUnderWay,
    kDone,
    kFailed,  // unknown whether it happened, but it will not any more
  };

  static Result<std::unique_ptr<Connector>> Create(rnic::Device& device, rnic::Pd& pd, uint32_t lanes);

  // `offset`: from the beginning of the peer's desk.
  void CompareSwap(uint32_t lane, const dct::Peer& peer, size_t offset, uint64_t expected, uint64_t desired);
  void Write(uint32_t lane, const dct::Peer& peer, size_t offset, std::span<const std::byte> data);  // <= kLaneBytes
  void Read(uint32_t lane, const dct::Peer& peer, size_t offset);                                    // a word

  void Poll();
  Outcome outcome(uint32_t lane) const { return outcomes_[lane]; }
  // The word that the lane's CompareSwap or Read found.
  uint64_t word(uint32_t lane) const;
  // Confirmed. A system call, or a question over the network, which waits no longer than kPollingAskNs from `now_ns`
  // on.
  bool IsDead(const dct::Peer& peer, int64_t now_ns) {
    return device_.QueryPeer(peer.target.address, {now_ns + rnic::kPollingAskNs}) == rnic::PeerState::kDead;
  }
  size_t memory_bytes() const { return sizeof(*this) + buffer_.bytes(); }

 private:
  static constexpr size_t kLaneBytes = 64;
  struct alignas(64) Lane {
    std::byte bytes[kLaneBytes];
  };

  Connector(rnic::Device& device, uint32_t lanes) : device_(device), buffer_(lanes), outcomes_(lanes, Outcome::kNone) {}
  void Post(uint32_t lane, const dct::Peer& peer, size_t offset, size_t length, rnic::SendWr wr);
  void FailAll();

  rnic::Device& device_;
  const PageArray<Lane> buffer_;
  std::vector<Outcome> outcomes_;
  uint32_t generation_ = 0;  // of the QP: bumped by each reset
  bool resetting_ = false;   // all lanes fail when that has ended
  std::unique_ptr<rnic::Mr> mr_;
  std::unique_ptr<rnic::Cq> cq_;
  std::unique_ptr<rnic::Qp> qp_;
};

}  // namespace krcore::rc

#endif  // KRCORE_RC_CONNECTOR_H_
