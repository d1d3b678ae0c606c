// QueueState: what the pool knows of a VirtualQueue: its completion ring and its standing. Heat: how busy it is.
//
// Thread safety: belongs to the pool's thread.
#ifndef KRCORE_QUEUE_QUEUE_STATE_H_
#define KRCORE_QUEUE_QUEUE_STATE_H_

#include <algorithm>
#include <bit>
#include <cassert>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "krcore/base/arrays.h"
#include "krcore/base/word_pair.h"
#include "krcore/peers/peer.h"
#include "krcore/types.h"

namespace krcore::queue {

// Heat: how busy a queue is: WRs per interval, averaged so that each interval counts half as much as the next.
class Heat {
 public:
  // `wrs` in the last `intervals` (>= 1) intervals together.
  void Add(uint64_t wrs, uint64_t intervals) {
    const uint64_t each = wrs / intervals;
    const uint64_t halvings = std::min<uint64_t>(intervals, 63);
    average_ = (average_ >> halvings) + each - (each >> halvings);
  }
  uint64_t average() const { return average_; }

 private:
  uint64_t average_ = 0;
};

// Copies the payload of an inline WR; the user may reuse it at once although the doorbell comes later. Returns its
// length in bytes.
inline uint32_t CopyInlinePayload(const WorkRequest& wr, std::byte* to) {
  uint32_t length = 0;
  for (const Sge& sge : std::span(wr.sg_list, wr.num_sge)) {
    std::memcpy(to + length, reinterpret_cast<const void*>(sge.addr), sge.length);
    length += sge.length;
  }
  return length;
}

// WRs that krcore makes itself for a user's queue.
enum class OwnWr : uint8_t {
  kMessage,   // a message; the user waits for it
  kData,      // the WRITE of a kWriteImm; its message follows directly
  kInternal,  // only its maker waits for it
};

enum class QueueStanding : uint8_t {
  kUnconnected,
  kReady,
  kBroken,  // a WR failed; only Connect helps
};

class QueueState;

// What a PhysicalQueue reports when a WR that krcore made itself is done.
struct OwnWrDone {
  OwnWr kind;
  Completion completion;  // in the user's form, if one is due
  bool user_signaled = false;
  bool zero_copy = false;
  uint32_t tag = 0;         // the maker's
  const std::byte* memory;  // PhysicalQueue::own_memory() of its position
};

// Takes back the WRs that krcore made for a queue in addition to the user's. Called while completions are dispatched,
// so it must not post.
class OwnWrSink {
 public:
  virtual ~OwnWrSink() = default;
  virtual void OnDone(const OwnWrDone& done) = 0;
};

class QueueState {
 public:
  explicit QueueState(uint32_t depth) : depth_(depth), mask_(std::bit_ceil(depth) - 1), ring_(size_t{mask_} + 1) {}

  uint32_t depth() const { return depth_; }
  // WRs accepted and neither popped nor silently completed.
  uint32_t used() const { return used_; }
  uint32_t delivered() const { return visible() - head_; }
  uint32_t outstanding() const { return used_ - delivered(); }
  size_t memory_bytes() const { return (size_t{mask_} + 1) * sizeof(Completion); }

  // Writes a signaled WR's completion as its owner will find it if it succeeds. Writes whole words.
  static void Promise(Completion& place, uint64_t wr_id, uint32_t opcode, uint32_t qp_num) {
    static_assert(sizeof(Completion) == 32 && offsetof(Completion, wr_id) == 0 && kNoNode == 0);
    SetWordAt<0>(place, wr_id);
    SetWordAt<8>(place, uint64_t{opcode} << 8 * (offsetof(Completion, opcode) - 8));
    SetPairAt<16>(place, WordPair{PartOfWord<offsetof(Completion, qp_num), 16>(qp_num), 0});
  }
  // Where to write the next expected completion after the first `kept`. Completions that the user asked for are written
  // when their WRs are accepted, so that those that succeed only need to be counted.
  Completion& Place(uint32_t kept) { return ring_[(tail_ + kept) & mask_]; }

