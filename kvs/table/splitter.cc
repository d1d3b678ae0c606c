#include "kvs/table/splitter.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <optional>
#include <utility>

#include "kvs/layout/pool.h"
#include "kvs/memory/mutation.h"

namespace kvs {

// Reads dir[child], then dir[parent], then dir[child] again. kOk: the parent is splitting into this child: the
// directory named the child both before and after it showed the parent splitting. A child is MIGRATING only while its
// parent is splitting, so the two belong together. Without the first look, the parent's split could be that of another
// child, born later in its place. kRestart: no such split is going on, or the directory changed; `halves` has what
// was read last.
Task<Step> Splitter::ReadSplit(Batch& batch, std::span<uint64_t, 3> words, uint32_t child_index, Halves* halves) {
  const uint32_t parent_index = ParentIndex(child_index);
  const uint64_t ticket = cache_.Ticket();
  KVS_CO_RETURN_UNLESS_OK(co_await directory_.ReadWords(batch, words.data(), child_index, parent_index, child_index));
  const DirectoryEntry parent(words[1]), child(words[2]);
  halves->depth = BirthDepth(child_index) - 1;
  halves->parent = {parent.subtable(), parent_index, parent, ticket};
  halves->child = {child.subtable(), child_index, child, ticket};
  const bool splitting = parent.splitting() && parent.depth() == halves->depth;
  if (!splitting || !child.has_subtable() || words[0] != words[2]) co_return Step::kRestart;
  if (!common_.connections.Reach(halves->parent.address.node) ||
      !common_.connections.Reach(halves->child.address.node)) {
    co_return Step::kUnavailable;
  }
  co_return Step::kOk;
}

Task<Step> Splitter::Split(Operation& op, TableRef table) {
  if (workbench_.busy()) co_return Step::kRestart;
  workbench_.Begin(op.batch);
  const uint64_t token = workbench_.NewToken();
  Merge met;
  Step allocated = Step::kOk;
  Step step = co_await workbench_.LockTable(table, token, &common_.stats.split_takeovers);
  if (step == Step::kOk) {
    // Even without memory, a split whose child is published can be finished.
    GlobalAddress spare;
    allocated = co_await epochs_.allocator.AllocateTable(op, ChildIndex(table.index, table.entry.depth()), &spare);
    workbench_.batch().RenewView();  // that memory's pool may be younger
    step = co_await SplitLocked(table, &spare, &met);
    if (spare.valid()) epochs_.memory.Of(op.batch).FreeTable(spare);  // nobody has seen it
    const Step unlocked = co_await workbench_.UnlockTable(table, token);
    if (unlocked != Step::kOk) step = unlocked;
  }
  workbench_.End();
  if (step == Step::kRestart && met.known()) {
    op.merge = met;
    step = co_await merger_.HelpMerge(op);
  }
  if (step != Step::kFull || allocated == Step::kOk) co_return step;
  co_return allocated == Step::kFull ? epochs_.allocator.SeekRoom(op) : allocated;
}

Task<Step> Splitter::FinishAbandonedSplit(const Batch& on_behalf_of, uint32_t child_index) {
  if (workbench_.busy()) co_return Step::kRestart;
  workbench_.Begin(on_behalf_of);
  Halves halves;
  Step step =
      co_await ReadSplit(workbench_.batch(), std::span(workbench_.words().words).first<3>(), child_index, &halves);
  if (step == Step::kOk) {
    const uint64_t token = workbench_.NewToken();
    step = co_await workbench_.LockTable(halves.parent, token, &common_.stats.split_takeovers);
    if (step == Step::kOk) {
      step = co_await FinishSplit(child_index);
      const Step unlocked = co_await workbench_.UnlockTable(halves.parent, token);
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
  known_.assign(common_.shape.geometry.slots(), {});
  if (!parent.entry.splitting()) {
    if (!spare->valid()) co_return Step::kFull;
    // So if a block cannot be read, the table stays as it is, and nobody waits while most of them are read.
    KVS_CO_RETURN_UNLESS_OK(co_await workbench_.Look(parent, kParentImage));
    KVS_CO_RETURN_UNLESS_OK(co_await ReadHashes(depth));
    // [Split 2] From now on nothing else happens to this table.
    const DirectoryEntry splitting = parent.entry.Next(depth, DirectoryState::kSplitting);
    workbench_.batch().CompareSwap(directory_.EntryAddress(parent.index), parent.entry.word(), splitting.word(), words);
    KVS_CO_RETURN_UNLESS_OK(co_await workbench_.batch().Run());
    if (*words != parent.entry.word()) co_return Step::kRestart;
    parent.entry = splitting;
  }
  const uint32_t child_index = ChildIndex(parent.index, depth);
  KVS_CO_RETURN_UNLESS_OK(co_await MakeChild(parent, child_index, spare));
  co_return co_await FinishSplit(child_index);
}

// [Split 1, Split 4] Reads the hashes of those blocks that the parent's image names and that are not known yet.
Task<Step> Splitter::ReadHashes(uint32_t depth) {
  Batch& batch = workbench_.batch();
  std::array<BlockHeader, Workbench::kWindow>& blocks = workbench_.words().blocks;
  const uint32_t slots = common_.shape.geometry.slots();
  std::array<uint32_t, Workbench::kWindow> window;
  for (uint32_t s = 0; s < slots;) {
    uint32_t count = 0;
    for (; s < slots && count < window.size(); ++s) {
      const Slot slot = workbench_.ImageSlot(s, kParentImage);
      const bool may_move = slot.state() == SlotState::kVal || slot.state() == SlotState::kIns;
      if (!may_move || slot == known_[s].slot) continue;
      batch.Read(slot.block(), &blocks[count], sizeof(BlockHeader));
      window[count++] = s;
    }
    KVS_CO_RETURN_UNLESS_OK(co_await batch.Run());
    for (uint32_t i = 0; i < count; ++i) {
      known_[window[i]] = {workbench_.ImageSlot(window[i], kParentImage), (blocks[i].hash >> depth & 1) != 0};
    }
  }
  co_return Step::kOk;
}

// [Split 3 to 5] Makes the child of the split that `parent` shows, if there is none yet. kRestart: that split is
// finished, or the rest of an earlier merge was in the way, and is not any more.
Task<Step> Splitter::MakeChild(TableRef parent, uint32_t child_index, GlobalAddress* spare) {
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

  if (!Mutated(Mutation::kSlotBeforeHeader)) KVS_CO_RETURN_UNLESS_OK(co_await MoveHeaders(parent));
  KVS_CO_RETURN_UNLESS_OK(co_await FreezeMoving(parent));
  if (Mutated(Mutation::kSlotBeforeHeader)) KVS_CO_RETURN_UNLESS_OK(co_await MoveHeaders(parent));

  // [Split 5] As long as dir[child] has the word that was read above, nobody has cleared what is frozen. So if this CAS
  // is won, the image is right.
  const uint32_t depth = parent.entry.depth() + 1;
  BuildChild(depth, child_index);
  if (Mutated(Mutation::kFrzClearedEarly)) KVS_CO_RETURN_UNLESS_OK(co_await ClearFrozen(parent));
  const GlobalAddress table =
      std::exchange(*spare, {});  // a failed verb may still execute: this memory is not used again
  workbench_.WriteImage(table);
  KVS_CO_RETURN_UNLESS_OK(co_await batch.Run());
  const DirectoryEntry entry = child.Next(table, depth, DirectoryState::kMigrating);
  if (Mutated(Mutation::kSplitPublishByWrite)) {
    words[1] = entry.word();
    batch.Write(&words[1], directory_.EntryAddress(child_index), sizeof(uint64_t));
    words[0] = child.word();
  } else {
    batch.CompareSwap(directory_.EntryAddress(child_index), child.word(), entry.word(), words, Word::kOwnEntry);
  }
  KVS_CO_RETURN_UNLESS_OK(co_await batch.Run());
  if (*words != child.word()) *spare = table;  // nobody has seen it
  co_return Step::kOk;
}

// [Split 3] Moves all headers of the parent.
Task<Step> Splitter::MoveHeaders(TableRef parent) {
  const auto deeper = [this, depth = parent.entry.depth()](uint32_t bucket) -> std::optional<Workbench::Swap> {
    const BucketHeader header = workbench_.ImageHeader(bucket, kParentImage);
    if (header.depth() != depth) return {};
    return Workbench::Swap{BucketOffset(bucket), header.word(), header.Deeper().word()};
  };
  KVS_CO_RETURN_UNLESS_OK(co_await workbench_.Look(parent, kParentImage));
  Workbench::Swaps swaps;  // one is lost to another splitter only, who did the same
  co_return co_await workbench_.SwapOnce(parent, kParentImage, common_.shape.geometry.buckets(), deeper, Word::kAnyones,
                                         &swaps);
}

// [Split 4] Freezes the values of the parent that move, and kills the tentative slots that would. Its headers have
// moved, so there will be no others. In the end the parent's image shows it so.
Task<Step> Splitter::FreezeMoving(TableRef parent) {
  const uint32_t slots = common_.shape.geometry.slots();
  const auto moving = [this](uint32_t s) -> std::optional<Workbench::Swap> {
    const Slot slot = workbench_.ImageSlot(s, kParentImage);
    const bool is_value = slot.state() == SlotState::kVal;
    if (!known_[s].moves || slot != known_[s].slot) return {};
    if (Mutated(is_value ? Mutation::kCopyWithoutFreeze : Mutation::kSplitIgnoresIns)) return {};
    const Slot settled = is_value ? slot.WithState(SlotState::kFrz) : common_.NewFree();
    return Workbench::Swap{SlotOffset(s), slot.word(), settled.word()};
  };
  KVS_CO_RETURN_UNLESS_OK(co_await workbench_.Look(parent, kParentImage));
  Workbench::Swaps swaps;
  do {
    KVS_CO_RETURN_UNLESS_OK(co_await ReadHashes(parent.entry.depth()));
    const Step frozen = co_await workbench_.SwapOnce(parent, kParentImage, slots, moving, Word::kAnyonesSlot, &swaps);
    if (frozen != Step::kOk) co_return frozen;
    common_.stats.slots_migrated += swaps.won;
  } while (swaps.lost > 0);
  const bool unfrozen = Mutated(Mutation::kCopyWithoutFreeze);
  for (uint32_t s = 0; s < slots && unfrozen; ++s) {
    Slot& slot = workbench_.ImageSlot(s, kParentImage);
    if (slot.state() == SlotState::kVal && known_[s].moves) slot = slot.WithState(SlotState::kFrz);
  }
  co_return Step::kOk;
}

// [Split 5] Makes the child's image of the parent's: what is frozen there is a value here, in the same slot.
void Splitter::BuildChild(uint32_t depth, uint32_t child_index) {
  FormatSubtable(workbench_.image(kNewImage), common_.shape.geometry, BucketHeader(depth, child_index, 0),
                 Slot::Fresh());
  for (uint32_t s = 0; s < common_.shape.geometry.slots(); ++s) {
    const Slot slot = workbench_.ImageSlot(s, kParentImage);
    if (slot.state() == SlotState::kFrz) workbench_.ImageSlot(s, kNewImage) = slot.WithState(SlotState::kVal);
  }
}

// [Split 6] Clears what the parent's image shows frozen.
Task<Step> Splitter::ClearFrozen(TableRef parent) {
  const uint64_t free = common_.NewFree().word();  // one for all: words must differ within a slot only
  const auto cleared = [this, free](uint32_t s) -> std::optional<Workbench::Swap> {
    const Slot slot = workbench_.ImageSlot(s, kParentImage);
    if (slot.state() != SlotState::kFrz) return {};
    return Workbench::Swap{SlotOffset(s), slot.word(), free};
  };
  Workbench::Swaps swaps;  // one is lost to another finisher only, who did the same
  co_return co_await workbench_.SwapOnce(parent, kParentImage, common_.shape.geometry.slots(), cleared,
                                         Word::kAnyonesSlot, &swaps);
}

// [Split 6, 7] Finishes the split that made dir[child_index], from any state; idempotent. kOk: it is finished.
Task<Step> Splitter::FinishSplit(uint32_t child_index) {
  const std::span<uint64_t, 3> words = std::span(workbench_.words().words).first<3>();
  Batch& batch = workbench_.batch();
  Halves halves;
  const Step found = co_await ReadSplit(batch, words, child_index, &halves);
  if (found == Step::kUnavailable) co_return found;
  const DirectoryEntry parent = halves.parent.entry;
  if (!parent.splitting() || parent.depth() != halves.depth) co_return Step::kOk;
  if (halves.child.entry.merging()) {
    // The record counts only if dir[child] named it both before and after dir[parent] was seen to be splitting. Else it
    // may belong to a merge that began since.
    if (words[0] != words[2]) co_return Step::kRestart;
    KVS_CO_RETURN_UNLESS_OK(co_await merger_.PassMerge(child_index, halves.child.entry));
  } else if (found != Step::kOk) {
    co_return found;
  }

  if (halves.child.migrating()) {
    // [Split 6] Now that the child is published, FRZ in the parent does not count any more.
    workbench_.ReadImage(halves.parent, kParentImage);
    KVS_CO_RETURN_UNLESS_OK(co_await batch.Run());
    // The parent's *next* split freezes slots too, and those count. It cannot begin before this split is finished. If
    // the directory, read after the image, says that this one is unfinished, all FRZ in the image is this split's.
    TableRef child_now;
    KVS_CO_RETURN_UNLESS_OK(co_await directory_.ReadEntry(batch, &words[0], child_index, &child_now));
    if (child_now.entry == halves.child.entry || Mutated(Mutation::kFrzClearedLate)) {
      KVS_CO_RETURN_UNLESS_OK(co_await ClearFrozen(halves.parent));
    }
  }

  // [Split 7] The child goes first: while the parent is splitting, the split still counts as unfinished.
  const DirectoryEntry child_done = halves.child.entry.Next(halves.depth + 1, DirectoryState::kNormal);
  const DirectoryEntry parent_done = halves.parent.entry.Next(halves.depth + 1, DirectoryState::kNormal);
  if (halves.child.migrating()) {
    batch.CompareSwap(directory_.EntryAddress(child_index), halves.child.entry.word(), child_done.word(), &words[0]);
  }
  KVS_CO_RETURN_UNLESS_OK(co_await batch.Run());
  batch.CompareSwap(directory_.EntryAddress(halves.parent.index), halves.parent.entry.word(), parent_done.word(),
                    &words[0]);
  KVS_CO_RETURN_UNLESS_OK(co_await batch.Run());
  if (words[0] == halves.parent.entry.word()) ++common_.stats.splits;
  if (halves.child.migrating()) halves.child.entry = child_done;
  halves.parent.entry = parent_done;
  cache_.Insert(halves.child);
  cache_.Insert(halves.parent);
  co_return Step::kOk;
}

}  // namespace kvs
