#include "kvs/table/splitter.h"

#include <array>
#include <numeric>
#include <utility>

#include "kvs/memory/mutation.h"

namespace kvs {

// Reads dir[child], then dir[parent], then dir[child] again. kOk: the parent is splitting into this child: the
// directory named the child both before and after it showed the parent splitting. A child is MIGRATING only while its
// parent is splitting, so the two belong together. Without the first look, the parent's split could be that of another
// child, born later in its place. kRestart: no such split is going on, or the directory changed; `migration` has what
// was read last.
Task<Step> Splitter::ReadSplit(Batch& batch, std::span<uint64_t, 3> words, uint32_t child_index, Migration* migration) {
  const uint32_t parent_index = ParentIndex(child_index);
  const uint64_t ticket = cache_.Ticket();
  KVS_CO_RETURN_UNLESS_OK(co_await directory_.ReadWords(batch, words.data(), child_index, parent_index, child_index));
  const DirectoryEntry parent(words[1]), child(words[2]);
  migration->depth = BirthDepth(child_index) - 1;
  migration->parent = {parent.subtable(), parent_index, parent, ticket};
  migration->child = {child.subtable(), child_index, child, ticket};
  const bool splitting = parent.splitting() && parent.depth() == migration->depth;
  if (!splitting || !child.has_subtable() || words[0] != words[2]) co_return Step::kRestart;
  if (!common_.connections.Reach(migration->parent.address.node) ||
      !common_.connections.Reach(migration->child.address.node)) {
    co_return Step::kUnavailable;
  }
  co_return Step::kOk;
}

Task<Step> Splitter::HelpMigrate(Operation& op) {
  const TableRef child = op.scan.table;
  if (child.index == 0) co_return Step::kRestart;
  Migration migration;
  const Step found = co_await ReadSplit(op.batch, std::span(op.buffers->directory).first<3>(), child.index, &migration);
  if (Mutated(Mutation::kHelperTrustsIndexes) && found != Step::kUnavailable) {
    if (!migration.parent.entry.has_subtable()) co_return Step::kRestart;
    migration.child = child;
  } else if (found != Step::kOk) {
    co_return found;
  }
  // If dir[child] does not name this very table, MIGRATING, then the birth of this table is over, or another table was
  // made in its place since. Either way nothing is PEND in this one.
  const bool is_pair = migration.child.address == child.address && migration.child.migrating();
  if (!is_pair && !Mutated(Mutation::kHelperTrustsIndexes)) co_return Step::kRestart;

  std::array<uint32_t, kCandidates> slots;
  uint32_t count = 0;
  for (uint32_t c = 0; c < kCandidates; ++c) {
    if (op.Candidate(c).state() == SlotState::kPend) slots[count++] = op.SlotIndex(c);
  }
  // [Split 4] for these buckets: the parent's headers move first, so that no insert confirms after its slot was read.
  std::array<uint64_t, 4>& headers = op.buffers->headers;
  const auto bucket = [&op](uint32_t b) { return FirstBucket(op.scan.places.place[b / 2]) + b % 2; };
  for (uint32_t b = 0; b < 4; ++b) {
    op.batch.Read(At(migration.parent, BucketOffset(bucket(b))), &headers[b], sizeof(uint64_t));
  }
  KVS_CO_RETURN_UNLESS_OK(co_await op.batch.Run());
  for (uint32_t b = 0; b < 4; ++b) {
    const BucketHeader header(headers[b]);
    if (header.depth() != migration.depth) continue;  // moved already
    if (Mutated(Mutation::kDecisionBeforeHeaders)) continue;
    op.batch.CompareSwap(At(migration.parent, BucketOffset(bucket(b))), header.word(), header.Deeper().word(),
                         &op.buffers->cas[b]);
  }
  KVS_CO_RETURN_UNLESS_OK(co_await op.batch.Run());

  static_assert(sizeof(BlockHeader) * kCandidates <= kMatchBytes);
  co_return co_await MigrateSlots(migration, std::span(slots).first(count),
                                  {&op.batch, op.buffers->slots, op.buffers->cas,
                                   std::span(reinterpret_cast<BlockHeader*>(op.buffers->match.data()), kCandidates)});
}

// Asks for the parent's words of the slots that are to do.
void Splitter::AskForSlots(const Migration& migration, Migrating* now) {
  Batch& batch = *now->scratch.batch;
  const std::span<const uint32_t> slots = now->slots, todo = now->todo();
  // One READ fetches all of them, if they lie together. Those that are looked at again take one READ each.
  const uint32_t words = SlotWord(slots[todo.back()]) - SlotWord(slots[todo.front()]) + 1;
  now->together = todo.size() == slots.size() && words <= now->scratch.run.size();
  if (now->together) {
    batch.Read(At(migration.parent, SlotOffset(slots[0])), now->scratch.run.data(), words * uint32_t{sizeof(uint64_t)});
    return;
  }
  for (const uint32_t i : todo) {
    batch.Read(At(migration.parent, SlotOffset(slots[i])), &now->scratch.slots[i], sizeof(uint64_t));
  }
}

// Asks for the blocks that these slots name.
void Splitter::AskForBlocks(const Migration& migration, Migrating* now) {
  const std::span<const uint32_t> slots = now->slots;
  const MigrationScratch& scratch = now->scratch;
  for (uint32_t i = 0; i < slots.size() && now->together; ++i) {
    scratch.slots[i] = scratch.run[SlotWord(slots[i]) - SlotWord(slots[0])];
  }
  if (!migration.early.empty() && now->todo().size() == slots.size()) {
    for (uint32_t i = 0; i < slots.size(); ++i) scratch.slots[i] = migration.early[slots[i]];
  }
  for (const uint32_t i : now->todo()) {
    const Slot slot(scratch.slots[i]);
    if (slot.has_block()) scratch.batch->Read(slot.block(), &scratch.blocks[i], sizeof(BlockHeader));
  }
}

// Decides what becomes of each slot, and asks to settle those that move. They are to do until they are known settled.
void Splitter::AskToSettle(const Migration& migration, Migrating* now) {
  const MigrationScratch& scratch = now->scratch;
  uint32_t asked = 0;
  for (const uint32_t i : now->todo()) {
    const Slot slot(scratch.slots[i]);
    now->decision[i] = Slot::Fresh().word();
    if (!slot.has_block() || (scratch.blocks[i].hash >> migration.depth & 1) == 0) continue;  // nothing moves
    if (slot.state() == SlotState::kFrz) {
      now->decision[i] = slot.WithState(SlotState::kVal).word();
      continue;
    }
    const bool is_value = slot.state() == SlotState::kVal;
    const Slot settled = is_value ? slot.WithState(SlotState::kFrz) : common_.NewFree();
    if (is_value) now->decision[i] = slot.word();
    if (Mutated(Mutation::kCopyWithoutFreeze) && is_value) continue;
    if (Mutated(Mutation::kMigrationIgnoresIns) && !is_value) continue;
    const GlobalAddress at = At(migration.parent, SlotOffset(now->slots[i]));
    scratch.batch->CompareSwap(at, slot.word(), settled.word(), &scratch.cas[i], Word::kAnyonesSlot);
    now->places[asked++] = i;
  }
  now->todo_count = asked;
}

// Leaves to do what lost its CAS: those slots changed after they were read.
void Splitter::KeepLost(Migrating* now) {
  uint32_t lost = 0;
  for (const uint32_t i : now->todo()) {
    if (now->scratch.cas[i] == now->scratch.slots[i] || Mutated(Mutation::kMigrationIgnoresLostFreeze)) continue;
    ++common_.stats.cas_failures;
    now->places[lost++] = i;
  }
  now->todo_count = lost;
}

// Asks to write the decisions into the child.
void Splitter::AskToDecide(const Migration& migration, Migrating* now) {
  const MigrationScratch& scratch = now->scratch;
  for (uint32_t i = 0; i < now->slots.size(); ++i) {
    const GlobalAddress at = At(migration.child, SlotOffset(now->slots[i]));
    if (Mutated(Mutation::kDecisionByWrite)) {
      scratch.slots[i] = now->decision[i];
      scratch.batch->Write(&scratch.slots[i], at, sizeof(uint64_t));
    } else {
      scratch.batch->CompareSwap(at, Slot::Pend().word(), now->decision[i], &scratch.cas[i], Word::kAnyonesSlot);
    }
  }
}

// [Split 5] Migrates many slots at once. The headers of their buckets in the parent have moved.
Task<Step> Splitter::MigrateSlots(const Migration& migration, std::span<const uint32_t> slots,
                                  MigrationScratch scratch) {
  Batch& batch = *scratch.batch;
  Migrating now{.slots = slots, .scratch = scratch, .todo_count = static_cast<uint32_t>(slots.size())};
  std::iota(now.places.begin(), now.places.begin() + now.todo_count, 0);
  while (now.todo_count > 0) {
    AskForSlots(migration, &now);
    KVS_CO_RETURN_UNLESS_OK(co_await batch.Run());
    AskForBlocks(migration, &now);
    KVS_CO_RETURN_UNLESS_OK(co_await batch.Run());
    AskToSettle(migration, &now);
    KVS_CO_RETURN_UNLESS_OK(co_await batch.Run());
    KeepLost(&now);
  }
  for (uint32_t i = 0; Mutated(Mutation::kFrzClearedEarly) && i < slots.size(); ++i) {
    if (Slot(now.decision[i]).free()) continue;
    batch.CompareSwap(At(migration.parent, SlotOffset(slots[i])),
                      Slot(now.decision[i]).WithState(SlotState::kFrz).word(), common_.NewFree().word(),
                      &scratch.slots[i]);
    (void)co_await batch.Run();
  }
  AskToDecide(migration, &now);
  KVS_CO_RETURN_UNLESS_OK(co_await batch.Run());
  for (uint32_t i = 0; i < slots.size(); ++i) common_.stats.slots_migrated += scratch.cas[i] == Slot::Pend().word();
  co_return Step::kOk;
}

Task<Step> Splitter::Split(Operation& op, TableRef table) {
  if (workbench_.busy()) co_return Step::kRestart;
  // Even without memory, a split whose child is published can be finished.
  GlobalAddress spare;
  const Step allocated =
      co_await epochs_.allocator.AllocateTable(op, ChildIndex(table.index, table.entry.depth()), &spare);
  if (allocated == Step::kUnavailable) co_return allocated;
  Step step = Step::kRestart;
  if (!workbench_.busy()) {
    workbench_.Begin(op.batch);
    const uint64_t token = workbench_.NewToken();
    Merge met;
    step = co_await workbench_.LockTable(table, token, &common_.stats.split_takeovers);
    if (step == Step::kOk) {
      step = co_await SplitLocked(table, &spare, &met);
      const Step unlocked = co_await workbench_.UnlockTable(table, token);
      if (unlocked != Step::kOk) step = unlocked;
    }
    workbench_.End();
    if (step == Step::kRestart && met.known()) {
      op.merge = met;
      step = co_await merger_.HelpMerge(op);
    }
  }
  if (spare.valid()) epochs_.memory.Of(op.batch).FreeTable(spare);  // nobody has seen it
  if (step == Step::kFull && allocated == Step::kFull) step = epochs_.allocator.SeekRoom(op);
  co_return step;
}

Task<Step> Splitter::FinishAbandonedSplit(const Batch& on_behalf_of, uint32_t child_index) {
  if (workbench_.busy()) co_return Step::kRestart;
  workbench_.Begin(on_behalf_of);
  Migration migration;
  Step step =
      co_await ReadSplit(workbench_.batch(), std::span(workbench_.words().words).first<3>(), child_index, &migration);
  if (step == Step::kOk) {
    const uint64_t token = workbench_.NewToken();
    step = co_await workbench_.LockTable(migration.parent, token, &common_.stats.split_takeovers);
    if (step == Step::kOk) {
      step = co_await FinishSplit(child_index);
      const Step unlocked = co_await workbench_.UnlockTable(migration.parent, token);
      if (unlocked != Step::kOk) step = unlocked;
    }
  }
  workbench_.End();
  co_return step;
}

// `spare` is memory for the new table, or none; it is cleared if the memory was used. `met` becomes the merge that the
// table is in, if any.
Task<Step> Splitter::SplitLocked(TableRef table, GlobalAddress* spare, Merge* met) {
  uint64_t* words = workbench_.words().words.data();
  TableRef parent;
  KVS_CO_RETURN_UNLESS_OK(co_await directory_.ReadEntry(workbench_.batch(), words, table.index, &parent));
  if (parent.entry.merging()) {
    const Step known = co_await directory_.ReadMerge(workbench_.batch(), &workbench_.words().record, parent.entry, met);
    co_return known == Step::kOk ? Step::kRestart : known;
  }
  if (!(parent.address == table.address)) co_return Step::kRestart;
  if (parent.migrating()) {  // its own birth comes first
    const Step finished = co_await FinishSplit(parent.index);
    co_return finished == Step::kOk ? Step::kRestart : finished;
  }
  const uint32_t depth = parent.entry.depth();
  if (depth > table.entry.depth()) {  // another client was faster
    cache_.Insert(parent);
    co_return Step::kOk;
  }
  if (depth >= kMaxDepth) co_return Step::kFull;
  if (!parent.entry.splitting()) {  // [Split 2] From now on nothing else happens to this table.
    if (!spare->valid()) co_return Step::kFull;
    const DirectoryEntry splitting = parent.entry.Next(depth, DirectoryState::kSplitting);
    workbench_.batch().CompareSwap(directory_.EntryAddress(parent.index), parent.entry.word(), splitting.word(), words);
    KVS_CO_RETURN_UNLESS_OK(co_await workbench_.batch().Run());
    if (*words != parent.entry.word()) co_return Step::kRestart;
    parent.entry = splitting;
  }
  const uint32_t child_index = ChildIndex(parent.index, depth);
  KVS_CO_RETURN_UNLESS_OK(co_await PublishChild(parent, child_index, spare));
  co_return co_await FinishSplit(child_index);
}

// [Split 3] Writes the new subtable, all PEND, and publishes it in the directory, or adopts another client's. kRestart:
// the split that `parent` shows is finished.
Task<Step> Splitter::PublishChild(TableRef parent, uint32_t child_index, GlobalAddress* spare) {
  // The parent is read after the child: if the parent is still in this split, so was the child when it was read. Then
  // an ABSENT child can only become this split's child, and a late CAS of it fails.
  uint64_t* words = workbench_.words().words.data();
  Batch& batch = workbench_.batch();
  KVS_CO_RETURN_UNLESS_OK(co_await directory_.ReadWords(batch, words, child_index, parent.index));
  if (words[1] != parent.entry.word()) co_return Step::kRestart;
  const DirectoryEntry child(words[0]);
  if (child.merging()) co_return co_await merger_.PassMerge(child_index, child);
  if (child.present()) co_return Step::kOk;
  if (!spare->valid()) co_return Step::kFull;

  if (!common_.connections.Reach(spare->node)) co_return Step::kUnavailable;
  const uint32_t depth = parent.entry.depth() + 1;
  FormatSubtable(workbench_.image(), common_.shape.geometry, BucketHeader(depth, child_index, 0),
                 Mutated(Mutation::kChildStartsFree) ? Slot::Fresh() : Slot::Pend());
  const GlobalAddress table =
      std::exchange(*spare, {});  // a failed verb may still execute: this memory is not used again
  workbench_.WriteImage(table);
  KVS_CO_RETURN_UNLESS_OK(co_await batch.Run());

  const DirectoryEntry entry = child.Next(table, depth, DirectoryState::kMigrating);
  batch.CompareSwap(directory_.EntryAddress(child_index), child.word(), entry.word(), words, Word::kOwnEntry);
  KVS_CO_RETURN_UNLESS_OK(co_await batch.Run());
  if (*words != child.word()) *spare = table;  // nobody has seen it
  co_return Step::kOk;
}

// [Split 4] Moves all headers of the parent. The parent's image stays on the workbench.
Task<Step> Splitter::MoveHeaders(const Migration& migration) {
  Batch& batch = workbench_.batch();
  workbench_.ReadImage(migration.parent);
  KVS_CO_RETURN_UNLESS_OK(co_await batch.Run());
  const uint32_t buckets = common_.shape.geometry.buckets();
  for (uint32_t b = 0; b < buckets;) {
    workbench_.AskToSwap(migration.parent, &b, buckets, [&](uint32_t bucket) -> std::optional<Workbench::Swap> {
      const BucketHeader header = workbench_.ImageHeader(bucket);
      if (header.depth() != migration.depth) return {};
      return Workbench::Swap{BucketOffset(bucket), header.word(), header.Deeper().word()};
    });
    KVS_CO_RETURN_UNLESS_OK(co_await batch.Run());
  }
  co_return Step::kOk;
}

// Puts the slots of the child's image that nobody has decided into `window`, from *next on, as many as it has room for.
std::span<const uint32_t> Splitter::UndecidedSlots(uint32_t* next, std::span<uint32_t> window) {
  uint32_t count = 0;
  for (; *next < common_.shape.geometry.slots() && count < window.size(); ++*next) {
    if (workbench_.ImageSlot(*next).state() == SlotState::kPend) window[count++] = *next;
  }
  return window.first(count);
}

// [Split 4 to 7] Finishes the split that made dir[child_index], from any state; idempotent. kOk: it is finished.
Task<Step> Splitter::FinishSplit(uint32_t child_index) {
  const std::span<uint64_t, 3> words = std::span(workbench_.words().words).first<3>();
  Batch& batch = workbench_.batch();
  Migration migration;
  const Step found = co_await ReadSplit(batch, words, child_index, &migration);
  if (found == Step::kUnavailable) co_return found;
  const DirectoryEntry parent = migration.parent.entry;
  if (!parent.splitting() || parent.depth() != migration.depth) co_return Step::kOk;
  if (migration.child.entry.merging()) {
    // The record counts only if dir[child] named it both before and after dir[parent] was seen to be splitting. Else it
    // may belong to a merge that began since.
    if (words[0] != words[2]) co_return Step::kRestart;
    KVS_CO_RETURN_UNLESS_OK(co_await merger_.PassMerge(child_index, migration.child.entry));
  } else if (found != Step::kOk) {
    co_return found;
  }
  const uint32_t slots = common_.shape.geometry.slots();

  if (migration.child.migrating()) {
    if (!Mutated(Mutation::kDecisionBeforeHeaders)) KVS_CO_RETURN_UNLESS_OK(co_await MoveHeaders(migration));
    if (Mutated(Mutation::kSlotBeforeHeader)) {
      for (uint32_t s = 0; s < slots; ++s) migration.early.push_back(workbench_.ImageSlot(s).word());
    }
    // [Split 5] Migrate every slot that nobody has decided.
    workbench_.ReadImage(migration.child);
    KVS_CO_RETURN_UNLESS_OK(co_await batch.Run());
    std::array<uint32_t, Workbench::kWindow> window;
    for (uint32_t s = 0; s < slots;) {
      KVS_CO_RETURN_UNLESS_OK(co_await MigrateSlots(migration, UndecidedSlots(&s, window),
                                                    {&batch, workbench_.words().slots, workbench_.words().cas,
                                                     workbench_.words().blocks, workbench_.words().run}));
    }
    if (Mutated(Mutation::kDecisionBeforeHeaders)) KVS_CO_RETURN_UNLESS_OK(co_await MoveHeaders(migration));
    // [Split 6] Now that all of the child is decided, FRZ in the parent does not count any more.
    workbench_.ReadImage(migration.parent);
    KVS_CO_RETURN_UNLESS_OK(co_await batch.Run());
    // The parent's *next* split freezes slots too, and those count. It cannot begin before this split is finished. If
    // the directory, read after the image, says that this one is unfinished, all FRZ in the image is this split's.
    TableRef child_now;
    KVS_CO_RETURN_UNLESS_OK(co_await directory_.ReadEntry(batch, &words[0], child_index, &child_now));
    const bool finished_by_others = child_now.entry != migration.child.entry && !Mutated(Mutation::kFrzClearedLate);
    const uint64_t free = common_.NewFree().word();  // one for all: words must differ within a slot only
    for (uint32_t s = 0; s < slots && !finished_by_others;) {
      workbench_.AskToSwap(
          migration.parent, &s, slots,
          [&](uint32_t index) -> std::optional<Workbench::Swap> {
            const Slot slot = workbench_.ImageSlot(index);
            if (slot.state() != SlotState::kFrz) return {};
            return Workbench::Swap{SlotOffset(index), slot.word(), free};
          },
          Word::kAnyonesSlot);
      KVS_CO_RETURN_UNLESS_OK(co_await batch.Run());
    }
  }

  // [Split 7] The child goes first: while the parent is splitting, the split still counts as unfinished.
  const DirectoryEntry child_done = migration.child.entry.Next(migration.depth + 1, DirectoryState::kNormal);
  const DirectoryEntry parent_done = migration.parent.entry.Next(migration.depth + 1, DirectoryState::kNormal);
  if (migration.child.migrating()) {
    batch.CompareSwap(directory_.EntryAddress(child_index), migration.child.entry.word(), child_done.word(), &words[0]);
  }
  KVS_CO_RETURN_UNLESS_OK(co_await batch.Run());
  batch.CompareSwap(directory_.EntryAddress(migration.parent.index), migration.parent.entry.word(), parent_done.word(),
                    &words[0]);
  KVS_CO_RETURN_UNLESS_OK(co_await batch.Run());
  if (words[0] == migration.parent.entry.word()) ++common_.stats.splits;
  if (migration.child.migrating()) migration.child.entry = child_done;
  migration.parent.entry = parent_done;
  cache_.Insert(migration.child);
  cache_.Insert(migration.parent);
  co_return Step::kOk;
}

}  // namespace kvs
