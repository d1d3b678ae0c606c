#include "kvs/src/memory_state.h"

#include <bit>

namespace kvs {

uint64_t RoundBlockBytes(uint64_t bytes) {
  if (bytes <= kMaxSmallBlockBytes) return (bytes + kUnitBytes - 1) / kUnitBytes * kUnitBytes;
  const uint64_t step = std::bit_floor(bytes) / 8;
  return (bytes + step - 1) / step * step;
}

bool MemoryState::AllocateFreed(uint64_t bytes, GlobalAddress* block) {
  if (bytes <= kMaxSmallBlockBytes) {
    auto& list = free_small_[bytes / kUnitBytes];
    if (list.empty()) return false;
    *block = list.back();
    list.pop_back();
    return true;
  }
  const auto found = free_large_.find(bytes);
  if (found == free_large_.end() || found->second.empty()) return false;
  *block = found->second.back();
  found->second.pop_back();
  return true;
}

bool MemoryState::AllocateFrom(krcore::NodeId node, uint64_t bytes, uint64_t alignment, GlobalAddress* block) {
  Chunk& chunk = chunks_[node];
  const uint64_t begin = (chunk.begin + alignment - 1) & ~(alignment - 1);
  if (begin + bytes > chunk.end) return false;
  *block = {node, begin};
  chunk.begin = begin + bytes;
  return true;
}

void MemoryState::Free(const Extent& extent) {
  if (extent.bytes <= kMaxSmallBlockBytes) {
    free_small_[extent.bytes / kUnitBytes].push_back(extent.address);
  } else {
    free_large_[extent.bytes].push_back(extent.address);
  }
}

uint32_t MemoryState::AnyHeldIndex(uint32_t after) const {
  const auto next = held_.upper_bound(after);
  return next != held_.end() ? next->first : held_.begin()->first;
}

void MemoryState::ReleaseHeld(uint32_t index) {
  const auto found = held_.find(index);
  if (found == held_.end()) return;
  unstamped_.insert(unstamped_.end(), found->second.begin(), found->second.end());
  held_.erase(found);
}

void MemoryState::Stamp(size_t count, uint64_t epoch) {
  if (count == 0) return;
  Stamped batch{epoch, {}};
  const auto end = unstamped_.begin() + static_cast<std::ptrdiff_t>(count);
  batch.extents.assign(unstamped_.begin(), end);
  unstamped_.erase(unstamped_.begin(), end);
  stamped_count_ += count;
  stamped_.push_back(std::move(batch));
}

size_t MemoryState::Reclaim(uint64_t safe_epoch) {
  size_t freed = 0;
  while (!stamped_.empty() && stamped_.front().epoch < safe_epoch) {
    for (const Extent& extent : stamped_.front().extents) Free(extent);
    freed += stamped_.front().extents.size();
    stamped_.pop_front();
  }
  stamped_count_ -= freed;
  reclaimed_ += freed;
  return freed;
}

}  // namespace kvs
