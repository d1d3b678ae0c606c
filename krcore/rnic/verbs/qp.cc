#include "krcore/rnic/verbs/qp.h"

#include <arpa/inet.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <ctime>

#include "krcore/rnic/request_form.h"
#include "krcore/rnic/verbs/device.h"
#include "krcore/rnic/verbs/library.h"

namespace krcore::rnic::verbs {
namespace {

void SleepPacketLifetime() {
  timespec left{kPacketLifetimeNs / 1'000'000'000, kPacketLifetimeNs % 1'000'000'000};
  while (nanosleep(&left, &left) != 0 && errno == EINTR) {
  }
}

}  // namespace

ibv_sge* SgesOf(const Sge* sges) {
  static_assert(sizeof(Sge) == sizeof(ibv_sge) && offsetof(Sge, addr) == offsetof(ibv_sge, addr) &&
                offsetof(Sge, length) == offsetof(ibv_sge, length) && offsetof(Sge, lkey) == offsetof(ibv_sge, lkey));
  return reinterpret_cast<ibv_sge*>(const_cast<Sge*>(sges));
}

Queue::Queue(SharedDevice* device, uint32_t pd_index, const QpAttr& attr)
    : device_(device),
      pd_index_(pd_index),
      attr_(attr),
      send_cq_(static_cast<VerbsCq*>(attr.send_cq)),
      recv_cq_(attr.rq_depth > 0 ? static_cast<VerbsCq*>(attr.recv_cq) : nullptr),
      sent_(std::bit_ceil(attr.sq_depth)),
      received_(std::bit_ceil(attr.rq_depth)) {}

Status Queue::TakeRoom() {
  KRCORE_RETURN_IF_ERROR(send_cq_->Reserve(attr_.sq_depth));
  send_slot_ = send_cq_->Attach(this);
  if (recv_cq_ == nullptr) return {};
  KRCORE_RETURN_IF_ERROR(recv_cq_->Reserve(attr_.rq_depth));
  recv_slot_ = recv_cq_->Attach(this);
  return {};
}

void Queue::Adopt(ibv_qp* qp) {
  qp_ = qp;
  num_ = qp->qp_num;
}

Queue::~Queue() {
  if (qp_ != nullptr) {
    (void)Quiesce();
    ibv.destroy_qp(qp_);
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

QpState Queue::state() const {
  if (!events_.fatal.load(std::memory_order_acquire)) return state_;
  events_.fatal.store(false, std::memory_order_relaxed);
  ibv_qp_attr attr{};
  ibv_qp_init_attr init{};
  const bool in_error = ibv.query_qp(qp_, &attr, IBV_QP_STATE, &init) == 0 &&
                        (attr.qp_state == IBV_QPS_ERR || attr.qp_state == IBV_QPS_SQE);
  if (in_error && state_ != QpState::kReset) state_ = QpState::kErr;
  return state_;
}

Status Queue::Modify(ibv_qp_attr& attr, int mask, const char* wanted) {
  const int error = ibv.modify_qp(qp_, &attr, mask | IBV_QP_STATE);
  return error == 0 ? Status{} : FailedCall(error, "move a QP to " + std::string(wanted));
}

Status Queue::ToErr() {
  if (state() == QpState::kErr) return {};
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_ERR;
  KRCORE_RETURN_IF_ERROR(Modify(attr, 0, "ERR"));
  failed_ = true;
  state_ = QpState::kErr;
  return {};
}

Status Queue::ToReset() {
  KRCORE_RETURN_IF_ERROR(Quiesce());
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
  events_.fatal.store(false, std::memory_order_relaxed);
  state_ = QpState::kReset;
  return {};
}

Status Queue::Quiesce() {
  // Collect completions first: only the rest may be in flight.
  send_cq_->Forget(nullptr);
  if (send_.posted == send_.done && !failed_) return {};
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_RESET;
  const Status reset = Modify(attr, 0, "RESET");
  SleepPacketLifetime();  // the NIC sends no more of it, but what it sent may still be on its way
  return reset;
}

void Queue::ForgetCompletions() {
  send_cq_->Forget(this);
  if (recv_cq_ != nullptr) {
    recv_cq_->Forget(this);
    recv_cq_->RemoveFlushes(flushes_.size());
  }
  flushes_.clear();
  uint64_t signaled = 0;
  for (; send_.done < send_.posted; ++send_.done) signaled += SentAt(send_.done).signaled ? 1 : 0;
  send_cq_->RemoveSignaled(signaled);
}

size_t Queue::PostBatch(std::span<const SendWr> wrs, Status* status) {
  for (size_t i = 0; i < wrs.size(); ++i) {
    SentAt(send_.posted + i) = {wrs[i].wr_id, wrs[i].opcode, (wrs[i].flags & kSignaled) != 0, false,
                                WcStatus::kSuccess};
  }
  size_t took = 0;
  const int error = Post(wrs, &took);
  for (size_t i = 0; i < took; ++i) {
    Sent& sent = SentAt(send_.posted + i);
    if (sent.signaled) sent.lost = !send_cq_->AddSignaled();
  }
  send_.posted += took;
  if (error != 0) *status = FailedCall(error, "post a request");
  return took;
}

Status Queue::PostSend(std::span<const SendWr> wrs, size_t* bad_index) {
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
        malformed = IsMalformed(wrs[end], attr_.type, device_->caps.max_sge, device_->caps.max_inline_bytes);
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
        SentAt(send_.posted - 1).instead = WcStatus::kLocalLengthError;
      }
    }
  }
  if (!status.ok() && bad_index != nullptr) *bad_index = at;
  return status;
}

