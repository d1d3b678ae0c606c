#include "kvs/table/directory.h"

#include <algorithm>
#include <array>

namespace kvs {
namespace {

// How many splits and merges of others a client remembers to look after.
constexpr size_t kMaxUnfinished = 8;

}  // namespace

Task<Step> Directory::Resolve(Operation& op, TableRef* table) {
  std::array<uint32_t, kMaxDepth + 1> index;
  uint32_t count = 0;
  index[count++] = 0;
  for (uint32_t depth = 1; depth <= kMaxDepth; ++depth) {
    if ((op.hash.h1 >> (depth - 1) & 1) != 0) index[count++] = op.hash.Suffix(depth);
  }
  static_assert(kMaxDepth + 1 <= std::tuple_size_v<decltype(OperationBuffers::directory)>);
  const uint64_t ticket = cache_.Ticket();
  for (uint32_t i = count; i-- > 0;) {
    op.batch.Read(EntryAddress(index[i]), &op.buffers->directory[i], sizeof(uint64_t));
  }
  common_.stats.directory_reads += count;
  KVS_CO_RETURN_UNLESS_OK(co_await op.batch.Run());
  for (uint32_t i = count; i-- > 0;) {
    const DirectoryEntry entry(op.buffers->directory[i]);
    if (!entry.present()) continue;
    if (entry.merging()) {
      KVS_CO_RETURN_UNLESS_OK(co_await ReadMerge(op.batch, &op.buffers->merge, entry, &op.merge));
      NoteUnfinished(index[i]);
      const MergeRecord& terms = op.merge.terms;
      // The joined table is published, and only the last step is missing: the table lies further up.
      const bool is_rest = terms.state() == MergeStatus::kJoin && terms.child_index == index[i] && i > 0 &&
                           op.buffers->directory[i - 1] != op.merge.parent_word().word();
      if (is_rest) {
        op.merge = {};
        continue;
      }
      if (!op.merge.Covers(op.hash)) co_return Step::kRestart;
      *table = op.merge.TableOf(op.hash);
      co_return common_.connections.Reach(table->address.node) ? Step::kOk : Step::kUnavailable;
    }
    *table = {entry.subtable(), index[i], entry, ticket};
    if (!common_.connections.Reach(table->address.node)) co_return Step::kUnavailable;
    cache_.Insert(*table);
    co_return Step::kOk;
  }
  co_return Step::kRestart;  // the root is always there, so this is a torn view of a store that is being made
}

Task<Step> Directory::ReadEntry(Batch& batch, uint64_t* scratch, uint32_t index, TableRef* table) {
  const uint64_t ticket = cache_.Ticket();
  KVS_CO_RETURN_UNLESS_OK(co_await ReadWords(batch, scratch, index));
  const DirectoryEntry entry(*scratch);
  *table = {{}, index, entry, ticket};
  if (entry.has_subtable()) {
    table->address = entry.subtable();
    if (!common_.connections.Reach(table->address.node)) co_return Step::kUnavailable;
  }
  co_return Step::kOk;
}

Task<Step> Directory::ReadMerge(Batch& batch, MergeRecord* scratch, DirectoryEntry entry, Merge* merge) {
  merge->record = entry.merge_record();
  batch.Read(merge->record, scratch, sizeof(MergeRecord));
  KVS_CO_RETURN_UNLESS_OK(co_await batch.Run());
  merge->terms = *scratch;
  co_return Step::kOk;
}

void Directory::NoteUnfinished(uint32_t index) {
  if (unfinished_.size() >= kMaxUnfinished) return;
  if (std::ranges::find(unfinished_, index) == unfinished_.end()) unfinished_.push_back(index);
}

std::optional<uint32_t> Directory::TakeUnfinished() {
  if (unfinished_.empty()) return std::nullopt;
  const uint32_t index = unfinished_.back();
  unfinished_.pop_back();
  return index;
}

}  // namespace kvs
