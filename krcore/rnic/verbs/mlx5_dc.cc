// DC initiators and targets of mlx5 devices, and the check whether a device has them (device.h).
#include <arpa/inet.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <memory>
#include <optional>
#include <vector>

#include "krcore/rnic/request_form.h"
#include "krcore/rnic/verbs/device.h"
#include "krcore/rnic/verbs/library.h"
#include "krcore/rnic/verbs/qp.h"

namespace krcore::rnic::verbs {

// A DC initiator of an mlx5 device. Each of its WRs names its target: address handle, DCT number, DC key. The NIC
// connects to a target when a WR for it is next, and stays connected while WRs for it follow and some microseconds
// longer.
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
  ibv_qp* const made = mlx5dv.create_qp(device->context->get(), &init, &dc);
  if (made == nullptr) return FailedCall(errno, "create a DC initiator of " + std::to_string(attr.sq_depth) + " sends");
  dci->Adopt(made);
  dci->ex_ = ibv.qp_to_qp_ex(made);
  dci->dv_ = dci->ex_ != nullptr ? mlx5dv.qp_ex_from_ibv_qp_ex(dci->ex_) : nullptr;
  if (dci->dv_ == nullptr) return FailedCall(EOPNOTSUPP, "post to a DC initiator");
  return std::unique_ptr<Qp>(std::move(dci));
}

Status Mlx5Dci::ToInit(uint32_t /*access_rights*/, uint32_t /*qkey*/) {
  if (state() != QpState::kReset) return WrongState(state_, QpState::kInit);
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_INIT;
  attr.pkey_index = 0;
  attr.port_num = device_->context->port().number;
  // No access flags: nobody accesses an initiator, and mlx5 refuses them.
  KRCORE_RETURN_IF_ERROR(Modify(attr, IBV_QP_PKEY_INDEX | IBV_QP_PORT, "INIT"));
  state_ = QpState::kInit;
  return {};
}

Status Mlx5Dci::ToRtr(const QpPeer& /*peer*/) {
  if (state() != QpState::kInit) return WrongState(state_, QpState::kRtr);
  const Context& context = *device_->context;
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_RTR;
  attr.path_mtu = context.port().attr.active_mtu;  // for all peers: those of one fabric have the same
  attr.ah_attr = PathTo(context, {});              // each WR's address handle says where to
  KRCORE_RETURN_IF_ERROR(Modify(attr, IBV_QP_PATH_MTU | IBV_QP_AV, "RTR"));
  state_ = QpState::kRtr;
  return {};
}

Status Mlx5Dci::ToRts() {
  if (state() != QpState::kRtr) return WrongState(state_, QpState::kRts);
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_RTS;
  // Each life starts at another number: a target that still remembered the last life's connection could take new
  // requests for repetitions of old ones.
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
  // mlx5 has no transition from RESET to ERR for an initiator.
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
    case Opcode::kRecvWithImm: return;  // refused earlier
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

// A DC target of an mlx5 device, with a shared receive queue of its own. Its number exists once it is in RTR, and it
// stays there: a request that fails does not break it.
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
  VerbsCq* recv_cq_;  // own_cq_ if there are no receives, because mlx5 requires one
  std::unique_ptr<Cq> own_cq_;
  std::optional<uint16_t> recv_slot_;  // in recv_cq_, with room for its WRs
  ibv_srq* srq_ = nullptr;
  ibv_qp* qp_ = nullptr;
  // Initiators' messages complete receives in any order, so a WR's position is a place in `received_`.
  std::vector<uint64_t> received_;
  std::vector<uint32_t> free_;
};

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
  srq_ = ibv.create_srq(pd, &srq);
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
  qp_ = mlx5dv.create_qp(device_->context->get(), &init, &dc);
  return qp_ != nullptr ? Status{} : FailedCall(errno, "create a DC target");
}

Status Mlx5Dct::ToRtr() {
  const Context& context = *device_->context;
  ibv_qp_attr init{};
  init.qp_state = IBV_QPS_INIT;
  init.pkey_index = 0;
  init.port_num = context.port().number;
  init.qp_access_flags = ToAccessFlags(attr_.access_rights);
  if (const int error = ibv.modify_qp(qp_, &init, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
      error != 0)
    return FailedCall(error, "move a DC target to INIT");
  ibv_qp_attr rtr{};
  rtr.qp_state = IBV_QPS_RTR;
  rtr.path_mtu = context.port().attr.active_mtu;
  rtr.min_rnr_timer = kRnrTimer;
  rtr.ah_attr = PathTo(context, {});  // a target takes GID index and hop limit from it
  if (const int error = ibv.modify_qp(qp_, &rtr, IBV_QP_STATE | IBV_QP_PATH_MTU | IBV_QP_MIN_RNR_TIMER | IBV_QP_AV);
      error != 0)
    return FailedCall(error, "move a DC target to RTR");
  num_ = qp_->qp_num;
  return {};
}

Mlx5Dct::~Mlx5Dct() {
  if (qp_ != nullptr) ibv.destroy_qp(qp_);
  if (srq_ != nullptr) ibv.destroy_srq(srq_);
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

namespace {

// PCI device ids of the devices whose DC is of version 1: Connect-IB, ConnectX-4, ConnectX-4 Lx and their virtual
// functions.
constexpr uint32_t kFirstV1 = 0x1011, kLastV1 = 0x1016;

struct PdDeleter {
  void operator()(ibv_pd* pd) const { ibv.dealloc_pd(pd); }
};

// Makes a target and an initiator, as every later one is made, and drops them again.
Status TryDc(SharedDevice* device) {
  const std::unique_ptr<ibv_pd, PdDeleter> pd(ibv.alloc_pd(device->context->get()));
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
  if (!LoadLibmlx5() || !mlx5dv.is_supported(port.context->device)) return DcKind::kSoftware;
  const Status tried = TryDc(device);
  if (tried.ok()) {
    const uint32_t part = port.device.vendor_part_id;
    return part >= kFirstV1 && part <= kLastV1 ? DcKind::kMlx5V1 : DcKind::kMlx5V2;
  }
  // The codes by which kernel and libmlx5 refuse what a device lacks. No other error may pass for the lack of DC.
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
