#include "krcore/peers/rc_handshake.h"

#include <algorithm>
#include <cassert>
#include <cstring>
#include <span>
#include <utility>

#include "krcore/peers/peer.h"

namespace krcore::peers {

Result<std::unique_ptr<Connector>> Connector::Create(rnic::Device& device, rnic::Pd& pd, uint32_t lanes) {
  std::unique_ptr<Connector> connector(new Connector(device, lanes));
  auto mr = pd.RegisterMemory(connector->buffer_.data(), lanes * sizeof(Lane), kLocalWrite);
  if (!mr.ok()) return mr.status();
  auto cq = device.CreateCq(lanes);
  if (!cq.ok()) return cq.status();
  auto qp = CreateInitiator(pd, **cq, lanes);
  if (!qp.ok()) return qp.status();
  connector->mr_ = *std::move(mr);
  connector->cq_ = *std::move(cq);
  connector->qp_ = *std::move(qp);
  return connector;
}

void Connector::CompareSwap(uint32_t lane, const Peer& peer, size_t offset, uint64_t expected, uint64_t desired) {
  rnic::SendWr wr;
  wr.opcode = Opcode::kCompareSwap;
  wr.compare_add = expected;
  wr.swap = desired;
  Post(lane, peer, offset, sizeof(uint64_t), wr);
}

void Connector::Write(uint32_t lane, const Peer& peer, size_t offset, std::span<const std::byte> data) {
  assert(data.size() <= kLaneBytes);
  std::memcpy(buffer_[lane].bytes, data.data(), data.size());
  rnic::SendWr wr;
  wr.opcode = Opcode::kWrite;
  Post(lane, peer, offset, data.size(), wr);
}

void Connector::Read(uint32_t lane, const Peer& peer, size_t offset) {
  rnic::SendWr wr;
  wr.opcode = Opcode::kRead;
  Post(lane, peer, offset, sizeof(uint64_t), wr);
}

void Connector::Post(uint32_t lane, const Peer& peer, size_t offset, size_t length, rnic::SendWr wr) {
  assert(outcomes_[lane] != Outcome::kUnderWay);
  if (resetting_) {  // it fails with the others, when the reset has ended
    outcomes_[lane] = Outcome::kUnderWay;
    return;
  }
  const Sge sge{reinterpret_cast<uint64_t>(buffer_[lane].bytes), static_cast<uint32_t>(length), mr_->lkey()};
  wr.wr_id = uint64_t{generation_} << 32 | lane;
  wr.sg_list = &sge;
  wr.num_sge = 1;
  wr.flags = kSignaled;
  wr.remote_addr = peer.desk.addr + offset;
  wr.rkey = peer.desk.rkey;
  wr.ah = peer.ah.get();
  wr.remote_qpn = peer.target.dct_num;
  wr.dc_key = peer.target.dc_key;
  size_t bad_index = 0;
  outcomes_[lane] = qp_->PostSend({&wr, 1}, &bad_index).ok() ? Outcome::kUnderWay : Outcome::kFailed;
}

uint64_t Connector::word(uint32_t lane) const {
  uint64_t word;
  std::memcpy(&word, buffer_[lane].bytes, sizeof(word));
  return word;
}

void Connector::Poll() {
  if (resetting_) return FailAll();
  Completion completion;
  while (cq_->Poll({&completion, 1}) == 1) {
    if (completion.wr_id >> 32 != generation_) continue;
    if (completion.status != WcStatus::kSuccess) return FailAll();
    outcomes_[static_cast<uint32_t>(completion.wr_id)] = Outcome::kDone;
  }
}

// The reset ends everything posted: a verb that failed does not happen later (rnic.h).
void Connector::FailAll() {
  resetting_ = !qp_->BeginReset();
  if (resetting_) return;
  (void)ResetToRts(*qp_);
  ++generation_;
  for (Outcome& outcome : outcomes_) {
    if (outcome == Outcome::kUnderWay) outcome = Outcome::kFailed;
  }
}

// ---- handshake

namespace {

using Outcome = Connector::Outcome;

constexpr uint32_t kMaxPlaceTries = 16;    // places that may be taken already
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

void Handshake::Begin(Connector& connector, uint32_t lane, std::shared_ptr<const Peer> peer, const DeskRequest& request,
                      uint32_t first_place) {
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
  // Not claimed: the CAS may still have been executed. That needs no undoing, because the peer frees a place that is
  // claimed without a request (kClaimNs in rc_desk.cc).
  Enter(claimed_ ? State::kClosing : State::kIdle);
  if (!claimed_) peer_ = nullptr;
}

bool Handshake::InVain(uint32_t max_failures) {
  return ++tries_ == max_failures || connector_->IsDead(*peer_, now_ns_);
}

void Handshake::Claim() {
  connector_->CompareSwap(lane_, *peer_, PlaceOffset() + offsetof(DeskPlace, owner), 0, request_.owner);
}

void Handshake::Claimed() {
  if (connector_->outcome(lane_) == Outcome::kFailed) {
    // The CAS may have been executed; then the same CAS finds its own word.
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
  connector_->Write(lane_, *peer_, PlaceOffset() + offsetof(DeskPlace, request),
                    std::as_bytes(std::span(&request_, 1)));
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
  if (std::exchange(answer_is_due_, false)) {  // once per READ: asking whether the peer lives takes a system call
    if (connector_->outcome(lane_) == Outcome::kFailed) {
      if (connector_->IsDead(*peer_, now_ns_)) return Enter(State::kFailed);
    } else if (IsAnswerTo(request_.owner, connector_->word(lane_))) {
      return Enter(peer_qpn() == 0 ? State::kFailed : State::kAnswered);
    }
  }
  if (now_ns >= give_up_ns_) return Enter(State::kFailed);
  if (now_ns < ask_at_ns_) return;
  connector_->Read(lane_, *peer_, PlaceOffset() + offsetof(DeskPlace, answer));
  ask_at_ns_ = now_ns + std::min(kFirstAskNs << std::min(tries_++, 16u), kMaxAskNs);
  answer_is_due_ = true;
}

void Handshake::WriteClosing() {
  connector_->Write(lane_, *peer_, PlaceOffset() + offsetof(DeskPlace, closing),
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

}  // namespace krcore::peers
