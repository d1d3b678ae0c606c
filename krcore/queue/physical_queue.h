// PhysicalQueue: one QP that many VirtualQueues share: a DC initiator, or the RC queue of one peer.
//
// WRs live in a ring in posting order, which three positions divide:
//
//     head_ ............ posted_ ............ tail_
//       in flight on the NIC      staged for the next doorbell
//
// Positions only grow. PostSend reads the ring as its staging array. The ring is also the log by which completions find
// their queue and flushed READs are posted again. A physical wr_id is the place in the ring and a generation, so that
// it need not be written anew each time. A completion at position p completes everything before p, because a NIC's send
// queue completes in order.
//
// Only some WRs are signaled to the NIC: the last of a doorbell, the last before the doorbell goes on to another peer
// (its completions must not wait for that peer), and every kSignalEvery-th. The ring keeps which completions the user
// asked for.
//
// After an error the NIC has flushed everything posted later. Once those completions have been collected, so that no
// buffer is in use any more, the QP is reset and the ring is edited in place. READs stay and are posted again. WRs that
// must not be posted again become *settled*: they keep their place, the doorbell skips them, and they are delivered
// with their status when the head passes them. So each queue's completions stay in posting order.
//
// A queue can be blocked: it accepts WRs and keeps them staged. That is how queues move from one physical queue to
// another without losing their order (rc_queues.h): staged WRs wait until everything posted earlier has completed, or
// move over in order. A broken RC queue is not reset, since the peer has the other half; it is blocked and loses its
// QP.
//
// Thread safety: belongs to the pool's thread. Nothing blocks; every loop is bounded.
#ifndef KRCORE_QUEUE_PHYSICAL_QUEUE_H_
#define KRCORE_QUEUE_PHYSICAL_QUEUE_H_

#include <algorithm>
#include <bit>
#include <cassert>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <utility>

#include "krcore/base/arrays.h"
#include "krcore/base/word_pair.h"
#include "krcore/queue/queue_state.h"
#include "krcore/queue_pool.h"
#include "krcore/rnic.h"
#include "krcore/types.h"

namespace krcore::queue {

class LikeRequest;

inline constexpr uint32_t kMaxSge = 4;  // of a WR through a pool
inline constexpr uint32_t kSignalEvery = 16;
inline constexpr size_t kOwnBytes = 128;           // of a WR that krcore makes itself
inline constexpr size_t kInlineArenaBytes = 8192;  // inline payloads of one doorbell

class PhysicalQueue;

// What the physical queues of a pool have in common.
struct PoolState {
  QueuePoolStats stats;
  // The queues that may have something staged, each once. A queue that stages adds itself; a doorbell removes the
  // queues that have nothing left. Doorbells look at no other queue. There is room for all.
  std::unique_ptr<PhysicalQueue*[]> staged;
  uint32_t staged_count = 0;
  // Whether one of the host's queues may be among them.
  bool host_staged = false;
};

class PhysicalQueue {
 public:
  // `index` distinguishes the queues that share `cq`. `host_qp`: as in rnic::QpAttr; the QP is private if the host's
  // has no part left.
  static Result<std::unique_ptr<PhysicalQueue>> Create(rnic::Pd& pd, rnic::Cq& cq, uint32_t index, uint32_t sq_depth,
                                                       PoolState* pool, uint32_t host_qp);

  // Creates the RC queue of a peer. It has no QP, and is blocked, until it has been connected.
  static std::unique_ptr<PhysicalQueue> CreateForRc(rnic::Pd& pd, rnic::Cq& cq, uint32_t index, uint32_t sq_depth,
                                                    PoolState* pool);

  // Returns which PhysicalQueue of the pool a completion belongs to.
  static uint32_t IndexOf(const Completion& completion) { return static_cast<uint32_t>(completion.wr_id >> 56); }
  // Whether `next`, the following completion of the same CQ, says all that `before` does.
  static bool Covers(const Completion& next, const Completion& before) {
    return (next.wr_id ^ before.wr_id) >> 48 == 0 && next.status == WcStatus::kSuccess &&
           before.status == WcStatus::kSuccess;
  }

