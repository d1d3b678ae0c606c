// Merging two sibling subtables into one. Two directory entries must change together, so both are first made to name a
// record of the merge (kvs/layout/directory.h), from which anybody can go on. The step numbers are those of
// docs/protocol.md.
#include <algorithm>

#include "kvs/src/client_core.h"
#include "kvs/src/merged_image.h"
#include "kvs/src/mutation.h"
#include "kvs/src/split_buffers.h"
#include "kvs/src/store_core.h"

namespace kvs {
namespace {

// Two tables are merged if together they fill no more than this of one. A table is split at 80% and more.
constexpr uint64_t kMaxMergedPercent = 40;
// A Delete that finds so few of its candidates used looks, now and then, whether there is something to merge.
constexpr uint32_t kFewCandidates = 6;
constexpr uint32_t kLookEvery = 4;
// Merges of others that a client remembers to look after.
constexpr size_t kMaxSeenMerges = 8;

Extent RecordExtent(const Merge& merge) {
  return {.address = merge.record, .bytes = sizeof(MergeRecord), .birth = merge.terms.birth_epoch};
}

// Images in SplitBuffers.
constexpr uint32_t kNewImage = 0, kParentImage = 1, kChildImage = 2;

GlobalAddress At(const TableRef& table, uint64_t offset) { return {table.address.node, table.address.offset + offset}; }

}  // namespace

// ---- meeting a merge

// The record that `entry`, read in dir[index] by this operation, names. It stays what it is as long as the operation.
Task<Step> ClientCore::ReadMerge(Batch& batch, MergeRecord* scratch, DirectoryEntry entry, Merge* merge) {
  merge->record = entry.merge_record();
  if (!connections_.Reach(merge->record.node)) co_return Step::kUnavailable;
  batch.Read(merge->record, scratch, sizeof(MergeRecord));
  const Outcome read = co_await batch.Run();
  if (read != Outcome::kOk) co_return Step::kUnavailable;
  merge->terms = *scratch;
  co_return Step::kOk;
}

// Somebody's merge that may have stopped: maintenance will see.
void ClientCore::NoteMerge(uint32_t index) {
  if (seen_merges_.size() >= kMaxSeenMerges) return;
  if (std::find(seen_merges_.begin(), seen_merges_.end(), index) == seen_merges_.end()) seen_merges_.push_back(index);
}

// The operation scanned its key's table, found it closed, and saw no value; it had met the merge before. From the
// moment at which the directory named an engaged merge, the table counts until what takes its place is published, and
// what it shows frozen is what it held at the end of that: right at a moment within this operation. For the same reason
// the frozen slot's block is not yet reused. kOk: scan.val tells whether *value was set (>= 0) or the key is absent (<
// 0).
Task<Step> ClientCore::GetFromClosed(Operation& op, std::string* value) {
  // A merge that was undecided may have been given up, and the table split and closed by another since.
  const MergeStatus met = op.merge.terms.state();
  const bool engaged = met == MergeStatus::kEngaged || met == MergeStatus::kJoin || met == MergeStatus::kReplace;
  if (!engaged && !Mutated(Mutation::kClosedUnchecked)) co_return Step::kRestart;
  const int frozen = op.scan.frz;
  if (frozen >= 0) {
    const Step read = co_await ReadFrozenValue(op, op.Candidate(static_cast<uint32_t>(frozen)), value);
    if (read != Step::kOk) co_return read;
  }
  op.scan.val = frozen;
  co_return Step::kOk;
}

// A writer at a closed table, or at the entry of one: the merge is finished if whoever was at it has stopped. kOk: it
// is finished; kRestart: it goes on, or there may soon be memory for it. kFull: there is none.
Task<Step> ClientCore::HelpMerge(Operation& op) {
  if (splitting_) co_return Step::kRestart;
  Merge merge = op.merge;
  SpareTables spares;
  const Step allocated = co_await AllocateSpares(op, merge.terms.parent_index, &spares);
  Step step = allocated == Step::kUnavailable ? allocated : Step::kRestart;
  if (allocated != Step::kUnavailable && !splitting_) {
    BeginSplit(op.batch);
    const uint64_t token = SplitToken();
    step = co_await LockTable(merge.parent(), token, &stats_.merge_takeovers);
    if (step == Step::kOk) {
      step = co_await FinishMerge(op, &merge, &spares);
      const Step unlocked = co_await UnlockTable(merge.parent(), token);
      if (unlocked != Step::kOk) step = unlocked;
    }
    splitting_ = false;
  }
  FreeSpares(op, &spares);
  co_return step == Step::kFull ? SeekRoom(op) : step;
}

// Both tables that a merge of dir[index] may need; one if there is no more memory, none if there is none. kFull then.
Task<Step> ClientCore::AllocateSpares(Operation& op, uint32_t index, SpareTables* spares) {
  Step step = Step::kOk;
  for (GlobalAddress& spare : spares->tables) {
    if (step == Step::kOk) step = co_await AllocateTable(op, index, &spare);
  }
  co_return step;
}

void ClientCore::FreeSpares(Operation& op, SpareTables* spares) {
  for (GlobalAddress& spare : spares->tables) {
    if (spare.valid()) MemoryOf(op.batch).FreeTable(spare);  // nobody has seen it
  }
}

// A split of the table of dir[ParentIndex(index)] found `entry` in dir[index], behind its own first step. kOk:
// dir[index] is past its birth already, and its table is in a merge with its own child. kRestart: it was the end of an
// earlier merge of the two, which is done now.
Task<Step> ClientCore::PassMerge(uint32_t index, DirectoryEntry entry) {
  Merge merge;
  const Step read = co_await ReadMerge(split_->batch(), &split_->words().record, entry, &merge);
  if (read != Step::kOk) co_return read;
  if (merge.terms.parent_index == index && !Mutated(Mutation::kAnyMergeIsOver)) co_return Step::kOk;
  const Step unlinked = co_await UnlinkChild(merge);
  co_return unlinked == Step::kOk ? Step::kRestart : unlinked;
}

// ---- beginning one

// A Delete emptied a slot of `table`.
void ClientCore::ConsiderMerge(const Operation& op, const TableRef& table) {
  ++deletes_;
  if (restructuring_ > 0 || closing_ || table.entry.depth() == 0) return;
  uint32_t used = 0;
  for (uint32_t c = 0; c < kCandidates; ++c) used += op.Candidate(c).has_block() ? 1 : 0;
  if (used > kFewCandidates || random_() % kLookEvery != 0) return;
  // A pair that was not to be merged is left alone until enough has been deleted to make it so.
  const auto later = merge_not_before_.find(table.index);
  if (later != merge_not_before_.end() && deletes_ < later->second) return;
  Background(MergeUpwards(table.index));
}

Task<void> ClientCore::MergeUpwards(uint32_t index) {
  Step step = Step::kOk;
  while (step == Step::kOk && !closing_) {
    Operation& op = co_await LeaseOwnOperation("merge");
    const Lease lease(*this, op);
    step = co_await TryMerge(op, &index);
  }
  merge_not_before_[index] = deletes_ + geometry_.slots() / 4;
}

// Merges the table of *index with its sibling, if both are at rest and, to save space, have few enough keys. kOk:
// merged; *index is that of the joined table. kRestart: not now, or replaced by copies.
Task<Step> ClientCore::TryMerge(Operation& op, uint32_t* index, MergeFor purpose) {
  if (splitting_) co_return Step::kRestart;
  BeginSplit(op.batch);
  Merge merge;
  Step step = co_await FindSiblings(*index, &merge);
  if (step == Step::kOk && purpose == MergeFor::kSpace) step = co_await CheckSparse(merge);
  splitting_ = false;
  if (step != Step::kOk) co_return step;

  // Memory before anything is taken out of use, or a full store could not put it back. None is waited for: nobody needs
  // the merge but for memory, and who makes room must not wait for himself. Others may have been at the tables
  // meanwhile, so that the directory is read again.
  SpareTables spares;
  GlobalAddress record;
  step = co_await AllocateSpares(op, merge.terms.parent_index, &spares);
  if (step == Step::kOk) step = co_await AllocateNow(op, sizeof(MergeRecord), store_.home(), &record);
  if (step == Step::kOk && splitting_) step = Step::kRestart;
  if (step == Step::kOk) {
    BeginSplit(op.batch);
    step = co_await FindSiblings(*index, &merge);
    if (step == Step::kOk) {
      merge.terms.copies = purpose == MergeFor::kCopies ? 1 : 0;
      const uint64_t token = SplitToken();
      step = co_await LockTable(merge.parent(), token, &stats_.merge_takeovers);
      if (step == Step::kOk) {
        step = co_await MergeLocked(op, &merge, &spares, &record);
        const Step unlocked = co_await UnlockTable(merge.parent(), token);
        if (unlocked != Step::kOk) step = unlocked;
      }
    }
    if (step == Step::kOk) *index = merge.terms.parent_index;
    splitting_ = false;
  }
  if (record.valid()) MemoryOf(op.batch).Free({.address = record, .bytes = sizeof(MergeRecord)});  // nobody has seen it
  FreeSpares(op, &spares);
  co_return step;
}

// The table of dir[index] and its sibling, both NORMAL and of one depth, as the terms of a merge.
Task<Step> ClientCore::FindSiblings(uint32_t index, Merge* merge) {
  Batch& batch = split_->batch();
  uint64_t* words = split_->words().words.data();
  TableRef table;
  const Step found = co_await ReadDirectoryEntry(batch, words, index, &table);
  if (found != Step::kOk) co_return found;
  const uint32_t depth = table.entry.depth();
  if (table.entry.merging()) NoteMerge(index);
  if (table.entry.state() != DirectoryState::kNormal || depth == 0) co_return Step::kRestart;
  MergeRecord& terms = merge->terms;
  terms.parent_index = index & ~(1u << (depth - 1));
  terms.child_index = index | 1u << (depth - 1);
  batch.Read(DirectoryAddress(terms.parent_index), &words[0], sizeof(uint64_t));
  batch.Read(DirectoryAddress(terms.child_index), &words[1], sizeof(uint64_t));
  stats_.directory_reads += 2;
  const Outcome read = co_await batch.Run();
  if (read != Outcome::kOk) co_return Step::kUnavailable;
  terms.parent_entry = words[0];
  terms.child_entry = words[1];
  for (const DirectoryEntry entry : {terms.parent(), terms.child()}) {
    if (entry.state() != DirectoryState::kNormal || entry.depth() != depth) co_return Step::kRestart;
    if (!connections_.Reach(entry.subtable().node)) co_return Step::kUnavailable;
  }
  co_return Step::kOk;
}

// kOk: one table would hold what the two have, and have room for more.
Task<Step> ClientCore::CheckSparse(Merge merge) {
  Batch& batch = split_->batch();
  const uint32_t table_bytes = static_cast<uint32_t>(geometry_.bytes());
  batch.Read(merge.parent().address, split_->image(kParentImage).data(), table_bytes);
  batch.Read(merge.child().address, split_->image(kChildImage).data(), table_bytes);
  const Outcome read = co_await batch.Run();
  if (read != Outcome::kOk) co_return Step::kUnavailable;
  uint64_t used = 0;
  for (uint32_t s = 0; s < geometry_.slots(); ++s) {
    used += split_->ImageSlot(s, kParentImage).has_block() ? 1 : 0;
    used += split_->ImageSlot(s, kChildImage).has_block() ? 1 : 0;
  }
  co_return used * 100 <= uint64_t{geometry_.slots()} * kMaxMergedPercent ? Step::kOk : Step::kRestart;
}

// Steps 1 and 2, and all the others. `record`: memory for the record, taken from it when it may have been seen.
Task<Step> ClientCore::MergeLocked(Operation& op, Merge* merge, SpareTables* spares, GlobalAddress* record) {
  Batch& batch = split_->batch();
  merge->record = *record;
  if (!connections_.Reach(record->node)) co_return Step::kUnavailable;
  merge->terms.status = static_cast<uint64_t>(MergeStatus::kUndecided);
  merge->terms.birth_epoch = epoch_;
  split_->words().record = merge->terms;
  const GlobalAddress own = std::exchange(*record, {});  // a verb that failed may yet be carried out: not used again
  batch.Write(&split_->words().record, own, sizeof(MergeRecord));
  const Outcome written = co_await batch.Run();
  if (written != Outcome::kOk) co_return Step::kUnavailable;
  uint64_t& old = split_->words().words[0];
  batch.CompareSwap(DirectoryAddress(merge->terms.parent_index), merge->terms.parent_entry, merge->parent_word().word(),
                    &old);
  const Outcome began = co_await batch.Run();
  if (began != Outcome::kOk) co_return Step::kUnavailable;
  if (old != merge->terms.parent_entry) {
    *record = own;
    co_return Step::kRestart;
  }
  co_return co_await FinishMerge(op, merge, spares);
}

// ---- finishing one

// Steps 3 to 8, from any state of the merge; idempotent. kOk: the tables are merged, or replaced. kRestart: the merge
// was given up.
Task<Step> ClientCore::FinishMerge(Operation& op, Merge* merge, SpareTables* spares) {
  const MergeRecord& terms = merge->terms;
  if (terms.state() == MergeStatus::kUndecided) {
    const Step decided = co_await DecideEngagement(merge);
    if (decided != Step::kOk) co_return decided;
  }
  if (terms.state() == MergeStatus::kAbandoned) co_return co_await AbandonMerge(*merge);

  Batch& batch = split_->batch();
  uint64_t* words = split_->words().words.data();
  batch.Read(DirectoryAddress(terms.parent_index), &words[0], sizeof(uint64_t));
  batch.Read(DirectoryAddress(terms.child_index), &words[1], sizeof(uint64_t));
  stats_.directory_reads += 2;
  const Outcome read = co_await batch.Run();
  if (read != Outcome::kOk) co_return Step::kUnavailable;
  const bool parent_left = words[0] == merge->parent_word().word();
  const bool child_left = words[1] == merge->child_word().word();
  if (!child_left && !Mutated(Mutation::kMergeUnengaged)) co_return Step::kOk;  // what is done last is done
  if (!parent_left && terms.state() == MergeStatus::kJoin) co_return co_await UnlinkChild(*merge);

  if (!spares->tables[0].valid()) co_return Step::kFull;
  const Step parent_frozen = co_await CloseTable(merge->parent(), kParentImage);
  if (parent_frozen != Step::kOk) co_return parent_frozen;
  const Step child_frozen = co_await CloseTable(merge->child(), kChildImage);
  if (child_frozen != Step::kOk) co_return child_frozen;
  bool fits = false;
  if (terms.state() != MergeStatus::kReplace && terms.copies == 0) {
    const Step built = co_await BuildMerged(op, *merge, &fits);
    if (built != Step::kOk) co_return built;
  }
  if (terms.state() == MergeStatus::kEngaged) {
    const Step settled = co_await Settle(merge, fits ? MergeStatus::kJoin : MergeStatus::kReplace);
    if (settled != Step::kOk) co_return settled;
  }
  if (terms.state() == MergeStatus::kReplace) co_return co_await PublishCopies(*merge, parent_left, spares);
  if (!fits) co_return Step::kRestart;  // not this client's to finish: who decided otherwise will, or another
  const Step joined = co_await Publish(terms.parent_index, merge->parent_word(), terms.depth(), spares, &fits);
  if (joined != Step::kOk) co_return joined;
  if (fits) ++stats_.merges;
  co_return co_await UnlinkChild(*merge);
}

// CAS of the status to `wanted`; the merge's status is then what is there.
Task<Step> ClientCore::Settle(Merge* merge, MergeStatus wanted) {
  uint64_t& old = split_->words().words[0];
  const uint64_t expected = merge->terms.status;
  static_assert(offsetof(MergeRecord, status) == 0);
  split_->batch().CompareSwap(merge->record, expected, static_cast<uint64_t>(wanted), &old);
  const Outcome settled = co_await split_->batch().Run();
  if (settled != Outcome::kOk) co_return Step::kUnavailable;
  merge->terms.status = old == expected ? static_cast<uint64_t>(wanted) : old;
  co_return Step::kOk;
}

// 3 and 4. The old word of dir[c] does not come back once it is gone, so that who does not find it there, nor the
// record, is right for ever.
Task<Step> ClientCore::DecideEngagement(Merge* merge) {
  uint64_t& old = split_->words().words[0];
  const uint64_t engaged = merge->child_word().word();
  split_->batch().CompareSwap(DirectoryAddress(merge->terms.child_index), merge->terms.child_entry, engaged, &old);
  const Outcome swapped = co_await split_->batch().Run();
  if (swapped != Outcome::kOk) co_return Step::kUnavailable;
  const bool taken = old == merge->terms.child_entry || old == engaged || Mutated(Mutation::kMergeUnengaged);
  co_return co_await Settle(merge, taken ? MergeStatus::kEngaged : MergeStatus::kAbandoned);
}

// 5. Nothing has happened to the tables.
Task<Step> ClientCore::AbandonMerge(Merge merge) {
  Batch& batch = split_->batch();
  uint64_t* words = split_->words().words.data();
  const MergeRecord& terms = merge.terms;
  const DirectoryEntry parent = merge.parent_word(), child = merge.child_word();
  batch.CompareSwap(DirectoryAddress(terms.child_index), child.word(),
                    child.Next(terms.child().subtable(), child.depth(), DirectoryState::kNormal).word(), &words[0]);
  batch.CompareSwap(DirectoryAddress(terms.parent_index), parent.word(),
                    parent.Next(terms.parent().subtable(), parent.depth(), DirectoryState::kNormal).word(), &words[1]);
  const Outcome undone = co_await batch.Run();
  if (undone != Outcome::kOk) co_return Step::kUnavailable;
  if (words[1] == parent.word()) MemoryOf(batch).Retire(RecordExtent(merge));
  co_return Step::kRestart;
}

// 6. Closes the headers, then freezes the slots. What the image shows in the end is the table for ever, but for
// tentative slots of inserters who will find it closed.
Task<Step> ClientCore::CloseTable(TableRef table, uint32_t image) {
  if (!connections_.Reach(table.address.node)) co_return Step::kUnavailable;
  if (Mutated(Mutation::kMergeHeadersLate)) {
    const Step frozen = co_await FreezeSlots(table, image);
    if (frozen != Step::kOk) co_return frozen;
    std::vector<std::byte> kept(split_->image(image).begin(), split_->image(image).end());
    const Step closed = co_await CloseHeaders(table, image);
    std::copy(kept.begin(), kept.end(), split_->image(image).begin());
    co_return closed;
  }
  const Step closed = co_await CloseHeaders(table, image);
  if (closed != Step::kOk) co_return closed;
  co_return co_await FreezeSlots(table, image);
}

Task<Step> ClientCore::CloseHeaders(TableRef table, uint32_t image) {
  Batch& batch = split_->batch();
  for (bool all_closed = false; !all_closed;) {
    batch.Read(table.address, split_->image(image).data(), static_cast<uint32_t>(geometry_.bytes()));
    const Outcome read = co_await batch.Run();
    if (read != Outcome::kOk) co_return Step::kUnavailable;
    all_closed = true;
    std::array<uint64_t, SplitBuffers::kWindow> expected;
    for (uint32_t b = 0; b < geometry_.buckets();) {
      uint32_t count = 0;
      for (; b < geometry_.buckets() && count < expected.size(); ++b) {
        const BucketHeader header = split_->ImageHeader(b, image);
        if (header.closed()) continue;
        expected[count] = header.word();
        batch.CompareSwap(At(table, BucketOffset(b)), header.word(), header.Closed().word(),
                          &split_->words().cas[count]);
        ++count;
      }
      const Outcome closed = co_await batch.Run();
      if (closed != Outcome::kOk) co_return Step::kUnavailable;
      for (uint32_t i = 0; i < count; ++i) {
        const uint64_t old = split_->words().cas[i];
        all_closed &= old == expected[i] || BucketHeader(old).closed();
      }
    }
  }
  co_return Step::kOk;
}

// Reads the table behind the closing, and leaves no slot VAL or INS that was so then.
Task<Step> ClientCore::FreezeSlots(TableRef table, uint32_t image) {
  Batch& batch = split_->batch();
  batch.Read(table.address, split_->image(image).data(), static_cast<uint32_t>(geometry_.bytes()));
  const Outcome read = co_await batch.Run();
  if (read != Outcome::kOk) co_return Step::kUnavailable;
  const auto settled = [](Slot slot) {
    switch (slot.state()) {
      case SlotState::kVal: return Mutated(Mutation::kMergeWithoutFreeze) ? slot : slot.WithState(SlotState::kFrz);
      case SlotState::kIns: return Mutated(Mutation::kMergeIgnoresIns) ? slot : Slot::Free();
      default: return slot;
    }
  };
  std::array<uint32_t, SplitBuffers::kWindow> todo;
  for (uint32_t s = 0; s < geometry_.slots();) {
    uint32_t count = 0;
    for (; s < geometry_.slots() && count < todo.size(); ++s) {
      const Slot slot = split_->ImageSlot(s, image);
      if (!(settled(slot) == slot)) todo[count++] = s;
    }
    while (count > 0) {
      for (uint32_t i = 0; i < count; ++i) {
        const Slot slot = split_->ImageSlot(todo[i], image);
        batch.CompareSwap(At(table, SlotOffset(todo[i])), slot.word(), settled(slot).word(), &split_->words().cas[i]);
      }
      const Outcome frozen = co_await batch.Run();
      if (frozen != Outcome::kOk) co_return Step::kUnavailable;
      // A lost CAS: the slot changed after it was read. Look again.
      uint32_t left = 0;
      for (uint32_t i = 0; i < count; ++i) {
        Slot& slot = split_->ImageSlot(todo[i], image);
        const Slot old(split_->words().cas[i]);
        const bool won = old == slot;
        slot = won ? settled(slot) : old;
        if (won || settled(slot) == slot) continue;
        ++stats_.cas_failures;
        todo[left++] = todo[i];
      }
      count = left;
    }
  }
  for (uint32_t s = 0; s < geometry_.slots() && Mutated(Mutation::kMergeWithoutFreeze); ++s) {
    Slot& slot = split_->ImageSlot(s, image);
    if (slot.state() == SlotState::kVal) slot = slot.WithState(SlotState::kFrz);
  }
  co_return Step::kOk;
}

// 7. The joined table, from the two frozen images.
Task<Step> ClientCore::BuildMerged(Operation& op, Merge merge, bool* fits) {
  MergedImage merged(split_->image(kNewImage), geometry_,
                     BucketHeader(merge.terms.depth(), merge.terms.parent_index, 0));
  merged.Add(split_->image(kParentImage));
  merged.Add(split_->image(kChildImage));
  *fits = true;
  for (const Slot slot : merged.homeless()) {
    KeyHash hash;
    const Step read = co_await ReadKeyHash(op, slot, &hash);
    if (read != Step::kOk) co_return read;
    *fits = merged.Place(slot, hash);
    if (!*fits) break;
  }
  co_return Step::kOk;
}

// The second half of a key's hash is not in its block: the key must be read.
Task<Step> ClientCore::ReadKeyHash(Operation& op, Slot slot, KeyHash* hash) {
  Batch& batch = op.batch;
  if (!connections_.Reach(slot.block().node)) co_return Step::kUnavailable;
  const uint32_t bytes = FirstReadBytes(slot);
  batch.Read(slot.block(), op.buffers->match.data(), bytes);
  const Outcome read = co_await batch.Run();
  if (read != Outcome::kOk) co_return Step::kUnavailable;
  BlockView block(op.buffers->match.data());
  const uint32_t key_end = sizeof(BlockHeader) + uint32_t{block.header().key_bytes};
  if (key_end > bytes) {
    if (!AllocateLarge(key_end, &op.large_read)) co_return Step::kFull;
    batch.Read(slot.block(), op.large_read.memory.get(), key_end, op.large_read.region->lkey());
    const Outcome key_read = co_await batch.Run();
    if (key_read != Outcome::kOk) co_return Step::kUnavailable;
    block = BlockView(op.large_read.memory.get());
    // The block of a merge that others have finished may be another one by now.
    if (sizeof(BlockHeader) + uint32_t{block.header().key_bytes} > key_end) co_return Step::kRestart;
  }
  *hash = hasher_(block.key());
  co_return Step::kOk;
}

// Writes the new image to a spare table and CASes it into dir[index] in the place of `expected`.
Task<Step> ClientCore::Publish(uint32_t index, DirectoryEntry expected, uint32_t depth, SpareTables* spares,
                               bool* won) {
  Batch& batch = split_->batch();
  const GlobalAddress table = spares->Take();
  if (!table.valid()) co_return Step::kFull;
  if (!connections_.Reach(table.node)) co_return Step::kUnavailable;
  batch.Write(split_->image(kNewImage).data(), table, static_cast<uint32_t>(geometry_.bytes()));
  const Outcome written = co_await batch.Run();
  if (written != Outcome::kOk) co_return Step::kUnavailable;
  const DirectoryEntry entry = expected.Next(table, depth, DirectoryState::kNormal);
  uint64_t& old = split_->words().words[0];
  const uint64_t ticket = directory_.Ticket();
  if (Mutated(Mutation::kMergePublishByWrite)) {
    split_->words().words[1] = entry.word();
    batch.Write(&split_->words().words[1], DirectoryAddress(index), sizeof(uint64_t));
    old = expected.word();
  } else {
    batch.CompareSwap(DirectoryAddress(index), expected.word(), entry.word(), &old);
  }
  const Outcome published = co_await batch.Run();
  if (published != Outcome::kOk) co_return Step::kUnavailable;
  *won = old == expected.word();
  if (*won) {
    directory_.Insert({table, index, entry, ticket});
  } else {
    MemoryOf(batch).FreeTable(table);  // nobody has seen it
  }
  co_return Step::kOk;
}

// 7, where one table is not enough, or not wanted: each is replaced by a copy. dir[c] at last, and when dir[s] is known
// to have been.
Task<Step> ClientCore::PublishCopies(Merge merge, bool parent_left, SpareTables* spares) {
  const MergeRecord& terms = merge.terms;
  const uint32_t depth = terms.depth() + 1;
  bool won = false;
  if (parent_left) {
    MergedImage(split_->image(kNewImage), geometry_, BucketHeader(depth, terms.parent_index, 0))
        .Add(split_->image(kParentImage));
    const Step published = co_await Publish(terms.parent_index, merge.parent_word(), depth, spares, &won);
    if (published != Step::kOk) co_return published;
  }
  MergedImage(split_->image(kNewImage), geometry_, BucketHeader(depth, terms.child_index, 0))
      .Add(split_->image(kChildImage));
  const Step published = co_await Publish(terms.child_index, merge.child_word(), depth, spares, &won);
  if (published != Step::kOk) co_return published;
  if (!won) co_return Step::kRestart;
  ++stats_.table_replacements;
  const Step reported = co_await RetireMerged(merge);
  co_return reported == Step::kOk ? Step::kRestart : reported;  // nothing became smaller
}

// 8. dir[s] does not name the record any more.
Task<Step> ClientCore::UnlinkChild(Merge merge) {
  const DirectoryEntry child = merge.child_word();
  const DirectoryEntry absent = child.Next(merge.terms.child().subtable(), child.depth(), DirectoryState::kAbsent);
  uint64_t& old = split_->words().words[0];
  split_->batch().CompareSwap(DirectoryAddress(merge.terms.child_index), child.word(), absent.word(), &old);
  const Outcome unlinked = co_await split_->batch().Run();
  if (unlinked != Outcome::kOk) co_return Step::kUnavailable;
  if (old != child.word()) co_return Step::kOk;
  co_return co_await RetireMerged(merge);
}

// ---- tables that are out of use

// By whoever took the record out of dir[c], where it is last: until then others may come to it, and to the tables, from
// there.
Task<Step> ClientCore::RetireMerged(Merge merge) {
  if (split_->batch().Stale()) co_return Step::kRestart;  // found by sweeping
  memory_->Retire(RecordExtent(merge));
  for (const TableRef& table : {merge.parent(), merge.child()}) {
    directory_.Forget(table);
    retired_tables_.push_back(table.address);
  }
  co_return co_await ReportRetiredTables(split_->batch(), &split_->words().words[0]);
}

// Tells everybody that tables were unlinked, and only then lets their grace period begin: whose announcement is younger
// than that has read the counter, and his directory cache does not name them. What could not be reported is reported by
// maintenance.
Task<Step> ClientCore::ReportRetiredTables(Batch& batch, uint64_t* scratch) {
  if (retired_tables_.empty()) co_return Step::kOk;
  std::vector<GlobalAddress> tables = std::exchange(retired_tables_, {});
  Outcome reported = Outcome::kUnavailable;
  if (connections_.Reach(store_.home())) {
    batch.FetchAdd({store_.home(), kHomeAreaOffset + offsetof(HomeArea, counters.retired_tables)}, 1, scratch);
    reported = co_await batch.Run();
  }
  if (reported != Outcome::kOk) {
    retired_tables_.insert(retired_tables_.end(), tables.begin(), tables.end());
    co_return Step::kUnavailable;
  }
  if (batch.Stale()) co_return Step::kRestart;
  for (const GlobalAddress table : tables) memory_->Retire({.address = table, .bytes = TableBytes(), .is_table = true});
  co_return Step::kOk;
}

// ---- in maintenance

// The counter of retired tables, read behind the epoch that is about to be announced.
void ClientCore::SawRetiredTables(uint64_t counter) {
  if (counter == seen_retired_tables_) return;
  seen_retired_tables_ = counter;
  if (!Mutated(Mutation::kDirectoryCacheKept)) directory_.Clear();
}

// A merge that this client met may have lost whoever was at it, and where only readers go on nobody else finishes it.
void ClientCore::LookAfterMerges() {
  if (seen_merges_.empty() || restructuring_ > 0 || closing_) return;
  const uint32_t index = seen_merges_.back();
  seen_merges_.pop_back();
  Background(FinishSeenMerge(index));
}

Task<void> ClientCore::FinishSeenMerge(uint32_t index) {
  Operation& op = co_await LeaseOwnOperation("merge");
  const Lease lease(*this, op);
  TableRef table;
  const Step read = co_await ReadDirectoryEntry(op.batch, &op.buffers->directory[0], index, &table);
  if (read != Step::kOk || !table.entry.merging()) co_return;
  const Step known = co_await ReadMerge(op.batch, &op.buffers->merge, table.entry, &op.merge);
  if (known != Step::kOk) co_return;
  const Step finished = co_await HelpMerge(op);
  if (finished != Step::kOk) NoteMerge(index);
}

}  // namespace kvs
