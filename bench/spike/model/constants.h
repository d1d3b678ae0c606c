// What the spike model is calibrated on: published micro-figures and nothing else. No constant is fitted to a published
// curve, and none to this model's results.
#ifndef BENCH_SPIKE_MODEL_CONSTANTS_H_
#define BENCH_SPIKE_MODEL_CONSTANTS_H_

#include <cstdint>
#include <vector>

#include "krcore/rnic/sim/cost_model.h"

namespace spike_model {

// Times in ns. Sources: ConstantTable().
struct Constants {
  static constexpr krcore::rnic::sim::CostModel kCost{};

  // Control path
  double verbs_connect_ns = static_cast<double>(kCost.verbs_connect_ns);
  double handshakes_per_s = 550;
  double open_device_ns = static_cast<double>(kCost.open_device_ns);
  double create_cq_ns = static_cast<double>(kCost.create_cq_ns);
  double create_qp_ns = static_cast<double>(kCost.create_qp_ns);
  double modify_qp_ns = static_cast<double>(kCost.modify_qp_ns);
  double register_ns = static_cast<double>(kCost.register_ns);
  double register_page_ns = static_cast<double>(kCost.register_page_ns);
  double lookup_ns = 8'150;
  double syscall_ns = 400;
  // Data path
  double read_verbs_ns = static_cast<double>(2 * kCost.one_way_ns + kCost.poll_ns);
  double read_dc_kernel_ns = 2'880;
  double kernel_tax_ns = 850;
  double verb_gap_ns = static_cast<double>(kCost.verb_gap_ns);
  double ns_per_kib = static_cast<double>(kCost.ns_per_kib);
  // Spawning
  double spawn_thread_ns = 38'000;
  double spawn_prefork_ns = 170'000;
  double spawn_exec_ns = 1'300'000;
  // RC promotion, as this project does it
  double rc_heat_ns = 10'000'000;
  double rc_answer_period_ns = 1'000'000'000;
};

struct ConstantInfo {
  const char* name;
  double Constants::*member;
  const char* source;
};
const std::vector<ConstantInfo>& ConstantTable();

}  // namespace spike_model

#endif  // BENCH_SPIKE_MODEL_CONSTANTS_H_
