// Put, Insert, Update and Delete: one loop. The step numbers are those of docs/kvs.md.
#include <algorithm>
#include <string>

#include "kvs/src/client_core.h"
#include "kvs/src/store_core.h"

namespace kvs {
namespace {

constexpr uint32_t Mask(SlotState state) { return 1u << static_cast<uint32_t>(state); }
constexpr uint32_t kWriterStates = Mask(SlotState::kVal) | Mask(SlotState::kFrz);
constexpr uint32_t kInserterStates = kWriterStates | Mask(SlotState::kIns);
// Restarts that a writer without a free slot waits before it kills somebody else's tentative slot: its owner, if it
// is alive, needs one round trip more.
constexpr uint32_t kStarvedAttempts = 8;

// Beginning again after progress is no reason to back off longer.
void Progressed(Operation& op) {
  if (op.attempt > 0) --op.attempt;
}

// A FREE candidate of the less loaded combined bucket, main bucket before overflow (RACE, section 3.2: the order is
// worth 10 points of load factor). -1: none.
int ChooseFreeSlot(const Operation& op) {
  std::array<uint32_t, 2> used{};
  std::array<int, 2> free_main{-1, -1}, free_overflow{-1, -1};
  for (uint32_t c = 0; c < kCandidates; ++c) {
    const uint32_t p = c / kCombinedSlots;
    if (op.Candidate(c).state() != SlotState::kFree) {
      ++used[p];
    } else if (op.IsMainBucket(c)) {
      if (free_main[p] < 0) free_main[p] = static_cast<int>(c);
    } else if (free_overflow[p] < 0) {
      free_overflow[p] = static_cast<int>(c);
    }
  }
  const uint32_t p = used[0] <= used[1] ? 0 : 1;
  return free_main[p] >= 0 ? free_main[p] : free_overflow[p];
}

}  // namespace

// The block that a write is about to publish.
struct ClientCore::NewBlock {
  GlobalAddress address;
  uint64_t bytes = 0;          // as allocated
  uint64_t content_bytes = 0;  // as written
  const std::byte* local = nullptr;
  uint32_t lkey = 0;
  bool written = false;    // the WRITE has completed
  bool shown = false;      // it was in a slot, if only tentatively: others may be reading it
  bool published = false;  // it is in a VAL slot
  bool in_doubt = false;   // a verb that names it has an unknown outcome: it is never reused

