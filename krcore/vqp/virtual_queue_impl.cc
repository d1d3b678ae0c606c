#include "krcore/vqp/virtual_queue_impl.h"

#include <string>
#include <utility>

#include "krcore/pool/queue_pool_impl.h"
#include "krcore/vqp/request_check.h"

namespace krcore::vqp {

using pool::QueueStanding;

VirtualQueueImpl::~VirtualQueueImpl() {
  if (pool_ != nullptr) pool_->Detach(this, &state_, physical_);
}

void VirtualQueueImpl::ForgetPool() {
  pool_ = nullptr;
  physical_ = nullptr;
  state_.standing = QueueStanding::kUnconnected;
}

Status VirtualQueueImpl::Connect(NodeId peer, Deadline deadline) {
  if (pool_ == nullptr) return {StatusCode::kBadState, "the pool of this queue was destroyed"};
  if (peer == kNoNode) return {StatusCode::kInvalidArgument, "no peer named"};
  if (state_.outstanding() != 0)
    return {StatusCode::kQueueFull, std::to_string(state_.outstanding()) + " work requests are outstanding"};

  const bool again = state_.peer != nullptr && state_.peer->target.address.node == peer;
  std::shared_ptr<const dct::Peer> metadata = again ? nullptr : pool_->peers().Cached(peer);
  if (metadata != nullptr) {
    ++pool_->mutable_stats().metadata_hits;
  } else {
    ++pool_->mutable_stats().metadata_lookups;
    auto found = pool_->peers().Refresh(peer, deadline);
    if (!found.ok()) return found.status();
    metadata = *std::move(found);
  }
  state_.peer = std::move(metadata);
  state_.standing = QueueStanding::kReady;
  physical_ = pool_->QueueFor(peer);
  return {};
}

StatusCode VirtualQueueImpl::StandingError() const {
  return state_.standing == QueueStanding::kBroken ? StatusCode::kUnavailable : StatusCode::kBadState;
}

Status VirtualQueueImpl::Stage(std::span<const WorkRequest> wrs, size_t* bad_index) {
  size_t unused;
  if (bad_index == nullptr) bad_index = &unused;
  *bad_index = 0;
  if (state_.standing != QueueStanding::kReady) [[unlikely]]
    return StandingError();
  const auto count = wrs.size();
  if (count > state_.depth() - state_.used()) [[unlikely]] {
    *bad_index = state_.depth() - state_.used();
    return StatusCode::kQueueFull;
  }
  mr::RegionView& local = pool_->regions();
  local.Sync();
  if (physical_->free() < count) [[unlikely]]
    return StageSlowly(wrs, bad_index);
  // Checked and written to the ring in one pass; what a later refusal leaves there was never accepted.
  const dct::Peer& peer = *state_.peer;
  const std::span<const RemoteRegion> remote = peer.region_span();
  physical_->Prepare();
  for (uint32_t i = 0; i < count; ++i) {
    uint64_t bytes;
    const StatusCode code = CheckRequest(wrs[i], pool_->limits(), local, remote, &bytes);
    if (code != StatusCode::kOk) [[unlikely]] {
      *bad_index = i;
      return code;
    }
    if (wrs[i].flags & kInline) return StageSlowly(wrs, bad_index);
    physical_->Fill(i, wrs[i], &state_, peer);
  }
  physical_->Commit(static_cast<uint32_t>(count), peer);
  state_.Accept(static_cast<uint32_t>(count));
  return {};
}

// One by one, polling when the physical queue or its arena for inline payloads is full.
StatusCode VirtualQueueImpl::StageSlowly(std::span<const WorkRequest> wrs, size_t* bad_index) {
  uint64_t bytes;
  for (size_t i = 0; i < wrs.size(); ++i) {
    const StatusCode code = CheckRequest(wrs[i], pool_->limits(), pool_->regions(), regions(), &bytes);
    if (code == StatusCode::kOk) continue;
    *bad_index = i;
    return code;
  }
  for (size_t i = 0; i < wrs.size(); ++i) {
    size_t inline_bytes = 0;
    if (wrs[i].flags & kInline) {
      for (uint32_t s = 0; s < wrs[i].num_sge; ++s) inline_bytes += wrs[i].sg_list[s].length;
    }
    pool_->MakeRoom(*physical_, inline_bytes);
    // Polling may have found the peer dead. Before the first was accepted nothing has been; later the rest is accepted
    // and flushed, as on a QP in ERR.
    if (state_.standing != QueueStanding::kReady) {
      if (i == 0) return StandingError();
      state_.Accept(1);
      physical_->CommitSettled(wrs[i], &state_, WcStatus::kFlushed);
      continue;
    }
    physical_->Prepare();
    physical_->Fill(0, wrs[i], &state_, *state_.peer);
    physical_->Commit(1, *state_.peer);
    state_.Accept(1);
  }
  return StatusCode::kOk;
}

Status VirtualQueueImpl::Push(std::span<const WorkRequest> wrs, size_t* bad_index) {
  Status status = Stage(wrs, bad_index);
  if (status.ok()) pool_->Flush();
  return status;
}

}  // namespace krcore::vqp
