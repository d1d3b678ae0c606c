// Merging two sibling subtables into one: whoever meets a merge, and who begins one. Two directory entries must change
// together, so both are first made to name a record of the merge (kvs/layout/directory.h), from which anybody can go
// on. The steps are in merge_steps.cc.
#include <algorithm>

#include "kvs/src/buffers.h"
#include "kvs/src/client_core.h"
#include "kvs/src/mutation.h"
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

}  // namespace

// ---- meeting a merge

// The record that `entry`, read in dir[index] by this operation, names. It stays what it is as long as the operation.
Task<Step> ClientCore::ReadMerge(Batch& batch, MergeRecord* scratch, DirectoryEntry entry, Merge* merge) {
  merge->record = entry.merge_record();
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