  // `expected` of the `count` WRs are signaled. Their completions are those already written, if they succeed.
  void Accept(uint32_t count, uint32_t expected) {
    used_ += count;
    accepted_ += count;
    tail_ += expected;
    assert(used_ <= depth_);
  }
  // The next WRs succeeded: `silent` and `expected` ones, in any order.
  void Complete(uint32_t silent, uint32_t expected, uint32_t qp_num) {
    assert(outstanding() >= silent + expected && tail_ - done_ >= expected);
    used_ -= silent;
    if (expected == 0) return;
    if (ring_[done_ & mask_].qp_num != qp_num) [[unlikely]] {  // not through the expected QP
      for (uint32_t i = 0; i < expected; ++i) ring_[(done_ + i) & mask_].qp_num = qp_num;
    }
    done_ += expected;
  }
  // Whether `count` executed WRs may be delivered now: nothing is outstanding, and there is room.
  bool MayDeliverAtOnce(size_t count) const {
    return used_ == done_ - head_ && special_ == 0 && count <= depth_ - used_;
  }
  // Accepts WRs that have succeeded, and delivers the signaled ones.
  void DeliverAtOnce(std::span<const WorkRequest> wrs, uint32_t qp_num) {
    assert(MayDeliverAtOnce(wrs.size()) && tail_ == done_);
    accepted_ += wrs.size();
    for (const WorkRequest& wr : wrs) {
      if ((wr.flags & kSignaled) == 0) continue;
      Promise(ring_[tail_++ & mask_], wr.wr_id, static_cast<uint32_t>(wr.opcode), qp_num);
    }
    used_ += tail_ - done_;
    done_ = tail_;
  }
  void CompleteSilently() {
    assert(outstanding() > 0);
    --used_;
  }
  // Completes the next WR with `completion`, which was expected, or was not because a silent WR failed. Never
  // overflows: a delivered WR was accepted, and no more than `depth` are.
  void Deliver(const Completion& completion, bool expected) {
    assert(outstanding() > 0);
    if (!expected) {
      for (uint32_t at = tail_++; at != done_; --at) ring_[at & mask_] = ring_[(at - 1) & mask_];
    }
    ring_[done_++ & mask_] = completion;
  }
  size_t Pop(std::span<Completion> out) {
    if (special_ != 0) [[unlikely]]
      return PopSpecial(out);
    // None is held. Copies one by one: usually there is one, and a call for any number costs as much as three copies.
    const auto count = static_cast<uint32_t>(std::min<size_t>(out.size(), done_ - head_));
    if (count == 0) return 0;
    uint32_t at = head_;
    head_ += count;
    used_ -= count;
    Completion* to = out.data();
    do {
      *to++ = ring_[at++ & mask_];
    } while (at != head_);
    if (head_ == tail_) head_ = done_ = tail_ = 0;  // the front of the ring is in the cache
    return count;
  }

  // ---- messages whose buffer stays in use after their WR has completed (zero-copy)

  // As Deliver, but this completion and all later ones stay invisible until they are released, oldest first. Returns
  // its position. A silent one is seen only if it failed.
  uint32_t DeliverHeld(const Completion& completion, bool silent) {
    if (holds_++ == 0) held_at_ = done_;
    ++special_;
    Deliver(completion, !silent);
    Completion& kept = ring_[(done_ - 1) & mask_];
    kept.flags = static_cast<uint8_t>(kept.flags & ~kSilentMark);
    if (silent) {
      kept.flags |= kSilentMark;
      ++special_;
    }
    return done_ - 1;
  }
  // Releases the oldest held one, at `position`; `next` is the one after it, if any.
  void ReleaseHeld(uint32_t position, WcStatus status, const uint32_t* next) {
    assert(holds_ > 0 && position == held_at_);
    ring_[position & mask_].status = status;
    --holds_;
    --special_;
    if (next != nullptr) held_at_ = *next;
    DropSilent();
  }
  // Returns how many WRs were accepted since the last call.
  uint64_t TakeAccepted() { return std::exchange(accepted_, 0); }

  QueueStanding standing = QueueStanding::kUnconnected;
  std::shared_ptr<const peers::Peer> peer;
  // Former versions of `peer` since Connect: requests in flight, and users, may still refer to them.
  std::vector<std::shared_ptr<const peers::Peer>> former_peers;
  // The recovery in which a WRITE or atomic of this queue was last flushed, see PhysicalQueue.
  uint64_t flushed_in_recovery = 0;
  // How busy it is, and until when its peer, which did not answer, is not asked for an RC connection (RcQueues).
  Heat heat;
  int64_t stay_on_dc_until_ns = 0;
  // For WRs that krcore makes itself for this queue; null: there are none.
  OwnWrSink* own_wrs = nullptr;

 private:
  static constexpr uint8_t kSilentMark = 0x80;  // of Completion::flags, within the ring

  uint32_t visible() const { return holds_ == 0 ? done_ : held_at_; }
  void DropSilent() {
    while (head_ != visible()) {
      const Completion& front = ring_[head_ & mask_];
      if ((front.flags & kSilentMark) == 0 || front.status != WcStatus::kSuccess) break;
      ++head_;
      --used_;
      --special_;
    }
    if (head_ == tail_) head_ = done_ = tail_ = 0;
  }
  size_t PopSpecial(std::span<Completion> out) {
    size_t count = 0;
    for (DropSilent(); count < out.size() && head_ != visible(); DropSilent()) {
      out[count] = ring_[head_++ & mask_];
      --used_;
      if ((out[count].flags & kSilentMark) != 0) --special_;
      out[count].flags = static_cast<uint8_t>(out[count].flags & ~kSilentMark);
      ++count;
    }
    return count;
  }

  const uint32_t depth_;
  const uint32_t mask_;
  uint32_t used_ = 0;
  uint64_t accepted_ = 0;
  // In the ring: [head_, done_) have been delivered, [done_, tail_) are expected.
  uint32_t head_ = 0, done_ = 0, tail_ = 0;
  uint32_t special_ = 0;  // held completions and silent marks in the ring
  uint32_t holds_ = 0;
  uint32_t held_at_ = 0;  // the oldest held one
  LazyArray<Completion> ring_;
};

}  // namespace krcore::queue

#endif  // KRCORE_QUEUE_QUEUE_STATE_H_
