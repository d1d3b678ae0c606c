// What VirtualQueues that have one-sided requests alone have in common, and the ring of one that has a send queue to
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

// OneSidedRing: the WRs of a VirtualQueue that has a send queue to itself, from their acceptance to their completion.
//
// In posting order: [head, posted) have been handed on, [posted, tail) are staged. A settled one is not handed on but
// delivered with its status when the head comes to it. Positions only grow; slot() is where a ring beside this one,
// of what is posted, keeps a position's.
//
// Thread safety: none. What returns a number returns how many WRs it completed.
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

  // Whether so many can be accepted; else *bad_index is the first that cannot.
  bool HasRoom(size_t count, size_t* bad_index) const;
  // Accepts one; returns its position.
  uint64_t Accept(const WorkRequest& wr);

  // Passes what is settled in front of the staged ones, and returns the end of those from posted() on that can be
  // handed on together: no more than `most`, none settled, not around the ring's end.
  uint64_t NextRun(uint64_t most);
  // They were handed on.
  void Posted(uint64_t end) { posted_ = end; }
  void Settle(uint64_t position, WcStatus status) { entry(position).settled = status; }
  // All that are staged, but for those that are settled.
  size_t SettleStaged(WcStatus status);

  // The one at the head is done, settled or with `status`.
  void CompleteHead(WcStatus status, uint32_t qp_num = 0);
  // Those at the head that are settled.
  size_t CompleteSettled();
  // All of them, those that are not settled with `status`.
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
