// A client's entry in the home's client table.
#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "kvs/src/buffers.h"
#include "kvs/src/client_core.h"
#include "kvs/src/mutation.h"
#include "kvs/src/store_core.h"

namespace kvs {
namespace {

// Entries by which the part in use grows, so that clients that come together do not all want the same one.
constexpr uint64_t kGrowth = 16;
// Entries that a new client looks at before it asks how many are in use.
constexpr uint32_t kGlance = 64;
// Fewer free ones among those are left to others: clients that come together would all want the same.
constexpr size_t kManyFree = 4;
// Between two rounds of maintenance, at least.
constexpr int64_t kMaintenanceNs = 500'000;
// The same while the client does nothing. Why so long: docs/protocol.md, "Registration".
constexpr int64_t kIdleMaintenanceNs = 5'000'000;
// So many are asked for when one was found dead.
constexpr uint32_t kDeathsAtOnce = 64;
// Chunks' worth of free blocks that a client keeps for itself.
constexpr uint64_t kMuchFree = 64;

}  // namespace

// ---- the entries that this process's clients hold

void HeldEntries::RemoveFrom(std::vector<uint32_t>* indexes) {
  const std::lock_guard lock(mutex_);
  std::erase_if(*indexes, [this](uint32_t index) { return held_.contains(index); });
}

bool HeldEntries::Hold(uint32_t index) {
  const std::lock_guard lock(mutex_);
  return held_.insert(index).second;
}

void HeldEntries::LetGo(uint32_t index) {
  const std::lock_guard lock(mutex_);
  held_.erase(index);
}

void HeldEntries::Abandon(const ClaimedEntry& entry) {
  const std::lock_guard lock(mutex_);
  abandoned_.push_back(entry);
}

std::optional<ClaimedEntry> HeldEntries::TakeAbandoned() {
  const std::lock_guard lock(mutex_);
  if (abandoned_.empty()) return std::nullopt;
  const ClaimedEntry entry = abandoned_.back();
  abandoned_.pop_back();
  return entry;
}

// ---- a client's own

uint64_t ClientCore::EntryOffset(uint32_t index) { return kClientsOffset + uint64_t{index} * sizeof(ClientEntry); }

std::vector<uint32_t> ClientCore::FreeEntries(uint32_t below) const {
  std::vector<uint32_t> free;
  for (uint32_t i = 0; i < below; ++i) {
    if (epoch_buffers_->words().clients[i].owner == 0) free.push_back(i);
  }
  store_.held_entries().RemoveFrom(&free);
  return free;
}

// Before this client is registered: to which nodes it should be connected by then, and a glance at the client table.
// An entry that it shows as free is claimed by CAS, however much later; and the part in use never shrinks.
Task<Step> ClientCore::LearnHome() {
  EpochBuffers::Registered& words = epoch_buffers_->words();
  Batch& batch = epoch_buffers_->batch();
  batch.Read({store_.home(), kCountersOffset}, &words.counters, sizeof(words.counters));
  batch.Read({store_.home(), kClientsOffset}, words.clients, kGlance * sizeof(ClientEntry));
  batch.Read({store_.home(), offsetof(Superblock, hash_seed)}, &words.hash_seed, sizeof(words.hash_seed));
  const Step learnt = co_await LearnMembers(batch);
  if (learnt != Step::kOk) co_return learnt;
  clients_used_ = static_cast<uint32_t>(std::min<uint64_t>(words.counters.clients_used, kMaxClients));
  clients_glanced_ = std::min(clients_used_, kGlance);
  co_return Step::kOk;
}

// Claims an entry of the client table and announces the current epoch. kFull: none is free.
Task<Step> ClientCore::Register() {
  EpochBuffers::Registered& words = epoch_buffers_->words();
  Batch& batch = epoch_buffers_->batch();
  const krcore::NodeId home = store_.home();
  for (bool looked_for_dead = false; !registered_;) {
    if (!connections_.Reach(home)) co_return Step::kUnavailable;
    std::vector<uint32_t> free = FreeEntries(std::exchange(clients_glanced_, 0));
    if (free.size() < kManyFree) free.clear();
    if (free.empty()) {
      batch.Read({home, kCountersOffset}, &words.counters, sizeof(words.counters));
      const Outcome counters_read = co_await batch.Run();
      if (counters_read != Outcome::kOk) co_return Step::kUnavailable;
      clients_used_ = static_cast<uint32_t>(std::min<uint64_t>(words.counters.clients_used, kMaxClients));
    }
    if (free.empty() && clients_used_ > 0) {
      batch.Read({home, kClientsOffset}, words.clients, static_cast<uint32_t>(clients_used_ * sizeof(ClientEntry)));
      const Outcome read = co_await batch.Run();
      if (read != Outcome::kOk) co_return Step::kUnavailable;
      free = FreeEntries(clients_used_);
    }
    if (free.empty() && clients_used_ < kMaxClients) {
      batch.CompareSwap({home, kClientsUsedOffset}, clients_used_,
                        std::min<uint64_t>(clients_used_ + kGrowth, kMaxClients), &words.cas);
      const Outcome grown = co_await batch.Run();
      if (grown != Outcome::kOk) co_return Step::kUnavailable;
      continue;
    }
    if (free.empty()) {
      // Full of living ones, or of dead ones that nobody had reason to look at.
      if (looked_for_dead) co_return Step::kFull;
      looked_for_dead = true;
      const Step freed = co_await FreeDeadEntries();
      if (freed != Step::kOk) co_return freed;
      continue;
    }
    const uint32_t chosen = free[random_() % free.size()];
    if (!store_.held_entries().Hold(chosen)) continue;
    batch.CompareSwap({home, EntryOffset(chosen)}, 0, OwnerWord(), &words.cas);
    const Outcome claimed = co_await batch.Run();
    if (claimed != Outcome::kOk) {
      store_.held_entries().Abandon({chosen, OwnerWord()});  // it may have been claimed
      co_return Step::kUnavailable;
    }
    if (words.cas != 0) {  // somebody else took it
      store_.held_entries().LetGo(chosen);
      continue;
    }
    client_index_ = chosen;
    registered_ = true;  // from here on the entry must be given back
  }
  // Until the first heartbeat the entry shows a former holder's epoch, an older one: it holds back more. Unless he was
  // expelled; then nothing is held back before the first heartbeat, and it is made once more, with an epoch read
  // behind.
  for (;;) {
    batch.Read({home, kEpochOffset}, &words.epoch, sizeof(words.epoch));
    batch.Read(EntryWord(), &words.cas, sizeof(words.cas));
    batch.Read({home, kCountersOffset}, &words.counters, sizeof(words.counters));
    batch.Read({home, kEvacuationOffset}, words.evacuation, sizeof(words.evacuation));
    const Outcome epoch_read = co_await batch.Run();
    if (epoch_read != Outcome::kOk) co_return Step::kUnavailable;
    const Step learnt = co_await LearnMembers(batch);
    if (learnt != Step::kOk) co_return learnt;
    epoch_ = words.epoch;
    // What an ended client left: chunks that were emptied since did not wait for it.
    if (memory_->evacuations() != words.counters.evacuations && !Mutated(Mutation::kKeptMemoryUnchecked)) {
      memory_ = std::make_unique<MemoryState>(chunk_bytes_);
    }
    memory_->SetEvacuating(words.evacuation, words.counters.evacuations);
    const ClientWord found(words.cas);
    const ClientWord mine = found.Beat(epoch_);
    const int64_t posted_ns = clock_.NowNs();
    batch.CompareSwap(EntryWord(), found.word(), mine.word(), &words.cas);
    const Outcome announced = co_await batch.Run();
    if (announced != Outcome::kOk) co_return Step::kUnavailable;
    if (words.cas != found.word() || found.state() == ClientState::kExpelled) continue;
    registration_.Beat(mine, posted_ns);
    co_return Step::kOk;
  }
}

Task<Step> ClientCore::FreeDeadEntries() {
  EpochBuffers::Registered& words = epoch_buffers_->words();
  Batch& batch = epoch_buffers_->batch();
  for (bool more = true; more;) more = co_await GiveBackAbandonedEntry(batch);
  for (uint32_t i = 0; i < clients_used_; ++i) {
    const uint64_t other = words.clients[i].owner;
    if (!IsDead(other)) continue;
    batch.CompareSwap({store_.home(), EntryOffset(i)}, other, 0, &words.cas);
    const Outcome freed = co_await batch.Run();
    if (freed != Outcome::kOk) co_return Step::kUnavailable;
  }
  co_return Step::kOk;
}

// Until the entry is free, or nothing can be said to its home any more.
Task<Step> ClientCore::Unregister() {
  EpochBuffers::Registered& words = epoch_buffers_->words();
  Batch& batch = epoch_buffers_->batch();
  batch.Renew();
  batch.CompareSwap({store_.home(), EntryOffset(client_index_)}, OwnerWord(), 0, &words.cas);
  const Outcome released = co_await batch.Run();
  if (released != Outcome::kOk) co_return released == Outcome::kFenced ? Step::kRestart : Step::kUnavailable;
  registration_.Leave();
  registered_ = false;
  store_.held_entries().LetGo(client_index_);
  co_return Step::kOk;
}

// In the stead of a client that could not give its entry back. False: there is none, or it is abandoned still.
Task<bool> ClientCore::GiveBackAbandonedEntry(Batch& batch) {
  HeldEntries& held = store_.held_entries();
  const std::optional<ClaimedEntry> entry = held.TakeAbandoned();
  if (!entry) co_return false;
  batch.CompareSwap({store_.home(), EntryOffset(entry->index)}, entry->owner, 0, &epoch_buffers_->words().cas);
  const Outcome freed = co_await batch.Run();
  if (freed != Outcome::kOk) {
    held.Abandon(*entry);
    co_return false;
  }
  held.LetGo(entry->index);
  compaction_wanted_ = true;  // for what its client held
  co_return true;
}

GlobalAddress ClientCore::EntryWord() const {
  return {store_.home(), EntryOffset(client_index_) + offsetof(ClientEntry, word)};
}

// The heartbeat, with the oldest epoch in flight. kRestart: not this time.
Task<Step> ClientCore::Announce(Batch& batch, uint64_t epoch) {
  EpochBuffers::Registered& words = epoch_buffers_->words();
  // From what is there: an announcement that was lost with its connection may have been made.
  const ClientWord found(words.clients[client_index_].word);
  if (found.state() == ClientState::kExpelled) {
    BecomeExpelled(found);
    co_return Step::kRestart;
  }
  const ClientWord mine = found.Beat(epoch);
  const int64_t posted_ns = clock_.NowNs();
  batch.CompareSwap(EntryWord(), found.word(), mine.word(), &words.announcement);
  const Outcome announced = co_await batch.Run();
  if (announced != Outcome::kOk || batch.Stale()) co_return Step::kUnavailable;
  const ClientWord old(words.announcement);
  if (old == found) {
    registration_.Beat(mine, posted_ns);
    ++stats_.heartbeats;
    co_return Step::kOk;
  }
  if (old.state() == ClientState::kExpelled) BecomeExpelled(old);
  co_return Step::kRestart;  // else a renewal was faster
}

// Everything that this client knows is void, and nothing that it has not posted yet will be.
void ClientCore::BecomeExpelled(ClientWord word) {
  if (registration_.expelled()) return;
  ++stats_.fenced;
  registration_.Expel(word);
  connections_.Fence();
  // What it held is found by sweeping.
  memory_ = std::make_unique<MemoryState>(chunk_bytes_);
  void_memory_ = std::make_unique<MemoryState>(chunk_bytes_);
  directory_.Clear();
  retired_tables_.clear();
  full_nodes_.clear();
  renew_at_ns_ = INT64_MIN;
}

// Past the gate, through queues of its own: a heartbeat when the lease is over; or, after an expulsion and once no
// verb is under way any more, its acknowledgement and a new registration in one.
Task<void> ClientCore::RenewLease() {
  renewal_failed_ = true;
  if (!renewal_) {
    renewal_ = std::make_unique<Renewal>(node_, store_.reconnect_budget_ns(), *this, stats_);
    const Status opened = renewal_->connections.Open(4, {.dc_initiators = 1, .sq_depth = 16});
    if (!opened.ok()) {
      renewal_.reset();
      co_return;
    }
    renewal_->batch.Attach(&renewal_->connections, arena_->lkey());
  }
  std::array<uint64_t, 4>& words = epoch_buffers_->words().renewal;
  Batch& batch = renewal_->batch;
  const krcore::NodeId home = store_.home();
  if (!renewal_->connections.Reach(home)) co_return;
  ClientWord found = registration_.word();
  uint64_t epoch = found.epoch();
  for (;;) {
    if (registration_.expelled()) {
      EpochBuffers::Registered& buffers = epoch_buffers_->words();
      batch.Read({home, kEpochOffset}, &words[1], sizeof(uint64_t));
      batch.Read({home, kCountersOffset}, &buffers.counters, sizeof(buffers.counters));
      batch.Read({home, kEvacuationOffset}, buffers.evacuation, sizeof(buffers.evacuation));
      const Outcome read = co_await batch.Run();
      if (read != Outcome::kOk) co_return;
      const Step learnt = co_await LearnMembers(batch);
      if (learnt != Step::kOk) co_return;
      epoch = words[1];
      memory_->SetEvacuating(buffers.evacuation, buffers.counters.evacuations);
    }
    const ClientWord mine = found.Beat(epoch);
    const int64_t posted_ns = clock_.NowNs();
    batch.CompareSwap(EntryWord(), found.word(), mine.word(), &words[0]);
    const Outcome renewed = co_await batch.Run();
    if (renewed != Outcome::kOk) co_return;
    renewal_failed_ = false;
    if (words[0] == found.word()) {
      // While the entry said EXPELLED, nothing held the epoch back to what was read. From now on something does.
      if (found.state() == ClientState::kExpelled) {
        found = mine;
        continue;
      }
      if (registration_.expelled()) {
        epoch_ = epoch;
        // Nothing of theirs has been posted since; and announcements never go back.
        for (const auto& operation : operations_) operation->epoch = std::max(operation->epoch, epoch);
        if (mover_op_) mover_op_->epoch = std::max(mover_op_->epoch, epoch);
      }
      registration_.Beat(mine, posted_ns);
      ++stats_.heartbeats;
      co_return;
    }
    found = ClientWord(words[0]);
    if (found.state() == ClientState::kExpelled && !registration_.expelled()) {
      BecomeExpelled(found);
      co_return;
    }
    epoch = std::max(epoch, found.epoch());  // its own announcement was faster, and may not be taken back
  }
}

// What is due, after a look at the clock: maintenance, or the renewal of a lease that is over.
void ClientCore::CareForRegistration() {
  const int64_t now_ns = registration_.Now();
  const bool shut = registration_.overdue() || registration_.expelled();
  if (shut) {
    if (renewing_ > 0 || renewals_end_ || now_ns < renew_at_ns_) return;
    if (registration_.expelled() && !connections_.pool().NothingPosted()) return;
    // The home does not answer. Who waits has a deadline.
    if (renewal_failed_) connections_.DiscardUnposted();
    renew_at_ns_ = now_ns + registration_.lease_ns() / 16;
    RunDetached(RenewLease(), &renewing_);
    return;
  }
  renew_at_ns_ = INT64_MIN;
  renewal_failed_ = false;
  if (now_ns < maintain_at_ns_ || maintaining_ > 0 || closing_) return;
  // Together the clients read not more than about a gigabyte a second of the table of clients.
  const int64_t table_ns =
      static_cast<int64_t>(clients_used_) * clients_used_ * static_cast<int64_t>(sizeof(ClientEntry));
  const auto after = [&](int64_t least_ns) {
    return now_ns + std::min(std::max(least_ns, table_ns), registration_.lease_ns() / 4);
  };
  maintain_at_ns_ = after(kMaintenanceNs);
  maintain_idle_at_ns_ = after(kIdleMaintenanceNs);
  RunDetached(Maintain(), &maintaining_);
  // Free blocks that are many are better chunks for others.
  const bool much = memory_->free_bytes() >= kMuchFree * chunk_bytes_;
  if ((compaction_wanted_ || much) && now_ns >= compact_again_at_ns_) StartCompaction({}, /*for_room=*/false);
}

// Others' entries. One that has held back reclamation, unchanged, is freed if its process is confirmed dead: nothing
// that it posted can execute any more. If that is not known, it is expelled once it has not changed for 1.5 leases.
Task<void> ClientCore::Observe(Batch& batch, uint64_t oldest, uint64_t epoch) {
  const EpochBuffers::Registered& words = epoch_buffers_->words();
  const int64_t now_ns = clock_.NowNs();
  const int64_t lease_ns = registration_.lease_ns();
  uint32_t index = clients_used_;
  for (uint32_t i = 0; i < clients_used_ && index == clients_used_ && oldest < epoch; ++i) {
    const ClientWord word(words.clients[i].word);
    if (i != client_index_ && words.clients[i].owner != 0 && word.state() != ClientState::kExpelled &&
        word.epoch() == oldest) {
      index = i;
    }
  }
  if (index < clients_used_) {
    const ClientEntry entry = words.clients[index];
    if (index != straggler_.index || entry.owner != straggler_.owner || entry.word != straggler_.word) {
      straggler_ = {index, entry.owner, entry.word, now_ns, now_ns + lease_ns / 64};
      const auto seen = seen_unchanged_.find(index);
      if (seen != seen_unchanged_.end() && seen->second.first == entry) straggler_.since_ns = seen->second.second;
    }
    if (now_ns >= straggler_.ask_at_ns) {
      straggler_.ask_at_ns = now_ns + lease_ns / 8;
      if (IsDead(entry.owner)) {
        co_await FreeEntry(batch, index, entry.owner);
        co_await FreeOthersThatDied(batch, index, epoch);
        co_return;
      }
    }
    if (now_ns - straggler_.since_ns > lease_ns + lease_ns / 2) {
      uint64_t& old = epoch_buffers_->words().cas;
      const ClientWord seen(entry.word);
      batch.CompareSwap({store_.home(), EntryOffset(index) + offsetof(ClientEntry, word)}, seen.word(),
                        seen.Expelled().word(), &old);
      const Outcome expelled = co_await batch.Run();
      if (expelled == Outcome::kOk && old == seen.word()) ++stats_.expulsions;
      co_return;
    }
  }
  // An expelled one that has died since keeps what it knew from being reused, and chunks from being emptied.
  if (expelled_epochs_.empty() || now_ns < ask_expelled_at_ns_) co_return;
  ask_expelled_at_ns_ = now_ns + lease_ns / 8;
  for (uint32_t n = 0; n < clients_used_; ++n) {
    expelled_cursor_ = (expelled_cursor_ + 1) % clients_used_;
    const ClientEntry entry = words.clients[expelled_cursor_];
    if (entry.owner == 0 || ClientWord(entry.word).state() != ClientState::kExpelled) continue;
    if (IsDead(entry.owner)) {
      co_await FreeEntry(batch, expelled_cursor_, entry.owner);
      co_await FreeOthersThatDied(batch, expelled_cursor_, epoch);
    }
    co_return;
  }
}

// After one that died: others that hold the epoch or memory back. Where many die, each need not be watched by itself.
Task<void> ClientCore::FreeOthersThatDied(Batch& batch, uint32_t index, uint64_t epoch) {
  const EpochBuffers::Registered& words = epoch_buffers_->words();
  uint32_t questions = 0;
  for (uint32_t i = 0; i < clients_used_ && questions < kDeathsAtOnce; ++i) {
    const ClientEntry other = words.clients[i];
    if (i == index || i == client_index_ || other.owner == 0 || ClientWord(other.word).epoch() >= epoch) continue;
    ++questions;
    if (!IsDead(other.owner)) continue;
    co_await FreeEntry(batch, i, other.owner);
    if (batch.Stale()) co_return;
  }
}

bool ClientCore::IsDead(uint64_t owner) {
  if (Mutated(Mutation::kUnconfirmedDeath)) return true;
  return node_.IsConfirmedDead(static_cast<krcore::NodeId>(owner >> 32), static_cast<uint32_t>(owner));
}

Task<void> ClientCore::FreeEntry(Batch& batch, uint32_t index, uint64_t owner) {
  batch.CompareSwap({store_.home(), EntryOffset(index)}, owner, 0, &epoch_buffers_->words().cas);
  const Outcome freed = co_await batch.Run();
  if (freed == Outcome::kOk && epoch_buffers_->words().cas == owner) {
    ++stats_.dead_clients_found;
    compaction_wanted_ = true;  // for what it held
  }
}

uint64_t ClientCore::OwnerWord() const { return uint64_t{node_.id()} << 32 | node_.incarnation(); }

}  // namespace kvs
