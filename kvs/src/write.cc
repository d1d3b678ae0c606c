// Put, Insert, Update and Delete: one loop. The step numbers are those of docs/kvs.md.
#include <algorithm>
#include <string>
#include <utility>

#include "kvs/layout/match_slots.h"
#include "kvs/src/client_core.h"
#include "kvs/src/mutation.h"
#include "kvs/src/placement.h"
#include "kvs/src/store_core.h"

namespace kvs {
namespace {

constexpr uint32_t kWriterStates = kReaderStates;
constexpr uint32_t kInserterStates = kWriterStates | MaskOf(SlotState::kIns);
// Restarts that a writer without a free slot waits before it kills somebody else's tentative slot: its owner, if it
// is alive, needs one round trip more.
constexpr uint32_t kStarvedAttempts = 8;
// Lost CASes that are answered by looking at the slot's new block, rather than by backing off and scanning again.
constexpr uint32_t kLooksAgain = 1;

// Beginning again after progress is no reason to back off, nor a sign of starvation.
void Progressed(Operation& op) {
  if (op.attempt > 0) --op.attempt;
  op.again = Again::kAtOnce;
  op.room_wait.begun = false;
}

}  // namespace

// The block that a write is about to publish.
struct ClientCore::NewBlock {
  GlobalAddress address;
  uint64_t bytes = 0;          // as allocated
  uint64_t content_bytes = 0;  // as written
  uint64_t birth = 0;          // epoch
  const std::byte* local = nullptr;
  uint32_t lkey = 0;
  krcore::NodeId preferred = krcore::kNoNode;  // where it was to be
  bool written = false;                        // the WRITE has completed
  bool shown = false;                          // it was in a slot, if only tentatively: others may be reading it
  bool published = false;                      // it is in a VAL slot
  bool in_doubt = false;                       // a verb that names it has an unknown outcome: it is never reused

  Slot InState(SlotState state, uint8_t fingerprint, uint8_t version) const {
    return Slot::Make(state, fingerprint, LengthUnits(content_bytes), address, version);
  }
};

Task<Status> ClientCore::PutAsync(std::string_view key, std::string_view value) {
  return Write(OpKind::kPut, key, value);
}
Task<Status> ClientCore::InsertAsync(std::string_view key, std::string_view value) {
  return Write(OpKind::kInsert, key, value);
}
Task<Status> ClientCore::UpdateAsync(std::string_view key, std::string_view value) {
  return Write(OpKind::kUpdate, key, value);
}
Task<Status> ClientCore::DeleteAsync(std::string_view key) { return Write(OpKind::kDelete, key, {}); }

// Memory for the block, if the client has some at hand. kRun: it has not, and Allocate() gets it.
Step ClientCore::PlaceBlock(Operation& op, std::string_view key, std::string_view value, NewBlock* block) {
  block->content_bytes = BlockBytes(key.size(), value.size());
  block->bytes = RoundBlockBytes(block->content_bytes, chunk_bytes_);
  // On the node of the key's subtable, if that is known: one queue then orders its READ behind the bucket's.
  TableRef table;
  block->preferred = directory_.Lookup(op.hash, &table) ? table.address.node : krcore::kNoNode;
  return AllocateAtOnce(op, block->bytes, block->preferred, &block->address) ? Step::kOk : Step::kRun;
}

// Writes the block, which has its memory, into a buffer of the client's.
Step ClientCore::BuildNewBlock(Operation& op, std::string_view key, std::string_view value, NewBlock* block) {
  std::span<std::byte> local;
  if (block->content_bytes <= kMaxSmallBlockBytes) {
    local = std::span(op.buffers->block).first(block->content_bytes);
    block->lkey = arena_->lkey();
  } else {
    if (!AllocateLarge(block->content_bytes, &op.large_write)) return Step::kFull;
    local = {op.large_write.memory.get(), block->content_bytes};
    block->lkey = op.large_write.region->lkey();
  }
  block->birth = epoch_;
  BuildBlock(local, op.hash.h1, block->birth, key, value);
  block->local = local.data();
  return Step::kOk;
}

// A publishing verb was posted and its outcome is not known.
Status ClientCore::UnknownStatus() const {
  if (Mutated(Mutation::kUnknownIsFailure)) return UnavailableStatus("publishing");
  if (Mutated(Mutation::kUnknownIsSuccess)) return Status::Ok();
  return {StatusCode::kUnknown, UnavailableStatus("publishing").ToString()};
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
    co_await Pause(Connections::kReconnectIntervalNs);
  }
  co_return Step::kUnavailable;
}