  uint32_t depth() const { return sq_depth_; }
  // WRs that may be accepted now.
  uint32_t free() const { return sq_depth_ - static_cast<uint32_t>(tail_ - head_); }
  bool idle() const { return head_ == tail_; }
  bool has_staged() const { return posted_ != tail_; }
  bool nothing_posted() const { return head_ == posted_; }
  size_t inline_room() const { return kInlineArenaBytes - inline_used_; }
  size_t memory_bytes() const;

  // Call before a sequence of Fills. An idle queue begins again at the start of its ring, which is then in the caches,
  // and batches do not wrap around.
  void Prepare() {
    if (idle()) head_ = posted_ = tail_ = (tail_ + mask_) & ~mask_;
  }
  // Writes `wrs`, no more than free(), at tail, tail + 1, ... without accepting them. Writes what the signaled ones
  // will report to `owner`'s places, and returns how many those are. The payload of an inline WR is copied and needs
  // inline_room().
  uint32_t Fill(std::span<const WorkRequest> wrs, QueueState* owner, const peers::Peer& peer);
  // Has the NIC execute `wrs` (at least one, all allowed by `like`) at once, and delivers them to `owner`
  // (QueueState::MayDeliverAtOnce); they take no place in the ring. False: that cannot be, or one of them is unusual;
  // then nothing has been done. Needs Caps::executes_at_post, and a queue that is neither blocked nor broken.
  bool Execute(std::span<const WorkRequest> wrs, QueueState* owner, const peers::Peer& peer, const LikeRequest& like);
  void Prefetch(std::span<const WorkRequest> wrs, const rnic::AddressHandle* ah, uint32_t rkey) {
    if (!blocked_) qp_->Prefetch(wrs, ah, rkey);
  }
  // Fills a WR that krcore made itself; writes nothing to `owner`.
  void FillOwn(const WorkRequest& wr, QueueState* owner, const peers::Peer& peer, OwnWr kind, Opcode user_opcode,
               bool zero_copy, uint32_t tag);
  // Registered memory of the WR that will be filled at the tail: kOwnBytes, until the WR is done. Needs UseOwnMemory.
  std::byte* own_memory() { return &own_memory_[(tail_ & mask_) * kOwnBytes]; }
  static size_t OwnMemoryBytes(uint32_t sq_depth) { return std::bit_ceil(sq_depth) * kOwnBytes; }
  void UseOwnMemory(std::byte* memory, uint32_t lkey) {
    own_memory_ = memory;
    own_lkey_ = lkey;
  }
  uint32_t own_lkey() const { return own_lkey_; }
  // Accepts the `count` WRs filled at tail, tail + 1, ...
  void Commit(uint32_t count, const peers::Peer& peer) {
    assert(count <= free());
    if (has_staged() && last_peer_ != &peer) SignalLastStaged();
    last_peer_ = &peer;
    tail_ += count;
    NoteStaged();
  }
  // Accepts a WR that will not be posted but delivered, in its turn, with `status`. Needs free().
  void CommitSettled(const WorkRequest& wr, QueueState* owner, WcStatus status);
  void CommitSettledOwn(const WorkRequest& wr, QueueState* owner, WcStatus status, OwnWr kind, bool zero_copy,
                        uint32_t tag);

  // The queue has been taken off PoolState::staged.
  void NoteUnstaged() { noted_ = false; }
  // Rings the doorbell for what is staged. Returns how many WRs it completed (settled ones only).
  size_t Flush() { return FlushUsual() ? 0 : FlushSlowly(); }
  // The same for the usual case, where one doorbell is all there is to do. False: this is another case, or not all was
  // taken; Flush does the rest.
  bool FlushUsual() {
    const uint64_t begin = posted_, end = tail_;
    if (begin == end || settled_ != 0 || blocked_ || broken_ || ((begin ^ (end - 1)) & ~mask_) != 0) [[unlikely]]
      return false;
    Signal(end - 1);
    if (!PostRun(end)) [[unlikely]]
      return false;
    inline_used_ = 0;
    return true;
  }

  // ---- moving queues

