// How a client meets a merge, and how it begins one.
#include "kvs/memory/mutation.h"
#include "kvs/table/merger.h"

namespace kvs {
namespace {

// Two tables are merged if together they fill no more than this of one. A table is split at 80% and more.
constexpr uint64_t kMaxMergedPercent = 40;
// A Delete that finds this few of its candidates used, or fewer, sometimes looks whether there is something to merge.
constexpr uint32_t kFewCandidates = 6;
constexpr uint32_t kLookEvery = 4;

}  // namespace

// ---- meeting a merge

Task<Step> Merger::HelpMerge(Operation& op) {
  if (workbench_.busy()) co_return Step::kRestart;
  Merge merge = op.merge;
  SpareTables spares;
  const Step allocated = co_await AllocateSpares(op, merge.terms.parent_index, &spares);
  Step step = allocated == Step::kUnavailable ? allocated : Step::kRestart;
  if (allocated != Step::kUnavailable && !workbench_.busy()) {
    workbench_.Begin(op.batch);
    const uint64_t token = workbench_.NewToken();
    step = co_await workbench_.LockTable(merge.parent(), token, &common_.stats.merge_takeovers);
    if (step == Step::kOk) {
      step = co_await FinishMerge(op, &merge, &spares);
      const Step unlocked = co_await workbench_.UnlockTable(merge.parent(), token);
      if (unlocked != Step::kOk) step = unlocked;
    }
    workbench_.End();
  }
  FreeSpares(op, &spares);
  if (step == Step::kFull && allocated == Step::kRestart) co_return allocated;
  co_return step == Step::kFull ? epochs_.allocator.SeekRoom(op) : step;
}

// Allocates the two tables that a merge of dir[index] may need. kFull, kRestart: memory was enough for one or for none.
Task<Step> Merger::AllocateSpares(Operation& op, uint32_t index, SpareTables* spares) {
  Step step = Step::kOk;
  for (GlobalAddress& spare : spares->tables) {
    if (step == Step::kOk) step = co_await epochs_.allocator.AllocateTable(op, index, &spare);
  }
  co_return step;
}

void Merger::FreeSpares(Operation& op, SpareTables* spares) {
  for (GlobalAddress& spare : spares->tables) {
    if (spare.valid()) epochs_.memory.Of(op.batch).FreeTable(spare);  // nobody has seen it
  }
}

Task<Step> Merger::PassMerge(uint32_t index, DirectoryEntry entry) {
  Merge merge;
  KVS_CO_RETURN_UNLESS_OK(co_await directory_.ReadMerge(workbench_.batch(), &workbench_.words().record, entry, &merge));
  if (merge.terms.parent_index == index && !Mutated(Mutation::kAnyMergeIsOver)) co_return Step::kOk;
  const Step unlinked = co_await UnlinkChild(merge);
  co_return unlinked == Step::kOk ? Step::kRestart : unlinked;
}

// ---- beginning one

void Merger::ConsiderMerge(const Operation& op, const TableRef& table) {
  ++deletes_;
  if (workbench_.in_background() || epochs_.own_work.closing || table.entry.depth() == 0) return;
  uint32_t used = 0;
  for (uint32_t c = 0; c < kCandidates; ++c) used += op.Candidate(c).has_block() ? 1 : 0;
  if (used > kFewCandidates || common_.random() % kLookEvery != 0) return;
  // A pair that was looked at is left alone until this client has deleted enough since.
  const auto later = merge_not_before_.find(table.index);
  if (later != merge_not_before_.end() && deletes_ < later->second) return;
  workbench_.Background(MergeUpwards(table.index));
}

Task<void> Merger::MergeUpwards(uint32_t index) {
  Step step = Step::kOk;
  while (step == Step::kOk && !epochs_.own_work.closing) {
    Operation& op = co_await epochs_.operations.LeaseOwnOperation();
    const OperationLease lease(epochs_.operations, op);
    step = co_await TryMerge(op, &index);
  }
  merge_not_before_[index] = deletes_ + common_.shape.geometry.slots() / 4;
}

Task<Step> Merger::TryMerge(Operation& op, uint32_t* index, MergeFor purpose) {
  if (workbench_.busy()) co_return Step::kRestart;
  workbench_.Begin(op.batch);
  Merge merge;
  Step step = co_await FindSiblings(*index, &merge);
  if (step == Step::kOk && purpose == MergeFor::kSpace) step = co_await CheckSparse(merge);
  workbench_.End();
  if (step != Step::kOk) co_return step;

  // Memory is taken before anything is put out of use, because a full store could not put it back. This does not wait
  // for memory: a merge only serves to save memory, and a client that makes room must not wait for itself. Others may
  // have changed the tables meanwhile, so the directory is read again.
  SpareTables spares;
  GlobalAddress record;
  step = co_await AllocateSpares(op, merge.terms.parent_index, &spares);
  if (step == Step::kOk)
    step = co_await epochs_.allocator.AllocateNow(op, sizeof(MergeRecord), common_.shape.home, &record);
  if (step == Step::kOk && workbench_.busy()) step = Step::kRestart;
  if (step == Step::kOk) {
    workbench_.Begin(op.batch);
    step = co_await FindSiblings(*index, &merge);
    if (step == Step::kOk) {
      merge.terms.copies = purpose == MergeFor::kCopies ? 1 : 0;
      const uint64_t token = workbench_.NewToken();
      step = co_await workbench_.LockTable(merge.parent(), token, &common_.stats.merge_takeovers);
      if (step == Step::kOk) {
        step = co_await MergeLocked(op, &merge, &spares, &record);
        const Step unlocked = co_await workbench_.UnlockTable(merge.parent(), token);
        if (unlocked != Step::kOk) step = unlocked;
      }
    }
    if (step == Step::kOk) *index = merge.terms.parent_index;
    workbench_.End();
  }
  if (record.valid())
    epochs_.memory.Of(op.batch).Free({.address = record, .bytes = sizeof(MergeRecord)});  // nobody has seen it
  FreeSpares(op, &spares);
  co_return step;
}

// Finds the table of dir[index] and its sibling, both NORMAL and of one depth, and makes them the terms of a merge.
Task<Step> Merger::FindSiblings(uint32_t index, Merge* merge) {
  Batch& batch = workbench_.batch();
  uint64_t* words = workbench_.words().words.data();
  TableRef table;
  KVS_CO_RETURN_UNLESS_OK(co_await directory_.ReadEntry(batch, words, index, &table));
  const uint32_t depth = table.entry.depth();
  if (table.entry.merging()) directory_.NoteUnfinished(index);
  if (table.entry.state() != DirectoryState::kNormal || depth == 0) co_return Step::kRestart;
  MergeRecord& terms = merge->terms;
  terms.parent_index = index & ~(1u << (depth - 1));
  terms.child_index = index | 1u << (depth - 1);
  KVS_CO_RETURN_UNLESS_OK(co_await directory_.ReadWords(batch, words, terms.parent_index, terms.child_index));
  terms.parent_entry = words[0];
  terms.child_entry = words[1];
  for (const DirectoryEntry entry : {terms.parent(), terms.child()}) {
    if (entry.state() != DirectoryState::kNormal || entry.depth() != depth) co_return Step::kRestart;
    if (!common_.connections.Reach(entry.subtable().node)) co_return Step::kUnavailable;
  }
  co_return Step::kOk;
}

// kOk: one table would hold what the two have, with room for more.
Task<Step> Merger::CheckSparse(Merge merge) {
  workbench_.ReadImage(merge.parent(), kParentImage);
  workbench_.ReadImage(merge.child(), kChildImage);
  KVS_CO_RETURN_UNLESS_OK(co_await workbench_.batch().Run());
  uint64_t used = 0;
  for (uint32_t s = 0; s < common_.shape.geometry.slots(); ++s) {
    used += workbench_.ImageSlot(s, kParentImage).has_block() ? 1 : 0;
    used += workbench_.ImageSlot(s, kChildImage).has_block() ? 1 : 0;
  }
  co_return used * 100 <= uint64_t{common_.shape.geometry.slots()} * kMaxMergedPercent ? Step::kOk : Step::kRestart;
}

}  // namespace kvs