// The block of a slot that this client emptied or replaced.
void ClientCore::RetireOld(Operation& op, Slot old) {
  const TableRef& table = op.scan.table;
  const uint64_t bytes = old.length_units() == kLargeBlock ? RoundBlockBytes(op.scan.block.bytes(), chunk_bytes_)
                                                           : uint64_t{old.length_units()} * kUnitBytes;
  ++stats_.blocks_retired;
  const Extent extent{old.block(), bytes, false, op.scan.block.header().birth_epoch};
  if (Mutated(Mutation::kNoGrace)) {
    MemoryOf(op.batch).Free(extent);
  } else if (table.migrating() && !Mutated(Mutation::kNoHold)) {
    MemoryOf(op.batch).RetireHeld(table.index, extent);
  } else {
    MemoryOf(op.batch).Retire(extent);
  }
}

// The operation's own block, if no VAL slot names it.
void ClientCore::GiveBackUnused(const Operation& op, const NewBlock& block) {
  if (!block.address.valid() || block.published || op.batch.Stale()) return;
  if (block.in_doubt && !Mutated(Mutation::kInDoubtReused)) return;
  const Extent extent{block.address, block.bytes, false, block.birth};
  if (!block.shown || Mutated(Mutation::kShownReused)) {
    memory_->Free(extent);
  } else {
    memory_->Retire(extent);  // never frozen, so there is no split to wait for
  }
}

