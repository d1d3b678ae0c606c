#include "kvs/table/reader.h"

#include <utility>

#include "kvs/memory/mutation.h"

namespace kvs {

Task<Status> Reader::Get(std::string_view key, std::string* value) {
  if (common_.node.forked()) [[unlikely]]
    co_return common_.node.NotForked();
  const KeyHash hash = common_.shape.hasher(key);
  Turn turn(combiner_, hash, key, value);
  if (!turn.leads()) co_await turn.Wait(operations_.DeadlineFromNow());
  if (!turn.leads()) co_return turn.TakeResult();
  Operation& op = co_await operations_.LeaseOperation(key, hash);
  OperationLease lease(operations_, op);
  op.deadline_ns = turn.deadline_ns();
  turn.Gather();
  addresses_.Count(common_.clock);
  Slot guess = addresses_.Lookup(hash.h1);
  for (;; co_await operations_.BackOff(op)) {
    if (op.attempt > 0 && operations_.OutOfTime(op)) co_return turn.Share(TimeoutCode(op));
    if (op.batch.Stale()) [[unlikely]]
      operations_.BeginAgain(op);
    TableRef& table = op.scan.table;
    op.merge.record = {};
    if (!cache_.Lookup(op.hash, &table)) {
      const Step resolved = co_await directory_.Resolve(op, &table);
      if (Failed(op, resolved)) co_return turn.Share(common_.connections.UnavailableStatus("Get"));
      if (resolved != Step::kOk) continue;
    }
    const uint32_t ins = Mutated(Mutation::kInsVisible) ? MaskOf(SlotState::kIns) : 0;
    Step scanned = finder_.BeginScan(op, op.batch, kReaderStates | ins, std::exchange(guess, Slot()));  // [Get 1]
    for (;;) {
      const Outcome read = co_await op.batch.Run();
      if (scanned != Step::kRun) break;
      scanned = read == Outcome::kOk ? finder_.GoOnScan(op, op.batch) : Step::kUnavailable;
    }
    if (Failed(op, scanned)) co_return turn.Share(common_.connections.UnavailableStatus("Get"));
    if (scanned == Step::kFull) co_return turn.Share(StatusCode::kOutOfMemory);
    if (scanned != Step::kOk) {
      if (op.torn) cache_.Forget(table);  // a table out of use may name blocks that are used again
      continue;
    }
    Step step = Step::kOk;
    if (op.scan.val >= 0) [[likely]] {
      addresses_.Learn(hash.h1, op.Candidate(static_cast<uint32_t>(op.scan.val)));
    } else if (op.scan.closed) {  // [Get 5]
      if (!op.merge.known() && !Mutated(Mutation::kClosedUnchecked)) {
        ++common_.stats.stale_directory_hits;
        cache_.Forget(table);
        op.again = Again::kAtOnce;
        continue;
      }
      step = co_await GetFromClosed(op);
    } else if (op.scan.headers_fit && op.scan.frz < 0) {
      if (!Mutated(Mutation::kGetMissUnchecked)) step = co_await finder_.CheckHeaders(op);  // [Get 2]
    } else {
      step = co_await GetDuringSplit(op);
    }
    if (step == Step::kOk) [[likely]] {
      if (op.scan.val < 0) co_return turn.Share(StatusCode::kNotFound);
      if (HasExpired(op.scan.block.expires_at_ms(), common_.clock)) [[unlikely]] {
        lease.End();
        co_return turn.Share(co_await writer_.ReadExpired(key, value));
      }
      value->assign(op.scan.block.value());
      co_return turn.Share(Status::Ok());
    }
    if (Failed(op, step)) co_return turn.Share(common_.connections.UnavailableStatus("Get"));
    op.again = Again::kAtOnce;  // the table has moved on
  }
}

// [Get 3] The operation scanned a table whose headers have moved, or where a slot of the key is frozen, and saw no
// value. kOk: scan.val tells whether scan.block is the key's (>= 0) or the key is absent (< 0). kRestart: the key has
// moved to another table, which the cache knows now.
Task<Step> Reader::GetDuringSplit(Operation& op) {
  ++common_.stats.stale_directory_hits;
  const TableRef scanned = op.scan.table;
  const int frozen = op.scan.frz;
  if (!Mutated(Mutation::kSplittingUnchecked)) {
    cache_.Forget(scanned);
    TableRef now;
    KVS_CO_RETURN_UNLESS_OK(co_await directory_.Resolve(op, &now));
    // If the split had published its child, the directory would name that. So what the scan saw counted until now.
    if (!(now.address == scanned.address) || !now.entry.splitting()) co_return Step::kRestart;
    directory_.NoteUnfinished(now.index);
  }
  if (frozen >= 0) {
    KVS_CO_RETURN_UNLESS_OK(co_await ReadFrozenValue(op, op.Candidate(static_cast<uint32_t>(frozen))));
  }
  op.scan.val = frozen;
  co_return Step::kOk;
}

// Reads the block of a frozen slot that a scan found to be the key's.
Task<Step> Reader::ReadFrozenValue(Operation& op, Slot slot) {
  KVS_CO_RETURN_UNLESS_OK(co_await finder_.ReadBlock(op, slot));
  co_return op.scan.block.key() == op.key ? Step::kOk : Step::kRestart;
}

// The operation scanned its key's table, found it closed, and saw no value; it had met the merge before. From the
// moment at which the directory named an engaged merge, the table counts until its replacement is published. What it
// shows frozen is what it held at the end of that time, so it is right at a moment within this operation. For the same
// reason the frozen slot's block is not reused yet. kOk: as of GetDuringSplit.
Task<Step> Reader::GetFromClosed(Operation& op) {
  // A merge that was undecided may have been given up, and the table split and closed by another since.
  if (!op.merge.engaged() && !Mutated(Mutation::kClosedUnchecked)) co_return Step::kRestart;
  const int frozen = op.scan.frz;
  if (frozen >= 0) {
    KVS_CO_RETURN_UNLESS_OK(co_await ReadFrozenValue(op, op.Candidate(static_cast<uint32_t>(frozen))));
  }
  op.scan.val = frozen;
  co_return Step::kOk;
}

}  // namespace kvs
