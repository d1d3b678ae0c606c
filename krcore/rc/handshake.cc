#include "krcore/rc/handshake.h"

#include <algorithm>
#include <cassert>
#include <span>
#include <utility>

namespace krcore::rc {
namespace {

using Outcome = Connector::Outcome;

constexpr uint32_t kMaxPlaceTries = 16;    // places that may be found taken
constexpr uint32_t kMaxFailures = 8;       // of one verb
constexpr uint32_t kMaxTellFailures = 64;  // nobody waits for it, and the peer would keep its half
constexpr int64_t kFirstAskNs = 50'000;
constexpr int64_t kMaxAskNs = 50'000'000;
constexpr int64_t kAnswerNs = 5'000'000'000;  // a node answers once a second or more often

}  // namespace

void Handshake::Enter(State state) {
  state_ = state;
  tries_ = 0;
}

void Handshake::Begin(Connector& connector, uint32_t lane, std::shared_ptr<const dct::Peer> peer,
                      const Request& request, uint32_t first_place) {
  assert(state_ == State::kIdle && connector.outcome(lane) != Outcome::kUnderWay);
  connector_ = &connector;
  lane_ = lane;
  peer_ = std::move(peer);
  request_ = request;
  request_.checksum = ChecksumOf(request_);
  place_ = first_place % places();
  claimed_ = answer_is_due_ = false;
  Enter(State::kClaiming);
  Claim();
}

void Handshake::Step(int64_t now_ns) {
  if (state_ == State::kIdle || connector_->outcome(lane_) == Outcome::kUnderWay) return;
  now_ns_ = now_ns;
  switch (state_) {
    case State::kClaiming: return Claimed();
    case State::kRequesting: return Requested(now_ns);
    case State::kAsking: return Asked(now_ns);
    case State::kClosing: return Told();
    default: return;
  }
}

void Handshake::Close() {
  if (state_ == State::kIdle) return;
  // A claim without a request does not last.
  Enter(claimed_ ? State::kClosing : State::kIdle);
  if (!claimed_) peer_ = nullptr;
}

bool Handshake::InVain(uint32_t max_failures) {
  return ++tries_ == max_failures || connector_->IsDead(*peer_, now_ns_);
}

void Handshake::Claim() {
  connector_->CompareSwap(lane_, *peer_, PlaceOffset() + offsetof(Place, owner), 0, request_.owner);
}

void Handshake::Claimed() {
  if (connector_->outcome(lane_) == Outcome::kFailed) {
    // It may have been done; then the same CAS finds its own word.
    if (InVain(kMaxFailures)) return Enter(State::kFailed);
    return Claim();
  }
  const uint64_t found = connector_->word(lane_);
  if (found == 0 || found == request_.owner) {
    claimed_ = true;
    Enter(State::kRequesting);
    return WriteRequest();
  }
  if (++tries_ >= std::min(kMaxPlaceTries, places())) return Enter(State::kFailed);
  place_ = (place_ + 1) % places();
  Claim();
}

void Handshake::WriteRequest() {
  connector_->Write(lane_, *peer_, PlaceOffset() + offsetof(Place, request), std::as_bytes(std::span(&request_, 1)));
}

void Handshake::Requested(int64_t now_ns) {
  if (connector_->outcome(lane_) == Outcome::kFailed) {
    if (InVain(kMaxFailures)) return Enter(State::kFailed);
    return WriteRequest();
  }
  Enter(State::kAsking);
  ask_at_ns_ = now_ns;
  give_up_ns_ = now_ns + kAnswerNs;
}

void Handshake::Asked(int64_t now_ns) {
  if (std::exchange(answer_is_due_, false)) {  // once a READ: whether the peer lives takes a system call
    if (connector_->outcome(lane_) == Outcome::kFailed) {
      if (connector_->IsDead(*peer_, now_ns_)) return Enter(State::kFailed);
    } else if (IsAnswerTo(request_.owner, connector_->word(lane_))) {
      return Enter(peer_qpn() == 0 ? State::kFailed : State::kAnswered);
    }
  }
  if (now_ns >= give_up_ns_) return Enter(State::kFailed);
  if (now_ns < ask_at_ns_) return;
  connector_->Read(lane_, *peer_, PlaceOffset() + offsetof(Place, answer));
  ask_at_ns_ = now_ns + std::min(kFirstAskNs << std::min(tries_++, 16u), kMaxAskNs);
  answer_is_due_ = true;
}

void Handshake::WriteClosing() {
  connector_->Write(lane_, *peer_, PlaceOffset() + offsetof(Place, closing),
                    std::as_bytes(std::span(&request_.owner, 1)));
}

// A peer that cannot be told finds out when this node has closed or died.
void Handshake::Told() {
  const bool first = tries_ == 0;
  if (first) ++tries_;
  if (first || (connector_->outcome(lane_) == Outcome::kFailed && !InVain(kMaxTellFailures))) return WriteClosing();
  peer_ = nullptr;
  Enter(State::kIdle);
}

}  // namespace krcore::rc