Status Queue::PostRecv(std::span<const RecvWr> wrs, size_t* bad_index) {
  if (bad_index != nullptr) *bad_index = 0;
  if (state() == QpState::kReset) return StatusCode::kBadState;
  for (size_t i = 0; i < wrs.size(); ++i) {
    Status status;
    if (recv_cq_ == nullptr || recv_.posted - recv_.done + flushes_.size() >= attr_.rq_depth) {
      status = StatusCode::kQueueFull;
    } else if (HasBadSges(wrs[i], device_->caps.max_sge)) {
      status = StatusCode::kInvalidArgument;
    } else if (state_ == QpState::kErr) {
      // Not every device flushes a receive that was posted after the error.
      flushes_.push_back(wrs[i].wr_id);
      recv_cq_->AddFlushes(1);
    } else {
      ReceivedAt(recv_.posted) = wrs[i].wr_id;
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

bool Queue::Complete(const ibv_wc& wc, Completion* completion) {
  *completion = {};
  completion->status = FromWcStatus(wc.status);
  completion->qp_num = num_;
  if (wc.status != IBV_WC_SUCCESS) {
    state_ = QpState::kErr;
    failed_ = true;
  }
  return (wc.wr_id & WrToken::kReceive) != 0 ? CompleteRecv(wc, completion) : CompleteSend(wc, completion);
}

bool Queue::CompleteSend(const ibv_wc& wc, Completion* completion) {
  const uint64_t position = send_.PositionOf(WrToken::Position(wc.wr_id));
  if (position >= send_.posted) return false;
  const Sent& sent = SentAt(position);
  send_.done = position + 1;  // including the unsignaled ones before it
  if (sent.signaled) send_cq_->RemoveSignaled(1);
  completion->wr_id = sent.wr_id;
  completion->opcode = sent.opcode;
  if (sent.instead != WcStatus::kSuccess) completion->status = sent.instead;
  return !sent.lost && (sent.signaled || completion->status != WcStatus::kSuccess);
}

bool Queue::CompleteRecv(const ibv_wc& wc, Completion* completion) {
  const uint64_t position = recv_.PositionOf(WrToken::Position(wc.wr_id));
  if (position >= recv_.posted) return false;
  recv_.done = position + 1;
  completion->wr_id = ReceivedAt(position);
  FillReceived(wc, completion);
  if (wc.status == IBV_WC_SUCCESS && attr_.type == QpType::kUd) {
    completion->flags |= kWithGrh;
    completion->src_qp = wc.src_qp;
  }
  return true;
}

size_t Queue::TakeFlushes(const VerbsCq* cq, std::span<Completion> out) {
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

// ---- RC and UD
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
  ibv_qp* const made = ibv.create_qp(pd, &init);
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

// ---- completion queue

namespace {

constexpr int kBatch = 32;

}  // namespace

Result<std::unique_ptr<Cq>> VerbsCq::Create(Context* context, uint32_t depth, uint32_t max_depth) {
  if (depth == 0 || depth > max_depth)
    return Status(StatusCode::kInvalidArgument, "CQ depth is not 1 to " + std::to_string(max_depth));
  ibv_cq* const cq = ibv.create_cq(context->get(), static_cast<int>(depth), nullptr, nullptr, 0);
  if (cq == nullptr) return FailedCall(errno, "create a CQ");
  return std::unique_ptr<Cq>(new VerbsCq(cq, depth, max_depth));
}

VerbsCq::~VerbsCq() { ibv.destroy_cq(cq_); }

Status VerbsCq::Reserve(uint32_t wrs) {
  const uint64_t needed = reserved_ + wrs;
  if (needed > max_depth_)
    return {StatusCode::kOutOfMemory, "a CQ of this device has room for " + std::to_string(max_depth_) +
                                          " WRs, and its queues would have " + std::to_string(needed)};
  if (needed > static_cast<uint64_t>(cq_->cqe)) {
    if (const int error = ibv.resize_cq(cq_, static_cast<int>(needed)); error != 0)
      return FailedCall(error, "give a CQ room for " + std::to_string(needed) + " WRs");
  }
  reserved_ = needed;
  return {};
}

uint16_t VerbsCq::Attach(CqUser* user) {
  const auto free = std::find(slots_.begin(), slots_.end(), nullptr);
  const auto slot = static_cast<uint16_t>(free - slots_.begin());
  if (free == slots_.end()) {
    slots_.push_back(user);
  } else {
    *free = user;
  }
  return slot;
}

void VerbsCq::Detach(uint16_t slot) { slots_[slot] = nullptr; }

CqUser* VerbsCq::Owner(uint64_t wr_id) const {
  const uint16_t slot = WrToken::Slot(wr_id);
  CqUser* const user = slot < slots_.size() ? slots_[slot] : nullptr;
  return user != nullptr && user->IsOfThisLife(wr_id) ? user : nullptr;
}

size_t VerbsCq::Poll(std::span<Completion> out) {
  size_t count = 0;
  for (; count < out.size() && !kept_.empty(); kept_.pop_front()) out[count++] = kept_.front().completion;
  while (count < out.size()) {
    ibv_wc wcs[kBatch];
    const int wanted = static_cast<int>(std::min<size_t>(kBatch, out.size() - count));
    const int got = ibv_poll_cq(cq_, wanted, wcs);
    for (int i = 0; i < got; ++i) {
      CqUser* const user = Owner(wcs[i].wr_id);
      if (user != nullptr && user->Complete(wcs[i], &out[count])) ++count;
    }
    if (got < wanted) break;
  }
  for (size_t i = 0; flushes_ > 0 && i < slots_.size(); ++i) {
    if (slots_[i] != nullptr) count += slots_[i]->TakeFlushes(this, out.subspan(count));
  }
  if (sources_awake_) count += TakeFromSources(out.subspan(count));
  return count;
}

size_t VerbsCq::TakeFromSources(std::span<Completion> out) {
  size_t count = 0;
  sources_awake_ = false;
  // Each source goes first in its turn, so that none has to wait for ever.
  const size_t sources = sources_.size();
  if (++first_source_ >= sources) first_source_ = 0;
  for (size_t i = 0, next = first_source_; i < sources; ++i) {
    count += sources_[next]->Take(out.subspan(count));
    sources_awake_ = sources_awake_ || sources_[next]->Awake();
    if (++next == sources) next = 0;
  }
  return count;
}

void VerbsCq::Forget(const CqUser* user) {
  ibv_wc wc{};
  while (ibv_poll_cq(cq_, 1, &wc) == 1) {
    CqUser* const owner = Owner(wc.wr_id);
    Completion completion;
    if (owner != nullptr && owner->Complete(wc, &completion)) kept_.push_back({completion, owner});
  }
  std::erase_if(kept_, [&](const Kept& kept) { return kept.user == user; });
}

}  // namespace krcore::rnic::verbs
