// What verbs cost in virtual time, and what may happen to them beyond that. Everything here is modelled, not measured;
// docs/hacking.md has the source of each constant and says which are assumptions.
#ifndef KRCORE_RNIC_SIM_COST_MODEL_H_
#define KRCORE_RNIC_SIM_COST_MODEL_H_

#include <cstdint>

namespace krcore::rnic::sim {

struct CostModel {
  int64_t one_way_ns = 1'045;            // wire, switch and both NICs' pipelines, one direction
  int64_t verb_gap_ns = 9;               // between two verbs at one NIC, sender's or target's: its verb rate
  int64_t atomic_gap_ns = 100;           // between two atomics on one 8-byte word
  int64_t ns_per_kib = 41;               // inverse bandwidth
  int64_t retry_timeout_ns = 4'000'000;  // until a peer that does not answer is given up
  int64_t poll_ns = 100;                 // of CPU for a Poll, for schedulers

  // Control path. These calls take no virtual time; World::control_ns() sums them up, except for the last one.
  int64_t open_device_ns = 2'180'000;
  int64_t create_cq_ns = 620'000;
  int64_t create_qp_ns = 820'000;
  int64_t modify_qp_ns = 240'000;         // one transition
  int64_t register_ns = 30'000;           // of an MR
  int64_t register_page_ns = 600;         // and of each of its 4 KiB pages
  int64_t verbs_connect_ns = 18'000'000;  // a whole verbs connection, as published: what baselines are charged
};

// What may happen to a verb beyond the cost model. Probabilities are per verb.
struct Chaos {
  double tear = 0;           // a READ or WRITE of several words executes in up to 4 steps, words in any order
  double delay = 0;          // a verb (its execution, or only its completion) is late by up to max_delay_ns
  int64_t max_delay_ns = 0;  // drawn log-uniformly, so that short and long delays are equally frequent
  double break_queue = 0;    // the verb fails with kRetryExceeded; whether it executed, or does later (until the
                             // QP is reset or destroyed), is drawn
  int64_t reset_ns = 0;      // how long the reset of a DC initiator, which broke with more than READs in flight, has to
                             // wait until none of them executes any more
};

}  // namespace krcore::rnic::sim

#endif  // KRCORE_RNIC_SIM_COST_MODEL_H_
