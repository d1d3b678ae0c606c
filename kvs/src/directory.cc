// The directory at the store's home: finding the table of a hash when the cache does not know it, or knows it wrongly;
// and ReadTableStats, one pass over the directory and every subtable.
#include <algorithm>
#include <cstring>

#include "kvs/src/client_core.h"
#include "kvs/src/store_core.h"

namespace kvs {

// ---- finding a table

GlobalAddress ClientCore::DirectoryAddress(uint32_t index) const {
  return {store_.home(), kDirectoryOffset + uint64_t{index} * sizeof(uint64_t)};
}

// Reads every entry that the hash may belong to in one round trip: dir[0] and, for each set bit of the suffix, the
// index that ends with it. The deepest present one is the table; *parent, if wanted, is the entry of the index that
// this one was split from, read behind it.
Task<Step> ClientCore::Resolve(Operation& op, TableRef* table, DirectoryEntry* parent) {
  std::array<uint32_t, kMaxDepth + 1> index;
  uint32_t count = 0;
  index[count++] = 0;
  for (uint32_t depth = 1; depth <= kMaxDepth; ++depth) {
    if ((op.hash.h1 >> (depth - 1) & 1) != 0) index[count++] = op.hash.Suffix(depth);
  }
  static_assert(kMaxDepth + 1 <= std::tuple_size_v<decltype(OperationBuffers::directory)>);
  const uint64_t ticket = directory_.Ticket();
  for (uint32_t i = count; i-- > 0;) {
    op.batch.Read(DirectoryAddress(index[i]), &op.buffers->directory[i], sizeof(uint64_t));
  }
  stats_.directory_reads += count;
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
  const uint64_t ticket = directory_.Ticket();
  batch.Read(DirectoryAddress(index), scratch, sizeof(uint64_t));
  ++stats_.directory_reads;
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

// ---- all tables

Result<TableStats> ClientCore::ReadTableStats() {
  KRCORE_RETURN_IF_ERROR(NotForked());
  return Wait(CollectTableStats());
}

Task<Result<TableStats>> ClientCore::CollectTableStats() {
  TableStats stats;
  LargeBuffer buffer;
  constexpr uint32_t kDirectoryBytes = sizeof(uint64_t) << kMaxDepth;
  if (!AllocateLarge(std::max<uint64_t>(kDirectoryBytes, geometry_.bytes()), &buffer)) {
    co_return Status(StatusCode::kOutOfMemory, "no local memory for the directory");
  }
  const uint32_t lkey = buffer.region->lkey();
  Operation& op = co_await LeaseOwnOperation("stats");
  const Lease lease(*this, op);
  op.batch.Read(DirectoryAddress(0), buffer.memory.get(), kDirectoryBytes, lkey);
  const Outcome directory_read = co_await op.batch.Run();
  if (directory_read != Outcome::kOk) co_return UnavailableStatus("reading the directory");

  std::vector<std::pair<uint32_t, DirectoryEntry>> present;
  for (uint32_t i = 0; i < uint32_t{1} << kMaxDepth; ++i) {
    uint64_t word;
    std::memcpy(&word, buffer.memory.get() + i * sizeof(word), sizeof(word));
    if (DirectoryEntry(word).present()) present.emplace_back(i, word);
  }
  for (const auto& [index, named] : present) {
    DirectoryEntry entry = named;
    if (named.merging()) {  // the two old tables count until they are replaced
      const Step read = co_await ReadMerge(op.batch, &op.buffers->merge, named, &op.merge);
      if (read != Step::kOk) co_return UnavailableStatus("reading a merge");
      const MergeRecord& terms = op.merge.terms;
      const std::pair<uint32_t, DirectoryEntry> parent{terms.parent_index, op.merge.parent_word()};
      const bool joined = terms.state() == MergeStatus::kJoin && std::ranges::find(present, parent) == present.end();
      if (terms.child_index == index && joined) continue;
      entry = terms.child_index == index ? terms.child() : terms.parent();
    }
    stats.global_depth = std::max(stats.global_depth, entry.depth());
    const GlobalAddress table = entry.subtable();
    op.batch.Read(table, buffer.memory.get(), static_cast<uint32_t>(geometry_.bytes()), lkey);
    const Outcome table_read = co_await op.batch.Run();
    if (table_read != Outcome::kOk) co_return UnavailableStatus("reading a subtable");
    ++stats.subtables;
    stats.slots += geometry_.slots();
    for (uint32_t s = 0; s < geometry_.slots(); ++s) {
      uint64_t word;
      std::memcpy(&word, buffer.memory.get() + SlotOffset(s), sizeof(word));
      stats.used_slots += Slot(word).has_block() ? 1 : 0;
    }
  }
  stats.load_factor = stats.slots == 0 ? 0 : static_cast<double>(stats.used_slots) / static_cast<double>(stats.slots);

  constexpr uint64_t kWindow = kMatchBytes / sizeof(ChunkWord);
  const auto* const words = reinterpret_cast<const ChunkWord*>(op.buffers->match.data());
  std::vector<krcore::NodeId> nodes = members_;
  nodes.insert(nodes.end(), draining_.begin(), draining_.end());
  std::ranges::sort(nodes);
  for (const krcore::NodeId node : nodes) {
    // It may have been drained meanwhile; a connection made now would outlive that.
    if (std::ranges::find(members_, node) == members_.end() && std::ranges::find(draining_, node) == draining_.end()) {
      continue;
    }
    if (!connections_.Reach(node)) co_return UnavailableStatus("reading a chunk table");
    const uint64_t capacity = connections_.PoolBytes(node);
    const uint64_t chunks = capacity / chunk_bytes_;
    uint64_t free = 0;
    for (uint64_t begin = 0; begin < chunks; begin += kWindow) {
      const uint64_t window = std::min(kWindow, chunks - begin);
      op.batch.Read({node, ChunkWordOffset(begin)}, op.buffers->match.data(),
                    static_cast<uint32_t>(window * sizeof(ChunkWord)));
      const Outcome chunks_read = co_await op.batch.Run();
      if (chunks_read != Outcome::kOk) co_return UnavailableStatus("reading a chunk table");
      for (uint64_t i = 0; i < window; ++i) free += words[i].kind() == ChunkKind::kFree ? 1 : 0;
    }
    const bool draining = std::ranges::find(draining_, node) != draining_.end();
    stats.memory_nodes.push_back({node, capacity, capacity - free * chunk_bytes_, draining});
  }
  co_return stats;
}

}  // namespace kvs
