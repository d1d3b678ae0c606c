// How a node asks a peer for an RC connection.
#ifndef KRCORE_PEERS_RC_HANDSHAKE_H_
#define KRCORE_PEERS_RC_HANDSHAKE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "krcore/base/arrays.h"
#include "krcore/peers/peer.h"
#include "krcore/peers/rc_desk.h"
#include "krcore/rnic.h"

namespace krcore::peers {

// Connector: the one-sided verbs by which a node asks for RC connections at its peers' desks. They use a DC initiator
// of their own, so that a missing desk or a dead peer breaks nothing that others share, and nothing waits for them.
// Each lane has at most one verb in flight.
//
// Thread safety: belongs to one thread at a time. Nothing blocks except IsDead, and that not for long.
class Connector {
 public:
  enum class Outcome : uint8_t {
    kNone,
    kUnderWay,
    kDone,
    kFailed,  // unknown whether it happened, but it cannot happen any more
  };

  static Result<std::unique_ptr<Connector>> Create(rnic::Device& device, rnic::Pd& pd, uint32_t lanes);

  // `offset`: from the beginning of the peer's desk.
  void CompareSwap(uint32_t lane, const Peer& peer, size_t offset, uint64_t expected, uint64_t desired);
  void Write(uint32_t lane, const Peer& peer, size_t offset, std::span<const std::byte> data);  // <= kLaneBytes
  void Read(uint32_t lane, const Peer& peer, size_t offset);                                    // a word

  void Poll();
  Outcome outcome(uint32_t lane) const { return outcomes_[lane]; }
  // The word that the lane's CompareSwap or Read found.
  uint64_t word(uint32_t lane) const;
  // Whether the peer is confirmed dead. Makes a system call, or asks over the network and waits until kPollingAskNs
  // after `now_ns` at most.
  bool IsDead(const Peer& peer, int64_t now_ns) {
    return device_.QueryPeer(peer.target.address, {now_ns + rnic::kPollingAskNs}) == rnic::PeerState::kDead;
  }
  size_t memory_bytes() const { return sizeof(*this) + buffer_.bytes(); }

 private:
  static constexpr size_t kLaneBytes = 64;
  struct alignas(64) Lane {
    std::byte bytes[kLaneBytes];
  };

  Connector(rnic::Device& device, uint32_t lanes) : device_(device), buffer_(lanes), outcomes_(lanes, Outcome::kNone) {}
  void Post(uint32_t lane, const Peer& peer, size_t offset, size_t length, rnic::SendWr wr);
  void FailAll();

  rnic::Device& device_;
  const PageArray<Lane> buffer_;
  std::vector<Outcome> outcomes_;
  uint32_t generation_ = 0;  // of the QP: each reset increments it
  bool resetting_ = false;   // all lanes fail when the reset has ended
  std::unique_ptr<rnic::Mr> mr_;
  std::unique_ptr<rnic::Cq> cq_;
  std::unique_ptr<rnic::Qp> qp_;
};

// Handshake: agrees on one RC connection at a peer's desk (rc_desk.h), from claiming a place to telling the peer that
// the connection is closed. Each step is one verb on one lane of a Connector. Its user decides what the connection is
// for, and when its QP is made, connected and destroyed.
//
//     kIdle
//     kClaiming    CAS: a place
//     kRequesting  WRITE of the request
//     kAsking      READ of the answer, again and again
//     kAnswered    until Close
//     kFailed      no place, a refusal, no answer, or the peer is dead; until Close
//     kClosing     WRITE: it is closed; skipped if no place was claimed
//
// Thread safety: belongs to the Connector's thread. Nothing blocks.
class Handshake {
 public:
  enum class State : uint8_t { kIdle, kClaiming, kRequesting, kAsking, kAnswered, kFailed, kClosing };

  // Needs an idle handshake whose lane has nothing in flight. `request` (without its checksum) goes to the first free
  // place of the peer's desk from number `first_place` on. This node must not have used its owner word there.
  void Begin(Connector& connector, uint32_t lane, std::shared_ptr<const Peer> peer, const DeskRequest& request,
             uint32_t first_place);
  // Continues if the lane's verb has completed. Call after Connector::Poll.
  void Step(int64_t now_ns);
  // Call after the end of the QP. Step tells the peer, and the handshake becomes idle when that is done or is in vain.
  void Close();

  State state() const { return state_; }
  // In kAnswered: the peer's QP, never 0.
  uint32_t peer_qpn() const { return AnsweredQpn(connector_->word(lane_)); }

 private:
  void Enter(State state);
  size_t PlaceOffset() const { return place_ * sizeof(DeskPlace); }
  uint32_t places() const { return static_cast<uint32_t>(peer_->desk.length / sizeof(DeskPlace)); }
  // Returns true if the verb failed so often that trying again is in vain, or its peer is dead.
  bool InVain(uint32_t max_failures);
  void Claim();
  void Claimed();
  void WriteRequest();
  void Requested(int64_t now_ns);
  void Asked(int64_t now_ns);
  void WriteClosing();
  void Told();

  State state_ = State::kIdle;
  Connector* connector_ = nullptr;
  uint32_t lane_ = 0;
  std::shared_ptr<const Peer> peer_;
  DeskRequest request_;
  uint32_t place_ = 0;
  bool claimed_ = false;
  uint32_t tries_ = 0;          // in this state
  bool answer_is_due_ = false;  // a READ of it was posted, and nobody has looked at its outcome
  int64_t now_ns_ = 0, ask_at_ns_ = 0, give_up_ns_ = 0;
};

}  // namespace krcore::peers

#endif  // KRCORE_PEERS_RC_HANDSHAKE_H_
