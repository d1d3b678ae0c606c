// The DC transport of mlx5 devices (ConnectX-4 and newer), by mlx5dv. docs/krcore.md, "DC of mlx5". A build without
// libmlx5 has mlx5_absent.cc instead: no device has it then.
#ifndef KRCORE_RNIC_VERBS_MLX5_DC_H_
#define KRCORE_RNIC_VERBS_MLX5_DC_H_

#include <memory>

#include "krcore/rnic/verbs/shared_device.h"

namespace krcore::rnic::verbs {

// Which DC the device has of its own, which is found out by making an initiator and a target and bringing them up;
// kSoftware: none. An error: it cannot be found out, such as for want of memory. `device` has its context and caps.
Result<DcKind> FindMlx5Dc(SharedDevice* device);

// Where the device has it. `attr` was checked (pd.cc).
Result<std::unique_ptr<Qp>> CreateMlx5Dci(SharedDevice* device, ibv_pd* pd, uint32_t pd_index, const QpAttr& attr);
Result<std::unique_ptr<Dct>> CreateMlx5Dct(SharedDevice* device, ibv_pd* pd, const DctAttr& attr);

}  // namespace krcore::rnic::verbs

#endif  // KRCORE_RNIC_VERBS_MLX5_DC_H_
