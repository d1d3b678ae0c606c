#include "krcore/queue/physical_queue.h"

#include <algorithm>
#include <bit>
#include <cassert>

#include "krcore/peers/peer.h"

namespace krcore::queue {

PhysicalQueue::PhysicalQueue(rnic::Pd& pd, rnic::Cq& cq, uint32_t index, uint32_t sq_depth, PoolState* pool, bool rc)
    : pd_(pd),
      cq_(cq),
      index_(index),
      sq_depth_(sq_depth),
      mask_(std::bit_ceil(sq_depth) - 1),
      rc_(rc),
      pool_(pool),
      wrs_(mask_ + 1),
      sges_((mask_ + 1) * kMaxSge),
      entries_(mask_ + 1),
      inline_arena_(std::make_unique_for_overwrite<std::byte[]>(kInlineArenaBytes)) {}

Result<std::unique_ptr<PhysicalQueue>> PhysicalQueue::Create(rnic::Pd& pd, rnic::Cq& cq, uint32_t index,
                                                             uint32_t sq_depth, PoolState* pool, uint32_t host_qp) {
  std::unique_ptr<PhysicalQueue> queue(new PhysicalQueue(pd, cq, index, sq_depth, pool, false));
  auto qp = peers::CreateInitiator(pd, cq, sq_depth, host_qp);
  queue->host_shared_ = qp.ok() && host_qp != rnic::kPrivateQp;
  if (!qp.ok() && qp.status() == StatusCode::kOutOfMemory && host_qp != rnic::kPrivateQp)
    qp = peers::CreateInitiator(pd, cq, sq_depth);
  if (!qp.ok()) return qp.status();
  queue->UseQp(*std::move(qp));
  return queue;
}

std::unique_ptr<PhysicalQueue> PhysicalQueue::CreateForRc(rnic::Pd& pd, rnic::Cq& cq, uint32_t index, uint32_t sq_depth,
                                                          PoolState* pool) {
  std::unique_ptr<PhysicalQueue> queue(new PhysicalQueue(pd, cq, index, sq_depth, pool, true));
  queue->blocked_ = true;
  return queue;
}

size_t PhysicalQueue::memory_bytes() const {
  return sizeof(*this) + wrs_.size() * (sizeof(rnic::SendWr) + kMaxSge * sizeof(Sge) + sizeof(Entry)) +
         kInlineArenaBytes;
}

// ---- accepting; physical_queue_fill.cc writes them

void PhysicalQueue::CommitSettledOwn(const WorkRequest& wr, QueueState* owner, WcStatus status, OwnWr kind,
                                     bool zero_copy, uint32_t tag) {
  entry(tail_) = {wr.wr_id, owner, wr.opcode, static_cast<uint8_t>(wr.flags & kSignaled), WcStatus::kSuccess};
  MarkOwn(kind, wr.opcode, zero_copy, tag);
  Settle(tail_, status);
  ++tail_;
  NoteStaged();
}

void PhysicalQueue::CommitSettled(const WorkRequest& wr, QueueState* owner, WcStatus status) {
  assert(free() > 0);
  entry(tail_) = {wr.wr_id, owner, wr.opcode, static_cast<uint8_t>(wr.flags & kSignaled), WcStatus::kSuccess};
  Settle(tail_, status);
  ++tail_;
  NoteStaged();
}

void PhysicalQueue::Settle(uint64_t position, WcStatus status) {
  assert(status != WcStatus::kSuccess && !IsSettled(position));
  entry(position).settled = status;
  ++settled_;
}

size_t PhysicalQueue::DiscardStaged(WcStatus status) {
  for (uint64_t p = posted_; p < tail_; ++p) {
    if (!IsSettled(p)) Settle(p, status);
  }
  // Nothing of it is left to post: only what was posted before is waited for.
  inline_used_ = 0;
  if (blocked_) return 0;  // others come first
  if (!broken_) posted_ = tail_;
  return RetireUpTo(head_);
}

void PhysicalQueue::RefuseStaged(const QueueState* owner, std::span<const RemoteRegion> remote, WcStatus status) {
  for (uint64_t p = posted_; p < tail_; ++p) {
    if (entry(p).owner != owner || IsSettled(p) || entry(p).kind >= kOwn) continue;
    const uint32_t rkey = wrs_[p & mask_].rkey;
    if (std::none_of(remote.begin(), remote.end(), [&](const RemoteRegion& region) { return region.rkey == rkey; }))
      Settle(p, status);
  }
}

void PhysicalQueue::DropStaged(const QueueState* owner) {
  for (uint64_t p = pushed(); p < tail_; ++p) {
    if (entry(p).owner != owner) continue;
    Abandon(p);
    if (!IsSettled(p)) Settle(p, WcStatus::kFlushed);
  }
}

bool PhysicalQueue::HasPosted(const QueueState* owner) const {
  for (uint64_t p = head_; p < pushed(); ++p) {
    if (entries_[p & mask_].owner == owner) return true;
  }
  return false;
}

void PhysicalQueue::Disown(const QueueState* owner) {
  for (uint64_t p = head_; p < tail_; ++p) {
    if (entry(p).owner == owner) Abandon(p);
  }
  if (culprit_ == owner) culprit_ = nullptr;
}

// ---- posting

void PhysicalQueue::SignalLastStaged() {
  for (uint64_t p = tail_; p-- > posted_;) {
    if (IsSettled(p)) continue;
    Signal(p);
    return;
  }
}

// Either there is no way to this peer, or the request checks wrongly let something pass that this provider refuses. The
// sender of the WR is told, and the WRs before it, perhaps unsignaled, are made to complete.
void PhysicalQueue::Refused(size_t index, StatusCode code) {
  posted_ += index;
  on_nic_ = posted_;
  Settle(posted_++, code == StatusCode::kUnavailable ? WcStatus::kRetryExceeded : WcStatus::kLocalQpError);
  (void)qp_->ToErr();
}

size_t PhysicalQueue::FlushSlowly() {
  if (blocked_) {
    rung_ = tail_;
    return 0;
  }
  if (broken_) return 0;
  SignalLastStaged();
  while (posted_ < tail_) {
    if (settled_ != 0 && IsSettled(posted_)) {
      ++posted_;
      continue;
    }
    uint64_t end = std::min(tail_, (posted_ | mask_) + 1);  // the ring's end
    if (settled_ != 0) {
      for (uint64_t p = posted_; p < end; ++p) {
        if (IsSettled(p)) end = p;
      }
    }
    (void)PostRun(end);
  }
  inline_used_ = 0;
  return settled_ == 0 ? 0 : RetireUpTo(head_);
}

// ---- completing

void PhysicalQueue::Retire(const Entry& entry, WcStatus status) {
  QueueState* const owner = entry.owner;
  if (owner == nullptr) return;
  if (entry.kind >= kOwn) [[unlikely]] {
    RetireOwn(entry, status);
    return;
  }
  if (status == WcStatus::kSuccess && entry.kind == 0) {
    owner->CompleteSilently();
    return;
  }
  Completion completion;
  completion.wr_id = entry.user_wr_id;
  completion.status = status;
  completion.opcode = entry.opcode;
  completion.qp_num = qp_num_;
  owner->Deliver(completion, entry.kind != 0);
}

void PhysicalQueue::RetireOwn(const Entry& entry, WcStatus status) {
  if (entry.owner->own_wrs == nullptr) return;
  OwnWrDone done;
  done.kind = static_cast<OwnWr>(entry.kind >> kOwnShift);
  done.completion.wr_id = entry.user_wr_id;
  done.completion.status = status;
  done.completion.opcode = entry.opcode;
  done.completion.qp_num = qp_num_;
  done.user_signaled = (entry.kind & kUserSignaled) != 0;
  done.zero_copy = (entry.kind & kOwnZeroCopy) != 0;
  done.tag = entry.tag;
  done.memory = own_memory_ + static_cast<size_t>(&entry - &entries_[0]) * kOwnBytes;
  entry.owner->own_wrs->OnDone(done);
}

size_t PhysicalQueue::RetireUpTo(uint64_t end) {
  const uint64_t begin = head_;
  while (head_ < end) {
    const Entry& done = entries_[head_ & mask_];
    if (IsUsual(done)) [[likely]] {
      RetireRun(end);
      continue;
    }
    if (done.settled != WcStatus::kSuccess) [[unlikely]]
      --settled_;
    Retire(done, done.settled);  // kSuccess unless settled
    ++head_;
  }
  while (settled_ != 0 && head_ < tail_ && IsSettled(head_)) {
    --settled_;
    Retire(entry(head_), entry(head_).settled);
    ++head_;
  }
  posted_ = std::max(posted_, head_);
  pool_->stats.completions += head_ - begin;
  return head_ - begin;
}

size_t PhysicalQueue::CompleteSlowly(const Completion& completion) {
  if (static_cast<uint8_t>(completion.wr_id >> 48) != generation_) return 0;  // from before a reset
  const uint64_t position = PositionOf(completion);
  if (position >= posted_) return 0;
  if (broken_) {
    collected_ = std::max(collected_, position + 1);
    return 0;
  }
  if (completion.status == WcStatus::kSuccess) [[likely]]
    return RetireUpTo(position + 1);

  size_t completed = RetireUpTo(position);  // WRs complete in order, so these succeeded
  broken_ = true;
  collected_ = position + 1;
  culprit_ = nullptr;
  culprit_status_ = completion.status;
  if (completion.status != WcStatus::kFlushed) {  // otherwise no WR of ours broke the QP, and Recover decides
    culprit_ = entry(position).owner;
    Retire(entry(position), completion.status);
    ++head_;
    ++completed;
    ++pool_->stats.completions;
  }
  return completed;
}

void PhysicalQueue::Break() {
  if (qp_ != nullptr) (void)qp_->ToErr();
  Stop();
}

void PhysicalQueue::Stop() {
  if (broken_) return;
  broken_ = true;
  collected_ = head_;
  culprit_ = nullptr;
  culprit_status_ = WcStatus::kFlushed;
}

bool PhysicalQueue::FlushedBy(uint64_t recovery, uint64_t position, bool was_posted) const {
  const Entry& entry = entries_[position & mask_];
  if (entry.opcode == Opcode::kRead) return false;
  // The NIC has had its payload, and the arena may hold other payloads by now.
  if (was_posted && (wrs_[position & mask_].flags & kInline) != 0) return true;
  // A message may be written twice (messages/wire.h), but not if a WRITE that its sender pushed before it was flushed.
  if (IsOwn(entry, OwnWr::kMessage)) return entry.owner->flushed_in_recovery == recovery;
  if (IsOwn(entry, OwnWr::kInternal)) return was_posted;  // its maker tries again
  return was_posted || entry.owner->flushed_in_recovery == recovery;
}

size_t PhysicalQueue::Recover() {
  assert(broken_);
  const uint64_t recovery = ++pool_->stats.broken_queues;
  if (rc_) {
    blocked_ = true;
    UseQp(nullptr);  // as good as a reset: nothing that was posted executes any more
  } else if (!peers::ResetToRts(*qp_).ok()) {
    host_shared_ = false;
    auto replacement = peers::CreateInitiator(pd_, cq_, sq_depth_);
    if (replacement.ok())
      UseQp(*std::move(replacement));
    else
      dead_ = true;
  }
  ++generation_;
  EditRing(recovery);
  posted_ = on_nic_ = head_;
  NoteStaged();
  broken_ = recovering_ = false;
  culprit_ = nullptr;
  return RetireUpTo(head_);
}

void PhysicalQueue::EditRing(uint64_t recovery) {
  for (uint64_t p = head_; p < tail_; ++p) {
    if (IsSettled(p)) continue;
    QueueState* const owner = entry(p).owner;
    const bool was_posted = p < posted_;
    if (dead_ || owner == nullptr || owner->standing != QueueStanding::kReady) {
      Settle(p, WcStatus::kFlushed);
    } else if (FlushedBy(recovery, p, was_posted)) {
      // Once one is flushed, the owner's later writes are flushed too, staged or not, as on a QP in ERR.
      Settle(p, WcStatus::kFlushed);
      if (!IsOwn(entry(p), OwnWr::kInternal)) owner->flushed_in_recovery = recovery;
    } else {
      wrs_[p & mask_].wr_id = PhysicalId(p);
      const bool read = entry(p).opcode == Opcode::kRead;
      if (was_posted) ++(read ? pool_->stats.reposted_reads : pool_->stats.reposted_messages);
    }
  }
}

// ---- moving

size_t PhysicalQueue::Unblock() {
  blocked_ = false;
  return RetireUpTo(head_);
}

void PhysicalQueue::Connect(std::unique_ptr<rnic::Qp> qp) {
  assert(rc_ && idle());
  UseQp(std::move(qp));
  ++generation_;
  blocked_ = true;
  broken_ = recovering_ = dead_ = false;
  on_nic_ = collected_ = head_;
  inline_used_ = 0;
}

uint64_t PhysicalQueue::PositionBehind(uint64_t dc_key) const {
  for (uint64_t p = tail_; p > head_; --p) {
    if (IsSettled(p - 1) || wrs_[(p - 1) & mask_].dc_key == dc_key) return p;
  }
  return head_;
}

bool PhysicalQueue::CopyHeadTo(PhysicalQueue& to) {
  const rnic::SendWr& wr = wrs_[head_ & mask_];
  const bool is_inline = (wr.flags & kInline) != 0;
  if (is_inline && wr.sg_list[0].length > to.inline_room()) return false;
  if (to.has_staged() && to.last_peer_ != last_peer_) to.SignalLastStaged();
  to.last_peer_ = last_peer_;
  const uint64_t slot = to.tail_ & to.mask_;
  rnic::SendWr& out = to.wrs_[slot];
  out = wr;
  out.wr_id = to.PhysicalId(to.tail_);
  const bool signal = (to.tail_ + 1) % kSignalEvery == 0;
  out.flags = static_cast<uint8_t>((wr.flags & ~kSignaled) | (signal ? kSignaled : 0));
  Sge* const sges = &to.sges_[slot * kMaxSge];
  std::copy_n(wr.sg_list, wr.num_sge, sges);
  out.sg_list = sges;
  if (is_inline) {
    std::byte* const payload = &to.inline_arena_[to.inline_used_];
    std::memcpy(payload, reinterpret_cast<const void*>(sges[0].addr), sges[0].length);
    to.inline_used_ += sges[0].length;
    sges[0].addr = reinterpret_cast<uint64_t>(payload);
  }
  if (entry(head_).kind < kOwn || own_memory_ == nullptr) return true;
  const std::byte* const from = &own_memory_[(head_ & mask_) * kOwnBytes];
  std::memcpy(to.own_memory(), from, kOwnBytes);
  for (Sge& sge : std::span(sges, out.num_sge)) {
    if (sge.lkey != own_lkey_) continue;
    sge.addr += reinterpret_cast<uint64_t>(to.own_memory()) - reinterpret_cast<uint64_t>(from);
    sge.lkey = to.own_lkey_;
  }
  return true;
}

size_t PhysicalQueue::MoveStagedTo(PhysicalQueue& to) {
  assert(blocked_ && nothing_posted() && !to.broken_);
  for (; head_ < tail_ && to.free() > 0; ++head_) {
    to.Prepare();
    const bool settled = IsSettled(head_);
    if (!settled && !CopyHeadTo(to)) break;
    to.entry(to.tail_) = entry(head_);
    if (entry(head_).kind < kOwn) to.entry(to.tail_).tag = 0;  // others of its run may stay behind
    if (settled) {
      --settled_;
      ++to.settled_;
      if (!to.has_staged()) ++to.posted_;  // there is nothing to post
    }
    ++to.tail_;
  }
  posted_ = std::max(posted_, head_);
  NoteStaged();
  to.NoteStaged();
  if (idle()) inline_used_ = 0;
  return to.RetireUpTo(to.head_);
}

}  // namespace krcore::queue
