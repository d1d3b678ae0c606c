// The counts behind rnic::SoftwareDcStats: those who count add what was added since they did last.
#ifndef KRCORE_RNIC_VERBS_DC_COUNTERS_H_
#define KRCORE_RNIC_VERBS_DC_COUNTERS_H_

#include <atomic>
#include <cstdint>

#include "krcore/rnic/rnic.h"
#include "krcore/rnic/sdc/initiator.h"
#include "krcore/rnic/sdc/target.h"

namespace krcore::rnic::verbs {

// Relaxed throughout: counts order nothing.
class DcCounters {
 public:
  void Add(const sdc_initiator_stats& now, sdc_initiator_stats* before) {
    Raise(sent_, now.sent, before->sent);
    Raise(sent_again_, now.sent_again, before->sent_again);
    Raise(timeouts_, now.timeouts, before->timeouts);
    Raise(sessions_, now.hellos, before->hellos);
    Raise(sessions_gone_, now.sessions_gone, before->sessions_gone);
    *before = now;
  }
  void Add(const sdc_target_stats& now, sdc_target_stats* before) {
    Raise(served_, now.executed, before->executed);
    Raise(served_again_, now.repeated, before->repeated);
    Raise(early_, now.early, before->early);
    Raise(expired_, now.expired, before->expired);
    Raise(busy_, now.busy, before->busy);
    *before = now;
  }
  void AddAtomicRepair() { atomic_repairs_.fetch_add(1, std::memory_order_relaxed); }

  SoftwareDcStats Read(int64_t agent_cpu_ns) const {
    const auto of = [](const std::atomic<uint64_t>& count) { return count.load(std::memory_order_relaxed); };
    return {.agent_cpu_ns = agent_cpu_ns,
            .sent = of(sent_),
            .sent_again = of(sent_again_),
            .timeouts = of(timeouts_),
            .sessions = of(sessions_),
            .sessions_gone = of(sessions_gone_),
            .served = of(served_),
            .served_again = of(served_again_),
            .early = of(early_),
            .expired = of(expired_),
            .busy = of(busy_),
            .atomic_repairs = of(atomic_repairs_)};
  }

 private:
  static void Raise(std::atomic<uint64_t>& count, uint64_t now, uint64_t before) {
    if (now != before) count.fetch_add(now - before, std::memory_order_relaxed);
  }

  std::atomic<uint64_t> sent_{0}, sent_again_{0}, timeouts_{0}, sessions_{0}, sessions_gone_{0};
  std::atomic<uint64_t> served_{0}, served_again_{0}, early_{0}, expired_{0}, busy_{0}, atomic_repairs_{0};
};

}  // namespace krcore::rnic::verbs

#endif  // KRCORE_RNIC_VERBS_DC_COUNTERS_H_