  Slot InState(SlotState state, uint8_t fingerprint, uint8_t version) const {
    return Slot::Make(state, fingerprint, LengthUnits(content_bytes), address, version);
  }
};

Task<Status> ClientCore::PutAsync(std::string_view key, std::string_view value) {
  return Write(WriteKind::kPut, key, value);
}
Task<Status> ClientCore::InsertAsync(std::string_view key, std::string_view value) {
  return Write(WriteKind::kInsert, key, value);
}
Task<Status> ClientCore::UpdateAsync(std::string_view key, std::string_view value) {
  return Write(WriteKind::kUpdate, key, value);
}
Task<Status> ClientCore::DeleteAsync(std::string_view key) { return Write(WriteKind::kDelete, key, {}); }

Task<Step> ClientCore::PrepareBlock(Operation& op, std::string_view key, std::string_view value, NewBlock* block) {
  block->content_bytes = BlockBytes(key.size(), value.size());
  block->bytes = RoundBlockBytes(block->content_bytes);
  const Step allocated = co_await Allocate(op, block->bytes, kUnitBytes, &block->address);
  if (allocated != Step::kOk) co_return allocated;
  std::span<std::byte> local;
  if (block->content_bytes <= kMaxSmallBlockBytes) {
    local = std::span(op.buffers->block).first(block->content_bytes);
    block->lkey = arena_->lkey();
  } else {
    if (!store_.AllocateLarge(block->content_bytes, &op.large_write)) co_return Step::kFull;
    local = {op.large_write.memory.get(), block->content_bytes};
    block->lkey = op.large_write.region->lkey();
  }
  BuildBlock(local, op.hash.h1, epoch_, key, value);
  block->local = local.data();
  co_return Step::kOk;
}

// The block of a slot that this client emptied or replaced.
void ClientCore::RetireOld(Operation& op, const TableRef& table, Slot old) {
  const uint64_t bytes = old.length_units() == kLargeBlock ? RoundBlockBytes(op.scan.block.bytes())
                                                           : uint64_t{old.length_units()} * kUnitBytes;
  ++stats_.blocks_retired;
  if (table.migrating()) {
    memory_->RetireHeld(table.index, {old.block(), bytes});
  } else {
    memory_->Retire({old.block(), bytes});
  }
}

Task<Status> ClientCore::Write(WriteKind kind, std::string_view key, std::string_view value) {
  if (key.empty() || key.size() > kMaxKeyBytes) {
    co_return Status(StatusCode::kInvalidArgument, "a key has 1 to 65535 bytes, not " + std::to_string(key.size()));
  }
  if (value.size() > kMaxValueBytes) {
    co_return Status(StatusCode::kInvalidArgument,
                     "a value has at most 16777216 bytes, not " + std::to_string(value.size()));
  }
  Operation& op = co_await LeaseOperation(key);
  const Lease lease(*this, op);
  NewBlock block;
  if (kind != WriteKind::kDelete) {
    const Step prepared = co_await PrepareBlock(op, key, value, &block);
    if (prepared == Step::kUnavailable) co_return UnavailableStatus("allocating memory");
    if (prepared != Step::kOk) {
      co_return Status(StatusCode::kOutOfMemory, "the memory nodes have no room for a block of " +
                                                     std::to_string(block.bytes) +
                                                     " bytes (start another memory node, or larger ones)");
    }
  }

  op.attempt = 0;  // waiting for memory is no sign of contention
  Status result;
  for (;; co_await BackOff(op)) {
    if (op.attempt > 0 && OutOfTime(op)) {
      result = TimeoutCode(op);
      break;
    }
    TableRef table;
    if (!directory_.Lookup(op.hash, &table)) {
      const Step resolved = co_await Resolve(op, &table);
      if (resolved == Step::kUnavailable) {
        result = UnavailableStatus("finding the subtable");
        break;
      }
      if (resolved != Step::kOk) continue;
    }

    // (1) The block travels beside the scan.
    if (block.address.valid() && !block.written) {
      if (!connections_.Reach(block.address.node)) {
        result = UnavailableStatus("writing a block");
        break;
      }
      op.batch.Write(block.local, block.address, static_cast<uint32_t>(block.content_bytes), block.lkey);
      block.in_doubt = true;
    }
    const Step scanned = co_await ScanTable(op, table, kWriterStates);
    if (scanned == Step::kUnavailable) {
      result = UnavailableStatus("scanning a subtable");
      break;
    }
    block.written = true;
    block.in_doubt = false;
    if (scanned == Step::kFull) {
      result = StatusCode::kOutOfMemory;
      break;
    }
    if (scanned != Step::kOk) continue;

    // (2) The key is there.
    if (op.scan.val >= 0) {
      if (kind == WriteKind::kInsert) {
        result = StatusCode::kExists;
        break;
      }
      const Slot old = op.Candidate(static_cast<uint32_t>(op.scan.val));
      const Slot now = kind == WriteKind::kDelete ? Slot::Free()
                                                  : block.InState(SlotState::kVal, op.hash.fingerprint(),
                                                                  static_cast<uint8_t>(old.version() + 1));
      op.batch.CompareSwap(op.SlotAddress(static_cast<uint32_t>(op.scan.val)), old.word(), now.word(),
                           &op.buffers->cas[0]);
      const Outcome swapped = co_await op.batch.Run();
      if (swapped != Outcome::kOk) {
        block.in_doubt = true;
        result = Status(StatusCode::kUnknown, UnavailableStatus("publishing").ToString());
        break;
      }
      if (op.buffers->cas[0] == old.word()) {
        RetireOld(op, table, old);
        block.published = true;
        break;
      }
      ++stats_.cas_failures;
      continue;
    }

    // (3) It may have moved to a child.
    if (!op.scan.headers_fit || op.scan.frz >= 0) {
      ++stats_.stale_directory_hits;
      TableRef fresh;
      const Step resolved = co_await Resolve(op, &fresh);
      if (resolved == Step::kUnavailable) {
        result = UnavailableStatus("finding the subtable");
        break;
      }
      if (resolved == Step::kOk && fresh.index != table.index) Progressed(op);
      continue;
    }
    // (4) Nothing is absent, and nothing may be inserted, before all candidates are decided.
    if (op.scan.any_pending) {
      const Step helped = co_await HelpMigrate(op);
      if (helped == Step::kUnavailable) {
        result = UnavailableStatus("helping a split");
        break;
      }
      if (helped == Step::kOk) Progressed(op);
      continue;
    }
    // (5)
    if (kind == WriteKind::kUpdate || kind == WriteKind::kDelete) {
      const Step checked = co_await CheckHeaders(op);
      if (checked == Step::kUnavailable) {
        result = UnavailableStatus("scanning a subtable");
        break;
      }
      if (checked != Step::kOk) continue;
      result = StatusCode::kNotFound;
      break;
    }
    // (6)
    const int candidate = ChooseFreeSlot(op);
    if (candidate < 0) {
      const Step room = co_await MakeRoom(op);
      if (room == Step::kUnavailable) {
        result = UnavailableStatus("splitting a subtable");
        break;
      }
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
      block.published = true;
      break;
    }
    if (inserted == Step::kUnavailable) {
      block.in_doubt = true;
      result = unknown ? Status(StatusCode::kUnknown, UnavailableStatus("publishing").ToString())
                       : UnavailableStatus("inserting");
      break;
    }
    if (exists && kind == WriteKind::kInsert) {
      result = StatusCode::kExists;
      break;
    }
  }

  if (block.address.valid() && !block.published && !block.in_doubt) {
    const Extent extent{block.address, block.bytes};
    if (!block.shown) {
      memory_->Free(extent);
    } else {
      memory_->Retire(extent);  // never frozen, so there is no split to wait for
    }
  }
  co_return result;
}

// (6a-f) kOk: the key is inserted. kRestart: it is not, and no slot holds the block as far as this client can tell;
// *exists: another VAL of the key was seen. kUnavailable: *unknown tells whether the insert may have happened.
Task<Step> ClientCore::InsertTentatively(Operation& op, uint32_t candidate, Slot own, bool* exists, bool* unknown) {
  const TableRef table = op.scan.table;
  const GlobalAddress slot = op.SlotAddress(candidate);
  op.own_ins = own.word();
  // a. On one queue, the scan behind the CAS: it sees whatever was there when the tentative slot appeared.
  op.batch.CompareSwap(slot, Slot::Free().word(), own.word(), &op.buffers->cas[0]);
  const Step scanned = co_await ScanTable(op, table, kInserterStates);
  if (scanned == Step::kUnavailable) co_return Step::kUnavailable;
  if (op.buffers->cas[0] != Slot::Free().word()) {
    ++stats_.cas_failures;
    co_return Step::kRestart;
  }
  Step step = scanned;
  for (;;) {
    if (step == Step::kUnavailable) co_return Step::kUnavailable;
    const bool found = op.scan.val >= 0 || op.scan.frz >= 0;
    if (step != Step::kOk || !op.scan.headers_fit || found) {  // b, d (and torn reads)
      const bool has_value = step == Step::kOk && op.scan.val >= 0;
      const Step aborted = co_await AbortTentative(op, slot, own);
      if (aborted == Step::kUnavailable) co_return Step::kUnavailable;
      *exists = has_value;
      co_return Step::kRestart;
    }
    if (op.Candidate(candidate) != own) co_return Step::kRestart;  // c: a rival or a migrator killed it
    if (op.scan.ins_count == 0) break;
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
    if (all_killed) break;
    ++stats_.cas_failures;
    step = co_await ScanTable(op, table, kInserterStates);
  }
  // f. The linearization point.
  op.batch.CompareSwap(slot, own.word(), own.WithState(SlotState::kVal).word(), &op.buffers->cas[0]);
  const Outcome confirmed = co_await op.batch.Run();
  if (confirmed != Outcome::kOk) {
    *unknown = true;
    co_return Step::kUnavailable;
  }
  if (op.buffers->cas[0] == own.word()) co_return Step::kOk;
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
