// Completion queue: a ring in this process. Belongs to one thread at a time, with the Qps that fill it.
#ifndef KRCORE_RNIC_SW_CQ_H_
#define KRCORE_RNIC_SW_CQ_H_

#include <cstdint>
#include <vector>

#include "krcore/base/lazy_array.h"
#include "krcore/rnic/rnic.h"

namespace krcore::rnic::sw {

class Receiver;

// How far a send queue has come. Slots [freed, posted) are taken.
struct SendCounters {
  uint64_t posted = 0;
  uint64_t freed = 0;
};

class SwCq final : public Cq {
 public:
  explicit SwCq(uint32_t depth);
  size_t Poll(std::span<Completion> out) override;
  bool overrun() const override { return overrun_; }

  // Of a send queue: polling it frees the queue's slots up to `position`. Of a receive: counters is null.
  void Push(const Completion& completion, SendCounters* counters, uint64_t position) {
    if (tail_ - head_ == depth_) [[unlikely]] {
      overrun_ = true;
      return;
    }
    ring_[tail_++ & mask_] = {completion, counters, position};
  }
  // Drops what a destroyed queue left, as verbs do.
  void Forget(uint32_t qp_num, const SendCounters* counters);

  void Attach(Receiver* receiver) { receivers_.push_back(receiver); }
  void Detach(Receiver* receiver);

 private:
  struct Entry {
    Completion completion;
    SendCounters* counters;
    uint64_t position;
  };
  const uint32_t depth_;
  const uint64_t mask_;
  LazyArray<Entry> ring_;
  uint64_t head_ = 0, tail_ = 0;
  bool overrun_ = false;
  std::vector<Receiver*> receivers_;
};

}  // namespace krcore::rnic::sw

#endif  // KRCORE_RNIC_SW_CQ_H_
