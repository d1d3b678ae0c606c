#include "krcore/rnic/sw/cq.h"

#include <algorithm>
#include <bit>

#include "krcore/rnic/sw/receiver.h"

namespace krcore::rnic::sw {

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

}  // namespace krcore::rnic::sw
