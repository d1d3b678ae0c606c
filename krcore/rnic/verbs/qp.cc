#include "krcore/rnic/verbs/qp.h"

#include <arpa/inet.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace krcore::rnic::verbs {

Result<std::unique_ptr<Qp>> VerbsQp::Create(SharedDevice* device, ibv_pd* pd, uint32_t pd_index, const QpAttr& attr) {
  std::unique_ptr<VerbsQp> qp(new VerbsQp(device, pd_index, attr));
  KRCORE_RETURN_IF_ERROR(qp->TakeRoom());
  ibv_qp_init_attr init{};
  init.qp_context = &qp->events_;
  init.send_cq = qp->send_cq_->get();
  init.recv_cq = qp->recv_cq_ != nullptr ? qp->recv_cq_->get() : init.send_cq;
  init.cap = {attr.sq_depth, attr.rq_depth, device->caps.max_sge, attr.rq_depth > 0 ? device->caps.max_sge : 0,
              device->caps.max_inline_bytes};
  init.qp_type = attr.type == QpType::kRc ? IBV_QPT_RC : IBV_QPT_UD;
  ibv_qp* const made = ibv_create_qp(pd, &init);
  if (made == nullptr)
    return FailedCall(errno, "create a QP of " + std::to_string(attr.sq_depth) + " sends and " +
                                 std::to_string(attr.rq_depth) + " receives");
  qp->Adopt(made);
  return std::unique_ptr<Qp>(std::move(qp));
}

Status VerbsQp::ToInit(uint32_t access_rights, uint32_t qkey) {
  if (state() != QpState::kReset) return WrongState(state_, QpState::kInit);
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_INIT;
  attr.pkey_index = 0;
  attr.port_num = device_->context->port().number;
  attr.qp_access_flags = ToAccessFlags(access_rights);
  attr.qkey = qkey;
  const int mask = IBV_QP_PKEY_INDEX | IBV_QP_PORT | (attr_.type == QpType::kRc ? IBV_QP_ACCESS_FLAGS : IBV_QP_QKEY);
  KRCORE_RETURN_IF_ERROR(Modify(attr, mask, "INIT"));
  state_ = QpState::kInit;
  return {};
}

Status VerbsQp::ToRtr(const QpPeer& peer) {
  if (state() != QpState::kInit) return WrongState(state_, QpState::kRtr);
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_RTR;
  int mask = 0;
  if (attr_.type == QpType::kRc) {
    if (device_->member->KnownDead(peer.device.incarnation))
      return {StatusCode::kNotFound, "node " + std::to_string(peer.device.node) + " is gone"};
    if (life_ > 0 && peer.psn == last_peer_.psn && peer.qpn == last_peer_.qpn &&
        peer.device.incarnation == last_peer_.device.incarnation) {
      return {StatusCode::kInvalidArgument,
              "an RC queue that was reset needs another psn, of which its peer knows: WRITEs could be lost in silence"};
    }
    const Context& context = *device_->context;
    const PortAddress port = PortOf(peer.device);
    attr.path_mtu = static_cast<ibv_mtu>(std::clamp<int>(port.mtu, IBV_MTU_256, context.port().attr.active_mtu));
    attr.dest_qp_num = peer.qpn;
    attr.rq_psn = peer.psn & kPsnMask;
    attr.max_dest_rd_atomic = context.address().read_depth;
    attr.min_rnr_timer = kRnrTimer;
    attr.ah_attr = PathTo(context, port);
    mask = IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC |
           IBV_QP_MIN_RNR_TIMER;
  }
  KRCORE_RETURN_IF_ERROR(Modify(attr, mask, "RTR"));
  peer_ = peer;
  state_ = QpState::kRtr;
  return {};
}

Status VerbsQp::ToRts() {
  if (state() != QpState::kRtr) return WrongState(state_, QpState::kRts);
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_RTS;
  int mask = IBV_QP_SQ_PSN;
  if (attr_.type == QpType::kRc) {
    attr.sq_psn = peer_.psn & kPsnMask;  // one number for both directions, so that both ends know it
    attr.timeout = kAckTimeout;
    attr.retry_cnt = kRetries;
    attr.rnr_retry = kRnrRetries;
    const uint8_t theirs = std::max<uint8_t>(PortOf(peer_.device).read_depth, 1);
    attr.max_rd_atomic = std::min(theirs, device_->context->address().read_depth);
    mask |= IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
  }
  KRCORE_RETURN_IF_ERROR(Modify(attr, mask, "RTS"));
  state_ = QpState::kRts;
  return {};
}

int VerbsQp::Post(std::span<const SendWr> wrs, size_t* took) {
  *took = 0;
  ibv_send_wr posts[kBatch];
  size_t reachable = 0;
  for (size_t i = 0; i < wrs.size(); ++i) {
    const SendWr& wr = wrs[i];
    ibv_send_wr& post = posts[i];
    std::memset(static_cast<void*>(&post), 0, sizeof(post));
    post.wr_id = TokenOf(i);
    post.sg_list = SgesOf(wr.sg_list);
    post.num_sge = wr.num_sge;
    post.opcode = ToWrOpcode(wr.opcode);
    post.send_flags = ToSendFlags(wr.flags);
    post.imm_data = htonl(wr.imm);
    if (attr_.type == QpType::kUd) {
      post.wr.ud.ah = static_cast<const VerbsAddressHandle*>(wr.ah)->For(pd_index_);
      if (post.wr.ud.ah == nullptr) break;
      post.wr.ud.remote_qpn = wr.remote_qpn;
      post.wr.ud.remote_qkey = wr.qkey;
    } else if (wr.opcode == Opcode::kCompareSwap || wr.opcode == Opcode::kFetchAdd) {
      post.wr.atomic = {wr.remote_addr, wr.compare_add, wr.swap, wr.rkey};
    } else {
      post.wr.rdma = {wr.remote_addr, wr.rkey};
    }
    if (i > 0) posts[i - 1].next = &post;
    reachable = i + 1;
  }
  if (reachable == 0) return EHOSTUNREACH;
  ibv_send_wr* bad = nullptr;
  if (const int error = ibv_post_send(qp_, posts, &bad); error != 0) {
    *took = static_cast<size_t>(bad - posts);
    return error;
  }
  *took = reachable;
  return reachable == wrs.size() ? 0 : EHOSTUNREACH;
}

}  // namespace krcore::rnic::verbs
