#include "krcore/kernel/kernel_virtual_queue.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <string>
#include <utility>

#include "krcore/kernel/kernel_node.h"
#include "krcore/kernel/kernel_pool.h"

namespace krcore::kernel {
namespace {

static_assert(kMaxRegionsPerNode == KRC_MAX_SHARED && kFirstDynamicNode == KRC_FIRST_DYNAMIC_NODE);
static_assert(kMaxServiceBytes == KRC_VALUE_BYTES);

Status NoMessages() { return {StatusCode::kUnsupported, "control plane kernel has one-sided requests only"}; }

}  // namespace

KernelVirtualQueue::KernelVirtualQueue(KernelPool& pool, uint32_t depth)
    : pool_(&pool), state_(depth), mask_(std::bit_ceil(depth) - 1), requests_(mask_ + 1), entries_(mask_ + 1) {}

KernelVirtualQueue::~KernelVirtualQueue() {
  if (pool_ != nullptr) pool_->Remove(this);
}

Status KernelVirtualQueue::Start() { return pool_->kernel_node().Attach(queue_, state_.depth()); }

size_t KernelVirtualQueue::memory_bytes() const {
  return sizeof(*this) + state_.memory_bytes() + (mask_ + 1) * (sizeof(krc_request) + sizeof(Entry)) +
         (inline_payloads_ ? inline_payloads_->bytes().size() : 0);
}

Status KernelVirtualQueue::Bind(Port, const BindOptions&, Deadline) { return NoMessages(); }
Status KernelVirtualQueue::Connect(NodeId, Port, Deadline) { return NoMessages(); }
Status KernelVirtualQueue::Connect(const Sender&, Deadline) { return NoMessages(); }
Status KernelVirtualQueue::PushRecv(std::span<const Receive>, size_t*) { return NoMessages(); }

Status KernelVirtualQueue::Connect(NodeId peer, Deadline deadline) {
  if (pool_ == nullptr) return {StatusCode::kBadState, "the pool of this queue was destroyed"};
  if (peer == kNoNode) return {StatusCode::kInvalidArgument, "no peer named"};
  if (outstanding() != 0)
    return {StatusCode::kQueueFull, std::to_string(outstanding()) + " work requests are outstanding"};
  Clock& clock = pool_->node().clock();
  auto found = queue_.Connect(peer);
  // The completion of what was reported by a later one may still be on its way.
  for (uint32_t spins = 0; found.status() == StatusCode::kBadState && !deadline.Passed(clock); ++spins) {
    clock.Relax(spins);
    found = queue_.Connect(peer);
  }
  if (!found.ok()) {
    if (found.status() == StatusCode::kNotFound)
      return {StatusCode::kNotFound, "node " + std::to_string(peer) + " has not published itself"};
    return found.status();
  }
  ++(found->cached != 0 ? pool_->mutable_stats().metadata_hits : pool_->mutable_stats().metadata_lookups);
  region_count_ = std::min<size_t>(found->count, regions_.size());
  for (size_t i = 0; i < region_count_; ++i)
    regions_[i] = {found->regions[i].addr, found->regions[i].length, found->regions[i].key, found->regions[i].tag};
  peer_ = peer;
  broken_ = false;
  like_ = {};
  return {};
}

// ---- requests

Status KernelVirtualQueue::PrepareInline() {
  if (inline_payloads_ != nullptr) return {};
  auto made = pool_->node().CreateRegion({.length = (mask_ + 1) * kMaxInlineBytes, .remote_rights = 0, .tag = 0});
  if (!made.ok()) return made.status();
  inline_payloads_ = *std::move(made);
  return {};
}

void KernelVirtualQueue::Fill(uint64_t position, const WorkRequest& wr) {
  krc_request& out = requests_[position & mask_];
  out.wr_id = position;
  out.remote_addr = wr.remote_addr;
  out.compare_add = wr.compare_add;
  out.swap = wr.swap;
  out.rkey = wr.rkey;
  out.opcode = static_cast<uint8_t>(wr.opcode);
  out.flags = static_cast<uint8_t>(wr.flags & ~kInline);
  out.num_sge = wr.num_sge;
  out.reserved = 0;
  for (uint32_t i = 0; i < wr.num_sge; ++i)
    out.sges[i] = {wr.sg_list[i].addr, wr.sg_list[i].length, wr.sg_list[i].lkey};
  entry(position) = {wr.wr_id, wr.opcode, (wr.flags & kSignaled) != 0, WcStatus::kSuccess};
  if ((wr.flags & kInline) == 0) return;
  // The caller may reuse the payload at once, the doorbell comes later.
  std::byte* const payload = inline_payloads_->bytes().data() + (position & mask_) * kMaxInlineBytes;
  uint32_t length = 0;
  for (uint32_t i = 0; i < wr.num_sge; ++i) {
    std::memcpy(payload + length, reinterpret_cast<const void*>(wr.sg_list[i].addr), wr.sg_list[i].length);
    length += wr.sg_list[i].length;
  }
  out.sges[0] = {reinterpret_cast<uint64_t>(payload), length, inline_payloads_->lkey()};
  out.num_sge = 1;
}

Status KernelVirtualQueue::Stage(std::span<const WorkRequest> wrs, size_t* bad_index) {
  size_t unused;
  if (bad_index == nullptr) bad_index = &unused;
  *bad_index = 0;
  if (pool_ == nullptr || peer_ == kNoNode) return StatusCode::kBadState;
  if (broken_) return StatusCode::kUnavailable;
  if (wrs.size() > state_.depth() - state_.used()) {
    *bad_index = state_.depth() - state_.used();
    return StatusCode::kQueueFull;
  }
  pool_->regions().Sync();
  if (std::exchange(like_version_, pool_->regions().version()) != pool_->regions().version()) like_ = {};
  bool has_inline = false;
  const StatusCode code =
      vqp::CheckRequests(wrs, pool_->limits(), pool_->regions(), regions(), &like_, bad_index, &has_inline);
  if (code != StatusCode::kOk) return code;
  if (has_inline) KRCORE_RETURN_IF_ERROR(PrepareInline());
  for (const WorkRequest& wr : wrs) Fill(tail_++, wr);
  state_.Accept(static_cast<uint32_t>(wrs.size()), 0);
  return {};
}

Status KernelVirtualQueue::Push(std::span<const WorkRequest> wrs, size_t* bad_index) {
  Status status = Stage(wrs, bad_index);
  if (status.ok()) pool_->Flush();
  return status;
}

size_t KernelVirtualQueue::PostStaged() {
  if (broken_) return has_staged() ? SettleStaged(WcStatus::kFlushed) : 0;
  size_t completed = 0;
  while (posted_ < tail_) {
    if (IsSettled(posted_)) {
      ++posted_;
      continue;
    }
    uint64_t end = std::min(tail_, (posted_ | mask_) + 1);
    for (uint64_t p = posted_; p < end; ++p)
      if (IsSettled(p)) end = p;
    requests_[(end - 1) & mask_].flags |= KRC_SIGNALED;
    uint32_t bad_index = 0;
    const Status pushed = queue_.Push({&requests_[posted_ & mask_], end - posted_}, &bad_index);
    if (pushed.ok()) {
      ++pool_->mutable_stats().doorbells;
      pool_->mutable_stats().work_requests += end - posted_;
      posted_ = end;
      continue;
    }
    // Places are free again when their completions are taken from the ring.
    if (pushed == StatusCode::kQueueFull) return completed + TakeCompletions();
    // None of them was posted. Its memory was withdrawn since it was staged; or a fault broke the queue, whose own
    // completion, if it has one, is on its way.
    broken_ = true;
    if (pushed == StatusCode::kPermissionDenied) entry(posted_ + bad_index).settled = WcStatus::kRemoteAccessError;
    return completed + SettleStaged(WcStatus::kFlushed);
  }
  return completed;
}

size_t KernelVirtualQueue::SettleStaged(WcStatus status) {
  for (uint64_t p = posted_; p < tail_; ++p)
    if (!IsSettled(p)) entry(p).settled = status;
  if (head_ == posted_) return RetireSettled();
  return 0;  // behind what is posted
}

// ---- completions

void KernelVirtualQueue::Retire(const Entry& entry, WcStatus status) {
  if (status == WcStatus::kSuccess && !entry.user_signaled) {
    state_.CompleteSilently();
    return;
  }
  Completion completion;
  completion.wr_id = entry.user_wr_id;
  completion.status = status;
  completion.opcode = entry.opcode;
  state_.Deliver(completion, false);
}

size_t KernelVirtualQueue::RetireSettled() {
  const uint64_t begin = head_;
  for (; head_ < tail_ && IsSettled(head_); ++head_) Retire(entry(head_), entry(head_).settled);
  posted_ = std::max(posted_, head_);
  return head_ - begin;
}

size_t KernelVirtualQueue::CompleteUpTo(uint64_t position, WcStatus status) {
  const uint64_t begin = head_;
  while (head_ <= position && head_ < posted_) {
    const Entry& done = entry(head_);
    Retire(done, done.settled != WcStatus::kSuccess ? done.settled : head_ == position ? status : WcStatus::kSuccess);
    ++head_;
  }
  return head_ - begin;
}

size_t KernelVirtualQueue::TakeCompletions() {
  std::array<krc_completion, 32> batch;
  size_t completed = 0;
  for (size_t count = batch.size(); count == batch.size();) {
    count = queue_.Pop(batch);
    for (size_t i = 0; i < count; ++i) {
      const auto status = static_cast<WcStatus>(batch[i].status);
      broken_ |= status != WcStatus::kSuccess;
      completed += CompleteUpTo(batch[i].wr_id, status);
      completed += RetireSettled();
    }
  }
  // What was staged behind a fault.
  if (broken_ && has_staged()) completed += SettleStaged(WcStatus::kFlushed);
  return completed;
}

}  // namespace krcore::kernel
