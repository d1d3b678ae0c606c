// Memory: blocks and subtables, and the epochs that say when they may be reused. Why reuse is safe is docs/kvs.md,
// "Reclamation".
#include <algorithm>

#include "kvs/src/client_core.h"
#include "kvs/src/epoch_buffers.h"
#include "kvs/src/mutation.h"
#include "kvs/src/store_core.h"

namespace kvs {
namespace {

// How often a client whose memory nodes are full asks whether another one has joined, which blocks for a moment.
constexpr int64_t kRefreshIntervalNs = 200'000'000;
constexpr int64_t kRefreshBudgetNs = 50'000'000;
constexpr uint64_t kEpochOffset = kHomeAreaOffset + offsetof(HomeArea, epoch);
constexpr uint64_t kCountersOffset = kHomeAreaOffset + offsetof(HomeArea, counters);
constexpr uint64_t kEvacuationOffset = kHomeAreaOffset + offsetof(HomeArea, evacuation);
constexpr uint64_t kClientsOffset = kHomeAreaOffset + offsetof(HomeArea, clients);

}  // namespace

bool ClientCore::IsFull(krcore::NodeId node) const {
  return std::find(full_nodes_.begin(), full_nodes_.end(), node) != full_nodes_.end();
}

// A block of `bytes`, as RoundBlockBytes gives it, on `node` if there is room, else anywhere. kFull: every memory node
// is full. kUnavailable: those that can be reached are, and so it stays, as all reclamation goes by way of the home.
Task<Step> ClientCore::Allocate(Operation& op, uint64_t bytes, krcore::NodeId node, GlobalAddress* address) {
  bool all_full = false, held = false;
  uint64_t wait_until_reclaimed = 0;
  for (;;) {
    const auto preferred = std::find(members_.begin(), members_.end(), node);
    const size_t first = preferred != members_.end() ? static_cast<size_t>(preferred - members_.begin()) : turn_++;
    bool waited = false, unreachable = false, home_unreachable = false;
    for (size_t m = 0; m < members_.size() && !waited; ++m) {
      const krcore::NodeId member = members_[(first + m) % members_.size()];
      const Step allocated = co_await AllocateFrom(op, member, bytes, address);
      if (allocated == Step::kOk) co_return Step::kOk;
      unreachable |= allocated == Step::kUnavailable;  // others have room, perhaps
      home_unreachable |= allocated == Step::kUnavailable && member == store_.home();
      waited = allocated == Step::kRestart;
    }
    if (!waited) {
      if (home_unreachable) co_return Step::kUnavailable;
      // Full everywhere. Blocks that wait for their grace period come back: what was retired before this allocation
      // began is waited for, which takes as long as other clients take to poll; what is retired meanwhile is not, since
      // a store that is really full must say so.
      if (!all_full || held)
        wait_until_reclaimed = MemoryOf(op.batch).retired();  // held ones join the others when released
      all_full = true;
      held = MemoryOf(op.batch).has_held();
      const bool worth_waiting = (held || MemoryOf(op.batch).reclaimed() < wait_until_reclaimed) && !OutOfTime(op);
      if (!worth_waiting && !MemberJoined()) {
        const Step compacted = co_await CompactForRoom(op);
        if (compacted != Step::kOk) co_return unreachable ? Step::kUnavailable : Step::kFull;
        all_full = false;
      } else if (maintaining_ == 0) {
        ++maintaining_;
        co_await Maintain();
        --maintaining_;
      }
    }
    co_await BackOff(op);
  }
}

// kRestart: another operation of this client is taking a chunk there, or used it up.
Task<Step> ClientCore::AllocateFrom(Operation& op, krcore::NodeId node, uint64_t bytes, GlobalAddress* address) {
  if (!connections_.Reach(node)) co_return Step::kUnavailable;
  bool reused = false;
  if (MemoryOf(op.batch).Allocate(node, bytes, address, &reused)) {
    stats_.blocks_reused += reused ? 1 : 0;
    co_return Step::kOk;
  }
  uint64_t chunk = 0, generation = 0;
  if (bytes > chunk_bytes_) {
    const auto count = static_cast<uint32_t>(bytes / chunk_bytes_);
    const Step taken = co_await TakeChunks(op, node, ChunkKind::kRun, count, count, &chunk, &generation);
    *address = {node, chunk * chunk_bytes_};
    co_return taken;
  }
  if (IsFull(node)) co_return Step::kFull;
  if (taking_chunk_[node]) co_return Step::kRestart;
  taking_chunk_[node] = true;
  const Step taken = co_await TakeChunks(op, node, ChunkKind::kBlocks, 1, 0, &chunk, &generation);
  taking_chunk_[node] = false;
  if (taken == Step::kFull && !IsFull(node)) full_nodes_.push_back(node);
  if (taken != Step::kOk) co_return taken;
  MemoryOf(op.batch).AddChunk(node, chunk, generation);
  co_return MemoryOf(op.batch).Allocate(node, bytes, address, &reused) ? Step::kOk : Step::kRestart;
}

// Room for dir[index]'s subtable. Indices follow each other as the table grows, so this spreads the subtables evenly.
Task<Step> ClientCore::AllocateTable(Operation& op, uint32_t index, GlobalAddress* table) {
  bool unreachable = false;
  for (size_t m = 0; m < members_.size(); ++m) {
    const krcore::NodeId node = members_[(index + m) % members_.size()];
    if (MemoryOf(op.batch).AllocateTable(node, table)) co_return Step::kOk;
    const Step cut = co_await CutTable(op, node, table);
    if (cut == Step::kOk) co_return Step::kOk;
    unreachable |= cut == Step::kUnavailable;
  }
  (void)MemberJoined();  // for the next try
  co_return unreachable ? Step::kUnavailable : Step::kFull;
}

// Reads the member list again, not too often. True if there are more than before now.
bool ClientCore::MemberJoined() {
  const int64_t now_ns = clock_.NowNs();
  if (now_ns < refresh_at_ns_) return false;
  refresh_at_ns_ = now_ns + kRefreshIntervalNs;
  (void)store_.RefreshMembers(krcore::Deadline::After(clock_, kRefreshBudgetNs));
  const size_t known = members_.size();
  members_ = store_.members();
  return members_.size() > known;
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

// One round: reads the epoch and everybody's announcements, stamps what was retired before, announces, frees what is
// old enough, and advances the epoch if all have seen it.
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
  const uint64_t epoch = epoch_ = words.epoch;
  SawRetiredTables(words.counters.retired_tables);
  memory_->Stamp(Mutated(Mutation::kEarlyStamp) ? memory_->unstamped() : retired, epoch);
  if (words.counters.freed_chunks != freed_chunks_seen_) {
    freed_chunks_seen_ = words.counters.freed_chunks;
    full_nodes_.clear();
  }

  memory_->SetEvacuating(words.evacuation, words.counters.evacuations);

  const uint64_t mine = OldestEpochInFlight();
  uint64_t oldest = mine, announced_by_all = mine;
  expelled_epochs_.clear();
  for (uint32_t i = 0; i < clients_used_; ++i) {
    if (i == client_index_ || words.clients[i].owner == 0) continue;
    const ClientWord other(words.clients[i].word);
    announced_by_all = std::min(announced_by_all, other.epoch());
    if (other.state() == ClientState::kExpelled) {
      expelled_epochs_.push_back(other.epoch());
    } else {
      oldest = std::min(oldest, other.epoch());
    }
  }
  memory_->Reclaim(oldest, expelled_epochs_);
  const Step announced = co_await Announce(batch, mine);
  if (announced != Step::kOk || batch.Stale()) co_return;
  announced_by_all_ = announced_by_all;
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

// Reads the epoch, and behind it the counters and the client table.
Task<Step> ClientCore::ReadHome(Batch& batch) {
  EpochBuffers::Registered& words = epoch_buffers_->words();
  const krcore::NodeId home = store_.home();
  if (!connections_.Reach(home)) co_return Step::kUnavailable;
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
