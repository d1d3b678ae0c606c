// The atomics of a software DC target: an RC queue that is connected to itself executes them, for the device is atomic
// only against itself, and the CPU is not at all. A queue that broke is destroyed, so that nothing of it is executed
// any more, what was handed over fails, and another one is made.
#ifndef KRCORE_RNIC_VERBS_ATOMICS_H_
#define KRCORE_RNIC_VERBS_ATOMICS_H_

#include <infiniband/verbs.h>

#include <atomic>
#include <memory>
#include <optional>
#include <vector>

#include "krcore/rnic/sdc/target.h"
#include "krcore/rnic/verbs/context.h"
#include "krcore/rnic/verbs/registered_pages.h"

namespace krcore::rnic::verbs {

// Thread safety: one thread at a time, but for the counts.
class Atomics {
 public:
  struct Result {
    sdc_token token;
    sdc_status status;
    uint64_t before;  // on success: the word that was found
  };
  static constexpr uint64_t kAtomic = uint64_t{1} << 62;  // in wr_ids

  // `cq` has room for `depth` completions, and is polled by the caller.
  static krcore::Result<std::unique_ptr<Atomics>> Create(Context* context, ibv_pd* pd, ibv_cq* cq, uint32_t depth);
  ~Atomics();
  Atomics(const Atomics&) = delete;
  Atomics& operator=(const Atomics&) = delete;

  // False: there is no room now, nothing was handed over.
  bool Post(const sdc_atomic_request& request);
  // What a completion of the CQ whose wr_id has kAtomic brings; they come in posting order. Empty: perhaps a failure.
  std::optional<Result> Completed(const ibv_wc& wc);
  // After a failure: what was handed over, failed; and a new queue. If it is broken still, this is to be called again.
  std::vector<Result> Repair();

  // Any thread: how many were handed over, and how many are done. Release and acquire: who sees an atomic done may free
  // its memory.
  uint64_t posted() const { return posted_.load(std::memory_order_acquire); }
  uint64_t done() const { return done_.load(std::memory_order_acquire); }
  bool broken() const { return broken_ || events_.fatal.load(std::memory_order_acquire); }

 private:
  Atomics(Context* context, ibv_pd* pd, ibv_cq* cq, uint32_t depth)
      : context_(context), pd_(pd), cq_(cq), depth_(depth), tokens_(depth) {}
  Status MakeQueue();
  Status Connect();
  const uint64_t* words() const { return reinterpret_cast<const uint64_t*>(pages_->data()); }

  Context* const context_;
  ibv_pd* const pd_;
  ibv_cq* const cq_;
  const uint32_t depth_;
  std::vector<sdc_token> tokens_;
  std::unique_ptr<RegisteredPages> pages_;  // the results, by position
  ibv_qp* qp_ = nullptr;
  std::atomic<uint64_t> posted_{0}, done_{0};
  uint64_t repairs_ = 0;
  bool broken_ = false;
  bool refused_ = false;  // the failed one was certainly not executed, nor any behind it
  QueueEvents events_;
};

}  // namespace krcore::rnic::verbs

#endif  // KRCORE_RNIC_VERBS_ATOMICS_H_
