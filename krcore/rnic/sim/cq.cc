#include "krcore/rnic/sim/cq.h"

#include <algorithm>

namespace krcore::rnic::sim {

size_t SimCq::Poll(std::span<Completion> out) {
  if (head_ == tail_ && !Nudge()) return 0;
  size_t count = 0;
  for (; count < out.size() && head_ != tail_; ++count, ++head_) {
    const Entry& entry = at(head_);
    out[count] = entry.completion;
    if (entry.counters != nullptr) entry.counters->freed = entry.position;
  }
  device_->unpolled -= count;
  idle_polls_ = 0;
  return count;
}

// True if there is something to poll now.
bool SimCq::Nudge() {
  if (engine_->stats().events != seen_events_ || engine_->now_ns() != seen_ns_) {
    seen_events_ = engine_->stats().events;
    seen_ns_ = engine_->now_ns();
    idle_polls_ = 0;
  }
  if (++idle_polls_ < kIdlePolls) return false;
  idle_polls_ = 0;
  return engine_->Step() && head_ != tail_;
}

void SimCq::Push(const Completion& completion, SendCounters* counters, uint64_t position) {
  if (tail_ - head_ == depth_) {
    overrun_ = true;
    return;
  }
  if (tail_ - head_ == ring_.size()) Grow();
  at(tail_++) = {completion, counters, position};
  engine_->CountCompletion(*device_);
}

void SimCq::Grow() {
  std::vector<Entry> larger(std::max<size_t>(16, 2 * ring_.size()));
  for (uint64_t position = head_; position != tail_; ++position) larger[position & (larger.size() - 1)] = at(position);
  ring_ = std::move(larger);
}

void SimCq::Forget(uint32_t qp_num, const SendCounters* counters) {
  uint64_t kept = head_;
  for (uint64_t position = head_; position != tail_; ++position) {
    const Entry& entry = at(position);
    const bool gone = counters != nullptr ? entry.counters == counters
                                          : entry.counters == nullptr && entry.completion.qp_num == qp_num;
    if (!gone) at(kept++) = entry;
  }
  device_->unpolled -= tail_ - kept;
  tail_ = kept;
}

}  // namespace krcore::rnic::sim
