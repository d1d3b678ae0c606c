#include "kvs/table/splitter.h"

#include <array>
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
  batch.Read(directory_.EntryAddress(child_index), &words[0], sizeof(uint64_t));
  batch.Read(directory_.EntryAddress(parent_index), &words[1], sizeof(uint64_t));
  batch.Read(directory_.EntryAddress(child_index), &words[2], sizeof(uint64_t));
  common_.stats.directory_reads += 3;
  const Outcome read = co_await batch.Run();
  if (read != Outcome::kOk) co_return Step::kUnavailable;
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
  const Outcome read = co_await op.batch.Run();
  if (read != Outcome::kOk) co_return Step::kUnavailable;
  for (uint32_t b = 0; b < 4; ++b) {
    const BucketHeader header(headers[b]);
    if (header.depth() != migration.depth) continue;  // moved already
    if (Mutated(Mutation::kDecisionBeforeHeaders)) continue;
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

// [Split 5] Migrates many slots at once. The headers of their buckets in the parent have moved.
Task<Step> Splitter::MigrateSlots(const Migration& migration, std::span<const uint32_t> slots,
                                  MigrationScratch scratch) {
  const uint32_t count = static_cast<uint32_t>(slots.size());
  Batch& batch = *scratch.batch;
  std::array<uint64_t, Workbench::kWindow> decision;    // the child's slot word
  std::array<uint32_t, Workbench::kWindow> todo, next;  // positions in `slots` not settled yet
  uint32_t todo_count = count;
  for (uint32_t i = 0; i < count; ++i) todo[i] = i;

  while (todo_count > 0) {
    // One READ fetches all of them, if they lie together. Those that are looked at again take one READ each.
    const uint32_t words = SlotWord(slots[todo[todo_count - 1]]) - SlotWord(slots[todo[0]]) + 1;
    const bool together = todo_count == count && words <= scratch.run.size();
    if (together) {
      batch.Read(At(migration.parent, SlotOffset(slots[0])), scratch.run.data(), words * uint32_t{sizeof(uint64_t)});
    }
    for (uint32_t t = 0; t < todo_count && !together; ++t) {
      const uint32_t i = todo[t];
      batch.Read(At(migration.parent, SlotOffset(slots[i])), &scratch.slots[i], sizeof(uint64_t));
    }
    const Outcome slots_read = co_await batch.Run();
    if (slots_read != Outcome::kOk) co_return Step::kUnavailable;
    for (uint32_t i = 0; i < count && together; ++i) {
      scratch.slots[i] = scratch.run[SlotWord(slots[i]) - SlotWord(slots[0])];
    }
    if (!migration.early.empty() && todo_count == count) {
      for (uint32_t i = 0; i < count; ++i) scratch.slots[i] = migration.early[slots[i]];
    }
    for (uint32_t t = 0; t < todo_count; ++t) {
      const uint32_t i = todo[t];
      const Slot slot(scratch.slots[i]);
      if (!slot.has_block()) continue;
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
      if (Mutated(Mutation::kCopyWithoutFreeze) && is_value) continue;
      if (Mutated(Mutation::kMigrationIgnoresIns) && !is_value) continue;
      batch.CompareSwap(at, slot.word(), settled.word(), &scratch.cas[i]);
      next[next_count++] = i;
    }
    const Outcome settled = co_await batch.Run();
    if (settled != Outcome::kOk) co_return Step::kUnavailable;
    // A lost CAS: the slot changed after it was read. Look again.
    todo_count = 0;
    for (uint32_t n = 0; n < next_count; ++n) {
      const uint32_t i = next[n];
      if (scratch.cas[i] == scratch.slots[i] || Mutated(Mutation::kMigrationIgnoresLostFreeze)) continue;
      ++common_.stats.cas_failures;
      todo[todo_count++] = i;
    }
  }

  for (uint32_t i = 0; i < count; ++i) {
    const GlobalAddress at = At(migration.child, SlotOffset(slots[i]));
    if (Mutated(Mutation::kFrzClearedEarly) && decision[i] != Slot::Free().word()) {
      batch.CompareSwap(At(migration.parent, SlotOffset(slots[i])), Slot(decision[i]).WithState(SlotState::kFrz).word(),
                        Slot::Free().word(), &scratch.slots[i]);
      (void)co_await batch.Run();
    }
    if (Mutated(Mutation::kDecisionByWrite)) {
      scratch.slots[i] = decision[i];
      batch.Write(&scratch.slots[i], at, sizeof(uint64_t));
      continue;
    }
    batch.CompareSwap(at, Slot::Pend().word(), decision[i], &scratch.cas[i]);
  }
  const Outcome decided = co_await batch.Run();
  if (decided != Outcome::kOk) co_return Step::kUnavailable;
  for (uint32_t i = 0; i < count; ++i) common_.stats.slots_migrated += scratch.cas[i] == Slot::Pend().word();
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
  const Step read = co_await directory_.ReadEntry(workbench_.batch(), words, table.index, &parent);
  if (read != Step::kOk) co_return read;
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
    const Outcome began = co_await workbench_.batch().Run();
    if (began != Outcome::kOk) co_return Step::kUnavailable;
    if (*words != parent.entry.word()) co_return Step::kRestart;
    parent.entry = splitting;
  }
  const uint32_t child_index = ChildIndex(parent.index, depth);
  const Step published = co_await PublishChild(parent, child_index, spare);
  if (published != Step::kOk) co_return published;
  co_return co_await FinishSplit(child_index);
}