Task<Status> ClientCore::Write(OpKind kind, std::string_view key, std::string_view value) {
  if (key.empty() || key.size() > kMaxKeyBytes) {
    co_return Status(StatusCode::kInvalidArgument, "a key has 1 to 65535 bytes, not " + std::to_string(key.size()));
  }
  if (value.size() > kMaxValueBytes) {
    co_return Status(StatusCode::kInvalidArgument,
                     "a value has at most 16777216 bytes, not " + std::to_string(value.size()));
  }
  const KeyHash hash = HashKey(key);
  Turn turn(combiner_, hash, key, kind, value);
  if (!turn.leads()) co_await turn.Wait(DeadlineFromNow());
  if (!turn.leads()) co_return turn.TakeResult();
  Operation& op = co_await LeaseOperation(key, hash);
  const Lease lease(*this, op);
  op.deadline_ns = turn.deadline_ns();
  turn.Gather();
  kind = turn.kind();
  value = turn.in();
  address_cache_.Count(clock_);
  // A writer looks at the key's block before its CAS: where the guess is right, that takes no round trip of its own.
  Slot guess = address_cache_.Lookup(hash.h1);
  NewBlock block;
  Status result;
  bool existed = true;
  const auto fails = [this, &op, &result](Step step, const char* what) {
    if (!Failed(op, step)) [[likely]]
      return false;
    result = UnavailableStatus(what);
    return true;
  };
  for (;; co_await BackOff(op)) {
    if (op.attempt > 0 && OutOfTime(op)) {
      result = TimeoutCode(op);
      break;
    }
    if (op.batch.Stale()) [[unlikely]] {
      BeginAgain(op);
      block = {};  // not this registration's to use
    } else if (block.address.valid() && memory_->IsEvacuating(block.address)) [[unlikely]] {
      block = {};  // its chunk is being emptied, and who waited does not hold that up any more
    }
    if (kind != OpKind::kDelete && !block.address.valid()) {
      Step prepared = PlaceBlock(op, key, value, &block);
      if (prepared == Step::kRun) prepared = co_await Allocate(op, block.bytes, block.preferred, &block.address);
      if (prepared == Step::kOk) prepared = BuildNewBlock(op, key, value, &block);
      if (fails(prepared, "allocating memory")) break;
      if (prepared == Step::kFull) {
        result = Status(StatusCode::kOutOfMemory, "the memory nodes have no room for a block of " +
                                                      std::to_string(block.bytes) +
                                                      " bytes (start another memory node, or larger ones)");
        break;
      }
      if (prepared != Step::kOk) continue;
      op.attempt = op.waits = 0;  // waiting for memory is no sign of contention
      op.room_wait.begun = false;
    }
    TableRef table;
    op.merge.record = {};
    if (!directory_.Lookup(op.hash, &table)) {
      const Step resolved = co_await Resolve(op, &table);
      if (fails(resolved, "finding the subtable")) break;
      if (resolved != Step::kOk) continue;
    }

    // (1) The block travels beside the scan.
    if (block.address.valid() && !block.written && !SendBlock(op, &block)) {
      result = UnavailableStatus("writing a block");
      break;
    }
    Step scanned = BeginScan(op, table, kWriterStates, std::exchange(guess, Slot::Free()));
    while (scanned == Step::kRun) {
      const Outcome read = co_await op.batch.Run();
      scanned = GoOnScan(op, read);
    }
    if (fails(scanned, "scanning a subtable")) break;
    block.written = true;
    block.in_doubt = false;
    if (scanned == Step::kFull) {
      result = StatusCode::kOutOfMemory;
      break;
    }
    if (scanned != Step::kOk) {
      if (op.torn) directory_.Forget(table);  // one out of use may name blocks that are used again
      continue;
    }

    // (2) The key is there.
    if (op.scan.frz >= 0 && Mutated(Mutation::kUpdateOfFrz)) op.scan.val = op.scan.frz;
    if (op.scan.val >= 0) {
      if (kind == OpKind::kInsert) {
        result = StatusCode::kExists;
        break;
      }
      const auto c = static_cast<uint32_t>(op.scan.val);
      const Slot old = op.Candidate(c);
      const Slot now = Replacement(op, kind, block, old);
      AskToReplace(op, block, old, now);
      const Outcome outcome = co_await op.batch.Run();
      if (outcome == Outcome::kOk && op.buffers->cas[0] == old.word()) [[likely]] {
        Replaced(op, &block, old, now);
        break;
      }
      const Step replaced = co_await ReplaceAfterAll(op, kind, &block, outcome, &result);
      if (replaced != Step::kRestart) break;
      op.again = Again::kLost;
      continue;
    }

    // (3) It may have moved to a child, or with all others to another table.
    if (!op.scan.headers_fit || op.scan.frz >= 0) {
      const Step left = co_await LeaveTable(op);
      if (fails(left, "finding the subtable")) break;
      if (left == Step::kFull) {
        result =
            Status(StatusCode::kOutOfMemory, "a merge of subtables is to be finished, and there is no room for it");
        break;
      }
      if (left == Step::kOk) Progressed(op);
      continue;
    }
    // (4) Nothing is absent, and nothing may be inserted, before all candidates are decided.
    if (op.scan.any_pending && !Mutated(Mutation::kWriteAtChildUnhelped)) {
      const Step helped = co_await HelpMigrate(op);
      if (fails(helped, "helping a split")) break;
      if (helped == Step::kOk) Progressed(op);
      continue;
    }
    // (5)
    if (kind == OpKind::kUpdate || kind == OpKind::kDelete) {
      Step checked = Step::kOk;
      if (!Mutated(Mutation::kWriteMissUnchecked)) checked = co_await CheckHeaders(op);
      if (fails(checked, "scanning a subtable")) break;
      if (checked == Step::kOk) {
        result = StatusCode::kNotFound;
        break;
      }
      op.again = Again::kAtOnce;
      continue;
    }
    // (6)
    const int candidate = ChooseFreeSlot(op.scan.places, FreeSlots(op.buffers->candidates()));
    if (candidate < 0) {
      const Step room = co_await MakeRoom(op);
      if (fails(room, "splitting a subtable")) break;
      if (room == Step::kFull) {
        result = Status(StatusCode::kOutOfMemory, "the table is full and the memory nodes have no room for it to grow");
        break;
      }
      if (room == Step::kOk) Progressed(op);
      continue;
    }
    bool exists = false, unknown = false;
    block.shown = true;
    const Slot own = block.InState(SlotState::kIns, op.hash.fingerprint(), 0);
    const Step inserted = co_await InsertTentatively(op, static_cast<uint32_t>(candidate), own, &exists, &unknown);
    op.own_ins = 0;
    if (inserted == Step::kOk) {
      address_cache_.Refresh(hash.h1, own.WithState(SlotState::kVal));
      block.published = true;
      existed = false;
      break;
    }
    if (unknown || Failed(op, inserted)) {
      block.in_doubt = true;
      result = unknown ? UnknownStatus() : UnavailableStatus("inserting");
      break;
    }
    if (exists && kind == OpKind::kInsert) {
      result = StatusCode::kExists;
      break;
    }
    op.again = exists ? Again::kAtOnce : Again::kLost;
  }
  if (result.ok()) ++stats_.writes_done;
  GiveBackUnused(op, block);
  co_return turn.Share(std::move(result), existed);
}

