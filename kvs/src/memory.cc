// Memory: blocks and subtables, and the epochs that say when they may be reused. Why reuse is safe is docs/protocol.md,
// "Epochs".
#include <algorithm>

#include "kvs/src/buffers.h"
#include "kvs/src/client_core.h"
#include "kvs/src/mutation.h"
#include "kvs/src/store_core.h"

namespace kvs {
namespace {

// So long an operation waits for what its own client had retired alone: others' rounds of maintenance, that is.
constexpr int64_t kOwnPartOfLease = 8;
// So long an operation waits for memory while nothing changes. Longer than it takes to expel a client that has stopped,
// and to take over from a mover that has.
constexpr int64_t kPatienceLeases = 4;
// So long it waits in all: several that wait become movers in turn and give room back to each other, which looks like
// progress, while a client that has stopped but lives lets no chunk be freed.
constexpr int64_t kMostLeases = 32;

}  // namespace

bool ClientCore::IsFull(krcore::NodeId node) const {
  return std::find(full_nodes_.begin(), full_nodes_.end(), node) != full_nodes_.end();
}

// A block of `bytes`, as RoundBlockBytes gives it, on `node`, of what the client has there. False: see Allocate.
bool ClientCore::AllocateAtOnce(Operation& op, uint64_t bytes, krcore::NodeId node, GlobalAddress* address) {
  if (op.makes_room || op.batch.Stale() || node == krcore::kNoNode || !connections_.Reach(node)) return false;
  if (std::find(members_.begin(), members_.end(), node) == members_.end()) return false;
  bool reused = false;
  if (!memory_->Allocate(node, bytes, address, &reused)) return false;
  stats_.blocks_reused += reused ? 1 : 0;
  return true;
}

// A block of `bytes`, as RoundBlockBytes gives it, on `node` if there is room, else anywhere. It waits for memory as
// long as there may be some soon, and meanwhile lets go of what the operation knows. kFull: every memory node is full.
Task<Step> ClientCore::Allocate(Operation& op, uint64_t bytes, krcore::NodeId node, GlobalAddress* address) {
  for (;; co_await BackOff(op)) {
    if (op.batch.Stale() || (op.attempt > 0 && OutOfTime(op))) co_return Step::kRestart;
    const Step allocated = co_await AllocateNow(op, bytes, node, address);
    if (allocated == Step::kOk) co_return allocated;
    if (allocated == Step::kRestart) continue;
    const Step sought = SeekRoom(op);
    if (sought != Step::kRestart) co_return allocated;
  }
}

// The same, of what there is now. kUnavailable: where there may be some cannot be reached.
Task<Step> ClientCore::AllocateNow(Operation& op, uint64_t bytes, krcore::NodeId node, GlobalAddress* address) {
  const auto preferred = std::find(members_.begin(), members_.end(), node);
  const size_t first = preferred != members_.end() ? static_cast<size_t>(preferred - members_.begin()) : turn_++;
  bool unreachable = false;
  for (size_t m = 0; m < members_.size(); ++m) {
    const Step allocated = co_await AllocateFrom(op, members_[(first + m) % members_.size()], bytes, address);
    if (allocated == Step::kOk || allocated == Step::kRestart) co_return allocated;
    unreachable |= allocated == Step::kUnavailable;  // others have room, perhaps
  }
  co_return unreachable ? Step::kUnavailable : Step::kFull;
}

// An operation found no memory. kRestart: there may be some soon; it is to back off, and to look again. kFull: there is
// none to be had. What is waited for: that what this client had retired before is free; that a memory node joins; that
// some client's mover frees chunks, of which this one's is started. It is over when a sweep of the whole store has
// found nothing to gain, or nothing has changed for a while.
Step ClientCore::SeekRoom(Operation& op) {
  if (op.makes_room || closing_ || OutOfTime(op)) return Step::kFull;
  if (!connections_.Reach(store_.home())) return Step::kFull;  // all reclamation goes by way of it
  const int64_t now_ns = clock_.NowNs(), lease_ns = registration_.lease_ns();
  const MemoryState& memory = MemoryOf(op.batch);
  RoomWait& wait = op.room_wait;
  if (!wait.begun) {
    wait = {.begun = true,
            .begun_ns = now_ns,
            .compactions = compactions_,
            .reclaimed = memory.retired() + memory.held(),
            .changes = 0,
            .changed_ns = now_ns,
            .member_changes = member_changes_seen_,
            .rounds = rounds_};
  }
  const uint64_t changes = freed_chunks_seen_ + seen_mover_.changes + std::min(memory.reclaimed(), wait.reclaimed);
  if (changes != wait.changes) {
    wait.changes = changes;
    wait.changed_ns = now_ns;
  }
  if (now_ns - wait.begun_ns > kMostLeases * lease_ns) return Step::kFull;
  op.again = Again::kRoom;
  maintain_at_ns_ = 0;  // the next round at once
  const bool comes_back = memory.reclaimed() < wait.reclaimed;
  if (comes_back && now_ns - wait.begun_ns < lease_ns / kOwnPartOfLease) return Step::kRestart;
  if (compacting_ > 0) room_wanted_ = true;  // whoever began it
  // One that has joined since is known after a round of maintenance that began since.
  const bool joined = std::exchange(wait.member_changes, member_changes_seen_) != member_changes_seen_;
  if (joined || compacting_ > 0 || home_read_in_round_ <= wait.rounds) return Step::kRestart;
  const bool nothing_to_gain = now_ns < full_until_ns_ && freed_chunks_seen_ == full_freed_chunks_ &&
                               memory.free_bytes() < full_free_bytes_ + chunk_bytes_;
  const bool unreachable = compactions_ != wait.compactions && last_step_ == Step::kUnavailable;
  if ((nothing_to_gain && !comes_back) || unreachable) return Step::kFull;
  if (now_ns - wait.changed_ns > kPatienceLeases * lease_ns) return Step::kFull;
  if (!nothing_to_gain && now_ns >= pinned_until_ns_) {
    const int64_t left_ms = (op.deadline_ns - now_ns) / 2'000'000;
    StartCompaction({.thorough = true, .timeout_ms = std::max<int64_t>(left_ms, 1)}, /*for_room=*/true);
  }
  return Step::kRestart;
}

// kRestart: another operation of this client is taking a chunk there, or used it up.
Task<Step> ClientCore::AllocateFrom(Operation& op, krcore::NodeId node, uint64_t bytes, GlobalAddress* address) {
  if (!connections_.Reach(node)) co_return Step::kUnavailable;
  bool reused = false;
  const bool allocated = op.makes_room ? MemoryOf(op.batch).AllocateForCopy(node, bytes, address)
                                       : MemoryOf(op.batch).Allocate(node, bytes, address, &reused);
  stats_.blocks_reused += reused ? 1 : 0;
  if (allocated) co_return Step::kOk;
  if (IsFull(node) && !op.makes_room) co_return Step::kFull;
  Span taken;
  if (bytes > chunk_bytes_) {
    const auto count = static_cast<uint32_t>(bytes / chunk_bytes_);
    const Step run = co_await TakeChunks(op, node, ChunkKind::kRun, count, count, &taken);
    *address = {node, taken.chunk * chunk_bytes_};
    co_return run;
  }
  if (op.makes_room) {
    const Step chunk = co_await TakeChunks(op, node, ChunkKind::kBlocks, 1, kUnitsOfCut, &taken);
    if (chunk == Step::kOk) MemoryOf(op.batch).AddChunkForCopies(node, taken.chunk, taken.generation);
    if (chunk == Step::kUnavailable) co_return chunk;
    const bool copied = MemoryOf(op.batch).AllocateForCopy(node, bytes, address) ||
                        MemoryOf(op.batch).Allocate(node, bytes, address, &reused);
    co_return copied ? Step::kOk : Step::kFull;
  }
  if (taking_chunk_[node]) co_return Step::kRestart;
  taking_chunk_[node] = true;
  const Step span = co_await TakeSpan(op, node, bytes, &taken);
  taking_chunk_[node] = false;
  if (span == Step::kFull) NoteFull(node);
  if (span != Step::kOk) co_return span;
  MemoryOf(op.batch).AddSpan(node, taken);
  co_return MemoryOf(op.batch).Allocate(node, bytes, address, &reused) ? Step::kOk : Step::kRestart;
}

// Room for dir[index]'s subtable. Indices follow each other as the table grows, so this spreads the subtables evenly.
Task<Step> ClientCore::AllocateTable(Operation& op, uint32_t index, GlobalAddress* table) {
  bool unreachable = false;
  for (size_t m = 0; m < members_.size(); ++m) {
    const krcore::NodeId node = members_[(index + m) % members_.size()];
    if (MemoryOf(op.batch).AllocateTable(node, table)) co_return Step::kOk;
    const Step cut = co_await CutTable(op, node, table);
    if (cut == Step::kOk) co_return cut;
    unreachable |= cut == Step::kUnavailable;
  }
  co_return unreachable ? Step::kUnavailable : Step::kFull;
}

uint64_t ClientCore::OldestEpochInFlight() const {
  uint64_t oldest = std::min(epoch_, maintenance_epoch_);
  if (mover_op_ && mover_op_->in_use) oldest = std::min(oldest, mover_op_->epoch);
  if (Mutated(Mutation::kNoPin)) return oldest;
  for (const auto& operation : operations_) {
    if (operation->in_use) oldest = std::min(oldest, operation->epoch);
  }
  return oldest;
}

// One round: reads the epoch and everybody's announcements, stamps what was retired before, frees what is old
// enough, announces, and advances the epoch if all have seen it.
Task<void> ClientCore::Maintain() {
  Batch& batch = epoch_buffers_->batch();
  batch.Renew();
  LookAfterMerges();
  if (memory_->has_held()) {
    const Step released = co_await ReleaseHeldBlocks();
    if (released != Step::kOk || batch.Stale()) co_return;
  }
  EpochBuffers::Registered& words = epoch_buffers_->words();
  const Step reported = co_await ReportRetiredTables(batch, &words.cas);
  if (reported != Step::kOk || batch.Stale()) co_return;
  const size_t retired = memory_->unstamped();  // unlinked before the epoch is read
  const Step read = co_await ReadHome(batch);
  if (read != Step::kOk || batch.Stale()) co_return;
  (void)co_await GiveBackAbandonedEntry(batch);
  if (batch.Stale()) co_return;
  const uint64_t epoch = epoch_ = words.epoch;
  SawRetiredTables(words.counters.retired_tables);
  memory_->Stamp(Mutated(Mutation::kEarlyStamp) ? memory_->unstamped() : retired, epoch);
  if (words.counters.freed_chunks != freed_chunks_seen_) {
    freed_chunks_seen_ = words.counters.freed_chunks;
    full_nodes_.clear();
  }

  memory_->SetEvacuating(words.evacuation, words.counters.evacuations);

  const uint64_t mine = OldestEpochInFlight();
  uint64_t oldest = mine;
  expelled_epochs_.clear();
  for (uint32_t i = 0; i < clients_used_; ++i) {
    if (i == client_index_ || words.clients[i].owner == 0) continue;
    const ClientWord other(words.clients[i].word);
    if (other.state() == ClientState::kExpelled) {
      expelled_epochs_.push_back(other.epoch());
    } else {
      oldest = std::min(oldest, other.epoch());
    }
  }
  memory_->Reclaim(oldest, expelled_epochs_);
  const Step announced = co_await Announce(batch, mine);
  if (announced != Step::kOk || batch.Stale()) co_return;
  announced_by_living_ = oldest;
  // Behind the announcement, so that the epoch is never more than one beyond what an entry of a living client says.
  if (oldest >= epoch) {
    batch.CompareSwap({store_.home(), kEpochOffset}, epoch, epoch + 1, &words.cas);
    (void)co_await batch.Run();
  }
  if (batch.Stale()) co_return;
  for (const Extent& run : memory_->TakeFreeRuns()) {
    // One whose outcome is unknown is found by sweeping.
    (void)co_await GiveBackRun(batch, words.chunks, words.old, run);
  }
  co_await Observe(batch, oldest, epoch);
}

// Reads the epoch, and behind it the counters, the client table, and the member list if it has changed.
Task<Step> ClientCore::ReadHome(Batch& batch) {
  EpochBuffers::Registered& words = epoch_buffers_->words();
  const krcore::NodeId home = store_.home();
  const uint64_t round = ++rounds_;
  batch.Read({home, kEpochOffset}, &words.epoch, sizeof(words.epoch));
  batch.Read({home, kCountersOffset}, &words.counters, sizeof(words.counters));
  batch.Read({home, kEvacuationOffset}, words.evacuation, sizeof(words.evacuation));
  batch.Read({home, kClientsOffset}, words.clients, static_cast<uint32_t>(clients_used_ * sizeof(ClientEntry)));
  const Outcome read = co_await batch.Run();
  if (read != Outcome::kOk) co_return Step::kUnavailable;
  const auto used = static_cast<uint32_t>(std::min<uint64_t>(words.counters.clients_used, kMaxClients));
  if (used > clients_used_) {
    // Whoever claims an entry beyond those now began after what was retired here was unlinked.
    batch.Read({home, EntryOffset(clients_used_)}, &words.clients[clients_used_],
               static_cast<uint32_t>((used - clients_used_) * sizeof(ClientEntry)));
    const Outcome rest_read = co_await batch.Run();
    if (rest_read != Outcome::kOk) co_return Step::kUnavailable;
    clients_used_ = used;
  }
  const Step learnt = co_await LearnMembers(batch);
  if (learnt == Step::kOk) home_read_in_round_ = round;
  co_return learnt;
}

// Behind a READ of the counters: reads the member list, if they say that it has changed. What is announced after that
// is announced by who takes no memory of a node that is being drained.
Task<Step> ClientCore::LearnMembers(Batch& batch) {
  EpochBuffers::Registered& words = epoch_buffers_->words();
  if (members_known_ && words.counters.member_changes == member_changes_seen_) co_return Step::kOk;
  batch.Read({store_.home(), kMembersOffset}, words.members, sizeof(words.members));
  const Outcome read = co_await batch.Run();
  if (read != Outcome::kOk) co_return Step::kUnavailable;
  if (batch.Stale()) co_return Step::kRestart;
  members_.clear();
  draining_.clear();
  for (krcore::NodeId node = 1; node <= krcore::kMaxMemoryNode; ++node) {
    const MemberState state = MemberWord(words.members[node]).state();
    if (state == MemberState::kInUse || node == store_.home()) members_.push_back(node);
    if (state == MemberState::kDraining) draining_.push_back(node);
    if (state == MemberState::kDrained) connections_.Forget(node);
  }
  members_known_ = true;
  member_changes_seen_ = words.counters.member_changes;
  co_return Step::kOk;
}

// Blocks unlinked in a child whose split is not finished: once it is, no frozen slot names them any more.
Task<Step> ClientCore::ReleaseHeldBlocks() {
  TableRef table;
  held_cursor_ = memory_->AnyHeldIndex(held_cursor_);
  const Step read =
      co_await ReadDirectoryEntry(epoch_buffers_->batch(), &epoch_buffers_->words().directory, held_cursor_, &table);
  if (read != Step::kOk) co_return read;
  if (epoch_buffers_->batch().Stale()) co_return Step::kRestart;
  if (!table.migrating()) {
    memory_->ReleaseHeld(held_cursor_);
    directory_.Insert(table);
    co_return Step::kOk;
  }
  // Who was at it may be dead, and nobody else need ever come to finish it: updates need no free slot.
  maintenance_epoch_ = epoch_;  // for the blocks that it reads
  const Step finished = co_await FinishAbandonedSplit(epoch_buffers_->batch(), held_cursor_);
  maintenance_epoch_ = kNoPin;
  if (finished == Step::kUnavailable) co_return finished;
  co_return Step::kOk;
}

}  // namespace kvs