// [Split 3] Writes the new subtable, all PEND, and publishes it in the directory, or adopts another client's. kRestart:
// the split that `parent` shows is finished.
Task<Step> Splitter::PublishChild(TableRef parent, uint32_t child_index, GlobalAddress* spare) {
  // The parent is read after the child: if the parent is still in this split, so was the child when it was read. Then
  // an ABSENT child can only become this split's child, and a late CAS of it fails.
  uint64_t* words = workbench_.words().words.data();
  Batch& batch = workbench_.batch();
  batch.Read(directory_.EntryAddress(child_index), &words[0], sizeof(uint64_t));
  batch.Read(directory_.EntryAddress(parent.index), &words[1], sizeof(uint64_t));
  common_.stats.directory_reads += 2;
  const Outcome read = co_await batch.Run();
  if (read != Outcome::kOk) co_return Step::kUnavailable;
  if (words[1] != parent.entry.word()) co_return Step::kRestart;
  const DirectoryEntry child(words[0]);
  if (child.merging()) co_return co_await merger_.PassMerge(child_index, child);
  if (child.present()) co_return Step::kOk;
  if (!spare->valid()) co_return Step::kFull;

  if (!common_.connections.Reach(spare->node)) co_return Step::kUnavailable;
  const uint32_t depth = parent.entry.depth() + 1;
  FormatSubtable(workbench_.image(), common_.shape.geometry, BucketHeader(depth, child_index, 0),
                 Mutated(Mutation::kChildStartsFree) ? Slot::Free() : Slot::Pend());
  const GlobalAddress table =
      std::exchange(*spare, {});  // a failed verb may still execute: this memory is not used again
  batch.Write(workbench_.image().data(), table, static_cast<uint32_t>(common_.shape.geometry.bytes()));
  const Outcome written = co_await batch.Run();
  if (written != Outcome::kOk) co_return Step::kUnavailable;

  const DirectoryEntry entry = child.Next(table, depth, DirectoryState::kMigrating);
  batch.CompareSwap(directory_.EntryAddress(child_index), child.word(), entry.word(), words);
  const Outcome published = co_await batch.Run();
  if (published != Outcome::kOk) co_return Step::kUnavailable;
  if (*words != child.word()) *spare = table;  // nobody has seen it
  co_return Step::kOk;
}

