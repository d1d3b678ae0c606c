// Completion queue: a ring in this process. Belongs to one thread at a time, with the Qps that fill it.
#ifndef KRCORE_RNIC_SW_CQ_H_
#define KRCORE_RNIC_SW_CQ_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "krcore/base/lazy_array.h"
#include "krcore/base/word_pair.h"
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

  void PushReceived(const Completion& completion) {
    if (HasRoom()) ring_[tail_++ & mask_] = {completion, nullptr, 0};
  }
  // Of a send queue: polling it frees the queue's slots up to `position`. In words, since those who poll read words.
  void PushSent(uint64_t wr_id, WcStatus status, Opcode opcode, uint32_t qp_num, SendCounters* counters,
                uint64_t position) {
    if (!HasRoom()) [[unlikely]]
      return;
    Entry& entry = ring_[tail_++ & mask_];
    static_assert(sizeof(Completion) == 32 && offsetof(Completion, wr_id) == 0 && kNoNode == 0);
    SetPairAt<0>(entry.completion, WordPair{wr_id, PartOfWord<offsetof(Completion, status), 8>(status) |
                                                       PartOfWord<offsetof(Completion, opcode), 8>(opcode)});
    SetPairAt<16>(entry.completion, WordPair{PartOfWord<offsetof(Completion, qp_num), 16>(qp_num), 0});
    entry.counters = counters;
    entry.position = position;
  }
  // Drops what a destroyed queue left, as verbs do.
  void Forget(uint32_t qp_num, const SendCounters* counters);

  void Attach(Receiver* receiver) { receivers_.push_back(receiver); }
  void Detach(Receiver* receiver);

 private:
  struct Entry {
    Completion completion;
    SendCounters* counters;  // null: of a receive
    uint64_t position;
  };
  size_t Take(std::span<Completion> out);
  bool HasRoom() {
    if (tail_ - head_ != depth_) [[likely]]
      return true;
    overrun_ = true;
    return false;
  }
  const uint32_t depth_;
  const uint64_t mask_;
  LazyArray<Entry> ring_;
  uint64_t head_ = 0, tail_ = 0;
  bool overrun_ = false;
  std::vector<Receiver*> receivers_;
};

}  // namespace krcore::rnic::sw

#endif  // KRCORE_RNIC_SW_CQ_H_
