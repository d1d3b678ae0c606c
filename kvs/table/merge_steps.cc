// The steps of a merge (docs/protocol.md, "Merge"), and the table that two frozen ones become.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <utility>
#include <vector>

#include "kvs/layout/pool.h"
#include "kvs/layout/subtable.h"
#include "kvs/memory/mutation.h"
#include "kvs/table/merger.h"

namespace kvs {
namespace {

Extent RecordExtent(const Merge& merge) {
  return {.address = merge.record, .bytes = sizeof(MergeRecord), .birth = merge.terms.birth_epoch};
}

// The table that two frozen ones become, in local memory. What goes where follows from the two images alone, so all
// clients that finish one merge build the same.
class MergedImage {
 public:
  // Formats `out`, geometry.bytes() bytes, as an empty table.
  MergedImage(std::span<std::byte> out, const SubtableGeometry& geometry, BucketHeader header);

  // Adds the frozen values of a table, each in a slot of its old bucket, which is one of its key's buckets whatever the
  // key. Those whose bucket is full join homeless().
  void Add(std::span<const std::byte> frozen);
  const std::vector<Slot>& homeless() const { return homeless_; }
  // Puts one of them, whose key has this hash, into any free slot of its four buckets. False: there is none. Call it
  // after all Adds.
  bool Place(Slot slot, const KeyHash& hash);

 private:
  Slot& SlotAt(uint32_t slot) { return *reinterpret_cast<Slot*>(out_.data() + SlotOffset(slot)); }
  // Puts it into `preferred` or the first free slot of the bucket.
  bool PlaceInBucket(uint32_t bucket, Slot value, uint32_t preferred);

