// The mover: gives memory back by emptying chunks with little in them. Why a chunk that it frees is not in use any more
// is docs/kvs.md, "Memory given back"; the step numbers are those there.
#include "kvs/src/mover.h"

#include <algorithm>
#include <cstring>

#include "kvs/src/epoch_buffers.h"
#include "kvs/src/mutation.h"
#include "kvs/src/run_detached.h"

namespace kvs {
namespace {

constexpr uint64_t kEpochOffset = kHomeAreaOffset + offsetof(HomeArea, epoch);
constexpr uint64_t kMoverOffset = kHomeAreaOffset + offsetof(HomeArea, mover);
constexpr uint64_t kEvacuationOffset = kHomeAreaOffset + offsetof(HomeArea, evacuation);
constexpr uint64_t kEvacuationsOffset =
    kHomeAreaOffset + offsetof(HomeArea, counters) + offsetof(HomeCounters, evacuations);
constexpr uint64_t kRetiredTablesOffset =
    kHomeAreaOffset + offsetof(HomeArea, counters) + offsetof(HomeCounters, retired_tables);
constexpr uint64_t kFreedChunksOffset =
    kHomeAreaOffset + offsetof(HomeArea, counters) + offsetof(HomeCounters, freed_chunks);
// Live data of a chunk that is emptied, in percent: when it pays, and when asked to be thorough.
constexpr uint64_t kSparsePercent = 50, kNotDensePercent = 85;
// Of a subtable's slots, beside its sibling's: what may be merged.
constexpr uint64_t kSparseTablePercent = 20;
// Scans of one round of evacuations, until all that its chunks held has moved.
constexpr int kScansPerRound = 16;
// ... and scans that found splits and merges under way, and the time between them: together longer than a client waits
// before it takes over another's split.
constexpr int kInvalidScans = 64;
constexpr int64_t kInvalidScanNs = 8'000'000;
// How often who waits looks: at first, and more and more rarely.
constexpr int64_t kLookNs = 200'000;
constexpr int64_t kMaxLookNs = 10'000'000;
int64_t NextLook(int64_t look_ns) { return std::min(2 * look_ns, kMaxLookNs); }

uint64_t SlotOfEvacuation(uint32_t slot) { return kEvacuationOffset + slot * sizeof(uint64_t); }

}  // namespace

// ---- to be the mover

// The word only avoids double work: every step is right whoever else does it.
Task<Step> ClientCore::Mover::Elect() {
  if (!client_.connections_.Reach(home_)) co_return Step::kUnavailable;
  token_ = uint64_t{client_.client_index_ + 1} << 32 | (client_.random_() & 0xffffffff);
  uint64_t& old = op_.buffers->cas[0];
  uint64_t expected = 0;
  int64_t look_ns = kLookNs;
  const int64_t begin_ns = client_.clock_.NowNs();
  SeenLock& seen = client_.seen_mover_;
  for (;;) {
    op_.batch.CompareSwap({home_, kMoverOffset}, expected, token_, &old);
    const Outcome swapped = co_await op_.batch.Run();
    if (swapped != Outcome::kOk) co_return Step::kUnavailable;
    if (old == expected) co_return Step::kOk;
    const int64_t now_ns = client_.clock_.NowNs();
    if (old != seen.word) seen = {old, now_ns};
    // One that has stopped: it changes its word as it goes on.
    expected = old != 0 && now_ns - seen.since_ns > 2 * client_.registration_.lease_ns() ? old : 0;
    if (OutOfTime() || OutOfPatience(begin_ns)) co_return Step::kRestart;
    co_await Wait(look_ns);
    look_ns = NextLook(look_ns);
  }
}

Task<Step> ClientCore::Mover::StayElected() {
  uint64_t& old = op_.buffers->cas[0];
  const uint64_t next = (token_ & ~uint64_t{0xffffffff}) | ((token_ + 1) & 0xffffffff);
  op_.batch.CompareSwap({home_, kMoverOffset}, token_, next, &old);
  const Outcome swapped = co_await op_.batch.Run();
  if (swapped != Outcome::kOk) co_return Step::kUnavailable;
  if (old != token_) co_return Step::kRestart;  // taken over
  token_ = next;
  co_return Step::kOk;
}

Task<void> ClientCore::Mover::Resign() {
  op_.batch.CompareSwap({home_, kMoverOffset}, token_, 0, &op_.buffers->cas[0]);
  (void)co_await op_.batch.Run();
}

// Holds no address meanwhile.
Task<void> ClientCore::Mover::Wait(int64_t ns) {
  op_.epoch = client_.epoch_;
  op_.strangers = 0;
  co_await client_.Pause(ns);
  op_.epoch = client_.epoch_;
}

// Everybody who is polled announces four times a lease: who waits for longer waits for one who has stopped.
bool ClientCore::Mover::OutOfPatience(int64_t begin_ns) const {
  return for_room_ && client_.clock_.NowNs() - begin_ns > client_.registration_.lease_ns() / 2;
}

bool ClientCore::Mover::OutOfTime() const { return client_.clock_.NowNs() >= deadline_ns_ || client_.closing_; }

// ---- (2), (4) waiting

// Until all clients, expelled ones too, have announced an epoch beyond the one that is read now: whatever they began
// before has ended.
Task<Step> ClientCore::Mover::WaitForAll() {
  uint64_t& epoch = op_.buffers->cas[0];
  op_.batch.Read({home_, kEpochOffset}, &epoch, sizeof(epoch));
  const Outcome read = co_await op_.batch.Run();
  if (read != Outcome::kOk) co_return Step::kUnavailable;
  const uint64_t passed = epoch;
  const int64_t begin_ns = client_.clock_.NowNs();
  uint32_t looks = 0;
  int64_t look_ns = kLookNs;
  while (client_.announced_by_all_ <= passed) {
    if (OutOfTime() || OutOfPatience(begin_ns)) co_return Step::kFull;
    if (op_.batch.Stale()) co_return Step::kRestart;
    if (++looks % 32 == 0) {
      const Step elected = co_await StayElected();
      if (elected != Step::kOk) co_return elected;
    }
    client_.maintain_at_ns_ = 0;  // the next round at once
    co_await Wait(look_ns);
    look_ns = NextLook(look_ns);
  }
  co_return op_.batch.Stale() ? Step::kRestart : Step::kOk;
}

// ---- (3) scanning

Task<Step> ClientCore::Mover::ReadDirectory(std::vector<uint64_t>* entries) {
  // As much as is in use: an entry of depth d has descendants below 2^d only, those under way aside, which make the
  // scan invalid anyway.
  uint32_t depth = 5;
  for (;;) {
    const uint64_t bytes = sizeof(uint64_t) << depth;
    if (!client_.store_.AllocateLarge(std::max<uint64_t>(bytes, client_.geometry_.bytes()), &image_)) {
      co_return Step::kFull;
    }
    op_.batch.Read(client_.DirectoryAddress(0), image_.memory.get(), static_cast<uint32_t>(bytes),
                   image_.region->lkey());
    const Outcome read = co_await op_.batch.Run();
    if (read != Outcome::kOk) co_return Step::kUnavailable;
    entries->resize(size_t{1} << depth);
    std::memcpy(entries->data(), image_.memory.get(), bytes);
    uint32_t deepest = 0;
    for (const uint64_t word : *entries) {
      if (DirectoryEntry(word).present()) deepest = std::max(deepest, DirectoryEntry(word).depth() + 1);
    }
    if (deepest <= depth || depth == kMaxDepth) co_return Step::kOk;
    depth = std::min(deepest, kMaxDepth);
  }
}

// Visits every slot of every subtable. *valid: the directory stood still meanwhile, so that no reference was missed.
Task<Step> ClientCore::Mover::Scan(Census* census, bool* valid) {
  ++report_->scans;
  *valid = false;
  std::vector<uint64_t> before, after;
  under_way_.clear();
  const Step elected = co_await StayElected();
  if (elected != Step::kOk) co_return elected;
  const Step read_before = co_await ReadDirectory(&before);
  if (read_before != Step::kOk) co_return read_before;
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
    const Step visited = co_await VisitTable(index, entry, census);
    if (visited != Step::kOk) co_return visited;
  }
  const Step read_after = co_await ReadDirectory(&after);
  if (read_after != Step::kOk) co_return read_after;
  *valid = (still && before == after) || Mutated(Mutation::kScanUnchecked);
  co_return op_.batch.Stale() ? Step::kRestart : Step::kOk;
}

