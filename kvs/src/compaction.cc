// Compaction: when a client has a mover of its own run, and what it tells of it. The run is mover.cc.
#include <memory>

#include "kvs/src/mover.h"
#include "kvs/src/run_detached.h"

namespace kvs {
namespace {

// What is pinned for a client that is expelled, one that has seen more of the store may know to be younger: it has its
// turn for this part of a lease.
constexpr int64_t kPinnedPart = 8;

}  // namespace

Operation& ClientCore::MoverOperation() {
  if (!mover_op_) {
    mover_op_ = std::make_unique<Operation>();
    mover_op_->buffers =
        new (arena_->bytes().data() + options_.max_in_flight * sizeof(OperationBuffers)) OperationBuffers;
    mover_op_->batch.Attach(&connections_, arena_->lkey());
    mover_op_->makes_room = true;
  }
  return *mover_op_;
}

// One round of maintenance that begins now.
Task<Step> ClientCore::MaintainNow() {
  while (maintaining_ > 0) co_await Pause(kLookNs);
  ++maintaining_;
  co_await Maintain();
  --maintaining_;
  co_return Step::kOk;
}

void ClientCore::StartCompaction(const CompactOptions& options, bool for_room) {
  if (compacting_ > 0 || closing_) return;
  RunDetached(RunCompaction(options, for_room), &compacting_);
}

Task<void> ClientCore::RunCompaction(CompactOptions options, bool for_room) {
  compaction_wanted_ = false;
  last_compaction_ = {};
  room_wanted_ = for_room;
  Operation& op = BeginMover(/*drains=*/false);
  {
    Mover mover(*this, op, options, &last_compaction_);
    last_step_ = co_await mover.Run();
    if (op.batch.Stale()) last_step_ = Step::kRestart;  // expelled: no memory node failed
    if (mover.pinned()) pinned_until_ns_ = clock_.NowNs() + registration_.lease_ns() / kPinnedPart;
    if (last_step_ == Step::kOk && mover.in_vain() && options.thorough) {
      full_until_ns_ = clock_.NowNs() + registration_.lease_ns();
      full_freed_chunks_ = freed_chunks_seen_;
      full_free_bytes_ = memory_->free_bytes();
    }
  }
  EndMover(last_compaction_.chunks_freed);
}

Operation& ClientCore::BeginMover(bool drains) {
  Operation& op = MoverOperation();
  op.in_use = true;
  op.drains = drains;
  op.batch.Renew();
  op.epoch = epoch_;
  op.strangers = 0;
  op.own_ins = 0;
  op.deadline_ns = 0;
  ++stats_.compactions;
  return op;
}

void ClientCore::EndMover(uint64_t chunks_freed) {
  full_nodes_.clear();  // look again: whoever freed a chunk may have died before he told
  mover_op_->in_use = false;
  ++compactions_;
  compact_again_at_ns_ = clock_.NowNs() + (chunks_freed > 0 ? 0 : registration_.lease_ns());
}

Task<Status> ClientCore::CompactAsync(CompactOptions options, CompactReport* report) {
  if (forked()) co_return OpenedBeforeFork();
  for (int64_t look_ns = kLookNs; compacting_ > 0; look_ns = NextLook(look_ns)) co_await Pause(look_ns);
  StartCompaction(options, /*for_room=*/false);
  const uint64_t before = compactions_;
  for (int64_t look_ns = kLookNs; compactions_ == before; look_ns = NextLook(look_ns)) {
    if (compacting_ == 0) co_return Status(StatusCode::kBadState, "the client is closing");
    co_await Pause(look_ns);
  }
  *report = last_compaction_;
  switch (last_step_) {
    case Step::kOk: co_return Status::Ok();
    case Step::kFull: co_return StatusCode::kTimeout;
    case Step::kRestart:
      co_return Status(StatusCode::kExists, "another client gives memory back, or this one was expelled");
    case Step::kUnavailable: co_return UnavailableStatus("giving memory back");
    case Step::kRun: break;  // it has ended
  }
  co_return StatusCode::kInternal;
}

}  // namespace kvs
