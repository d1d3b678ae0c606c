#include "bench/spike/model/constants.h"

namespace spike_model {

const std::vector<ConstantInfo>& ConstantTable() {
  static const std::vector<ConstantInfo> table = {
      {"verbs_connect_ns", &Constants::verbs_connect_ns, "KRCORE: a verbs handshake takes about 18 ms, all included"},
      {"handshakes_per_s", &Constants::handshakes_per_s,
       "KRCORE: one host completes 500 to 600 verbs handshakes a second; their middle"},
      {"open_device_ns", &Constants::open_device_ns, "arXiv 2501.19051 (docs/hacking.md)"},
      {"create_cq_ns", &Constants::create_cq_ns, "docs/hacking.md: Soft-RoCE's ratio to open_device"},
      {"create_qp_ns", &Constants::create_qp_ns, "docs/hacking.md: Soft-RoCE's ratio to open_device"},
      {"modify_qp_ns", &Constants::modify_qp_ns, "docs/hacking.md: Soft-RoCE's ratio to open_device"},
      {"register_ns", &Constants::register_ns, "docs/hacking.md: Soft-RoCE's ratio to open_device"},
      {"register_page_ns", &Constants::register_page_ns, "docs/hacking.md: Soft-RoCE's ratio to open_device"},
      {"lookup_ns", &Constants::lookup_ns,
       "KRCORE's logs: a query of the metadata server takes 7 to 9.3 us; their middle"},
      {"syscall_ns", &Constants::syscall_ns, "KRCORE: a system call takes 0.4 us"},
      {"read_verbs_ns", &Constants::read_verbs_ns, "KRCORE's logs: a synchronous 8 B READ by verbs (docs/hacking.md)"},
      {"read_dc_kernel_ns", &Constants::read_dc_kernel_ns, "KRCORE's logs: the same over DC, through the kernel"},
      {"kernel_tax_ns", &Constants::kernel_tax_ns,
       "KRCORE's logs: the kernel adds 0.8 to 0.9 us from 1 B to 128 KB; their middle"},
      {"verb_gap_ns", &Constants::verb_gap_ns, "SMART (ASPLOS'24): 111 M READs/s at one NIC (docs/hacking.md)"},
      {"ns_per_kib", &Constants::ns_per_kib, "200 Gb/s (docs/hacking.md)"},
      {"spawn_thread_ns", &Constants::spawn_thread_ns, "measured on the project's 2-core machine"},
      {"spawn_prefork_ns", &Constants::spawn_prefork_ns, "measured there: fork of a small process"},
      {"spawn_exec_ns", &Constants::spawn_exec_ns, "measured there: fork and exec, 0.9 to 1.7 ms; their middle"},
      {"rc_heat_ns", &Constants::rc_heat_ns, "docs/krcore.md: heat is counted in intervals of 10 ms"},
      {"rc_answer_period_ns", &Constants::rc_answer_period_ns,
       "docs/operating.md: a memory node answers pools that ask for RC once a second"},
  };
  return table;
}

}  // namespace spike_model