Task<Step> ClientCore::Mover::VisitTable(uint32_t index, DirectoryEntry entry, Census* census) {
  const SubtableGeometry& geometry = client_.geometry_;
  const GlobalAddress table = entry.subtable();
  if (!client_.connections_.Reach(table.node)) co_return Step::kUnavailable;
  op_.epoch = client_.epoch_;  // nothing is held from one table to the next
  op_.batch.Read(table, image_.memory.get(), static_cast<uint32_t>(geometry.bytes()), image_.region->lkey());
  const Outcome read = co_await op_.batch.Run();
  if (read != Outcome::kOk) co_return Step::kUnavailable;
  CountReference(table);
  std::vector<Slot> slots(geometry.slots());
  uint32_t used = 0;
  for (uint32_t s = 0; s < geometry.slots(); ++s) {
    std::memcpy(&slots[s], image_.memory.get() + SlotOffset(s), sizeof(Slot));
    used += slots[s].has_block() ? 1 : 0;
  }
  if (census != nullptr) {
    ++census->tables[ChunkOf(table)];
    if (entry.depth() > 0 && uint64_t{used} * 100 <= uint64_t{geometry.slots()} * kSparseTablePercent) {
      census->sparse.push_back(index);
    }
  }
  for (uint32_t s = 0; s < geometry.slots(); ++s) {
    const Slot slot = slots[s];
    if (!slot.has_block()) continue;
    const GlobalAddress block = slot.block();
    if (census != nullptr) {
      uint64_t bytes = uint64_t{slot.length_units()} * kUnitBytes;
      if (slot.length_units() == kLargeBlock) {
        const Step sized = co_await ReadLength(block, &bytes);
        if (sized != Step::kOk) co_return sized;
        bytes = RoundBlockBytes(bytes, client_.chunk_bytes_);
      }
      census->live[ChunkOf(block)] += bytes;
      continue;
    }
    if (!CountReference(block)) continue;
    if (slot.state() == SlotState::kFrz) continue;  // a split or merge under way: the scan is not valid
    const GlobalAddress at{table.node, table.offset + SlotOffset(s)};
    if (slot.state() == SlotState::kIns) {
      // Whoever lived has let go of it: (2).
      op_.batch.CompareSwap(at, slot.word(), Slot::Free().word(), &op_.buffers->cas[0]);
      const Outcome killed = co_await op_.batch.Run();
      if (killed != Outcome::kOk) co_return Step::kUnavailable;
      continue;
    }
    const Step moved = co_await Move(at, slot);
    if (moved == Step::kUnavailable) co_return moved;  // else it stays where it is: it has changed, or there is no room
  }
  co_return Step::kOk;
}

