#include "krcore/baselines/rc_queue.h"

#include <algorithm>
#include <string>
#include <utility>

#include "krcore/baselines/rc_pool.h"
#include "krcore/queue/queue_state.h"

namespace krcore::baselines {
namespace {

constexpr int64_t kStuckNs = 10'000'000'000;
constexpr uint32_t kMaxSpins = 1u << 22;  // bound of the same wait if the clock stands still

}  // namespace

RcQueue::RcQueue(RcPool& pool, uint32_t depth)
    : pool_(&pool), ring_(depth), wrs_(ring_.slots()), sges_(ring_.slots() * kMaxSge) {}

RcQueue::~RcQueue() { ForgetPool(); }

void RcQueue::ForgetPool() {
  Detach();
  if (pool_ != nullptr) pool_->Remove(this);
  pool_ = nullptr;
}

size_t RcQueue::memory_bytes() const {
  const size_t each = sizeof(rnic::SendWr) + kMaxSge * sizeof(Sge) + (inline_payloads_ ? kMaxInlineBytes : 0);
  return sizeof(*this) + ring_.memory_bytes() + ring_.slots() * each;
}

Status RcQueue::Connect(NodeId peer, Deadline deadline) {
  KRCORE_RETURN_IF_ERROR(NotForked());
  if (pool_ == nullptr) return {StatusCode::kBadState, "the pool of this queue was destroyed"};
  if (peer == kNoNode) return {StatusCode::kInvalidArgument, "no peer named"};
  if (outstanding() != 0)
    return {StatusCode::kQueueFull, std::to_string(outstanding()) + " work requests are outstanding"};
  Detach();
  auto link = pool_->LinkTo(peer, ring_.depth(), deadline);
  if (!link.ok()) return link.status();
  link_ = *std::move(link);
  return {};
}

void RcQueue::Detach() {
  if (link_ == nullptr) return;
  (void)ring_.SettleStaged(WcStatus::kFlushed);
  if (link_->shared()) {
    // The NIC owns the buffers until it has completed the WRs; other queues keep the connection.
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
  ring_.CompleteAll(WcStatus::kFlushed);
}

// ---- requests

StatusCode RcQueue::Check(std::span<const WorkRequest> wrs, size_t* bad_index) {
  // On a shared connection a mistake must not break it for others; on a private one the NIC reports it by completion.
  if (link_->shared()) {
    bool has_inline = false;
    queue::LikeRequest like;
    return queue::CheckRequests(wrs, pool_->limits(), pool_->regions(), link_->regions(), &like, bad_index,
                                &has_inline);
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
  const size_t slot = ring_.slot(position);
  rnic::SendWr& out = wrs_[slot];
  Sge* const sges = &sges_[slot * kMaxSge];
  static_cast<WorkRequest&>(out) = wr;
  out.sg_list = sges;
  out.ah = nullptr;
  out.remote_qpn = out.qkey = 0;
  out.dc_key = 0;
  std::copy_n(wr.sg_list, wr.num_sge, sges);
  if ((wr.flags & kInline) == 0) return;
  if (inline_payloads_ == nullptr)
    inline_payloads_ = std::make_unique_for_overwrite<std::byte[]>(ring_.slots() * kMaxInlineBytes);
  std::byte* const payload = &inline_payloads_[slot * kMaxInlineBytes];
  sges[0] = {reinterpret_cast<uint64_t>(payload), queue::CopyInlinePayload(wr, payload), 0};
  out.num_sge = 1;
}

Status RcQueue::Stage(std::span<const WorkRequest> wrs, size_t* bad_index) {
  KRCORE_RETURN_IF_ERROR(NotForked());
  size_t unused;
  if (bad_index == nullptr) bad_index = &unused;
  *bad_index = 0;
  if (link_ == nullptr) return StatusCode::kBadState;
  if (link_->shared()) pool_->regions().Sync();
  const auto lock = link_->Lock();
  if (link_->broken()) return StatusCode::kUnavailable;
  if (!ring_.HasRoom(wrs.size(), bad_index)) return StatusCode::kQueueFull;
  const StatusCode code = Check(wrs, bad_index);
  if (code != StatusCode::kOk) return code;
  for (const WorkRequest& wr : wrs) Fill(ring_.Accept(wr), wr);
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
  if (link_->broken()) return ring_.SettleStaged(WcStatus::kFlushed);
  for (uint64_t end; (end = ring_.NextRun(link_->free())) != ring_.posted();) {
    const uint64_t begin = ring_.posted();
    wrs_[ring_.slot(end - 1)].flags |= kSignaled;
    pool_->NotePosted(end - begin);
    const size_t taken = link_->Post(this, {&wrs_[ring_.slot(begin)], end - begin});
    ring_.Posted(begin + taken);
    if (begin + taken == end) continue;
    ring_.Settle(begin + taken, WcStatus::kLocalQpError);
    return ring_.SettleStaged(WcStatus::kFlushed);
  }
  return 0;
}

size_t RcQueue::DiscardStaged() {
  const auto lock = Lock();
  return ring_.SettleStaged(WcStatus::kDiscarded);
}

bool RcQueue::has_staged() const {
  const auto lock = Lock();
  return ring_.has_staged();
}

bool RcQueue::nothing_posted() const {
  const auto lock = Lock();
  return ring_.nothing_posted();
}

// ---- completions

void RcQueue::OnDone(WcStatus status, uint32_t qp_num) {
  ring_.CompleteHead(status, qp_num);
  (void)ring_.CompleteSettled();
}

size_t RcQueue::Pop(std::span<Completion> out) {
  if (forked()) return 0;
  const auto lock = Lock();
  return ring_.Pop(out);
}

uint32_t RcQueue::outstanding() const {
  if (forked()) return 0;
  const auto lock = Lock();
  return ring_.outstanding();
}

}  // namespace krcore::baselines
