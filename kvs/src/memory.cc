// Memory: chunks from the memory nodes, the client's place in the client table, and epochs. Why reuse is safe is
// docs/kvs.md, "Reclamation".
#include <algorithm>

#include "kvs/src/client_core.h"
#include "kvs/src/epoch_buffers.h"
#include "kvs/src/store_core.h"

namespace kvs {
namespace {

// How often a client whose memory nodes are full asks whether another one has joined, which blocks for a moment.
constexpr int64_t kRefreshIntervalNs = 200'000'000;
constexpr int64_t kRefreshBudgetNs = 50'000'000;
// Rounds of maintenance that one client may hold reclamation back before the fabric is asked whether it is dead.
constexpr uint32_t kStragglerRounds = 16;

constexpr uint64_t kEpochOffset = kHomeAreaOffset + offsetof(HomeArea, epoch);
constexpr uint64_t kClientsOffset = kHomeAreaOffset + offsetof(HomeArea, clients);
constexpr uint64_t kNextChunkOffset = offsetof(Superblock, next_chunk);
constexpr uint64_t kChunksOffset = offsetof(Superblock, chunks);

uint64_t EntryOffset(uint32_t index) { return kClientsOffset + uint64_t{index} * sizeof(ClientEntry); }

}  // namespace

// `bytes` as RoundBlockBytes gives it. kFull: every memory node is full.
Task<Step> ClientCore::Allocate(Operation& op, uint64_t bytes, uint64_t alignment, GlobalAddress* address) {
  if (alignment <= kUnitBytes && memory_->AllocateFreed(bytes, address)) {
    ++stats_.blocks_reused;
    co_return Step::kOk;
  }
  const uint64_t chunks = (bytes + kChunkBytes - 1) / kChunkBytes;
  const bool reusable = alignment <= kUnitBytes;
  bool all_full = false, held = false;
  uint64_t wait_until_reclaimed = 0;
  for (;;) {
    const size_t turn = memory_->NextTurn();
    bool waited = false, unreachable = false;
    for (size_t m = 0; m < members_.size() && !waited; ++m) {
      const krcore::NodeId node = members_[(turn + m) % members_.size()];
      if (!connections_.Reach(node)) {  // others have room, perhaps
        unreachable = true;
        continue;
      }
      if (memory_->AllocateFrom(node, bytes, alignment, address)) co_return Step::kOk;
      if (std::find(full_nodes_.begin(), full_nodes_.end(), node) != full_nodes_.end()) continue;
      if (taking_chunk_[node]) {  // another operation of this client is at it
        waited = true;
        break;
      }
      uint64_t offset = 0;
      taking_chunk_[node] = true;
      const Step taken = co_await TakeChunks(op, node, chunks, &offset);
      taking_chunk_[node] = false;
      if (taken == Step::kUnavailable) {
        unreachable = true;
        continue;
      }
      if (taken == Step::kOk) {
        memory_->AddChunks(node, offset, chunks * kChunkBytes);
        if (memory_->AllocateFrom(node, bytes, alignment, address)) co_return Step::kOk;
        waited = true;  // others were faster
      } else if (chunks == 1) {
        full_nodes_.push_back(node);
      }
    }
    if (!waited) {
      // Full everywhere. Blocks that wait for their grace period come back: what was retired before this allocation
      // began is waited for, which takes as long as other clients take to poll; what is retired meanwhile is not, since
      // a store that is really full must say so.
      if (reusable && memory_->AllocateFreed(bytes, address)) {
        ++stats_.blocks_reused;
        co_return Step::kOk;
      }
      if (!all_full || held) wait_until_reclaimed = memory_->retired();  // held ones join the others when released
      all_full = true;
      held = memory_->has_held();
      const bool worth_waiting = reusable && (held || memory_->reclaimed() < wait_until_reclaimed) && !OutOfTime(op);
      if (!worth_waiting && !MemberJoined()) co_return unreachable ? Step::kUnavailable : Step::kFull;
      if (maintaining_ == 0) {
        ++maintaining_;
        co_await Maintain();
        --maintaining_;
      }
    }
    co_await BackOff(op);
  }
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

// Takes `count` contiguous chunks by CAS on the node's superblock. kFull: the node has not so many left.
Task<Step> ClientCore::TakeChunks(Operation& op, krcore::NodeId node, uint64_t count, uint64_t* offset) {
  if (!connections_.Reach(node)) co_return Step::kUnavailable;
  std::array<uint64_t, 20>& words = op.buffers->directory;
  op.batch.Read({node, kNextChunkOffset}, &words[0], sizeof(uint64_t));
  op.batch.Read({node, kChunksOffset}, &words[1], sizeof(uint64_t));
  const Outcome read = co_await op.batch.Run();
  if (read != Outcome::kOk) co_return Step::kUnavailable;
  for (uint64_t expected = words[0];; expected = words[0]) {
    if (expected + count > words[1]) co_return Step::kFull;
    op.batch.CompareSwap({node, kNextChunkOffset}, expected, expected + count, &words[0]);
    const Outcome swapped = co_await op.batch.Run();
    if (swapped != Outcome::kOk) co_return Step::kUnavailable;
    if (words[0] == expected) {
      *offset = kFirstChunkOffset + expected * kChunkBytes;
      stats_.chunks_taken += count;
      co_return Step::kOk;
    }
  }
}

// Claims an entry of the client table and announces the current epoch. kFull: none is free.
Task<Step> ClientCore::Register() {
  EpochBuffers::Registered& words = epoch_buffers_->words();
  Batch& batch = epoch_buffers_->batch();
  const uint64_t owner = uint64_t{store_.node().id()} << 32 | store_.node().incarnation();
  const GlobalAddress home{store_.home(), 0};
  for (bool looked_for_dead = false;;) {
    if (!connections_.Reach(home.node)) co_return Step::kUnavailable;
    batch.Read({home.node, kClientsOffset}, words.clients, sizeof(words.clients));
    const Outcome read = co_await batch.Run();
    if (read != Outcome::kOk) co_return Step::kUnavailable;
    uint32_t free = kMaxClients;
    for (uint32_t i = 0; i < kMaxClients && free == kMaxClients; ++i) {
      if (words.clients[i].owner == 0) free = i;
    }
    if (free == kMaxClients) {
      // Full of living ones, or of dead ones that nobody had reason to look at.
      if (looked_for_dead) co_return Step::kFull;
      looked_for_dead = true;
      for (uint32_t i = 0; i < kMaxClients; ++i) {
        const uint64_t other = words.clients[i].owner;
        if (!store_.node().IsConfirmedDead(static_cast<krcore::NodeId>(other >> 32), static_cast<uint32_t>(other)))
          continue;
        batch.CompareSwap({home.node, EntryOffset(i)}, other, 0, &words.cas);
        const Outcome freed = co_await batch.Run();
        if (freed != Outcome::kOk) co_return Step::kUnavailable;
      }
      continue;
    }
    batch.CompareSwap({home.node, EntryOffset(free)}, 0, owner, &words.cas);
    const Outcome claimed = co_await batch.Run();
    if (claimed != Outcome::kOk) co_return Step::kUnavailable;
    if (words.cas != 0) continue;  // somebody else took it
    client_index_ = free;
    registered_ = true;  // from here on the entry must be given back
    break;
  }
  // Until the announcement arrives the entry shows a former holder's epoch, an older one: it holds back more.
  batch.Read({home.node, kEpochOffset}, &words.epoch, sizeof(words.epoch));
  const Outcome epoch_read = co_await batch.Run();
  if (epoch_read != Outcome::kOk) co_return Step::kUnavailable;
  epoch_ = words.announcement = words.epoch;
  batch.Write(&words.announcement, {home.node, EntryOffset(client_index_) + offsetof(ClientEntry, epoch)},
              sizeof(words.announcement));
  const Outcome announced = co_await batch.Run();
  co_return announced == Outcome::kOk ? Step::kOk : Step::kUnavailable;
}

Task<Step> ClientCore::Unregister() {
  EpochBuffers::Registered& words = epoch_buffers_->words();
  Batch& batch = epoch_buffers_->batch();
  const uint64_t owner = uint64_t{store_.node().id()} << 32 | store_.node().incarnation();
  if (!connections_.Reach(store_.home())) co_return Step::kUnavailable;
  batch.CompareSwap({store_.home(), EntryOffset(client_index_)}, owner, 0, &words.cas);
  const Outcome released = co_await batch.Run();
  co_return released == Outcome::kOk ? Step::kOk : Step::kUnavailable;
}

uint64_t ClientCore::OldestEpochInFlight() const {
  uint64_t oldest = std::min(epoch_, maintenance_epoch_);
  for (const auto& operation : operations_) {
    if (operation->in_use) oldest = std::min(oldest, operation->epoch);
  }
  return oldest;
}

// One round: reads the epoch and everybody's announcements, stamps what was retired before, announces, frees what is
// old enough, and advances the epoch if all have seen it.
Task<void> ClientCore::Maintain() {
  EpochBuffers::Registered& words = epoch_buffers_->words();
  Batch& batch = epoch_buffers_->batch();
  const krcore::NodeId home = store_.home();
  if (memory_->has_held()) {
    const Step released = co_await ReleaseHeldBlocks();
    if (released != Step::kOk) co_return;
  }
  const size_t retired = memory_->unstamped();  // unlinked before the epoch is read
  if (!connections_.Reach(home)) co_return;
  batch.Read({home, kEpochOffset}, &words.epoch, sizeof(words.epoch));
  batch.Read({home, kClientsOffset}, words.clients, sizeof(words.clients));
  const Outcome read = co_await batch.Run();
  if (read != Outcome::kOk) co_return;
  const uint64_t epoch = words.epoch;
  epoch_ = epoch;
  memory_->Stamp(retired, epoch);

  const uint64_t mine = OldestEpochInFlight();
  uint64_t oldest = mine;
  for (uint32_t i = 0; i < kMaxClients; ++i) {
    if (i != client_index_ && words.clients[i].owner != 0) oldest = std::min(oldest, words.clients[i].epoch);
  }
  memory_->Reclaim(oldest);
  // Compared with what is there: an announcement that was lost with its connection must be repeated, or nobody's memory
  // would ever be reused.
  if (mine != words.clients[client_index_].epoch) {
    words.announcement = mine;
    batch.Write(&words.announcement, {home, EntryOffset(client_index_) + offsetof(ClientEntry, epoch)},
                sizeof(words.announcement));
  }
  if (oldest >= epoch) batch.CompareSwap({home, kEpochOffset}, epoch, epoch + 1, &words.cas);
  (void)co_await batch.Run();  // a failure shows again at the next operation
  if (oldest < epoch) {
    const uint64_t dead = FindDeadStraggler(oldest);
    if (dead != 0) {
      batch.CompareSwap({home, EntryOffset(straggler_)}, dead, 0, &words.cas);
      (void)co_await batch.Run();
    }
  }
}

// The owner word of the client that holds reclamation back, if it has done so for a while and is confirmed dead; else
// 0. A dead client's verbs cannot execute any more, so what it pinned is free.
uint64_t ClientCore::FindDeadStraggler(uint64_t oldest) {
  const EpochBuffers::Registered& words = epoch_buffers_->words();
  uint32_t index = 0;
  while (index < kMaxClients &&
         (index == client_index_ || words.clients[index].owner == 0 || words.clients[index].epoch != oldest)) {
    ++index;
  }
  if (index == kMaxClients) return 0;  // it is this client
  if (index != straggler_ || oldest != straggler_epoch_) {
    straggler_ = index;
    straggler_epoch_ = oldest;
    straggler_rounds_ = 0;
  }
  if (++straggler_rounds_ % kStragglerRounds != 0) return 0;
  const uint64_t owner = words.clients[index].owner;
  const bool dead =
      store_.node().IsConfirmedDead(static_cast<krcore::NodeId>(owner >> 32), static_cast<uint32_t>(owner));
  return dead ? owner : 0;
}

// Blocks unlinked in a child whose split is not finished: once it is, no frozen slot names them any more.
Task<Step> ClientCore::ReleaseHeldBlocks() {
  TableRef table;
  held_cursor_ = memory_->AnyHeldIndex(held_cursor_);
  const Step read =
      co_await ReadDirectoryEntry(epoch_buffers_->batch(), &epoch_buffers_->words().directory, held_cursor_, &table);
  if (read != Step::kOk) co_return read;
  if (!table.migrating()) {
    memory_->ReleaseHeld(held_cursor_);
    directory_.Insert(table.index, table.entry);
    co_return Step::kOk;
  }
  // Who was at it may be dead, and nobody else need ever come to finish it: updates need no free slot.
  maintenance_epoch_ = epoch_;  // for the blocks that it reads
  const Step finished = co_await FinishAbandonedSplit(held_cursor_);
  maintenance_epoch_ = kNoPin;
  if (finished == Step::kUnavailable) co_return finished;
  co_return Step::kOk;
}

}  // namespace kvs
