#include "krcore/rnic/verbs/mlx5_dci.h"

#include <arpa/inet.h>

#include <array>
#include <cerrno>

namespace krcore::rnic::verbs {
namespace {

constexpr uint32_t kPsnStride = 0x9e'3779;  // odd, and far from small multiples of 2^24
constexpr uint64_t kSendOps = IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM | IBV_QP_EX_WITH_SEND |
                              IBV_QP_EX_WITH_SEND_WITH_IMM | IBV_QP_EX_WITH_RDMA_READ |
                              IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP | IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD;

}  // namespace

Result<std::unique_ptr<Qp>> Mlx5Dci::Create(SharedDevice* device, ibv_pd* pd, uint32_t pd_index, const QpAttr& attr) {
  std::unique_ptr<Mlx5Dci> dci(new Mlx5Dci(device, pd_index, attr));
  KRCORE_RETURN_IF_ERROR(dci->TakeRoom());
  ibv_qp_init_attr_ex init{};
  init.qp_context = &dci->events_;
  init.send_cq = init.recv_cq = dci->send_cq_->get();
  init.cap.max_send_wr = attr.sq_depth;  // an initiator with room for receives is refused
  init.cap.max_send_sge = device->caps.max_sge;
  init.cap.max_inline_data = device->caps.max_inline_bytes;
  init.qp_type = IBV_QPT_DRIVER;
  init.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
  init.pd = pd;
  init.send_ops_flags = kSendOps;
  mlx5dv_qp_init_attr dc{};
  dc.comp_mask = MLX5DV_QP_INIT_ATTR_MASK_DC;
  dc.dc_init_attr.dc_type = MLX5DV_DCTYPE_DCI;
  ibv_qp* const made = mlx5dv_create_qp(device->context->get(), &init, &dc);
  if (made == nullptr) return FailedCall(errno, "create a DC initiator of " + std::to_string(attr.sq_depth) + " sends");
  dci->Adopt(made);
  dci->ex_ = ibv_qp_to_qp_ex(made);
  dci->dv_ = dci->ex_ != nullptr ? mlx5dv_qp_ex_from_ibv_qp_ex(dci->ex_) : nullptr;
  if (dci->dv_ == nullptr) return FailedCall(EOPNOTSUPP, "post to a DC initiator");
  return std::unique_ptr<Qp>(std::move(dci));
}

Status Mlx5Dci::ToInit(uint32_t /*access_rights*/, uint32_t /*qkey*/) {
  if (state() != QpState::kReset) return WrongState(state_, QpState::kInit);
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_INIT;
  attr.pkey_index = 0;
  attr.port_num = device_->context->port().number;
  // No access flags: nobody reaches an initiator, and mlx5 refuses them.
  KRCORE_RETURN_IF_ERROR(Modify(attr, IBV_QP_PKEY_INDEX | IBV_QP_PORT, "INIT"));
  state_ = QpState::kInit;
  return {};
}

Status Mlx5Dci::ToRtr(const QpPeer& /*peer*/) {
  if (state() != QpState::kInit) return WrongState(state_, QpState::kRtr);
  const Context& context = *device_->context;
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_RTR;
  attr.path_mtu = context.port().attr.active_mtu;  // of all peers: those of one fabric have the same
  attr.ah_attr = PathTo(context, {});              // where to is said by each WR's address handle
  KRCORE_RETURN_IF_ERROR(Modify(attr, IBV_QP_PATH_MTU | IBV_QP_AV, "RTR"));
  state_ = QpState::kRtr;
  return {};
}

Status Mlx5Dci::ToRts() {
  if (state() != QpState::kRtr) return WrongState(state_, QpState::kRts);
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_RTS;
  // Another start in each life: were a target to remember the last one's connection, it could take new requests for
  // repetitions of old ones.
  attr.sq_psn = life_ * kPsnStride & kPsnMask;
  attr.timeout = kAckTimeout;
  attr.retry_cnt = kRetries;
  attr.rnr_retry = kRnrRetries;
  attr.max_rd_atomic = device_->context->address().read_depth;
  KRCORE_RETURN_IF_ERROR(Modify(
      attr, IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC, "RTS"));
  state_ = QpState::kRts;
  return {};
}

Status Mlx5Dci::ToErr() {
  // mlx5 knows no way from RESET to ERR for an initiator.
  if (state() == QpState::kReset) KRCORE_RETURN_IF_ERROR(ToInit(0, 0));
  return Queue::ToErr();
}

int Mlx5Dci::Post(std::span<const SendWr> wrs, size_t* took) {
  *took = 0;
  std::array<ibv_ah*, kBatch> ahs{};
  size_t reachable = 0;
  while (reachable < wrs.size()) {
    ahs[reachable] = static_cast<const VerbsAddressHandle*>(wrs[reachable].ah)->For(pd_index_);
    if (ahs[reachable] == nullptr) break;
    ++reachable;
  }
  if (reachable > 0) {
    ibv_wr_start(ex_);
    for (size_t i = 0; i < reachable; ++i) Build(wrs[i], TokenOf(i), ahs[i]);
    if (const int error = ibv_wr_complete(ex_); error != 0) return error;  // all of them or none
    *took = reachable;
  }
  return reachable == wrs.size() ? 0 : EHOSTUNREACH;
}

void Mlx5Dci::Build(const SendWr& wr, uint64_t token, ibv_ah* ah) {
  ex_->wr_id = token;
  ex_->wr_flags = ToSendFlags(wr.flags) & ~static_cast<unsigned int>(IBV_SEND_INLINE);
  switch (wr.opcode) {
    case Opcode::kRead: ibv_wr_rdma_read(ex_, wr.rkey, wr.remote_addr); break;
    case Opcode::kWrite: ibv_wr_rdma_write(ex_, wr.rkey, wr.remote_addr); break;
    case Opcode::kWriteImm: ibv_wr_rdma_write_imm(ex_, wr.rkey, wr.remote_addr, htonl(wr.imm)); break;
    case Opcode::kSend: ibv_wr_send(ex_); break;
    case Opcode::kSendImm: ibv_wr_send_imm(ex_, htonl(wr.imm)); break;
    case Opcode::kCompareSwap: ibv_wr_atomic_cmp_swp(ex_, wr.rkey, wr.remote_addr, wr.compare_add, wr.swap); break;
    case Opcode::kFetchAdd: ibv_wr_atomic_fetch_add(ex_, wr.rkey, wr.remote_addr, wr.compare_add); break;
    case Opcode::kRecv:
    case Opcode::kRecvWithImm: return;  // refused before
  }
  mlx5dv_wr_set_dc_addr(dv_, ah, wr.remote_qpn, wr.dc_key);
  if ((wr.flags & kInline) == 0) {
    ibv_wr_set_sge_list(ex_, wr.num_sge, SgesOf(wr.sg_list));
    return;
  }
  std::array<ibv_data_buf, UINT8_MAX> buffers;
  for (uint8_t i = 0; i < wr.num_sge; ++i)
    buffers[i] = {reinterpret_cast<void*>(wr.sg_list[i].addr), wr.sg_list[i].length};
  ibv_wr_set_inline_data_list(ex_, wr.num_sge, buffers.data());
}

}  // namespace krcore::rnic::verbs
