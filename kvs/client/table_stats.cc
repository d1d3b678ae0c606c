// ReadTableStats: one pass over the directory and every subtable.
#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "kvs/client/client_core.h"

namespace kvs {

Result<TableStats> ClientCore::ReadTableStats() {
  KRCORE_RETURN_IF_ERROR(NotForked());
  return Wait(CollectTableStats());
}

Task<Result<TableStats>> ClientCore::CollectTableStats() {
  TableStats stats;
  LargeBuffer buffer;
  constexpr uint32_t kDirectoryBytes = sizeof(uint64_t) << kMaxDepth;
  if (!buffer.Grow(common_.node, std::max<uint64_t>(kDirectoryBytes, common_.shape.geometry.bytes()))) {
    co_return Status(StatusCode::kOutOfMemory, "no local memory for the directory");
  }
  const uint32_t lkey = buffer.region->lkey();
  Operation& op = co_await epochs_.operations.LeaseOwnOperation();
  const OperationLease lease(epochs_.operations, op);
  op.batch.Read(table_.directory.EntryAddress(0), buffer.memory.get(), kDirectoryBytes, lkey);
  const Outcome directory_read = co_await op.batch.Run();
  if (directory_read != Outcome::kOk) co_return connections_.UnavailableStatus("reading the directory");

  std::vector<std::pair<uint32_t, DirectoryEntry>> present;
  for (uint32_t i = 0; i < uint32_t{1} << kMaxDepth; ++i) {
    uint64_t word;
    std::memcpy(&word, buffer.memory.get() + i * sizeof(word), sizeof(word));
    if (DirectoryEntry(word).present()) present.emplace_back(i, word);
  }
  for (const auto& [index, named] : present) {
    DirectoryEntry entry = named;
    if (named.merging()) {  // the two old tables count until they are replaced
      const Step read = co_await table_.directory.ReadMerge(op.batch, &op.buffers->merge, named, &op.merge);
      if (read != Step::kOk) co_return connections_.UnavailableStatus("reading a merge");
      const MergeRecord& terms = op.merge.terms;
      const std::pair<uint32_t, DirectoryEntry> parent{terms.parent_index, op.merge.parent_word()};
      const bool joined = terms.state() == MergeStatus::kJoin && std::ranges::find(present, parent) == present.end();
      if (terms.child_index == index && joined) continue;
      entry = terms.child_index == index ? terms.child() : terms.parent();
    }
    stats.global_depth = std::max(stats.global_depth, entry.depth());
    const GlobalAddress table = entry.subtable();
    op.batch.Read(table, buffer.memory.get(), static_cast<uint32_t>(common_.shape.geometry.bytes()), lkey);
    const Outcome table_read = co_await op.batch.Run();
    if (table_read != Outcome::kOk) co_return connections_.UnavailableStatus("reading a subtable");
    ++stats.subtables;
    stats.slots += common_.shape.geometry.slots();
    for (uint32_t s = 0; s < common_.shape.geometry.slots(); ++s) {
      uint64_t word;
      std::memcpy(&word, buffer.memory.get() + SlotOffset(s), sizeof(word));
      stats.used_slots += Slot(word).has_block() ? 1 : 0;
    }
  }
  stats.load_factor = stats.slots == 0 ? 0 : static_cast<double>(stats.used_slots) / static_cast<double>(stats.slots);

  constexpr uint64_t kWindow = kMatchBytes / sizeof(ChunkWord);
  const auto* const words = reinterpret_cast<const ChunkWord*>(op.buffers->match.data());
  std::vector<krcore::NodeId> nodes = epochs_.home.all_nodes();
  std::ranges::sort(nodes);
  for (const krcore::NodeId node : nodes) {
    // The node may have been drained meanwhile. A connection made now would outlive that.
    if (!epochs_.home.IsMember(node) && !epochs_.home.IsDraining(node)) continue;
    if (!connections_.Reach(node)) co_return connections_.UnavailableStatus("reading a chunk table");
    const uint64_t capacity = connections_.PoolBytes(node);
    const uint64_t chunks = capacity / common_.shape.chunk_bytes;
    uint64_t free = 0;
    for (uint64_t begin = 0; begin < chunks; begin += kWindow) {
      const uint64_t window = std::min(kWindow, chunks - begin);
      op.batch.Read({node, ChunkWordOffset(begin)}, op.buffers->match.data(),
                    static_cast<uint32_t>(window * sizeof(ChunkWord)));
      const Outcome chunks_read = co_await op.batch.Run();
      if (chunks_read != Outcome::kOk) co_return connections_.UnavailableStatus("reading a chunk table");
      for (uint64_t i = 0; i < window; ++i) free += words[i].kind() == ChunkKind::kFree ? 1 : 0;
    }
    const uint64_t taken = capacity - free * common_.shape.chunk_bytes;
    stats.memory_nodes.push_back({node, capacity, taken, epochs_.home.IsDraining(node)});
  }
  co_return stats;
}

}  // namespace kvs
