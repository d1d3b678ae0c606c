// A completion queue: libibverbs', its own room for what a queue that goes leaves in it, and the count of what is
// outstanding. libibverbs' CQ has room for every WR of its queues, since all of them may fail; the depth that its owner
// asked for is kept by counting.
#ifndef KRCORE_RNIC_VERBS_CQ_H_
#define KRCORE_RNIC_VERBS_CQ_H_

#include <infiniband/verbs.h>

#include <deque>
#include <memory>
#include <vector>

#include "krcore/rnic/verbs/context.h"

namespace krcore::rnic::verbs {

class VerbsCq;

// Whose WRs complete into a CQ.
class CqUser {
 public:
  // Of a WR's token: whether it was posted since the last RESET.
  virtual bool IsOfThisLife(uint64_t token) const = 0;
  // False: there is nothing to tell the caller.
  virtual bool Complete(const ibv_wc& wc, Completion* completion) = 0;
  // Completions that the NIC does not know of.
  virtual size_t TakeFlushes(const VerbsCq* cq, std::span<Completion> out) = 0;

 protected:
  ~CqUser() = default;
};

// A queue whose completions software makes.
class CompletionSource {
 public:
  // Does what there is to do, so that completions come.
  virtual void Drive() = 0;
  // The same, and moves completions into `out`.
  virtual size_t Take(std::span<Completion> out) = 0;
  // Whether there may be anything to do or to take. One for which that changes by itself says WakeSources.
  virtual bool Awake() const = 0;

 protected:
  ~CompletionSource() = default;
};

class VerbsCq final : public Cq {
 public:
  static Result<std::unique_ptr<Cq>> Create(Context* context, uint32_t depth, uint32_t max_depth);
  ~VerbsCq() override;
  size_t Poll(std::span<Completion> out) override;
  bool overrun() const override { return overrun_; }

  ibv_cq* get() const { return cq_; }
  // Room for the WRs of one more queue, or one less. kOutOfMemory.
  Status Reserve(uint32_t wrs);
  void Unreserve(uint32_t wrs) { reserved_ -= wrs; }
  // A number for WRs to carry.
  uint16_t Attach(CqUser* user);
  void Detach(uint16_t slot);
  // Takes all that is there into own room, and forgets what is of `user`.
  void Forget(const CqUser* user);

  void AddSource(CompletionSource* source) {
    sources_.push_back(source);
    WakeSources();
  }
  void RemoveSource(CompletionSource* source) { std::erase(sources_, source); }
  void WakeSources() { sources_awake_ = true; }
  void DriveSources() {
    for (CompletionSource* const source : sources_) source->Drive();
  }

  // A signaled WR is posted. False: its completion will be lost.
  bool AddSignaled() {
    const bool fits = ++signaled_ <= depth_;
    overrun_ = overrun_ || !fits;
    return fits;
  }
  void RemoveSignaled(uint64_t count) { signaled_ -= count; }
  // Receives that wait to be flushed.
  void AddFlushes(uint64_t count) { flushes_ += count; }
  void RemoveFlushes(uint64_t count) { flushes_ -= count; }

 private:
  struct Kept {
    Completion completion;
    const CqUser* user;
  };
  VerbsCq(ibv_cq* cq, uint32_t depth, uint32_t max_depth) : cq_(cq), depth_(depth), max_depth_(max_depth) {}
  CqUser* Owner(uint64_t wr_id) const;
  size_t TakeFromSources(std::span<Completion> out);

  ibv_cq* const cq_;
  const uint32_t depth_, max_depth_;
  uint64_t reserved_ = 0;
  uint64_t signaled_ = 0;
  uint64_t flushes_ = 0;
  bool overrun_ = false;
  std::vector<CqUser*> slots_;
  std::deque<Kept> kept_;
  std::vector<CompletionSource*> sources_;
  size_t first_source_ = 0;  // which goes first
  bool sources_awake_ = false;
};

// What a WR carries as libibverbs' wr_id. The life tells completions of a queue before its RESET from those after it.
struct WrToken {
  static constexpr uint64_t kReceive = uint64_t{1} << 63;
  static uint64_t Make(bool receive, uint16_t life, uint16_t slot, uint32_t position) {
    return (receive ? kReceive : 0) | uint64_t{static_cast<uint16_t>(life & 0x7fff)} << 48 | uint64_t{slot} << 32 |
           position;
  }
  static uint16_t Life(uint64_t token) { return static_cast<uint16_t>(token >> 48 & 0x7fff); }
  static uint16_t Slot(uint64_t token) { return static_cast<uint16_t>(token >> 32); }
  static uint32_t Position(uint64_t token) { return static_cast<uint32_t>(token); }
};

}  // namespace krcore::rnic::verbs

#endif  // KRCORE_RNIC_VERBS_CQ_H_
