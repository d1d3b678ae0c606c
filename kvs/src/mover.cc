// The mover: gives memory back by emptying chunks with little in them. How it becomes the mover, finds what there is
// and where, and goes on from round to round; a round is evacuation.cc. Why a chunk that it frees is not in use any
// more is docs/protocol.md, "Emptying chunks"; the step numbers are those there.
#include "kvs/src/mover.h"

#include <algorithm>
#include <cstring>

#include "kvs/src/epoch_buffers.h"
#include "kvs/src/mutation.h"
#include "kvs/src/run_detached.h"

namespace kvs {
namespace {

constexpr uint64_t kEpochOffset = kHomeAreaOffset + offsetof(HomeArea, epoch);
constexpr uint64_t kFreedChunksOffset =
    kHomeAreaOffset + offsetof(HomeArea, counters) + offsetof(HomeCounters, freed_chunks);
constexpr uint64_t kMoverOffset = kHomeAreaOffset + offsetof(HomeArea, mover);
// Live data of a chunk that is emptied, in percent: when it pays, and when asked to be thorough.
constexpr uint64_t kSparsePercent = 50, kNotDensePercent = 85;
// Of a subtable's slots, beside its sibling's: what may be merged.
constexpr uint64_t kSparseTablePercent = 20;
// While an operation waits for memory: so long for others' announcements.
constexpr int64_t kPatienceLeases = 2;

}  // namespace

// ---- to be the mover

// The word only avoids double work: every step is right whoever else does it. Who wants room waits for another's run
// only until chunks were freed.
Task<Step> ClientCore::Mover::Elect() {
  if (!client_.connections_.Reach(home_)) co_return Step::kUnavailable;
  token_ =
      MoverWord::Make(client_.client_index_, client_.node_.incarnation(), static_cast<uint32_t>(client_.random_()));
  const uint64_t freed = client_.freed_chunks_seen_;
  uint64_t& old = op_.buffers->cas[0];
  uint64_t expected = 0;
  int64_t look_ns = kLookNs;
  for (;;) {
    op_.batch.CompareSwap({home_, kMoverOffset}, expected, token_.word(), &old);
    const Outcome swapped = co_await op_.batch.Run();
    if (swapped != Outcome::kOk) co_return Step::kUnavailable;
    const uint64_t found = old;
    if (found == expected) co_return Step::kOk;
    expected = 0;
    if (OutOfTime() || (client_.room_wanted_ && client_.freed_chunks_seen_ != freed)) co_return Step::kRestart;
    if (found == 0) continue;
    bool stopped = false;
    const Step looked = co_await LookAtMover(MoverWord(found), &stopped);
    if (looked != Step::kOk) co_return looked;
    if (stopped) {
      expected = found;
      continue;
    }
    co_await Wait(look_ns);
    look_ns = NextLook(look_ns);
  }
}

// Another client's word: has whoever wrote it stopped? He is dead or has gone; or he has not changed it for two leases,
// which he does as he goes on.
Task<Step> ClientCore::Mover::LookAtMover(MoverWord word, bool* stopped) {
  const int64_t now_ns = client_.clock_.NowNs();
  const int64_t lease_ns = client_.registration_.lease_ns();
  SeenMover& seen = client_.seen_mover_;
  if (word.word() != seen.word.word()) seen = {word, now_ns, now_ns + lease_ns / 64, seen.changes + 1};
  *stopped = now_ns - seen.since_ns > 2 * lease_ns;
  if (*stopped || now_ns < seen.ask_at_ns) co_return Step::kOk;
  seen.ask_at_ns = now_ns + lease_ns / 8;
  uint64_t& owner = op_.buffers->cas[0];
  op_.batch.Read({home_, EntryOffset(word.client()) + offsetof(ClientEntry, owner)}, &owner, sizeof(owner));
  const Outcome read = co_await op_.batch.Run();
  if (read != Outcome::kOk) co_return Step::kUnavailable;
  *stopped = static_cast<uint32_t>(owner) != word.incarnation() || client_.IsDead(owner);
  co_return Step::kOk;
}

Task<Step> ClientCore::Mover::StayElected() {
  uint64_t& old = op_.buffers->cas[0];
  const MoverWord next = token_.NextTurn();
  op_.batch.CompareSwap({home_, kMoverOffset}, token_.word(), next.word(), &old);
  const Outcome swapped = co_await op_.batch.Run();
  if (swapped != Outcome::kOk) co_return Step::kUnavailable;
  if (old != token_.word()) co_return Step::kRestart;  // taken over
  token_ = next;
  stay_at_ns_ = client_.clock_.NowNs() + client_.registration_.lease_ns() / 4;
  co_return Step::kOk;
}

// Somebody who does not see the word change for two leases takes over.
Task<Step> ClientCore::Mover::StayElectedInTime() {
  if (client_.clock_.NowNs() < stay_at_ns_) co_return Step::kOk;
  co_return co_await StayElected();
}

Task<void> ClientCore::Mover::Resign() {
  op_.batch.CompareSwap({home_, kMoverOffset}, token_.word(), 0, &op_.buffers->cas[0]);
  (void)co_await op_.batch.Run();
}

// Holds no address meanwhile.
Task<void> ClientCore::Mover::Wait(int64_t ns) {
  op_.epoch = client_.epoch_;
  op_.strangers = 0;
  co_await client_.Pause(ns);
  op_.epoch = client_.epoch_;
}

// Everybody who is polled announces four times a lease. That the epoch goes on takes one announcement of each, that
// they announce the next one takes another, and this client sees that at its own: well below a lease, unless they pause
// now and then. Who waits for much longer waits for one who has stopped.
bool ClientCore::Mover::OutOfPatience(int64_t begin_ns) const {
  return client_.room_wanted_ && client_.clock_.NowNs() - begin_ns > kPatienceLeases * client_.registration_.lease_ns();
}

bool ClientCore::Mover::OutOfTime() const { return client_.clock_.NowNs() >= deadline_ns_ || client_.closing_; }

// ---- (2), (4) waiting

// A client that was expelled and had announced this epoch knows what was made up to one epoch later. Is the chunk that
// old, or may it be?
bool ClientCore::Mover::MayKnow(uint64_t announced, Chunk chunk, ChunkWord word) const {
  if (Mutated(Mutation::kExpelledUnawaited)) return false;
  return !client_.store_.chunk_ages().IsYounger(chunk.first, chunk.second, word, announced + 2);
}

// Have all announced an epoch beyond this one: the living, and those expelled ones that may know one of the victims?
// Without victims: all expelled ones.
bool ClientCore::Mover::AllAnnounced(uint64_t epoch, std::span<const Victim> victims) const {
  if (client_.announced_by_living_ <= epoch) return false;
  return std::all_of(client_.expelled_epochs_.begin(), client_.expelled_epochs_.end(), [&](uint64_t announced) {
    return announced > epoch || (!victims.empty() && std::none_of(victims.begin(), victims.end(), [&](const Victim& v) {
             return MayKnow(announced, v.chunk, v.word);
           }));
  });
}

// Until all clients, expelled ones too, have announced an epoch beyond the one that is read now: whatever they began
// before has ended. Of the victims alone: but for those that are expelled and can know none of them. kFull: not in
// time.
Task<Step> ClientCore::Mover::WaitForAll(std::span<const Victim> victims) {
  uint64_t& epoch = op_.buffers->cas[0];
  op_.batch.Read({home_, kEpochOffset}, &epoch, sizeof(epoch));
  const Outcome read = co_await op_.batch.Run();
  if (read != Outcome::kOk) co_return Step::kUnavailable;
  const uint64_t passed = epoch;
  const int64_t begin_ns = client_.clock_.NowNs();
  int64_t look_ns = kLookNs;
  while (!AllAnnounced(passed, victims)) {
    if (OutOfTime() || OutOfPatience(begin_ns)) co_return Step::kFull;
    if (!victims.empty() && !op_.drains && client_.announced_by_living_ > passed) {
      pinned_ = true;  // by a client that was expelled meanwhile, until it goes
      co_return Step::kFull;
    }
    if (op_.batch.Stale()) co_return Step::kRestart;
    const Step elected = co_await StayElectedInTime();
    if (elected != Step::kOk) co_return elected;
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
    if (!client_.AllocateLarge(std::max<uint64_t>(bytes, client_.geometry_.bytes()), &image_)) {
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
    if (OutOfTime()) co_return Step::kFull;
    const Step elected_still = co_await StayElectedInTime();
    if (elected_still != Step::kOk) co_return elected_still;
    const Step visited = co_await VisitTable(index, entry, census);
    still &= visited != Step::kRestart;
    if (visited != Step::kOk && visited != Step::kRestart) co_return visited;
  }
  const Step read_after = co_await ReadDirectory(&after);
  if (read_after != Step::kOk) co_return read_after;
  *valid = (still && before == after) || Mutated(Mutation::kScanUnchecked);
  co_return op_.batch.Stale() ? Step::kRestart : Step::kOk;
}

// kRestart: the directory does not name the table any more.
Task<Step> ClientCore::Mover::VisitTable(uint32_t index, DirectoryEntry entry, Census* census) {
  const SubtableGeometry& geometry = client_.geometry_;
  const GlobalAddress table = entry.subtable();
  if (!client_.connections_.Reach(table.node)) co_return Step::kUnavailable;
  // Nothing is held from one table to the next. So what the directory named under an earlier epoch may have been
  // retired and be something else by now; but what it names under this one stays what it is.
  op_.epoch = client_.epoch_;
  uint64_t& named = op_.buffers->directory[0];
  op_.batch.Read(client_.DirectoryAddress(index), &named, sizeof(named));
  op_.batch.Read(table, image_.memory.get(), static_cast<uint32_t>(geometry.bytes()), image_.region->lkey());
  const Outcome read = co_await op_.batch.Run();
  if (read != Outcome::kOk) co_return Step::kUnavailable;
  if (named != entry.word()) co_return Step::kRestart;
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
    if (client_.closing_) co_return Step::kFull;
    const GlobalAddress block = slot.block();
    if (census != nullptr) {
      uint64_t bytes = uint64_t{slot.length_units()} * kUnitBytes;
      if (slot.length_units() == kLargeBlock) {
        const Step sized = co_await ReadLength(block, &bytes);
        if (sized != Step::kOk) co_return sized;
        bytes = RoundBlockBytes(bytes, client_.chunk_bytes_);
      }
      // Behind a copy the rest of a chunk may be too small for the next one, which leaves out less than its own size.
      Blocks& blocks = census->blocks[ChunkOf(block)];
      blocks.bytes += bytes;
      blocks.room += bytes > client_.chunk_bytes_ / kSmallBlocks ? 2 * bytes : bytes;
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
    no_room_ |= moved == Step::kFull;
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
    if (!client_.AllocateLarge(content_bytes, &op_.large_write)) co_return Step::kFull;
    local = {op_.large_write.memory.get(), content_bytes};
    lkey = op_.large_write.region->lkey();
  }
  // Before memory is allocated, which uses the buffer that holds the block.
  BuildBlock(local, block.header().hash, copy.birth, block.key(), block.value());
  // Of chunks of its own: room that is made must not be used up before it is enough.
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

Task<Step> ClientCore::Mover::ReadChunks(std::span<const krcore::NodeId> nodes, std::map<Chunk, ChunkWord>* chunks) {
  const auto* const words = reinterpret_cast<const ChunkWord*>(op_.buffers->match.data());
  constexpr uint64_t kWindow = kMatchBytes / sizeof(ChunkWord);
  for (const krcore::NodeId node : nodes) {
    if (!client_.connections_.Reach(node)) continue;  // what it has stays
    const uint64_t count = client_.connections_.PoolBytes(node) / client_.chunk_bytes_;
    const uint64_t epoch = client_.epoch_;
    for (uint64_t begin = 0; begin < count; begin += kWindow) {
      const uint64_t window = std::min(kWindow, count - begin);
      op_.batch.Read({node, ChunkWordOffset(begin)}, op_.buffers->match.data(),
                     static_cast<uint32_t>(window * sizeof(ChunkWord)));
      const Outcome read = co_await op_.batch.Run();
      if (read != Outcome::kOk) co_return Step::kUnavailable;
      client_.store_.chunk_ages().Saw(node, begin, {words, window}, epoch);
      for (uint64_t i = 0; i < window; ++i)
        chunks->insert_or_assign({node, static_cast<uint32_t>(begin + i)}, words[i]);
    }
  }
  co_return Step::kOk;
}

// In bytes, of chunks, while others take some: those that they may not take.
uint64_t ClientCore::Mover::FreeForCopies(const std::map<Chunk, ChunkWord>& chunks) const {
  struct Count {
    uint64_t usable = 0, free = 0;
  };
  std::map<krcore::NodeId, Count> of_node;
  for (const auto& [chunk, word] : chunks) {
    Count& count = of_node[chunk.first];
    count.usable += word.kind() != ChunkKind::kReserved;
    count.free += word.kind() == ChunkKind::kFree;
  }
  uint64_t room = client_.memory_->room_for_copies();
  for (const auto& [node, count] : of_node) {
    const uint64_t kept = ChunksKeptForMover(count.usable);
    room += (kept > 0 ? std::min(count.free, kept) : count.free) * client_.chunk_bytes_;
  }
  return room;
}

// Takes the chunks that the copies need before anything is moved: what is moved in part only has used up room and frees
// nothing. *fit: for so many victims there is room, the emptiest.
Task<Step> ClientCore::Mover::ClaimRoom(size_t* fit) {
  *fit = victims_.size();
  uint64_t needed = 0;
  for (const Victim& victim : victims_) needed += victim.room;
  const auto room = [this] { return client_.memory_->room_for_copies(); };
  const std::vector<krcore::NodeId> nodes = client_.members_;  // which may change meanwhile
  for (const krcore::NodeId node : nodes) {
    Step taken = Step::kOk;
    while (taken == Step::kOk && room() < needed) {
      Span chunk;
      taken = co_await client_.TakeChunks(op_, node, ChunkKind::kBlocks, 1, kUnitsOfCut, &chunk);
      if (op_.batch.Stale()) co_return Step::kRestart;
      if (taken == Step::kOk) client_.memory_->AddChunkForCopies(node, chunk.chunk, chunk.generation);
    }
  }
  if (room() == 0) co_return Step::kOk;
  while (needed > room() && *fit > 0) needed -= victims_[--*fit].room;
  co_return Step::kOk;
}

Task<void> ClientCore::Mover::GiveBackRoom() {
  for (const MemoryState::Chunk& unused : client_.memory_->EndCopies()) {
    const ChunkWord before = ChunkWord::Make(ChunkKind::kFree, 0, unused.generation);
    const Step released = co_await client_.ReleaseChunks(op_.batch, op_.buffers->cas, unused.node, unused.chunk,
                                                         std::span(&before, 1), ChunkKind::kBlocks, kUnitsOfCut);
    if (released != Step::kOk || op_.batch.Stale()) co_return;  // found by sweeping
    if (report_->chunks_freed == 0) continue;  // no more than there was: who waits must not take it for progress
    op_.batch.FetchAdd({home_, kFreedChunksOffset}, 1, &op_.buffers->cas[0]);
    (void)co_await op_.batch.Run();
  }
}

// The emptiest ones, as many as there is room for elsewhere.
void ClientCore::Mover::Choose(const Census& census, const std::map<Chunk, ChunkWord>& chunks) {
  struct Candidate {
    Blocks live;
    Victim victim;
  };
  std::vector<Candidate> candidates;
  uint64_t left_alone = 0;
  const uint64_t percent = thorough_ ? kNotDensePercent : kSparsePercent;
  for (const auto& [chunk, word] : chunks) {
    const auto found = census.blocks.find(chunk);
    const Blocks live = found == census.blocks.end() ? Blocks{} : found->second;
    const size_t before = candidates.size();
    switch (word.kind()) {
      case ChunkKind::kBlocks:
        // Not those that this client is filling.
        if (live.bytes * 100 < (thorough_ ? client_.chunk_bytes_ : word.cut_bytes(client_.chunk_bytes_)) * percent &&
            !client_.memory_->IsOpen(chunk.first, chunk.second)) {
          candidates.push_back({live, {chunk, word}});
        }
        break;
      case ChunkKind::kTables:
        if (!census.tables.contains(chunk)) candidates.push_back({{}, {chunk, word}});
        break;
      case ChunkKind::kRun:
        if (live.bytes == 0) candidates.push_back({{}, {chunk, word}});
        break;
      case ChunkKind::kFree:
      case ChunkKind::kRunRest:
      case ChunkKind::kReserved: break;
    }
    if (candidates.size() == before) continue;
    const auto knows = [this, of = chunk, now = word](uint64_t announced) { return MayKnow(announced, of, now); };
    const bool known = std::ranges::any_of(client_.expelled_epochs_, knows);
    pinned_ |= known;
    if (!known && !given_up_.contains(chunk)) continue;  // not a second time what came to nothing
    candidates.pop_back();
    ++left_alone;
  }
  report_->chunks_left = left_alone + candidates.size();
  std::sort(candidates.begin(), candidates.end(),
            [](const Candidate& a, const Candidate& b) { return a.live.bytes < b.live.bytes; });
  uint64_t room = FreeForCopies(chunks);
  size_t most = kEvacuationSlots;
  if (room == 0) {
    // Free blocks must do. Those of chunks that are being emptied are nobody's, whatever becomes of that: half of the
    // chunks keep theirs.
    room = client_.memory_->free_bytes() / 2;
    most = std::clamp<size_t>(candidates.size() / 2, 1, most);
  }
  victims_.clear();
  for (const Candidate& candidate : candidates) {
    const uint64_t needed = candidate.live.Needed();
    if (victims_.size() == most || needed > room) break;
    room -= needed;
    victims_.push_back(candidate.victim);
    victims_.back().room = needed;
  }
}

// ---- all of it

// Subtables that have few keys. True: some were joined.
Task<bool> ClientCore::Mover::MergeSparse(const Census& census) {
  bool merged = false;
  for (uint32_t index : census.sparse) {
    if (OutOfTime() || client_.restructuring_ > 0) break;
    ++client_.restructuring_;
    Step joined = Step::kOk;
    while (joined == Step::kOk && !OutOfTime()) {
      op_.epoch = client_.epoch_;
      joined = co_await client_.TryMerge(op_, &index);
      if (joined != Step::kOk) break;
      ++report_->tables_merged;
      merged = true;
    }
    --client_.restructuring_;
  }
  co_return merged;
}

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
    if (merged) {
      merged = co_await MergeSparse(census);
      if (merged) continue;  // once more, of the smaller table
    }
    std::map<Chunk, ChunkWord> chunks;
    const std::vector<krcore::NodeId> nodes = client_.members_;  // which may change meanwhile
    step = co_await ReadChunks(nodes, &chunks);
    if (step != Step::kOk) break;
    // Others take chunks that are sparse at first: what counts is that there are more free ones after each round.
    const uint64_t free = static_cast<uint64_t>(std::count_if(
        chunks.begin(), chunks.end(), [](const auto& chunk) { return chunk.second.kind() == ChunkKind::kFree; }));
    if (free <= most_free && most_free > 0) break;
    most_free = std::max<uint64_t>(free, 1);
    Choose(census, chunks);
    if (victims_.empty()) {
      in_vain_ = valid && given_up_.empty() && !pinned_ && report_->chunks_freed == 0 && report_->tables_merged == 0;
      break;
    }
    scarce_ = free < victims_.size();
    size_t fit = 0;
    step = co_await ClaimRoom(&fit);
    victims_.resize(fit);
    if (step != Step::kOk || victims_.empty()) break;
    step = co_await Evacuate();
    merged = true;
  }
  if (!op_.batch.Stale()) {
    co_await GiveBackRoom();
    co_await Resign();
  }
  co_return step == Step::kOk&& client_.clock_.NowNs() >= deadline_ns_ ? Step::kFull : step;
}

}  // namespace kvs
