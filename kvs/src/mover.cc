// The mover: gives memory back by emptying chunks with little in them. When a client begins a run, and what
// it learns from it; how a run is elected, chooses chunks, and goes on from round to round. A round is evacuation.cc.
// Why a chunk that it frees is not in use any more is docs/protocol.md, "Emptying chunks".
#include "kvs/src/mover.h"

#include <algorithm>
#include <memory>

#include "kvs/src/buffers.h"
#include "kvs/src/client_core.h"

namespace kvs {
namespace {

// Live data of a chunk that is emptied, in percent: when it pays, and when asked to be thorough.
constexpr uint64_t kSparsePercent = 50, kNotDensePercent = 85;
// While an operation waits for memory: so long for others' announcements.
constexpr int64_t kAnnouncementLeases = 2;
// Another client may know that what is pinned is younger than the expelled client. It has this part of a lease to try.
constexpr int64_t kPinnedPart = 8;

}  // namespace

// ---- having it run

Operation& ClientCore::MoverOperation() {
  if (!mover_op_) {
    mover_op_ = std::make_unique<Operation>();
    mover_op_->buffers =
        new (arena_->bytes().data() + options_.max_in_flight * sizeof(OperationBuffers)) OperationBuffers;
    mover_op_->batch.Attach(&connections_, arena_->lkey());
    mover_op_->makes_room = true;
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
  room_wanted_ = for_room;
  Operation& op = BeginMover(/*drains=*/false);
  {
    Mover mover(*this, op, options, &last_compaction_);
    last_step_ = co_await mover.Run();
    if (op.batch.Stale()) last_step_ = Step::kRestart;  // expelled: no memory node failed
    if (mover.pinned()) pinned_until_ns_ = clock_.NowNs() + registration_.lease_ns() / kPinnedPart;
    if (last_step_ == Step::kOk && mover.in_vain() && options.thorough) {
      full_until_ns_ = clock_.NowNs() + registration_.lease_ns();
      full_freed_chunks_ = freed_chunks_seen_;
      full_free_bytes_ = memory_->free_bytes();
    }
  }
  EndMover(last_compaction_.chunks_freed);
}

Operation& ClientCore::BeginMover(bool drains) {
  Operation& op = MoverOperation();
  op.in_use = true;
  op.drains = drains;
  op.batch.Renew();
  op.epoch = epoch_;
  op.strangers = 0;
  op.own_ins = 0;
  op.deadline_ns = 0;
  ++stats_.compactions;
  return op;
}

void ClientCore::EndMover(uint64_t chunks_freed) {
  full_nodes_.clear();  // look again: whoever freed a chunk may have died before he told
  mover_op_->in_use = false;
  ++compactions_;
  compact_again_at_ns_ = clock_.NowNs() + (chunks_freed > 0 ? 0 : registration_.lease_ns());
}

Task<Status> ClientCore::CompactAsync(CompactOptions options, CompactReport* report) {
  if (forked()) co_return OpenedBeforeFork();
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
    case Step::kRun: break;  // it has ended
  }
  co_return StatusCode::kInternal;
}

// ---- to be the mover

// The word only avoids double work: every step is right whoever else does it. Who wants room waits for another's run
// only until chunks were freed.
Task<Step> ClientCore::Mover::Elect() {
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
  return client_.room_wanted_ &&
         client_.clock_.NowNs() - begin_ns > kAnnouncementLeases * client_.registration_.lease_ns();
}

bool ClientCore::Mover::OutOfTime() const { return client_.clock_.NowNs() >= deadline_ns_ || client_.closing_; }

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
