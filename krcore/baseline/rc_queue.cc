#include "krcore/baseline/rc_queue.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <string>
#include <utility>

#include "krcore/baseline/rc_pool.h"

namespace krcore::baseline {
namespace {

constexpr int64_t kStuckNs = 10'000'000'000;
constexpr uint32_t kMaxSpins = 1u << 22;  // bound of the same wait where the clock stands still

Status NoMessages() { return {StatusCode::kUnsupported, "the baselines have one-sided requests only"}; }

}  // namespace

RcQueue::RcQueue(RcPool& pool, uint32_t depth)
    : pool_(&pool),
      state_(depth),
      mask_(std::bit_ceil(depth) - 1),
      wrs_(mask_ + 1),
      sges_((mask_ + 1) * kMaxSge),
      entries_(mask_ + 1) {}

RcQueue::~RcQueue() { ForgetPool(); }

void RcQueue::ForgetPool() {
  Detach();
  if (pool_ != nullptr) pool_->Remove(this);
  pool_ = nullptr;
}

size_t RcQueue::memory_bytes() const {
  const size_t each = sizeof(rnic::SendWr) + kMaxSge * sizeof(Sge) + sizeof(Entry);
  return sizeof(*this) + state_.memory_bytes() + entries_.size() * (each + (inline_payloads_ ? kMaxInlineBytes : 0));
}

Status RcQueue::Bind(Port, const BindOptions&, Deadline) { return NoMessages(); }
Status RcQueue::Connect(NodeId, Port, Deadline) { return NoMessages(); }
Status RcQueue::Connect(const Sender&, Deadline) { return NoMessages(); }
Status RcQueue::PushRecv(std::span<const Receive>, size_t*) { return NoMessages(); }

Status RcQueue::Connect(NodeId peer, Deadline deadline) {
  if (pool_ == nullptr) return {StatusCode::kBadState, "the pool of this queue was destroyed"};
  if (peer == kNoNode) return {StatusCode::kInvalidArgument, "no peer named"};
  if (outstanding() != 0)
    return {StatusCode::kQueueFull, std::to_string(outstanding()) + " work requests are outstanding"};
  Detach();
  auto link = pool_->LinkTo(peer, state_.depth(), deadline);
  if (!link.ok()) return link.status();
  link_ = *std::move(link);
  return {};
}

void RcQueue::Detach() {
  if (link_ == nullptr) return;
  (void)SettleStaged(WcStatus::kFlushed);
  if (link_->shared()) {
    // Its buffers belong to the NIC until it has completed them; other queues keep the connection.
    Clock& clock = pool_->node().clock();
    const Deadline stuck = Deadline::After(clock, kStuckNs);
    for (uint32_t spins = 0; !nothing_posted(); ++spins) {
      const auto lock = Lock();
      if (spins == kMaxSpins || (spins % 64 == 63 && stuck.Passed(clock))) {
        (void)link_->Poll();
        (void)link_->End();
        break;
      }
      if (link_->Poll() == 0) clock.Relax(spins);
    }
  }
  {
    const auto lock = Lock();
    link_->Disown(this);
  }
  pool_->Release(std::move(link_));  // "verbs": destroys the QP, after which nothing of it executes
  link_ = nullptr;
  while (head_ < tail_) {
    Retire(entry(head_), IsSettled(head_) ? entry(head_).settled : WcStatus::kFlushed, 0);
    ++head_;
  }
  posted_ = head_;
}

// ---- requests

StatusCode RcQueue::Check(std::span<const WorkRequest> wrs, size_t* bad_index) {
  // A connection that others share is broken by nobody's mistake; on one's own the NIC reports it by completion.
  if (link_->shared()) {
    bool has_inline = false;
    vqp::LikeRequest like;
    return vqp::CheckRequests(wrs, pool_->limits(), pool_->regions(), link_->regions(), &like, bad_index, &has_inline);
  }
  for (size_t i = 0; i < wrs.size(); ++i) {
    const StatusCode code = CheckForm(wrs[i], pool_->limits());
    if (code == StatusCode::kOk) continue;
    *bad_index = i;
    return code;
  }
  return StatusCode::kOk;
}

void RcQueue::Fill(uint64_t position, const WorkRequest& wr) {
  const uint64_t slot = position & mask_;
  rnic::SendWr& out = wrs_[slot];
  Sge* const sges = &sges_[slot * kMaxSge];
  static_cast<WorkRequest&>(out) = wr;
  out.sg_list = sges;
  out.ah = nullptr;
  out.remote_qpn = out.qkey = 0;
  out.dc_key = 0;
  std::copy_n(wr.sg_list, wr.num_sge, sges);
  entries_[slot] = {wr.wr_id, wr.opcode, (wr.flags & kSignaled) != 0, WcStatus::kSuccess};
  if ((wr.flags & kInline) == 0) return;
  // The caller may reuse the payload at once, the doorbell comes later.
  if (inline_payloads_ == nullptr)
    inline_payloads_ = std::make_unique_for_overwrite<std::byte[]>((mask_ + 1) * kMaxInlineBytes);
  std::byte* const payload = &inline_payloads_[slot * kMaxInlineBytes];
  uint32_t length = 0;
  for (uint32_t i = 0; i < wr.num_sge; ++i) {
    std::memcpy(payload + length, reinterpret_cast<const void*>(wr.sg_list[i].addr), wr.sg_list[i].length);
    length += wr.sg_list[i].length;
  }
  sges[0] = {reinterpret_cast<uint64_t>(payload), length, 0};
  out.num_sge = 1;
}

Status RcQueue::Stage(std::span<const WorkRequest> wrs, size_t* bad_index) {
  size_t unused;
  if (bad_index == nullptr) bad_index = &unused;
  *bad_index = 0;
  if (link_ == nullptr) return StatusCode::kBadState;
  if (link_->shared()) pool_->regions().Sync();
  const auto lock = link_->Lock();
  if (link_->broken()) return StatusCode::kUnavailable;
  if (wrs.size() > state_.depth() - state_.used()) {
    *bad_index = state_.depth() - state_.used();
    return StatusCode::kQueueFull;
  }
  const StatusCode code = Check(wrs, bad_index);
  if (code != StatusCode::kOk) return code;
  for (const WorkRequest& wr : wrs) Fill(tail_++, wr);
  state_.Accept(static_cast<uint32_t>(wrs.size()), 0);
  return {};
}

Status RcQueue::Push(std::span<const WorkRequest> wrs, size_t* bad_index) {
  Status status = Stage(wrs, bad_index);
  if (status.ok()) pool_->Flush();
  return status;
}

size_t RcQueue::PostStaged() {
  const auto lock = Lock();
  if (link_ == nullptr) return 0;
  if (link_->broken()) return SettleStaged(WcStatus::kFlushed);
  while (posted_ < tail_) {
    if (IsSettled(posted_)) {
      ++posted_;
      continue;
    }
    uint64_t end = std::min({tail_, (posted_ | mask_) + 1, posted_ + link_->free()});
    for (uint64_t p = posted_; p < end; ++p)
      if (IsSettled(p)) end = p;
    if (end == posted_) break;  // full
    wrs_[(end - 1) & mask_].flags |= kSignaled;
    pool_->NotePosted(end - posted_);
    const size_t taken = link_->Post(this, {&wrs_[posted_ & mask_], end - posted_});
    posted_ += taken;
    if (posted_ == end) continue;
    entry(posted_).settled = WcStatus::kLocalQpError;
    return SettleStaged(WcStatus::kFlushed);
  }
  return 0;
}

size_t RcQueue::SettleStaged(WcStatus status) {
  for (uint64_t p = posted_; p < tail_; ++p)
    if (!IsSettled(p)) entry(p).settled = status;
  posted_ = tail_;
  return RetireSettled();
}

size_t RcQueue::DiscardStaged() {
  const auto lock = Lock();
  return SettleStaged(WcStatus::kDiscarded);
}

bool RcQueue::has_staged() const {
  const auto lock = Lock();
  return posted_ != tail_;
}

bool RcQueue::nothing_posted() const {
  const auto lock = Lock();
  return head_ == posted_;
}

// ---- completions

void RcQueue::Retire(const Entry& entry, WcStatus status, uint32_t qp_num) {
  if (status == WcStatus::kSuccess && !entry.user_signaled) {
    state_.CompleteSilently();
    return;
  }
  Completion completion;
  completion.wr_id = entry.user_wr_id;
  completion.status = status;
  completion.opcode = entry.opcode;
  completion.qp_num = qp_num;
  state_.Deliver(completion, false);
}

size_t RcQueue::RetireSettled() {
  const uint64_t begin = head_;
  for (; head_ < tail_ && IsSettled(head_); ++head_) Retire(entry(head_), entry(head_).settled, 0);
  posted_ = std::max(posted_, head_);
  return head_ - begin;
}

void RcQueue::OnDone(WcStatus status, uint32_t qp_num) {
  Retire(entry(head_), status, qp_num);
  ++head_;
  if (head_ != tail_) (void)RetireSettled();
}

size_t RcQueue::Pop(std::span<Completion> out) {
  const auto lock = Lock();
  return state_.Pop(out);
}

uint32_t RcQueue::outstanding() const {
  const auto lock = Lock();
  return state_.outstanding();
}

}  // namespace krcore::baseline