Task<Step> ClientCore::Mover::ReadLength(GlobalAddress block, uint64_t* bytes) {
  if (!client_.connections_.Reach(block.node)) co_return Step::kUnavailable;
  op_.batch.Read(block, op_.buffers->match.data(), sizeof(BlockHeader));
  const Outcome read = co_await op_.batch.Run();
  if (read != Outcome::kOk) co_return Step::kUnavailable;
  // A block that is on its way out may be anything by now; then the next scan knows better.
  *bytes = std::min(BlockView(op_.buffers->match.data()).bytes(), BlockBytes(kMaxKeyBytes, kMaxValueBytes));
  co_return Step::kOk;
}

// An ordinary update of the slot, with the value that it has. kRestart: it has changed.
Task<Step> ClientCore::Mover::Move(GlobalAddress at, Slot slot) {
  const GlobalAddress from = slot.block();
  if (!client_.connections_.Reach(from.node)) co_return Step::kUnavailable;
  BlockView block;
  uint64_t bytes = FirstReadBytes(slot);
  op_.batch.Read(from, op_.buffers->match.data(), static_cast<uint32_t>(bytes));
  const Outcome read = co_await op_.batch.Run();
  if (read != Outcome::kOk) co_return Step::kUnavailable;
  block = BlockView(op_.buffers->match.data());
  if (slot.length_units() == kLargeBlock) {
    bytes = block.bytes();
    const Step large = co_await client_.ReadLargeBlock(op_, slot, bytes);
    if (large != Step::kOk) co_return large;
    block = op_.scan.block;
  } else if (!block.Intact(bytes)) {
    co_return Step::kRestart;
  }

  const uint64_t content_bytes = block.bytes();
  Extent copy{.address = {}, .bytes = RoundBlockBytes(content_bytes, client_.chunk_bytes_), .birth = client_.epoch_};
  std::span<std::byte> local;
  uint32_t lkey = client_.arena_->lkey();
  if (content_bytes <= kMaxSmallBlockBytes) {
    local = std::span(op_.buffers->block).first(content_bytes);
  } else {
    if (!client_.store_.AllocateLarge(content_bytes, &op_.large_write)) co_return Step::kFull;
    local = {op_.large_write.memory.get(), content_bytes};
    lkey = op_.large_write.region->lkey();
  }
  // Before memory is allocated, which uses the buffer that holds the block.
  BuildBlock(local, block.header().hash, copy.birth, block.key(), block.value());
  const Step allocated = co_await client_.AllocateNow(op_, copy.bytes, from.node, &copy.address);
  if (allocated != Step::kOk) co_return allocated;
  op_.batch.Write(local.data(), copy.address, static_cast<uint32_t>(content_bytes), lkey);
  const Outcome written = co_await op_.batch.Run();
  if (written != Outcome::kOk) co_return Step::kUnavailable;
  const Slot now = Slot::Make(SlotState::kVal, slot.fingerprint(), slot.length_units(), copy.address,
                              static_cast<uint8_t>(slot.version() + 1));
  uint64_t& old = op_.buffers->cas[0];
  if (Mutated(Mutation::kMoveByWrite)) {
    op_.buffers->cas[1] = now.word();
    op_.batch.Write(&op_.buffers->cas[1], at, sizeof(uint64_t));
    old = slot.word();
  } else {
    op_.batch.CompareSwap(at, slot.word(), now.word(), &old);
  }
  const Outcome swapped = co_await op_.batch.Run();
  if (swapped != Outcome::kOk) co_return Step::kUnavailable;  // the copy may be in the slot: not used again
  if (old != slot.word()) {
    client_.MemoryOf(op_.batch).Free(copy);  // nobody has seen it
    co_return Step::kRestart;
  }
  // What it replaced lies in a chunk that is being emptied: nobody's.
  ++report_->blocks_moved;
  ++client_.stats_.blocks_moved;
  report_->bytes_moved += copy.bytes;
  co_return Step::kOk;
}

