// QueueState: what the pool knows of a VirtualQueue: its completion ring and its standing.
//
// Thread safety: belongs to the pool's thread.
#ifndef KRCORE_POOL_QUEUE_STATE_H_
#define KRCORE_POOL_QUEUE_STATE_H_

#include <algorithm>
#include <bit>
#include <cassert>
#include <cstdint>
#include <memory>
#include <span>

#include "krcore/base/lazy_array.h"
#include "krcore/dct/peer.h"
#include "krcore/types.h"

namespace krcore::pool {

enum class QueueStanding : uint8_t {
  kUnconnected,
  kReady,
  kBroken,  // a WR failed; only Connect helps
};

class QueueState {
 public:
  explicit QueueState(uint32_t depth) : depth_(depth), mask_(std::bit_ceil(depth) - 1), ring_(size_t{mask_} + 1) {}

  uint32_t depth() const { return depth_; }
  // Accepted and not yet popped, or silently completed.
  uint32_t used() const { return used_; }
  uint32_t delivered() const { return tail_ - head_; }
  uint32_t outstanding() const { return used_ - delivered(); }
  size_t memory_bytes() const { return (size_t{mask_} + 1) * sizeof(Completion); }

  void Accept(uint32_t count) {
    used_ += count;
    assert(used_ <= depth_);
  }
  void CompleteSilently() {
    assert(outstanding() > 0);
    --used_;
  }
  // Never overflows: what is delivered was accepted, and no more than `depth` is.
  void Deliver(const Completion& completion) {
    assert(outstanding() > 0);
    ring_[tail_++ & mask_] = completion;
  }
  size_t Pop(std::span<Completion> out) {
    const auto count = static_cast<uint32_t>(std::min<size_t>(out.size(), delivered()));
    for (uint32_t i = 0; i < count; ++i) out[i] = ring_[head_++ & mask_];
    used_ -= count;
    if (head_ == tail_) head_ = tail_ = 0;  // the front of the ring is in the cache
    return count;
  }

  QueueStanding standing = QueueStanding::kUnconnected;
  std::shared_ptr<const dct::Peer> peer;
  // The recovery in which a WRITE or atomic of this queue was last flushed, see PhysicalQueue.
  uint64_t flushed_in_recovery = 0;

 private:
  const uint32_t depth_;
  const uint32_t mask_;
  uint32_t used_ = 0;
  uint32_t head_ = 0, tail_ = 0;  // of the ring
  LazyArray<Completion> ring_;
};

}  // namespace krcore::pool

#endif  // KRCORE_POOL_QUEUE_STATE_H_
