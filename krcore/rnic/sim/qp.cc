#include "krcore/rnic/sim/qp.h"

#include <cstring>

#include "krcore/rnic/request_form.h"
#include "krcore/rnic/sim/device.h"

namespace krcore::rnic::sim {

// ---- completion queue

size_t SimCq::Poll(std::span<Completion> out) {
  if (entries_.empty() && !Nudge()) return 0;
  size_t count = 0;
  for (; count < out.size() && !entries_.empty(); ++count, entries_.pop_front()) {
    const Entry& entry = entries_.front();
    out[count] = entry.completion;
    if (entry.counters != nullptr) entry.counters->freed = entry.position;
  }
  device_->unpolled -= count;
  idle_polls_ = 0;
  return count;
}

// Returns true if there is something to poll now.
bool SimCq::Nudge() {
  if (engine_->stats().events != seen_events_ || engine_->now_ns() != seen_ns_) {
    seen_events_ = engine_->stats().events;
    seen_ns_ = engine_->now_ns();
    idle_polls_ = 0;
  }
  if (++idle_polls_ < kIdlePolls) return false;
  idle_polls_ = 0;
  return engine_->Step() && !entries_.empty();
}

void SimCq::Push(const Completion& completion, SendCounters* counters, uint64_t position) {
  if (entries_.size() == depth_) {
    overrun_ = true;
    return;
  }
  entries_.push_back({completion, counters, position});
  engine_->CountCompletion(*device_);
}

void SimCq::Forget(uint32_t qp_num, const SendCounters* counters) {
  device_->unpolled -= std::erase_if(entries_, [&](const Entry& entry) {
    return counters != nullptr ? entry.counters == counters
                               : entry.counters == nullptr && entry.completion.qp_num == qp_num;
  });
}

// ---- receive queue

bool LocalRange(const DeviceState& device, uint32_t pd, const Sge& sge, bool written) {
  if (sge.length == 0) return true;
  const MrEntry* mr = device.mrs.Find(sge.lkey);
  if (mr == nullptr || mr->pd != pd) return false;
  const uint64_t offset = sge.addr - mr->base;
  return offset <= mr->length && sge.length <= mr->length - offset && (!written || (mr->rights & kLocalWrite) != 0);
}

Status Receiver::Post(std::span<const RecvWr> wrs, size_t* bad_index) {
  for (size_t i = 0; i < wrs.size(); ++i) {
    const RecvWr& wr = wrs[i];
    StatusCode refused = StatusCode::kOk;
    if (HasBadSges(wr, kMaxSge)) refused = StatusCode::kInvalidArgument;
    if (posted_.size() == options_.depth) refused = StatusCode::kQueueFull;
    if (refused != StatusCode::kOk) {
      if (bad_index != nullptr) *bad_index = i;
      return refused;
    }
    posted_.push_back({wr.wr_id, {wr.sg_list, wr.sg_list + wr.num_sge}});
  }
  return {};
}

WcStatus Receiver::Deliver(const Message& message, bool* broken) {
  *broken = false;
  const bool datagram = options_.type == EntryType::kUd;
  if (posted_.empty()) return WcStatus::kRnrRetryExceeded;
  const Posted& next = posted_.front();
  const uint64_t needed = message.bytes.size() + (datagram ? kGrhBytes : 0);
  uint64_t room = 0;
  bool allowed = true;
  for (const Sge& sge : next.sges) {
    room += sge.length;
    allowed &= LocalRange(*device_, options_.pd, sge, true);
  }
  const bool fits = message.bytes.empty() ? room >= needed || message.opcode == Opcode::kWriteImm
                                          : room >= needed && message.bytes.size() <= options_.max_bytes;
  // One sender's mistake must not break a queue that everybody may send to: the receive stays for the next message.
  if (datagram && allowed && !fits) return WcStatus::kRemoteInvalidRequest;
  const Posted recv = next;
  posted_.pop_front();
  if (!allowed) {
    Complete(recv, WcStatus::kLocalProtectionError, {});
    *broken = true;
    return WcStatus::kRemoteOperationError;
  }
  if (!fits) {
    Complete(recv, WcStatus::kLocalLengthError, {});
    *broken = true;
    return WcStatus::kRemoteInvalidRequest;
  }
  if (message.opcode != Opcode::kWriteImm)
    ScatterMessage(recv.sges, options_.type, message.bytes.data(), message.bytes.size(), std::memcpy);
  Complete(recv, WcStatus::kSuccess, message);
  return WcStatus::kSuccess;
}

void Receiver::Complete(const Posted& recv, WcStatus status, const Arrival& arrival) {
  options_.cq->Push(ReceiveCompletion(recv.wr_id, status, options_.type, options_.number, arrival), nullptr, 0);
}

void Receiver::Flush() {
  for (; !posted_.empty(); posted_.pop_front()) Complete(posted_.front(), WcStatus::kFlushed, {});
}

void Receiver::Reset() {
  posted_.clear();
  options_.cq->Forget(options_.number, nullptr);
}

// ---- queue pair

SimQp::SimQp(Fabric* fabric, DeviceState* device, const QpAttr& attr, uint32_t pd, uint32_t number)
    : fabric_(fabric),
      engine_(&fabric->engine()),
      device_(device),
      attr_(attr),
      send_cq_(static_cast<SimCq*>(attr.send_cq)),
      queue_(std::make_unique<SendQueue>(device, this, attr.type, number, pd)) {
  num_ = number;
}

Result<std::unique_ptr<Qp>> SimQp::Create(Fabric* fabric, DeviceState* device, const QpAttr& attr, uint32_t pd) {
  KRCORE_RETURN_IF_ERROR(fabric->CheckAlive(*device));
  auto number = device->qps.Add(EntryTypeOf(attr.type), pd);
  if (!number.ok()) return number.status();
  device->control_ns += fabric->engine().cost().create_qp_ns;
  std::unique_ptr<SimQp> qp(new SimQp(fabric, device, attr, pd, *number));
  QpEntry& entry = *device->qps.Find(*number);
  entry.qp = qp.get();
  if (attr.rq_depth > 0) {
    qp->receiver_ = std::make_unique<Receiver>(
        device, Receiver::Options{EntryTypeOf(attr.type), *number, pd, static_cast<SimCq*>(attr.recv_cq), attr.rq_depth,
                                  attr.max_recv_bytes});
    entry.receiver = qp->receiver_.get();
  }
  return std::unique_ptr<Qp>(std::move(qp));
}

SimQp::~SimQp() {
  if (queue_ != nullptr) engine_->Drop(*queue_);
  device_->qps.Remove(num_);
  send_cq_->Forget(num_, &counters_);
}

// ---- states

Status SimQp::CheckAlive() const { return fabric_->CheckAlive(*device_); }

void SimQp::SetState(QpState state) {
  state_ = state;
  device_->qps.Find(num_)->state = state;
}

Status SimQp::ToInit(uint32_t access_rights, uint32_t qkey) {
  KRCORE_RETURN_IF_ERROR(CheckAlive());
  if (state_ != QpState::kReset) return WrongState(state_, QpState::kInit);
  device_->control_ns += engine_->cost().modify_qp_ns;
  QpEntry& entry = *device_->qps.Find(num_);
  entry.rights = access_rights;
  entry.qkey = qkey;
  SetState(QpState::kInit);
  return {};
}

Status SimQp::ToRtr(const QpPeer& peer) {
  KRCORE_RETURN_IF_ERROR(CheckAlive());
  if (state_ != QpState::kInit) return WrongState(state_, QpState::kRtr);
  if (attr_.type == QpType::kRc) {
    DeviceState* const target = fabric_->FindAlive(peer.device);
    if (target == nullptr) return fabric_->Gone(peer.device);
    const QpEntry* const remote = target->qps.Find(peer.qpn);
    if (remote == nullptr || remote->type != EntryType::kRc) {
      return {StatusCode::kNotFound,
              "node " + std::to_string(peer.device.node) + " has no RC QP " + std::to_string(peer.qpn)};
    }
    queue_->peer = target;
    queue_->peer_number = peer.qpn;
    QpEntry& entry = *device_->qps.Find(num_);
    entry.peer_number = peer.qpn;
    entry.peer_incarnation = target->incarnation;
  }
  device_->control_ns += engine_->cost().modify_qp_ns;
  SetState(QpState::kRtr);
  return {};
}

Status SimQp::ToRts() {
  KRCORE_RETURN_IF_ERROR(CheckAlive());
  if (state_ != QpState::kRtr) return WrongState(state_, QpState::kRts);
  device_->control_ns += engine_->cost().modify_qp_ns;
  SetState(QpState::kRts);
  return {};
}

Status SimQp::ToErr() {
  if (state_ == QpState::kErr) return {};
  doubtful_ = last_write_ > counters_.freed;
  SetState(QpState::kErr);
  if (queue_ != nullptr) engine_->Flush(*queue_);
  if (receiver_ != nullptr) receiver_->Flush();
  return {};
}

bool SimQp::BeginReset() {
  if (attr_.type != QpType::kDci || engine_->chaos().reset_ns == 0) return true;
  (void)ToErr();
  if (!doubtful_) return true;
  if (reset_due_ns_ == 0) reset_due_ns_ = engine_->now_ns() + engine_->chaos().reset_ns;
  return engine_->now_ns() >= reset_due_ns_;
}

Status SimQp::ToReset() {
  KRCORE_RETURN_IF_ERROR(CheckAlive());
  if (!BeginReset()) engine_->RunUntil(reset_due_ns_);
  reset_due_ns_ = 0;
  doubtful_ = false;
  device_->control_ns += engine_->cost().modify_qp_ns;
  engine_->Drop(*queue_);
  SetState(QpState::kReset);
  send_cq_->Forget(num_, &counters_);
  counters_ = {};
  last_write_ = 0;
  queue_->peer = nullptr;
  queue_->peer_number = 0;
  QpEntry& entry = *device_->qps.Find(num_);
  entry.peer_number = entry.peer_incarnation = 0;
  if (receiver_ != nullptr) receiver_->Reset();
  return {};
}

std::unique_ptr<SendQueue> SimQp::Die(int64_t until_ns) {
  (void)ToErr();
  engine_->Orphan(*queue_, until_ns);
  return std::move(queue_);
}

// ---- posting

Status SimQp::PostSend(std::span<const SendWr> wrs, size_t* bad_index) {
  for (size_t i = 0; i < wrs.size(); ++i) {
    const SendWr& wr = wrs[i];
    StatusCode refused = StatusCode::kOk;
    if (state_ != QpState::kRts && state_ != QpState::kErr) {
      refused = StatusCode::kBadState;
    } else if (counters_.posted - counters_.freed == attr_.sq_depth) {
      refused = StatusCode::kQueueFull;
    } else if (state_ == QpState::kRts && IsMalformed(wr, attr_.type, kMaxSge, kMaxInlineBytes)) {
      refused = StatusCode::kInvalidArgument;
    }
    if (refused != StatusCode::kOk) {
      if (bad_index != nullptr) *bad_index = i;
      return refused;
    }
    // A process that is killed here has had the earlier WRs accepted, and completes the rest as flushed.
    const bool dies = state_ == QpState::kRts && device_->verbs_left != 0 && --device_->verbs_left == 0;
    if (dies && device_->dies_before) fabric_->Kill(*device_, device_->dies_linger_ns);
    ++counters_.posted;
    if (wr.opcode != Opcode::kRead) last_write_ = counters_.posted;
    if (state_ == QpState::kErr) {
      PushCompletion(wr.wr_id, wr.opcode, WcStatus::kFlushed, counters_.posted);
      continue;
    }
    engine_->Post(*queue_, wr, counters_.posted);
    if (dies) fabric_->Kill(*device_, device_->dies_linger_ns);
  }
  return {};
}

Status SimQp::PostRecv(std::span<const RecvWr> wrs, size_t* bad_index) {
  return PostReceives(receiver_.get(), state_, wrs, bad_index);
}

// ---- completing

void SimQp::PushCompletion(uint64_t wr_id, Opcode opcode, WcStatus status, uint64_t position) {
  Completion completion;
  completion.wr_id = wr_id;
  completion.status = status;
  completion.opcode = opcode;
  completion.qp_num = num_;
  send_cq_->Push(completion, &counters_, position);
}

void SimQp::SendCompleted(const Verb& verb, WcStatus status) {
  PushCompletion(verb.wr_id, verb.opcode, status, verb.position);
}

}  // namespace krcore::rnic::sim
