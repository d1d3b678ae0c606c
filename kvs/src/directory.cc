// Finding the table of a hash when the cache does not know it, or knows it wrongly.
#include "kvs/src/client_core.h"
#include "kvs/src/store_core.h"

namespace kvs {

GlobalAddress ClientCore::DirectoryAddress(uint32_t index) const {
  return {store_.home(), kDirectoryOffset + uint64_t{index} * sizeof(uint64_t)};
}

// Reads every entry that the hash may belong to in one round trip: dir[0] and, for each set bit of the suffix, the
// index that ends with it. The deepest present one is the table.
Task<Step> ClientCore::Resolve(Operation& op, TableRef* table) {
  if (!connections_.Reach(store_.home())) co_return Step::kUnavailable;
  std::array<uint32_t, kMaxDepth + 1> index;
  uint32_t count = 0;
  index[count++] = 0;
  for (uint32_t depth = 1; depth <= kMaxDepth; ++depth) {
    if ((op.hash.h1 >> (depth - 1) & 1) != 0) index[count++] = op.hash.Suffix(depth);
  }
  static_assert(kMaxDepth + 1 <= std::tuple_size_v<decltype(OperationBuffers::directory)>);
  for (uint32_t i = 0; i < count; ++i) {
    op.batch.Read(DirectoryAddress(index[i]), &op.buffers->directory[i], sizeof(uint64_t));
  }
  stats_.directory_reads += count;
  const Outcome read = co_await op.batch.Run();
  if (read != Outcome::kOk) co_return Step::kUnavailable;
  for (uint32_t i = count; i-- > 0;) {
    const DirectoryEntry entry(op.buffers->directory[i]);
    if (!entry.present()) continue;
    *table = {entry.subtable(), index[i], entry};
    if (!connections_.Reach(table->address.node)) co_return Step::kUnavailable;
    directory_.Insert(index[i], entry);
    co_return Step::kOk;
  }
  co_return Step::kRestart;  // the root is always there: a torn view of a store that is being made
}

// `scratch`: 8 registered bytes. A missing entry gives a table whose entry is not present().
Task<Step> ClientCore::ReadDirectoryEntry(Batch& batch, uint64_t* scratch, uint32_t index, TableRef* table) {
  batch.Read(DirectoryAddress(index), scratch, sizeof(uint64_t));
  ++stats_.directory_reads;
  const Outcome read = co_await batch.Run();
  if (read != Outcome::kOk) co_return Step::kUnavailable;
  const DirectoryEntry entry(*scratch);
  *table = {entry.subtable(), index, entry};
  if (entry.present()) {
    if (!connections_.Reach(table->address.node)) co_return Step::kUnavailable;
  }
  co_return Step::kOk;
}

}  // namespace kvs