// ---- which chunks

Task<Step> ClientCore::Mover::ReadChunks(std::map<Chunk, ChunkWord>* chunks) {
  const auto* const words = reinterpret_cast<const ChunkWord*>(op_.buffers->match.data());
  constexpr uint64_t kWindow = kMatchBytes / sizeof(ChunkWord);
  for (const krcore::NodeId node : client_.members_) {
    if (!client_.connections_.Reach(node)) continue;  // what it has stays
    const uint64_t count = client_.connections_.PoolBytes(node) / client_.chunk_bytes_;
    for (uint64_t begin = 0; begin < count; begin += kWindow) {
      const uint64_t window = std::min(kWindow, count - begin);
      op_.batch.Read({node, ChunkWordOffset(begin)}, op_.buffers->match.data(),
                     static_cast<uint32_t>(window * sizeof(ChunkWord)));
      const Outcome read = co_await op_.batch.Run();
      if (read != Outcome::kOk) co_return Step::kUnavailable;
      for (uint64_t i = 0; i < window; ++i)
        chunks->insert_or_assign({node, static_cast<uint32_t>(begin + i)}, words[i]);
    }
  }
  co_return Step::kOk;
}

// The emptiest ones, as many as there is room for elsewhere.
void ClientCore::Mover::Choose(const Census& census, const std::map<Chunk, ChunkWord>& chunks) {
  struct Candidate {
    uint64_t live;
    Victim victim;
  };
  std::vector<Candidate> candidates;
  uint64_t room = client_.memory_->free_bytes() / 2;
  const uint64_t percent = thorough_ ? kNotDensePercent : kSparsePercent;
  for (const auto& [chunk, word] : chunks) {
    const auto live = census.live.find(chunk);
    const uint64_t bytes = live == census.live.end() ? 0 : live->second;
    switch (word.kind()) {
      case ChunkKind::kFree: room += client_.chunk_bytes_; break;
      case ChunkKind::kBlocks:
        // Not those that this client is filling, nor a second time those that came to nothing.
        if (bytes * 100 < client_.chunk_bytes_ * percent && !client_.memory_->IsOpen(chunk.first, chunk.second) &&
            !given_up_.contains(chunk)) {
          candidates.push_back({bytes, {chunk, word}});
        }
        break;
      case ChunkKind::kTables:
        if (!census.tables.contains(chunk) && !given_up_.contains(chunk)) {
          candidates.push_back({0, {chunk, word}});
        }
        break;
      case ChunkKind::kRun:
        if (bytes == 0 && !given_up_.contains(chunk)) candidates.push_back({0, {chunk, word}});
        break;
      case ChunkKind::kRunRest:
      case ChunkKind::kReserved: break;
    }
  }
  std::sort(candidates.begin(), candidates.end(),
            [](const Candidate& a, const Candidate& b) { return a.live < b.live; });
  victims_.clear();
  for (const Candidate& candidate : candidates) {
    if (victims_.size() == kEvacuationSlots || candidate.live > room) break;
    room -= candidate.live;
    victims_.push_back(candidate.victim);
  }
}