  bool blocked() const { return blocked_; }
  void Block() { blocked_ = true; }
  // Returns how many WRs it completed (settled ones only).
  size_t Unblock();
  // Gives an idle RC queue its QP, in RTS; the queue stays blocked. Disconnect takes it away.
  void Connect(std::unique_ptr<rnic::Qp> qp);
  void Disconnect() { UseQp(nullptr); }
  // Returns the position after the last WR to the DC target of this key. Once it is passed, those WRs have completed.
  uint64_t PositionBehind(uint64_t dc_key) const;
  bool HasPassed(uint64_t position) const { return head_ >= position; }
  // Moves what is staged, settled WRs too, to the end of `to`, as far as there is room. Needs blocked() and
  // nothing_posted(), and that `to` is not broken. Returns how many WRs it completed in `to` (settled ones only).
  size_t MoveStagedTo(PhysicalQueue& to);
  // For a blocked queue with nothing posted: after the queue with the earlier WRs has recovered and flushed some,
  // flushes whatever must not come after those.
  void FlushBehind(uint64_t recovery) { EditRing(recovery); }

  // Handles a completion of this queue; returns how many WRs it completed.
  size_t Complete(const Completion& completion) {
    const uint64_t end = PositionOf(completion) + 1;
    if (completion.status != WcStatus::kSuccess || static_cast<uint8_t>(completion.wr_id >> 48) != generation_ ||
        end > posted_ || broken_ || settled_ != 0) [[unlikely]]
      return CompleteSlowly(completion);
    // Usually everything in flight was accepted together.
    const Entry& first = entry(head_);
    const Run run(first.tag);
    if (run.count != end - head_ || !IsUsual(first)) return RetireUpTo(end);
    head_ = end;
    pool_->stats.completions += run.count;
    first.owner->Complete(run.count - run.signaled, run.signaled, qp_num_);
    return run.count;
  }

  // An error has completed; Recover is due.
  bool broken() const { return broken_; }
  // The queue whose WR failed (null if unknown or gone), and how it failed. Valid while broken().
  QueueState* culprit() const { return culprit_; }
  WcStatus culprit_status() const { return culprit_status_; }
  // Everything that the NIC flushed has completed, so no buffer is in use any more.
  bool all_collected() const { return collected_ >= on_nic_; }
  // Returns true the first time it is called after the queue broke.
  bool BeginRecovery() { return !std::exchange(recovering_, true); }
  // Begins the reset of the QP; false: the reset would still have to wait.
  bool MayRecover() { return rc_ || qp_->BeginReset(); }
  // Resets the QP and edits the ring; READs of queues in good standing become staged again. Returns how many WRs it
  // completed. Flushed WRs that could not be collected are dropped by the reset.
  size_t Recover();
  // Breaks the QP on purpose, because it makes no progress. Recover is due.
  void Break();
  // The same for a QP that another process's fault has moved to ERR. If somebody has brought it back by now, it is left
  // so.
  void Stop();
  // Another process's fault has moved the QP to ERR, or a fault of ours that is not collected yet. Stop and Recover are
  // due. Collect whatever has completed before that, so that it is not taken for flushed.
  bool BrokenByOthers() const { return host_shared_ && !broken_ && qp_->state() == rnic::QpState::kErr; }
  bool host_shared() const { return host_shared_; }

  // Settles every staged WR with `status`. Returns how many WRs it completed.
  size_t DiscardStaged(WcStatus status);
  // Settles the staged WRs of `owner` that name none of `remote` with `status`, so that they are not posted. Leaves
  // krcore's own WRs, whose memory is not a published region.
  void RefuseStaged(const QueueState* owner, std::span<const RemoteRegion> remote, WcStatus status);
  // Forgets the staged WRs of `owner`, which is about to go, except those that wait only because the queue is blocked.
  void DropStaged(const QueueState* owner);
  // Whether `owner` has WRs that are posted, or that wait because the queue is blocked.
  bool HasPosted(const QueueState* owner) const;
  // Forgets the posted WRs too; their buffers may be in use until Recover.
  void Disown(const QueueState* owner);

