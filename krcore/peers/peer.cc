#include "krcore/peers/peer.h"

#include "krcore/base/os.h"

namespace krcore::peers {

Result<std::unique_ptr<rnic::Qp>> CreateInitiator(rnic::Pd& pd, rnic::Cq& cq, uint32_t sq_depth, uint32_t host_qp) {
  auto qp = pd.CreateQp(
      {.type = rnic::QpType::kDci, .send_cq = &cq, .recv_cq = &cq, .sq_depth = sq_depth, .host_qp = host_qp});
  if (!qp.ok()) return qp;
  KRCORE_RETURN_IF_ERROR(ResetToRts(**qp));
  return qp;
}

Status ResetToRts(rnic::Qp& initiator) {
  if (initiator.state() != rnic::QpState::kReset) KRCORE_RETURN_IF_ERROR(initiator.ToReset());
  KRCORE_RETURN_IF_ERROR(initiator.ToInit(0, 0));
  KRCORE_RETURN_IF_ERROR(initiator.ToRtr({}));
  return initiator.ToRts();
}

Result<std::unique_ptr<rnic::Dct>> CreateTarget(rnic::Pd& pd, uint32_t incarnation) {
  const auto random = Random64();
  if (!random.ok()) return random.status();
  return pd.CreateDct({.dc_key = uint64_t{incarnation} << 32 | (*random & 0xffff'ffff)});
}

}  // namespace krcore::peers
