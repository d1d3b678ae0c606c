// A DC target of an mlx5 device, with a shared receive queue of its own. Its number exists once it is in RTR, and there
// it stays: a request that fails does not break it.
#ifndef KRCORE_RNIC_VERBS_MLX5_DCT_H_
#define KRCORE_RNIC_VERBS_MLX5_DCT_H_

#include <infiniband/verbs.h>

#include <memory>
#include <optional>
#include <vector>

#include "krcore/rnic/verbs/cq.h"
#include "krcore/rnic/verbs/shared_device.h"

namespace krcore::rnic::verbs {

class Mlx5Dct final : public Dct, public CqUser {
 public:
  static Result<std::unique_ptr<Dct>> Create(SharedDevice* device, ibv_pd* pd, const DctAttr& attr);
  ~Mlx5Dct() override;
  Status PostRecv(std::span<const RecvWr> wrs, size_t* bad_index) override;

  bool IsOfThisLife(uint64_t token) const override { return WrToken::Life(token) == 0; }
  bool Complete(const ibv_wc& wc, Completion* completion) override;
  size_t TakeFlushes(const VerbsCq* /*cq*/, std::span<Completion> /*out*/) override { return 0; }

 private:
  Mlx5Dct(SharedDevice* device, const DctAttr& attr);
  Status Make(ibv_pd* pd);
  Status ToRtr();

  SharedDevice* const device_;
  const DctAttr attr_;
  const uint32_t max_sge_;
  VerbsCq* recv_cq_;  // own_cq_ where there are no receives: mlx5 wants one
  std::unique_ptr<Cq> own_cq_;
  std::optional<uint16_t> recv_slot_;  // in recv_cq_, with room for its WRs
  ibv_srq* srq_ = nullptr;
  ibv_qp* qp_ = nullptr;
  // Initiators' messages complete receives in any order, so a WR's position is a place in `received_`.
  std::vector<uint64_t> received_;
  std::vector<uint32_t> free_;
};

}  // namespace krcore::rnic::verbs

#endif  // KRCORE_RNIC_VERBS_MLX5_DCT_H_