  std::span<std::byte> out_;
  const SubtableGeometry geometry_;
  std::vector<Slot> homeless_;
};

MergedImage::MergedImage(std::span<std::byte> out, const SubtableGeometry& geometry, BucketHeader header)
    : out_(out), geometry_(geometry) {
  FormatSubtable(out, geometry, header, Slot::Fresh());
}

void MergedImage::Add(std::span<const std::byte> frozen) {
  for (uint32_t s = 0; s < geometry_.slots(); ++s) {
    uint64_t word;
    std::memcpy(&word, frozen.data() + SlotOffset(s), sizeof(word));
    const Slot slot(word);
    if (slot.state() != SlotState::kFrz) continue;
    const Slot value = slot.WithState(SlotState::kVal);
    if (!PlaceInBucket(s / kSlotsPerBucket, value, s)) homeless_.push_back(value);
  }
}

bool MergedImage::Place(Slot slot, const KeyHash& hash) {
  const KeyPlaces places = PlacesOf(hash, geometry_.groups);
  for (const CombinedBucket& place : places.place) {
    for (uint32_t b = 0; b < 2; ++b) {
      const uint32_t bucket = FirstBucket(place) + b;
      if (PlaceInBucket(bucket, slot, bucket * kSlotsPerBucket)) return true;
    }
  }
  return false;
}

bool MergedImage::PlaceInBucket(uint32_t bucket, Slot value, uint32_t preferred) {
  if (SlotAt(preferred).free()) {
    SlotAt(preferred) = value;
    return true;
  }
  for (uint32_t s = bucket * kSlotsPerBucket; s < (bucket + 1) * kSlotsPerBucket; ++s) {
    if (!SlotAt(s).free()) continue;
    SlotAt(s) = value;
    return true;
  }
  return false;
}

}  // namespace

// [Merge 1, 2], then the other steps. `record` is memory for the record; it is cleared if others may have seen it.
Task<Step> Merger::MergeLocked(Operation& op, Merge* merge, SpareTables* spares, GlobalAddress* record) {
  Batch& batch = workbench_.batch();
  merge->record = *record;
  if (!common_.connections.Reach(record->node)) co_return Step::kUnavailable;
  merge->terms.status = static_cast<uint64_t>(MergeStatus::kUndecided);
  merge->terms.birth_epoch = epochs_.home.epoch();
  workbench_.words().record = merge->terms;
  const GlobalAddress own =
      std::exchange(*record, {});  // a failed verb may still execute: this memory is not used again
  batch.Write(&workbench_.words().record, own, sizeof(MergeRecord));
  KVS_CO_RETURN_UNLESS_OK(co_await batch.Run());
  uint64_t& old = workbench_.words().words[0];
  batch.CompareSwap(directory_.EntryAddress(merge->terms.parent_index), merge->terms.parent_entry,
                    merge->parent_word().word(), &old, Word::kOwnEntry);
  KVS_CO_RETURN_UNLESS_OK(co_await batch.Run());
  if (old != merge->terms.parent_entry) {
    *record = own;
    co_return Step::kRestart;
  }
  co_return co_await FinishMerge(op, merge, spares);
}

// ---- finishing one

// [Merge 3 to 8] Finishes the merge from any state; idempotent. kOk: the tables are merged, or replaced. kRestart: the
// merge was given up.
Task<Step> Merger::FinishMerge(Operation& op, Merge* merge, SpareTables* spares) {
  const MergeRecord& terms = merge->terms;
  if (terms.state() == MergeStatus::kUndecided) KVS_CO_RETURN_UNLESS_OK(co_await DecideEngagement(merge));
  if (terms.state() == MergeStatus::kAbandoned) co_return co_await AbandonMerge(*merge);

  Batch& batch = workbench_.batch();
  uint64_t* words = workbench_.words().words.data();
  KVS_CO_RETURN_UNLESS_OK(co_await directory_.ReadWords(batch, words, terms.parent_index, terms.child_index));
  const bool parent_left = words[0] == merge->parent_word().word();
  const bool child_left = words[1] == merge->child_word().word();
  if (!child_left && !Mutated(Mutation::kMergeUnengaged)) co_return Step::kOk;  // the last step is done
  if (!parent_left && terms.state() == MergeStatus::kJoin) co_return co_await UnlinkChild(*merge);

  if (!spares->tables[0].valid()) co_return Step::kFull;
  KVS_CO_RETURN_UNLESS_OK(co_await CloseTable(merge->parent(), kParentImage));
  KVS_CO_RETURN_UNLESS_OK(co_await CloseTable(merge->child(), kChildImage));
  bool fits = false;
  if (terms.state() != MergeStatus::kReplace && terms.copies == 0) {
    KVS_CO_RETURN_UNLESS_OK(co_await BuildMerged(op, *merge, &fits));
  }
  if (terms.state() == MergeStatus::kEngaged) {
    KVS_CO_RETURN_UNLESS_OK(co_await Settle(merge, fits ? MergeStatus::kJoin : MergeStatus::kReplace));
  }
  if (terms.state() == MergeStatus::kReplace) co_return co_await PublishCopies(*merge, parent_left, spares);
  if (!fits) co_return Step::kRestart;  // another client finishes it: whoever decided otherwise, or a third
  KVS_CO_RETURN_UNLESS_OK(co_await Publish(terms.parent_index, merge->parent_word(), terms.depth(), spares, &fits));
  if (fits) ++common_.stats.merges;
  co_return co_await UnlinkChild(*merge);
}

// CASes the status to `wanted`. The merge's status is then the one that is there.
Task<Step> Merger::Settle(Merge* merge, MergeStatus wanted) {
  uint64_t& old = workbench_.words().words[0];
  const uint64_t expected = merge->terms.status;
  static_assert(offsetof(MergeRecord, status) == 0);
  workbench_.batch().CompareSwap(merge->record, expected, static_cast<uint64_t>(wanted), &old);
  KVS_CO_RETURN_UNLESS_OK(co_await workbench_.batch().Run());
  merge->terms.status = old == expected ? static_cast<uint64_t>(wanted) : old;
  co_return Step::kOk;
}

// [Merge 3, Merge 4] The old word of dir[c] does not come back once it is gone. So a client that finds neither it nor
// the record there is right for ever.
Task<Step> Merger::DecideEngagement(Merge* merge) {
  uint64_t& old = workbench_.words().words[0];
  const uint64_t engaged = merge->child_word().word();
  workbench_.batch().CompareSwap(directory_.EntryAddress(merge->terms.child_index), merge->terms.child_entry, engaged,
                                 &old);
  KVS_CO_RETURN_UNLESS_OK(co_await workbench_.batch().Run());
  const bool taken = old == merge->terms.child_entry || old == engaged || Mutated(Mutation::kMergeUnengaged);
  co_return co_await Settle(merge, taken ? MergeStatus::kEngaged : MergeStatus::kAbandoned);
}

// [Merge 5] Gives the merge up. Nothing has happened to the tables.
Task<Step> Merger::AbandonMerge(Merge merge) {
  Batch& batch = workbench_.batch();
  uint64_t* words = workbench_.words().words.data();
  const MergeRecord& terms = merge.terms;
  const DirectoryEntry parent = merge.parent_word(), child = merge.child_word();
  batch.CompareSwap(directory_.EntryAddress(terms.child_index), child.word(),
                    child.Next(terms.child().subtable(), child.depth(), DirectoryState::kNormal).word(), &words[0]);
  batch.CompareSwap(directory_.EntryAddress(terms.parent_index), parent.word(),
                    parent.Next(terms.parent().subtable(), parent.depth(), DirectoryState::kNormal).word(), &words[1]);
  KVS_CO_RETURN_UNLESS_OK(co_await batch.Run());
  if (words[1] == parent.word()) epochs_.memory.Of(batch).Retire(RecordExtent(merge));
  co_return Step::kRestart;
}

// [Merge 6] Closes the headers, then freezes the slots. In the end the image shows the table as it stays for ever,
// except for tentative slots of inserters, which will find it closed.
Task<Step> Merger::CloseTable(TableRef table, uint32_t image) {
  if (!common_.connections.Reach(table.address.node)) co_return Step::kUnavailable;
  if (Mutated(Mutation::kMergeHeadersLate)) {
    KVS_CO_RETURN_UNLESS_OK(co_await FreezeSlots(table, image));
    std::vector<std::byte> kept(workbench_.image(image).begin(), workbench_.image(image).end());
    const Step closed = co_await CloseHeaders(table, image);
    std::copy(kept.begin(), kept.end(), workbench_.image(image).begin());
    co_return closed;
  }
  KVS_CO_RETURN_UNLESS_OK(co_await CloseHeaders(table, image));
  co_return co_await FreezeSlots(table, image);
}

Task<Step> Merger::CloseHeaders(TableRef table, uint32_t image) {
  const auto closed_header = [this, image](uint32_t bucket) -> std::optional<Workbench::Swap> {
    const BucketHeader header = workbench_.ImageHeader(bucket, image);
    if (header.closed()) return {};
    return Workbench::Swap{BucketOffset(bucket), header.word(), header.Closed().word()};
  };
  KVS_CO_RETURN_UNLESS_OK(co_await workbench_.Look(table, image));
  const uint32_t buckets = common_.shape.geometry.buckets();
  Workbench::Swaps swaps;
  do {
    const Step closed = co_await workbench_.SwapOnce(table, image, buckets, closed_header, Word::kAnyones, &swaps);
    if (closed != Step::kOk) co_return closed;
  } while (swaps.lost > 0);
  co_return Step::kOk;
}

// After the table was closed. Slots that are VAL or INS become FRZ or FREE.
Task<Step> Merger::FreezeSlots(TableRef table, uint32_t image) {
  KVS_CO_RETURN_UNLESS_OK(co_await workbench_.Look(table, image));
  const auto settled = [this, image](uint32_t s) -> std::optional<Workbench::Swap> {
    const Slot slot = workbench_.ImageSlot(s, image);
    const bool is_value = slot.state() == SlotState::kVal;
    if (!is_value && slot.state() != SlotState::kIns) return {};
    if (Mutated(is_value ? Mutation::kMergeWithoutFreeze : Mutation::kMergeIgnoresIns)) return {};
    const Slot now = is_value ? slot.WithState(SlotState::kFrz) : common_.NewFree();
    return Workbench::Swap{SlotOffset(s), slot.word(), now.word()};
  };
  const uint32_t slots = common_.shape.geometry.slots();
  Workbench::Swaps swaps;
  do {
    const Step frozen = co_await workbench_.SwapOnce(table, image, slots, settled, Word::kAnyonesSlot, &swaps);
    if (frozen != Step::kOk) co_return frozen;
  } while (swaps.lost > 0);
  const bool unfrozen = Mutated(Mutation::kMergeWithoutFreeze);
  for (uint32_t s = 0; s < slots && unfrozen; ++s) {
    Slot& slot = workbench_.ImageSlot(s, image);
    if (slot.state() == SlotState::kVal) slot = slot.WithState(SlotState::kFrz);
  }
  co_return Step::kOk;
}

// [Merge 7] Builds the joined table from the two frozen images.
Task<Step> Merger::BuildMerged(Operation& op, Merge merge, bool* fits) {
  MergedImage merged(workbench_.image(kNewImage), common_.shape.geometry,
                     BucketHeader(merge.terms.depth(), merge.terms.parent_index, 0));
  merged.Add(workbench_.image(kParentImage));
  merged.Add(workbench_.image(kChildImage));
  *fits = true;
  for (const Slot slot : merged.homeless()) {
    KeyHash hash;
    KVS_CO_RETURN_UNLESS_OK(co_await ReadKeyHash(op, slot, &hash));
    *fits = merged.Place(slot, hash);
    if (!*fits) break;
  }
  co_return Step::kOk;
}

// Reads the key and hashes it, because the second half of its hash is not in the block.
Task<Step> Merger::ReadKeyHash(Operation& op, Slot slot, KeyHash* hash) {
  Batch& batch = op.batch;
  const uint32_t bytes = FirstReadBytes(slot);
  batch.Read(slot.block(), op.buffers->match.data(), bytes);
  KVS_CO_RETURN_UNLESS_OK(co_await batch.Run());
  BlockView block(op.buffers->match.data());
  const auto end_of_key = [&block] { return block.header().key_offset() + uint32_t{block.header().key_bytes}; };
  const uint32_t key_end = end_of_key();
  if (key_end > bytes) {
    if (!op.large_read.Grow(common_.node, key_end)) co_return Step::kFull;
    batch.Read(slot.block(), op.large_read.memory.get(), key_end, op.large_read.region->lkey());
    KVS_CO_RETURN_UNLESS_OK(co_await batch.Run());
    block = BlockView(op.large_read.memory.get());
    // If others have finished the merge, the block may be another one by now.
    if (end_of_key() > key_end) co_return Step::kRestart;
  }
  *hash = common_.shape.hasher(block.key());
  co_return Step::kOk;
}

// Writes the new image to a spare table and CASes its address into dir[index] in the place of `expected`.
Task<Step> Merger::Publish(uint32_t index, DirectoryEntry expected, uint32_t depth, SpareTables* spares, bool* won) {
  Batch& batch = workbench_.batch();
  const GlobalAddress table = spares->Take();
  if (!table.valid()) co_return Step::kFull;
  workbench_.WriteImage(table);
  KVS_CO_RETURN_UNLESS_OK(co_await batch.Run());
  const DirectoryEntry entry = expected.Next(table, depth, DirectoryState::kNormal);
  uint64_t& old = workbench_.words().words[0];
  const uint64_t ticket = cache_.Ticket();
  if (Mutated(Mutation::kMergePublishByWrite)) {
    workbench_.words().words[1] = entry.word();
    batch.Write(&workbench_.words().words[1], directory_.EntryAddress(index), sizeof(uint64_t));
    old = expected.word();
  } else {
    batch.CompareSwap(directory_.EntryAddress(index), expected.word(), entry.word(), &old, Word::kOwnEntry);
  }
  KVS_CO_RETURN_UNLESS_OK(co_await batch.Run());
  *won = old == expected.word();
  if (*won) {
    cache_.Insert({table, index, entry, ticket});
  } else {
    epochs_.memory.Of(batch).FreeTable(table);  // nobody has seen it
  }
  co_return Step::kOk;
}

// [Merge 7] Replaces each table by a copy, where one table is not enough or not wanted. dir[c] comes last, once dir[s]
// is known to be replaced.
Task<Step> Merger::PublishCopies(Merge merge, bool parent_left, SpareTables* spares) {
  const MergeRecord& terms = merge.terms;
  const uint32_t depth = terms.depth() + 1;
  bool won = false;
  if (parent_left) {
    MergedImage(workbench_.image(kNewImage), common_.shape.geometry, BucketHeader(depth, terms.parent_index, 0))
        .Add(workbench_.image(kParentImage));
    KVS_CO_RETURN_UNLESS_OK(co_await Publish(terms.parent_index, merge.parent_word(), depth, spares, &won));
  }
  MergedImage(workbench_.image(kNewImage), common_.shape.geometry, BucketHeader(depth, terms.child_index, 0))
      .Add(workbench_.image(kChildImage));
  KVS_CO_RETURN_UNLESS_OK(co_await Publish(terms.child_index, merge.child_word(), depth, spares, &won));
  if (!won) co_return Step::kRestart;
  ++common_.stats.table_replacements;
  const Step reported = co_await RetireMerged(merge);
  co_return reported == Step::kOk ? Step::kRestart : reported;  // nothing became smaller
}

// [Merge 8] Unlinks dir[c]. dir[s] does not name the record any more.
Task<Step> Merger::UnlinkChild(Merge merge) {
  const DirectoryEntry child = merge.child_word();
  const DirectoryEntry absent = child.Next(merge.terms.child().subtable(), child.depth(), DirectoryState::kAbsent);
  uint64_t& old = workbench_.words().words[0];
  workbench_.batch().CompareSwap(directory_.EntryAddress(merge.terms.child_index), child.word(), absent.word(), &old);
  KVS_CO_RETURN_UNLESS_OK(co_await workbench_.batch().Run());
  if (old != child.word()) co_return Step::kOk;
  co_return co_await RetireMerged(merge);
}

// ---- tables that are out of use

// Called by the client that took the record out of dir[c], the last entry to name it. Until then others may come from
// there to the record and the tables.
Task<Step> Merger::RetireMerged(Merge merge) {
  if (workbench_.batch().Stale()) co_return Step::kRestart;  // found by sweeping
  epochs_.memory->Retire(RecordExtent(merge));
  for (const TableRef& table : {merge.parent(), merge.child()}) {
    epochs_.retired.Add(table);
  }
  co_return co_await epochs_.retired.Report(workbench_.batch(), &workbench_.words().words[0]);
}

}  // namespace kvs