// ---- (1) and (4)

// Tells everybody. Those for which there is no slot are left for another time.
Task<Step> ClientCore::Mover::Announce() {
  uint64_t* const slots = op_.buffers->slots.data();
  size_t next = 0;
  for (uint32_t slot = 0; slot < kEvacuationSlots && next < victims_.size(); ++slot) {
    Victim& victim = victims_[next];
    if (victim.word.kind() == ChunkKind::kTables) {  // nobody cuts from it any more
      const ChunkWord full = victim.word.As(ChunkKind::kTables, 0xfffff);
      op_.batch.CompareSwap(victim.WordAddress(), victim.word.word(), full.word(), &slots[0]);
      const Outcome sealed = co_await op_.batch.Run();
      if (sealed != Outcome::kOk) co_return Step::kUnavailable;
      if (slots[0] != victim.word.word()) {
        victims_.erase(victims_.begin() + static_cast<std::ptrdiff_t>(next));
        --slot;
        continue;
      }
      victim.word = full;
    }
    op_.batch.CompareSwap({home_, SlotOfEvacuation(slot)}, 0, victim.Evacuation().word(), &slots[0]);
    const Outcome set = co_await op_.batch.Run();
    if (set != Outcome::kOk) co_return Step::kUnavailable;
    if (slots[0] != 0) continue;  // another mover's
    victim.slot = slot;
    ++next;
  }
  victims_.resize(next);
  // Behind them all: memory kept from ended clients is not used by who finds another count.
  op_.batch.FetchAdd({home_, kEvacuationsOffset}, 1, &slots[0]);
  const Outcome counted = co_await op_.batch.Run();
  co_return counted == Outcome::kOk ? Step::kOk : Step::kUnavailable;
}

// Slots of movers that did not come to an end.
Task<Step> ClientCore::Mover::ClearSlots() {
  EpochBuffers::Registered& words = client_.epoch_buffers_->words();
  std::array<uint64_t, kEvacuationSlots> found;
  op_.batch.Read({home_, kEvacuationOffset}, op_.buffers->match.data(), sizeof(words.evacuation));
  const Outcome read = co_await op_.batch.Run();
  if (read != Outcome::kOk) co_return Step::kUnavailable;
  std::memcpy(found.data(), op_.buffers->match.data(), sizeof(found));
  for (uint32_t slot = 0; slot < kEvacuationSlots; ++slot) {
    if (found[slot] == 0) continue;
    const Step given_up = co_await GiveUp(EvacuationWord(found[slot]));
    if (given_up != Step::kOk) co_return given_up;
    op_.batch.CompareSwap({home_, SlotOfEvacuation(slot)}, found[slot], 0, &op_.buffers->cas[0]);
    const Outcome cleared = co_await op_.batch.Run();
    if (cleared != Outcome::kOk) co_return Step::kUnavailable;
  }
  co_return Step::kOk;
}

