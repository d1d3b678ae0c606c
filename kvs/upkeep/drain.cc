// Empties a memory node, so that it can be stopped. Nobody takes memory there any more, its subtables are replaced by
// copies elsewhere, and its chunks are emptied as the mover empties any chunk. The drain goes on in rounds. Each is a
// round of the mover, so that others that need memory have their turn. docs/protocol.md, "Draining a memory node", says
// why nothing is there in the end.
#include <algorithm>
#include <string>

#include "kvs/memory/mutation.h"
#include "kvs/memory/remote_pool.h"
#include "kvs/upkeep/mover.h"
#include "kvs/upkeep/upkeep.h"

namespace kvs {
namespace {

// The time between two rounds, so that other movers have their turn.
constexpr int64_t kBetweenRoundsNs = 3 * kMaxLookNs / 2;
// How many subtables are moved in one round, so that rounds end.
constexpr uint64_t kTablesPerRound = 64;

// For one change of the fabric's record.
krcore::Deadline Soon(const Common& common) { return krcore::Deadline::After(common.clock, 1'000'000'000); }

constexpr GlobalAddress MemberAddress(krcore::NodeId home, krcore::NodeId node) {
  return {home, kMembersOffset + uint64_t{node} * sizeof(uint64_t)};
}

Status CheckDrainable(krcore::NodeId node) {
  if (node != krcore::kNoNode && node <= krcore::kMaxMemoryNode) return Status::Ok();
  return {StatusCode::kInvalidArgument, "a memory node's id is 1 to 255, not " + std::to_string(node)};
}

// CASes the node's word in the member list. *changed: it was `from`; then all clients are told.
Task<Step> ChangeMember(Epochs& epochs, Operation& op, krcore::NodeId node, MemberWord from, MemberState to,
                        bool* changed) {
  uint64_t& old = op.buffers->cas[0];
  op.batch.CompareSwap(MemberAddress(epochs.common.shape.home, node), from.word(), from.Become(to).word(), &old);
  KVS_CO_RETURN_UNLESS_OK(co_await op.batch.Run());
  *changed = old == from.word();
  if (!*changed) co_return Step::kOk;
  co_return co_await epochs.home.Count(op.batch, kMemberChangesOffset, 1, &old);
}

}  // namespace

// ---- one round

Task<Step> Mover::RunDrain(Draining* draining) {
  drain_ = draining;
  Step step = co_await Elect();
  if (step != Step::kOk) co_return step;
  drain_->elected = true;
  step = co_await ClearSlots();
  if (step == Step::kOk) step = co_await MarkDraining();
  bool all_tables = false;
  if (step == Step::kOk && drain_->end == DrainEnd::kGoesOn) step = co_await MoveTables(&all_tables);
  if (step == Step::kOk && drain_->end == DrainEnd::kGoesOn && all_tables) step = co_await EmptyChunks();
  if (!op_.batch.Stale()) {
    co_await GiveBackRoom();
    co_await Resign();
  }
  co_return step;
}

// [Drain 1] As long as the member list says so, nobody takes memory at the node: a client that has announced an epoch
// later than the change has read the list after it.
Task<Step> Mover::MarkDraining() {
  const krcore::NodeId node = drain_->node;
  uint64_t& word = op_.buffers->cas[0];
  for (bool known = false; !known;) {
    op_.batch.Read(MemberAddress(home(), node), &word, sizeof(word));
    KVS_CO_RETURN_UNLESS_OK(co_await op_.batch.Run());
    const MemberWord found(word);
    switch (found.state()) {
      case MemberState::kNone: drain_->end = DrainEnd::kUnknownNode; co_return Step::kOk;
      case MemberState::kDrained:
      case MemberState::kDraining:
        // The mark may be another client's, which may have died before it told the others.
        if (found != drain_->mark) drain_->settled = false;
        drain_->mark = found;
        known = true;
        break;
      case MemberState::kInUse:
        if (drain_->mark != MemberWord()) {
          drain_->end = DrainEnd::kTakenBack;
          drain_->report.closed = false;
          co_return Step::kOk;
        }
        if (!common_.connections.Reach(node)) co_return Step::kUnavailable;
        KVS_CO_RETURN_UNLESS_OK(co_await ChangeMember(epochs_, op_, node, found, MemberState::kDraining, &known));
        if (known) drain_->mark = found.Become(MemberState::kDraining);
        break;
    }
  }
  if (drain_->settled) co_return Step::kOk;
  co_return co_await TellMark();
}

// Returns when all clients know the mark. If that says DRAINED, the drain is done.
Task<Step> Mover::TellMark() {
  KVS_CO_RETURN_UNLESS_OK(co_await epochs_.home.Count(op_.batch, kMemberChangesOffset, 1, &op_.buffers->cas[0]));
  co_await maintenance_.MaintainNow();
  Step waited = Step::kOk;
  if (!Mutated(Mutation::kDrainUnannounced)) waited = co_await WaitForAll();
  if (waited != Step::kOk) co_return waited;
  // If the node was taken back meanwhile, it may have been filled again.
  uint64_t& word = op_.buffers->cas[0];
  op_.batch.Read(MemberAddress(home(), drain_->node), &word, sizeof(word));
  KVS_CO_RETURN_UNLESS_OK(co_await op_.batch.Run());
  if (MemberWord(word) != drain_->mark) {
    drain_->end = DrainEnd::kTakenBack;
    drain_->report.closed = false;
    co_return Step::kOk;
  }
  drain_->settled = drain_->report.closed = true;
  if (drain_->mark.state() == MemberState::kDrained) drain_->end = DrainEnd::kDone;
  co_return Step::kOk;
}

// ---- subtables

// [Drain 2] Moves the node's subtables. Those that cannot be moved now are left for the next round, and so are those
// beyond kTablesPerRound. *all: each was tried.
Task<Step> Mover::MoveTables(bool* all) {
  *all = false;
  std::vector<uint64_t> entries;
  bool behind = false;  // no pool is mirrored
  KVS_CO_RETURN_UNLESS_OK(co_await ReadDirectory(&entries, &behind));
  const auto lies_there = [this](uint64_t word) {
    const DirectoryEntry entry(word);
    return entry.has_subtable() && entry.subtable().node == drain_->node;
  };
  uint64_t& left = drain_->report.tables_left;
  left = static_cast<uint64_t>(std::count_if(entries.begin(), entries.end(), lies_there));
  under_way_.clear();
  uint64_t moved_here = 0;
  for (uint32_t index = 0; index < entries.size(); ++index) {
    if (DirectoryEntry(entries[index]).merging()) under_way_.push_back(index);
    if (!lies_there(entries[index])) continue;
    if (moved_here == kTablesPerRound) co_return Step::kOk;
    if (OutOfTime()) co_return Step::kFull;
    KVS_CO_RETURN_UNLESS_OK(co_await StayElectedInTime());
    const Step moved = co_await MoveTable(index);
    if (op_.batch.Stale()) co_return Step::kRestart;
    if (moved == Step::kUnavailable) co_return moved;
    found_.no_room |= moved == Step::kFull;
    if (moved != Step::kOk) continue;
    ++drain_->report.tables_moved;
    ++moved_here;
    --left;
    found_.progress = true;
  }
  *all = true;
  if (!under_way_.empty()) co_await FinishUnderWay();
  co_return Step::kOk;
}

// Moves a table, unless this client has another split or merge in the background: the mover must not wait for that.
Task<Step> Mover::MoveTable(uint32_t index) {
  if (table_.workbench.in_background()) co_return Step::kRestart;
  const Workbench::InBackground in_background(table_.workbench);
  co_return co_await Relocate(index);
}

// Moves a table by a merge, which takes its two tables out of use and publishes new ones: a table and its sibling are
// replaced by copies. A table without a sibling of its depth is split first, and then joined with its child. kOk: the
// table of dir[index] lies elsewhere. kRestart: not yet. kFull: there is no room for new tables.
Task<Step> Mover::Relocate(uint32_t index) {
  BeginAnew();
  uint64_t* const scratch = op_.buffers->directory.data();
  TableRef table, sibling;
  KVS_CO_RETURN_UNLESS_OK(co_await table_.directory.ReadEntry(op_.batch, scratch, index, &table));
  if (table.entry.state() != DirectoryState::kNormal) {
    under_way_.push_back(index);
    co_return Step::kRestart;
  }
  if (table.address.node != drain_->node) co_return Step::kOk;  // it was moved with its sibling
  const uint32_t depth = table.entry.depth();
  if (depth > 0) {
    const uint32_t sibling_index = index ^ 1u << (depth - 1);
    KVS_CO_RETURN_UNLESS_OK(co_await table_.directory.ReadEntry(op_.batch, scratch, sibling_index, &sibling));
    if (sibling.entry.state() != DirectoryState::kNormal) {
      under_way_.push_back(sibling_index);
      co_return Step::kRestart;
    }
  }
  const bool is_pair = depth > 0 && sibling.entry.depth() == depth;
  if (!is_pair) KVS_CO_RETURN_UNLESS_OK(co_await table_.splitter.Split(op_, table));
  uint32_t joined = index;
  const Step merged = co_await table_.merger.TryMerge(op_, &joined, is_pair ? MergeFor::kCopies : MergeFor::kJoin);
  if (merged == Step::kUnavailable || merged == Step::kFull) co_return merged;
  KVS_CO_RETURN_UNLESS_OK(co_await table_.directory.ReadEntry(op_.batch, scratch, index, &table));
  co_return table.entry.has_subtable() && table.address.node != drain_->node ? Step::kOk : Step::kRestart;
}

// ---- chunks

// [Drain 3] Chooses chunks of the node, the emptiest first, as many as there are evacuation slots.
void Mover::ChooseAll(const Census& census, const std::map<Chunk, ChunkWord>& chunks) {
  victims_.clear();
  for (const auto& [chunk, word] : chunks) {
    const auto live = census.blocks.find(chunk);
    uint64_t room = 0;
    switch (word.kind()) {
      case ChunkKind::kBlocks: room = live == census.blocks.end() ? 0 : live->second.Needed(); break;
      case ChunkKind::kTables:
        if (census.tables.contains(chunk)) continue;
        break;
      case ChunkKind::kRun: break;  // its copy takes a run, which cannot be taken beforehand
      case ChunkKind::kFree:
      case ChunkKind::kRunRest:
      case ChunkKind::kReserved: continue;
    }
    victims_.push_back({chunk, word});
    victims_.back().room = room;
  }
  std::stable_sort(victims_.begin(), victims_.end(), [](const Victim& a, const Victim& b) { return a.room < b.room; });
  if (victims_.size() > kEvacuationSlots) victims_.resize(kEvacuationSlots);
}

// [Drain 4] Frees chunks of runs whose first chunk is gone: a client died while it took or gave back the run. Nobody
// takes a run here any more, and whoever gave one back has ended or is dead, so the chunks are nobody's.
Task<Step> Mover::FreeOrphans(std::map<Chunk, ChunkWord>* chunks) {
  uint64_t run_ends = 0;
  for (auto& [chunk, word] : *chunks) {
    if (word.kind() == ChunkKind::kRun) run_ends = chunk.second + word.count();
    if (word.kind() != ChunkKind::kRunRest || chunk.second < run_ends) continue;
    uint64_t& old = op_.buffers->cas[0];
    op_.batch.CompareSwap({chunk.first, ChunkWordOffset(chunk.second)}, word.word(), word.Freed().word(), &old);
    KVS_CO_RETURN_UNLESS_OK(co_await op_.batch.Run());
    if (old != word.word()) continue;
    word = word.Freed();
    --drain_->report.chunks_left;
    found_.progress = true;
  }
  co_return Step::kOk;
}

Task<Step> Mover::EmptyChunks() {
  Census census;
  bool valid = false;  // not looked at: the census is an estimate
  KVS_CO_RETURN_UNLESS_OK(co_await Scan(&census, &valid));
  std::map<Chunk, ChunkWord> chunks;
  const krcore::NodeId node = drain_->node;
  KVS_CO_RETURN_UNLESS_OK(co_await ReadChunks(std::span(&node, 1), &chunks));
  if (chunks.empty()) co_return Step::kUnavailable;
  uint64_t& left = drain_->report.chunks_left;
  left = static_cast<uint64_t>(std::count_if(chunks.begin(), chunks.end(), [](const auto& chunk) {
    return chunk.second.kind() != ChunkKind::kFree && chunk.second.kind() != ChunkKind::kReserved;
  }));
  KVS_CO_RETURN_UNLESS_OK(co_await FreeOrphans(&chunks));
  if (left == 0) {
    // [Drain 4] If the mark is still there, nobody has taken a chunk since it was known to all.
    bool unchanged = false;
    KVS_CO_RETURN_UNLESS_OK(co_await ChangeMember(epochs_, op_, node, drain_->mark, MemberState::kDrained, &unchanged));
    if (!unchanged) {
      drain_->end = DrainEnd::kTakenBack;
      drain_->report.closed = false;
      co_return Step::kOk;
    }
    drain_->mark = drain_->mark.Become(MemberState::kDrained);
    drain_->settled = false;
    co_return co_await TellMark();
  }
  ChooseAll(census, chunks);
  const bool any = !victims_.empty();
  size_t fit = 0;
  KVS_CO_RETURN_UNLESS_OK(co_await ClaimRoom(&fit));
  if (epochs_.memory->room_for_copies() == 0) {  // only those that need no room
    const auto needs = [](const Victim& victim) { return victim.room > 0; };
    fit = static_cast<size_t>(std::ranges::find_if(victims_, needs) - victims_.begin());
  }
  victims_.resize(fit);
  found_.no_room |= any && fit == 0;
  Step step = Step::kOk;
  if (fit > 0) step = co_await Evacuate();
  left -= std::min(left, report_->chunks_freed);
  found_.progress |= report_->chunks_freed > 0;
  if (step == Step::kOk && found_.no_room && !found_.progress) drain_->end = DrainEnd::kNoRoom;
  co_return step;
}

// ---- the client's side

Task<void> Drainer::RunRound(int64_t timeout_ms) {
  CompactReport report;
  epochs_.room.waited_for = false;
  Operation& op = epochs_.operations.TakeMover(/*drains=*/true);
  {
    Mover mover(epochs_, table_, maintenance_, compaction_.seen_mover(), op, {.timeout_ms = timeout_ms}, &report);
    draining_->step = co_await mover.RunDrain(draining_.get());
    if (op.batch.Stale()) draining_->step = Step::kRestart;  // expelled: no memory node failed
  }
  draining_->report.blocks_moved += report.blocks_moved;
  draining_->report.bytes_moved += report.bytes_moved;
  ++draining_->report.rounds;
  compaction_.EndMover(report.chunks_freed);
}

Task<Status> Drainer::DrainInRounds(DrainOptions options, DrainReport* report) {
  const int64_t deadline_ns = common_.clock.NowNs() + options.timeout_ms * 1'000'000;
  const std::string name = "memory node " + std::to_string(draining_->node);
  for (;;) {
    while (epochs_.room.running > 0) co_await epochs_.operations.Pause(kLookNs);
    if (epochs_.own_work.closing) co_return Status(StatusCode::kBadState, "the client is closing");
    const int64_t left_ms = (deadline_ns - common_.clock.NowNs()) / 1'000'000;
    if (left_ms <= 0 && draining_->elected) co_return StatusCode::kTimeout;
    if (left_ms <= 0) co_return Status(StatusCode::kExists, "another client gives memory back");
    const uint64_t rounds = draining_->report.rounds;
    RunDetached(RunRound(left_ms), &epochs_.room.running);
    while (draining_->report.rounds == rounds) {
      co_await epochs_.operations.Pause(kLookNs);
      *report = draining_->report;
    }
    *report = draining_->report;
    if (draining_->step == Step::kUnavailable)
      co_return common_.connections.UnavailableStatus("draining a memory node");
    switch (draining_->end) {
      case DrainEnd::kGoesOn: co_await epochs_.operations.Pause(kBetweenRoundsNs); continue;
      case DrainEnd::kDone: co_return Status::Ok();
      case DrainEnd::kUnknownNode: co_return Status(StatusCode::kNotFound, name + " has not joined the store");
      case DrainEnd::kTakenBack: co_return Status(StatusCode::kBadState, name + " was taken back into use");
      case DrainEnd::kNoRoom: break;
    }
    // There may be room after a compaction of the others.
    draining_->end = DrainEnd::kGoesOn;
    CompactReport made;
    const int64_t rest_ms = std::max<int64_t>((deadline_ns - common_.clock.NowNs()) / 1'000'000, 1);
    const Status compacted = co_await compaction_.Compact({.thorough = true, .timeout_ms = rest_ms}, &made);
    if (compacted == StatusCode::kBadState || compacted == StatusCode::kUnavailable) co_return compacted;
    // kExists: another client was the mover, or the run was cut short.
    if (made.chunks_freed > 0 || compacted == StatusCode::kExists) continue;
    const Status given_up = co_await TakeBack(draining_->node);
    if (!given_up.ok()) co_return given_up;
    report->closed = draining_->report.closed = false;
    co_return Status(StatusCode::kOutOfMemory, "the other memory nodes have no room for what is left at " + name);
  }
}

Task<Status> Drainer::Drain(krcore::NodeId node, DrainOptions options, DrainReport* report) {
  *report = {};
  Status status = CheckDrainable(node);
  if (!status.ok()) co_return status;
  if (common_.connections.views() != nullptr) co_return co_await DrainReplica(node, options, report);
  if (node == common_.shape.home) {
    co_return Status(StatusCode::kInvalidArgument,
                     "memory node " + std::to_string(node) + " is the store's home: it holds the directory and stays");
  }
  if (draining_) {
    co_return Status(StatusCode::kExists,
                     "this client is draining memory node " + std::to_string(draining_->node) + " already");
  }
  draining_ = std::make_unique<Draining>();
  draining_->node = node;
  status = co_await DrainInRounds(options, report);
  draining_.reset();
  co_return status;
}

// Where pools are mirrored. The keepers of the memory nodes do it (kvs/client/replica_keeper.cc).
Task<Status> Drainer::DrainReplica(krcore::NodeId node, DrainOptions options, DrainReport* report) {
  const std::string name = "memory node " + std::to_string(node);
  const auto deadline = krcore::Deadline::After(common_.clock, options.timeout_ms * 1'000'000);
  const auto is_it = [node](const Replica& replica) { return replica.node == node; };
  report->mirrored = true;
  for (;; co_await epochs_.operations.Pause(kLookNs)) {
    if (epochs_.own_work.closing) co_return Status(StatusCode::kBadState, "the client is closing");
    if (deadline.Passed(common_.clock)) co_return StatusCode::kTimeout;
    const Result<Configuration> read = ReadConfiguration(common_.node, Soon(common_));
    if (!read.ok()) continue;
    // What is known of an earlier incarnation stays for a moment.
    const auto told = std::ranges::find_if(read->nodes, [&](const MemoryNode& each) {
      return is_it(each.replica) && !IsDead(common_.node, each.replica);
    });
    if (told == read->nodes.end()) {
      const auto has_it = [&](const PoolView& view) { return std::ranges::any_of(view.chain, is_it); };
      if (std::ranges::any_of(read->pools, has_it)) continue;  // it dies, or it returns and has told nothing yet
      if (report->closed) co_return Status(StatusCode::kUnavailable, name + " was stopped");
      co_return Status(StatusCode::kNotFound, name + " has not joined the store");
    }
    if (!told->leaving && report->closed) {
      co_return Status(StatusCode::kBadState, name + " was taken back into use, or started again");
    }
    if (!told->leaving) {
      const Status marked = ChangeConfiguration(common_.node, Soon(common_),
                                                [&](Configuration& next) { return next.SetLeaving(node, true); });
      if (!marked.ok() && marked != StatusCode::kBadState) co_return marked;
      continue;
    }
    report->closed = true;
    const PoolView* const view = read->PoolOf(told->replica);
    report->pool = view != nullptr ? view->pool : 0;
    report->waits = view != nullptr && !view->learner.exists() && view->chain.size() <= read->replicas &&
                    !read->HasSpare(view->bytes);
    if (view == nullptr && read->active) co_return Status::Ok();
  }
}

Task<Status> Drainer::Undrain(krcore::NodeId node) {
  const Status status = CheckDrainable(node);
  if (!status.ok()) co_return status;
  if (common_.connections.views() != nullptr) {
    bool known = false;
    const Status taken = ChangeConfiguration(common_.node, Soon(common_), [&](Configuration& next) {
      known = std::ranges::any_of(next.nodes, [&](const MemoryNode& each) { return each.replica.node == node; });
      return next.SetLeaving(node, false);
    });
    if (!known && taken == StatusCode::kBadState) {
      co_return Status(StatusCode::kNotFound, "memory node " + std::to_string(node) + " has not joined the store");
    }
    co_return taken == StatusCode::kBadState ? Status::Ok() : taken;
  }
  co_return co_await TakeBack(node);
}

Task<Status> Drainer::TakeBack(krcore::NodeId node) {
  Operation& op = co_await epochs_.operations.LeaseOwnOperation();
  const OperationLease lease(epochs_.operations, op);
  for (;; co_await epochs_.operations.BackOff(op)) {
    if (op.attempt > 0 && epochs_.operations.OutOfTime(op)) co_return StatusCode::kTimeout;
    if (op.batch.Stale()) [[unlikely]]
      epochs_.operations.BeginAgain(op);
    uint64_t& word = op.buffers->cas[0];
    op.batch.Read(MemberAddress(common_.shape.home, node), &word, sizeof(word));
    const Outcome read = co_await op.batch.Run();
    if (read == Outcome::kUnavailable) co_return common_.connections.UnavailableStatus("the member list");
    if (read != Outcome::kOk) continue;
    const MemberWord found(word);
    if (found.state() == MemberState::kNone) {
      co_return Status(StatusCode::kNotFound, "memory node " + std::to_string(node) + " has not joined the store");
    }
    if (!common_.connections.Reach(node))
      co_return common_.connections.UnavailableStatus("taking a memory node back into use");
    uint64_t& first_word = op.buffers->cas[1];  // the node may be dead, and nobody has noticed
    op.batch.Read({node, 0}, &first_word, sizeof(first_word));
    const Outcome alive = co_await op.batch.Run();
    if (alive != Outcome::kOk) continue;
    // The client that changed the word may have died before it told the others, so they are told in any case.
    bool changed = false;
    const Step step = co_await ChangeMember(epochs_, op, node, found, MemberState::kInUse, &changed);
    if (Failed(op, step)) co_return common_.connections.UnavailableStatus("the member list");
    if (step == Step::kOk && changed) co_return Status::Ok();
  }
}

}  // namespace kvs
