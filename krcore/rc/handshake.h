// Handshake: what is agreed on at a peer's desk (desk.h) about one RC connection, from the claim of a place to the word
// that the connection is closed, each step one verb of one lane of a Connector. What the connection is for, and when
// its QP is made, connected and destroyed, is its user's affair.
//
//     kIdle
//     kClaiming    CAS: a place
//     kRequesting  WRITE of the request
//     kAsking      READ of the answer, again and again
//     kAnswered    until Close
//     kFailed      no place, a refusal, no answer, or the peer is dead; until Close
//     kClosing     WRITE: it is closed; not where no place was claimed
//
// Thread safety: belongs to the Connector's thread. Nothing blocks.
#ifndef KRCORE_RC_HANDSHAKE_H_
#define KRCORE_RC_HANDSHAKE_H_

#include <cstddef>
#include <cstdint>
#include <memory>

#include "krcore/dct/peer.h"
#include "krcore/rc/connector.h"
#include "krcore/rc/desk.h"

namespace krcore::rc {

class Handshake {
 public:
  enum class State : uint8_t { kIdle, kClaiming, kRequesting, kAsking, kAnswered, kFailed, kClosing };

  // Of an idle one whose lane has nothing under way: `request` (without its checksum) goes to the first free place from
  // number `first_place` on of the peer's desk. Its owner word must be none that this node has used there.
  void Begin(Connector& connector, uint32_t lane, std::shared_ptr<const dct::Peer> peer, const Request& request,
             uint32_t first_place);
  // Goes on, if the lane's verb has completed. Behind Connector::Poll.
  void Step(int64_t now_ns);
  // Behind the end of the QP. Step tells the peer, and the handshake is idle when that has been done or is in vain.
  void Close();

  State state() const { return state_; }
  // Of kAnswered: the peer's QP, never 0.
  uint32_t peer_qpn() const { return AnsweredQpn(connector_->word(lane_)); }

 private:
  void Enter(State state);
  size_t PlaceOffset() const { return place_ * sizeof(Place); }
  uint32_t places() const { return static_cast<uint32_t>(peer_->desk.length / sizeof(Place)); }
  // True if the verb failed so often that it is in vain, or its peer is dead.
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
  std::shared_ptr<const dct::Peer> peer_;
  Request request_;
  uint32_t place_ = 0;
  bool claimed_ = false;
  uint32_t tries_ = 0;          // of the state
  bool answer_is_due_ = false;  // a READ of it was posted whose outcome nobody has looked at
  int64_t now_ns_ = 0, ask_at_ns_ = 0, give_up_ns_ = 0;
};

}  // namespace krcore::rc

#endif  // KRCORE_RC_HANDSHAKE_H_