// [Split 4] Moves all headers of the parent. The parent's image stays on the workbench.
Task<Step> Splitter::MoveHeaders(const Migration& migration) {
  Batch& batch = workbench_.batch();
  batch.Read(migration.parent.address, workbench_.image().data(),
             static_cast<uint32_t>(common_.shape.geometry.bytes()));
  const Outcome headers_read = co_await batch.Run();
  if (headers_read != Outcome::kOk) co_return Step::kUnavailable;
  for (uint32_t b = 0; b < common_.shape.geometry.buckets();) {
    for (; b < common_.shape.geometry.buckets() && batch.size() < Workbench::kWindow; ++b) {
      const BucketHeader header = workbench_.ImageHeader(b);
      if (header.depth() != migration.depth) continue;
      batch.CompareSwap(At(migration.parent, BucketOffset(b)), header.word(), header.Deeper().word(),
                        &workbench_.words().cas[batch.size()]);
    }
    const Outcome moved = co_await batch.Run();
    if (moved != Outcome::kOk) co_return Step::kUnavailable;
  }
  co_return Step::kOk;
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
    const Step passed = co_await merger_.PassMerge(child_index, migration.child.entry);
    if (passed != Step::kOk) co_return passed;
  } else if (found != Step::kOk) {
    co_return found;
  }
  const uint32_t table_bytes = static_cast<uint32_t>(common_.shape.geometry.bytes());

  if (migration.child.migrating()) {
    if (!Mutated(Mutation::kDecisionBeforeHeaders)) {
      const Step moved = co_await MoveHeaders(migration);
      if (moved != Step::kOk) co_return moved;
    }
    if (Mutated(Mutation::kSlotBeforeHeader)) {
      for (uint32_t s = 0; s < common_.shape.geometry.slots(); ++s)
        migration.early.push_back(workbench_.ImageSlot(s).word());
    }
    // [Split 5] Migrate every slot that nobody has decided.
    batch.Read(migration.child.address, workbench_.image().data(), table_bytes);
    const Outcome child_image = co_await batch.Run();
    if (child_image != Outcome::kOk) co_return Step::kUnavailable;
    std::array<uint32_t, Workbench::kWindow> window;
    for (uint32_t s = 0; s < common_.shape.geometry.slots();) {
      uint32_t count = 0;
      for (; s < common_.shape.geometry.slots() && count < window.size(); ++s) {
        if (workbench_.ImageSlot(s).state() == SlotState::kPend) window[count++] = s;
      }
      const Step migrated = co_await MigrateSlots(migration, std::span(window).first(count),
                                                  {&batch, workbench_.words().slots, workbench_.words().cas,
                                                   workbench_.words().blocks, workbench_.words().run});
      if (migrated != Step::kOk) co_return migrated;
    }
    if (Mutated(Mutation::kDecisionBeforeHeaders)) {
      const Step moved = co_await MoveHeaders(migration);
      if (moved != Step::kOk) co_return moved;
    }
    // [Split 6] Now that all of the child is decided, FRZ in the parent does not count any more.
    batch.Read(migration.parent.address, workbench_.image().data(), table_bytes);
    const Outcome parent_image = co_await batch.Run();
    if (parent_image != Outcome::kOk) co_return Step::kUnavailable;
    // The parent's *next* split freezes slots too, and those count. It cannot begin before this split is finished. If
    // the directory, read after the image, says that this one is unfinished, all FRZ in the image is this split's.
    TableRef child_now;
    const Step child_reread = co_await directory_.ReadEntry(batch, &words[0], child_index, &child_now);
    if (child_reread != Step::kOk) co_return child_reread;
    const bool finished_by_others = child_now.entry != migration.child.entry && !Mutated(Mutation::kFrzClearedLate);
    for (uint32_t s = 0; s < common_.shape.geometry.slots() && !finished_by_others;) {
      for (; s < common_.shape.geometry.slots() && batch.size() < Workbench::kWindow; ++s) {
        const Slot slot = workbench_.ImageSlot(s);
        if (slot.state() != SlotState::kFrz) continue;
        batch.CompareSwap(At(migration.parent, SlotOffset(s)), slot.word(), Slot::Free().word(),
                          &workbench_.words().cas[batch.size()]);
      }
      const Outcome cleared = co_await batch.Run();
      if (cleared != Outcome::kOk) co_return Step::kUnavailable;
    }
  }

  // [Split 7] The child goes first: while the parent is splitting, the split still counts as unfinished.
  const DirectoryEntry child_done = migration.child.entry.Next(migration.depth + 1, DirectoryState::kNormal);
  const DirectoryEntry parent_done = migration.parent.entry.Next(migration.depth + 1, DirectoryState::kNormal);
  if (migration.child.migrating()) {
    batch.CompareSwap(directory_.EntryAddress(child_index), migration.child.entry.word(), child_done.word(), &words[0]);
  }
  const Outcome child_named = co_await batch.Run();
  if (child_named != Outcome::kOk) co_return Step::kUnavailable;
  batch.CompareSwap(directory_.EntryAddress(migration.parent.index), migration.parent.entry.word(), parent_done.word(),
                    &words[0]);
  const Outcome parent_named = co_await batch.Run();
  if (parent_named != Outcome::kOk) co_return Step::kUnavailable;
  if (words[0] == migration.parent.entry.word()) ++common_.stats.splits;
  if (migration.child.migrating()) migration.child.entry = child_done;
  migration.parent.entry = parent_done;
  cache_.Insert(migration.child);
  cache_.Insert(migration.parent);
  co_return Step::kOk;
}

}  // namespace kvs