Task<Step> ClientCore::Mover::Free(const Victim& victim) {
  uint64_t& old = op_.buffers->cas[0];
  if (!client_.connections_.Reach(victim.chunk.first)) co_return Step::kUnavailable;
  uint64_t count = 1;
  if (victim.word.kind() == ChunkKind::kRun) {
    // The rest first: whoever finds the first chunk of a run finds all of it. Where its taker died some are missing.
    const auto* const words = reinterpret_cast<const ChunkWord*>(op_.buffers->match.data());
    count = std::min<uint64_t>(victim.word.count(), kMatchBytes / sizeof(ChunkWord));
    op_.batch.Read(victim.WordAddress(), op_.buffers->match.data(), static_cast<uint32_t>(count * sizeof(ChunkWord)));
    const Outcome read = co_await op_.batch.Run();
    if (read != Outcome::kOk) co_return Step::kUnavailable;
    if (words[0] != victim.word) co_return Step::kRestart;
    uint64_t end = 1;
    while (end < count && words[end].kind() == ChunkKind::kRunRest) ++end;
    count = end;
    for (uint64_t i = end; i-- > 1;) {
      const GlobalAddress at{victim.chunk.first, ChunkWordOffset(victim.chunk.second + i)};
      op_.batch.CompareSwap(at, words[i].word(), words[i].Freed().word(), &op_.buffers->cas[i % kCandidates]);
      if (!op_.batch.full() && i > 1) continue;
      const Outcome freed = co_await op_.batch.Run();
      if (freed != Outcome::kOk) co_return Step::kUnavailable;
    }
  }
  op_.batch.CompareSwap(victim.WordAddress(), victim.word.word(), victim.word.Freed().word(), &old);
  const Outcome freed = co_await op_.batch.Run();
  if (freed != Outcome::kOk) co_return Step::kUnavailable;
  if (old != victim.word.word()) co_return Step::kRestart;
  report_->chunks_freed += count;
  client_.stats_.chunks_freed += count;
  op_.batch.FetchAdd({home_, kFreedChunksOffset}, count, &old);
  const Outcome told = co_await op_.batch.Run();
  co_return told == Outcome::kOk ? Step::kOk : Step::kUnavailable;
}

// One round: the chunks chosen are announced, emptied and freed. What cannot be emptied stays as it was.
Task<Step> ClientCore::Mover::Evacuate() {
  Step step = co_await Announce();  // (1)
  if (step == Step::kOk) step = co_await client_.MaintainNow();
  if (step == Step::kOk && !Mutated(Mutation::kEvacuationUnannounced)) step = co_await WaitForAll();  // (2)
  int scans = 0, invalid = 0, left = INT32_MAX;
  while (step == Step::kOk && left > 0 && scans < kScansPerRound && invalid < kInvalidScans && !OutOfTime()) {
    bool valid = false;
    for (Victim& victim : victims_) victim.references = 0;
    step = co_await Scan(nullptr, &valid);  // (3)
    if (step != Step::kOk) break;
    if (!valid) {
      ++invalid;
      co_await FinishOthersWork();
      continue;
    }
    ++scans;
    left = 0;
    for (Victim& victim : victims_) {
      victim.empty = victim.references == 0;  // and stays so
      left += victim.empty ? 0 : 1;
    }
  }
  const bool any = std::any_of(victims_.begin(), victims_.end(), [](const Victim& victim) { return victim.empty; });
  if (step == Step::kOk && any) step = co_await WaitForReaders();  // (4)
  for (const Victim& victim : victims_) {
    if (op_.batch.Stale()) co_return Step::kRestart;
    const Step ended = co_await End(victim, step == Step::kOk && victim.empty);
    if (ended == Step::kUnavailable) co_return ended;
  }
  victims_.clear();
  co_return step;
}

// Splits and merges that the last scan met: whoever was at one may have stopped. Those that go on come to an end by
// themselves.
Task<void> ClientCore::Mover::FinishOthersWork() {
  const std::vector<uint32_t> under_way = under_way_;
  for (const uint32_t index : under_way) {
    TableRef table;
    op_.epoch = client_.epoch_;
    const Step read = co_await client_.ReadDirectoryEntry(op_.batch, &op_.buffers->directory[0], index, &table);
    if (read != Step::kOk) co_return;
    if (table.entry.merging()) client_.NoteMerge(index);
    if (table.entry.splitting()) (void)co_await client_.Split(op_, table);
  }
  co_await Wait(kInvalidScanNs);
}

Task<Step> ClientCore::Mover::WaitForReaders() {
  if (Mutated(Mutation::kNoSecondGrace)) co_return Step::kOk;
  const bool tables = std::any_of(victims_.begin(), victims_.end(),
                                  [](const Victim& victim) { return victim.word.kind() == ChunkKind::kTables; });
  if (tables) {
    // Whoever unlinked a table may have died before he told the others, whose directory caches may name it.
    op_.batch.FetchAdd({home_, kRetiredTablesOffset}, 1, &op_.buffers->cas[0]);
    const Outcome told = co_await op_.batch.Run();
    if (told != Outcome::kOk) co_return Step::kUnavailable;
  }
  co_return co_await WaitForAll();
}

