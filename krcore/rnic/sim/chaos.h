#ifndef KRCORE_RNIC_SIM_CHAOS_H_
#define KRCORE_RNIC_SIM_CHAOS_H_

#include <cstdint>

namespace krcore::rnic::sim {

// What may happen to a verb beyond the cost model. Probabilities are per verb.
struct Chaos {
  double tear = 0;           // a READ or WRITE of several words executes in up to 4 steps, words in any order
  double delay = 0;          // a verb (its execution, or only its completion) is late by up to max_delay_ns
  int64_t max_delay_ns = 0;  // drawn log-uniformly, so that short and long delays are equally frequent
  double break_queue = 0;    // the verb fails with kRetryExceeded; whether it executed, or does later (until the
                             // QP is reset or destroyed), is drawn
  int64_t reset_ns = 0;      // how long the reset of a DC initiator that broke with more than READs under way has to
                             // wait until nothing of them executes any more
};

}  // namespace krcore::rnic::sim

#endif  // KRCORE_RNIC_SIM_CHAOS_H_
