#include "kvs/table/writer.h"

#include <array>
#include <string>
#include <utility>

#include "kvs/memory/mutation.h"

namespace kvs {
namespace {

// How many restarts a writer without a free slot waits before it kills another client's tentative slot. The owner, if
// alive, needs only one more round trip.
constexpr uint32_t kStarvedAttempts = 8;

// Beginning again after progress is no reason to back off, nor a sign of starvation.
void Progressed(Operation& op) {
  if (op.attempt > 0) --op.attempt;
  op.again = Again::kAtOnce;
  op.room_wait.begun = false;
}

}  // namespace

// Takes a step of the write in its operation's own batch. Awaiting it tells whether there is to be a further one.
auto Writer::TakeStep(PendingWrite& write) {
  Batch& batch = write.op->batch;
  struct Awaiter : decltype(batch.Run()) {
    PendingWrite& write;
    bool await_resume() {
      write.outcome = decltype(batch.Run())::await_resume();
      return GoesOn(write.step, write.outcome, write.op->batch);
    }
  };
  write.step = GoOnWriting(write, batch);
  return Awaiter{batch.Run(), write};
}

Task<Status> Writer::Write(WriteKind kind, std::string_view key, std::string_view value, uint64_t expires_at_ms,
                           const ModifyFunction* modify) {
  if (common_.node.forked()) [[unlikely]]
    co_return common_.node.NotForked();
  const KeyHash hash = common_.shape.hasher(key);
  Turn turn(combiner_, hash, key, kind, Record{value, expires_at_ms}, modify);
  if (!turn.leads()) co_await turn.Wait(epochs_.operations.DeadlineFromNow());
  if (!turn.leads()) co_return turn.TakeResult();
  Operation& op = co_await epochs_.operations.LeaseOperation(key, hash);
  const OperationLease lease(epochs_.operations, op);
  op.deadline_ns = turn.deadline_ns();
  turn.Gather();
  PendingWrite write(op, turn);
  for (bool goes_on = true; goes_on;) goes_on = co_await TakeStep(write);
  if (write.step != Step::kOk) [[unlikely]]
    co_await FinishWrite(write);
  EndWrite(write);
  co_return turn.Share(std::move(write.result), write.existed);
}

// [Expire 1] If its CAS has an unknown outcome, it may be tried again, unlike others: it changes nothing itself, and
// other Modifies that were done with it have been told that theirs is unknown.
Task<Status> Writer::ReadExpired(std::string_view key, std::string* value, uint64_t* expires_at_ms) {
  bool found = false;
  const ModifyFunction read = [&](const std::optional<Record>& record) {
    found = record.has_value();
    if (found) value->assign(record->value);
    if (found && expires_at_ms != nullptr) *expires_at_ms = record->expires_at_ms;
    return Modification::Keep();
  };
  if (Mutated(Mutation::kExpiredNotRemoved)) co_return StatusCode::kNotFound;
  if (Mutated(Mutation::kExpiredByKey)) {
    (void)co_await Write(WriteKind::kDelete, key, {}, 0);
    co_return StatusCode::kNotFound;
  }
  const int64_t deadline_ns = epochs_.operations.DeadlineFromNow();
  Status status = StatusCode::kUnknown;
  while (status == StatusCode::kUnknown) {
    if (common_.clock.NowNs() >= deadline_ns) co_return Status(StatusCode::kUnavailable, std::string(status.message()));
    status = co_await Write(WriteKind::kModify, key, {}, 0, &read);
  }
  if (status.ok() && !found) co_return StatusCode::kNotFound;
  co_return status;
}

Task<void> Writer::FinishWrite(PendingWrite& write) {
  const Step settled = co_await SettleWrite(write);
  write.op->own_ins = 0;
  if (settled == Step::kOk) co_return;
  if (Failed(*write.op, settled)) {
    write.result = common_.connections.UnavailableStatus("scanning a subtable");
    co_return;
  }
  co_await WriteAfterAll(write);
}

void Writer::EndWrite(const PendingWrite& write) {
  const bool only_removed = write.modify != nullptr && write.expired && write.now.free();
  if (write.result.ok() && write.kind != WriteKind::kModify && !only_removed) ++common_.stats.writes_done;
  GiveBackUnused(write);
}

// Runs the steps of Publish in a coroutine of their own, and settles what they leave. Returns what SettleWrite returns,
// or kFull: no slot is free.
Task<Step> Writer::PublishAlone(PendingWrite& write) {
  Operation& op = *write.op;
  if (op.batch.Stale()) co_return Step::kRestart;
  write.phase = PendingWrite::Phase::kScanned;
  for (bool goes_on = true; goes_on;) goes_on = co_await TakeStep(write);
  Step step = write.step;
  if (step != Step::kOk && step != Step::kFull) step = co_await SettleWrite(write);
  op.own_ins = 0;
  co_return step;
}

// Does the whole write, where the steps could not. It ends with write.result.
Task<void> Writer::WriteAfterAll(PendingWrite& write) {
  Operation& op = *write.op;
  NewBlock& block = write.block;
  Status& result = write.result;
  // The block that it is to publish is known. That of a Modify is not before the scan.
  const bool has_block = write.kind != WriteKind::kDelete && write.modify == nullptr;
  const auto fails = [this, &op, &result](Step step, const char* what) {
    if (!Failed(op, step)) [[likely]]
      return false;
    result = common_.connections.UnavailableStatus(what);
    return true;
  };
  // Where pools are mirrored, a split or merge also fails if it cannot be told whether a CAS of it was won. Then the
  // write looks again. If a pool cannot be reached, the next scan says so.
  const auto fails_to_help = [this, &fails](Step step, const char* what) {
    return !common_.connections.mirrored() && fails(step, what);
  };
  bool backs_off = !write.unpublished();  // it is in another client's way
  // The guess counts only if the steps have not got so far as to use it; otherwise it was wrong.
  Slot guess = backs_off ? Slot() : addresses_.Lookup(op.hash.h1);
  for (;; backs_off = true) {
    if (backs_off) co_await epochs_.operations.BackOff(op);
    if (op.attempt > 0 && epochs_.operations.OutOfTime(op)) {
      result = TimeoutCode(op);
      break;
    }
    if (op.batch.Stale()) [[unlikely]] {
      epochs_.operations.BeginAgain(op);
      block = {};  // it belongs to an earlier registration
    } else if (op.batch.Outlived()) [[unlikely]] {
      op.batch.Renew();
      block = {};
    } else if (block.address.valid() && epochs_.memory->IsEvacuating(block.address)) [[unlikely]] {
      block = {};  // its chunk is being emptied, and an operation that waited does not hold that up any more
    } else if (block.tentatives == kTentativeWords) [[unlikely]] {
      DropBlock(write);
    }
    if (MustSayExpiring(write)) [[unlikely]] {
      const Step said = co_await epochs_.home.SayExpiring(op.batch, &op.buffers->cas[0]);
      if (fails(said, "writing to the store's home")) break;
      if (said != Step::kOk) continue;
    }
    // A Modify has no block yet, but perhaps its functions wanted one for which there was no memory at hand.
    const bool needs_memory = has_block || block.bytes != 0;
    if (needs_memory && !block.address.valid()) {
      const uint32_t attempt = op.attempt, waits = op.waits;
      Step prepared = has_block ? PlaceBlock(write) : Step::kRun;
      if (prepared == Step::kRun)
        prepared = co_await epochs_.allocator.Allocate(op, block.bytes, block.preferred, &block.address);
      if (prepared == Step::kOk && has_block) prepared = BuildNewBlock(write);
      if (fails(prepared, "allocating memory")) break;
      // What there is no room for may be what another Modify of the group wants.
      if (prepared == Step::kFull && write.modify != nullptr && write.modify->LetMembersWait()) {
        block = {};
        continue;
      }
      if (prepared == Step::kFull) {
        result = Status(StatusCode::kOutOfMemory, "the memory nodes have no room for a block of " +
                                                      std::to_string(block.bytes) +
                                                      " bytes (start another memory node, or larger ones)");
        break;
      }
      if (prepared != Step::kOk) continue;
      // The memory may be that of a pool which is younger than the operation's view, and where nothing is written yet.
      op.batch.RenewView();
      op.attempt = attempt;  // waiting for memory is no sign of contention
      op.waits = waits;
      op.room_wait.begun = false;
    }
    TableRef table;
    op.merge.record = {};
    if (!cache_.Lookup(op.hash, &table)) {
      const Step resolved = co_await directory_.Resolve(op, &table);
      if (fails(resolved, "finding the subtable")) break;
      if (resolved != Step::kOk) continue;
    }

    // [Write 1] The block's WRITE goes out together with the scan.
    if (has_block && !block.written && !SendBlock(op.batch, &block)) {
      result = common_.connections.UnavailableStatus("writing a block");
      break;
    }
    const Step scanned = co_await finder_.ScanTable(op, table, kReaderStates, std::exchange(guess, Slot()));
    if (fails(scanned, "scanning a subtable")) break;
    if (has_block) {
      block.written = true;
      block.in_doubt = false;
    }
    if (scanned == Step::kFull) {
      result = StatusCode::kOutOfMemory;
      break;
    }
    if (scanned != Step::kOk) {
      if (op.torn) cache_.Forget(table);  // a table out of use may name blocks that are used again
      continue;
    }

    if (write.modify != nullptr) write.kind = WriteKind::kModify;  // its functions run again
    if (op.scan.frz >= 0 && Mutated(Mutation::kUpdateOfFrz)) op.scan.val = op.scan.frz;
    if (op.scan.val < 0) {
      // [Write 3] The key may have moved to a child, or, with all others, to another table.
      if (!op.scan.headers_fit || op.scan.frz >= 0) {
        const Step left = co_await LeaveTable(op);
        if (fails_to_help(left, "finding the subtable")) break;
        if (left == Step::kFull) {
          result = Status(StatusCode::kOutOfMemory,
                          "a split or merge of subtables is to be finished, and there is no room for it");
          break;
        }
        if (left == Step::kOk) {
          Progressed(op);
        } else if (op.attempt > 0) {
          --op.attempt;  // waiting for a split or merge is no sign of contention
        }
        continue;
      }
      // [Write 5]
      if (!write.inserts() && !Mutated(Mutation::kWriteMissUnchecked)) {
        const Step checked = co_await finder_.CheckHeaders(op);
        if (fails(checked, "scanning a subtable")) break;
        if (checked != Step::kOk) {
          op.again = Again::kAtOnce;
          continue;
        }
      }
    }
    // [Write 2], [Write 5], [Write 6]
    const Step published = co_await PublishAlone(write);
    if (published == Step::kOk) break;
    if (fails(published, "writing")) break;
    if (published != Step::kFull) continue;
    Status why_not;
    const Step room = co_await MakeRoom(op, &why_not);
    if (fails_to_help(room, "splitting a subtable")) break;
    // What there is no slot for may be what another Modify of the group wants.
    if (room == Step::kFull && write.modify != nullptr && write.modify->LetMembersWait()) continue;
    if (room == Step::kFull) {
      result = std::move(why_not);
      break;
    }
    if (room == Step::kOk) Progressed(op);
  }
}

// [Write 3] The table of the last scan may not be the key's any more. kOk: another table is the key's, and the cache
// has what is known of it, or will have.
Task<Step> Writer::LeaveTable(Operation& op) {
  const TableRef table = op.scan.table;
  if (op.scan.closed && op.merge.known()) co_return co_await merger_.HelpMerge(op);
  ++common_.stats.stale_directory_hits;
  cache_.Forget(table);
  TableRef fresh;
  KVS_CO_RETURN_UNLESS_OK(co_await directory_.Resolve(op, &fresh));
  if (!(fresh.address == table.address)) co_return Step::kOk;
  // [Write 4] The key moves to a table that is not published yet. Whoever splits this one is about to, or has stopped.
  if (!fresh.entry.splitting()) co_return Step::kRestart;
  co_return co_await splitter_.Split(op, fresh);
}

// No candidate is FREE. Splits the table or, after it has waited long enough, kills a tentative slot whose owner may be
// dead. kFull: *why_not has the reason.
Task<Step> Writer::MakeRoom(Operation& op, Status* why_not) {
  uint32_t count = 0;
  std::array<uint8_t, kCandidates> victims;
  for (uint32_t c = 0; c < kCandidates; ++c) {
    if (op.Candidate(c).state() == SlotState::kIns) victims[count++] = static_cast<uint8_t>(c);
  }
  if (op.attempt >= kStarvedAttempts && count > 0) {
    const uint32_t victim = victims[common_.random() % count];
    op.batch.CompareSwap(op.SlotAddress(victim), op.Candidate(victim).word(), common_.NewFree().word(),
                         &op.buffers->cas[0], Word::kAnyonesSlot);
    const Outcome killed = co_await op.batch.Run();
    co_return killed == Outcome::kOk ? Step::kRestart : Step::kUnavailable;
  }
  if (workbench_.busy()) co_return Step::kRestart;  // Split would say so too, so there is no need to read
  const Step splittable = co_await CanBeSplit(op, why_not);
  // Where splitting does not help, it helps that a tentative slot is given up or killed.
  if (splittable == Step::kFull && count > 0) co_return Step::kRestart;
  if (splittable != Step::kOk) co_return splittable;
  const Step split = co_await splitter_.Split(op, op.scan.table);
  if (split == Step::kFull) {
    *why_not = Status(StatusCode::kOutOfMemory, "the table is full and the memory nodes have no room for it to grow");
  }
  co_return split;
}

// Checks whether splits can take any of the candidates, all in use, away from the key. kFull: they cannot. One useless
// split would only be the first of many, up to the largest depth.
Task<Step> Writer::CanBeSplit(Operation& op, Status* why_not) {
  auto* const blocks = reinterpret_cast<BlockHeader*>(op.buffers->match.data());
  for (uint32_t c = 0; c < kCandidates; ++c) {
    if (!op.Candidate(c).has_block()) co_return Step::kOk;
  }
  for (uint32_t c = 0; c < kCandidates; ++c) op.batch.Read(op.Candidate(c).block(), &blocks[c], sizeof(BlockHeader));
  KVS_CO_RETURN_UNLESS_OK(co_await op.batch.Run());
  uint64_t differ = 0;
  for (uint32_t c = 0; c < kCandidates; ++c) differ |= blocks[c].hash ^ op.hash.h1;
  constexpr uint64_t kSuffixes = (uint64_t{1} << kMaxDepth) - 1;
  if ((differ & kSuffixes) != 0) co_return Step::kOk;
  const bool deepest = op.buffers->candidates().front().header.depth() >= kMaxDepth;
  *why_not = deepest && differ != 0
                 ? Status(StatusCode::kOutOfMemory, "the table has its largest size, and no slot for the key is free")
                 : Status(StatusCode::kInvalidArgument,
                          "the key collides: 28 keys with a hash like its own have all slots that it could have, and "
                          "neither splits nor memory help (delete one of them)");
  co_return Step::kFull;
}

}  // namespace kvs