// Adds the block's WRITE to the operation's next batch. False: its memory node cannot be reached.
bool ClientCore::SendBlock(Operation& op, NewBlock* block) {
  if (!connections_.Reach(block->address.node)) return false;
  if (!Mutated(Mutation::kBlockNotAwaited) || block->content_bytes > kMaxSmallBlockBytes) {
    op.batch.Write(block->local, block->address, static_cast<uint32_t>(block->content_bytes), block->lkey);
  }
  block->in_doubt = true;
  return true;
}

// (2) What a write puts in the place of the VAL slot `old` that the scan found.
Slot ClientCore::Replacement(const Operation& op, OpKind kind, const NewBlock& block, Slot old) {
  if (kind == OpKind::kDelete) return Slot::Free();
  return block.InState(SlotState::kVal, op.hash.fingerprint(), static_cast<uint8_t>(old.version() + 1));
}

// Adds that CAS to the operation's batch; the old word will be in cas[0].
void ClientCore::AskToReplace(Operation& op, const NewBlock& block, Slot old, Slot now) {
  if (Mutated(Mutation::kBlockNotAwaited) && block.local != nullptr && block.content_bytes <= kMaxSmallBlockBytes) {
    op.batch.Write(block.local, block.address, static_cast<uint32_t>(block.content_bytes), block.lkey);
  }
  ++stats_.write_attempts;
  op.batch.CompareSwap(op.SlotAddress(static_cast<uint32_t>(op.scan.val)), old.word(), now.word(), &op.buffers->cas[0]);
}

// It took effect.
void ClientCore::Replaced(Operation& op, NewBlock* block, Slot old, Slot now) {
  block->published = true;
  RetireOld(op, old);
  if (now == Slot::Free()) ConsiderMerge(op, op.scan.table);
  address_cache_.Refresh(op.hash.h1, now);
}

// (2) That CAS had `outcome`, or was lost. kOk: another one took effect. kRestart: none did, scan again. kUnavailable:
// *result says what became of it.
Task<Step> ClientCore::ReplaceAfterAll(Operation& op, OpKind kind, NewBlock* block, Outcome outcome, Status* result) {
  const auto c = static_cast<uint32_t>(op.scan.val);
  const GlobalAddress at = op.SlotAddress(c);
  for (uint32_t looks = 0;; ++looks) {
    const Slot old = op.Candidate(c);
    const Slot now = Replacement(op, kind, *block, old);
    if (looks > 0) {
      AskToReplace(op, *block, old, now);
      outcome = co_await op.batch.Run();
    }
    if (outcome == Outcome::kFenced) co_return Step::kRestart;  // it was never posted
    if (outcome != Outcome::kOk) {
      const Step looked = co_await LookAtOutcome(op, at, old, now);
      if (looked == Step::kRestart) continue;  // it was not carried out, and will not be
      if (looked != Step::kOk) {
        block->in_doubt = true;
        *result = UnknownStatus();
        co_return looked;
      }
    } else if (op.buffers->cas[0] != old.word()) {
      ++stats_.cas_failures;
      if (Mutated(Mutation::kLostCasOk) && kind != OpKind::kDelete) co_return Step::kOk;
      if (looks == kLooksAgain) co_return Step::kRestart;
      const Step looked = co_await LookAgain(op, Slot(op.buffers->cas[0]));
      if (looked == Step::kOk) continue;
      if (!Failed(op, looked)) co_return Step::kRestart;
      *result = UnavailableStatus("reading a block");
      co_return looked;
    }
    Replaced(op, block, old, now);
    co_return Step::kOk;
  }
}

