#include "krcore/queue/one_sided_queue.h"

#include <string>
#include <utility>

#include "krcore/queue/queue_pool_impl.h"
#include "krcore/queue/request_check.h"

namespace krcore::queue {

OneSidedQueue::OneSidedQueue(QueuePoolImpl& pool, uint32_t depth) : pool_(&pool), state_(depth) { pool.Attach(this); }

OneSidedQueue::~OneSidedQueue() {
  if (pool_ != nullptr) pool_->Detach(this, &state_);
}

void OneSidedQueue::ForgetPool() {
  pool_ = nullptr;
  physical_ = nullptr;
  state_.standing = QueueStanding::kUnconnected;
}

Status OneSidedQueue::MayConnect() const {
  KRCORE_RETURN_IF_ERROR(NotForked());
  if (pool_ == nullptr) return {StatusCode::kBadState, "the pool of this queue was destroyed"};
  if (state_.outstanding() != 0)
    return {StatusCode::kQueueFull, std::to_string(state_.outstanding()) + " work requests are outstanding"};
  return {};
}

Status OneSidedQueue::FindPeer(NodeId peer, Deadline deadline, std::shared_ptr<const peers::Peer>* metadata) {
  KRCORE_RETURN_IF_ERROR(MayConnect());
  if (peer == kNoNode) return {StatusCode::kInvalidArgument, "no peer named"};
  const bool again = state_.peer != nullptr && state_.peer->target.address.node == peer;
  *metadata = again ? nullptr : pool_->peers().Cached(peer);
  if (*metadata != nullptr) {
    const int64_t now_ns = pool_->clock().CoarseNowNs();
    if ((*metadata)->lease_until_ns() <= now_ns) [[unlikely]]
      *metadata = pool_->RenewLease(*metadata, now_ns);
  }
  if (*metadata != nullptr) {
    ++pool_->mutable_stats().metadata_hits;
    return {};
  }
  ++pool_->mutable_stats().metadata_lookups;
  auto found = pool_->peers().Refresh(peer, deadline);
  if (!found.ok()) return found.status();
  *metadata = *std::move(found);
  return {};
}

void OneSidedQueue::UsePeer(std::shared_ptr<const peers::Peer> peer) {
  physical_ = pool_->QueueFor(peer->target);
  state_.former_peers.clear();
  if (state_.peer == nullptr || state_.peer->target.dc_key != peer->target.dc_key)
    state_.stay_on_dc_until_ns = 0;  // the refusal was another peer's
  like_peer_ = nullptr;
  state_.peer = std::move(peer);
  pool_->NoteLease(*state_.peer);
  state_.standing = QueueStanding::kReady;
}

Status OneSidedQueue::Connect(NodeId peer, Deadline deadline) {
  std::shared_ptr<const peers::Peer> metadata;
  KRCORE_RETURN_IF_ERROR(FindPeer(peer, deadline, &metadata));
  UsePeer(std::move(metadata));
  return {};
}

StatusCode OneSidedQueue::StandingError() const {
  return state_.standing == QueueStanding::kBroken ? StatusCode::kUnavailable : StatusCode::kBadState;
}

inline bool OneSidedQueue::ExecuteAtOnce(std::span<const WorkRequest> wrs) {
  if (state_.standing != QueueStanding::kReady || wrs.empty() || !state_.MayDeliverAtOnce(wrs.size()) ||
      !pool_->MayExecute(*physical_)) [[unlikely]]
    return false;
  peers::RegionView& local = pool_->regions();
  local.Sync();
  const peers::Peer& peer = *state_.peer;
  const LikeRequest& like = *Like(local, peer);
  // The gate's reading of the time must be the last before the post.
  if (like.knows_nothing() || !pool_->MayPost()) [[unlikely]]
    return false;
  if (!physical_->Execute(wrs, &state_, peer, like)) [[unlikely]]
    return false;
  pool_->NoteExecuted(wrs.size());
  return true;
}

Status OneSidedQueue::Stage(std::span<const WorkRequest> wrs, size_t* bad_index) {
  if (forked()) [[unlikely]]
    return OpenedBeforeFork();
  return Accept(wrs, bad_index);
}

StatusCode OneSidedQueue::Accept(std::span<const WorkRequest> wrs, size_t* bad_index) {
  size_t unused;
  if (bad_index == nullptr) bad_index = &unused;
  *bad_index = 0;
  if (state_.standing != QueueStanding::kReady) return StandingError();
  if (wrs.size() > state_.depth() - state_.used()) {
    *bad_index = state_.depth() - state_.used();
    return StatusCode::kQueueFull;
  }
  const auto count = static_cast<uint32_t>(wrs.size());
  peers::RegionView& local = pool_->regions();
  local.Sync();
  const peers::Peer& peer = *state_.peer;
  bool has_inline = false;
  const StatusCode code =
      CheckRequests(wrs, pool_->limits(), local, peer.region_span(), Like(local, peer), bad_index, &has_inline);
  if (code != StatusCode::kOk) return code == StatusCode::kUnsupported ? StageMixed(wrs, bad_index) : code;
  physical_->Prepare();
  if (has_inline || physical_->free() < count) return StageSlowly(wrs, bad_index);
  const uint32_t expected = physical_->Fill(wrs, &state_, peer);
  physical_->Commit(count, peer);
  state_.Accept(count, expected);
  return StatusCode::kOk;
}

// Stages checked WRs one by one, polling when the physical queue or its arena for inline payloads is full.
StatusCode OneSidedQueue::StageSlowly(std::span<const WorkRequest> wrs, size_t* bad_index) {
  // Makes room for all at once where possible, so that a shut gate refuses all or none.
  const auto at_once = static_cast<uint32_t>(wrs.size()) <= physical_->depth() ? static_cast<uint32_t>(wrs.size()) : 1;
  if (!pool_->MakeRoomForAll(*physical_, at_once, 0)) {
    *bad_index = 0;
    return StatusCode::kQueueFull;
  }
  for (size_t i = 0; i < wrs.size(); ++i) {
    const StatusCode code = StageOne(wrs[i], i == 0);
    if (code != StatusCode::kOk) return code;
  }
  return StatusCode::kOk;
}

StatusCode OneSidedQueue::StageOne(const WorkRequest& wr, bool first) {
  size_t inline_bytes = 0;
  if (wr.flags & kInline) {
    for (uint32_t s = 0; s < wr.num_sge; ++s) inline_bytes += wr.sg_list[s].length;
  }
  pool_->MakeRoom(*physical_, inline_bytes);
  // Polling may have found the peer dead. If it did before the first request, nothing has been accepted; later the rest
  // is accepted and flushed, as on a QP in ERR.
  if (state_.standing != QueueStanding::kReady) {
    if (first) return StandingError();
    state_.Accept(1, wr.flags & kSignaled);
    physical_->CommitSettled(wr, &state_, WcStatus::kFlushed);
    return StatusCode::kOk;
  }
  physical_->Prepare();
  const uint32_t expected = physical_->Fill({&wr, 1}, &state_, *state_.peer);
  physical_->Commit(1, *state_.peer);
  state_.Accept(1, expected);
  return StatusCode::kOk;
}

Status OneSidedQueue::Push(std::span<const WorkRequest> wrs, size_t* bad_index) {
  if (forked()) [[unlikely]]
    return OpenedBeforeFork();
  if (pool_ != nullptr) {
    pool_->CheckLeases();  // first, so that a refusal happens here
    if (ExecuteAtOnce(wrs)) [[likely]]
      return {};
  }
  const StatusCode code = Accept(wrs, bad_index);
  if (code != StatusCode::kOk) return code;
  pool_->FlushChecked();
  return {};
}

}  // namespace krcore::queue