 private:
  struct Entry {  // of the ring, assigned when a WR is accepted
    uint64_t user_wr_id = 0;
    QueueState* owner = nullptr;  // null: nobody waits for it
    Opcode opcode = Opcode::kRead;
    uint8_t kind = kUserSignaled;           // of EntryKind
    WcStatus settled = WcStatus::kSuccess;  // otherwise: not on the NIC, to be delivered with this status
    uint32_t tag = 0;                       // krcore's own: as in OwnWrDone; else of a Run that begins here, or 0
  };
  // WRs of a user that were accepted together, none of them settled or abandoned since: they retire together. A run may
  // wrap around the ring's end.
  struct Run {
    static constexpr uint32_t kMost = UINT16_MAX;
    explicit Run(uint32_t tag) : count(tag & kMost), signaled(tag >> 16) {}
    static uint32_t Tag(uint32_t count, uint32_t signaled) { return count <= kMost ? count | signaled << 16 : 0; }
    uint32_t count, signaled;
  };
  enum EntryKind : uint8_t {
    kUserSignaled = 1,
    kOwn = 2,  // krcore's own from here up, with OwnWr << kOwnShift
    kOwnZeroCopy = 4,
    kOwnShift = 4,
  };
  static bool IsOwn(const Entry& entry, OwnWr kind) {
    return entry.kind >= kOwn && static_cast<OwnWr>(entry.kind >> kOwnShift) == kind;
  }

  // Whether this is a user's WR that was posted and that somebody waits for.
  static bool IsUsual(const Entry& entry) {
    return entry.owner != nullptr && entry.kind < kOwn && entry.settled == WcStatus::kSuccess;
  }

  PhysicalQueue(rnic::Pd& pd, rnic::Cq& cq, uint32_t index, uint32_t sq_depth, PoolState* pool, bool rc);
  void NoteStaged() {
    if (!noted_) {
      noted_ = true;
      pool_->staged[pool_->staged_count++] = this;
      pool_->host_staged |= host_shared_;
    }
  }
  Entry& entry(uint64_t position) { return entries_[position & mask_]; }
  uint64_t PhysicalId(uint64_t position) const {
    return uint64_t{index_} << 56 | uint64_t{generation_} << 48 | (position & mask_);
  }
  uint64_t PositionOf(const Completion& completion) const { return head_ + ((completion.wr_id - head_) & mask_); }
  bool IsSettled(uint64_t position) const { return entries_[position & mask_].settled != WcStatus::kSuccess; }
  // The two passes of Fill, over WRs that do not wrap around the ring: what is posted; and the entries, with `owner`'s
  // places after the first `kept`. FillEntries returns how many places it has written.
  uint32_t FillEntries(std::span<const WorkRequest> wrs, uint64_t position, QueueState* owner, uint32_t kept);
  void FillSlots(std::span<const WorkRequest> wrs, uint64_t position, const peers::Peer& peer);
  // Signals every kSignalEvery-th of the ring's WRs from `position` on.
  void SignalSome(uint64_t position, size_t count);
  // Fills the SGEs of a WR that has several or is inline.
  void FillSges(const WorkRequest& wr, uint64_t position);
  void MarkOwn(OwnWr kind, Opcode user_opcode, bool zero_copy, uint32_t tag);
  // The caller may reuse an inline payload at once, but the doorbell comes later.
  void CopyInline(const WorkRequest& wr, rnic::SendWr* out, Sge* sge);
  // The position after the last WR whose doorbell has been rung.
  uint64_t pushed() const { return blocked_ ? std::max(posted_, std::min(rung_, tail_)) : posted_; }
  void Settle(uint64_t position, WcStatus status);
  // Nobody waits for the WR any more. (Its run, if any, has one owner, and is abandoned as a whole.)
  void Abandon(uint64_t position) { entry(position).owner = nullptr; }
  // Completes [head_, end), then the settled ones right after it.
  size_t RetireUpTo(uint64_t end);
  // Completes the usual WRs of one queue at head_ (at least one), up to `end`.
  void RetireRun(uint64_t end) {
    QueueState* const owner = entry(head_).owner;
    const uint64_t begin = head_;
    uint64_t at = begin;
    uint32_t signaled = 0;
    do {
      const Entry& next = entry(at);
      const Run run(next.tag);
      if (run.count != 0 && at + run.count <= end && settled_ == 0) [[likely]] {
        at += run.count;
        signaled += run.signaled;
      } else {
        ++at;
        signaled += next.kind;
      }
    } while (at < end && entry(at).owner == owner && IsUsual(entry(at)));
    head_ = at;
    owner->Complete(static_cast<uint32_t>(at - begin) - signaled, signaled, qp_num_);
  }
  size_t CompleteSlowly(const Completion& completion);
  size_t FlushSlowly();
  void UseQp(std::unique_ptr<rnic::Qp> qp) {
    qp_ = std::move(qp);
    qp_num_ = qp_ != nullptr ? qp_->num() : 0;
  }
  void Retire(const Entry& entry, WcStatus status);
  void RetireOwn(const Entry& entry, WcStatus status);
  // Whether a WR must not be posted after `recovery`.
  bool FlushedBy(uint64_t recovery, uint64_t position, bool was_posted) const;
  // After a failure: settles what must not be posted (again).
  void EditRing(uint64_t recovery);
  // Copies the WR at the head, which is not settled, to the tail of `to`. False: no room there for its inline payload.
  bool CopyHeadTo(PhysicalQueue& to);
  void SignalLastStaged();
  // Writes the whole word that was written with the rest: reading it whole would wait for the store of a part.
  void Signal(uint64_t position) {
    rnic::SendWr& wr = wrs_[position & mask_];
    SetWordAt<16>(wr, WordAt<16>(wr) | PartOfWord<offsetof(WorkRequest, flags), 16>(uint8_t{kSignaled}));
  }
  // Posts [posted_, end), which does not wrap and has no settled WR. False: one was refused.
  bool PostRun(uint64_t end) {
    const size_t count = end - posted_;
    ++pool_->stats.doorbells;
    pool_->stats.work_requests += count;
    size_t refused = 0;
    const Status status = qp_->PostSend({&wrs_[posted_ & mask_], count}, &refused);
    if (!status.ok()) [[unlikely]] {
      Refused(refused, status.code());
      return false;
    }
    posted_ = on_nic_ = end;
    return true;
  }
  // The doorbell was refused at this WR.
  void Refused(size_t index, StatusCode code);

