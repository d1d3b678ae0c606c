#include "krcore/rnic/sw/qp.h"

#include <algorithm>
#include <bit>
#include <string>

#include "krcore/rnic/request_form.h"
#include "krcore/rnic/sw/inbox.h"

namespace krcore::rnic::sw {

SwQp::SwQp(SharedDevice* device, const QpAttr& attr, uint32_t pd, uint32_t number)
    : device_(device),
      attr_(attr),
      send_cq_(static_cast<SwCq*>(attr.send_cq)),
      requester_(&device->fabric, attr.type, number, pd) {
  num_ = number;
}

Result<std::unique_ptr<Qp>> SwQp::Create(SharedDevice* device, const QpAttr& attr, uint32_t pd) {
  auto number = device->tables.AddQp(pd, EntryTypeOf(attr.type));
  if (!number.ok()) return number.status();
  std::unique_ptr<SwQp> qp(new SwQp(device, attr, pd, *number));
  if (attr.rq_depth > 0) {
    const Receiver::Options options{EntryTypeOf(attr.type),           *number,       pd,
                                    static_cast<SwCq*>(attr.recv_cq), attr.rq_depth, attr.max_recv_bytes};
    auto receiver = Receiver::Create(device, options, qp.get());
    if (!receiver.ok()) return receiver.status();
    qp->receiver_ = *std::move(receiver);
  }
  if (attr.host_qp != kPrivateQp) {
    auto part = HostQpPart::Claim(&device->fabric, attr.host_qp, *number);
    if (!part.ok()) return part.status();
    qp->host_part_ = *std::move(part);
  }
  return std::unique_ptr<Qp>(std::move(qp));
}

SwQp::~SwQp() {
  receiver_.reset();
  send_cq_->Forget(num_, &counters_);
  device_->tables.RemoveQp(num_);
}

void SwQp::SetState(QpState state) {
  state_ = state;
  entry().word.store(QpWord(num_, EntryTypeOf(attr_.type), static_cast<uint8_t>(state)), std::memory_order_release);
}

Status SwQp::ToInit(uint32_t access_rights, uint32_t qkey) {
  if (state_ != QpState::kReset) return WrongState(state_, QpState::kInit);
  entry().rights.store(access_rights, std::memory_order_relaxed);
  entry().qkey.store(qkey, std::memory_order_relaxed);
  SetState(QpState::kInit);
  return {};
}

Status SwQp::ToRtr(const QpPeer& peer) {
  if (state_ != QpState::kInit) return WrongState(state_, QpState::kRtr);
  if (attr_.type == QpType::kRc) {
    auto found = device_->peers.Get(peer.device);
    if (!found.ok()) return found.status();
    const uint64_t word = (*found)->tables().qps[QpIndex(peer.qpn)].word.load(std::memory_order_acquire);
    if (word >> 32 != peer.qpn || (word >> 8 & 0xff) != static_cast<uint64_t>(EntryType::kRc)) {
      return {StatusCode::kNotFound,
              "node " + std::to_string(peer.device.node) + " has no RC QP " + std::to_string(peer.qpn)};
    }
    requester_.Connect(*found, peer.qpn);
    entry().peer.store(PeerWord(peer.device.incarnation, peer.qpn), std::memory_order_relaxed);
  }
  SetState(QpState::kRtr);
  return {};
}

Status SwQp::ToRts() {
  if (state_ != QpState::kRtr) return WrongState(state_, QpState::kRts);
  if (host_part_ != nullptr) host_part_->Reset();
  SetState(QpState::kRts);
  return {};
}

Status SwQp::ToErr() {
  if (state_ == QpState::kErr) return {};
  if (host_part_ != nullptr && state_ == QpState::kRts) host_part_->Break();
  SetState(QpState::kErr);
  if (receiver_ != nullptr) receiver_->Flush();
  return {};
}

Status SwQp::ToReset() {
  SetState(QpState::kReset);
  send_cq_->Forget(num_, &counters_);
  counters_ = {};
  requester_.Connect(nullptr, 0);
  entry().peer.store(0, std::memory_order_relaxed);
  return receiver_ == nullptr ? Status{} : receiver_->Reset();
}

inline void SwQp::Push(const SendWr& wr, WcStatus status, uint64_t position) {
  send_cq_->PushSent(wr.wr_id, status, wr.opcode, num_, &counters_, position);
}

inline void SwQp::Succeed(std::span<const SendWr> wrs) {
  uint64_t posted = counters_.posted;
  for (const SendWr& wr : wrs) {
    ++posted;
    if ((wr.flags & kSignaled) != 0) [[unlikely]]
      Push(wr, WcStatus::kSuccess, posted);
  }
  counters_.posted = posted;
}

void SwQp::Fail(std::span<const SendWr> wrs, WcStatus status) {
  for (const SendWr& wr : wrs) Push(wr, status, ++counters_.posted);
}

Status SwQp::PostSend(std::span<const SendWr> wrs, size_t* bad_index) {
  const size_t room = attr_.sq_depth - (counters_.posted - counters_.freed);
  if (state_ != QpState::kRts || wrs.size() > std::min(room, kMaxBatch) ||
      (host_part_ != nullptr && host_part_->in_error())) [[unlikely]]
    return PostSlowly(wrs, std::min(wrs.size(), room), bad_index);
  if (wrs.size() == 1 && requester_.RunAlike(wrs[0])) [[likely]] {
    Succeed(wrs);
    requester_.EndDoorbell();
    return {};
  }
  const Requester::Outcome outcome = requester_.Run(wrs);
  Succeed(wrs.first(outcome.done));
  if (outcome.done != wrs.size()) [[unlikely]]
    return Stop(wrs, wrs.size(), outcome.done, outcome, bad_index);
  requester_.EndDoorbell();
  return {};
}

// Posts in batches of as many as fit.
Status SwQp::PostSlowly(std::span<const SendWr> wrs, size_t fits, size_t* bad_index) {
  // Another holder broke it. If it was brought back since this holder's last WR, this holder had nothing in flight.
  if (state_ == QpState::kRts && host_part_ != nullptr && host_part_->in_error()) SetState(QpState::kErr);
  size_t at = 0;
  Requester::Outcome outcome;
  while (state_ == QpState::kRts && at < fits) {
    const auto batch = wrs.subspan(at, std::min(fits - at, kMaxBatch));
    outcome = requester_.Run(batch);
    Succeed(batch.first(outcome.done));
    at += outcome.done;
    if (outcome.done != batch.size()) break;
  }
  return Stop(wrs, fits, at, outcome, bad_index);
}

// Stops after wrs[at - 1], the last one executed; handles the next one as `outcome` says, if it is below `fits`.
Status SwQp::Stop(std::span<const SendWr> wrs, size_t fits, size_t at, const Requester::Outcome& outcome,
                  size_t* bad_index) {
  StatusCode refused = fits < wrs.size() ? StatusCode::kQueueFull : StatusCode::kOk;
  if (state_ == QpState::kRts) {
    if (at < fits && outcome.malformed) {
      refused = StatusCode::kInvalidArgument;
    } else if (at < fits) {
      Fail(wrs.subspan(at++, 1), outcome.status);
      (void)ToErr();
    }
    requester_.EndDoorbell();
  }
  if (state_ == QpState::kErr) {
    Fail(wrs.subspan(at, fits - at), WcStatus::kFlushed);
    at = fits;
  } else if (state_ != QpState::kRts) {
    refused = StatusCode::kBadState;
  }
  if (refused == StatusCode::kOk) return {};
  if (bad_index != nullptr) *bad_index = at;
  return refused;
}

bool SwQp::Execute(std::span<const WorkRequest> wrs, const Reach& reach) {
  if (state_ != QpState::kRts || (host_part_ != nullptr && host_part_->in_error())) [[unlikely]]
    return false;
  if (!requester_.Execute(wrs, reach)) [[unlikely]]
    return false;
  requester_.EndDoorbell();
  return true;
}

Status SwQp::PostRecv(std::span<const RecvWr> wrs, size_t* bad_index) {
  return PostReceives(receiver_.get(), state_, wrs, bad_index);
}

// ---- completion queue

SwCq::SwCq(uint32_t depth) : depth_(depth), mask_(std::bit_ceil(depth) - 1), ring_(mask_ + 1) {}

size_t SwCq::Poll(std::span<Completion> out) {
  if (receivers_.empty()) [[likely]]
    return Take(out);
  for (Receiver* receiver : receivers_) receiver->Drain();
  return Take(out);
}

inline size_t SwCq::Take(std::span<Completion> out) {
  const size_t count = std::min<size_t>(out.size(), tail_ - head_);
  for (size_t i = 0; i < count; ++i) {
    const Entry& entry = ring_[(head_ + i) & mask_];
    out[i] = entry.completion;
    if (entry.counters != nullptr) entry.counters->freed = entry.position;
  }
  head_ += count;
  return count;
}

void SwCq::Forget(uint32_t qp_num, const SendCounters* counters) {
  uint64_t kept = head_;
  for (uint64_t at = head_; at != tail_; ++at) {
    const Entry& entry = ring_[at & mask_];
    const bool gone = counters != nullptr ? entry.counters == counters
                                          : entry.counters == nullptr && entry.completion.qp_num == qp_num;
    if (!gone) ring_[kept++ & mask_] = entry;
  }
  tail_ = kept;
}

void SwCq::Detach(Receiver* receiver) { std::erase(receivers_, receiver); }

// ---- a part of one of the host's DC initiators

namespace {

std::atomic<uint64_t>* ClaimFree(HostQp* qp, uint64_t self) {
  for (std::atomic<uint64_t>& holder : qp->holders) {
    uint64_t free = 0;
    if (holder.load(std::memory_order_relaxed) == free &&
        holder.compare_exchange_strong(free, self, std::memory_order_acq_rel))
      return &holder;
  }
  return nullptr;
}

// Returns how many parts it freed. Devices that join or leave do the same (Fabric::Reclaim).
uint32_t FreePartsOfTheDead(Fabric* fabric, HostQp* qp) {
  uint32_t freed = 0;
  for (std::atomic<uint64_t>& holder : qp->holders) {
    uint64_t word = holder.load(std::memory_order_acquire);
    if (word == 0) continue;
    if (fabric->ConfirmAlive(static_cast<uint32_t>(word >> 32))) continue;
    // A word names one QP of one device for ever, so this frees no other device's part.
    freed += holder.compare_exchange_strong(word, 0, std::memory_order_acq_rel) ? 1 : 0;
  }
  return freed;
}

}  // namespace

Result<std::unique_ptr<HostQpPart>> HostQpPart::Claim(Fabric* fabric, uint32_t host_qp, uint32_t number) {
  if (host_qp >= kHostQps) {
    return Status(StatusCode::kInvalidArgument,
                  "a host has " + std::to_string(kHostQps) + " initiators, no number " + std::to_string(host_qp));
  }
  HostQp* const qp = &fabric->control().host_qps[host_qp];
  const uint64_t self = PeerWord(fabric->incarnation(), number);
  std::atomic<uint64_t>* holder = ClaimFree(qp, self);
  if (holder == nullptr && FreePartsOfTheDead(fabric, qp) != 0) holder = ClaimFree(qp, self);
  if (holder == nullptr) {
    return Status(StatusCode::kOutOfMemory, "initiator " + std::to_string(host_qp) + " of the host has " +
                                                std::to_string(kHostQpParts) + " holders, its limit");
  }
  return std::unique_ptr<HostQpPart>(new HostQpPart(qp, holder));
}

HostQpPart::~HostQpPart() { holder_->store(0, std::memory_order_release); }

void HostQpPart::Reset() {
  uint64_t state = qp_->state.load(std::memory_order_acquire);
  if ((state & kInError) == 0) return;
  // One more reset, not in ERR. If it fails, another holder was faster, and what has happened since concerns later
  // requests.
  qp_->state.compare_exchange_strong(state, state + 1, std::memory_order_acq_rel);
}

}  // namespace krcore::rnic::sw
