// The functions of libibverbs and libmlx5. They are not linked but looked up when the first device is opened. So
// programs that use no RDMA NIC start without these libraries, which also need not be installed.
#ifndef KRCORE_RNIC_VERBS_LIBRARY_H_
#define KRCORE_RNIC_VERBS_LIBRARY_H_

#include <infiniband/mlx5dv.h>
#include <infiniband/verbs.h>

#include "krcore/status.h"

namespace krcore::rnic::verbs {

// Calls X with the name of each function that the provider calls by name. Most functions that the headers define inline
// (ibv_post_send, ibv_poll_cq, ibv_wr_*) call the device through pointers, so the provider uses them as they are. Those
// that call a function by name it does not use.
// clang-format off
#define KRCORE_IBV_FUNCTIONS(X) \
  X(ack_async_event) X(ack_cq_events) X(alloc_pd) X(close_device) X(create_ah) X(create_comp_channel) \
  X(create_cq) X(create_qp) X(create_srq) X(dealloc_pd) X(dereg_mr) X(destroy_ah) X(destroy_comp_channel) \
  X(destroy_cq) X(destroy_qp) X(destroy_srq) X(fork_init) X(free_device_list) X(get_async_event) \
  X(get_cq_event) X(get_device_list) X(get_device_name) X(is_fork_initialized) X(modify_qp) X(open_device) \
  X(port_state_str) X(qp_to_qp_ex) X(query_device) X(query_port) X(query_qp) X(reg_mr) X(resize_cq)
#define KRCORE_MLX5DV_FUNCTIONS(X) X(create_qp) X(is_supported) X(qp_ex_from_ibv_qp_ex)
// clang-format on

struct Libibverbs {
#define KRCORE_MEMBER(name) decltype(&::ibv_##name) name = nullptr;  // NOLINT
  KRCORE_IBV_FUNCTIONS(KRCORE_MEMBER)
#undef KRCORE_MEMBER
  decltype(&::_ibv_query_gid_ex) query_gid_ex = nullptr;
};

struct Libmlx5 {
#define KRCORE_MEMBER(name) decltype(&::mlx5dv_##name) name = nullptr;  // NOLINT
  KRCORE_MLX5DV_FUNCTIONS(KRCORE_MEMBER)
#undef KRCORE_MEMBER
};

// Loads libibverbs, unless that was done. kUnavailable: it is not installed, or too old. Any thread may call.
Status LoadLibibverbs();
// Loads libmlx5, unless that was done. Returns false if it is not installed, or too old. Any thread may call.
bool LoadLibmlx5();

// The functions. They are null until the library is loaded.
inline Libibverbs ibv;
inline Libmlx5 mlx5dv;

}  // namespace krcore::rnic::verbs

#endif  // KRCORE_RNIC_VERBS_LIBRARY_H_
