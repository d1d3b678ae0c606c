// Completion queue: a ring that grows up to its depth.
#ifndef KRCORE_RNIC_SIM_CQ_H_
#define KRCORE_RNIC_SIM_CQ_H_

#include <cstdint>
#include <vector>

#include "krcore/rnic/rnic.h"
#include "krcore/rnic/sim/engine.h"

namespace krcore::rnic::sim {

// How far a send queue has come. Slots [freed, posted) are taken.
struct SendCounters {
  uint64_t posted = 0;
  uint64_t freed = 0;
};

class SimCq final : public Cq {
 public:
  SimCq(Engine* engine, DeviceState* device, uint32_t depth) : engine_(engine), device_(device), depth_(depth) {}
  ~SimCq() override { device_->unpolled -= tail_ - head_; }
  size_t Poll(std::span<Completion> out) override;
  bool overrun() const override { return overrun_; }

  // Of a send queue: polling it frees the queue's slots up to `position`. Of a receive: counters is null.
  void Push(const Completion& completion, SendCounters* counters, uint64_t position);
  // Drops what a destroyed queue left, as verbs do.
  void Forget(uint32_t qp_num, const SendCounters* counters);

 private:
  struct Entry {
    Completion completion;
    SendCounters* counters;
    uint64_t position;
  };
  // Polls in a row that find nothing while nothing happens in the World. Whoever spins on a Cq alone would spin for
  // ever, so at this many the next event is executed.
  static constexpr uint32_t kIdlePolls = 4096;

  Entry& at(uint64_t position) { return ring_[position & (ring_.size() - 1)]; }
  void Grow();
  bool Nudge();

  Engine* const engine_;
  DeviceState* const device_;
  const uint32_t depth_;
  std::vector<Entry> ring_;  // a power of two
  uint64_t head_ = 0, tail_ = 0;
  bool overrun_ = false;
  uint32_t idle_polls_ = 0;
  uint64_t seen_events_ = 0;
  int64_t seen_ns_ = 0;
};

}  // namespace krcore::rnic::sim

#endif  // KRCORE_RNIC_SIM_CQ_H_