// (2) A lost CAS returned the word that is in the slot now. If that is a value whose block holds this very key, which
// has to be read, the next CAS may expect it: no scan is needed. The slot is read again behind the block: if it goes on
// changing, that CAS would be lost as well. kOk: the slot's candidate is the word to expect. kRestart: scan again.
Task<Step> ClientCore::LookAgain(Operation& op, Slot there) {
  if (there.state() != SlotState::kVal || there.fingerprint() != op.hash.fingerprint() ||
      there.length_units() == kLargeBlock) {
    co_return Step::kRestart;
  }
  if (!connections_.Reach(there.block().node)) co_return Step::kUnavailable;
  const auto c = static_cast<uint32_t>(op.scan.val);
  op.batch.Read(there.block(), op.buffers->match.data(), FirstReadBytes(there));
  op.batch.Read(op.SlotAddress(c), &op.buffers->slots[0], sizeof(uint64_t));
  const Outcome read = co_await op.batch.Run();
  if (read != Outcome::kOk) co_return Step::kUnavailable;
  if (op.buffers->slots[0] != there.word()) co_return Step::kRestart;
  const BlockView block(op.buffers->match.data());
  const bool same_key = block.Intact(FirstReadBytes(there)) && block.key() == op.key;
  if (!same_key && !Mutated(Mutation::kLostCasKeyUnchecked)) co_return Step::kRestart;
  op.SetCandidate(c, there);
  op.scan.block = block;
  co_return Step::kOk;
}

// (3) The table of the last scan may not be the key's any more. kOk: another one is; what is known of it is in the
// cache.
Task<Step> ClientCore::LeaveTable(Operation& op) {
  const TableRef table = op.scan.table;
  if (op.scan.closed && op.merge.known()) co_return co_await HelpMerge(op);
  ++stats_.stale_directory_hits;
  directory_.Forget(table);
  TableRef fresh;
  const Step resolved = co_await Resolve(op, &fresh);
  if (resolved != Step::kOk) co_return resolved;
  co_return fresh.address == table.address ? Step::kRestart : Step::kOk;
}

