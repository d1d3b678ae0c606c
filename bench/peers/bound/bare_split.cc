// The split of a subtable, with the accesses of the store's (docs/protocol.md, "Split"). Other sessions wait; they
// neither help nor take over.
#include <algorithm>

#include "bench/peers/bound/bare_bound.h"

namespace peers {

using kvs::BucketHeader;
using kvs::DirectoryEntry;
using kvs::DirectoryState;
using kvs::Slot;
using kvs::SlotState;

// Returns at once if another session splits it.
void BareSession::Split(const kvs::TableRef& table) {
  if (CompareSwap(table.address.offset, 0, 1) != 0) return;
  SplitLocked(table);
  CompareSwap(table.address.offset, 1, 0);
}

void BareSession::SplitLocked(const kvs::TableRef& table) {
  const uint64_t parent_word = memory_.DirectoryOffset(table.index);
  const DirectoryEntry before(ReadWord(parent_word));
  if (before.depth() > table.entry.depth()) {  // another session was faster
    directory_.Insert({before.subtable(), table.index, before, directory_.Ticket()});
    return;
  }
  if (before.state() != DirectoryState::kNormal) return;  // its own birth comes first
  const uint32_t depth = before.depth();
  const uint64_t parent = table.address.offset;
  known_.assign(geometry_.slots(), Slot());
  moves_.assign(geometry_.slots(), false);
  Read(image_.data(), parent, image_.size());
  ReadHashes(depth);
  // [Split 2]
  const DirectoryEntry splitting = before.Next(depth, DirectoryState::kSplitting);
  CompareSwap(parent_word, before.word(), splitting.word());
  // [Split 3]
  const uint32_t child_index = kvs::ChildIndex(table.index, depth);
  const uint64_t child_word = memory_.DirectoryOffset(child_index);
  const DirectoryEntry absent(ReadWord(child_word));
  ReadWord(parent_word);
  Read(image_.data(), parent, image_.size());
  for (uint32_t b = 0; b < geometry_.buckets(); ++b) {
    const BucketHeader header(*reinterpret_cast<const uint64_t*>(image_.data() + kvs::BucketOffset(b)));
    CompareSwap(parent + kvs::BucketOffset(b), header.word(), header.Deeper().word());
  }
  FreezeMoving(parent, depth);
  // [Split 5]
  const uint64_t child = memory_.TakeTable(&accesses_);
  kvs::FormatSubtable({memory_.At(child), geometry_.bytes()}, geometry_, BucketHeader(depth + 1, child_index, 0),
                      Slot::Fresh());
  for (uint32_t s = 0; s < geometry_.slots(); ++s) {
    const Slot slot = ImageSlot(s);
    if (slot.state() != SlotState::kFrz) continue;
    *reinterpret_cast<Slot*>(memory_.At(child + kvs::SlotOffset(s))) = slot.WithState(SlotState::kVal);
  }
  ++accesses_.writes;
  const DirectoryEntry migrating = absent.Next({BareMemory::kNode, child}, depth + 1, DirectoryState::kMigrating);
  CompareSwap(child_word, absent.word(), migrating.word());
  for (const uint64_t word : {child_word, parent_word, child_word}) ReadWord(word);
  // [Split 6]
  Read(image_.data(), parent, image_.size());
  ReadWord(child_word);
  for (uint32_t s = 0; s < geometry_.slots(); ++s) {
    const Slot slot = ImageSlot(s);
    if (slot.state() == SlotState::kFrz) CompareSwap(parent + kvs::SlotOffset(s), slot.word(), Slot::Fresh().word());
  }
  // [Split 7]
  const DirectoryEntry child_done = migrating.Next(depth + 1, DirectoryState::kNormal);
  const DirectoryEntry parent_done = splitting.Next(depth + 1, DirectoryState::kNormal);
  CompareSwap(child_word, migrating.word(), child_done.word());
  CompareSwap(parent_word, splitting.word(), parent_done.word());
  ++splits_;
  directory_.Insert({child_done.subtable(), child_index, child_done, directory_.Ticket()});
  directory_.Insert({parent_done.subtable(), table.index, parent_done, directory_.Ticket()});
}

// [Split 1, Split 4] READs the hashes of the blocks that are not known yet, as many at once as the store does.
void BareSession::ReadHashes(uint32_t depth) {
  for (uint32_t first = 0; first < geometry_.slots(); first += kHashesAtOnce) {
    const uint32_t end = std::min(first + kHashesAtOnce, geometry_.slots());
    const auto is_unknown = [this](uint32_t s) {
      const SlotState state = ImageSlot(s).state();
      return (state == SlotState::kVal || state == SlotState::kIns) && ImageSlot(s) != known_[s];
    };
    for (uint32_t s = first; s < end; ++s) {
      if (is_unknown(s)) __builtin_prefetch(memory_.At(ImageSlot(s).block().offset));
    }
    for (uint32_t s = first; s < end; ++s) {
      if (!is_unknown(s)) continue;
      kvs::BlockHeader header;
      Read(&header, ImageSlot(s).block().offset, sizeof(header));
      known_[s] = ImageSlot(s);
      moves_[s] = (header.hash >> depth & 1) != 0;
    }
  }
}

// [Split 4]
void BareSession::FreezeMoving(uint64_t parent, uint32_t depth) {
  Read(image_.data(), parent, image_.size());
  for (bool lost = true; lost;) {
    ReadHashes(depth);
    lost = false;
    for (uint32_t s = 0; s < geometry_.slots(); ++s) {
      Slot& slot = ImageSlot(s);
      if (slot != known_[s] || !moves_[s]) continue;
      const bool is_value = slot.state() == SlotState::kVal;
      const Slot settled = is_value ? slot.WithState(SlotState::kFrz) : Slot::Fresh();
      const Slot found(CompareSwap(parent + kvs::SlotOffset(s), slot.word(), settled.word()));
      lost |= found != slot;
      slot = found == slot ? settled : found;
    }
  }
}

}  // namespace peers
