#include "krcore/baselines/link.h"

#include <array>
#include <cassert>
#include <utility>

#include "krcore/baselines/rc_queue.h"

namespace krcore::baselines {

Result<std::unique_ptr<Link>> Link::Connect(const LinkContext& context, NodeId peer, rnic::Cq& cq, uint32_t index,
                                            uint32_t depth, Deadline deadline) {
  std::unique_ptr<Link> link(new Link(context, index, depth));
  KRCORE_RETURN_IF_ERROR(link->Establish(peer, cq, deadline));
  return link;
}

Result<std::unique_ptr<Link>> Link::ConnectShared(const LinkContext& context, NodeId peer, uint32_t depth,
                                                  Deadline deadline) {
  std::unique_ptr<Link> link(new Link(context, 0, depth));
  auto cq = context.device->CreateCq(depth);
  if (!cq.ok()) return cq.status();
  link->own_cq_ = *std::move(cq);
  context.Done(ConnectStep::kCq);
  KRCORE_RETURN_IF_ERROR(link->Establish(peer, *link->own_cq_, deadline));
  return link;
}

Status Link::Establish(NodeId peer, rnic::Cq& cq, Deadline deadline) {
  auto qp = context_.pd->CreateQp({.send_cq = &cq, .recv_cq = &cq, .sq_depth = depth_});
  if (!qp.ok()) return qp.status();
  qp_ = *std::move(qp);
  KRCORE_RETURN_IF_ERROR(qp_->ToInit(0, 0));
  context_.Done(ConnectStep::kQp);
  auto agreed = context_.exchange->Connect(peer, qp_->num(), deadline);
  if (!agreed.ok()) return agreed.status();
  agreed_ = *agreed;
  context_.Done(ConnectStep::kExchange);
  KRCORE_RETURN_IF_ERROR(qp_->ToRtr({.device = agreed_.peer, .qpn = agreed_.reply.qpn}));
  KRCORE_RETURN_IF_ERROR(qp_->ToRts());
  context_.Done(ConnectStep::kStates);
  return {};
}

Link::~Link() {
  qp_.reset();  // before the CQ, and before the peer's QP
  if (agreed_.id != 0) context_.exchange->Disconnect(agreed_);
}

size_t Link::Post(RcQueue* owner, std::span<rnic::SendWr> wrs) {
  assert(wrs.size() <= free());
  for (rnic::SendWr& wr : wrs) {
    wr.wr_id = uint64_t{index_} << 32 | static_cast<uint32_t>(tail_);
    log_[tail_++ % depth_] = {owner};
  }
  size_t refused = 0;
  if (qp_->PostSend(wrs, &refused).ok()) [[likely]]
    return wrs.size();
  tail_ -= wrs.size() - refused;
  Break();  // and what was posted before it, perhaps unsignaled, completes
  return refused;
}

size_t Link::Complete(const Completion& completion) {
  const uint64_t position = head_ + static_cast<uint32_t>(completion.wr_id - head_);
  if (position >= tail_) return 0;
  const size_t before = Settle(position, WcStatus::kSuccess);
  if (completion.status == WcStatus::kSuccess) return before + Settle(position + 1, WcStatus::kSuccess);
  (void)qp_->ToReset();  // a failure is reported only when what failed cannot execute any more
  broken_ = true;
  return before + Settle(position + 1, completion.status) + Settle(tail_, WcStatus::kFlushed);
}

size_t Link::Settle(uint64_t end, WcStatus status) {
  const uint64_t begin = head_;
  for (; head_ < end; ++head_) {
    RcQueue* const owner = log_[head_ % depth_].owner;
    if (owner != nullptr) owner->OnDone(status, qp_->num());
  }
  return head_ - begin;
}

size_t Link::End() {
  (void)qp_->ToReset();
  broken_ = true;
  return Settle(tail_, WcStatus::kFlushed);
}

size_t Link::Poll() {
  std::array<Completion, 32> batch;
  size_t completed = 0;
  for (;;) {
    const size_t count = own_cq_->Poll(batch);
    for (size_t i = 0; i < count; ++i) completed += Complete(batch[i]);
    if (count < batch.size()) return completed;
  }
}

void Link::Break() {
  broken_ = true;
  (void)qp_->ToErr();
}

void Link::Disown(const RcQueue* owner) {
  for (uint64_t p = head_; p < tail_; ++p)
    if (log_[p % depth_].owner == owner) log_[p % depth_].owner = nullptr;
}

}  // namespace krcore::baselines
