#include "krcore/rnic/verbs/mlx5_dct.h"

#include <infiniband/mlx5dv.h>

#include <algorithm>
#include <cerrno>

#include "krcore/rnic/request_form.h"
#include "krcore/rnic/verbs/queue.h"

namespace krcore::rnic::verbs {

Mlx5Dct::Mlx5Dct(SharedDevice* device, const DctAttr& attr)
    : device_(device),
      attr_(attr),
      max_sge_(std::min(device->caps.max_sge, static_cast<uint32_t>(device->context->port().device.max_srq_sge))),
      recv_cq_(static_cast<VerbsCq*>(attr.recv_cq)),
      received_(attr.rq_depth),
      free_(attr.rq_depth) {
  for (uint32_t i = 0; i < attr.rq_depth; ++i) free_[i] = attr.rq_depth - 1 - i;
  dc_key_ = attr.dc_key;
}

Result<std::unique_ptr<Dct>> Mlx5Dct::Create(SharedDevice* device, ibv_pd* pd, const DctAttr& attr) {
  std::unique_ptr<Mlx5Dct> dct(new Mlx5Dct(device, attr));
  if (attr.rq_depth > 0) {
    KRCORE_RETURN_IF_ERROR(dct->recv_cq_->Reserve(attr.rq_depth));
    dct->recv_slot_ = dct->recv_cq_->Attach(dct.get());
  } else {
    auto cq = VerbsCq::Create(device->context.get(), 1, device->caps.max_cqe);
    if (!cq.ok()) return cq.status();
    dct->own_cq_ = *std::move(cq);
    dct->recv_cq_ = static_cast<VerbsCq*>(dct->own_cq_.get());
  }
  KRCORE_RETURN_IF_ERROR(dct->Make(pd));
  KRCORE_RETURN_IF_ERROR(dct->ToRtr());
  return std::unique_ptr<Dct>(std::move(dct));
}

Status Mlx5Dct::Make(ibv_pd* pd) {
  ibv_srq_init_attr srq{};
  srq.attr = {std::max(attr_.rq_depth, 1U), max_sge_, 0};
  srq_ = ibv_create_srq(pd, &srq);
  if (srq_ == nullptr)
    return FailedCall(errno, "create an SRQ of " + std::to_string(srq.attr.max_wr) + " receives for a DC target");
  ibv_qp_init_attr_ex init{};
  init.send_cq = init.recv_cq = recv_cq_->get();
  init.srq = srq_;
  init.qp_type = IBV_QPT_DRIVER;
  init.comp_mask = IBV_QP_INIT_ATTR_PD;
  init.pd = pd;
  mlx5dv_qp_init_attr dc{};
  dc.comp_mask = MLX5DV_QP_INIT_ATTR_MASK_DC;
  dc.dc_init_attr.dc_type = MLX5DV_DCTYPE_DCT;
  dc.dc_init_attr.dct_access_key = attr_.dc_key;
  qp_ = mlx5dv_create_qp(device_->context->get(), &init, &dc);
  return qp_ != nullptr ? Status{} : FailedCall(errno, "create a DC target");
}

Status Mlx5Dct::ToRtr() {
  const Context& context = *device_->context;
  ibv_qp_attr init{};
  init.qp_state = IBV_QPS_INIT;
  init.pkey_index = 0;
  init.port_num = context.port().number;
  init.qp_access_flags = ToAccessFlags(attr_.access_rights);
  if (const int error = ibv_modify_qp(qp_, &init, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
      error != 0)
    return FailedCall(error, "move a DC target to INIT");
  ibv_qp_attr rtr{};
  rtr.qp_state = IBV_QPS_RTR;
  rtr.path_mtu = context.port().attr.active_mtu;
  rtr.min_rnr_timer = kRnrTimer;
  rtr.ah_attr = PathTo(context, {});  // of it a target takes GID index and hop limit
  if (const int error = ibv_modify_qp(qp_, &rtr, IBV_QP_STATE | IBV_QP_PATH_MTU | IBV_QP_MIN_RNR_TIMER | IBV_QP_AV);
      error != 0)
    return FailedCall(error, "move a DC target to RTR");
  num_ = qp_->qp_num;
  return {};
}

Mlx5Dct::~Mlx5Dct() {
  if (qp_ != nullptr) ibv_destroy_qp(qp_);
  if (srq_ != nullptr) ibv_destroy_srq(srq_);
  if (!recv_slot_) return;
  recv_cq_->Forget(this);
  recv_cq_->Detach(*recv_slot_);
  recv_cq_->Unreserve(attr_.rq_depth);
}

Status Mlx5Dct::PostRecv(std::span<const RecvWr> wrs, size_t* bad_index) {
  for (size_t i = 0; i < wrs.size(); ++i) {
    Status status;
    if (free_.empty()) {
      status = StatusCode::kQueueFull;
    } else if (HasBadSges(wrs[i], max_sge_)) {
      status = StatusCode::kInvalidArgument;
    } else {
      const uint32_t place = free_.back();
      ibv_recv_wr post{};
      post.wr_id = WrToken::Make(true, 0, *recv_slot_, place);
      post.sg_list = SgesOf(wrs[i].sg_list);
      post.num_sge = wrs[i].num_sge;
      ibv_recv_wr* bad = nullptr;
      if (const int error = ibv_post_srq_recv(srq_, &post, &bad); error == 0) {
        received_[place] = wrs[i].wr_id;
        free_.pop_back();
      } else {
        status = FailedCall(error, "post a receive to a DC target");
      }
    }
    if (status.ok()) continue;
    if (bad_index != nullptr) *bad_index = i;
    return status;
  }
  return {};
}

bool Mlx5Dct::Complete(const ibv_wc& wc, Completion* completion) {
  *completion = {};
  const uint32_t place = WrToken::Position(wc.wr_id);
  if (place >= received_.size()) return false;
  free_.push_back(place);
  completion->wr_id = received_[place];
  completion->qp_num = num_;
  FillReceived(wc, completion);
  return true;
}

}  // namespace krcore::rnic::verbs
