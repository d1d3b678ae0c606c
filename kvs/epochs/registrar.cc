#include "kvs/epochs/registrar.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <optional>

#include "kvs/memory/mutation.h"
#include "kvs/memory/views.h"

namespace kvs {
namespace {

// The part in use grows by this many entries, so that clients that come together do not all want the same one.
constexpr uint64_t kGrowth = 16;
// If a glance shows fewer free entries, others may have them: clients that come together would all want the same one.
constexpr size_t kManyFree = 4;
// When one client was found dead, the fabric is asked about this many others.
constexpr uint32_t kDeathsAtOnce = 64;

}  // namespace

// ---- a client's own

bool IsDead(krcore::Node& node, OwnerWord owner) {
  if (Mutated(Mutation::kUnconfirmedDeath)) return true;
  return node.IsConfirmedDead(owner.node(), owner.incarnation());
}

Registrar::Registrar(const Common& common, Home& home, Operations& operations, Registration& registration,
                     ClientMemory& memory, RetiredTables& retired, OwnWork& own_work)
    : Part(common),
      home_(home),
      operations_(operations),
      registration_(registration),
      memory_(memory),
      retired_(retired),
      own_work_(own_work) {}

std::vector<uint32_t> Registrar::FreeEntries(uint32_t below) const {
  std::vector<uint32_t> free;
  for (uint32_t i = 0; i < below; ++i) {
    if (!OwnerWord(home_.words().clients[i].owner).held()) free.push_back(i);
  }
  common_.store.held_entries.RemoveFrom(&free);
  return free;
}

Task<Step> Registrar::Register() {
  Home::Registered& words = home_.words();
  Batch& batch = home_.batch();
  const krcore::NodeId home = common_.shape.home;
  for (bool looked_for_dead = false; !registered_;) {
    if (!common_.connections.Reach(home)) co_return Step::kUnavailable;
    std::vector<uint32_t> free = FreeEntries(home_.TakeGlanced());
    if (free.size() < kManyFree) free.clear();
    if (free.empty()) {
      batch.Read({home, kCountersOffset}, &words.counters, sizeof(words.counters));
      KVS_CO_RETURN_UNLESS_OK(co_await batch.Run());
      home_.TakeClientsUsed();
    }
    if (free.empty() && home_.clients_used() > 0) {
      batch.Read({home, kClientsOffset}, words.clients,
                 static_cast<uint32_t>(home_.clients_used() * sizeof(ClientEntry)));
      KVS_CO_RETURN_UNLESS_OK(co_await batch.Run());
      free = FreeEntries(home_.clients_used());
    }
    if (free.empty() && home_.clients_used() < kMaxClients) {
      home_.AskToSwapEntry(batch, kClientsUsedOffset, home_.clients_used(),
                           std::min<uint64_t>(home_.clients_used() + kGrowth, kMaxClients), &words.cas, Word::kAnyones);
      KVS_CO_RETURN_UNLESS_OK(co_await batch.Run());
      continue;
    }
    if (free.empty()) {
      // The table is full of living clients, or of dead ones that nobody had reason to look at.
      if (looked_for_dead) co_return Step::kFull;
      looked_for_dead = true;
      KVS_CO_RETURN_UNLESS_OK(co_await FreeDeadEntries());
      continue;
    }
    const uint32_t chosen = free[common_.random() % free.size()];
    if (!common_.store.held_entries.Hold(chosen)) continue;
    OwnerWord expected, found(words.clients[chosen].owner);
    do {
      expected = found;
      owner_ = expected.ClaimedBy(common_.node.id(), common_.node.incarnation());
      home_.AskToSwapEntry(batch, EntryOffset(chosen), expected.word(), owner_.word(), &words.cas, Word::kOwn);
      const Outcome claimed = co_await batch.Run();
      if (claimed != Outcome::kOk) {
        common_.store.held_entries.Abandon({chosen, owner_});  // it may have been claimed
        co_return Step::kUnavailable;
      }
      found = OwnerWord(words.cas);
    } while (found != expected && !found.held());  // others had it meanwhile, and gave it back
    if (found != expected) {                       // another client took it
      common_.store.held_entries.LetGo(chosen);
      continue;
    }
    client_index_ = chosen;
    registered_ = true;  // from here on the entry must be given back
    if (Views* const views = common_.connections.views()) views->SetClient(client_index_);
  }
  // Until the first heartbeat the entry shows a former holder's epoch, which is older and so holds back more. If that
  // holder was expelled, nothing is held back before the first heartbeat. Then a second heartbeat follows, with an
  // epoch read after the first.
  for (;;) {
    batch.Read({home, kEpochOffset}, &words.epoch, sizeof(words.epoch));
    batch.Read(EntryWord(), &words.cas, sizeof(words.cas));
    batch.Read({home, kCountersOffset}, &words.counters, sizeof(words.counters));
    batch.Read({home, kEvacuationOffset}, words.evacuation, sizeof(words.evacuation));
    KVS_CO_RETURN_UNLESS_OK(co_await batch.Run());
    KVS_CO_RETURN_UNLESS_OK(co_await home_.LearnMembers(batch));
    home_.set_epoch(words.epoch);
    // This memory may be what an ended client left. Chunks that were emptied since did not wait for it.
    if (memory_->evacuations() != words.counters.evacuations && !Mutated(Mutation::kKeptMemoryUnchecked)) {
      memory_.Renew();
    }
    memory_->SetEvacuating(words.evacuation, words.counters.evacuations);
    const ClientWord found(words.cas);
    const ClientWord mine = found.Beat(home_.epoch());
    const int64_t posted_ns = common_.clock.NowNs();
    home_.AskToSwapEntry(batch, EntryWord().offset, found.word(), mine.word(), &words.cas, Word::kOwn);
    KVS_CO_RETURN_UNLESS_OK(co_await batch.Run());
    if (words.cas != found.word() || found.state() == ClientState::kExpelled) continue;
    registration_.Beat(mine, posted_ns);
    co_return Step::kOk;
  }
}

Task<Step> Registrar::FreeDeadEntries() {
  Home::Registered& words = home_.words();
  Batch& batch = home_.batch();
  for (bool more = true; more;) more = co_await GiveBackAbandonedEntry();
  for (uint32_t i = 0; i < home_.clients_used(); ++i) {
    const OwnerWord other(words.clients[i].owner);
    if (!other.held() || !IsDead(common_.node, other)) continue;
    home_.AskToSwapEntry(batch, EntryOffset(i), other.word(), other.Released().word(), &words.cas, Word::kAnyones);
    KVS_CO_RETURN_UNLESS_OK(co_await batch.Run());
  }
  co_return Step::kOk;
}

Task<Step> Registrar::Unregister() {
  Home::Registered& words = home_.words();
  Batch& batch = home_.batch();
  batch.Renew();
  home_.AskToSwapEntry(batch, EntryOffset(client_index_), owner_.word(), owner_.Released().word(), &words.cas,
                       Word::kOwn);
  const Outcome released = co_await batch.Run();
  if (released != Outcome::kOk) co_return released == Outcome::kFenced ? Step::kRestart : Step::kUnavailable;
  registration_.Leave();
  registered_ = false;
  if (Views* const views = common_.connections.views()) views->SetClient(std::nullopt);
  common_.store.held_entries.LetGo(client_index_);
  co_return Step::kOk;
}

Task<bool> Registrar::GiveBackAbandonedEntry() {
  Batch& batch = home_.batch();
  HeldEntries& held = common_.store.held_entries;
  const std::optional<ClaimedEntry> entry = held.TakeAbandoned();
  if (!entry) co_return false;
  home_.AskToSwapEntry(batch, EntryOffset(entry->index), entry->owner.word(), entry->owner.Released().word(),
                       &home_.words().cas, Word::kOwn);
  const Outcome freed = co_await batch.Run();
  if (freed != Outcome::kOk) {
    held.Abandon(*entry);
    co_return false;
  }
  held.LetGo(entry->index);
  own_work_.compaction_wanted = true;  // to find what its client held
  co_return true;
}

bool Registrar::CareForLease() {
  const int64_t now_ns = registration_.Now();
  if (!registration_.overdue() && !registration_.expelled()) {
    renew_at_ns_ = INT64_MIN;
    renewal_failed_ = false;
    return true;
  }
  if (renewing_ > 0 || renewals_end_ || now_ns < renew_at_ns_) return false;
  if (registration_.expelled() && !common_.connections.pool().NothingPosted()) return false;
  // The home does not answer. Every operation that waits has a deadline.
  if (renewal_failed_) common_.connections.DiscardUnposted();
  renew_at_ns_ = now_ns + common_.shape.lease_ns / 16;
  RunDetached(RenewLease(), &renewing_);
  return false;
}

GlobalAddress Registrar::EntryWord() const {
  return {common_.shape.home, EntryOffset(client_index_) + offsetof(ClientEntry, word)};
}

Task<Step> Registrar::Announce(uint64_t epoch) {
  Home::Registered& words = home_.words();
  Batch& batch = home_.batch();
  // It starts from the word that is there: an announcement whose connection broke may have been made.
  const ClientWord found(words.clients[client_index_].word);
  if (found.state() == ClientState::kExpelled) {
    BecomeExpelled(found);
    co_return Step::kRestart;
  }
  const ClientWord mine = found.Beat(epoch);
  const int64_t posted_ns = common_.clock.NowNs();
  home_.AskToSwapEntry(batch, EntryWord().offset, found.word(), mine.word(), &words.announcement, Word::kOwn);
  const Outcome announced = co_await batch.Run();
  if (announced != Outcome::kOk || batch.Stale()) co_return Step::kUnavailable;
  const ClientWord old(words.announcement);
  if (old == found) {
    registration_.Beat(mine, posted_ns);
    ++common_.stats.heartbeats;
    co_return Step::kOk;
  }
  if (old.state() == ClientState::kExpelled) BecomeExpelled(old);
  co_return Step::kRestart;  // or a renewal was faster
}

// Makes everything that this client knows void. What it has not posted yet is never posted.
void Registrar::BecomeExpelled(ClientWord word) {
  if (registration_.expelled()) return;
  ++common_.stats.fenced;
  registration_.Expel(word);
  common_.connections.Fence();
  memory_.RenewAfterExpulsion();
  retired_.Forget();
  home_.ForgetFull();
  renew_at_ns_ = INT64_MIN;
}

// Makes a heartbeat when the lease is over, through queues of its own, past the gate. After an expulsion, once no verb
// is under way any more, the heartbeat both acknowledges it and registers anew.
Task<void> Registrar::RenewLease() {
  renewal_failed_ = true;
  if (!renewal_) {
    renewal_ = std::make_unique<Renewal>(common_, operations_);
    const Status opened = renewal_->connections.Open(4, {.dc_initiators = 1, .sq_depth = 16});
    if (!opened.ok()) {
      renewal_.reset();
      co_return;
    }
    renewal_->connections.ExpectSame(common_.connections, common_.shape.home);
    renewal_->batch.Attach(&renewal_->connections, operations_.lkey());
    if (Views* const views = common_.connections.views()) renewal_->connections.SetViews(*views, nullptr);
  }
  std::array<uint64_t, 4>& words = home_.words().renewal;
  Batch& batch = renewal_->batch;
  const krcore::NodeId home = common_.shape.home;
  if (!renewal_->connections.Reach(home)) co_return;
  ClientWord found = registration_.word();
  uint64_t epoch = found.epoch();
  for (;;) {
    if (registration_.expelled()) {
      Home::Registered& buffers = home_.words();
      batch.Read({home, kEpochOffset}, &words[1], sizeof(uint64_t));
      batch.Read({home, kCountersOffset}, &buffers.counters, sizeof(buffers.counters));
      batch.Read({home, kEvacuationOffset}, buffers.evacuation, sizeof(buffers.evacuation));
      const Outcome read = co_await batch.Run();
      if (read != Outcome::kOk) co_return;
      const Step learnt = co_await home_.LearnMembers(batch);
      if (learnt != Step::kOk) co_return;
      epoch = words[1];
      memory_->SetEvacuating(buffers.evacuation, buffers.counters.evacuations);
    }
    const ClientWord mine = found.Beat(epoch);
    const int64_t posted_ns = common_.clock.NowNs();
    batch.CompareSwapChecked(EntryWord(), found.word(), mine.word(), &words[0], Word::kOwn,
                             home_.words().renewal_configuration.data());
    const Outcome renewed = co_await batch.Run();
    if (renewed != Outcome::kOk) co_return;
    renewal_failed_ = false;
    if (words[0] == found.word()) {
      // While the entry said EXPELLED, nothing held the epoch back, so it may be past the one that was read. From now
      // on the entry does, so read and announce again.
      if (found.state() == ClientState::kExpelled) {
        found = mine;
        continue;
      }
      if (registration_.expelled()) {
        home_.set_epoch(epoch);
        operations_.RaiseEpochs(epoch);
      }
      registration_.Beat(mine, posted_ns);
      ++common_.stats.heartbeats;
      co_return;
    }
    found = ClientWord(words[0]);
    if (found.state() == ClientState::kExpelled && !registration_.expelled()) {
      BecomeExpelled(found);
      co_return;
    }
    epoch = std::max(epoch, found.epoch());  // the client's own announcement was faster, and must not be taken back
  }
}

// ---- others' entries

Task<void> Observer::Observe(uint64_t oldest, uint64_t epoch, bool any_expelled) {
  const Home::Registered& words = home_.words();
  Batch& batch = home_.batch();
  const int64_t now_ns = common_.clock.NowNs();
  const int64_t lease_ns = common_.shape.lease_ns;
  uint32_t index = home_.clients_used();
  for (uint32_t i = 0; i < home_.clients_used() && index == home_.clients_used() && oldest < epoch; ++i) {
    const ClientWord word(words.clients[i].word);
    if (i != registrar_.client_index() && OwnerWord(words.clients[i].owner).held() &&
        word.state() != ClientState::kExpelled && word.epoch() == oldest) {
      index = i;
    }
  }
  if (index < home_.clients_used()) {
    const ClientEntry entry = words.clients[index];
    if (index != straggler_.index || entry.owner != straggler_.owner || entry.word != straggler_.word) {
      straggler_ = {index, entry.owner, entry.word, now_ns, now_ns + lease_ns / 64};
      const auto seen = seen_unchanged_.find(index);
      if (seen != seen_unchanged_.end() && seen->second.first == entry) straggler_.since_ns = seen->second.second;
    }
    if (now_ns >= straggler_.ask_at_ns) {
      straggler_.ask_at_ns = now_ns + lease_ns / 8;
      if (IsDead(common_.node, OwnerWord(entry.owner))) {
        co_await FreeEntry(index, OwnerWord(entry.owner));
        co_await FreeOthersThatDied(index, epoch);
        co_return;
      }
    }
    if (now_ns - straggler_.since_ns > lease_ns + lease_ns / 2) {
      uint64_t& old = home_.words().cas;
      const ClientWord seen(entry.word);
      batch.CompareSwap({common_.shape.home, EntryOffset(index) + offsetof(ClientEntry, word)}, seen.word(),
                        seen.Expelled().word(), &old);
      const Outcome expelled = co_await batch.Run();
      if (expelled == Outcome::kOk && old == seen.word()) ++common_.stats.expulsions;
      co_return;
    }
  }
  // An expelled client that has died since still keeps what it knew from being reused, and chunks from being emptied.
  if (!any_expelled || now_ns < ask_expelled_at_ns_) co_return;
  ask_expelled_at_ns_ = now_ns + lease_ns / 8;
  for (uint32_t n = 0; n < home_.clients_used(); ++n) {
    expelled_cursor_ = (expelled_cursor_ + 1) % home_.clients_used();
    const ClientEntry entry = words.clients[expelled_cursor_];
    const OwnerWord owner(entry.owner);
    if (!owner.held() || ClientWord(entry.word).state() != ClientState::kExpelled) continue;
    if (IsDead(common_.node, owner)) {
      co_await FreeEntry(expelled_cursor_, owner);
      co_await FreeOthersThatDied(expelled_cursor_, epoch);
    }
    co_return;
  }
}

// After a client was found dead, looks for other dead ones that hold the epoch or memory back. So where many die, each
// need not be watched by itself.
Task<void> Observer::FreeOthersThatDied(uint32_t index, uint64_t epoch) {
  const Home::Registered& words = home_.words();
  uint32_t questions = 0;
  for (uint32_t i = 0; i < home_.clients_used() && questions < kDeathsAtOnce; ++i) {
    const ClientEntry other = words.clients[i];
    const OwnerWord owner(other.owner);
    if (i == index || i == registrar_.client_index() || !owner.held() || ClientWord(other.word).epoch() >= epoch)
      continue;
    ++questions;
    if (!IsDead(common_.node, owner)) continue;
    co_await FreeEntry(i, owner);
    if (home_.batch().Stale()) co_return;
  }
}

Task<void> Observer::FreeEntry(uint32_t index, OwnerWord owner) {
  Batch& batch = home_.batch();
  batch.CompareSwap({common_.shape.home, EntryOffset(index)}, owner.word(), owner.Released().word(),
                    &home_.words().cas);
  const Outcome freed = co_await batch.Run();
  if (freed == Outcome::kOk && home_.words().cas == owner.word()) {
    ++common_.stats.dead_clients_found;
    own_work_.compaction_wanted = true;  // to find what it held
  }
}

}  // namespace kvs
