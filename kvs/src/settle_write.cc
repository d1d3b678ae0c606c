// What has become of a write whose steps (write_steps.cc) have not ended it: from what was asked for last it is told,
// or brought about, whether it has taken effect. The step numbers are those of docs/protocol.md.
#include <string>

#include "kvs/src/client_core.h"
#include "kvs/src/mutation.h"
#include "kvs/src/pending_write.h"

namespace kvs {
namespace {

// Lost CASes that are answered by looking at the slot's new block, rather than by backing off and scanning again.
constexpr uint32_t kLooksAgain = 1;

}  // namespace

// How a write that has ended its steps has ended. kOk: write.result. kRestart: it has not taken effect and will not,
// and may begin again. kUnavailable: nor has it, for nothing was published, but a memory node of that round trip is
// away.
Task<Step> ClientCore::SettleWrite(PendingWrite& write) {
  Operation& op = *write.op;
  const Outcome outcome = write.outcome;
  op.again = Again::kLost;
  switch (write.phase) {
    case PendingWrite::Phase::kBegin:
    case PendingWrite::Phase::kScan:
    case PendingWrite::Phase::kScanned:
      op.again = Again::kElse;
      co_return outcome == Outcome::kOk ? Step::kRestart : Step::kUnavailable;
    case PendingWrite::Phase::kReplace: co_return co_await ReplaceAfterAll(write, outcome);
    case PendingWrite::Phase::kInsert: {
      if (outcome == Outcome::kFenced) co_return Step::kRestart;  // it was never posted
      if (outcome != Outcome::kOk) {
        const Step aborted = co_await AbortTentative(write);
        if (aborted == Step::kUnavailable) co_return InDoubt(write);
        write.block = {};  // a verb that names it has an unknown outcome: nobody uses it again
        co_return Step::kRestart;
      }
      if (op.buffers->cas[0] != Slot::Free().word()) {
        ++stats_.cas_failures;
        co_return Step::kRestart;
      }
      const Step scanned = co_await ScanTable(op, op.scan.table, kInserterStates);
      co_return co_await ConfirmAfterAll(write, scanned);
    }
    case PendingWrite::Phase::kConfirm: break;
  }
  co_return co_await LookAtConfirm(write, outcome);
}

// (2) That CAS had `outcome`, or was lost. As SettleWrite.
Task<Step> ClientCore::ReplaceAfterAll(PendingWrite& write, Outcome outcome) {
  Operation& op = *write.op;
  for (uint32_t looks = 0;; ++looks) {
    if (looks > 0) {
      write.old = op.Candidate(write.candidate);
      write.now = Replacement(write, write.old);
      ++stats_.write_attempts;
      op.batch.CompareSwap(write.at(), write.old.word(), write.now.word(), &op.buffers->cas[0]);
      outcome = co_await op.batch.Run();
    }
    if (outcome == Outcome::kFenced) co_return Step::kRestart;  // it was never posted
    if (outcome != Outcome::kOk) {
      const Step looked = co_await LookAtOutcome(op, write.at(), write.old, write.now);
      if (looked == Step::kRestart) continue;  // it was not carried out, and will not be
      if (looked != Step::kOk) {
        write.block.in_doubt = true;
        write.result = UnknownStatus();
        co_return Step::kOk;
      }
    } else if (op.buffers->cas[0] != write.old.word()) {
      ++stats_.cas_failures;
      if (Mutated(Mutation::kLostCasOk) && write.kind != OpKind::kDelete) co_return Step::kOk;
      if (looks == kLooksAgain) co_return Step::kRestart;
      const Step looked = co_await LookAgain(write, Slot(op.buffers->cas[0]));
      if (looked == Step::kOk) continue;
      if (!Failed(op, looked)) co_return Step::kRestart;
      write.result = UnavailableStatus("reading a block");
      co_return Step::kOk;
    }
    Replaced(write);
    co_return Step::kOk;
  }
}

// (2) A lost CAS returned the word that is in the slot now. If that is a value whose block holds this very key, which
// has to be read, the next CAS may expect it: no scan is needed. The slot is read again behind the block: if it goes on
// changing, that CAS would be lost as well. kOk: the slot's candidate is the word to expect. kRestart: scan again.
Task<Step> ClientCore::LookAgain(PendingWrite& write, Slot there) {
  Operation& op = *write.op;
  if (there.state() != SlotState::kVal || there.fingerprint() != op.hash.fingerprint() ||
      there.length_units() == kLargeBlock) {
    co_return Step::kRestart;
  }
  if (!connections_.Reach(there.block().node)) co_return Step::kUnavailable;
  op.batch.Read(there.block(), op.buffers->match.data(), FirstReadBytes(there));
  op.batch.Read(write.at(), &op.buffers->slots[0], sizeof(uint64_t));
  const Outcome read = co_await op.batch.Run();
  if (read != Outcome::kOk) co_return Step::kUnavailable;
  if (op.buffers->slots[0] != there.word()) co_return Step::kRestart;
  const BlockView block(op.buffers->match.data());
  const bool same_key = block.Intact(FirstReadBytes(there)) && block.key() == op.key;
  if (!same_key && !Mutated(Mutation::kLostCasKeyUnchecked)) co_return Step::kRestart;
  op.SetCandidate(write.candidate, there);
  op.scan.block = block;
  co_return Step::kOk;
}

// (6b-f) The tentative slot was made, and the scan behind that ended as `scanned`. As SettleWrite.
Task<Step> ClientCore::ConfirmAfterAll(PendingWrite& write, Step scanned) {
  Operation& op = *write.op;
  const TableRef table = op.scan.table;
  const Slot own = write.now;
  for (Step step = scanned;; step = co_await ScanTable(op, table, kInserterStates)) {
    if (step == Step::kUnavailable) co_return InDoubt(write);
    const bool found = (op.scan.val >= 0 && !Mutated(Mutation::kRescanIgnoresVal)) || op.scan.frz >= 0;
    const bool fit = op.scan.headers_fit || Mutated(Mutation::kInsertWithoutHeaders);
    const bool rival = op.scan.ins_count != 0 && !Mutated(Mutation::kConfirmWithoutKill);
    const bool rival_counts = rival && Mutated(Mutation::kExistsOnIns);
    if (step != Step::kOk || !fit || found || rival_counts) {  // b, d (and torn reads)
      const bool exists = step == Step::kOk && (op.scan.val >= 0 || rival_counts);
      const Step aborted = co_await AbortTentative(write);
      if (aborted == Step::kUnavailable) co_return InDoubt(write);
      if (!exists) co_return Step::kRestart;
      op.again = Again::kAtOnce;
      if (write.kind != OpKind::kInsert) co_return Step::kRestart;
      write.result = StatusCode::kExists;
      co_return Step::kOk;
    }
    if (op.Candidate(write.candidate) != own) co_return Step::kRestart;  // c: a rival or a migrator killed it
    if (!rival) break;
    // e. Rivals with the same key: whoever kills first goes on.
    const uint32_t rivals = op.scan.ins_count;
    for (uint32_t i = 0; i < rivals; ++i) {
      const uint32_t c = op.scan.ins[i];
      op.batch.CompareSwap(op.SlotAddress(c), op.Candidate(c).word(), Slot::Free().word(), &op.buffers->cas[i]);
    }
    const Outcome killed = co_await op.batch.Run();
    if (killed != Outcome::kOk) co_return InDoubt(write);
    bool all_killed = true;
    for (uint32_t i = 0; i < rivals; ++i) {
      all_killed &= op.buffers->cas[i] == op.Candidate(op.scan.ins[i]).word();
    }
    if (all_killed || Mutated(Mutation::kConfirmAfterFailedKill)) break;
    ++stats_.cas_failures;
  }
  // f. The linearization point.
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

void ClientCore::AskToConfirm(PendingWrite& write) {
  write.op->batch.CompareSwap(write.at(), write.now.word(), write.now.WithState(SlotState::kVal).word(),
                              &write.op->buffers->cas[0]);
}

// (6f) That CAS had `outcome`. As SettleWrite.
Task<Step> ClientCore::LookAtConfirm(PendingWrite& write, Outcome outcome) {
  Operation& op = *write.op;
  if (outcome == Outcome::kFenced) co_return InDoubt(write);  // it was never posted
  while (outcome != Outcome::kOk) {
    const Step looked = co_await LookAtOutcome(op, write.at(), write.now, write.now.WithState(SlotState::kVal));
    if (looked == Step::kOk) {
      Inserted(write);
      co_return Step::kOk;
    }
    if (looked == Step::kUnavailable) {
      write.block.in_doubt = true;
      write.result = UnknownStatus();
      co_return Step::kOk;
    }
    AskToConfirm(write);
    outcome = co_await op.batch.Run();
  }
  if (op.buffers->cas[0] == write.now.word() || Mutated(Mutation::kFailedConfirmOk)) {
    Inserted(write);
    co_return Step::kOk;
  }
  ++stats_.cas_failures;
  co_return Step::kRestart;
}

Task<Step> ClientCore::AbortTentative(PendingWrite& write) {
  Operation& op = *write.op;
  op.batch.CompareSwap(write.at(), write.now.word(), Slot::Free().word(), &op.buffers->cas[0]);
  const Outcome aborted = co_await op.batch.Run();
  co_return aborted == Outcome::kOk ? Step::kOk : Step::kUnavailable;  // lost: somebody else had killed it
}

// It cannot be told whether the tentative slot is there, but nobody makes a value of it. As SettleWrite.
Step ClientCore::InDoubt(PendingWrite& write) {
  if (!Failed(*write.op, Step::kUnavailable)) return Step::kRestart;
  write.block.in_doubt = true;
  write.result = UnavailableStatus("inserting");
  return Step::kOk;
}

// A CAS that publishes ended with an error, from `before` to `after` in the slot at `at`. Nothing of it can be carried
// out any more (krcore/rnic/rnic.h), so that a look tells what has become of it. kOk: it was carried out. kRestart: it
// was not. kUnavailable: that cannot be told.
Task<Step> ClientCore::LookAtOutcome(Operation& op, GlobalAddress at, Slot before, Slot after) {
  constexpr int kLooks = 4;
  for (int look = 0; look < kLooks && !op.batch.Stale() && !OutOfTime(op); ++look) {
    if (connections_.Reach(at.node)) {
      op.batch.Read(at, &op.buffers->cas[0], sizeof(uint64_t));
      const Outcome read = co_await op.batch.Run();
      if (read == Outcome::kOk) {
        const Slot found(op.buffers->cas[0]);
        ++stats_.outcomes_looked_up;
        if (found == before) co_return Step::kRestart;
        // A word with a block of one's own is nobody else's; a FREE one may be.
        const bool own = after.has_block() && (found == after || found == after.WithState(SlotState::kFrz));
        co_return own ? Step::kOk : Step::kUnavailable;
      }
    }
    co_await Pause(std::max(Connections::kReconnectIntervalNs, connections_.NextTryNs(at.node) - clock_.NowNs()));
  }
  co_return Step::kUnavailable;
}

// A publishing verb was posted and its outcome is not known.
Status ClientCore::UnknownStatus() const {
  if (Mutated(Mutation::kUnknownIsFailure)) return UnavailableStatus("publishing");
  if (Mutated(Mutation::kUnknownIsSuccess)) return Status::Ok();
  return {StatusCode::kUnknown, UnavailableStatus("publishing").ToString()};
}

}  // namespace kvs
