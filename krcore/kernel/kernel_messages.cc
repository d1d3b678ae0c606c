// The two-sided half of KernelVirtualQueue. The module keeps places, credits and arrived messages; here is only what it
// last reported of them.
#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "krcore/kernel/kernel_node.h"
#include "krcore/kernel/kernel_virtual_queue.h"

namespace krcore::kernel {
namespace {

static_assert(kFirstAutomaticPort == KRC_FIRST_AUTOMATIC_PORT);
constexpr uint32_t kMaxMessageSges = 3;  // as in all control planes

}  // namespace

// ---- receiving

Status KernelVirtualQueue::Bind(Port port, const BindOptions& options, Deadline deadline) {
  KRCORE_RETURN_IF_ERROR(NotForked());
  if (pool_ == nullptr) return {StatusCode::kBadState, "the pool of this queue was destroyed"};
  if (port_ != kNoPort) return {StatusCode::kBadState, "this queue is bound to port " + std::to_string(port_)};
  KRCORE_RETURN_IF_ERROR(pool_->kernel_node().Publish(deadline));
  auto bound = queue_.Bind({port, options.senders, options.slots, options.copy_bytes, options.receive_depth, 0});
  if (bound.status() == StatusCode::kExists)
    return {StatusCode::kExists, "port " + std::to_string(port) + " of this node is bound"};
  if (!bound.ok()) return bound.status();
  port_ = *bound;
  receive_depth_ = options.receive_depth;
  return {};
}

Status KernelVirtualQueue::PushRecv(std::span<const Receive> receives, size_t* bad_index) {
  KRCORE_RETURN_IF_ERROR(NotForked());
  size_t unused;
  if (bad_index == nullptr) bad_index = &unused;
  *bad_index = 0;
  if (pool_ == nullptr || port_ == kNoPort) return StatusCode::kBadState;
  if (receives.empty()) return {};
  if (receives.size() > receive_depth_ - receives_) {
    *bad_index = receive_depth_ - receives_;
    return StatusCode::kQueueFull;
  }
  std::vector<krc_receive> batch(receives.size());
  for (size_t i = 0; i < receives.size(); ++i)
    batch[i] = {receives[i].wr_id, receives[i].buffer.addr, receives[i].buffer.length, receives[i].buffer.lkey};
  uint32_t bad = 0;
  Status pushed = queue_.PushRecv(batch, &bad);
  *bad_index = bad;
  if (pushed.ok()) receives_ += static_cast<uint32_t>(receives.size());
  return pushed;
}

size_t KernelVirtualQueue::PopMessages(std::span<Message> out) {
  if (forked()) return 0;
  const size_t count = std::min(out.size(), ready_.size());
  std::copy_n(ready_.begin(), count, out.begin());
  ready_.erase(ready_.begin(), ready_.begin() + static_cast<ptrdiff_t>(count));
  receives_ -= static_cast<uint32_t>(count);
  return count;
}

size_t KernelVirtualQueue::TakeMessages() {
  if (slots_ != 0 && 2 * credits_ <= slots_ && !broken_) AskCredits();
  if (port_ == kNoPort) return 0;
  std::array<krc_message, 16> batch;
  const auto popped = queue_.PopMessages(batch);
  if (!popped.ok()) return 0;  // the device is gone, and senders learn that too
  for (const krc_message& from : std::span(batch).first(*popped)) {
    Message& message = ready_.emplace_back();
    message.wr_id = from.wr_id;
    message.status = static_cast<WcStatus>(from.status);
    message.flags = static_cast<uint8_t>(from.with_imm != 0 ? kWithImm : 0);
    message.byte_len = from.byte_len;
    message.imm = from.imm;
    message.sender.node = from.node;
    message.sender.incarnation = from.incarnation;
    message.sender.queue = from.queue;
    message.sender.port = from.port;
  }
  return *popped;
}

// ---- connecting

Status KernelVirtualQueue::Connect(NodeId peer, Port port, Deadline deadline) {
  if (port == kNoPort) return {StatusCode::kInvalidArgument, "no port named"};
  return ConnectTo(peer, port, deadline);
}

Status KernelVirtualQueue::Connect(const Sender& sender, Deadline deadline) {
  if (sender.node == kNoNode || sender.port == kNoPort)
    return {StatusCode::kInvalidArgument, "the sender is bound to no port"};
  KRCORE_RETURN_IF_ERROR(ConnectTo(sender.node, sender.port, deadline));
  if (incarnation_ == sender.incarnation) return {};
  peer_ = kNoNode;
  slots_ = credits_ = 0;
  return {StatusCode::kUnavailable, "the sender is gone; node " + std::to_string(sender.node) + " is its successor"};
}

void KernelVirtualQueue::AskCredits() {
  const auto credits = queue_.Credits();
  // The port is closed, or a fault on the receiver's side was reported.
  if (credits.status() == StatusCode::kBadState) broken_ = true;
  if (credits.ok()) credits_ = *credits - std::min(*credits, staged_messages_);
}

// ---- sending

StatusCode KernelVirtualQueue::CheckMessage(const WorkRequest& wr) const {
  if (wr.num_sge > kMaxMessageSges || (wr.num_sge != 0 && wr.sg_list == nullptr) ||
      (wr.flags & ~queue::kKnownFlags) != 0)
    return StatusCode::kInvalidArgument;
  const bool is_inline = (wr.flags & kInline) != 0;
  uint64_t total = 0;
  for (const Sge& sge : std::span(wr.sg_list, wr.num_sge)) {
    if (sge.length == 0) return StatusCode::kInvalidArgument;
    total += sge.length;
    if (is_inline) continue;
    const peers::LocalRegion* const region = pool_->regions().Find(sge.lkey);
    if (region == nullptr || !region->Covers(sge.addr, sge.length)) return StatusCode::kPermissionDenied;
  }
  return total > (is_inline ? std::min(copy_bytes_, kMaxInlineBytes) : copy_bytes_) ? StatusCode::kInvalidArgument
                                                                                    : StatusCode::kOk;
}

StatusCode KernelVirtualQueue::CheckBatch(std::span<const WorkRequest> wrs, size_t* bad_index, bool* has_inline) {
  const auto is_two_sided = [](const WorkRequest& wr) { return IsSend(wr.opcode) || wr.opcode == Opcode::kWriteImm; };
  if (std::none_of(wrs.begin(), wrs.end(), is_two_sided))
    return queue::CheckRequests(wrs, pool_->limits(), pool_->regions(), regions(), &like_, bad_index, has_inline);
  uint32_t messages = 0;
  for (size_t i = 0; i < wrs.size(); ++i) {
    const WorkRequest& wr = wrs[i];
    StatusCode code;
    uint64_t bytes;
    *bad_index = i;
    if (!is_two_sided(wr))
      code = queue::CheckRequest(wr, pool_->limits(), pool_->regions(), regions(), &bytes);
    else if (slots_ == 0)
      code = StatusCode::kBadState;
    else
      code = IsSend(wr.opcode) ? CheckMessage(wr) : StatusCode::kUnsupported;
    if (code != StatusCode::kOk) return code;
    if (IsSend(wr.opcode) && ++messages > credits_) return StatusCode::kQueueFull;
    *has_inline |= (wr.flags & kInline) != 0 && wr.num_sge != 0;
  }
  return StatusCode::kOk;
}

}  // namespace krcore::kernel
