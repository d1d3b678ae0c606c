// Get. The step numbers are those of docs/protocol.md.
#include <utility>

#include "kvs/src/client_core.h"
#include "kvs/src/mutation.h"
#include "kvs/src/store_core.h"

namespace kvs {
Task<Status> ClientCore::GetAsync(std::string_view key, std::string* value) {
  if (forked()) [[unlikely]]
    co_return OpenedBeforeFork();
  if (!IsKey(key)) [[unlikely]]
    co_return LengthStatus(key, {});
  const KeyHash hash = hasher_(key);
  Turn turn(combiner_, hash, key, value);
  if (!turn.leads()) co_await turn.Wait(DeadlineFromNow());
  if (!turn.leads()) co_return turn.TakeResult();
  Operation& op = co_await LeaseOperation(key, hash);
  const Lease lease(*this, op);
  op.deadline_ns = turn.deadline_ns();
  turn.Gather();
  address_cache_.Count(clock_);
  Slot guess = address_cache_.Lookup(hash.h1);
  for (;; co_await BackOff(op)) {
    if (op.attempt > 0 && OutOfTime(op)) co_return turn.Share(TimeoutCode(op));
    if (op.batch.Stale()) [[unlikely]]
      BeginAgain(op);
    TableRef& table = op.scan.table;
    op.merge.record = {};
    if (!directory_.Lookup(op.hash, &table)) {
      const Step resolved = co_await Resolve(op, &table);
      if (Failed(op, resolved)) co_return turn.Share(UnavailableStatus("Get"));
      if (resolved != Step::kOk) continue;
    }
    const uint32_t ins = Mutated(Mutation::kInsVisible) ? MaskOf(SlotState::kIns) : 0;
    Step scanned = BeginScan(op, op.batch, kReaderStates | ins, std::exchange(guess, Slot::Free()));  // (1)
    for (;;) {
      const Outcome read = co_await op.batch.Run();
      if (scanned != Step::kRun) break;
      scanned = read == Outcome::kOk ? GoOnScan(op, op.batch) : Step::kUnavailable;
    }
    if (Failed(op, scanned)) co_return turn.Share(UnavailableStatus("Get"));
    if (scanned == Step::kFull) co_return turn.Share(StatusCode::kOutOfMemory);
    if (scanned != Step::kOk) {
      if (op.torn) directory_.Forget(table);  // one out of use may name blocks that are used again
      continue;
    }
    if (op.scan.val >= 0) [[likely]] {
      value->assign(op.scan.block.value());
      address_cache_.Learn(hash.h1, op.Candidate(static_cast<uint32_t>(op.scan.val)));
      co_return turn.Share(Status::Ok());
    }
    Step step;
    if (op.scan.closed) {  // (5)
      if (!op.merge.known() && !Mutated(Mutation::kClosedUnchecked)) {
        ++stats_.stale_directory_hits;
        directory_.Forget(table);
        op.again = Again::kAtOnce;
        continue;
      }
      step = co_await GetFromClosed(op, value);
      if (step == Step::kOk) co_return turn.Share(op.scan.val >= 0 ? StatusCode::kOk : StatusCode::kNotFound);
    } else if (op.scan.headers_fit && op.scan.frz < 0 && !op.scan.any_pending) {
      if (Mutated(Mutation::kGetMissUnchecked)) co_return turn.Share(StatusCode::kNotFound);
      step = co_await CheckHeaders(op);  // (2)
      if (step == Step::kOk) co_return turn.Share(StatusCode::kNotFound);
    } else {
      step = co_await GetDuringMigration(op, value);
      if (step == Step::kOk) co_return turn.Share(op.scan.val >= 0 ? StatusCode::kOk : StatusCode::kNotFound);
    }
    if (Failed(op, step)) co_return turn.Share(UnavailableStatus("Get"));
    op.again = Again::kAtOnce;  // the table has moved on
  }
}

// kOk: scan.val tells whether *value was set (>= 0) or the key is absent (< 0).
Task<Step> ClientCore::GetDuringMigration(Operation& op, std::string* value) {
  TableRef parent, child;
  int frozen = -1;
  Slot frozen_slot;
  if (op.scan.any_pending) {  // (4): this is a child whose split is not finished; the parent may hold the key
    child = op.scan.table;
    if (child.index == 0) co_return Step::kRestart;
    // Read behind the PEND: if the split is still going on, this is its parent; if not, the child decides alone.
    const Step found =
        co_await ReadDirectoryEntry(op.batch, &op.buffers->directory[0], ParentIndex(child.index), &parent);
    if (found != Step::kOk) co_return found;
    if (!parent.entry.splitting() || parent.entry.depth() + 1 != BirthDepth(child.index)) co_return Step::kRestart;
    const Step scanned = co_await ScanTable(op, parent, kReaderStates);
    if (scanned != Step::kOk) co_return scanned;
    if (op.scan.val >= 0) {
      value->assign(op.scan.block.value());
      co_return Step::kOk;
    }
  } else {  // (3): the headers moved, or a frozen slot of the key
    ++stats_.stale_directory_hits;
    parent = op.scan.table;
  }
  if (op.scan.frz >= 0) {
    frozen = op.scan.frz;
    frozen_slot = op.Candidate(static_cast<uint32_t>(frozen));
  }
  if (frozen >= 0 && Mutated(Mutation::kFrzWithoutChild)) {
    op.scan.val = frozen;
    co_return co_await ReadFrozenValue(op, frozen_slot, value);
  }
  if (Mutated(Mutation::kNoSecondChildScan) && child.address.valid()) co_return Step::kOk;
  if (!child.address.valid()) {
    DirectoryEntry above;
    directory_.Forget(parent);
    const Step resolved = co_await Resolve(op, &child, &above);
    if (resolved != Step::kOk) co_return resolved;
    // Several splits behind: begin again at the table that the directory names now. The same if the parent, read behind
    // the child, is another table by now: what is frozen in this one says nothing about that child.
    if (child.index == 0 || child.index == parent.index || ParentIndex(child.index) != parent.index) {
      co_return Step::kRestart;
    }
    const bool is_pair = above.has_subtable() && above.subtable() == parent.address;
    if (!is_pair && !Mutated(Mutation::kFrzFromAnyParent)) co_return Step::kRestart;
  }
  const Step scanned = co_await ScanTable(op, child, kReaderStates);
  if (scanned != Step::kOk) co_return scanned;
  if (op.scan.val >= 0) {
    value->assign(op.scan.block.value());
    co_return Step::kOk;
  }
  if (!op.scan.headers_fit || op.scan.frz >= 0) co_return Step::kRestart;  // the child is being split in its turn
  if (frozen >= 0 && op.Candidate(static_cast<uint32_t>(frozen)).state() == SlotState::kPend) {
    const Step read = co_await ReadFrozenValue(op, frozen_slot, value);
    if (read == Step::kOk) op.scan.val = frozen;
    co_return read;
  }
  if (Mutated(Mutation::kChildMissUnchecked)) co_return Step::kOk;
  // Absent, unless the child's own split began meanwhile and took the key away between the words of the scan.
  co_return co_await CheckHeaders(op);
}

// The block of a frozen slot that a scan found to be the key's.
Task<Step> ClientCore::ReadFrozenValue(Operation& op, Slot slot, std::string* value) {
  const uint32_t bytes = FirstReadBytes(slot);
  op.batch.Read(slot.block(), op.buffers->match.data(), bytes);
  const Outcome read = co_await op.batch.Run();
  if (read != Outcome::kOk) co_return Step::kUnavailable;
  BlockView block(op.buffers->match.data());
  if (slot.length_units() == kLargeBlock) {
    const Step large = co_await ReadLargeBlock(op, slot, block.bytes());
    if (large != Step::kOk) co_return large;
    block = op.scan.block;
  } else if (!block.Intact(bytes) && !Mutated(Mutation::kNoChecksum)) {
    ++stats_.checksum_retries;
    op.torn = true;
    co_return Step::kRestart;
  }
  if (block.key() != op.key) co_return Step::kRestart;
  value->assign(block.value());
  co_return Step::kOk;
}

}  // namespace kvs
