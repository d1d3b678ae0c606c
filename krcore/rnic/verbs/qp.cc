#include "krcore/rnic/verbs/qp.h"

#include <arpa/inet.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <ctime>

namespace krcore::rnic::verbs {
namespace {

constexpr uint32_t kPsnMask = 0xff'ffff;

// WRs' SGEs are handed to libibverbs as they are.
static_assert(sizeof(Sge) == sizeof(ibv_sge) && offsetof(Sge, addr) == offsetof(ibv_sge, addr) &&
              offsetof(Sge, length) == offsetof(ibv_sge, length) && offsetof(Sge, lkey) == offsetof(ibv_sge, lkey));
ibv_sge* SgesOf(const Sge* sges) { return reinterpret_cast<ibv_sge*>(const_cast<Sge*>(sges)); }

uint64_t TotalLength(const SendWr& wr) {
  uint64_t total = 0;
  for (uint8_t i = 0; i < wr.num_sge; ++i) total += wr.sg_list[i].length;
  return total;
}

void SleepPacketLifetime() {
  timespec left{kPacketLifetimeNs / 1'000'000'000, kPacketLifetimeNs % 1'000'000'000};
  while (nanosleep(&left, &left) != 0 && errno == EINTR) {
  }
}

}  // namespace

VerbsQp::VerbsQp(SharedDevice* device, uint32_t pd_index, const QpAttr& attr)
    : device_(device),
      pd_index_(pd_index),
      attr_(attr),
      send_cq_(static_cast<VerbsCq*>(attr.send_cq)),
      recv_cq_(attr.rq_depth > 0 ? static_cast<VerbsCq*>(attr.recv_cq) : nullptr),
      sent_(attr.sq_depth),
      received_(attr.rq_depth) {}

Result<std::unique_ptr<Qp>> VerbsQp::Create(SharedDevice* device, ibv_pd* pd, uint32_t pd_index, const QpAttr& attr) {
  std::unique_ptr<VerbsQp> qp(new VerbsQp(device, pd_index, attr));
  KRCORE_RETURN_IF_ERROR(qp->send_cq_->Reserve(attr.sq_depth));
  qp->send_slot_ = qp->send_cq_->Attach(qp.get());
  if (qp->recv_cq_ != nullptr) {
    KRCORE_RETURN_IF_ERROR(qp->recv_cq_->Reserve(attr.rq_depth));
    qp->recv_slot_ = qp->recv_cq_->Attach(qp.get());
  }
  ibv_qp_init_attr init{};
  init.qp_context = static_cast<QueueEvents*>(qp.get());
  init.send_cq = qp->send_cq_->get();
  init.recv_cq = qp->recv_cq_ != nullptr ? qp->recv_cq_->get() : init.send_cq;
  init.cap = {attr.sq_depth, attr.rq_depth, device->caps.max_sge, attr.rq_depth > 0 ? device->caps.max_sge : 0,
              device->caps.max_inline_bytes};
  init.qp_type = attr.type == QpType::kRc ? IBV_QPT_RC : IBV_QPT_UD;
  qp->qp_ = ibv_create_qp(pd, &init);
  if (qp->qp_ == nullptr)
    return FailedCall(errno, "create a QP of " + std::to_string(attr.sq_depth) + " sends and " +
                                 std::to_string(attr.rq_depth) + " receives");
  qp->num_ = qp->qp_->qp_num;
  return std::unique_ptr<Qp>(std::move(qp));
}

VerbsQp::~VerbsQp() {
  if (device_->context->inert()) return;
  if (qp_ != nullptr) {
    Quiesce();
    ibv_destroy_qp(qp_);
  }
  ForgetCompletions();
  if (send_slot_) {
    send_cq_->Detach(*send_slot_);
    send_cq_->Unreserve(attr_.sq_depth);
  }
  if (recv_slot_) {
    recv_cq_->Detach(*recv_slot_);
    recv_cq_->Unreserve(attr_.rq_depth);
  }
}

QpState VerbsQp::state() const {
  if (!fatal_.load(std::memory_order_acquire)) return state_;
  fatal_.store(false, std::memory_order_relaxed);
  ibv_qp_attr attr{};
  ibv_qp_init_attr init{};
  const bool in_error = ibv_query_qp(qp_, &attr, IBV_QP_STATE, &init) == 0 &&
                        (attr.qp_state == IBV_QPS_ERR || attr.qp_state == IBV_QPS_SQE);
  if (in_error && state_ != QpState::kReset) state_ = QpState::kErr;
  return state_;
}

Status VerbsQp::WrongState(const char* wanted) const {
  return {StatusCode::kBadState, "QP is in " + std::string(QpStateName(state_)) + ", which does not lead to " + wanted};
}

Status VerbsQp::Modify(ibv_qp_attr& attr, int mask, const char* wanted) {
  const int error = ibv_modify_qp(qp_, &attr, mask | IBV_QP_STATE);
  return error == 0 ? Status{} : FailedCall(error, "move a QP to " + std::string(wanted));
}

Status VerbsQp::ToInit(uint32_t access_rights, uint32_t qkey) {
  if (state() != QpState::kReset) return WrongState("INIT");
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_INIT;
  attr.pkey_index = 0;
  attr.port_num = device_->context->port().number;
  attr.qp_access_flags = ToAccessFlags(access_rights);
  attr.qkey = qkey;
  const int mask = IBV_QP_PKEY_INDEX | IBV_QP_PORT | (attr_.type == QpType::kRc ? IBV_QP_ACCESS_FLAGS : IBV_QP_QKEY);
  KRCORE_RETURN_IF_ERROR(Modify(attr, mask, "INIT"));
  qkey_ = qkey;
  state_ = QpState::kInit;
  return {};
}

Status VerbsQp::ToRtr(const QpPeer& peer) {
  if (state() != QpState::kInit) return WrongState("RTR");
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
  if (state() != QpState::kRtr) return WrongState("RTS");
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

Status VerbsQp::ToErr() {
  if (state() == QpState::kErr) return {};
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_ERR;
  KRCORE_RETURN_IF_ERROR(Modify(attr, 0, "ERR"));
  failed_ = true;
  state_ = QpState::kErr;
  return {};
}

Status VerbsQp::ToReset() {
  Quiesce();
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_RESET;
  KRCORE_RETURN_IF_ERROR(Modify(attr, 0, "RESET"));
  ForgetCompletions();
  if (peer_.qpn != 0) last_peer_ = peer_;
  peer_ = {};
  ++life_;
  failed_ = false;
  send_ = {};
  recv_ = {};
  fatal_.store(false, std::memory_order_relaxed);
  state_ = QpState::kReset;
  return {};
}

void VerbsQp::Quiesce() {
  // First what has completed: only the rest may be under way.
  send_cq_->Forget(nullptr);
  if (send_.posted == send_.done && !failed_) return;
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_RESET;
  (void)ibv_modify_qp(qp_, &attr, IBV_QP_STATE);  // the NIC sends no more of it; what it sent is on its way still
  SleepPacketLifetime();
}

void VerbsQp::ForgetCompletions() {
  send_cq_->Forget(this);
  if (recv_cq_ != nullptr) {
    recv_cq_->Forget(this);
    recv_cq_->RemoveFlushes(flushes_.size());
  }
  flushes_.clear();
  uint64_t signaled = 0;
  for (; send_.done < send_.posted; ++send_.done) signaled += sent_[send_.done % attr_.sq_depth].signaled ? 1 : 0;
  send_cq_->RemoveSignaled(signaled);
}

bool VerbsQp::Malformed(const SendWr& wr) const {
  if (wr.num_sge > device_->caps.max_sge || (wr.num_sge != 0 && wr.sg_list == nullptr)) return true;
  const bool ud = attr_.type == QpType::kUd;
  if (ud && wr.ah == nullptr) return true;
  switch (wr.opcode) {
    case Opcode::kCompareSwap:
    case Opcode::kFetchAdd:
      if (wr.num_sge != 1 || wr.sg_list[0].length != 8 || (wr.remote_addr & 7) != 0) return true;
      [[fallthrough]];
    case Opcode::kRead:
      if ((wr.flags & kInline) != 0) return true;
      [[fallthrough]];
    case Opcode::kWrite:
    case Opcode::kWriteImm:
      if (ud) return true;
      break;
    case Opcode::kSend:
    case Opcode::kSendImm: break;
    case Opcode::kRecv:
    case Opcode::kRecvWithImm: return true;
  }
  return (wr.flags & kInline) != 0 && TotalLength(wr) > device_->caps.max_inline_bytes;
}

size_t VerbsQp::PostBatch(std::span<const SendWr> wrs, Status* status) {
  ibv_send_wr posts[kBatch];
  for (size_t i = 0; i < wrs.size(); ++i) {
    const SendWr& wr = wrs[i];
    ibv_send_wr& post = posts[i];
    const uint64_t position = send_.posted + i;
    Sent& sent = sent_[position % attr_.sq_depth];
    sent = {wr.wr_id, wr.opcode, (wr.flags & kSignaled) != 0, false, WcStatus::kSuccess};
    std::memset(static_cast<void*>(&post), 0, sizeof(post));
    post.wr_id = WrToken::Make(false, life_, *send_slot_, static_cast<uint32_t>(position));
    post.next = i + 1 < wrs.size() ? &posts[i + 1] : nullptr;
    post.sg_list = SgesOf(wr.sg_list);
    post.num_sge = wr.num_sge;
    post.opcode = ToWrOpcode(wr.opcode);
    post.send_flags = ToSendFlags(wr.flags);
    post.imm_data = htonl(wr.imm);
    if (attr_.type == QpType::kUd) {
      post.wr.ud.ah = static_cast<const VerbsAddressHandle*>(wr.ah)->For(pd_index_);
      post.wr.ud.remote_qpn = wr.remote_qpn;
      post.wr.ud.remote_qkey = wr.qkey;
    } else if (wr.opcode == Opcode::kCompareSwap || wr.opcode == Opcode::kFetchAdd) {
      post.wr.atomic = {wr.remote_addr, wr.compare_add, wr.swap, wr.rkey};
    } else {
      post.wr.rdma = {wr.remote_addr, wr.rkey};
    }
  }
  ibv_send_wr* bad = nullptr;
  const int error = ibv_post_send(qp_, posts, &bad);
  const size_t took = error == 0 ? wrs.size() : static_cast<size_t>(bad - posts);
  for (size_t i = 0; i < took; ++i) {
    Sent& sent = sent_[(send_.posted + i) % attr_.sq_depth];
    if (sent.signaled) sent.lost = !send_cq_->AddSignaled();
  }
  send_.posted += took;
  if (error != 0) *status = FailedCall(error, "post a request");
  return took;
}

Status VerbsQp::PostSend(std::span<const SendWr> wrs, size_t* bad_index) {
  const QpState now = state();
  Status status;
  size_t at = 0;
  if (now != QpState::kRts && now != QpState::kErr) {
    status = StatusCode::kBadState;
  } else {
    const size_t fits = std::min<size_t>(wrs.size(), attr_.sq_depth - (send_.posted - send_.done));
    if (fits < wrs.size()) status = StatusCode::kQueueFull;
    while (at < fits) {
      size_t end = at;
      bool malformed = false, too_long = false;
      while (end < fits && end - at < kBatch && !malformed && !too_long) {
        malformed = Malformed(wrs[end]);
        too_long = !malformed && attr_.type == QpType::kUd && state_ == QpState::kRts &&
                   TotalLength(wrs[end]) > device_->caps.ud_mtu_bytes;
        if (!malformed && !too_long) ++end;
      }
      if (end > at) {
        Status posted;
        at += PostBatch(wrs.subspan(at, end - at), &posted);
        if (!posted.ok()) {
          status = std::move(posted);
          break;
        }
      }
      if (malformed) {
        status = StatusCode::kInvalidArgument;
        break;
      }
      // Soft-RoCE claims success for a datagram that it cannot send. Here it fails, as on a NIC, with its queue.
      if (too_long) {
        KRCORE_RETURN_IF_ERROR(ToErr());
        at += PostBatch(wrs.subspan(at, 1), &status);
        if (!status.ok()) break;
        sent_[(send_.posted - 1) % attr_.sq_depth].instead = WcStatus::kLocalLengthError;
      }
    }
  }
  if (!status.ok() && bad_index != nullptr) *bad_index = at;
  return status;
}

Status VerbsQp::PostRecv(std::span<const RecvWr> wrs, size_t* bad_index) {
  if (bad_index != nullptr) *bad_index = 0;
  if (state() == QpState::kReset) return StatusCode::kBadState;
  for (size_t i = 0; i < wrs.size(); ++i) {
    Status status;
    if (recv_cq_ == nullptr || recv_.posted - recv_.done + flushes_.size() >= attr_.rq_depth) {
      status = StatusCode::kQueueFull;
    } else if (wrs[i].num_sge > device_->caps.max_sge || (wrs[i].num_sge != 0 && wrs[i].sg_list == nullptr)) {
      status = StatusCode::kInvalidArgument;
    } else if (state_ == QpState::kErr) {
      // Not every device flushes a receive that comes after the error.
      flushes_.push_back(wrs[i].wr_id);
      recv_cq_->AddFlushes(1);
    } else {
      received_[recv_.posted % attr_.rq_depth] = wrs[i].wr_id;
      ibv_recv_wr post{};
      post.wr_id = WrToken::Make(true, life_, *recv_slot_, static_cast<uint32_t>(recv_.posted));
      post.sg_list = SgesOf(wrs[i].sg_list);
      post.num_sge = wrs[i].num_sge;
      ibv_recv_wr* bad = nullptr;
      if (const int error = ibv_post_recv(qp_, &post, &bad); error == 0) {
        ++recv_.posted;
      } else {
        status = FailedCall(error, "post a receive");
      }
    }
    if (status.ok()) continue;
    if (bad_index != nullptr) *bad_index = i;
    return status;
  }
  return {};
}

bool VerbsQp::Complete(const ibv_wc& wc, Completion* completion) {
  *completion = {};
  completion->status = FromWcStatus(wc.status);
  completion->qp_num = num_;
  if (wc.status != IBV_WC_SUCCESS) {
    state_ = QpState::kErr;
    failed_ = true;
  }
  return (wc.wr_id & WrToken::kReceive) != 0 ? CompleteRecv(wc, completion) : CompleteSend(wc, completion);
}

bool VerbsQp::CompleteSend(const ibv_wc& wc, Completion* completion) {
  const uint64_t position = send_.PositionOf(WrToken::Position(wc.wr_id));
  if (position >= send_.posted) return false;
  const Sent& sent = sent_[position % attr_.sq_depth];
  send_.done = position + 1;  // with the unsignaled ones before it
  if (sent.signaled) send_cq_->RemoveSignaled(1);
  completion->wr_id = sent.wr_id;
  completion->opcode = sent.opcode;
  if (sent.instead != WcStatus::kSuccess) completion->status = sent.instead;
  return !sent.lost && (sent.signaled || completion->status != WcStatus::kSuccess);
}

bool VerbsQp::CompleteRecv(const ibv_wc& wc, Completion* completion) {
  const uint64_t position = recv_.PositionOf(WrToken::Position(wc.wr_id));
  if (position >= recv_.posted) return false;
  recv_.done = position + 1;
  completion->wr_id = received_[position % attr_.rq_depth];
  completion->opcode = Opcode::kRecv;
  if (wc.status != IBV_WC_SUCCESS) return true;
  if (wc.opcode == IBV_WC_RECV_RDMA_WITH_IMM) completion->opcode = Opcode::kRecvWithImm;
  completion->byte_len = wc.byte_len;
  if ((wc.wc_flags & IBV_WC_WITH_IMM) != 0) {
    completion->flags |= kWithImm;
    completion->imm = ntohl(wc.imm_data);
  }
  if (attr_.type == QpType::kUd) {
    completion->flags |= kWithGrh;
    completion->src_qp = wc.src_qp;
  }
  return true;
}

size_t VerbsQp::TakeFlushes(const VerbsCq* cq, std::span<Completion> out) {
  if (cq != recv_cq_ || recv_.posted != recv_.done) return 0;  // the NIC's own flushes first
  size_t count = 0;
  for (; count < out.size() && !flushes_.empty(); ++count) {
    out[count] = {};
    out[count].wr_id = flushes_.front();
    out[count].status = WcStatus::kFlushed;
    out[count].opcode = Opcode::kRecv;
    out[count].qp_num = num_;
    flushes_.pop_front();
  }
  recv_cq_->RemoveFlushes(count);
  return count;
}

}  // namespace krcore::rnic::verbs
