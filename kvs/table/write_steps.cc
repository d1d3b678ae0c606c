// First comes the usual case of a write, in which nothing moves and nobody else wants the key. It is a sequence of
// steps, each of which looks at what the last round trip has brought and asks for the next. Then comes what happens to
// a write that the steps have not ended. At the end is what concerns a write's block: its memory, its contents, and
// what becomes of it and of the block that it replaces.
#include <algorithm>
#include <optional>
#include <span>
#include <string_view>
#include <utility>

#include "kvs/layout/candidates.h"
#include "kvs/memory/mutation.h"
#include "kvs/table/writer.h"

namespace kvs {
namespace {

// How many lost CASes are answered by looking at the slot's new block, rather than by backing off and scanning again.
constexpr uint32_t kLooksAgain = 1;

}  // namespace

// ---- the steps

Step Writer::GoOnWriting(PendingWrite& write, Batch& batch) {
  Operation& op = *write.op;
  switch (write.phase) {
    case PendingWrite::Phase::kBegin: return BeginWrite(write, batch);
    case PendingWrite::Phase::kScanned: return Publish(write, batch);
    case PendingWrite::Phase::kScan: {
      write.block.written = true;
      write.block.in_doubt = false;
      const Step step = finder_.GoOnReading(op, batch);
      if (step != Step::kOk) return step;
      return Publish(write, batch);
    }
    case PendingWrite::Phase::kBlock: {
      write.block.written = true;
      write.block.in_doubt = false;
      if (Mutated(Mutation::kWordReadAgain) && op.scan.val >= 0 &&
          Slot(op.buffers->slots[0]).state() == SlotState::kVal) {
        op.SetCandidate(static_cast<uint32_t>(op.scan.val), Slot(op.buffers->slots[0]));
      }
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

// [Write 1] The block's WRITE goes out together with the scan. kRun: both have been asked for. Else it is not the usual
// case.
Step Writer::BeginWrite(PendingWrite& write, Batch& batch) {
  Operation& op = *write.op;
  op.inserts = write.inserts();
  const bool has_block = write.kind != WriteKind::kDelete && write.modify == nullptr;
  if (has_block) {
    const bool usual = IsSmall(op.key, write.value, write.expires_at_ms) && !MustSayExpiring(write);
    if (!usual || PlaceBlock(write) != Step::kOk) {
      addresses_.Count(common_.clock);  // else BeginRead does
      return Step::kRestart;
    }
    (void)BuildNewBlock(write);  // this fails only if there is no memory for a large block
  }
  if (const Step begun = finder_.BeginRead(op, batch); begun != Step::kRun) return begun;
  write.phase = PendingWrite::Phase::kScan;
  if (!has_block || Mutated(Mutation::kBlockNotAwaited)) return Step::kRun;
  NewBlock& block = write.block;
  batch.Write(block.local, block.address, static_cast<uint32_t>(block.content_bytes));
  block.in_doubt = true;
  return Step::kRun;
}

// The scan found the key's value, or found that the key is absent and nothing moves.
Step Writer::Publish(PendingWrite& write, Batch& batch) {
  Operation& op = *write.op;
  if (write.kind == WriteKind::kModify) return Decide(write, batch);
  if (op.scan.val >= 0) {  // [Write 2]
    write.expired = HasExpired(op.scan.block.expires_at_ms(), common_.clock);
    if (write.kind == WriteKind::kInsert && !write.expired) {
      write.result = StatusCode::kExists;
      return Step::kOk;
    }
    write.candidate = static_cast<uint32_t>(op.scan.val);
    write.old = op.Candidate(write.candidate);
    write.now = Replacement(write);
    AskToSwap(write, batch, write.old, write.now);
    ++common_.stats.write_attempts;
    write.phase = PendingWrite::Phase::kReplace;
    return Step::kRun;
  }
  if (!write.inserts()) {  // [Write 5]
    write.result = StatusCode::kNotFound;
    return Step::kOk;
  }
  // [Write 6a] The scan follows the CAS on one queue, so it sees whatever was there when the tentative slot appeared.
  const int candidate = ChooseFreeSlot(op.scan.places, FreeSlots(op.buffers->candidates()));
  if (candidate < 0) return Step::kFull;
  write.candidate = static_cast<uint32_t>(candidate);
  write.old = op.Candidate(write.candidate);
  const SlotState tentative = Mutated(Mutation::kInsertWithoutIns) ? SlotState::kVal : SlotState::kIns;
  write.now = write.block.InState(tentative, op.hash.fingerprint(), static_cast<uint8_t>(write.block.tentatives++));
  AskToSwap(write, batch, write.old, write.now);
  ++common_.stats.write_attempts;
  write.block.shown = true;
  op.own_ins = write.now.word();
  write.phase = PendingWrite::Phase::kInsert;
  finder_.ReadBuckets(op, batch);
  return Step::kRun;
}

// [Modify 1] Runs a Modify's functions on what the scan found. From then on the Modify is a Put or a Delete, whose CAS
// expects the slot word of that scan. kRestart: there is no memory at hand for the block.
Step Writer::Decide(PendingWrite& write, Batch& batch) {
  Operation& op = *write.op;
  NewBlock& block = write.block;
  std::optional<Record> record;
  if (op.scan.val >= 0) record = Record{op.scan.block.value(), op.scan.block.expires_at_ms()};
  const bool expired = record && HasExpired(record->expires_at_ms, common_.clock);
  if (expired) record.reset();
  Modification wanted = write.modify->Fold(record, common_.clock);
  // [Expire 1] What has expired is removed before anybody says that the key is absent.
  if (expired && wanted.action == Modification::Action::kKeep) wanted.action = Modification::Action::kDelete;
  if (block.local != nullptr) DropBlock(write);  // it has a value that they wanted earlier
  switch (wanted.action) {
    case Modification::Action::kKeep:
      if (record) addresses_.Learn(op.hash.h1, op.Candidate(static_cast<uint32_t>(op.scan.val)));
      return Step::kOk;
    case Modification::Action::kDelete:
      if (op.scan.val < 0) return Step::kOk;
      DropBlock(write);
      write.kind = WriteKind::kDelete;
      return Publish(write, batch);
    case Modification::Action::kSet: break;
  }
  // The memory may be that of a pool which is younger than what the batch began with.
  if (batch.Outlived()) return Step::kRestart;
  write.value = wanted.value;
  write.expires_at_ms = wanted.expires_at_ms;
  if (MustSayExpiring(write)) return Step::kRestart;
  Step built = PlaceBlock(write);
  if (built == Step::kOk) built = BuildNewBlock(write);
  write.value = {};
  if (built == Step::kRun) return Step::kRestart;  // it waits for memory
  if (built != Step::kOk) {
    write.result = StatusCode::kOutOfMemory;
    return Step::kOk;
  }
  if (!SendBlock(batch, &block)) return Step::kRestart;
  if (Mutated(Mutation::kWordReadAgain) && op.scan.val >= 0) {
    batch.Read(op.SlotAddress(static_cast<uint32_t>(op.scan.val)), &op.buffers->slots[0], sizeof(uint64_t));
  }
  write.kind = WriteKind::kPut;
  write.phase = PendingWrite::Phase::kBlock;
  return Step::kRun;
}

// [Write 6b to 6f] The usual case: nobody else has the key, and the table is the key's.
Step Writer::LookBehindTentative(PendingWrite& write, Batch& batch) {
  Operation& op = *write.op;
  if (op.buffers->cas[0] != write.old.word()) return Step::kRestart;
  if (Mutated(Mutation::kInsertWithoutIns)) {
    Inserted(write);
    return Step::kOk;
  }
  op.scan.states = kInserterStates;
  finder_.PlanMatches(op);
  const bool alone = op.scan.planned_count == 0 || Mutated(Mutation::kConfirmWithoutKill);
  const bool fits = FitOfHeaders(op.buffers->candidates(), op.hash.h1).fits || Mutated(Mutation::kInsertWithoutHeaders);
  if (!alone || !fits) return Step::kRestart;
  if (op.Candidate(write.candidate) != write.now) return Step::kRestart;  // [Write 6c] a rival or a splitter killed it
  if (Mutated(Mutation::kConfirmByWrite)) return Step::kRestart;
  AskToSwap(write, batch, write.now, write.now.WithState(SlotState::kVal));
  write.phase = PendingWrite::Phase::kConfirm;
  return Step::kRun;
}

// Asks for a CAS of the slot. The slot's old word will be in cas[0].
void Writer::AskToSwap(PendingWrite& write, Batch& batch, Slot old, Slot now) {
  const NewBlock& block = write.block;
  if (Mutated(Mutation::kBlockNotAwaited) && block.local != nullptr && !block.shown &&
      block.content_bytes <= kMaxSmallBlockBytes) {
    batch.Write(block.local, block.address, static_cast<uint32_t>(block.content_bytes));
  }
  batch.CompareSwap(write.at(), old.word(), now.word(), &write.op->buffers->cas[0], Word::kOwnSlot);
}

// [Write 2] Returns what a write puts in the place of a VAL slot. [Expire 1] An Update removes what has expired.
Slot Writer::Replacement(const PendingWrite& write) const {
  if (write.kind == WriteKind::kDelete || (write.expired && !write.inserts())) return common_.NewFree();
  return write.block.InState(SlotState::kVal, write.op->hash.fingerprint(), 0);
}

// [Write 2] The CAS of the VAL slot took effect.
void Writer::Replaced(PendingWrite& write) {
  Operation& op = *write.op;
  write.block.published = !write.now.free();
  if (write.expired) [[unlikely]] {
    ++common_.stats.expired;
    write.existed = false;
    if (!write.inserts() && write.modify == nullptr) write.result = StatusCode::kNotFound;
  }
  RetireOld(op, write.old);
  if (write.now.free()) merger_.ConsiderMerge(op, op.scan.table);
  addresses_.Refresh(op.hash.h1, write.now);
}

// [Write 6f] The tentative slot is a value now.
void Writer::Inserted(PendingWrite& write) {
  Operation& op = *write.op;
  write.block.published = true;
  write.existed = false;
  op.own_ins = 0;
  addresses_.Refresh(op.hash.h1, write.now.WithState(SlotState::kVal));
}

// ---- what the steps have not ended

Task<Step> Writer::SettleWrite(PendingWrite& write) {
  Operation& op = *write.op;
  const Outcome outcome = write.outcome;
  op.again = Again::kLost;
  switch (write.phase) {
    case PendingWrite::Phase::kBegin:
    case PendingWrite::Phase::kScan:
    case PendingWrite::Phase::kBlock:
    case PendingWrite::Phase::kScanned:
      op.again = Again::kElse;
      co_return outcome == Outcome::kOk ? Step::kRestart : Step::kUnavailable;
    case PendingWrite::Phase::kReplace: co_return co_await ReplaceAfterAll(write, outcome);
    case PendingWrite::Phase::kInsert: {
      if (outcome == Outcome::kFenced) co_return Step::kRestart;  // it was never posted
      if (outcome != Outcome::kOk) {
        const Step aborted = co_await AbortTentative(write);
        if (aborted == Step::kUnavailable) co_return InDoubt(write);
        write.block = {};  // a verb that names the block has an unknown outcome: nobody uses it again
        co_return Step::kRestart;
      }
      if (op.buffers->cas[0] != write.old.word()) {
        ++common_.stats.cas_failures;
        co_return Step::kRestart;
      }
      const Step scanned = co_await finder_.ScanTable(op, op.scan.table, kInserterStates);
      co_return co_await ConfirmAfterAll(write, scanned);
    }
    case PendingWrite::Phase::kConfirm: break;
  }
  co_return co_await LookAtConfirm(write, outcome);
}

// [Write 2] The CAS of the VAL slot had `outcome`, or was lost. Returns what SettleWrite returns.
Task<Step> Writer::ReplaceAfterAll(PendingWrite& write, Outcome outcome) {
  Operation& op = *write.op;
  for (uint32_t looks = 0;; ++looks) {
    if (looks > 0) {
      write.old = op.Candidate(write.candidate);
      write.now = Replacement(write);
      ++common_.stats.write_attempts;
      op.batch.CompareSwap(write.at(), write.old.word(), write.now.word(), &op.buffers->cas[0], Word::kOwnSlot);
      outcome = co_await op.batch.Run();
    }
    if (outcome == Outcome::kFenced) co_return Step::kRestart;  // it was never posted
    if (outcome != Outcome::kOk) {
      const Step looked = co_await LookAtOutcome(op, write.at(), write.old, write.now);
      if (looked == Step::kRestart) continue;  // it was not carried out, and will not be
      if (looked != Step::kOk) co_return EndUnknown(write);
    } else if (op.buffers->cas[0] != write.old.word()) {
      ++common_.stats.cas_failures;
      if (Mutated(Mutation::kLostCasOk) && write.kind != WriteKind::kDelete) co_return Step::kOk;
      // A Modify's functions have not run on what won. Whether what won against a removal has expired, a scan tells.
      const bool must_run = (write.modify != nullptr && !Mutated(Mutation::kLostModifyAgain)) || write.expired;
      if (looks == kLooksAgain || must_run) co_return Step::kRestart;
      const Step looked = co_await LookAgain(write, Slot(op.buffers->cas[0]));
      if (looked == Step::kOk) continue;
      if (!Failed(op, looked)) co_return Step::kRestart;
      write.result = common_.connections.UnavailableStatus("reading a block");
      co_return Step::kOk;
    }
    Replaced(write);
    co_return Step::kOk;
  }
}

// [Write 2] A lost CAS returned the word that is in the slot now. The next CAS may expect that word, without a scan, if
// it is a value whose block holds this very key; so the block is read. The slot is read again after the block: if it
// goes on changing, the next CAS would be lost as well. kOk: the slot's candidate is the word to expect. kRestart: scan
// again.
Task<Step> Writer::LookAgain(PendingWrite& write, Slot there) {
  Operation& op = *write.op;
  if (there.state() != SlotState::kVal || there.fingerprint() != op.hash.fingerprint() ||
      there.length_units() == kLargeBlock) {
    co_return Step::kRestart;
  }
  op.batch.Read(there.block(), op.buffers->match.data(), FirstReadBytes(there));
  op.batch.Read(write.at(), &op.buffers->slots[0], sizeof(uint64_t));
  KVS_CO_RETURN_UNLESS_OK(co_await op.batch.Run());
  if (op.buffers->slots[0] != there.word()) co_return Step::kRestart;
  const BlockView block(op.buffers->match.data());
  const bool same_key = block.Intact(FirstReadBytes(there)) && block.key() == op.key;
  if (!same_key && !Mutated(Mutation::kLostCasKeyUnchecked)) co_return Step::kRestart;
  if (HasExpired(block.expires_at_ms(), common_.clock)) co_return Step::kRestart;
  op.SetCandidate(write.candidate, there);
  op.scan.block = block;
  co_return Step::kOk;
}

// [Write 6b to 6f] The tentative slot was made; the scan after that ended as `scanned`. Returns what SettleWrite does.
Task<Step> Writer::ConfirmAfterAll(PendingWrite& write, Step scanned) {
  Operation& op = *write.op;
  const TableRef table = op.scan.table;
  const Slot own = write.now;
  for (Step step = scanned;; step = co_await finder_.ScanTable(op, table, kInserterStates)) {
    if (step == Step::kUnavailable) co_return InDoubt(write);
    const bool found = (op.scan.val >= 0 && !Mutated(Mutation::kRescanIgnoresVal)) || op.scan.frz >= 0;
    const bool fit = op.scan.headers_fit || Mutated(Mutation::kInsertWithoutHeaders);
    const bool rival = op.scan.ins_count != 0 && !Mutated(Mutation::kConfirmWithoutKill);
    const bool rival_counts = rival && Mutated(Mutation::kExistsOnIns);
    if (step != Step::kOk || !fit || found || rival_counts) {  // [Write 6b, 6d] (and torn reads)
      const bool exists = step == Step::kOk && (op.scan.val >= 0 || rival_counts);
      const Step aborted = co_await AbortTentative(write);
      if (aborted == Step::kUnavailable) co_return InDoubt(write);
      if (!exists) co_return Step::kRestart;
      op.again = Again::kAtOnce;
      const bool expired = op.scan.val >= 0 && HasExpired(op.scan.block.expires_at_ms(), common_.clock);
      if (write.kind != WriteKind::kInsert || expired) co_return Step::kRestart;
      write.result = StatusCode::kExists;
      co_return Step::kOk;
    }
    if (op.Candidate(write.candidate) != own) co_return Step::kRestart;  // [Write 6c] a rival or a splitter killed it
    if (!rival) break;
    // [Write 6e] Rivals with the same key: whoever kills first goes on.
    const uint32_t rivals = op.scan.ins_count;
    for (uint32_t i = 0; i < rivals; ++i) {
      const uint32_t c = op.scan.ins[i];
      op.batch.CompareSwap(op.SlotAddress(c), op.Candidate(c).word(), common_.NewFree().word(), &op.buffers->cas[i],
                           Word::kAnyonesSlot);
    }
    const Outcome killed = co_await op.batch.Run();
    if (killed != Outcome::kOk) co_return InDoubt(write);
    bool all_killed = true;
    for (uint32_t i = 0; i < rivals; ++i) {
      all_killed &= op.buffers->cas[i] == op.Candidate(op.scan.ins[i]).word();
    }
    if (all_killed || Mutated(Mutation::kConfirmAfterFailedKill)) break;
    ++common_.stats.cas_failures;
  }
  // [Write 6f] The linearization point.
  if (Mutated(Mutation::kConfirmByWrite)) {
    op.buffers->cas[1] = own.WithState(SlotState::kVal).word();
    op.buffers->cas[0] = own.word();
    op.batch.Write(&op.buffers->cas[1], write.at(), sizeof(uint64_t));
  } else {
    AskToConfirm(write);
  }
  const Outcome outcome = co_await op.batch.Run();
  co_return co_await LookAtConfirm(write, outcome);
}

void Writer::AskToConfirm(PendingWrite& write) {
  write.op->batch.CompareSwap(write.at(), write.now.word(), write.now.WithState(SlotState::kVal).word(),
                              &write.op->buffers->cas[0], Word::kOwnSlot);
}

// [Write 6f] The CAS that confirms had `outcome`. Returns what SettleWrite returns.
Task<Step> Writer::LookAtConfirm(PendingWrite& write, Outcome outcome) {
  Operation& op = *write.op;
  if (outcome == Outcome::kFenced) co_return InDoubt(write);  // it was never posted
  while (outcome != Outcome::kOk) {
    const Step looked = co_await LookAtOutcome(op, write.at(), write.now, write.now.WithState(SlotState::kVal));
    if (looked == Step::kOk) {
      Inserted(write);
      co_return Step::kOk;
    }
    if (looked == Step::kUnavailable) co_return EndUnknown(write);
    AskToConfirm(write);
    outcome = co_await op.batch.Run();
  }
  if (op.buffers->cas[0] == write.now.word() || Mutated(Mutation::kFailedConfirmOk)) {
    Inserted(write);
    co_return Step::kOk;
  }
  ++common_.stats.cas_failures;
  co_return Step::kRestart;
}

Task<Step> Writer::AbortTentative(PendingWrite& write) {
  Operation& op = *write.op;
  op.batch.CompareSwap(write.at(), write.now.word(), common_.NewFree().word(), &op.buffers->cas[0], Word::kAnyonesSlot);
  const Outcome aborted = co_await op.batch.Run();
  co_return aborted == Outcome::kOk ? Step::kOk : Step::kUnavailable;  // lost: somebody else had killed it
}

// Nobody can tell whether the tentative slot is there, but nobody makes it a value. Returns what SettleWrite does.
Step Writer::InDoubt(PendingWrite& write) {
  if (!Failed(*write.op, Step::kUnavailable)) return Step::kRestart;
  write.block.in_doubt = true;
  write.result = common_.connections.UnavailableStatus("inserting");
  return Step::kOk;
}

// A CAS that publishes, from `before` to `after` in the slot at `at`, ended with an error. It cannot execute any more
// (krcore/rnic.h), so a look at the slot tells what became of it. kOk: it was carried out. kRestart: it was not.
// kUnavailable: that cannot be told. In a mirrored pool the old word tells nothing: another client that has met the new
// one at a head may still bring it.
Task<Step> Writer::LookAtOutcome(Operation& op, GlobalAddress at, Slot before, Slot after) {
  constexpr int kLooks = 4;
  for (int look = 0; look < kLooks && !op.batch.Stale() && !epochs_.operations.OutOfTime(op); ++look) {
    op.batch.Read(at, &op.buffers->cas[0], sizeof(uint64_t));
    const Outcome read = co_await op.batch.Run();
    if (read == Outcome::kOk) {
      const Slot found(op.buffers->cas[0]);
      ++common_.stats.outcomes_looked_up;
      if (found == before) co_return common_.connections.mirrored() ? Step::kUnavailable : Step::kRestart;
      // The new word is nobody else's: it names this client's own block, or has a nonce.
      const bool frozen = after.has_block() && found == after.WithState(SlotState::kFrz);
      co_return found == after || frozen ? Step::kOk : Step::kUnavailable;
    }
    co_await epochs_.operations.Pause(
        std::max(Connections::kReconnectIntervalNs, common_.connections.NextTryNs(at.node) - common_.clock.NowNs()));
  }
  co_return Step::kUnavailable;
}

// Ends a write whose publishing verb was posted, and whose outcome is not known. Another try might do it twice. Returns
// what SettleWrite returns.
Step Writer::EndUnknown(PendingWrite& write) const {
  write.block.in_doubt = true;
  if (write.modify != nullptr && Mutated(Mutation::kUnknownTriedAgain)) return Step::kRestart;
  write.result = UnknownStatus();
  return Step::kOk;
}

Status Writer::UnknownStatus() const {
  if (Mutated(Mutation::kUnknownIsFailure)) return common_.connections.UnavailableStatus("publishing");
  if (Mutated(Mutation::kUnknownIsSuccess)) return Status::Ok();
  return {StatusCode::kUnknown, common_.connections.UnavailableStatus("publishing").ToString()};
}

// ---- the block

// Takes memory for the block, if the client has some at hand. kRun: it has none; Allocator::Allocate gets some.
Step Writer::PlaceBlock(PendingWrite& write) {
  Operation& op = *write.op;
  NewBlock& block = write.block;
  const uint64_t content_bytes = BlockBytes(op.key.size(), write.value.size(), write.expires_at_ms != 0);
  const uint64_t bytes = RoundBlockBytes(content_bytes, common_.shape.chunk_bytes);
  // A Modify may have waited for memory already, for as long a value or for another one.
  if (block.address.valid() && block.bytes != bytes) DropBlock(write);
  block.content_bytes = content_bytes;
  block.bytes = bytes;
  if (block.address.valid()) return Step::kOk;
  // Prefer the node of the key's subtable, if that is known: one queue then orders its READ after the bucket's.
  TableRef table;
  block.preferred = cache_.Lookup(op.hash, &table) ? table.address.node : krcore::kNoNode;
  return epochs_.allocator.AllocateAtOnce(op, block.bytes, block.preferred, &block.address) ? Step::kOk : Step::kRun;
}

// Builds the block, which has its memory, in a local buffer. kFull: there is no buffer for so large a block.
Step Writer::BuildNewBlock(PendingWrite& write) {
  Operation& op = *write.op;
  NewBlock& block = write.block;
  const std::span<std::byte> local = epochs_.operations.BlockBuffer(op, block.content_bytes, &block.lkey);
  if (local.empty()) return Step::kFull;
  block.birth = epochs_.home.epoch();
  BuildBlock(local, op.hash.h1, block.birth, op.key, write.value, write.expires_at_ms);
  block.local = local.data();
  return Step::kOk;
}

// Adds the block's WRITE to the batch. False: its memory node cannot be reached.
bool Writer::SendBlock(Batch& batch, NewBlock* block) {
  if (!common_.connections.Reach(block->address.node)) return false;
  if (!Mutated(Mutation::kBlockNotAwaited) || block->content_bytes > kMaxSmallBlockBytes) {
    batch.Write(block->local, block->address, static_cast<uint32_t>(block->content_bytes), block->lkey);
  }
  block->in_doubt = true;
  return true;
}

// Retires the block of a slot that this client emptied or replaced.
void Writer::RetireOld(Operation& op, Slot old) {
  const TableRef& table = op.scan.table;
  const uint64_t bytes = old.length_units() == kLargeBlock
                             ? RoundBlockBytes(op.scan.block.bytes(), common_.shape.chunk_bytes)
                             : uint64_t{old.length_units()} * kUnitBytes;
  ++common_.stats.blocks_retired;
  const Extent extent{old.block(), bytes, false, op.scan.block.header().birth_epoch};
  if (Mutated(Mutation::kNoGrace)) {
    epochs_.memory.Of(op.batch).Free(extent);
  } else if (table.migrating() && !Mutated(Mutation::kNoHold)) {
    epochs_.memory.Of(op.batch).RetireHeld(table.index, extent);
  } else {
    epochs_.memory.Of(op.batch).Retire(extent);
  }
}

void Writer::GiveBackUnused(const PendingWrite& write) {
  const NewBlock& block = write.block;
  if (!block.address.valid() || block.published || write.op->batch.Stale()) return;
  if (block.in_doubt && !Mutated(Mutation::kInDoubtReused)) return;
  const Extent extent{block.address, block.bytes, false, block.birth};
  if (!block.shown || Mutated(Mutation::kShownReused)) {
    epochs_.memory->Free(extent);
  } else {
    epochs_.memory->Retire(extent);  // never frozen, so there is no split to wait for
  }
}

void Writer::DropBlock(PendingWrite& write) {
  GiveBackUnused(write);
  write.block = {};
}

}  // namespace kvs
