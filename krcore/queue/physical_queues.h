// PhysicalQueues: the physical queues of a pool, and the CQ that they complete into. They are the DC initiators, and RC
// queues, which come and go.
//
// Thread safety: belongs to the pool's thread.
#ifndef KRCORE_QUEUE_PHYSICAL_QUEUES_H_
#define KRCORE_QUEUE_PHYSICAL_QUEUES_H_

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "krcore/peers/peer.h"
#include "krcore/queue/physical_queue.h"
#include "krcore/rnic.h"

namespace krcore::queue {

class PhysicalQueues {
 public:
  explicit PhysicalQueues(rnic::Pd& pd) : pd_(pd) {}

  // Makes the CQ and `dc_count` DC initiators; there can be `rc_slots` RC queues. The initiators are parts of the
  // host's from number `first_host_qp` on; host_qps 0: private ones.
  Status Open(rnic::Device& device, uint32_t dc_count, uint32_t rc_slots, uint32_t sq_depth, uint32_t first_host_qp,
              uint32_t host_qps) {
    sq_depth_ = sq_depth;
    auto cq = device.CreateCq((dc_count + rc_slots) * sq_depth);
    if (!cq.ok()) return cq.status();
    cq_ = *std::move(cq);
    state_.staged = std::make_unique<PhysicalQueue*[]>(dc_count + rc_slots);
    for (uint32_t i = 0; i < dc_count; ++i) {
      auto queue = PhysicalQueue::Create(pd_, *cq_, i, sq_depth, &state_,
                                         host_qps != 0 ? (first_host_qp + i) % host_qps : rnic::kPrivateQp);
      if (!queue.ok()) return queue.status();
      state_.stats.host_queues += (*queue)->host_shared();
      queues_.push_back(*std::move(queue));
      live_.push_back(queues_.back().get());
    }
    dc_count_ = dc_count;
    queues_.resize(dc_count + rc_slots);
    return {};
  }

  // ---- which there are
  // Those with a QP, DC initiators first.
  std::span<PhysicalQueue* const> live() const { return live_; }
  std::span<PhysicalQueue* const> dc() const { return std::span(live_).first(dc_count_); }
  bool any_rc() const { return live_.size() > dc_count_; }
  PhysicalQueue* DcQueueFor(const peers::Target& target) { return queues_[target.address.node % dc_count_].get(); }
  // The RC queue of a slot: made once, then used or not.
  PhysicalQueue* MakeRcQueue(uint32_t slot) {
    const uint32_t index = dc_count_ + slot;
    queues_[index] = PhysicalQueue::CreateForRc(pd_, *cq_, index, sq_depth_, &state_);
    return queues_[index].get();
  }
  Result<std::unique_ptr<rnic::Qp>> CreateRcQp() {
    return pd_.CreateQp({.type = rnic::QpType::kRc, .send_cq = cq_.get(), .recv_cq = cq_.get(), .sq_depth = sq_depth_});
  }
  void UseRcQueue(PhysicalQueue& queue) { live_.push_back(&queue); }
  void ForgetRcQueue(PhysicalQueue& queue) { std::erase(live_, &queue); }
  size_t own_memory_bytes() const { return PhysicalQueue::OwnMemoryBytes(sq_depth_); }  // of each
  size_t memory_bytes() const {
    size_t bytes = 0;
    for (const auto& queue : queues_) bytes += queue ? queue->memory_bytes() : 0;
    return bytes;
  }
  const QueuePoolStats& stats() const { return state_.stats; }
  QueuePoolStats& stats() { return state_.stats; }

