#include "krcore/kernel/kernel_virtual_queue.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <string>
#include <utility>

#include "krcore/kernel/kernel_node.h"
#include "krcore/queue/queue_state.h"

namespace krcore::kernel {
namespace {

static_assert(kMaxRegionsPerNode == KRC_MAX_SHARED && kFirstDynamicNode == KRC_FIRST_DYNAMIC_NODE);
static_assert(kMaxServiceBytes == KRC_VALUE_BYTES);

// EBUSY: a later completion may have reported a WR as done whose own completion is still on its way. kUnavailable: a
// connection that broke, to the peer's host or to the metadata server's, is being rebuilt. But a missing device stays
// missing, and a full port may stay full.
bool PassesByItself(const Status& connected) {
  return (connected == StatusCode::kQueueFull && errno == EBUSY) ||
         (connected == StatusCode::kUnavailable && errno != ENODEV);
}

}  // namespace

KernelVirtualQueue::KernelVirtualQueue(KernelPool& pool, uint32_t depth)
    : pool_(&pool), ring_(depth), requests_(ring_.slots()) {}

KernelVirtualQueue::~KernelVirtualQueue() {
  if (pool_ != nullptr) pool_->Remove(this);
}

Status KernelVirtualQueue::Start() { return pool_->kernel_node().OpenQueue(queue_, ring_.depth()); }

size_t KernelVirtualQueue::memory_bytes() const {
  return sizeof(*this) + ring_.memory_bytes() + ring_.slots() * sizeof(krc_request) +
         (inline_payloads_ ? inline_payloads_->bytes().size() : 0);
}

Status KernelVirtualQueue::Connect(NodeId peer, Deadline deadline) { return ConnectTo(peer, kNoPort, deadline); }

Status KernelVirtualQueue::ConnectTo(NodeId peer, Port port, Deadline deadline) {
  KRCORE_RETURN_IF_ERROR(NotForked());
  if (pool_ == nullptr) return {StatusCode::kBadState, "the pool of this queue was destroyed"};
  if (peer == kNoNode) return {StatusCode::kInvalidArgument, "no peer named"};
  if (outstanding() != 0)
    return {StatusCode::kQueueFull, std::to_string(outstanding()) + " work requests are outstanding"};
  Clock& clock = pool_->node().clock();
  auto found = queue_.Connect(peer, port);
  for (uint32_t spins = 0; PassesByItself(found.status()) && !deadline.Passed(clock); ++spins) {
    clock.Relax(spins);
    found = queue_.Connect(peer, port);
  }
  if (!found.ok()) {
    if (port != kNoPort) {  // it has left the port that it was connected to, if any
      peer_ = kNoNode;
      slots_ = credits_ = 0;
    }
    if (found.status() == StatusCode::kNotFound)
      return {StatusCode::kNotFound,
              "node " + std::to_string(peer) +
                  (port == kNoPort ? " has not published itself" : " has no port " + std::to_string(port))};
    return found.status();
  }
  ++(found->cached != 0 ? pool_->mutable_stats().metadata_hits : pool_->mutable_stats().metadata_lookups);
  region_count_ = std::min<size_t>(found->count, regions_.size());
  for (size_t i = 0; i < region_count_; ++i)
    regions_[i] = {found->regions[i].addr, found->regions[i].length, found->regions[i].key, found->regions[i].tag};
  peer_ = peer;
  incarnation_ = found->incarnation;
  broken_ = false;
  like_ = {};
  slots_ = found->slots;
  copy_bytes_ = found->copy_bytes;
  credits_ = staged_messages_ = 0;
  if (slots_ != 0) AskCredits();
  return {};
}

// ---- requests

Status KernelVirtualQueue::PrepareInline() {
  if (inline_payloads_ != nullptr) return {};
  auto made = pool_->node().CreateRegion({.length = ring_.slots() * kMaxInlineBytes, .remote_rights = 0, .tag = 0});
  if (!made.ok()) return made.status();
  inline_payloads_ = *std::move(made);
  return {};
}

void KernelVirtualQueue::Fill(uint64_t position, const WorkRequest& wr) {
  krc_request& out = requests_[ring_.slot(position)];
  out.wr_id = position;
  out.remote_addr = wr.remote_addr;
  out.compare_add = wr.opcode == Opcode::kSendImm ? wr.imm : wr.compare_add;
  out.swap = wr.swap;
  out.rkey = wr.rkey;
  out.opcode = static_cast<uint8_t>(wr.opcode);
  out.flags = static_cast<uint8_t>(wr.flags & ~kInline);
  out.num_sge = wr.num_sge;
  out.reserved = 0;
  for (uint32_t i = 0; i < wr.num_sge; ++i)
    out.sges[i] = {wr.sg_list[i].addr, wr.sg_list[i].length, wr.sg_list[i].lkey};
  if ((wr.flags & kInline) == 0 || wr.num_sge == 0) return;
  std::byte* const payload = inline_payloads_->bytes().data() + ring_.slot(position) * kMaxInlineBytes;
  out.sges[0] = {reinterpret_cast<uint64_t>(payload), queue::CopyInlinePayload(wr, payload), inline_payloads_->lkey()};
  out.num_sge = 1;
}

Status KernelVirtualQueue::Stage(std::span<const WorkRequest> wrs, size_t* bad_index) {
  KRCORE_RETURN_IF_ERROR(NotForked());
  size_t unused;
  if (bad_index == nullptr) bad_index = &unused;
  *bad_index = 0;
  if (pool_ == nullptr || peer_ == kNoNode) return StatusCode::kBadState;
  if (broken_) return StatusCode::kUnavailable;
  if (!ring_.HasRoom(wrs.size(), bad_index)) return StatusCode::kQueueFull;
  pool_->regions().Sync();
  if (std::exchange(like_version_, pool_->regions().version()) != pool_->regions().version()) like_ = {};
  bool has_inline = false;
  const StatusCode code = CheckBatch(wrs, bad_index, &has_inline);
  if (code != StatusCode::kOk) return code;
  if (has_inline) KRCORE_RETURN_IF_ERROR(PrepareInline());
  for (const WorkRequest& wr : wrs) {
    Fill(ring_.Accept(wr), wr);
    if (!IsSend(wr.opcode)) continue;
    --credits_;
    ++staged_messages_;
  }
  return {};
}

Status KernelVirtualQueue::Push(std::span<const WorkRequest> wrs, size_t* bad_index) {
  Status status = Stage(wrs, bad_index);
  if (status.ok()) pool_->Flush();
  return status;
}

size_t KernelVirtualQueue::SettleStaged(WcStatus status) {
  credits_ += std::exchange(staged_messages_, 0);
  return ring_.SettleStaged(status);
}

size_t KernelVirtualQueue::PostStaged() {
  if (broken_) return SettleStaged(WcStatus::kFlushed);
  for (uint64_t end; (end = ring_.NextRun(ring_.depth())) != ring_.posted();) {
    const uint64_t begin = ring_.posted();
    requests_[ring_.slot(end - 1)].flags |= KRC_SIGNALED;
    uint32_t bad_index = 0;
    const Status pushed = queue_.Push({&requests_[ring_.slot(begin)], end - begin}, &bad_index);
    if (pushed.ok()) {
      pool_->NotePosted(end - begin);
      for (uint64_t p = begin; staged_messages_ != 0 && p < end; ++p)
        staged_messages_ -= IsSend(static_cast<Opcode>(requests_[ring_.slot(p)].opcode));
      ring_.Posted(end);
      continue;
    }
    // Places become free when their completions are taken from the ring.
    if (pushed == StatusCode::kQueueFull) return TakeCompletions();
    // None of them was posted. Either memory was withdrawn since the request was staged, or a fault broke the queue;
    // then the completion of the faulty WR, if it has one, is on its way.
    broken_ = true;
    if (pushed == StatusCode::kPermissionDenied) ring_.Settle(begin + bad_index, WcStatus::kRemoteAccessError);
    return SettleStaged(WcStatus::kFlushed);
  }
  return 0;
}

// ---- completions

size_t KernelVirtualQueue::CompleteUpTo(uint64_t position, WcStatus status) {
  const uint64_t begin = ring_.head();
  while (ring_.head() <= position && !ring_.nothing_posted())
    ring_.CompleteHead(ring_.head() == position ? status : WcStatus::kSuccess);
  const size_t reported = ring_.head() - begin;
  return reported + ring_.CompleteSettled();
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
    }
  }
  // Flushes what was staged after a fault.
  if (broken_) completed += SettleStaged(WcStatus::kFlushed);
  return completed;
}

}  // namespace krcore::kernel
