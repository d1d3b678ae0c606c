// What VirtualQueues with one-sided requests only have in common, and the ring of such a queue that has a send queue to
// itself.
#ifndef KRCORE_QUEUE_ONE_SIDED_RING_H_
#define KRCORE_QUEUE_ONE_SIDED_RING_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "krcore/base/arrays.h"
#include "krcore/queue/queue_state.h"
#include "krcore/types.h"
#include "krcore/virtual_queue.h"

namespace krcore::queue {

// QueueWithoutMessages: every call for messages is kUnsupported.
class QueueWithoutMessages : public VirtualQueue {
 public:
  using VirtualQueue::Connect;
  Status Bind(Port, const BindOptions&, Deadline) override { return NoMessages(); }
  Port port() const override { return kNoPort; }
  Status Connect(NodeId, Port, Deadline) override { return NoMessages(); }
  Status Connect(const Sender&, Deadline) override { return NoMessages(); }
  uint32_t credits() const override { return 0; }
  Status PushRecv(std::span<const Receive>, size_t*) override { return NoMessages(); }
  size_t PopMessages(std::span<Message>) override { return 0; }

 private:
  Status NoMessages() const {
    KRCORE_RETURN_IF_ERROR(NotForked());
    return {StatusCode::kUnsupported, "this control plane has one-sided requests only"};
  }
};

// OneSidedRing: the WRs, from acceptance to completion, of a VirtualQueue that has a send queue to itself.
//
// In posting order: [head, posted) have been handed on, [posted, tail) are staged. A settled WR is not handed on but
// delivered with its status when the head reaches it. Positions only grow. slot() is the index of a position in this
// ring, and in any parallel ring of posted WRs.
//
// Thread safety: none. Functions that return a number return how many WRs they completed.
class OneSidedRing {
 public:
  explicit OneSidedRing(uint32_t depth);

  uint32_t depth() const { return state_.depth(); }
  uint32_t outstanding() const { return state_.outstanding(); }
  size_t slots() const { return mask_ + 1; }
  size_t slot(uint64_t position) const { return position & mask_; }
  uint64_t head() const { return head_; }
  uint64_t posted() const { return posted_; }
  bool has_staged() const { return posted_ != tail_; }
  bool nothing_posted() const { return head_ == posted_; }
  size_t memory_bytes() const { return state_.memory_bytes() + slots() * sizeof(Entry); }
  size_t Pop(std::span<Completion> out) { return state_.Pop(out); }

  // Whether `count` WRs can be accepted; otherwise *bad_index is the first that cannot.
  bool HasRoom(size_t count, size_t* bad_index) const;
  // Accepts a WR; returns its position.
  uint64_t Accept(const WorkRequest& wr);

  // Skips settled WRs in front of the staged ones, and returns the end of the WRs from posted() on that can be handed
  // on together: no more than `most`, none settled, and not around the ring's end.
  uint64_t NextRun(uint64_t most);
  // Records that the WRs before `end` were handed on.
  void Posted(uint64_t end) { posted_ = end; }
  void Settle(uint64_t position, WcStatus status) { entry(position).settled = status; }
  // Settles all staged WRs that are not settled yet.
  size_t SettleStaged(WcStatus status);

  // Completes the WR at the head with its settled status, or else with `status`.
  void CompleteHead(WcStatus status, uint32_t qp_num = 0);
  // Completes the settled WRs at the head.
  size_t CompleteSettled();
  // Completes all WRs, with `status` unless they are settled.
  void CompleteAll(WcStatus status);

 private:
  struct Entry {
    uint64_t user_wr_id;
    Opcode opcode;
    bool user_signaled;
    WcStatus settled;  // kSuccess: not
  };
  Entry& entry(uint64_t position) { return entries_[slot(position)]; }
  bool IsSettled(uint64_t position) { return entry(position).settled != WcStatus::kSuccess; }

  QueueState state_;
  const uint64_t mask_;
  LazyArray<Entry> entries_;
  uint64_t head_ = 0, posted_ = 0, tail_ = 0;
};

}  // namespace krcore::queue

#endif  // KRCORE_QUEUE_ONE_SIDED_RING_H_
