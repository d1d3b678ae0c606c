#include "kvs/src/connections.h"

#include <span>
#include <string>

#include "kvs/layout/pool.h"

namespace kvs {
namespace {

using krcore::Completion;
using krcore::Opcode;
using krcore::WcStatus;
using krcore::WorkRequest;

}  // namespace

void Batch::Write(const void* from, GlobalAddress to, uint32_t bytes, uint32_t lkey) {
  Add(Opcode::kWrite, to, from, bytes, lkey);
  ++connections_->stats_.writes;
}

void Batch::CompareSwap(GlobalAddress at, uint64_t expected, uint64_t desired, uint64_t* old) {
  WorkRequest& wr = Add(Opcode::kCompareSwap, at, old, sizeof(*old), lkey_);
  wr.compare_add = expected;
  wr.swap = desired;
  ++connections_->stats_.atomics;
}

void Batch::FetchAdd(GlobalAddress at, uint64_t addend, uint64_t* old) {
  Add(Opcode::kFetchAdd, at, old, sizeof(*old), lkey_).compare_add = addend;
  ++connections_->stats_.atomics;
}

void Batch::StageRest() {
  if (Stale()) [[unlikely]] {
    discarded_ += size_ - staged_;
    staged_ = size_;
    outcome_ = discarded_ == size_ ? Outcome::kFenced : Outcome::kUnavailable;
    return;
  }
  while (staged_ < size_) {
    uint32_t end = staged_ + 1;
    while (end < size_ && nodes_[end] == nodes_[staged_]) ++end;
    if (!StageUpTo(end)) return;
  }
}

bool Batch::Refused(uint32_t end, krcore::StatusCode code) {
  if (code == StatusCode::kQueueFull) {
    ++pending_;
    connections_->stalled_.push_back(this);
    return false;
  }
  connections_->peers_[nodes_[staged_]].connected = false;
  connections_->last_failed_ = nodes_[staged_];
  outcome_ = Outcome::kUnavailable;
  staged_ = end;
  return true;
}

Connections::~Connections() {
  for (Peer& peer : peers_) peer.queue.reset();
}

void Connections::Fence() {
  ++registration_;
  pool_->DiscardStaged();
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
  connected_[connected_count_++] = static_cast<uint8_t>(memory_node);
  return Status::Ok();
}

Status Connections::Ensure(krcore::NodeId memory_node, krcore::Deadline deadline) {
  KRCORE_RETURN_IF_ERROR(MakeQueue(memory_node));
  Peer& peer = peers_[memory_node];
  if (peer.connected) return Status::Ok();
  const int64_t now_ns = clock_.NowNs();
  if (now_ns < peer.retry_at_ns) return StatusCode::kUnavailable;
  peer.retry_at_ns = now_ns + kReconnectIntervalNs;
  KRCORE_RETURN_IF_ERROR(peer.queue->Connect(memory_node, deadline));
  for (const krcore::RemoteRegion& region : peer.queue->regions()) {
    if (region.tag != kPoolRegionTag) continue;
    peer.base = region.addr;
    peer.pool_bytes = region.length;
    peer.rkey = region.rkey;
    peer.connected = true;
    return Status::Ok();
  }
  return {StatusCode::kUnavailable, "node " + std::to_string(memory_node) + " exposes no pool"};
}

void Connections::Finish(RunQueue& run_queue, Batch& batch) {
  if (batch.sample_from_ns_ != 0 && batch.outcome_ == Outcome::kOk) [[unlikely]] {
    round_trip_.Add(clock_.NowNs() - batch.sample_from_ns_);
  }
  run_queue.Push(batch.waiter_);
}

size_t Connections::Poll() {
  pool_->Poll();
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
        Batch& batch = *reinterpret_cast<Batch*>(completion.wr_id & ~kSignaledTag);
        if (completion.status == WcStatus::kDiscarded) [[unlikely]] {
          batch.outcome_ = ++batch.discarded_ == batch.size_ ? Outcome::kFenced : Outcome::kUnavailable;
        } else if (completion.status != WcStatus::kSuccess) [[unlikely]] {
          batch.outcome_ = Outcome::kUnavailable;
          peer.connected = false;
          last_failed_ = connected_[i];
        }
        if ((completion.wr_id & kSignaledTag) != 0 && --batch.pending_ == 0) Finish(run_queue, batch);
      }
    } while (count == done.size());
  }
  for (size_t stalled = stalled_.size(); stalled > 0; --stalled) {
    Batch& batch = *stalled_.front();
    stalled_.pop_front();
    batch.StageRest();
    if (--batch.pending_ == 0) Finish(run_queue, batch);
  }
  return popped;
}

}  // namespace kvs
