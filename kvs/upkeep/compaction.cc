// Decides when a client gives memory back.

#include "kvs/upkeep/mover.h"
#include "kvs/upkeep/upkeep.h"

namespace kvs {
namespace {

// How many chunks' worth of free blocks a client keeps for itself.
constexpr uint64_t kMuchFree = 64;
// Another client may know that what is pinned is younger than the expelled client. It has this part of a lease to try.
constexpr int64_t kPinnedPart = 8;

}  // namespace

Task<Status> Compaction::Compact(CompactOptions options, CompactReport* report) {
  for (int64_t look_ns = kLookNs; epochs_.room.running > 0; look_ns = NextLook(look_ns))
    co_await epochs_.operations.Pause(look_ns);
  Start(options, /*for_room=*/false);
  const uint64_t before = epochs_.room.ended;
  for (int64_t look_ns = kLookNs; epochs_.room.ended == before; look_ns = NextLook(look_ns)) {
    if (epochs_.room.running == 0) co_return Status(StatusCode::kBadState, "the client is closing");
    co_await epochs_.operations.Pause(look_ns);
  }
  *report = last_report_;
  switch (epochs_.room.last_step) {
    case Step::kOk: co_return Status::Ok();
    case Step::kFull: co_return StatusCode::kTimeout;
    case Step::kRestart:
      co_return Status(StatusCode::kExists, "another client gives memory back, or this one was expelled");
    case Step::kUnavailable: co_return common_.connections.UnavailableStatus("giving memory back");
    case Step::kRun: break;  // it has ended
  }
  co_return StatusCode::kInternal;
}

void Compaction::BeginIfWanted(int64_t now_ns) {
  // Many free blocks are of more use to others as chunks.
  const bool much = epochs_.memory->free_bytes() >= kMuchFree * common_.shape.chunk_bytes;
  if ((epochs_.own_work.compaction_wanted || much) && now_ns >= again_at_ns_) Start({}, /*for_room=*/false);
}

void Compaction::Start(const CompactOptions& options, bool for_room) {
  if (epochs_.room.running > 0 || epochs_.own_work.closing) return;
  RunDetached(Run(options, for_room), &epochs_.room.running);
}

Task<void> Compaction::Run(CompactOptions options, bool for_room) {
  epochs_.own_work.compaction_wanted = false;
  last_report_ = {};
  epochs_.room.waited_for = for_room;
  Operation& op = epochs_.operations.TakeMover(/*drains=*/false);
  {
    Mover mover(epochs_, table_, maintenance_, seen_mover_, op, options, &last_report_);
    epochs_.room.last_step = co_await mover.Run();
    if (op.batch.Stale()) epochs_.room.last_step = Step::kRestart;  // expelled: no memory node failed
    if (mover.pinned()) epochs_.room.pinned_until_ns = common_.clock.NowNs() + common_.shape.lease_ns / kPinnedPart;
    if (epochs_.room.last_step == Step::kOk && mover.in_vain() && options.thorough) {
      epochs_.room.full_until_ns = common_.clock.NowNs() + common_.shape.lease_ns;
      epochs_.room.full_freed_chunks = epochs_.home.freed_chunks_seen();
      epochs_.room.full_free_bytes = epochs_.memory->free_bytes();
    }
  }
  EndMover(last_report_.chunks_freed);
}

void Compaction::EndMover(uint64_t chunks_freed) {
  epochs_.home.ForgetFull();  // look again: a client that freed a chunk may have died before it told others
  epochs_.operations.ReleaseMover();
  ++epochs_.room.ended;
  again_at_ns_ = common_.clock.NowNs() + (chunks_freed > 0 ? 0 : common_.shape.lease_ns);
}

}  // namespace kvs
