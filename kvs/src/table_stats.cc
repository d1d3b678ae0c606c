// ReadTableStats: one pass over the directory and every subtable.
#include <cstring>

#include "kvs/src/client_core.h"
#include "kvs/src/split_buffers.h"
#include "kvs/src/store_core.h"

namespace kvs {

Result<TableStats> ClientCore::ReadTableStats() { return RunToEnd(CollectTableStats()); }

Task<Result<TableStats>> ClientCore::CollectTableStats() {
  TableStats stats;
  LargeBuffer buffer;
  constexpr uint32_t kDirectoryBytes = sizeof(uint64_t) << kMaxDepth;
  if (!store_.AllocateLarge(std::max<uint64_t>(kDirectoryBytes, geometry_.bytes()), &buffer)) {
    co_return Status(StatusCode::kOutOfMemory, "no local memory for the directory");
  }
  const uint32_t lkey = buffer.region->lkey();
  Operation& op = co_await LeaseOperation("stats");  // for its batch, and its epoch
  const Lease lease(*this, op);
  if (!connections_.Reach(store_.home())) co_return UnavailableStatus("reading the directory");
  op.batch.Read(DirectoryAddress(0), buffer.memory.get(), kDirectoryBytes, lkey);
  const Outcome directory_read = co_await op.batch.Run();
  if (directory_read != Outcome::kOk) co_return UnavailableStatus("reading the directory");

  std::vector<DirectoryEntry> tables;
  for (uint32_t i = 0; i < uint32_t{1} << kMaxDepth; ++i) {
    uint64_t word;
    std::memcpy(&word, buffer.memory.get() + i * sizeof(word), sizeof(word));
    if (DirectoryEntry(word).present()) tables.emplace_back(word);
  }
  for (const DirectoryEntry entry : tables) {
    stats.global_depth = std::max(stats.global_depth, entry.depth());
    const GlobalAddress table = entry.subtable();
    if (!connections_.Reach(table.node)) co_return UnavailableStatus("reading a subtable");
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

  for (const krcore::NodeId node : store_.members()) {
    if (!connections_.Reach(node)) co_return UnavailableStatus("reading a superblock");
    op.batch.Read({node, 0}, op.buffers->match.data(), sizeof(Superblock));
    const Outcome super_read = co_await op.batch.Run();
    if (super_read != Outcome::kOk) co_return UnavailableStatus("reading a superblock");
    Superblock super;
    std::memcpy(&super, op.buffers->match.data(), sizeof(super));
    stats.memory_nodes.push_back(
        {node, super.pool_bytes, kFirstChunkOffset + std::min(super.next_chunk, super.chunks) * kChunkBytes});
  }
  co_return stats;
}

}  // namespace kvs
