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
    } else if (op.scan.headers_fit && op.scan.frz < 0 && !op.scan.any_pending) {
      if (!Mutated(Mutation::kGetMissUnchecked)) step = co_await finder_.CheckHeaders(op);  // [Get 2]
    } else {
      step = co_await GetDuringMigration(op);
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

// kOk: scan.val tells whether scan.block is the key's (>= 0) or the key is absent (< 0).
Task<Step> Reader::GetDuringMigration(Operation& op) {
  TableRef parent, child;
  int frozen = -1;
  Slot frozen_slot;
  if (op.scan.any_pending) {  // [Get 4]: this is a child whose split is not finished; the parent may hold the key
    child = op.scan.table;
    if (child.index == 0) co_return Step::kRestart;
    // This is read after the PEND. If the split is still going on, this is its parent; if not, the child alone decides.
    const Step found =
        co_await directory_.ReadEntry(op.batch, &op.buffers->directory[0], ParentIndex(child.index), &parent);
    if (found != Step::kOk) co_return found;
    if (!parent.entry.splitting() || parent.entry.depth() + 1 != BirthDepth(child.index)) co_return Step::kRestart;
    KVS_CO_RETURN_UNLESS_OK(co_await finder_.ScanTable(op, parent, kReaderStates));
    if (op.scan.val >= 0) co_return Step::kOk;
  } else {  // [Get 3]: the headers moved, or a frozen slot of the key
    ++common_.stats.stale_directory_hits;
    parent = op.scan.table;
  }
  if (op.scan.frz >= 0) {
    frozen = op.scan.frz;
    frozen_slot = op.Candidate(static_cast<uint32_t>(frozen));
  }
  if (frozen >= 0 && Mutated(Mutation::kFrzWithoutChild)) {
    op.scan.val = frozen;
    co_return co_await ReadFrozenValue(op, frozen_slot);
  }
  if (Mutated(Mutation::kNoSecondChildScan) && child.address.valid()) co_return Step::kOk;
  if (!child.address.valid()) {
    DirectoryEntry above;
    cache_.Forget(parent);
    KVS_CO_RETURN_UNLESS_OK(co_await directory_.Resolve(op, &child, &above));
    // This table is several splits old: begin again at the table that the directory names now. Do the same if the
    // parent, read after the child, is another table by now: what is frozen in this one says nothing about that child.
    if (child.index == 0 || child.index == parent.index || ParentIndex(child.index) != parent.index) {
      co_return Step::kRestart;
    }
    const bool is_pair = above.has_subtable() && above.subtable() == parent.address;
    if (!is_pair && !Mutated(Mutation::kFrzFromAnyParent)) co_return Step::kRestart;
  }
  KVS_CO_RETURN_UNLESS_OK(co_await finder_.ScanTable(op, child, kReaderStates));
  if (op.scan.val >= 0) co_return Step::kOk;
  if (!op.scan.headers_fit || op.scan.frz >= 0) co_return Step::kRestart;  // the child is being split in its turn
  if (frozen >= 0 && op.Candidate(static_cast<uint32_t>(frozen)).state() == SlotState::kPend) {
    const Step read = co_await ReadFrozenValue(op, frozen_slot);
    if (read == Step::kOk) op.scan.val = frozen;
    co_return read;
  }
  if (Mutated(Mutation::kChildMissUnchecked)) co_return Step::kOk;
  // The key is absent, unless the child's own split began meanwhile and took it away between the words of the scan.
  co_return co_await finder_.CheckHeaders(op);
}

// Reads the block of a frozen slot that a scan found to be the key's.
Task<Step> Reader::ReadFrozenValue(Operation& op, Slot slot) {
  KVS_CO_RETURN_UNLESS_OK(co_await finder_.ReadBlock(op, slot));
  co_return op.scan.block.key() == op.key ? Step::kOk : Step::kRestart;
}

// The operation scanned its key's table, found it closed, and saw no value; it had met the merge before. From the
// moment at which the directory named an engaged merge, the table counts until its replacement is published. What it
// shows frozen is what it held at the end of that time, so it is right at a moment within this operation. For the same
// reason the frozen slot's block is not reused yet. kOk: as of GetDuringMigration.
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
