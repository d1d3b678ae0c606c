#include "krcore/queue/queue_pool_impl.h"

#include <algorithm>
#include <string>
#include <utility>

#include "krcore/queue/one_sided_queue.h"

namespace krcore::queue {
namespace {

constexpr uint32_t kMaxInitiators = 64;
constexpr uint32_t kMaxRcQueues = 128;  // including the initiators: the limit of a physical wr_id's numbering
constexpr uint32_t kMaxQueueDepth = 1u << 16;
// How long a queue may show no completion before it counts as stuck: longer than any NIC's transport retries.
constexpr int64_t kStuckNs = 10'000'000'000;
// Bound of the same waits if a clock stands still.
constexpr uint32_t kMaxSpins = 1u << 22;
// Polls for the flushed WRs of a broken queue, which the local NIC completes alone.
constexpr uint32_t kMaxCollectSpins = 1u << 16;

}  // namespace

Result<std::unique_ptr<QueuePool>> QueuePoolImpl::Create(const PoolContext& context, const QueuePoolOptions& options) {
  const rnic::Caps& caps = context.device->caps();
  if (!caps.dc) return Status(StatusCode::kUnsupported, "provider " + caps.provider + " has no DC transport");
  if (options.dc_initiators == 0 || options.dc_initiators > kMaxInitiators)
    return Status(StatusCode::kInvalidArgument, "dc_initiators must be 1 to " + std::to_string(kMaxInitiators));
  if (options.sq_depth == 0 || options.sq_depth > caps.max_qp_wr)
    return Status(StatusCode::kInvalidArgument, "sq_depth must be 1 to " + std::to_string(caps.max_qp_wr));
  const uint64_t dc_depth = uint64_t{options.dc_initiators} * options.sq_depth;
  if (dc_depth > caps.max_cqe)
    return Status(StatusCode::kInvalidArgument,
                  "dc_initiators x sq_depth exceeds the device's CQ depth of " + std::to_string(caps.max_cqe));

  std::unique_ptr<QueuePoolImpl> pool(new QueuePoolImpl(context));
  pool->limits_ = {std::min(kMaxSge, caps.max_sge),
                   static_cast<uint32_t>(std::min<size_t>(caps.max_inline_bytes, kInlineArenaBytes)),
                   caps.max_message_bytes};
  pool->copy_bytes_ = options.copy_bytes;
  pool->executes_at_post_ = caps.executes_at_post;
  const auto rc_queues = static_cast<uint32_t>(
      std::min<uint64_t>(std::min(options.max_rc_queues, kMaxRcQueues), (caps.max_cqe - dc_depth) / options.sq_depth));
  // All nodes' first pools share an initiator, and so on, as threads of one processor would in the kernel's pool.
  const uint32_t first = context.pools->fetch_add(1, std::memory_order_relaxed) * options.dc_initiators;
  KRCORE_RETURN_IF_ERROR(pool->physical_.Open(*context.device, options.dc_initiators, rc_queues, options.sq_depth,
                                              first, context.host_qps));
  if (rc_queues != 0) {
    pool->rc_ = std::make_unique<RcQueues>(*pool, rc_queues, options.rc_hot_wrs, options.rc_patience_ns);
    pool->check_ns_ = pool->rc_->due_ns();
  }
  return std::unique_ptr<QueuePool>(std::move(pool));
}

QueuePoolImpl::~QueuePoolImpl() {
  // A queue may destroy others of its own there, so this does not go through the list itself.
  const std::vector<OneSidedQueue*> queues = virtual_queues_;
  for (OneSidedQueue* queue : queues) {
    if (std::find(virtual_queues_.begin(), virtual_queues_.end(), queue) != virtual_queues_.end()) queue->PoolWillGo();
  }
  if (rc_) rc_->Close();
  for (OneSidedQueue* queue : virtual_queues_) queue->ForgetPool();
  rc_.reset();  // QPs of it may complete into the CQ
}

Result<std::unique_ptr<VirtualQueue>> QueuePoolImpl::CreateQueue(uint32_t depth) {
  KRCORE_RETURN_IF_ERROR(NotForked());
  if (depth == 0 || depth > kMaxQueueDepth)
    return Status(StatusCode::kInvalidArgument, "queue depth must be 1 to " + std::to_string(kMaxQueueDepth));
  return std::unique_ptr<VirtualQueue>(context_.maker->MakeQueue(*this, depth));
}

size_t QueuePoolImpl::memory_bytes() const {
  size_t bytes = sizeof(*this) + regions_.memory_bytes() + physical_.memory_bytes() +
                 (own_memory_ ? own_memory_->bytes().size() : 0);
  if (rc_) bytes += rc_->memory_bytes();
  for (const OneSidedQueue* queue : virtual_queues_) bytes += queue->memory_bytes();
  return bytes;
}

bool QueuePoolImpl::NothingPosted() const { return forked() || physical_.nothing_posted(); }

void QueuePoolImpl::DiscardStaged() {
  if (forked()) return;
  completed_by_flush_ +=
      physical_.AtStaged([](PhysicalQueue& queue) { return queue.DiscardStaged(WcStatus::kDiscarded); });
}

size_t QueuePoolImpl::CheckAndFlush() {
  if (physical_.any_staged()) CheckLeases();
  return Doorbells();
}

size_t QueuePoolImpl::Doorbells() {
  // After CheckLeases, which may take a while: the gate's reading of the time must be the last before the doorbell.
  size_t completed = 0;
  if (any_blocked()) [[unlikely]]
    completed += rc_->Advance();
  if (physical_.StagedBehindOthersFault()) [[unlikely]] {
    completed += StopWhatOthersBroke();
    // Staged WRs are posted after the repair, when leases have been checked again.
    if (physical_.any_broken()) return completed;
  }
  if (gate_ != nullptr && GateIsShut()) [[unlikely]]
    return completed;
  return completed + physical_.AtStaged([](PhysicalQueue& queue) { return queue.Flush(); });
}

size_t QueuePoolImpl::StopWhatOthersBroke() {
  const size_t completed = physical_.Collect();
  // Otherwise a request of ours broke it, as the completions said.
  if (!physical_.StopWhatOthersBroke()) return completed;
  ++physical_.stats().broken_by_others;
  QuarantineTheDead();
  return completed;
}

void QueuePoolImpl::QuarantineTheDead() {
  std::vector<std::pair<rnic::DeviceAddress, bool>> asked;  // one entry per peer, not per queue
  const Deadline deadline = Deadline::After(context_.node->clock(), rnic::kPollingAskNs);
  for (OneSidedQueue* queue : virtual_queues_) {
    QueueState& state = queue->state();
    if (state.standing != QueueStanding::kReady) continue;
    const rnic::DeviceAddress& address = state.peer->target.address;
    auto known = std::find_if(asked.begin(), asked.end(), [&](const auto& peer) {
      return peer.first.node == address.node && peer.first.incarnation == address.incarnation;
    });
    if (known == asked.end())
      known =
          asked.insert(asked.end(), {address, context_.device->QueryPeer(address, deadline) == rnic::PeerState::kDead});
    if (!known->second) continue;
    context_.peers->Invalidate(state.peer);
    state.standing = QueueStanding::kBroken;
    physical_.RefuseStaged(&state, {}, WcStatus::kRetryExceeded);
  }
}

void QueuePoolImpl::Flush() {
  if (forked()) return;
  completed_by_flush_ += FlushAll();
}

std::shared_ptr<const peers::Peer> QueuePoolImpl::RenewLease(const std::shared_ptr<const peers::Peer>& peer,
                                                             int64_t now_ns) {
  auto renewed = context_.peers->Renew(peer, now_ns);
  physical_.stats().lease_renewals += renewed.looked_up;
  physical_.stats().lease_extensions += renewed.extended;
  return std::move(renewed.peer);
}

void QueuePoolImpl::DoWhatIsDue(int64_t now_ns) {
  if (now_ns >= lease_check_ns_) RenewLeases(now_ns);
  if (rc_ != nullptr) rc_->Tick(now_ns);
  check_ns_ = std::min(lease_check_ns_, rc_ != nullptr ? rc_->due_ns() : INT64_MAX);
}

void QueuePoolImpl::RenewLeases(int64_t now_ns) {
  lease_check_ns_ = INT64_MAX;
  for (OneSidedQueue* queue : virtual_queues_) {
    QueueState& state = queue->state();
    if (state.standing != QueueStanding::kReady) continue;
    if (state.peer->renew_ns() <= now_ns) {
      auto renewed = RenewLease(state.peer, now_ns);
      if (renewed == nullptr) {
        state.standing = QueueStanding::kBroken;
        physical_.RefuseStaged(&state, {}, WcStatus::kRetryExceeded);
        continue;
      }
      if (renewed != state.peer) {
        state.former_peers.push_back(std::exchange(state.peer, std::move(renewed)));
        physical_.RefuseStaged(&state, state.peer->region_span(), WcStatus::kRemoteAccessError);
      }
    }
    NoteLease(*state.peer);
  }
}

[[gnu::always_inline]] inline size_t QueuePoolImpl::PollHere() {
  size_t completed = FlushAll() + physical_.Collect();
  if (physical_.any_broken()) [[unlikely]]
    completed += Repair() + FlushAll();
  if (!work_.empty() && !working_) [[unlikely]]
    completed += RunWork();
  return completed;
}

size_t QueuePoolImpl::PollOnce() { return PollHere(); }

size_t QueuePoolImpl::Poll() {
  if (forked()) [[unlikely]]
    return 0;
  const size_t completed = std::exchange(completed_by_flush_, 0) + PollHere();
  if (rc_ != nullptr && rc_->has_work()) [[unlikely]]
    rc_->Work(completed == 0 && physical_.nothing_under_way());
  return completed;
}

size_t QueuePoolImpl::RunWork() {
  working_ = true;
  size_t found = 0;
  for (Pollable* work : work_) found += work->Work();
  working_ = false;
  return found + FlushAll();
}

void QueuePoolImpl::RemoveWork(Pollable* work) { std::erase(work_, work); }

void QueuePoolImpl::PollWaiting(uint32_t spins) {
  const size_t completed = PollOnce();
  completed_by_flush_ += completed;
  if (completed == 0) context_.node->clock().Relax(spins);
}

Status QueuePoolImpl::NeedOwnMemory() {
  if (own_memory_ != nullptr) return {};
  const size_t each = physical_.own_memory_bytes();
  auto memory = context_.node->CreateRegion({.length = kScratchBytes + physical_.dc().size() * each});
  if (!memory.ok()) return memory.status();
  if (rc_ != nullptr) KRCORE_RETURN_IF_ERROR(rc_->NeedOwnMemory());
  own_memory_ = *std::move(memory);
  std::byte* next = own_memory_->bytes().data() + kScratchBytes;
  for (PhysicalQueue* queue : physical_.dc()) {
    queue->UseOwnMemory(next, own_memory_->lkey());
    next += each;
  }
  return {};
}

Status QueuePoolImpl::NeedPublished(Deadline deadline) {
  if (published_) return {};
  KRCORE_RETURN_IF_ERROR(context_.node->Publish(deadline));
  published_ = true;
  return {};
}

void QueuePoolImpl::MarkBroken(const PhysicalQueue& queue) {
  QueueState* const culprit = queue.culprit();
  if (culprit == nullptr) return;
  culprit->standing = QueueStanding::kBroken;
  if (queue.culprit_status() != WcStatus::kRetryExceeded) return;
  // The peer itself is gone. Its other queues would break the connection one by one, so they are all stopped now.
  context_.peers->Invalidate(culprit->peer);
  const rnic::DeviceAddress& gone = culprit->peer->target.address;
  for (OneSidedQueue* other : virtual_queues_) {
    QueueState& state = other->state();
    if (state.standing == QueueStanding::kReady && state.peer->target.address.node == gone.node &&
        state.peer->target.address.incarnation == gone.incarnation)
      state.standing = QueueStanding::kBroken;
  }
}

size_t QueuePoolImpl::Repair() {
  size_t completed = 0;
  // Nothing is posted meanwhile, so each queue breaks at most once and two passes see all of them.
  for (int pass = 0; pass < 2; ++pass) {
    for (PhysicalQueue* queue : physical_.live()) {
      if (!queue->broken()) continue;
      if (queue->BeginRecovery()) {
        for (uint32_t spins = 0; !queue->all_collected() && spins < kMaxCollectSpins; ++spins) {
          if (physical_.Dispatch(&completed) == 0 && !queue->all_collected()) context_.node->clock().Relax(spins);
        }
        if (queue->culprit() == nullptr && queue->host_shared()) QuarantineTheDead();
        MarkBroken(*queue);
      }
      if (!queue->MayRecover()) continue;  // the next poll looks again
      completed += queue->Recover();
      RefuseWithdrawn();
      if (rc_ != nullptr) rc_->Recovered(*queue, physical_.stats().broken_queues);
    }
  }
  physical_.LookForBroken();
  return completed;
}

void QueuePoolImpl::RefuseWithdrawn() {
  for (OneSidedQueue* queue : virtual_queues_) {
    QueueState& state = queue->state();
    if (state.standing != QueueStanding::kReady || state.former_peers.empty()) continue;
    physical_.RefuseStaged(&state, state.peer->region_span(), WcStatus::kRemoteAccessError);
  }
}

void QueuePoolImpl::MakeRoom(PhysicalQueue& queue, size_t inline_bytes) {
  if (MakeRoomForAll(queue, 1, inline_bytes)) return;
  DiscardStaged();  // too many at once, or too many inline bytes, to wait
  (void)MakeRoomForAll(queue, 1, inline_bytes);
}

bool QueuePoolImpl::MakeRoomForAll(PhysicalQueue& queue, uint32_t count, size_t inline_bytes) {
  const auto has_room = [&] { return queue.free() >= count && queue.inline_room() >= inline_bytes; };
  if (has_room()) return true;
  Flush();
  if (has_room()) return true;
  ++physical_.stats().sq_full_polls;
  Clock& clock = context_.node->clock();
  uint32_t idle_polls = 0;
  int64_t idle_since_ns = 0;
  while (!has_room()) {
    const size_t completed = PollOnce();
    completed_by_flush_ += completed;
    if (completed != 0) {
      idle_polls = 0;
      continue;
    }
    // Only what the gate holds back is left: no room will come.
    if (gate_ != nullptr && queue.nothing_posted() && GateIsShut()) return false;
    if (idle_polls == 0) idle_since_ns = clock.NowNs();
    if (++idle_polls >= kMaxSpins || clock.NowNs() - idle_since_ns > kStuckNs) {
      physical_.Break(*(rc_ != nullptr ? rc_->HoldsUp(queue) : &queue));
      idle_polls = 0;
    }
    clock.Relax(idle_polls);
  }
  return true;
}

void QueuePoolImpl::Detach(OneSidedQueue* queue, QueueState* state) {
  if (state->outstanding() != 0 || physical_.HasPosted(state)) {
    physical_.DropStaged(state);
    Clock& clock = context_.node->clock();
    const Deadline stuck = Deadline::After(clock, kStuckNs);
    for (uint32_t spins = 0; physical_.HasPosted(state) && spins < kMaxSpins && !stuck.Passed(clock); ++spins) {
      const size_t completed = PollOnce();
      completed_by_flush_ += completed;
      if (completed == 0) clock.Relax(spins);
    }
    if (physical_.HasPosted(state)) {
      for (PhysicalQueue* physical : physical_.live()) {
        if (physical->HasPosted(state)) physical->Break();
      }
      state->standing = QueueStanding::kUnconnected;
      completed_by_flush_ += Repair();
      for (uint32_t spins = 0; physical_.HasPosted(state); ++spins) {  // until none of it executes any more
        clock.Relax(spins);
        completed_by_flush_ += PollOnce();
      }
    }
    physical_.Disown(state);
  }
  std::erase(virtual_queues_, queue);
}

}  // namespace krcore::queue