// Frees the chunk, or gives it up; and only then clears its slot. A chunk that is given up gets another generation, so
// that no mover who thinks that it is still being emptied can free it.
Task<Step> ClientCore::Mover::End(const Victim& victim, bool free) {
  if (free) {
    const Step freed = co_await Free(victim);
    if (freed == Step::kUnavailable) co_return freed;
  } else {
    const Step given_up = co_await GiveUp(victim.Evacuation());
    if (given_up != Step::kOk) co_return given_up;
    given_up_.insert(victim.chunk);
  }
  op_.batch.CompareSwap({home_, SlotOfEvacuation(victim.slot)}, victim.Evacuation().word(), 0, &op_.buffers->cas[0]);
  const Outcome cleared = co_await op_.batch.Run();
  co_return cleared == Outcome::kOk ? Step::kOk : Step::kUnavailable;
}

Task<Step> ClientCore::Mover::GiveUp(EvacuationWord evacuation) {
  const GlobalAddress at{evacuation.node(), ChunkWordOffset(evacuation.chunk())};
  if (!client_.connections_.Reach(at.node)) co_return Step::kUnavailable;
  uint64_t& word = op_.buffers->cas[0];
  op_.batch.Read(at, &word, sizeof(word));
  const Outcome read = co_await op_.batch.Run();
  if (read != Outcome::kOk) co_return Step::kUnavailable;
  for (ChunkWord found(word); evacuation.OfGeneration(found.generation()); found = ChunkWord(word)) {
    const ChunkWord next = ChunkWord::Make(found.kind(), found.count(), found.generation() + 1);
    op_.batch.CompareSwap(at, found.word(), next.word(), &word);
    const Outcome swapped = co_await op_.batch.Run();
    if (swapped != Outcome::kOk) co_return Step::kUnavailable;
    if (word == found.word()) break;
  }
  co_return Step::kOk;
}

// ---- all of it

Task<Step> ClientCore::Mover::Run() {
  Step step = co_await Elect();
  if (step != Step::kOk) co_return step;
  step = co_await ClearSlots();
  bool merged = true;
  uint64_t most_free = 0;
  int unfinished = 0;
  while (step == Step::kOk && !OutOfTime()) {
    Census census;
    bool valid = false;
    step = co_await Scan(&census, &valid);
    if (step != Step::kOk) break;
    if (!valid && ++unfinished < kInvalidScans / 4) {
      co_await FinishOthersWork();
      if (unfinished < 4) continue;
    }
    const bool may_lease = !client_.free_operations_.empty() || client_.operations_.size() < client_.max_in_flight_;
    if (merged && may_lease && !census.sparse.empty()) {
      merged = false;
      for (uint32_t index : census.sparse) {
        if (OutOfTime() || client_.restructuring_ > 0) break;
        ++client_.restructuring_;
        Step joined = co_await client_.TryMerge(&index);
        while (joined == Step::kOk) {
          ++report_->tables_merged;
          merged = true;
          joined = co_await client_.TryMerge(&index);
        }
        --client_.restructuring_;
      }
      if (merged) continue;  // once more, of the smaller table
    }
    std::map<Chunk, ChunkWord> chunks;
    step = co_await ReadChunks(&chunks);
    if (step != Step::kOk) break;
    // Others take chunks that are sparse at first: what counts is that there are more free ones after each round.
    const uint64_t free = static_cast<uint64_t>(std::count_if(
        chunks.begin(), chunks.end(), [](const auto& chunk) { return chunk.second.kind() == ChunkKind::kFree; }));
    if (free <= most_free && most_free > 0) break;
    most_free = std::max<uint64_t>(free, 1);
    Choose(census, chunks);
    if (victims_.empty()) break;
    step = co_await Evacuate();
    merged = true;
  }
  if (!op_.batch.Stale()) co_await Resign();
  co_return step == Step::kOk&& client_.clock_.NowNs() >= deadline_ns_ ? Step::kFull : step;
}

// ---- the client's side

Operation& ClientCore::MoverOperation() {
  if (!mover_op_) {
    mover_op_ = std::make_unique<Operation>();
    mover_op_->buffers = new (arena_->bytes().data() + max_in_flight_ * sizeof(OperationBuffers)) OperationBuffers;
    mover_op_->batch.Attach(&connections_, arena_->lkey());
  }
  return *mover_op_;
}

