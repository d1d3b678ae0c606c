#include "kvs/upkeep/mover.h"

#include <algorithm>
#include <utility>

namespace kvs {
namespace {

// The live data up to which a chunk is emptied, in percent: usually, and in a thorough run.
constexpr uint64_t kSparsePercent = 50, kNotDensePercent = 85;
// How long the mover waits for others' announcements while an operation waits for memory.
constexpr int64_t kAnnouncementLeases = 2;

}  // namespace

// ---- being the mover

// The mover word only avoids double work: every step is right whoever else does it. A client that wants room waits for
// another's run only until chunks were freed.
Task<Step> Mover::Elect() {
  token_ = MoverWord::Make(epochs_.registrar.client_index(), common_.node.incarnation(),
                           static_cast<uint32_t>(common_.random()));
  const uint64_t freed = epochs_.home.freed_chunks_seen();
  uint64_t& old = op_.buffers->cas[0];
  uint64_t expected = 0;
  int64_t look_ns = kLookNs;
  for (;;) {
    op_.batch.CompareSwap({home(), kMoverOffset}, expected, token_.word(), &old);
    KVS_CO_RETURN_UNLESS_OK(co_await op_.batch.Run());
    const uint64_t found = old;
    if (found == expected) co_return Step::kOk;
    expected = 0;
    if (OutOfTime() || (epochs_.room.waited_for && epochs_.home.freed_chunks_seen() != freed)) co_return Step::kRestart;
    if (found == 0) continue;
    bool stopped = false;
    KVS_CO_RETURN_UNLESS_OK(co_await LookAtMover(MoverWord(found), &stopped));
    if (stopped) {
      expected = found;
      continue;
    }
    co_await Wait(look_ns);
    look_ns = NextLook(look_ns);
  }
}

// Finds out whether the client that wrote this word has stopped. It has if it is dead, has gone, or has not changed the
// word for two leases; a running mover changes it more often.
Task<Step> Mover::LookAtMover(MoverWord word, bool* stopped) {
  const int64_t now_ns = common_.clock.NowNs();
  const int64_t lease_ns = common_.shape.lease_ns;
  if (word.word() != seen_.word.word()) {
    seen_ = {word, now_ns, now_ns + lease_ns / 64};
    ++epochs_.room.others_turns;
  }
  *stopped = now_ns - seen_.since_ns > 2 * lease_ns;
  if (*stopped || now_ns < seen_.ask_at_ns) co_return Step::kOk;
  seen_.ask_at_ns = now_ns + lease_ns / 8;
  uint64_t& entry = op_.buffers->cas[0];
  op_.batch.Read({home(), EntryOffset(word.client()) + offsetof(ClientEntry, owner)}, &entry, sizeof(entry));
  KVS_CO_RETURN_UNLESS_OK(co_await op_.batch.Run());
  const OwnerWord owner(entry);
  *stopped = !owner.held() || owner.incarnation() != word.incarnation() || IsDead(common_.node, owner);
  co_return Step::kOk;
}

Task<Step> Mover::StayElected() {
  uint64_t& old = op_.buffers->cas[0];
  const MoverWord next = token_.NextTurn();
  op_.batch.CompareSwap({home(), kMoverOffset}, token_.word(), next.word(), &old);
  KVS_CO_RETURN_UNLESS_OK(co_await op_.batch.Run());
  if (old != token_.word()) co_return Step::kRestart;  // taken over
  token_ = next;
  stay_at_ns_ = common_.clock.NowNs() + common_.shape.lease_ns / 4;
  co_return Step::kOk;
}

// Changes the word in time: another client takes over if it does not see the word change for two leases.
Task<Step> Mover::StayElectedInTime() {
  if (common_.clock.NowNs() < stay_at_ns_) co_return Step::kOk;
  co_return co_await StayElected();
}

Task<void> Mover::Resign() {
  op_.batch.CompareSwap({home(), kMoverOffset}, token_.word(), 0, &op_.buffers->cas[0]);
  (void)co_await op_.batch.Run();
}

// Forgets what was learnt, needs nothing any more that was written, and goes on with the present epoch and view.
void Mover::BeginAnew() {
  op_.epoch = epochs_.home.epoch();
  op_.strangers = 0;
  op_.batch.RenewView();
}

Task<void> Mover::Wait(int64_t ns) {
  BeginAnew();
  co_await epochs_.operations.Pause(ns);
  BeginAnew();
}

// Every client that is polled announces four times a lease. The epoch advances after one announcement of each, the next
// epoch is announced by another, and this client sees that at its own. That takes well below a lease, unless clients
// pause now and then. A wait that is much longer is for a client that has stopped.
bool Mover::OutOfPatience(int64_t begin_ns) const {
  return epochs_.room.waited_for && common_.clock.NowNs() - begin_ns > kAnnouncementLeases * common_.shape.lease_ns;
}

bool Mover::OutOfTime() const { return common_.clock.NowNs() >= deadline_ns_ || epochs_.own_work.closing; }

// ---- which chunks

Task<Step> Mover::ReadChunks(std::span<const krcore::NodeId> nodes, std::map<Chunk, ChunkWord>* chunks) {
  const auto* const words = reinterpret_cast<const ChunkWord*>(op_.buffers->match.data());
  constexpr uint64_t kWindow = kMatchBytes / sizeof(ChunkWord);
  for (const krcore::NodeId node : nodes) {
    if (!common_.connections.Reach(node)) continue;  // what is there stays
    const uint64_t count = common_.connections.PoolBytes(node) / common_.shape.chunk_bytes;
    const uint64_t epoch = epochs_.home.epoch();
    for (uint64_t begin = 0; begin < count; begin += kWindow) {
      const uint64_t window = std::min(kWindow, count - begin);
      op_.batch.Read({node, ChunkWordOffset(begin)}, op_.buffers->match.data(),
                     static_cast<uint32_t>(window * sizeof(ChunkWord)));
      KVS_CO_RETURN_UNLESS_OK(co_await op_.batch.Run());
      common_.store.chunk_ages.Saw(node, begin, {words, window}, epoch);
      for (uint64_t i = 0; i < window; ++i)
        chunks->insert_or_assign({node, static_cast<uint32_t>(begin + i)}, words[i]);
    }
  }
  co_return Step::kOk;
}

// Returns the room for copies, in bytes. Others take chunks meanwhile, so only those count that they may not take.
uint64_t Mover::FreeForCopies(const std::map<Chunk, ChunkWord>& chunks) const {
  struct Count {
    uint64_t usable = 0, free = 0;
  };
  std::map<krcore::NodeId, Count> of_node;
  for (const auto& [chunk, word] : chunks) {
    Count& count = of_node[chunk.first];
    count.usable += word.kind() != ChunkKind::kReserved;
    count.free += word.kind() == ChunkKind::kFree;
  }
  uint64_t room = epochs_.memory->room_for_copies();
  for (const auto& [node, count] : of_node) {
    const uint64_t kept = ChunksKeptForMover(count.usable);
    room += (kept > 0 ? std::min(count.free, kept) : count.free) * common_.shape.chunk_bytes;
  }
  return room;
}

// Takes the chunks that the copies need before anything is moved, because a chunk that is emptied in part uses up room
// and frees nothing. *fit: for how many victims, the emptiest ones, there is room.
Task<Step> Mover::ClaimRoom(size_t* fit) {
  *fit = victims_.size();
  uint64_t needed = 0;
  for (const Victim& victim : victims_) needed += victim.room;
  const auto room = [this] { return epochs_.memory->room_for_copies(); };
  const std::vector<krcore::NodeId> nodes = epochs_.home.members();  // which may change meanwhile
  for (const krcore::NodeId node : nodes) {
    if (!common_.connections.HasPool(node)) continue;
    Step taken = Step::kOk;
    while (taken == Step::kOk && room() < needed) {
      Span chunk;
      taken = co_await epochs_.chunks.TakeChunks(op_, node, ChunkKind::kBlocks, 1, kUnitsOfCut, &chunk);
      if (op_.batch.Stale()) co_return Step::kRestart;
      if (taken == Step::kOk) epochs_.memory->AddChunkForCopies(node, chunk.chunk, chunk.generation);
    }
  }
  if (room() == 0) co_return Step::kOk;
  while (needed > room() && *fit > 0) needed -= victims_[--*fit].room;
  co_return Step::kOk;
}

Task<void> Mover::GiveBackRoom() {
  for (const MemoryState::Chunk& unused : epochs_.memory->EndCopies()) {
    const ChunkWord before = ChunkWord::Make(ChunkKind::kFree, 0, unused.generation);
    const Step released = co_await epochs_.chunks.ReleaseChunks(op_.batch, op_.buffers->cas, unused.node, unused.chunk,
                                                                std::span(&before, 1), ChunkKind::kBlocks, kUnitsOfCut);
    if (released != Step::kOk || op_.batch.Stale()) co_return;  // found by sweeping
    if (report_->chunks_freed == 0) continue;  // nothing gained: operations that wait must not see progress
    (void)co_await epochs_.home.Count(op_.batch, kFreedChunksOffset, 1, &op_.buffers->cas[0]);
  }
}

// Chooses the emptiest chunks, as many as there is room for elsewhere.
void Mover::Choose(const Census& census, const std::map<Chunk, ChunkWord>& chunks) {
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
        // Leave out those that this client is filling.
        if (live.bytes * 100 <
                (thorough_ ? common_.shape.chunk_bytes : word.cut_bytes(common_.shape.chunk_bytes)) * percent &&
            !epochs_.memory->IsOpen(chunk.first, chunk.second)) {
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
    const bool known = std::ranges::any_of(maintenance_.expelled_epochs(), knows);
    found_.pinned |= known;
    if (!known && !given_up_.contains(chunk)) continue;  // one that was given up is not tried again
    candidates.pop_back();
    ++left_alone;
  }
  report_->chunks_left = left_alone + candidates.size();
  std::sort(candidates.begin(), candidates.end(),
            [](const Candidate& a, const Candidate& b) { return a.live.bytes < b.live.bytes; });
  uint64_t room = FreeForCopies(chunks);
  size_t most = kEvacuationSlots;
  if (room == 0) {
    // Free blocks must do. Those of chunks that are being emptied are lost, whether that succeeds or not. So half of
    // the chunks keep theirs.
    room = epochs_.memory->free_bytes() / 2;
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

// Merges subtables that have few keys. True: some were joined.
Task<bool> Mover::MergeSparse(const Census& census) {
  bool merged = false;
  for (uint32_t index : census.sparse) {
    if (OutOfTime() || table_.workbench.in_background()) break;
    const Workbench::InBackground in_background(table_.workbench);
    Step joined = Step::kOk;
    while (joined == Step::kOk && !OutOfTime()) {
      BeginAnew();
      joined = co_await table_.merger.TryMerge(op_, &index);
      if (joined != Step::kOk) break;
      ++report_->tables_merged;
      merged = true;
    }
  }
  co_return merged;
}

// Moves empty pairs of subtables to where a new one of their lower index would lie, now that there are more
// memory nodes than at the beginning. True: some were moved.
Task<bool> Mover::SpreadEmpty(const Census& census) {
  const std::vector<krcore::NodeId> members = epochs_.home.members();  // which may change meanwhile
  bool moved = false;
  if (common_.shape.initial_depth == 0) co_return moved;
  const uint32_t child_bit = 1u << (common_.shape.initial_depth - 1);
  for (const auto& [child, at] : census.empty) {
    const uint32_t parent = child & ~child_bit;
    const auto sibling = census.empty.find(parent);
    if (child == parent || sibling == census.empty.end()) continue;
    const krcore::NodeId place = members[parent % members.size()];
    if ((at == place && sibling->second == place) || !common_.connections.HasPool(place)) continue;
    if (OutOfTime() || table_.workbench.in_background()) continue;
    const Workbench::InBackground in_background(table_.workbench);
    BeginAnew();
    uint32_t index = child;
    const uint64_t replacements = common_.stats.table_replacements;
    (void)co_await table_.merger.TryMerge(op_, &index, MergeFor::kCopies);
    if (common_.stats.table_replacements == replacements) continue;
    ++report_->pairs_spread;
    moved = true;
  }
  co_return moved;
}

Task<Step> Mover::Run() {
  Step step = co_await Elect();
  if (step != Step::kOk) co_return step;
  step = co_await ClearSlots();
  bool merged = true, spread = false;
  uint64_t most_free = 0;
  int unfinished = 0;
  while (step == Step::kOk && !OutOfTime()) {
    Census census;
    bool valid = false;
    step = co_await Scan(&census, &valid);
    if (step != Step::kOk) break;
    if ((!valid || !under_way_.empty()) && ++unfinished < kInvalidScans / 4) {
      co_await FinishUnderWay();
      if (unfinished < 4) continue;
    }
    if (merged) {
      merged = co_await MergeSparse(census);
      // Where there is no room for a table at its place, it gets another one. So this is tried once.
      if (!std::exchange(spread, true)) {
        const bool moved = co_await SpreadEmpty(census);
        merged = merged || moved;
      }
      if (merged) continue;  // scan again, now that there are fewer subtables, or other ones
    }
    std::map<Chunk, ChunkWord> chunks;
    const std::vector<krcore::NodeId> nodes = epochs_.home.members();  // which may change meanwhile
    step = co_await ReadChunks(nodes, &chunks);
    if (step != Step::kOk) break;
    // Chunks that others take are sparse at first. So the run goes on only while each round leaves more free ones.
    const uint64_t free = static_cast<uint64_t>(std::count_if(
        chunks.begin(), chunks.end(), [](const auto& chunk) { return chunk.second.kind() == ChunkKind::kFree; }));
    const bool goes_on = free > most_free || most_free == 0;
    most_free = std::max<uint64_t>(free, 1);
    size_t fit = 0;
    if (goes_on) {
      Choose(census, chunks);
      scarce_ = free < victims_.size();
      step = co_await ClaimRoom(&fit);
      if (step != Step::kOk) break;
    }
    found_.no_room |= fit < victims_.size();
    victims_.resize(fit);
    if (victims_.empty()) {
      const bool gained = report_->chunks_freed > 0 || report_->tables_merged > 0;
      // What was given up for lack of room stays where it is until there is room.
      found_.in_vain = valid && !gained && !found_.pinned && (given_up_.empty() || found_.no_room);
      break;
    }
    step = co_await Evacuate();
    merged = true;
  }
  if (!op_.batch.Stale()) {
    co_await GiveBackRoom();
    co_await Resign();
  }
  co_return step == Step::kOk&& common_.clock.NowNs() >= deadline_ns_ ? Step::kFull : step;
}

}  // namespace kvs
