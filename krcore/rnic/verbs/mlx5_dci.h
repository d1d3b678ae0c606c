// A DC initiator of an mlx5 device. Each of its WRs names its target: address handle, DCT number, DC key. The NIC
// connects to a target when a WR for it is next, and stays with it while WRs for it follow and some microseconds
// longer.
#ifndef KRCORE_RNIC_VERBS_MLX5_DCI_H_
#define KRCORE_RNIC_VERBS_MLX5_DCI_H_

#include <infiniband/mlx5dv.h>
#include <infiniband/verbs.h>

#include <memory>

#include "krcore/rnic/verbs/queue.h"

namespace krcore::rnic::verbs {

class Mlx5Dci final : public Queue {
 public:
  static Result<std::unique_ptr<Qp>> Create(SharedDevice* device, ibv_pd* pd, uint32_t pd_index, const QpAttr& attr);

  Status ToInit(uint32_t access_rights, uint32_t qkey) override;
  Status ToRtr(const QpPeer& peer) override;
  Status ToRts() override;
  Status ToErr() override;

 private:
  using Queue::Queue;
  int Post(std::span<const SendWr> wrs, size_t* took) override;
  void Build(const SendWr& wr, uint64_t token, ibv_ah* ah);

  ibv_qp_ex* ex_ = nullptr;
  mlx5dv_qp_ex* dv_ = nullptr;
};

}  // namespace krcore::rnic::verbs

#endif  // KRCORE_RNIC_VERBS_MLX5_DCI_H_