// One round of maintenance that begins now.
Task<Step> ClientCore::MaintainNow() {
  while (maintaining_ > 0) co_await Pause(kLookNs);
  ++maintaining_;
  co_await Maintain();
  --maintaining_;
  co_return Step::kOk;
}

void ClientCore::StartCompaction(const CompactOptions& options, bool for_room) {
  if (compacting_ > 0 || closing_) return;
  RunDetached(RunCompaction(options, for_room), &compacting_);
}

Task<void> ClientCore::RunCompaction(CompactOptions options, bool for_room) {
  compaction_wanted_ = false;
  last_compaction_ = {};
  Operation& op = MoverOperation();
  op.in_use = true;
  op.batch.Renew();
  op.epoch = epoch_;
  op.strangers = 0;
  op.own_ins = 0;
  op.deadline_ns = 0;
  ++stats_.compactions;
  {
    Mover mover(*this, op, options, for_room, &last_compaction_);
    last_step_ = co_await mover.Run();
  }
  op.in_use = false;
  op.batch.Clear();
  ++compactions_;
  free_after_compaction_ = memory_->free_bytes();
  compact_again_at_ns_ = clock_.NowNs() + (last_compaction_.chunks_freed > 0 ? 0 : registration_.lease_ns());
}

Task<Status> ClientCore::CompactAsync(CompactOptions options, CompactReport* report) {
  for (int64_t look_ns = kLookNs; compacting_ > 0; look_ns = NextLook(look_ns)) co_await Pause(look_ns);
  StartCompaction(options, /*for_room=*/false);
  const uint64_t before = compactions_;
  for (int64_t look_ns = kLookNs; compactions_ == before; look_ns = NextLook(look_ns)) {
    if (compacting_ == 0) co_return Status(StatusCode::kBadState, "the client is closing");
    co_await Pause(look_ns);
  }
  *report = last_compaction_;
  switch (last_step_) {
    case Step::kOk: co_return Status::Ok();
    case Step::kFull: co_return StatusCode::kTimeout;
    case Step::kRestart:
      co_return Status(StatusCode::kExists, "another client gives memory back, or this one was expelled");
    case Step::kUnavailable: co_return UnavailableStatus("giving memory back");
  }
  co_return StatusCode::kInternal;
}

// An allocation that found everything full. kOk: chunks were freed, by this client or another: look again. kFull: there
// was nothing to gain.
Task<Step> ClientCore::CompactForRoom(Operation& op) {
  if (closing_ || OutOfTime(op)) co_return Step::kFull;
  const uint64_t freed = freed_chunks_seen_;
  if (compacting_ == 0) {
    const bool more_free = memory_->free_bytes() >= free_after_compaction_ + chunk_bytes_;
    if (clock_.NowNs() < compact_again_at_ns_ && !more_free) co_return Step::kFull;  // the last one found nothing
    const int64_t left_ms = (op.deadline_ns - clock_.NowNs()) / 2'000'000;
    StartCompaction({.thorough = true, .timeout_ms = std::max<int64_t>(left_ms, 1)}, /*for_room=*/true);
  }
  const uint64_t before = compactions_;
  for (int64_t look_ns = kLookNs;
       compactions_ == before && compacting_ > 0 && freed == freed_chunks_seen_ && !OutOfTime(op);
       look_ns = NextLook(look_ns)) {
    op.epoch = epoch_;  // it holds nothing
    op.strangers = 0;
    co_await Pause(look_ns);
    op.epoch = epoch_;
  }
  const Step looked = co_await MaintainNow();
  if (looked != Step::kOk) co_return looked;
  co_return last_compaction_.chunks_freed > 0 || freed != freed_chunks_seen_ ? Step::kOk : Step::kFull;
}

// Without waiting for anything: kFull if there is no room now.
Task<Step> ClientCore::AllocateNow(Operation& op, uint64_t bytes, krcore::NodeId node, GlobalAddress* address) {
  Step step = co_await AllocateFrom(op, node, bytes, address);
  for (size_t m = 0; m < members_.size() && step != Step::kOk; ++m) {
    if (members_[m] == node) continue;
    const Step other = co_await AllocateFrom(op, members_[m], bytes, address);
    if (other == Step::kOk || step != Step::kRestart) step = other;
  }
  co_return step;
}

}  // namespace kvs
