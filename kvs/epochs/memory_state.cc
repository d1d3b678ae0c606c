#include "kvs/epochs/memory_state.h"

#include <algorithm>
#include <utility>

#include "kvs/memory/mutation.h"

namespace kvs {

uint64_t RoundBlockBytes(uint64_t bytes, uint64_t chunk_bytes) {
  if (bytes <= kMaxSmallBlockBytes) return (bytes + kUnitBytes - 1) / kUnitBytes * kUnitBytes;
  const uint64_t step = bytes > chunk_bytes ? chunk_bytes : std::bit_floor(bytes) / 8;
  return (bytes + step - 1) / step * step;
}

bool MemoryState::Allocate(krcore::NodeId node, uint64_t bytes, GlobalAddress* block, bool* reused) {
  *reused = false;
  if (bytes > chunk_bytes()) return false;
  NodeMemory& memory = Of(node);
  std::vector<uint64_t>* list = nullptr;
  if (bytes <= kMaxSmallBlockBytes) {
    list = &memory.small[bytes / kUnitBytes];
  } else if (const auto found = memory.large.find(bytes); found != memory.large.end()) {
    list = &found->second;
  }
  if (list != nullptr && !list->empty()) {
    *block = {node, list->back()};
    list->pop_back();
    free_bytes_ -= bytes;
    *reused = true;
    return true;
  }
  return std::any_of(memory.open.begin(), memory.open.end(),
                     [&](Range& range) { return Cut(range, node, bytes, block); });
}

bool MemoryState::Cut(Range& range, krcore::NodeId node, uint64_t bytes, GlobalAddress* block) {
  if (range.end - range.begin < bytes) return false;
  *block = {node, range.begin};
  range.begin += bytes;
  return true;
}

bool MemoryState::AllocateForCopy(krcore::NodeId node, uint64_t bytes, GlobalAddress* block) {
  // Take the chunk with the tightest fit, so that larger remainders stay for larger blocks.
  CopyChunk* tightest = nullptr;
  for (CopyChunk& chunk : Of(node).copies) {
    if (chunk.bytes() >= bytes && (tightest == nullptr || chunk.bytes() < tightest->bytes())) tightest = &chunk;
  }
  return tightest != nullptr && Cut(tightest->left, node, bytes, block);
}

bool MemoryState::AllocateTable(krcore::NodeId node, GlobalAddress* table) {
  std::vector<uint64_t>& tables = Of(node).tables;
  if (tables.empty()) return false;
  *table = {node, tables.back()};
  tables.pop_back();
  return true;
}

// Returns whether a chunk that was just taken is usable, that is, not being emptied.
bool MemoryState::IsUsable(krcore::NodeId node, uint64_t chunk, uint64_t generation) {
  for (size_t i = 0; i < evacuating_.size(); ++i) {
    if (evacuating_[i].node() != node || evacuating_[i].chunk() != chunk) continue;
    if (evacuating_[i].OfGeneration(generation)) return false;
    evacuating_.erase(evacuating_.begin() + static_cast<std::ptrdiff_t>(i));  // it was emptied, and taken anew
    return true;
  }
  return true;
}

MemoryState::Range& MemoryState::Smallest(NodeMemory& memory) {
  return *std::min_element(memory.open.begin(), memory.open.end(),
                           [](const Range& a, const Range& b) { return a.end - a.begin < b.end - b.begin; });
}

void MemoryState::AddSpan(krcore::NodeId node, const Span& span) {
  Of(node).next_span = std::max(NextSpan(node), std::min(kSpanGrowth * (span.end - span.begin), chunk_bytes()));
  if (!IsUsable(node, span.chunk, span.generation)) return;
  const uint64_t chunk = span.chunk << chunk_shift_;
  const uint64_t begin = Mutated(Mutation::kSpanFromTheStart) ? 0 : span.begin;
  Smallest(Of(node)) = {chunk + begin, chunk + span.end};
}

void MemoryState::AddChunkForCopies(krcore::NodeId node, uint64_t chunk, uint64_t generation) {
  if (!IsUsable(node, chunk, generation)) return;
  Of(node).copies.push_back({{chunk << chunk_shift_, (chunk + 1) << chunk_shift_}, generation});
}

uint64_t MemoryState::room_for_copies() const {
  uint64_t bytes = 0;
  for (const auto& memory : nodes_) {
    if (!memory) continue;
    for (const CopyChunk& chunk : memory->copies) bytes += chunk.bytes();
  }
  return bytes;
}

std::vector<MemoryState::Chunk> MemoryState::EndCopies() {
  std::vector<Chunk> unused;
  for (krcore::NodeId node = 0; node < nodes_.size(); ++node) {
    if (!nodes_[node]) continue;
    for (const auto& [left, generation] : std::exchange(nodes_[node]->copies, {})) {
      Range& smallest = Smallest(*nodes_[node]);
      if (left.end - left.begin == chunk_bytes()) {
        unused.push_back({node, left.begin >> chunk_shift_, generation});
      } else if (smallest.end - smallest.begin < left.end - left.begin) {
        smallest = left;
      }
    }
  }
  return unused;
}

bool MemoryState::IsOpen(krcore::NodeId node, uint64_t chunk) const {
  if (!nodes_[node]) return false;
  const auto is_there = [&](const Range& range) {
    return range.begin != range.end && range.begin >> chunk_shift_ == chunk;
  };
  const NodeMemory& memory = *nodes_[node];
  return std::any_of(memory.open.begin(), memory.open.end(), is_there) ||
         std::any_of(memory.copies.begin(), memory.copies.end(), [&](const CopyChunk& c) { return is_there(c.left); });
}

bool MemoryState::IsEvacuating(GlobalAddress address) const {
  return std::any_of(evacuating_.begin(), evacuating_.end(), [&](EvacuationWord word) {
    return word.node() == address.node && word.chunk() == address.offset >> chunk_shift_;
  });
}

void MemoryState::SetEvacuating(std::span<const uint64_t> slots, uint64_t evacuations) {
  std::vector<EvacuationWord> now;
  for (const uint64_t slot : slots) {
    if (!EvacuationWord(slot).empty()) now.emplace_back(slot);
  }
  const bool more = std::any_of(now.begin(), now.end(), [&](EvacuationWord word) {
    return std::none_of(evacuating_.begin(), evacuating_.end(),
                        [&](EvacuationWord known) { return known.word() == word.word(); });
  });
  evacuating_ = std::move(now);
  evacuations_ = evacuations;
  if (more && !Mutated(Mutation::kEvacuationNotForgotten)) Forget();
}

void MemoryState::Forget() {
  const auto gone = [this](const Extent& extent) { return IsEvacuating(extent.address); };
  for (krcore::NodeId node = 0; node < nodes_.size(); ++node) {
    if (!nodes_[node]) continue;
    NodeMemory& memory = *nodes_[node];
    const auto filter = [&](std::vector<uint64_t>& offsets, uint64_t bytes) {
      free_bytes_ -= bytes * std::erase_if(offsets, [&](uint64_t offset) { return IsEvacuating({node, offset}); });
    };
    for (size_t units = 0; units < memory.small.size(); ++units) filter(memory.small[units], units * kUnitBytes);
    for (auto& [bytes, offsets] : memory.large) filter(offsets, bytes);
    filter(memory.tables, 0);
    const auto is_lost = [&](const Range& range) {
      return range.begin != range.end && IsEvacuating({node, range.begin});
    };
    for (Range& range : memory.open) {
      if (is_lost(range)) range = {};
    }
    std::erase_if(memory.copies, [&](const CopyChunk& chunk) { return is_lost(chunk.left); });
  }
  std::erase_if(free_runs_, gone);
  std::erase_if(pinned_, [&](const auto& pinned) { return gone(pinned.second); });
  for (auto& [index, extents] : held_) std::erase_if(extents, gone);
  std::erase_if(held_, [](const auto& held) { return held.second.empty(); });
  // These count as reclaimed, because nobody needs to wait for them.
  reclaimed_ += std::erase_if(unstamped_, gone);
  for (Stamped& batch : stamped_) {
    const size_t erased = std::erase_if(batch.extents, gone);
    stamped_count_ -= erased;
    reclaimed_ += erased;
  }
}

void MemoryState::Free(const Extent& extent) {
  if (!IsKept(extent)) return;
  NodeMemory& memory = Of(extent.address.node);
  if (extent.is_table) {
    memory.tables.push_back(extent.address.offset);
  } else if (extent.bytes > chunk_bytes()) {
    free_runs_.push_back(extent);
  } else {
    free_bytes_ += extent.bytes;
    auto& list =
        extent.bytes <= kMaxSmallBlockBytes ? memory.small[extent.bytes / kUnitBytes] : memory.large[extent.bytes];
    list.push_back(extent.address.offset);
  }
}

size_t MemoryState::held() const {
  size_t extents = 0;
  for (const auto& [index, held] : held_) extents += held.size();
  return extents;
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

namespace {

// While a client announced z, the epoch was at most z + 1, so all that it can have seen was born by then. What was
// unlinked before z it cannot have found.
bool Knows(std::span<const uint64_t> expelled, uint64_t stamp, uint64_t birth) {
  if (Mutated(Mutation::kExpelledReused)) return false;
  return std::any_of(expelled.begin(), expelled.end(),
                     [&](uint64_t announced) { return announced <= stamp && birth <= announced + 1; });
}

}  // namespace

size_t MemoryState::Reclaim(uint64_t safe_epoch, std::span<const uint64_t> expelled) {
  if (!pinned_.empty() && !std::equal(expelled.begin(), expelled.end(), pinned_by_.begin(), pinned_by_.end())) {
    std::erase_if(pinned_, [&](const auto& pinned) {
      if (Knows(expelled, pinned.first, pinned.second.birth)) return false;
      Free(pinned.second);
      return true;
    });
  }
  pinned_by_.assign(expelled.begin(), expelled.end());
  size_t freed = 0;
  while (!stamped_.empty() && stamped_.front().epoch < safe_epoch) {
    const uint64_t stamp = stamped_.front().epoch;
    for (const Extent& extent : stamped_.front().extents) {
      if (!expelled.empty() && Knows(expelled, stamp, extent.birth)) {
        pinned_.emplace_back(stamp, extent);
      } else {
        Free(extent);
      }
    }
    freed += stamped_.front().extents.size();
    stamped_.pop_front();
  }
  stamped_count_ -= freed;
  reclaimed_ += freed;
  return freed;
}

}  // namespace kvs
