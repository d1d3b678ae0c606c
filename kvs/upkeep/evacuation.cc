// One round of the mover: the chosen chunks are announced, emptied and freed, or given up. That takes waiting for all
// clients, and scanning the store. docs/protocol.md, "Emptying chunks", has the steps, and says why a chunk that is
// freed is not in use any more.
#include <algorithm>
#include <array>
#include <cstring>

#include "kvs/memory/mutation.h"
#include "kvs/upkeep/mover.h"

namespace kvs {
namespace {

// How many scans one round may take until all that its chunks held has moved.
constexpr int kScansPerRound = 16;
constexpr int64_t kInvalidScanNs = 8'000'000;

uint64_t SlotOfEvacuation(uint32_t slot) { return kEvacuationOffset + slot * sizeof(uint64_t); }

// A subtable is tried for a merge if at most this percentage of its slots is in use. (Of two that together may be
// merged, at least one is that empty.)
constexpr uint64_t kSparseTablePercent = 20;

}  // namespace

// ---- the round

// [Empty 1] Tells all clients of the chunks. Chunks for which there is no evacuation slot are left for another time.
Task<Step> Mover::Announce() {
  uint64_t* const slots = op_.buffers->slots.data();
  EvacuationSlots found;
  KVS_CO_RETURN_UNLESS_OK(co_await ReadSlots(&found));
  size_t next = 0;
  for (uint32_t slot = 0; slot < kEvacuationSlots && next < victims_.size(); ++slot) {
    if (!found[slot].empty()) continue;  // it is another mover's
    Victim& victim = victims_[next];
    // From here on nobody cuts from it.
    const ChunkWord full = victim.word.kind() == ChunkKind::kTables   ? victim.word.As(ChunkKind::kTables, 0xfffff)
                           : victim.word.kind() == ChunkKind::kBlocks ? victim.word.As(ChunkKind::kBlocks, kUnitsOfCut)
                                                                      : victim.word;
    if (full != victim.word) {
      op_.batch.CompareSwap(victim.WordAddress(), victim.word.word(), full.word(), &slots[0]);
      KVS_CO_RETURN_UNLESS_OK(co_await op_.batch.Run());
      if (slots[0] != victim.word.word()) {
        victims_.erase(victims_.begin() + static_cast<std::ptrdiff_t>(next));
        --slot;
        continue;
      }
      victim.word = full;
    }
    op_.batch.CompareSwap({home(), SlotOfEvacuation(slot)}, found[slot].word(), victim.Evacuation().word(), &slots[0]);
    KVS_CO_RETURN_UNLESS_OK(co_await op_.batch.Run());
    if (slots[0] != found[slot].word()) continue;  // likewise
    victim.slot = slot;
    ++next;
  }
  victims_.resize(next);
  // This comes after all of them: a client that finds another count does not use memory kept from ended clients.
  co_return co_await epochs_.home.Count(op_.batch, kEvacuationsOffset, 1, &slots[0]);
}

Task<Step> Mover::ReadSlots(EvacuationSlots* found) {
  op_.batch.Read({home(), kEvacuationOffset}, op_.buffers->match.data(), sizeof(*found));
  KVS_CO_RETURN_UNLESS_OK(co_await op_.batch.Run());
  std::memcpy(found->data(), op_.buffers->match.data(), sizeof(*found));
  co_return Step::kOk;
}

// Clears a slot if it has this word.
Task<Step> Mover::ClearSlot(uint32_t slot, EvacuationWord word) {
  const EvacuationWord empty = EvacuationWord::Empty(common_.nonces.Next());
  op_.batch.CompareSwap({home(), SlotOfEvacuation(slot)}, word.word(), empty.word(), &op_.buffers->cas[0]);
  const Outcome cleared = co_await op_.batch.Run();
  co_return cleared == Outcome::kOk ? Step::kOk : Step::kUnavailable;
}

// Clears the slots of movers that did not come to an end.
Task<Step> Mover::ClearSlots() {
  EvacuationSlots found;
  KVS_CO_RETURN_UNLESS_OK(co_await ReadSlots(&found));
  for (uint32_t slot = 0; slot < kEvacuationSlots; ++slot) {
    if (found[slot].empty()) continue;
    KVS_CO_RETURN_UNLESS_OK(co_await GiveUp(found[slot]));
    KVS_CO_RETURN_UNLESS_OK(co_await ClearSlot(slot, found[slot]));
  }
  co_return Step::kOk;
}

Task<Step> Mover::Free(const Victim& victim) {
  uint64_t& old = op_.buffers->cas[0];
  uint64_t count = 1;
  if (victim.word.kind() == ChunkKind::kRun) {
    // Free the rest first: a client that finds a run's first chunk finds all of it. If the taker died, some are
    // missing.
    const auto* const words = reinterpret_cast<const ChunkWord*>(op_.buffers->match.data());
    count = std::min<uint64_t>(victim.word.count(), kMatchBytes / sizeof(ChunkWord));
    op_.batch.Read(victim.WordAddress(), op_.buffers->match.data(), static_cast<uint32_t>(count * sizeof(ChunkWord)));
    KVS_CO_RETURN_UNLESS_OK(co_await op_.batch.Run());
    if (words[0] != victim.word) co_return Step::kRestart;
    uint64_t end = 1;
    while (end < count && words[end].kind() == ChunkKind::kRunRest) ++end;
    count = end;
    for (uint64_t i = end; i-- > 1;) {
      const GlobalAddress at{victim.chunk.first, ChunkWordOffset(victim.chunk.second + i)};
      op_.batch.CompareSwap(at, words[i].word(), words[i].Freed().word(), &op_.buffers->cas[i % kCandidates]);
      if (op_.batch.size() < kCandidates && i > 1) continue;
      KVS_CO_RETURN_UNLESS_OK(co_await op_.batch.Run());
    }
  }
  op_.batch.CompareSwap(victim.WordAddress(), victim.word.word(), victim.word.Freed().word(), &old);
  KVS_CO_RETURN_UNLESS_OK(co_await op_.batch.Run());
  if (old != victim.word.word()) co_return Step::kRestart;
  report_->chunks_freed += count;
  report_->chunks_left -= std::min<uint64_t>(report_->chunks_left, 1);
  common_.stats.chunks_freed += count;
  co_return co_await epochs_.home.Count(op_.batch, kFreedChunksOffset, count, &old);
}

// The chunks were chosen by what a scan saw, and others may have filled them meanwhile. Now nobody adds to them any
// more. This gives up those for which there is no room after all, before anything is moved.
Task<Step> Mover::LookAgain() {
  Census census;
  bool valid = false;  // or not: it is an estimate
  KVS_CO_RETURN_UNLESS_OK(co_await Scan(&census, &valid));
  for (Victim& victim : victims_) victim.room = census.blocks[victim.chunk].Needed();
  std::sort(victims_.begin(), victims_.end(), [](const Victim& a, const Victim& b) { return a.room < b.room; });
  size_t fit = 0;
  const Step claimed = co_await ClaimRoom(&fit);
  found_.no_room |= fit < victims_.size();
  for (; victims_.size() > fit; victims_.pop_back()) {
    if (op_.batch.Stale()) co_return Step::kRestart;
    const Step ended = co_await End(victims_.back(), /*free=*/false);
    if (ended == Step::kUnavailable) co_return ended;
  }
  co_return claimed;
}

// Runs one round: announces, empties and frees the chosen chunks. What cannot be emptied stays as it was.
Task<Step> Mover::Evacuate() {
  Step step = Step::kOk;
  // A stopped client is expelled before anything is sealed in vain: what it may know is left alone.
  if (!op_.drains && !Mutated(Mutation::kEvacuationUnannounced)) step = co_await WaitForAll(victims_);
  if (step != Step::kOk) co_return step;
  step = co_await Announce();  // [Empty 1]
  if (step == Step::kOk && victims_.empty()) co_return step;
  if (step == Step::kOk) co_await maintenance_.MaintainNow();
  uint64_t view = common_.connections.view_number();
  if (step == Step::kOk && !Mutated(Mutation::kEvacuationUnannounced))
    step = co_await WaitForAll(victims_);  // [Empty 2]
  if (step == Step::kOk && scarce_) step = co_await LookAgain();
  int scans = 0, invalid = 0, left = victims_.empty() ? 0 : INT32_MAX;
  while (step == Step::kOk && left > 0 && scans < kScansPerRound && invalid < kInvalidScans && !OutOfTime()) {
    bool valid = false;
    for (Victim& victim : victims_) victim.references = 0;
    step = co_await Scan(nullptr, &valid);  // [Empty 3]
    if (step != Step::kOk) break;
    if (!valid) {
      ++invalid;
      co_await FinishUnderWay();
      continue;
    }
    if (common_.connections.view_number() != view && !Mutated(Mutation::kScanOfAnotherView)) {
      // An operation that met a word at a head that has left may still bring it to the next replica. So wait until it
      // has ended, and look again.
      ++invalid;
      view = common_.connections.view_number();
      step = co_await WaitForAll(victims_);
      continue;
    }
    ++scans;
    left = 0;
    for (Victim& victim : victims_) {
      victim.empty = victim.references == 0;  // and it stays empty
      left += victim.empty ? 0 : 1;
    }
    if (left > 0 && !under_way_.empty()) co_await FinishUnderWay();
  }
  const bool any = std::any_of(victims_.begin(), victims_.end(), [](const Victim& victim) { return victim.empty; });
  if (step == Step::kOk && any) step = co_await WaitForReaders();  // [Empty 4]
  for (const Victim& victim : victims_) {
    if (op_.batch.Stale()) co_return Step::kRestart;
    const Step ended = co_await End(victim, step == Step::kOk && victim.empty);
    if (ended == Step::kUnavailable) co_return ended;
  }
  victims_.clear();
  co_return step;
}

// Finishes splits and merges that the last scan met: the client that ran one may have stopped, and others may find no
// memory to finish it. Those that go on end by themselves.
Task<void> Mover::FinishUnderWay() {
  const std::vector<uint32_t> under_way = under_way_;
  for (const uint32_t index : under_way) {
    BeginAnew();
    const Step finished = co_await FinishOthersWork(table_, op_, index);
    if (finished == Step::kUnavailable) co_return;
  }
  co_await Wait(kInvalidScanNs);
}

Task<Step> Mover::WaitForReaders() {
  if (Mutated(Mutation::kNoSecondGrace)) co_return Step::kOk;
  const bool tables = std::any_of(victims_.begin(), victims_.end(),
                                  [](const Victim& victim) { return victim.word.kind() == ChunkKind::kTables; });
  if (tables) {
    // The client that unlinked a table may have died before it told the others, whose directory caches may name it.
    KVS_CO_RETURN_UNLESS_OK(co_await epochs_.home.Count(op_.batch, kRetiredTablesOffset, 1, &op_.buffers->cas[0]));
  }
  co_return co_await WaitForAll(victims_);
}

// Frees the chunk or gives it up, and only then clears its slot. A chunk that is given up gets another generation, so
// that no mover that believes it is still being emptied can free it.
Task<Step> Mover::End(const Victim& victim, bool free) {
  if (free) {
    const Step freed = co_await Free(victim);
    if (freed == Step::kUnavailable) co_return freed;
  } else {
    KVS_CO_RETURN_UNLESS_OK(co_await GiveUp(victim.Evacuation()));
    given_up_.insert(victim.chunk);
  }
  co_return co_await ClearSlot(victim.slot, victim.Evacuation());
}

Task<Step> Mover::GiveUp(EvacuationWord evacuation) {
  const GlobalAddress at{evacuation.node(), ChunkWordOffset(evacuation.chunk())};
  uint64_t& word = op_.buffers->cas[0];
  op_.batch.Read(at, &word, sizeof(word));
  KVS_CO_RETURN_UNLESS_OK(co_await op_.batch.Run());
  for (ChunkWord found(word); evacuation.OfGeneration(found.generation()); found = ChunkWord(word)) {
    const ChunkWord next = ChunkWord::Make(found.kind(), found.count(), found.generation() + 1);
    op_.batch.CompareSwap(at, found.word(), next.word(), &word);
    KVS_CO_RETURN_UNLESS_OK(co_await op_.batch.Run());
    if (word == found.word()) {
      common_.store.chunk_ages.Renamed(at.node, evacuation.chunk(), found, next);
      break;
    }
  }
  co_return Step::kOk;
}

// ---- [Empty 2], [Empty 4] waiting

// An expelled client that had announced this epoch may know what was made up to one epoch later. Returns whether the
// chunk is that old, or may be.
bool Mover::MayKnow(uint64_t announced, Chunk chunk, ChunkWord word) const {
  if (Mutated(Mutation::kExpelledUnawaited)) return false;
  return !common_.store.chunk_ages.IsYounger(chunk.first, chunk.second, word, announced + 2);
}

// Returns whether all have announced an epoch beyond this one: the living clients, and those expelled ones that may
// know one of the victims. Without victims, all expelled ones count.
bool Mover::AllAnnounced(uint64_t epoch, std::span<const Victim> victims) const {
  if (maintenance_.announced_by_living() <= epoch) return false;
  return std::all_of(
      maintenance_.expelled_epochs().begin(), maintenance_.expelled_epochs().end(), [&](uint64_t announced) {
        return announced > epoch ||
               (!victims.empty() && std::none_of(victims.begin(), victims.end(),
                                                 [&](const Victim& v) { return MayKnow(announced, v.chunk, v.word); }));
      });
}

// Waits until all clients have announced an epoch beyond the one that is read now: then whatever they began before has
// ended. Expelled clients count too, except, if there are victims, those that can know none of them. kFull: not in
// time.
Task<Step> Mover::WaitForAll(std::span<const Victim> victims) {
  uint64_t& epoch = op_.buffers->cas[0];
  op_.batch.Read({home(), kEpochOffset}, &epoch, sizeof(epoch));
  KVS_CO_RETURN_UNLESS_OK(co_await op_.batch.Run());
  const uint64_t passed = epoch;
  const int64_t begin_ns = common_.clock.NowNs();
  int64_t look_ns = kLookNs;
  while (!AllAnnounced(passed, victims)) {
    if (OutOfTime() || OutOfPatience(begin_ns)) co_return Step::kFull;
    if (!victims.empty() && !op_.drains && maintenance_.announced_by_living() > passed) {
      found_.pinned = true;  // by a client that was expelled meanwhile, until that goes
      co_return Step::kFull;
    }
    if (op_.batch.Stale()) co_return Step::kRestart;
    KVS_CO_RETURN_UNLESS_OK(co_await StayElectedInTime());
    epochs_.own_work.maintain_at_ns = 0;  // the next round at once
    co_await Wait(look_ns);
    look_ns = NextLook(look_ns);
  }
  co_return op_.batch.Stale() ? Step::kRestart : Step::kOk;
}

// ---- [Empty 3] scanning

// Reads words as the tail has them into image_, and sets head_image_ to what the head has. If a client stopped in the
// middle of a CAS, that has a word which the tail lacks, and whoever changes it brings it to the tail. The head is read
// first: a word that has left it by then is at the tail, or was.
Task<Step> Mover::ReadImage(GlobalAddress from, uint64_t bytes) {
  const bool reads_head = common_.shape.mirrored && !Mutated(Mutation::kScanIgnoresHead);
  const uint64_t least = common_.shape.geometry.bytes();
  if (!image_.Grow(common_.node, std::max(reads_head ? 2 * bytes : bytes, least))) co_return Step::kFull;
  std::byte* const image = image_.memory.get();
  head_image_ = reads_head ? image + bytes : image;
  const auto length = static_cast<uint32_t>(bytes);
  const uint32_t lkey = image_.region->lkey();
  if (reads_head) {
    op_.batch.ReadReplica(ReadAt::kHead, from, image + bytes, length, lkey);
    KVS_CO_RETURN_UNLESS_OK(co_await op_.batch.Run());
  }
  op_.batch.Read(from, image, length, lkey);
  const Outcome read = co_await op_.batch.Run();
  co_return read == Outcome::kOk ? Step::kOk : Step::kUnavailable;
}

// Brings what the head has to the tail, which had this word.
Task<Step> Mover::Help(GlobalAddress at, uint64_t word, Word whose) {
  op_.batch.CompareSwap(at, word, word, &op_.buffers->cas[0], whose);
  const Outcome helped = co_await op_.batch.Run();
  co_return helped == Outcome::kOk ? Step::kOk : Step::kUnavailable;
}

// *behind: the head had other entries, which are now at the tail.
Task<Step> Mover::ReadDirectory(std::vector<uint64_t>* entries, bool* behind) {
  // Read only the part in use: an entry of depth d has descendants only below 2^d, except those of splits under way,
  // which make the scan invalid anyway.
  uint32_t depth = 5;
  for (;;) {
    const size_t count = size_t{1} << depth;
    KVS_CO_RETURN_UNLESS_OK(co_await ReadImage(table_.directory.EntryAddress(0), count * sizeof(uint64_t)));
    const auto* const words = reinterpret_cast<const uint64_t*>(image_.memory.get());
    const auto* const at_head = reinterpret_cast<const uint64_t*>(head_image_);
    entries->assign(words, words + count);
    uint32_t deepest = 0;
    for (uint32_t i = 0; i < count; ++i) {
      const uint64_t word = (*entries)[i];
      if (DirectoryEntry(word).present()) deepest = std::max(deepest, DirectoryEntry(word).depth() + 1);
      if (at_head[i] == word) continue;
      *behind = true;
      KVS_CO_RETURN_UNLESS_OK(co_await Help(table_.directory.EntryAddress(i), word, Word::kAnyones));
    }
    if (deepest <= depth || depth == kMaxDepth) co_return Step::kOk;
    depth = std::min(deepest, kMaxDepth);
  }
}

// Visits every slot of every subtable. *valid: the directory did not change meanwhile, so no reference was missed.
Task<Step> Mover::Scan(Census* census, bool* valid) {
  ++report_->scans;
  *valid = false;
  std::vector<uint64_t> before, after;
  under_way_.clear();
  KVS_CO_RETURN_UNLESS_OK(co_await StayElected());
  bool behind = false;
  KVS_CO_RETURN_UNLESS_OK(co_await ReadDirectory(&before, &behind));
  bool still = true;
  for (uint32_t index = 0; index < before.size(); ++index) {
    const DirectoryEntry entry(before[index]);
    if (!entry.present()) continue;
    // References move only between a table and its published child, and in merges.
    const uint32_t child = entry.splitting() ? ChildIndex(index, entry.depth()) : 0;
    const bool announced = entry.splitting() && !(child < before.size() && DirectoryEntry(before[child]).present());
    const bool at_rest = entry.state() == DirectoryState::kNormal || announced;
    if (!at_rest) under_way_.push_back(index);
    still &= at_rest;
    if (!entry.has_subtable()) continue;
    if (OutOfTime()) co_return Step::kFull;
    KVS_CO_RETURN_UNLESS_OK(co_await StayElectedInTime());
    const Step visited = co_await VisitTable(index, entry, census);
    still &= visited != Step::kRestart;
    if (visited != Step::kOk && visited != Step::kRestart) co_return visited;
  }
  KVS_CO_RETURN_UNLESS_OK(co_await ReadDirectory(&after, &behind));
  *valid = (still && !behind && before == after) || Mutated(Mutation::kScanUnchecked);
  co_return op_.batch.Stale() ? Step::kRestart : Step::kOk;
}

// kRestart: the directory does not name the table any more.
Task<Step> Mover::VisitTable(uint32_t index, DirectoryEntry entry, Census* census) {
  const SubtableGeometry& geometry = common_.shape.geometry;
  const GlobalAddress table = entry.subtable();
  // No pin is kept from one table to the next. So what the directory named under an earlier epoch may have been retired
  // and be something else by now. But what it names under this epoch stays what it is.
  BeginAnew();
  uint64_t& named = op_.buffers->directory[0];
  op_.batch.Read(table_.directory.EntryAddress(index), &named, sizeof(named));
  KVS_CO_RETURN_UNLESS_OK(co_await ReadImage(table, geometry.bytes()));
  if (named != entry.word()) co_return Step::kRestart;
  CountReference(table);
  std::vector<Slot> slots(geometry.slots()), at_head(geometry.slots());
  uint32_t used = 0;
  bool any_frozen = false;
  for (uint32_t s = 0; s < geometry.slots(); ++s) {
    std::memcpy(&slots[s], image_.memory.get() + SlotOffset(s), sizeof(Slot));
    std::memcpy(&at_head[s], head_image_ + SlotOffset(s), sizeof(Slot));
    used += slots[s].has_block() ? 1 : 0;
    any_frozen |= slots[s].state() == SlotState::kFrz;
  }
  // A split has to end before what it has frozen can be moved. If its client has stopped, nobody else may have memory
  // to finish it.
  if (any_frozen && (under_way_.empty() || under_way_.back() != index)) under_way_.push_back(index);
  if (census != nullptr) {
    ++census->tables[ChunkOf(table)];
    const uint32_t least_depth = thorough_ ? 0 : common_.shape.initial_depth;
    if (entry.depth() > least_depth && uint64_t{used} * 100 <= uint64_t{geometry.slots()} * kSparseTablePercent) {
      census->sparse.push_back(index);
    }
    if (used == 0 && entry.depth() == common_.shape.initial_depth) census->empty[index] = table.node;
  }
  for (uint32_t s = 0; s < geometry.slots(); ++s) {
    const Slot slot = slots[s];
    const GlobalAddress at{table.node, table.offset + SlotOffset(s)};
    if (at_head[s] != slot && at_head[s].has_block() && CountReference(at_head[s].block())) {
      if (slot.has_block()) CountReference(slot.block());
      KVS_CO_RETURN_UNLESS_OK(co_await Help(at, slot.word(), Word::kAnyonesSlot));
      continue;
    }
    if (!slot.has_block()) continue;
    if (epochs_.own_work.closing) co_return Step::kFull;
    const GlobalAddress block = slot.block();
    if (census != nullptr) {
      uint64_t bytes = uint64_t{slot.length_units()} * kUnitBytes;
      if (slot.length_units() == kLargeBlock) {
        KVS_CO_RETURN_UNLESS_OK(co_await ReadLength(block, &bytes));
        bytes = RoundBlockBytes(bytes, common_.shape.chunk_bytes);
      }
      // After a copy, the rest of a chunk may be too small for the next one: what is lost is less than the size of
      // that.
      Blocks& blocks = census->blocks[ChunkOf(block)];
      blocks.bytes += bytes;
      blocks.room += bytes > common_.shape.chunk_bytes / kSmallBlocks ? 2 * bytes : bytes;
      continue;
    }
    if (slot.state() == SlotState::kFrz && Mutated(Mutation::kScanIgnoresFrozen)) continue;
    if (!CountReference(block) || slot.state() == SlotState::kFrz) continue;
    if (slot.state() == SlotState::kIns) {
      // Every living client has let go of it [Empty 2].
      op_.batch.CompareSwap(at, slot.word(), common_.NewFree().word(), &op_.buffers->cas[0], Word::kAnyonesSlot);
      KVS_CO_RETURN_UNLESS_OK(co_await op_.batch.Run());
      continue;
    }
    const Step moved = co_await Move(at, slot);
    if (moved == Step::kUnavailable) co_return moved;  // else the block stays: its slot changed, or there is no room
    found_.no_room |= moved == Step::kFull;
  }
  co_return Step::kOk;
}

Task<Step> Mover::ReadLength(GlobalAddress block, uint64_t* bytes) {
  op_.batch.Read(block, op_.buffers->match.data(), sizeof(BlockHeader));
  KVS_CO_RETURN_UNLESS_OK(co_await op_.batch.Run());
  // A block that was unlinked may be anything by now. The next scan then sees what is right.
  *bytes = std::min(BlockView(op_.buffers->match.data()).bytes(), BlockBytes(kMaxKeyBytes, kMaxValueBytes, true));
  co_return Step::kOk;
}

// Moves a block: an ordinary update of the slot, with the value that it has. kRestart: the slot has changed.
Task<Step> Mover::Move(GlobalAddress at, Slot slot) {
  KVS_CO_RETURN_UNLESS_OK(co_await table_.finder.ReadBlock(op_, slot));
  const BlockView block = op_.scan.block;
  const uint64_t content_bytes = block.bytes();
  Extent copy{
      .address = {}, .bytes = RoundBlockBytes(content_bytes, common_.shape.chunk_bytes), .birth = epochs_.home.epoch()};
  uint32_t lkey;
  const std::span<std::byte> local = epochs_.operations.BlockBuffer(op_, content_bytes, &lkey);
  if (local.empty()) co_return Step::kFull;
  // This comes before memory is allocated, which uses the buffer that holds the block.
  const uint64_t expires_at_ms = Mutated(Mutation::kMoveDropsExpiry) ? 0 : block.expires_at_ms();
  BuildBlock(local, block.header().hash, copy.birth, block.key(), block.value(), expires_at_ms);
  // Copies go to chunks of their own, so that others do not use up the room before it suffices.
  KVS_CO_RETURN_UNLESS_OK(co_await epochs_.allocator.AllocateNow(op_, copy.bytes, slot.block().node, &copy.address));
  op_.batch.RenewView();  // that memory's pool may be younger
  op_.batch.Write(local.data(), copy.address, static_cast<uint32_t>(content_bytes), lkey);
  KVS_CO_RETURN_UNLESS_OK(co_await op_.batch.Run());
  const Slot now = Slot::Make(SlotState::kVal, slot.fingerprint(), slot.length_units(), copy.address, 0);
  uint64_t& old = op_.buffers->cas[0];
  if (Mutated(Mutation::kMoveByWrite)) {
    op_.buffers->cas[1] = now.word();
    op_.batch.Write(&op_.buffers->cas[1], at, sizeof(uint64_t));
    old = slot.word();
  } else {
    op_.batch.CompareSwap(at, slot.word(), now.word(), &old, Word::kOwnSlot);
  }
  // If this fails, the copy may be in the slot: it is not used again.
  KVS_CO_RETURN_UNLESS_OK(co_await op_.batch.Run());
  if (old != slot.word()) {
    epochs_.memory.Of(op_.batch).Free(copy);  // nobody has seen it
    co_return Step::kRestart;
  }
  // The old block lies in a chunk that is being emptied, so it is nobody's.
  ++report_->blocks_moved;
  ++common_.stats.blocks_moved;
  report_->bytes_moved += copy.bytes;
  co_return Step::kOk;
}

}  // namespace kvs