// (6a-f) kOk: the key is inserted. kRestart: it is not, and no slot holds the block as far as this client can tell;
// *exists: another VAL of the key was seen. kUnavailable: *unknown tells whether the insert may have happened.
Task<Step> ClientCore::InsertTentatively(Operation& op, uint32_t candidate, Slot own, bool* exists, bool* unknown) {
  const TableRef table = op.scan.table;
  const GlobalAddress slot = op.SlotAddress(candidate);
  op.own_ins = own.word();
  ++stats_.write_attempts;
  // a. On one queue, the scan behind the CAS: it sees whatever was there when the tentative slot appeared.
  if (Mutated(Mutation::kInsertWithoutIns)) own = own.WithState(SlotState::kVal);
  if (Mutated(Mutation::kBlockNotAwaited)) {
    const Extent at{own.block(), uint64_t{own.length_units()} * kUnitBytes};
    if (at.bytes != 0) op.batch.Write(&op.buffers->block, at.address, static_cast<uint32_t>(at.bytes));
  }
  op.batch.CompareSwap(slot, Slot::Free().word(), own.word(), &op.buffers->cas[0]);
  Step scanned = BeginScan(op, table, kInserterStates);
  while (scanned == Step::kRun) {
    const Outcome read = co_await op.batch.Run();
    scanned = GoOnScan(op, read);
  }
  if (scanned == Step::kUnavailable) co_return Step::kUnavailable;
  if (op.buffers->cas[0] != Slot::Free().word()) {
    ++stats_.cas_failures;
    co_return Step::kRestart;
  }
  if (Mutated(Mutation::kInsertWithoutIns)) co_return Step::kOk;
  Step step = scanned;
  for (;;) {
    if (step == Step::kUnavailable) co_return Step::kUnavailable;
    const bool found = (op.scan.val >= 0 && !Mutated(Mutation::kRescanIgnoresVal)) || op.scan.frz >= 0;
    const bool fit = op.scan.headers_fit || Mutated(Mutation::kInsertWithoutHeaders);
    if (step != Step::kOk || !fit || found) {  // b, d (and torn reads)
      const bool has_value = step == Step::kOk && op.scan.val >= 0;
      const Step aborted = co_await AbortTentative(op, slot, own);
      if (aborted == Step::kUnavailable) co_return Step::kUnavailable;
      *exists = has_value;
      co_return Step::kRestart;
    }
    if (op.Candidate(candidate) != own) co_return Step::kRestart;  // c: a rival or a migrator killed it
    if (op.scan.ins_count == 0 || Mutated(Mutation::kConfirmWithoutKill)) break;
    if (Mutated(Mutation::kExistsOnIns)) {
      *exists = true;
      const Step aborted = co_await AbortTentative(op, slot, own);
      co_return aborted == Step::kOk ? Step::kRestart : aborted;
    }
    // e. Rivals with the same key: whoever kills first goes on.
    const uint32_t rivals = op.scan.ins_count;
    for (uint32_t i = 0; i < rivals; ++i) {
      const uint32_t c = op.scan.ins[i];
      op.batch.CompareSwap(op.SlotAddress(c), op.Candidate(c).word(), Slot::Free().word(), &op.buffers->cas[i]);
    }
    const Outcome killed = co_await op.batch.Run();
    if (killed != Outcome::kOk) co_return Step::kUnavailable;
    bool all_killed = true;
    for (uint32_t i = 0; i < rivals; ++i) {
      all_killed &= op.buffers->cas[i] == op.Candidate(op.scan.ins[i]).word();
    }
    if (all_killed || Mutated(Mutation::kConfirmAfterFailedKill)) break;
    ++stats_.cas_failures;
    step = co_await ScanTable(op, table, kInserterStates);
  }
  // f. The linearization point.
  if (Mutated(Mutation::kConfirmByWrite)) {
    op.buffers->cas[1] = own.WithState(SlotState::kVal).word();
    op.buffers->cas[0] = own.word();
    op.batch.Write(&op.buffers->cas[1], slot, sizeof(uint64_t));
  } else {
    op.batch.CompareSwap(slot, own.word(), own.WithState(SlotState::kVal).word(), &op.buffers->cas[0]);
  }
  Outcome confirmed = co_await op.batch.Run();
  if (confirmed == Outcome::kFenced) co_return Step::kUnavailable;  // it was never posted
  while (confirmed != Outcome::kOk) {
    const Step looked = co_await LookAtOutcome(op, slot, own, own.WithState(SlotState::kVal));
    if (looked == Step::kOk) co_return Step::kOk;
    if (looked == Step::kUnavailable) {
      *unknown = true;
      co_return looked;
    }
    op.batch.CompareSwap(slot, own.word(), own.WithState(SlotState::kVal).word(), &op.buffers->cas[0]);
    confirmed = co_await op.batch.Run();
  }
  if (op.buffers->cas[0] == own.word() || Mutated(Mutation::kFailedConfirmOk)) co_return Step::kOk;
  ++stats_.cas_failures;
  co_return Step::kRestart;
}

Task<Step> ClientCore::AbortTentative(Operation& op, GlobalAddress slot, Slot own) {
  op.batch.CompareSwap(slot, own.word(), Slot::Free().word(), &op.buffers->cas[0]);
  const Outcome aborted = co_await op.batch.Run();
  co_return aborted == Outcome::kOk ? Step::kOk : Step::kUnavailable;  // lost: somebody else had killed it
}

// No candidate is FREE: split the table, or, having waited long enough, kill a tentative slot whose owner may be dead.
Task<Step> ClientCore::MakeRoom(Operation& op) {
  if (op.attempt >= kStarvedAttempts) {
    uint32_t count = 0;
    std::array<uint8_t, kCandidates> victims;
    for (uint32_t c = 0; c < kCandidates; ++c) {
      if (op.Candidate(c).state() == SlotState::kIns) victims[count++] = static_cast<uint8_t>(c);
    }
    if (count > 0) {
      const uint32_t victim = victims[random_() % count];
      op.batch.CompareSwap(op.SlotAddress(victim), op.Candidate(victim).word(), Slot::Free().word(),
                           &op.buffers->cas[0]);
      const Outcome killed = co_await op.batch.Run();
      co_return killed == Outcome::kOk ? Step::kRestart : Step::kUnavailable;
    }
  }
  co_return co_await Split(op, op.scan.table);
}

}  // namespace kvs
