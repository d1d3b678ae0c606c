#include "krcore/rnic/verbs/mlx5_dc.h"

#include <infiniband/mlx5dv.h>

#include <cerrno>

#include "krcore/rnic/verbs/mlx5_dci.h"
#include "krcore/rnic/verbs/mlx5_dct.h"

namespace krcore::rnic::verbs {
namespace {

// PCI device ids of the devices whose DC is of version 1: Connect-IB, ConnectX-4, ConnectX-4 Lx and their virtual
// functions.
constexpr uint32_t kFirstV1 = 0x1011, kLastV1 = 0x1016;

struct PdDeleter {
  void operator()(ibv_pd* pd) const { ibv_dealloc_pd(pd); }
};

// Makes a target and an initiator, as every later one is made, and drops them again.
Status TryDc(SharedDevice* device) {
  const std::unique_ptr<ibv_pd, PdDeleter> pd(ibv_alloc_pd(device->context->get()));
  if (pd == nullptr) return FailedCall(errno, "allocate a PD");
  const auto target = CreateMlx5Dct(device, pd.get(), {});
  if (!target.ok()) return target.status();
  const auto cq = VerbsCq::Create(device->context.get(), 1, device->caps.max_cqe);
  if (!cq.ok()) return cq.status();
  const auto initiator =
      CreateMlx5Dci(device, pd.get(), 0, {.type = QpType::kDci, .send_cq = cq->get(), .sq_depth = 1});
  if (!initiator.ok()) return initiator.status();
  KRCORE_RETURN_IF_ERROR((*initiator)->ToInit(0, 0));
  KRCORE_RETURN_IF_ERROR((*initiator)->ToRtr({}));
  return (*initiator)->ToRts();
}

}  // namespace

Result<DcKind> FindMlx5Dc(SharedDevice* device) {
  const Port& port = device->context->port();
  if (!mlx5dv_is_supported(port.context->device)) return DcKind::kSoftware;
  const Status tried = TryDc(device);
  if (tried.ok()) {
    const uint32_t part = port.device.vendor_part_id;
    return part >= kFirstV1 && part <= kLastV1 ? DcKind::kMlx5V1 : DcKind::kMlx5V2;
  }
  // How kernel and libmlx5 refuse what a device lacks. Anything else must not pass for the lack of DC.
  if (tried == StatusCode::kUnsupported || tried == StatusCode::kInvalidArgument) return DcKind::kSoftware;
  return Status(tried.code(), "cannot find out whether " + port.name + " has DC: " + std::string(tried.message()));
}

Result<std::unique_ptr<Qp>> CreateMlx5Dci(SharedDevice* device, ibv_pd* pd, uint32_t pd_index, const QpAttr& attr) {
  return Mlx5Dci::Create(device, pd, pd_index, attr);
}

Result<std::unique_ptr<Dct>> CreateMlx5Dct(SharedDevice* device, ibv_pd* pd, const DctAttr& attr) {
  return Mlx5Dct::Create(device, pd, attr);
}

}  // namespace krcore::rnic::verbs