  rnic::Pd& pd_;
  rnic::Cq& cq_;
  const uint32_t index_;
  const uint32_t sq_depth_;
  const uint64_t mask_;
  const bool rc_;
  bool host_shared_ = false;  // the QP is one of the host's
  PoolState* const pool_;
  std::unique_ptr<rnic::Qp> qp_;
  uint32_t qp_num_ = 0;     // its number, 0: there is none
  uint8_t generation_ = 0;  // of the QP: each reset increments it, so that late completions are told apart

  uint64_t head_ = 0, posted_ = 0, tail_ = 0;
  uint64_t rung_ = 0;                       // while blocked: after the last WR whose doorbell has been rung
  const peers::Peer* last_peer_ = nullptr;  // of the WR at tail_ - 1, while staged
  uint32_t settled_ = 0;                    // entries of the ring that are settled

  bool noted_ = false;  // on PoolState::staged
  bool blocked_ = false;
  bool broken_ = false;
  bool recovering_ = false;  // since it is broken
  bool dead_ = false;        // no QP could be made
  uint64_t collected_ = 0;
  uint64_t on_nic_ = 0;  // after the last WR that was posted: settled ones that posted_ has passed never complete
  QueueState* culprit_ = nullptr;
  WcStatus culprit_status_ = WcStatus::kSuccess;

  size_t inline_used_ = 0;
  std::byte* own_memory_ = nullptr;
  uint32_t own_lkey_ = 0;
  LazyArray<rnic::SendWr> wrs_;
  LazyArray<Sge> sges_;  // kMaxSge per WR
  LazyArray<Entry> entries_;
  std::unique_ptr<std::byte[]> inline_arena_;
};

}  // namespace krcore::queue

#endif  // KRCORE_QUEUE_PHYSICAL_QUEUE_H_
