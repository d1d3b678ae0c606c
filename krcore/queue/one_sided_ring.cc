#include "krcore/queue/one_sided_ring.h"

#include <algorithm>
#include <bit>

namespace krcore::queue {

OneSidedRing::OneSidedRing(uint32_t depth) : state_(depth), mask_(std::bit_ceil(depth) - 1), entries_(mask_ + 1) {}

bool OneSidedRing::HasRoom(size_t count, size_t* bad_index) const {
  const uint32_t room = state_.depth() - state_.used();
  if (count <= room) return true;
  *bad_index = room;
  return false;
}

uint64_t OneSidedRing::Accept(const WorkRequest& wr) {
  entry(tail_) = {wr.wr_id, wr.opcode, (wr.flags & kSignaled) != 0, WcStatus::kSuccess};
  state_.Accept(1, 0);
  return tail_++;
}

uint64_t OneSidedRing::NextRun(uint64_t most) {
  while (posted_ < tail_ && IsSettled(posted_)) ++posted_;
  const uint64_t limit = posted_ + std::min({tail_ - posted_, slots() - slot(posted_), most});
  uint64_t end = posted_;
  while (end < limit && !IsSettled(end)) ++end;
  return end;
}

size_t OneSidedRing::SettleStaged(WcStatus status) {
  for (uint64_t p = posted_; p < tail_; ++p)
    if (!IsSettled(p)) Settle(p, status);
  posted_ = tail_;
  return CompleteSettled();
}

void OneSidedRing::CompleteHead(WcStatus status, uint32_t qp_num) {
  const Entry& done = entry(head_);
  if (IsSettled(head_)) status = done.settled;
  ++head_;
  if (status == WcStatus::kSuccess && !done.user_signaled) return state_.CompleteSilently();
  Completion completion;
  completion.wr_id = done.user_wr_id;
  completion.status = status;
  completion.opcode = done.opcode;
  completion.qp_num = qp_num;
  state_.Deliver(completion, false);
}

size_t OneSidedRing::CompleteSettled() {
  const uint64_t begin = head_;
  while (head_ < tail_ && IsSettled(head_)) CompleteHead(WcStatus::kSuccess);
  posted_ = std::max(posted_, head_);
  return head_ - begin;
}

void OneSidedRing::CompleteAll(WcStatus status) {
  while (head_ < tail_) CompleteHead(status);
  posted_ = head_;
}

}  // namespace krcore::queue
