// The usual case of a write, in which nothing moves and nobody else wants the key: a sequence of steps, each of which
// looks at what the last round trip has brought and asks for the next. For one write or for many at a time, in a
// coroutine or without one:
//
//   do {
//     write.step = GoOnWriting(write, batch);
//     write.outcome = co_await batch.Run();
//   } while (GoesOn(write.step, write.outcome, batch));
//
// The step numbers are those of docs/protocol.md.
#include "kvs/layout/candidates.h"
#include "kvs/src/client_core.h"
#include "kvs/src/mutation.h"
#include "kvs/src/pending_write.h"

namespace kvs {

// What was asked for is there. kOk: the write has ended, write.result is how; kRun: more has been asked for; kRestart:
// it is no usual case, and for SettleWrite; kFull: nor is this, for want of a FREE slot.
Step ClientCore::GoOnWriting(PendingWrite& write, Batch& batch) {
  Operation& op = *write.op;
  switch (write.phase) {
    case PendingWrite::Phase::kBegin: return BeginWrite(write, batch);
    case PendingWrite::Phase::kScanned: return Publish(write, batch);
    case PendingWrite::Phase::kScan: {
      write.block.written = true;
      write.block.in_doubt = false;
      const Step step = GoOnReading(op, batch);
      if (step != Step::kOk) return step;
      return Publish(write, batch);
    }
    case PendingWrite::Phase::kReplace:
      if (op.buffers->cas[0] != write.old.word()) [[unlikely]]
        return Step::kRestart;
      Replaced(write);
      return Step::kOk;
    case PendingWrite::Phase::kInsert: return LookBehindTentative(write, batch);
    case PendingWrite::Phase::kConfirm: break;
  }
  if (op.buffers->cas[0] != write.now.word() && !Mutated(Mutation::kFailedConfirmOk)) [[unlikely]]
    return Step::kRestart;
  Inserted(write);
  return Step::kOk;
}

// (1) The block travels beside the scan. kRun: both have been asked for; else it is no usual case.
Step ClientCore::BeginWrite(PendingWrite& write, Batch& batch) {
  Operation& op = *write.op;
  op.inserts = write.inserts();
  const bool has_block = write.kind != OpKind::kDelete;
  if (has_block) {
    if (!IsSmall(op.key, write.value) || PlaceBlock(write) != Step::kOk) {
      address_cache_.Count(clock_);  // else BeginRead does
      return Step::kRestart;
    }
    (void)BuildNewBlock(write);  // which fails for want of memory for a large one
  }
  if (const Step begun = BeginRead(op, batch); begun != Step::kRun) return begun;
  write.phase = PendingWrite::Phase::kScan;
  if (!has_block || Mutated(Mutation::kBlockNotAwaited)) return Step::kRun;
  NewBlock& block = write.block;
  batch.Write(block.local, block.address, static_cast<uint32_t>(block.content_bytes));
  block.in_doubt = true;
  return Step::kRun;
}

// The scan found the key's value, or that it is absent and that nothing moves.
Step ClientCore::Publish(PendingWrite& write, Batch& batch) {
  Operation& op = *write.op;
  if (op.scan.val >= 0) {  // (2)
    if (write.kind == OpKind::kInsert) {
      write.result = StatusCode::kExists;
      return Step::kOk;
    }
    write.candidate = static_cast<uint32_t>(op.scan.val);
    write.old = op.Candidate(write.candidate);
    write.now = Replacement(write, write.old);
    AskToSwap(write, batch, write.old, write.now);
    ++stats_.write_attempts;
    write.phase = PendingWrite::Phase::kReplace;
    return Step::kRun;
  }
  if (!write.inserts()) {  // (5)
    write.result = StatusCode::kNotFound;
    return Step::kOk;
  }
  // (6) a. On one queue, the scan behind the CAS: it sees whatever was there when the tentative slot appeared.
  const int candidate = ChooseFreeSlot(op.scan.places, FreeSlots(op.buffers->candidates()));
  if (candidate < 0) return Step::kFull;
  write.candidate = static_cast<uint32_t>(candidate);
  const SlotState tentative = Mutated(Mutation::kInsertWithoutIns) ? SlotState::kVal : SlotState::kIns;
  write.now = write.block.InState(tentative, op.hash.fingerprint(), 0);
  AskToSwap(write, batch, Slot::Free(), write.now);
  ++stats_.write_attempts;
  write.block.shown = true;
  op.own_ins = write.now.word();
  write.phase = PendingWrite::Phase::kInsert;
  ReadBuckets(op, batch);
  return Step::kRun;
}

// (6b-f) The usual case: nobody else has the key, and the table is the key's.
Step ClientCore::LookBehindTentative(PendingWrite& write, Batch& batch) {
  Operation& op = *write.op;
  if (op.buffers->cas[0] != Slot::Free().word()) return Step::kRestart;
  if (Mutated(Mutation::kInsertWithoutIns)) {
    Inserted(write);
    return Step::kOk;
  }
  op.scan.states = kInserterStates;
  PlanMatches(op);
  const bool alone = op.scan.planned_count == 0 || Mutated(Mutation::kConfirmWithoutKill);
  const bool fits = FitOfHeaders(op.buffers->candidates(), op.hash.h1).fits || Mutated(Mutation::kInsertWithoutHeaders);
  if (!alone || !fits) return Step::kRestart;
  if (op.Candidate(write.candidate) != write.now) return Step::kRestart;  // c: a rival or a migrator killed it
  if (Mutated(Mutation::kConfirmByWrite)) return Step::kRestart;
  AskToSwap(write, batch, write.now, write.now.WithState(SlotState::kVal));
  write.phase = PendingWrite::Phase::kConfirm;
  return Step::kRun;
}

// A CAS of the slot, the old word of which will be in cas[0].
void ClientCore::AskToSwap(PendingWrite& write, Batch& batch, Slot old, Slot now) {
  const NewBlock& block = write.block;
  if (Mutated(Mutation::kBlockNotAwaited) && block.local != nullptr && !block.shown &&
      block.content_bytes <= kMaxSmallBlockBytes) {
    batch.Write(block.local, block.address, static_cast<uint32_t>(block.content_bytes));
  }
  batch.CompareSwap(write.at(), old.word(), now.word(), &write.op->buffers->cas[0]);
}

// (2) What a write puts in the place of the VAL slot `old`.
Slot ClientCore::Replacement(const PendingWrite& write, Slot old) {
  if (write.kind == OpKind::kDelete) return Slot::Free();
  return write.block.InState(SlotState::kVal, write.op->hash.fingerprint(), static_cast<uint8_t>(old.version() + 1));
}

// That took effect.
void ClientCore::Replaced(PendingWrite& write) {
  Operation& op = *write.op;
  write.block.published = true;
  RetireOld(op, write.old);
  if (write.now == Slot::Free()) ConsiderMerge(op, op.scan.table);
  address_cache_.Refresh(op.hash.h1, write.now);
}

// (6f) The tentative slot is a value now.
void ClientCore::Inserted(PendingWrite& write) {
  Operation& op = *write.op;
  write.block.published = true;
  write.existed = false;
  op.own_ins = 0;
  address_cache_.Refresh(op.hash.h1, write.now.WithState(SlotState::kVal));
}

}  // namespace kvs
