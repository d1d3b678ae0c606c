// Replaces mlx5_dc.cc in a build without libmlx5.
#include "krcore/rnic/verbs/device.h"

namespace krcore::rnic::verbs {
namespace {

Status Absent() { return {StatusCode::kUnsupported, "this build has no libmlx5"}; }

}  // namespace

Result<DcKind> FindMlx5Dc(SharedDevice* /*device*/) { return DcKind::kSoftware; }

Result<std::unique_ptr<Qp>> CreateMlx5Dci(SharedDevice* /*device*/, ibv_pd* /*pd*/, uint32_t /*pd_index*/,
                                          const QpAttr& /*attr*/) {
  return Absent();
}

Result<std::unique_ptr<Dct>> CreateMlx5Dct(SharedDevice* /*device*/, ibv_pd* /*pd*/, const DctAttr& /*attr*/) {
  return Absent();
}

}  // namespace krcore::rnic::verbs
