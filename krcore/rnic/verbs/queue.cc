#include "krcore/rnic/verbs/queue.h"

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstddef>
#include <ctime>

#include "krcore/rnic/request_form.h"

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

QpState Queue::state() const {
  if (!events_.fatal.load(std::memory_order_acquire)) return state_;
  events_.fatal.store(false, std::memory_order_relaxed);
  ibv_qp_attr attr{};
  ibv_qp_init_attr init{};
  const bool in_error = ibv_query_qp(qp_, &attr, IBV_QP_STATE, &init) == 0 &&
                        (attr.qp_state == IBV_QPS_ERR || attr.qp_state == IBV_QPS_SQE);
  if (in_error && state_ != QpState::kReset) state_ = QpState::kErr;
  return state_;
}

Status Queue::Modify(ibv_qp_attr& attr, int mask, const char* wanted) {
  const int error = ibv_modify_qp(qp_, &attr, mask | IBV_QP_STATE);
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
  // First what has completed: only the rest may be under way.
  send_cq_->Forget(nullptr);
  if (send_.posted == send_.done && !failed_) return {};
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_RESET;
  const Status reset = Modify(attr, 0, "RESET");
  SleepPacketLifetime();  // the NIC sends no more of it; what it sent is on its way still
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
      // Not every device flushes a receive that comes after the error.
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
  send_.done = position + 1;  // with the unsignaled ones before it
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

}  // namespace krcore::rnic::verbs
