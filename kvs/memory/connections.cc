#include "kvs/memory/connections.h"

#include <algorithm>
#include <span>
#include <string>

#include "kvs/memory/remote_pool.h"
#include "kvs/memory/views.h"

namespace kvs {

using krcore::Completion;
using krcore::WcStatus;

void Batch::AddLater(krcore::NodeId node, Verb verb) {
  if (connections_->mirrored()) {
    --size_;  // Add has counted it
    return AddMirrored(node, verb, Word::kAnyones, nullptr);
  }
  if (Stale()) return Discarded(node, 1);
  if (!connections_->Reach(node)) return Fail(node, Outcome::kUnavailable);
  at_once_ = AtOnce::kNo;
  late_.push_back({verb, node, connections_->peers_[node & 0xff].life});
}

void Batch::AddWaiting() {
  size_t done = 0;
  for (; done < late_.size(); ++done) {
    const Late& late = late_[done];
    Connections::Peer& peer = connections_->peers_[late.node & 0xff];
    if (Stale()) {
      Discarded(late.node, 1);
    } else if (!peer.connected || late.life != peer.life) {
      // What is meant for the earlier memory node does not go to its successor.
      if (!peer.connected) connections_->NoteFailure(peer);
      Fail(late.node, Outcome::kUnavailable);
    } else if (peer.outbox->HasRoom(1) || (connections_->HandOn(peer) && peer.outbox->HasRoom(1))) {
      Connections::Add<1>(*this, peer, {late.verb});
    } else {
      break;
    }
  }
  late_.erase(late_.begin(), late_.begin() + static_cast<std::ptrdiff_t>(done));
  if (late_.empty()) return;
  ++pending_;
  connections_->stalled_.push_back(this);
}

Connections::~Connections() {
  if (mirrored()) views_->Detach(*this);
  for (Peer& peer : peers_) peer.queue.reset();
}

void Connections::Fence() {
  ++registration_;
  DiscardUnposted();
}

void Connections::DiscardUnposted() {
  pool_->DiscardStaged();
  for (uint32_t i = 0; i < connected_count_; ++i) Discard(peers_[connected_[i]]);
}

size_t Connections::memory_bytes() const {
  size_t bytes = pool_->memory_bytes();
  for (uint32_t i = 0; i < connected_count_; ++i) bytes += peers_[connected_[i]].outbox->memory_bytes();
  return bytes;
}

void Connections::NoteFailure(Peer& peer) {
  peer.connected = false;
  last_failed_ = NodeOf(peer);
}

bool Connections::HandOn(Peer& peer) {
  size_t bad_index = 0;
  while (!peer.outbox->empty()) {
    const Status staged = peer.queue->Push(peer.outbox->Verbs(), &bad_index);
    if (staged.ok()) [[likely]] {
      peer.outbox->Accepted();
      return true;
    }
    peer.outbox->Refused();
    if (staged.code() == StatusCode::kQueueFull) return false;
    // If one verb is not allowed, its part is dropped. If none is, all parts are dropped, one after the other.
    NoteFailure(peer);
    uint32_t verbs = 0;
    Batch& batch = *peer.outbox->Remove(static_cast<uint32_t>(bad_index), &verbs);
    batch.Fail(NodeOf(peer), Outcome::kUnavailable);
    EndPart(RunQueue::OfThisThread(), batch);
  }
  return true;
}

void Connections::Discard(Peer& peer) {
  while (!peer.outbox->empty()) {
    uint32_t verbs = 0;
    Batch& batch = *peer.outbox->Remove(0, &verbs);
    batch.Discarded(NodeOf(peer), verbs);
    EndPart(RunQueue::OfThisThread(), batch);
  }
}

Status Connections::Open(uint32_t queue_depth, const krcore::QueuePoolOptions& options) {
  queue_depth_ = queue_depth;
  auto pool = node_.CreateQueuePool(options);
  if (!pool.ok()) return pool.status();
  pool_ = std::move(*pool);
  return Status::Ok();
}

Status Connections::MakeQueue(krcore::NodeId memory_node) {
  if (memory_node == krcore::kNoNode || memory_node > krcore::kMaxMemoryNode) {
    return {StatusCode::kCorrupt, "node " + std::to_string(memory_node) + " is not a memory node"};
  }
  Peer& peer = peers_[memory_node];
  if (peer.queue) return Status::Ok();
  auto queue = pool_->CreateQueue(queue_depth_);
  if (!queue.ok()) return queue.status();
  peer.queue = std::move(*queue);
  peer.outbox = std::make_unique<Outbox>(queue_depth_);
  connected_[connected_count_++] = static_cast<uint8_t>(memory_node);
  return Status::Ok();
}

Status Connections::Ensure(krcore::NodeId memory_node, krcore::Deadline deadline) {
  return mirrored() ? EnsurePool(memory_node, deadline) : EnsureNode(memory_node, deadline);
}

Status Connections::EnsureNode(krcore::NodeId memory_node, krcore::Deadline deadline) {
  KRCORE_RETURN_IF_ERROR(MakeQueue(memory_node));
  Peer& peer = peers_[memory_node];
  if (peer.connected) return Status::Ok();
  const int64_t now_ns = clock_.NowNs();
  if (now_ns < peer.retry_at_ns) return StatusCode::kUnavailable;
  // What was meant for the earlier memory node must not go to its successor.
  if (!HandOn(peer)) return StatusCode::kQueueFull;
  peer.retry_at_ns = now_ns + kReconnectIntervalNs;
  KRCORE_RETURN_IF_ERROR(peer.queue->Connect(memory_node, deadline));
  const krcore::RemoteRegion* const region = PoolRegionOf(*peer.queue);
  if (region == nullptr) {
    return {StatusCode::kUnavailable, "node " + std::to_string(memory_node) + " exposes no pool"};
  }
  // It may have been started again for another store. Only now: see docs/protocol.md, "Joining a store".
  const uint32_t incarnation = peer.queue->peer_incarnation();
  const bool another = peer.life > 0 && peer.incarnation != incarnation;
  if (another && !mirrored()) KRCORE_RETURN_IF_ERROR(identity_.Check(node_, deadline));
  peer.incarnation = incarnation;
  peer.base = region->addr;
  peer.pool_bytes = region->length;
  peer.rkey = region->rkey;
  peer.connected = true;
  ++peer.life;
  return Status::Ok();
}

bool Connections::ReachAgain(krcore::NodeId memory_node) {
  last_failed_ = memory_node;
  const int64_t begin_ns = clock_.NowNs();
  if (begin_ns < NextTryNs(memory_node)) return false;
  const int64_t deadline_ns = waiting_ != nullptr ? waiting_->NextDeadlineNs() : INT64_MAX;
  const int64_t patience_ns = std::min(reconnect_budget_ns_, deadline_ns - begin_ns);
  if (Ensure(memory_node, {begin_ns + std::max(patience_ns, kMinTryNs)}).ok()) return true;
  const int64_t end_ns = clock_.NowNs(), took_ns = end_ns - begin_ns;
  quiet_until_ns_ = end_ns + took_ns;
  // This node waits longer still, so that another one has its turn first.
  Peer& peer = peers_[memory_node & 0xff];
  peer.retry_at_ns = std::max(peer.retry_at_ns, end_ns + 2 * took_ns);
  return false;
}

void Connections::EndPart(RunQueue& run_queue, Batch& batch) {
  if (--batch.pending_ != 0) return;
  if (batch.in_rounds_) [[unlikely]] {
    batch.pending_ = 1;
    going_on_.push_back(&batch);
    return;
  }
  if (batch.sample_from_ns_ != 0 && batch.outcome_ == Outcome::kOk) [[unlikely]]
    round_trip_.Add(clock_.NowNs() - batch.sample_from_ns_);
  if (batch.waiter_ != nullptr) run_queue.Push(batch.waiter_);
}

void Connections::Failed(Peer& peer, const Completion& completion) {
  Batch& batch = *peer.outbox->BatchOf(completion.wr_id);
  if (completion.status == WcStatus::kDiscarded) {
    batch.Discarded(NodeOf(peer), 1);
    return;
  }
  batch.Fail(NodeOf(peer), Outcome::kUnavailable);
  if (peer.connected && completion.status == WcStatus::kRetryExceeded) {
    if (peer.silences < kSilencesToSuspect) ++peer.silences;
    peer.silent_ns = clock_.NowNs();
  }
  NoteFailure(peer);
}

void Connections::HandOnAll() {
  // If there are several queues, all their cache misses overlap before the first queue waits for its own.
  for (uint32_t i = 0; i < connected_count_ && connected_count_ > 1; ++i) {
    Peer& peer = peers_[connected_[i]];
    if (const auto rest = peer.outbox->TakeForHint(1); !rest.empty()) peer.queue->Prefetch(rest);
  }
  for (uint32_t i = 0; i < connected_count_; ++i) {
    if (Peer& peer = peers_[connected_[i]]; !peer.outbox->empty()) (void)HandOn(peer);
  }
}

size_t Connections::Poll() {
  if (mirrored()) {
    GoOnWithBatches();
    views_->Poll();
  }
  HandOnAll();
  pool_->Poll();
  const size_t popped = TakeCompletions();
  for (size_t stalled = stalled_.size(); stalled > 0; --stalled) {
    Batch& batch = *stalled_.front();
    stalled_.pop_front();
    batch.AddWaiting();
    EndPart(RunQueue::OfThisThread(), batch);  // the part that stood for its stall
  }
  return popped;
}

bool Connections::NothingUnderWay() const {
  const auto has_nothing = [this](uint8_t node) { return peers_[node].outbox->empty(); };
  return !any_stalled() && std::all_of(connected_.begin(), connected_.begin() + connected_count_, has_nothing) &&
         pool_->NothingPosted();
}

size_t Connections::TakeCompletions() {
  size_t popped = 0;
  RunQueue& run_queue = RunQueue::OfThisThread();
  const std::span<Completion> done(done_);
  for (uint32_t i = 0; i < connected_count_; ++i) {
    Peer& peer = peers_[connected_[i]];
    size_t count;
    do {
      count = peer.queue->Pop(done);
      popped += count;
      for (const Completion& completion : std::span(done).first(count)) {
        if (completion.status != WcStatus::kSuccess) [[unlikely]] {
          Failed(peer, completion);
        } else {
          peer.silences = 0;
        }
        if (!Outbox::IsMarker(completion.wr_id)) continue;
        peer.outbox->End(completion.wr_id, [&](Batch& batch) { EndPart(run_queue, batch); });
      }
    } while (count == done.size());
  }
  return popped;
}

}  // namespace kvs
