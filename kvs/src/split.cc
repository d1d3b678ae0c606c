// Splitting a subtable, and helping with somebody else's split. Slot i of the parent can move only to slot i of the
// child; one CAS on the child's slot decides it for ever, so splitter, helper, successor and late-comer all issue the
// same idempotent CASes. The step numbers are those of docs/kvs.md.
#include <algorithm>
#include <array>

#include "kvs/src/client_core.h"
#include "kvs/src/epoch_buffers.h"
#include "kvs/src/split_buffers.h"
#include "kvs/src/store_core.h"

namespace kvs {
namespace {

// How long a lock word must not have changed before another client takes the split over. Safety does not depend on it.
constexpr int64_t kTakeoverNs = 100'000'000;

GlobalAddress At(const TableRef& table, uint64_t offset) { return {table.address.node, table.address.offset + offset}; }

}  // namespace

// Decides the PEND candidates of the operation's last scan, a child whose split is not finished.
Task<Step> ClientCore::HelpMigrate(Operation& op) {
  Migration migration;
  migration.child = op.scan.table;
  if (migration.child.index == 0) co_return Step::kRestart;
  migration.depth = BirthDepth(migration.child.index) - 1;
  const Step found = co_await ReadDirectoryEntry(op.batch, &op.buffers->directory[0],
                                                 ParentIndex(migration.child.index), &migration.parent);
  if (found != Step::kOk) co_return found;
  if (!migration.parent.entry.present()) co_return Step::kRestart;

  std::array<uint32_t, kCandidates> slots;
  uint32_t count = 0;
  for (uint32_t c = 0; c < kCandidates; ++c) {
    if (op.Candidate(c).state() == SlotState::kPend) slots[count++] = op.SlotIndex(c);
  }
  // migrate(i), step 1: the parent's headers first, so that no insert can confirm behind the look at its slot.
  std::array<uint64_t, 4>& headers = op.buffers->headers;
  const auto bucket = [&op](uint32_t b) { return FirstBucket(op.scan.places.place[b / 2]) + b % 2; };
  for (uint32_t b = 0; b < 4; ++b) {
    op.batch.Read(At(migration.parent, BucketOffset(bucket(b))), &headers[b], sizeof(uint64_t));
  }
  const Outcome read = co_await op.batch.Run();
  if (read != Outcome::kOk) co_return Step::kUnavailable;
  for (uint32_t b = 0; b < 4; ++b) {
    const BucketHeader header(headers[b]);
    if (header.depth() != migration.depth) continue;  // moved already
    op.batch.CompareSwap(At(migration.parent, BucketOffset(bucket(b))), header.word(), header.Deeper().word(),
                         &op.buffers->cas[b]);
  }
  const Outcome moved = co_await op.batch.Run();
  if (moved != Outcome::kOk) co_return Step::kUnavailable;

  static_assert(sizeof(BlockHeader) * kCandidates <= kMatchBytes);
  co_return co_await MigrateSlots(migration, std::span(slots).first(count),
                                  {&op.batch, op.buffers->slots, op.buffers->cas,
                                   std::span(reinterpret_cast<BlockHeader*>(op.buffers->match.data()), kCandidates)});
}

// migrate(i), steps 2 and 3, for many slots at once. The headers of their buckets in the parent have moved.
Task<Step> ClientCore::MigrateSlots(Migration migration, std::span<const uint32_t> slots, MigrationScratch scratch) {
  const uint32_t count = static_cast<uint32_t>(slots.size());
  Batch& batch = *scratch.batch;
  std::array<uint64_t, SplitBuffers::kWindow> decision;    // the child's slot word
  std::array<uint32_t, SplitBuffers::kWindow> todo, next;  // positions in `slots` not settled yet
  uint32_t todo_count = count;
  for (uint32_t i = 0; i < count; ++i) todo[i] = i;

  while (todo_count > 0) {
    for (uint32_t t = 0; t < todo_count; ++t) {
      const uint32_t i = todo[t];
      batch.Read(At(migration.parent, SlotOffset(slots[i])), &scratch.slots[i], sizeof(uint64_t));
    }
    const Outcome slots_read = co_await batch.Run();
    if (slots_read != Outcome::kOk) co_return Step::kUnavailable;
    for (uint32_t t = 0; t < todo_count; ++t) {
      const uint32_t i = todo[t];
      const Slot slot(scratch.slots[i]);
      if (!slot.has_block()) continue;
      if (!connections_.Reach(slot.block().node)) {
        batch.Clear();
        co_return Step::kUnavailable;
      }
      batch.Read(slot.block(), &scratch.blocks[i], sizeof(BlockHeader));
    }
    const Outcome blocks_read = co_await batch.Run();
    if (blocks_read != Outcome::kOk) co_return Step::kUnavailable;

    uint32_t next_count = 0;
    for (uint32_t t = 0; t < todo_count; ++t) {
      const uint32_t i = todo[t];
      const Slot slot(scratch.slots[i]);
      decision[i] = Slot::Free().word();
      if (!slot.has_block() || (scratch.blocks[i].hash >> migration.depth & 1) == 0) continue;  // nothing moves
      const GlobalAddress at = At(migration.parent, SlotOffset(slots[i]));
      if (slot.state() == SlotState::kFrz) {
        decision[i] = slot.WithState(SlotState::kVal).word();
        continue;
      }
      const bool is_value = slot.state() == SlotState::kVal;
      const Slot settled = is_value ? slot.WithState(SlotState::kFrz) : Slot::Free();
      if (is_value) decision[i] = slot.word();
      batch.CompareSwap(at, slot.word(), settled.word(), &scratch.cas[i]);
      next[next_count++] = i;
    }
    const Outcome settled = co_await batch.Run();
    if (settled != Outcome::kOk) co_return Step::kUnavailable;
    // A lost CAS: the slot changed after it was read. Look again.
    todo_count = 0;
    for (uint32_t n = 0; n < next_count; ++n) {
      const uint32_t i = next[n];
      if (scratch.cas[i] == scratch.slots[i]) continue;
      ++stats_.cas_failures;
      todo[todo_count++] = i;
    }
  }

  for (uint32_t i = 0; i < count; ++i) {
    batch.CompareSwap(At(migration.child, SlotOffset(slots[i])), Slot::Pend().word(), decision[i], &scratch.cas[i]);
  }
  const Outcome decided = co_await batch.Run();
  if (decided != Outcome::kOk) co_return Step::kUnavailable;
  for (uint32_t i = 0; i < count; ++i) stats_.slots_migrated += scratch.cas[i] == Slot::Pend().word();
  co_return Step::kOk;
}

void ClientCore::BeginSplit() {
  splitting_ = true;
  if (split_) return;
  std::byte* memory =
      arena_->bytes().data() + max_in_flight_ * sizeof(OperationBuffers) + sizeof(EpochBuffers::Registered);
  split_ = std::make_unique<SplitBuffers>(memory, geometry_, &connections_, arena_->lkey());
}

// kOk: `table` was split, by this client or while it looked. kRestart: another client is at it.
Task<Step> ClientCore::Split(Operation& op, TableRef table) {
  if (splitting_) co_return Step::kRestart;
  BeginSplit();
  const uint64_t token = SplitToken();
  Step step = co_await LockTable(table, token);
  if (step == Step::kOk) {
    step = co_await SplitLocked(op, table);
    const Step unlocked = co_await UnlockTable(table, token);
    if (unlocked != Step::kOk) step = unlocked;
  }
  splitting_ = false;
  co_return step;
}

// The split that made dir[child_index], if it still has to be finished and whoever was at it has stopped. The client
// must have an operation in flight, for the blocks that this reads.
Task<Step> ClientCore::FinishAbandonedSplit(uint32_t child_index) {
  if (splitting_) co_return Step::kRestart;
  BeginSplit();
  TableRef parent;
  Step step =
      co_await ReadDirectoryEntry(split_->batch(), split_->words().words.data(), ParentIndex(child_index), &parent);
  if (step == Step::kOk) {
    const uint64_t token = SplitToken();
    step = co_await LockTable(parent, token);
    if (step == Step::kOk) {
      step = co_await FinishSplit(parent.index, child_index);
      const Step unlocked = co_await UnlockTable(parent, token);
      if (unlocked != Step::kOk) step = unlocked;
    }
  }
  splitting_ = false;
  co_return step;
}

Task<Step> ClientCore::UnlockTable(TableRef table, uint64_t token) {
  split_->batch().CompareSwap(table.address, token, 0, &split_->words().cas[0]);
  const Outcome unlocked = co_await split_->batch().Run();  // lost: somebody took over, and unlocks
  co_return unlocked == Outcome::kOk ? Step::kOk : Step::kUnavailable;
}

Task<Step> ClientCore::LockTable(TableRef table, uint64_t token) {
  static_assert(offsetof(SubtableHeader, lock) == 0);
  if (!connections_.Reach(table.address.node)) co_return Step::kUnavailable;
  uint64_t& old = split_->words().cas[0];
  split_->batch().CompareSwap(table.address, 0, token, &old);
  const Outcome locked = co_await split_->batch().Run();
  if (locked != Outcome::kOk) co_return Step::kUnavailable;
  if (old == 0) co_return Step::kOk;
  const int64_t now_ns = clock_.NowNs();
  SeenLock& seen = locks_seen_[uint64_t{table.address.node} << 48 | table.address.offset];
  if (old != seen.word) {
    seen = {old, now_ns};
    co_return Step::kRestart;
  }
  if (now_ns - seen.since_ns < kTakeoverNs) co_return Step::kRestart;
  const uint64_t dead = old;
  split_->batch().CompareSwap(table.address, dead, token, &old);
  const Outcome taken = co_await split_->batch().Run();
  if (taken != Outcome::kOk) co_return Step::kUnavailable;
  co_return old == dead ? Step::kOk : Step::kRestart;
}

Task<Step> ClientCore::SplitLocked(Operation& op, TableRef table) {
  uint64_t* scratch = split_->words().words.data();
  TableRef parent;
  const Step read = co_await ReadDirectoryEntry(split_->batch(), scratch, table.index, &parent);
  if (read != Step::kOk) co_return read;
  if (!(parent.address == table.address)) co_return Step::kRestart;
  if (parent.migrating()) {  // its own birth comes first
    const Step finished = co_await FinishSplit(ParentIndex(parent.index), parent.index);
    co_return finished == Step::kOk ? Step::kRestart : finished;
  }
  const uint32_t depth = parent.entry.depth();
  if (depth > table.entry.depth()) {  // somebody was faster
    directory_.Insert(parent.index, parent.entry);
    co_return Step::kOk;
  }
  if (depth >= kMaxDepth) co_return Step::kFull;
  const uint32_t child_index = parent.index | 1u << depth;
  const Step published = co_await PublishChild(op, parent, child_index);
  if (published != Step::kOk) co_return published;
  const Step finished = co_await FinishSplit(parent.index, child_index);
  if (finished == Step::kOk) ++stats_.splits;
  co_return finished;
}

// Steps 2 and 3: a new subtable, all PEND, and its directory entry; or another client's, which is adopted.
Task<Step> ClientCore::PublishChild(Operation& op, TableRef parent, uint32_t child_index) {
  uint64_t* scratch = split_->words().words.data();
  TableRef child;
  const Step read = co_await ReadDirectoryEntry(split_->batch(), scratch, child_index, &child);
  if (read != Step::kOk) co_return read;
  if (child.entry.present()) co_return Step::kOk;

  GlobalAddress address;
  const uint64_t bytes = RoundBlockBytes(geometry_.bytes());
  const Step allocated = co_await Allocate(op, bytes, kBucketBytes, &address);
  if (allocated != Step::kOk) co_return allocated;
  const uint32_t depth = parent.entry.depth() + 1;
  FormatSubtable(split_->image(), geometry_, BucketHeader(depth, child_index, 0), Slot::Pend());
  if (!connections_.Reach(address.node)) {
    memory_->Free({address, bytes});
    co_return Step::kUnavailable;
  }
  split_->batch().Write(split_->image().data(), address, static_cast<uint32_t>(geometry_.bytes()));
  const Outcome written = co_await split_->batch().Run();
  if (written != Outcome::kOk) co_return Step::kUnavailable;

  const DirectoryEntry entry =
      DirectoryEntry::Make(address, depth, DirectoryState::kMigrating, child.entry.generation() + 1);
  split_->batch().CompareSwap(DirectoryAddress(child_index), child.entry.word(), entry.word(), scratch);
  const Outcome published = co_await split_->batch().Run();
  if (published != Outcome::kOk) co_return Step::kUnavailable;
  if (*scratch != child.entry.word()) memory_->Free({address, bytes});  // nobody has seen it
  co_return Step::kOk;
}

// Steps 4 to 7, from any state of the split that made dir[child_index]; idempotent.
Task<Step> ClientCore::FinishSplit(uint32_t parent_index, uint32_t child_index) {
  uint64_t* scratch = split_->words().words.data();
  Batch& batch = split_->batch();
  Migration migration;
  migration.depth = BirthDepth(child_index) - 1;
  const Step parent_read = co_await ReadDirectoryEntry(batch, &scratch[0], parent_index, &migration.parent);
  if (parent_read != Step::kOk) co_return parent_read;
  const Step child_read = co_await ReadDirectoryEntry(batch, &scratch[1], child_index, &migration.child);
  if (child_read != Step::kOk) co_return child_read;
  if (!migration.parent.entry.present() || !migration.child.entry.present()) co_return Step::kRestart;
  const uint32_t table_bytes = static_cast<uint32_t>(geometry_.bytes());

  if (migration.child.migrating()) {
    // 4. All headers of the parent.
    batch.Read(migration.parent.address, split_->image().data(), table_bytes);
    const Outcome headers_read = co_await batch.Run();
    if (headers_read != Outcome::kOk) co_return Step::kUnavailable;
    for (uint32_t b = 0; b < geometry_.buckets();) {
      for (; b < geometry_.buckets() && !batch.full(); ++b) {
        const BucketHeader header = split_->ImageHeader(b);
        if (header.depth() != migration.depth) continue;
        batch.CompareSwap(At(migration.parent, BucketOffset(b)), header.word(), header.Deeper().word(),
                          &split_->words().cas[batch.size()]);
      }
      const Outcome moved = co_await batch.Run();
      if (moved != Outcome::kOk) co_return Step::kUnavailable;
    }
    // 5. Every slot that nobody has decided.
    batch.Read(migration.child.address, split_->image().data(), table_bytes);
    const Outcome child_image = co_await batch.Run();
    if (child_image != Outcome::kOk) co_return Step::kUnavailable;
    std::array<uint32_t, SplitBuffers::kWindow> window;
    for (uint32_t s = 0; s < geometry_.slots();) {
      uint32_t count = 0;
      for (; s < geometry_.slots() && count < window.size(); ++s) {
        if (split_->ImageSlot(s).state() == SlotState::kPend) window[count++] = s;
      }
      const Step migrated =
          co_await MigrateSlots(migration, std::span(window).first(count),
                                {&batch, split_->words().slots, split_->words().cas, split_->words().blocks});
      if (migrated != Step::kOk) co_return migrated;
    }
    // 6. Now that all of the child is decided, what is frozen in the parent is history.
    batch.Read(migration.parent.address, split_->image().data(), table_bytes);
    const Outcome parent_image = co_await batch.Run();
    if (parent_image != Outcome::kOk) co_return Step::kUnavailable;
    // Slots of the parent's *next* split are frozen too, and they count. It cannot begin before this split is finished:
    // if the directory, read behind the image, says that it is not, all that the image shows is this split's.
    TableRef child_now;
    const Step child_reread = co_await ReadDirectoryEntry(batch, &scratch[1], child_index, &child_now);
    if (child_reread != Step::kOk) co_return child_reread;
    const bool finished_by_others = child_now.entry != migration.child.entry;
    for (uint32_t s = 0; s < geometry_.slots() && !finished_by_others;) {
      for (; s < geometry_.slots() && !batch.full(); ++s) {
        const Slot slot = split_->ImageSlot(s);
        if (slot.state() != SlotState::kFrz) continue;
        batch.CompareSwap(At(migration.parent, SlotOffset(s)), slot.word(), Slot::Free().word(),
                          &split_->words().cas[batch.size()]);
      }
      const Outcome cleared = co_await batch.Run();
      if (cleared != Outcome::kOk) co_return Step::kUnavailable;
    }
  }

  // 7. The child first: while the parent's entry is shallow, the split is still to be finished.
  const DirectoryEntry child_done = migration.child.entry.With(migration.child.entry.depth(), DirectoryState::kNormal);
  const DirectoryEntry parent_done = migration.parent.entry.With(migration.depth + 1, migration.parent.entry.state());
  if (migration.child.migrating()) {
    batch.CompareSwap(DirectoryAddress(child_index), migration.child.entry.word(), child_done.word(), &scratch[0]);
  }
  const Outcome child_named = co_await batch.Run();
  if (child_named != Outcome::kOk) co_return Step::kUnavailable;
  if (migration.parent.entry.depth() == migration.depth) {
    batch.CompareSwap(DirectoryAddress(parent_index), migration.parent.entry.word(), parent_done.word(), &scratch[0]);
  }
  const Outcome parent_named = co_await batch.Run();
  if (parent_named != Outcome::kOk) co_return Step::kUnavailable;
  if (migration.child.migrating()) directory_.Insert(child_index, child_done);
  if (migration.parent.entry.depth() == migration.depth) directory_.Insert(parent_index, parent_done);
  co_return Step::kOk;
}

}  // namespace kvs
