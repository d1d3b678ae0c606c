// Finding the table of a hash when the cache does not know it, or knows it wrongly.
#include "kvs/src/client_core.h"
#include "kvs/src/store_core.h"

namespace kvs {

GlobalAddress ClientCore::DirectoryAddress(uint32_t index) const {
  return {store_.home(), kDirectoryOffset + uint64_t{index} * sizeof(uint64_t)};
}

// Reads every entry that the hash may belong to in one round trip: dir[0] and, for each set bit of the suffix, the
// index that ends with it. The deepest present one is the table; *parent, if wanted, is the entry of the index that
// this one was split from, read behind it.
Task<Step> ClientCore::Resolve(Operation& op, TableRef* table, DirectoryEntry* parent) {
  if (!connections_.Reach(store_.home())) co_return Step::kUnavailable;
  std::array<uint32_t, kMaxDepth + 1> index;
  uint32_t count = 0;
  index[count++] = 0;
  for (uint32_t depth = 1; depth <= kMaxDepth; ++depth) {
    if ((op.hash.h1 >> (depth - 1) & 1) != 0) index[count++] = op.hash.Suffix(depth);
  }
  static_assert(kMaxDepth + 1 <= std::tuple_size_v<decltype(OperationBuffers::directory)>);
  for (uint32_t i = count; i-- > 0;) {
    op.batch.Read(DirectoryAddress(index[i]), &op.buffers->directory[i], sizeof(uint64_t));
  }
  stats_.directory_reads += count;
  const uint64_t ticket = directory_.Ticket();
  const Outcome read = co_await op.batch.Run();
  if (read != Outcome::kOk) co_return Step::kUnavailable;
  for (uint32_t i = count; i-- > 0;) {
    const DirectoryEntry entry(op.buffers->directory[i]);
    if (!entry.present()) continue;
    if (entry.merging()) {
      const Step read_record = co_await ReadMerge(op.batch, &op.buffers->merge, entry, &op.merge);
      if (read_record != Step::kOk) co_return read_record;
      NoteMerge(index[i]);
      const MergeRecord& terms = op.merge.terms;
      // Published, and only its last step is missing: the table lies further up.
      const bool is_rest = terms.state() == MergeStatus::kJoin && terms.child_index == index[i] && i > 0 &&
                           op.buffers->directory[i - 1] != op.merge.parent_word().word();
      if (is_rest) {
        op.merge = {};
        continue;
      }
      if (!op.merge.Covers(op.hash)) co_return Step::kRestart;
      *table = op.merge.TableOf(op.hash);
      co_return connections_.Reach(table->address.node) ? Step::kOk : Step::kUnavailable;
    }
    *table = {entry.subtable(), index[i], entry, ticket};
    if (parent != nullptr && i > 0) *parent = DirectoryEntry(op.buffers->directory[i - 1]);
    if (!connections_.Reach(table->address.node)) co_return Step::kUnavailable;
    directory_.Insert(*table);
    co_return Step::kOk;
  }
  co_return Step::kRestart;  // the root is always there: a torn view of a store that is being made
}

// `scratch`: 8 registered bytes. An entry that names no subtable gives a table without an address.
Task<Step> ClientCore::ReadDirectoryEntry(Batch& batch, uint64_t* scratch, uint32_t index, TableRef* table) {
  batch.Read(DirectoryAddress(index), scratch, sizeof(uint64_t));
  ++stats_.directory_reads;
  const uint64_t ticket = directory_.Ticket();
  const Outcome read = co_await batch.Run();
  if (read != Outcome::kOk) co_return Step::kUnavailable;
  const DirectoryEntry entry(*scratch);
  *table = {{}, index, entry, ticket};
  if (entry.has_subtable()) {
    table->address = entry.subtable();
    if (!connections_.Reach(table->address.node)) co_return Step::kUnavailable;
  }
  co_return Step::kOk;
}

}  // namespace kvs