  // ---- what is staged
  bool any_staged() const { return state_.staged_count != 0; }
  // Calls `what`, which returns how many WRs it completed, for each queue that may have something staged. Queues that
  // are blocked or broken, and so have something left, stay on the list.
  template <typename Do>
  size_t AtStaged(Do what) {
    size_t completed = 0;
    uint32_t left = 0;
    for (uint32_t i = 0; i < state_.staged_count; ++i) {
      PhysicalQueue& queue = *state_.staged[i];
      completed += what(queue);
      if (queue.has_staged()) [[unlikely]]
        state_.staged[left++] = &queue;
      else
        queue.NoteUnstaged();
    }
    state_.staged_count = left;
    if (left == 0) state_.host_staged = false;
    return completed;
  }
  // Rings the doorbell if one queue has something staged and nothing else needs a look, as is usual. False: it is not
  // so, and nothing was done.
  bool FlushUsual() {
    if (state_.staged_count != 1 || state_.staged[0]->BrokenByOthers() || !state_.staged[0]->FlushUsual()) [[unlikely]]
      return false;
    state_.staged[0]->NoteUnstaged();
    state_.staged_count = 0;
    state_.host_staged = false;
    return true;
  }
  // Whether something is staged on a queue of the host that another process has broken. Posted now, it would only be
  // flushed; it goes out after the next poll, which repairs the queue.
  bool StagedBehindOthersFault() const {
    if (!state_.host_staged) [[likely]]
      return false;
    return std::any_of(state_.staged.get(), state_.staged.get() + state_.staged_count,
                       [](const PhysicalQueue* queue) { return queue->BrokenByOthers() && queue->has_staged(); });
  }
  // Stops the DC initiators that StagedBehindOthersFault means. Returns whether there are any.
  bool StopWhatOthersBroke() {
    bool any = false;
    for (PhysicalQueue* queue : dc()) {
      if (!queue->has_staged() || !queue->BrokenByOthers()) continue;
      queue->Stop();
      any = any_broken_ = true;
    }
    return any;
  }
  // As PhysicalQueue's; a queue's WRs may be in more than one while it moves.
  void RefuseStaged(QueueState* state, std::span<const RemoteRegion> allowed, WcStatus status) {
    for (PhysicalQueue* queue : live_) queue->RefuseStaged(state, allowed, status);
  }
  void DropStaged(QueueState* state) {
    for (PhysicalQueue* queue : live_) queue->DropStaged(state);
  }
  void Disown(QueueState* state) {
    for (PhysicalQueue* queue : live_) queue->Disown(state);
  }

  // ---- what is posted
  bool nothing_posted() const {
    return std::all_of(live_.begin(), live_.end(), [](const PhysicalQueue* queue) { return queue->nothing_posted(); });
  }
  bool nothing_under_way() const {  // nor anything staged
    return nothing_posted() &&
           std::none_of(live_.begin(), live_.end(), [](const PhysicalQueue* queue) { return queue->has_staged(); });
  }
  bool HasPosted(const QueueState* state) const {
    return std::any_of(live_.begin(), live_.end(), [&](const PhysicalQueue* queue) { return queue->HasPosted(state); });
  }
  // Polls the CQ once; returns the number of completions found and adds to *completed how many WRs they completed.
  [[gnu::always_inline]] size_t Dispatch(size_t* completed) {
    const size_t count = cq_->Poll(batch_);
    for (size_t i = 0; i < count; ++i) {
      if (i + 1 < count && PhysicalQueue::Covers(batch_[i + 1], batch_[i])) continue;
      PhysicalQueue& queue = *queues_[PhysicalQueue::IndexOf(batch_[i])];
      *completed += queue.Complete(batch_[i]);
      any_broken_ |= queue.broken();
    }
    return count;
  }
  // Moves completions to their queues until the CQ is empty.
  [[gnu::always_inline]] size_t Collect() {
    size_t completed = 0;
    while (Dispatch(&completed) == batch_.size()) {
    }
    return completed;
  }
  // Whether a queue may be broken.
  bool any_broken() const { return any_broken_; }
  void Break(PhysicalQueue& queue) {
    queue.Break();
    any_broken_ = true;
  }
  void LookForBroken() {
    any_broken_ = std::any_of(live_.begin(), live_.end(), [](const PhysicalQueue* queue) { return queue->broken(); });
  }

 private:
  rnic::Pd& pd_;
  PoolState state_;
  bool any_broken_ = false;
  std::unique_ptr<rnic::Cq> cq_;
  uint32_t dc_count_ = 0, sq_depth_ = 0;
  // The DC initiators, then the queues of RcQueues' slots, null until needed.
  std::vector<std::unique_ptr<PhysicalQueue>> queues_;
  std::vector<PhysicalQueue*> live_;
  // For Dispatch; a member so that it is not cleared for each poll. Last, because it is large.
  std::array<Completion, 64> batch_;
};

}  // namespace krcore::queue

#endif  // KRCORE_QUEUE_PHYSICAL_QUEUES_H_
