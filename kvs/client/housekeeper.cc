// The housekeeper. Most of the time it is not a client: a client that is registered and seldom polled would hold
// everybody's epochs back. It looks at the home and at the chunks by READs, and becomes a client when there is
// something to do.
#include "kvs/housekeeper.h"

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "kvs/client/client_core.h"
#include "kvs/client/store_core.h"
#include "kvs/memory/survey.h"

namespace kvs {
namespace {

// The time for one look, and how many processes it asks about at a look.
constexpr int64_t kLookPatienceNs = 100'000'000;
constexpr uint32_t kQuestions = 64;
// It sweeps again when this part of the FREE chunks was taken since the last sweep, or kMostSlackPart of all usable
// ones, whichever is less.
constexpr uint64_t kSlackPart = 4, kMostSlackPart = 16;
// If fewer than this part of the chunks are FREE, it is thorough and does not rest. Else it rests kRestPerWork times
// its work.
constexpr uint64_t kScarcePart = 8;
constexpr int64_t kRestPerWork = 9;
// What it has tried in vain it tries again even if nothing new is known: after one lease, then after twice as long each
// time, up to kMostPatienceLeases. But it never does so sooner than kRestInVain times as long as the sweep worked.
// (Writers that wait for memory take a sweep for progress. So they soon see none, and give up.)
constexpr int64_t kMostPatienceLeases = 20, kRestInVain = 63;
constexpr int64_t kSweepMs = 60'000;
// Values that have expired are looked for in a scan over all keys, a part at a time. A part ends after kExpiryPartNs,
// or with the next table, and then the scan rests kRestPerWork times as long. A new one begins kExpiryRestNs after its
// end.
constexpr int64_t kExpiryPartNs = 20'000'000, kExpiryRestNs = 10'000'000'000;
constexpr uint32_t kRemovedAtOnce = 16;
// The part of all positions that the smallest table has.
constexpr uint64_t kLeastTable = uint64_t{1} << (64 - kMaxDepth);
// How soon to poll the client again if nothing has come for it.
constexpr int64_t kPollNs = 50'000;

class HousekeeperCore final : public Housekeeper {
 public:
  HousekeeperCore(StoreCore& store, std::unique_ptr<Survey> survey) : store_(store), survey_(std::move(survey)) {}

  int64_t Step() override {
    const int64_t next_ns = client_ ? Sweep() : LookIfDue();
    stats_.is_client = client_ != nullptr;
    return next_ns;
  }
  const HousekeeperStats& stats() const override { return stats_; }

 private:
  int64_t LookIfDue() {
    const int64_t now_ns = store_.clock().NowNs();
    if (now_ns < look_at_ns_) return look_at_ns_ - now_ns;
    look_at_ns_ = now_ns + look_every_ns();
    if (Look()) {
      const bool sweep_due = SweepIsDue(now_ns);
      const bool expiry_due = expiring_ && now_ns >= expire_at_ns_;
      // If both are, they take turns.
      if (sweep_due || expiry_due) Begin(sweep_due && !(expiry_due && sweeps_));
    }
    return client_ ? 0 : std::max(look_at_ns_ - store_.clock().NowNs(), kPollNs);
  }
  // A client's entry, and the time since which it has not changed.
  struct Seen {
    ClientEntry entry;
    int64_t since_ns = 0;
  };
  bool Look();
  void AskForDead(const HomeView& home, int64_t now_ns);
  bool SweepIsDue(int64_t now_ns);
  void Begin(bool sweep);
  int64_t Sweep();
  void EndSweep(int64_t now_ns);
  void EndExpiryPart(int64_t now_ns);
  int64_t look_every_ns() const { return store_.shape().lease_ns / 4; }
  int64_t TryAgainAfter(int64_t now_ns) const {
    return now_ns + std::max(patience_leases_ * store_.shape().lease_ns, kRestInVain * worked_ns_);
  }
  bool scarce() const { return free_ * kScarcePart < usable_; }

  StoreCore& store_;
  const std::unique_ptr<Survey> survey_;
  int64_t look_at_ns_ = 0, rest_until_ns_ = 0, try_again_at_ns_ = 0;

  // What it saw last.
  std::map<uint32_t, Seen> entries_;           // of the client table
  uint32_t asked_ = 0;                         // the last entry whose process it asked about
  uint64_t dead_ = 0;                          // how many of those that it asked about are dead
  uint64_t used_ = 0, free_ = 0, usable_ = 0;  // chunks
  uint64_t mover_ = 0;                         // the mover word
  bool mover_goes_on_ = false;                 // it has changed since the look before
  size_t members_ = 0;                         // how many memory nodes may hold keys
  bool expiring_ = false;                      // values that expire may be in the store
  // What it knows of the last sweep.
  bool swept_ = false;    // it has swept since the last look
  bool pending_ = false;  // the last sweep did not come to its end
  bool left_ = false;     // it left sparse chunks as they were
  int64_t patience_leases_ = 1;
  uint64_t swept_used_ = 0;
  size_t swept_members_ = 1;
  // Of the scan for values that have expired.
  uint64_t expiry_cursor_ = 0;
  uint32_t failures_ = 0;      // in a row
  uint64_t expired_seen_ = 0;  // stats_.expired when it began
  int64_t expire_at_ns_ = 0;
  HousekeeperStats stats_;

  // For the time of a sweep, or of a part of that scan. client_ comes last, so that what it writes to outlives it.
  bool sweeps_ = false;
  Status swept_status_, expiry_status_;
  CompactReport report_;
  int64_t begun_ns_ = 0, worked_ns_ = 0;
  std::unique_ptr<ClientCore> client_;
};

// False: a memory node cannot be read, and so cannot be swept either.
bool HousekeeperCore::Look() {
  const krcore::Deadline deadline = krcore::Deadline::After(store_.clock(), kLookPatienceNs);
  const auto home = survey_->ReadHome(HomeRecord{store_.shape().home, 0}, deadline);
  if (!home.ok()) return false;
  AskForDead(*home, store_.clock().NowNs());  // after the READ
  mover_goes_on_ = home->mover != 0 && home->mover != mover_;
  mover_ = home->mover;
  expiring_ = home->expiring;
  uint64_t used = 0, free = 0;
  members_ = 0;
  std::vector<ChunkWord> words;
  for (const MemberView& member : home->members) {
    if (!MayHoldKeys(member.state)) continue;
    ++members_;
    const auto use = survey_->ReadPool(member.node, deadline, &words);
    if (!use.ok()) return false;
    store_.state().chunk_ages.Saw(member.node, 0, words, home->epoch);
    used += use->used_bytes() / use->chunk_bytes;
    free += use->free_bytes() / use->chunk_bytes;
  }
  used_ = used;
  free_ = free;
  usable_ = used + free;
  return true;
}

// Asks whether clients whose entries have not changed since the last look are dead, a few at a time.
void HousekeeperCore::AskForDead(const HomeView& home, int64_t now_ns) {
  dead_ = 0;
  bool client_came = false;
  std::map<uint32_t, Seen> unchanged, entries;
  for (const auto& [index, entry] : home.entries) {
    const auto before = entries_.find(index);
    const bool same = before != entries_.end() && before->second.entry == entry;
    client_came |= before == entries_.end() || before->second.entry.owner != entry.owner;
    entries[index] = same ? before->second : Seen{entry, now_ns};
    if (same) unchanged[index] = before->second;
  }
  entries_ = std::move(entries);
  if (client_came) {
    patience_leases_ = 1;
    try_again_at_ns_ = std::min(try_again_at_ns_, TryAgainAfter(now_ns));
  }
  auto next = unchanged.upper_bound(asked_);
  for (size_t i = 0; i < std::min<size_t>(unchanged.size(), kQuestions); ++i, ++next) {
    if (next == unchanged.end()) next = unchanged.begin();
    asked_ = next->first;
    const OwnerWord owner(next->second.entry.owner);
    dead_ += store_.node().IsConfirmedDead(owner.node(), owner.incarnation()) ? 1 : 0;
  }
}

// A sweep is due when enough was taken since the last one (so that the table is scanned seldom compared with what is
// written), when a client died, or when the last sweep was held up. It is due from time to time when the last one left
// something, because nothing may show that this can be freed by now, and when memory nodes have joined. None is due
// while another client is the mover.
bool HousekeeperCore::SweepIsDue(int64_t now_ns) {
  if (std::exchange(swept_, false)) {
    swept_used_ = used_;
    swept_members_ = members_;
  }
  swept_used_ = std::min(swept_used_, used_);
  if (mover_goes_on_) return false;
  const uint64_t slack = std::max<uint64_t>(std::min(free_ / kSlackPart, usable_ / kMostSlackPart), 1);
  if (left_ && now_ns >= try_again_at_ns_) return true;
  // The empty tables of a store that began with many are to lie at all of its memory nodes.
  const bool spreads = store_.shape().initial_depth > 0 && members_ > swept_members_;
  const bool wanted = pending_ || dead_ > 0 || spreads || used_ >= swept_used_ + slack;
  return wanted && (scarce() || now_ns >= rest_until_ns_);
}

Task<void> Compact(Client& client, CompactOptions options, CompactReport* report, Status* status) {
  *status = co_await client.CompactAsync(options, report);
}

// Goes on with the scan until that time, or to its end.
Task<void> RemoveExpired(Client& client, krcore::Clock& clock, int64_t until_ns, uint64_t* cursor, Status* status) {
  constexpr ScanOptions kWholeTables{.count = UINT32_MAX, .max_bytes = uint64_t{16} << 20, .values = false};
  std::vector<ScanRecord> keys;
  do {
    *status = co_await client.ScanAsync(cursor, &keys, kWholeTables);
  } while (status->ok() && *cursor != 0 && clock.NowNs() < until_ns);
}

void HousekeeperCore::Begin(bool sweep) {
  if (store_.ViewPending()) return;  // it tries again at the next look
  auto client = store_.NewPolledClient({.max_in_flight = sweep ? 1 : kRemovedAtOnce, .address_cache_entries = 0});
  if (!client.ok()) return;  // likewise
  client_ = *std::move(client);
  for (const auto& [index, seen] : entries_) client_->SawUnchanged(index, seen.entry, seen.since_ns);
  begun_ns_ = store_.clock().NowNs();
  worked_ns_ = 0;
  sweeps_ = sweep;
  if (!sweep) {
    if (expiry_cursor_ == 0) expired_seen_ = stats_.expired;
    const int64_t until_ns = begun_ns_ + kExpiryPartNs;
    return client_->Spawn(RemoveExpired(*client_, store_.clock(), until_ns, &expiry_cursor_, &expiry_status_));
  }
  ++stats_.sweeps;
  report_ = {};
  client_->Spawn(Compact(*client_, {.thorough = scarce(), .timeout_ms = kSweepMs}, &report_, &swept_status_));
}

int64_t HousekeeperCore::Sweep() {
  const int64_t before_ns = store_.clock().NowNs();
  const bool progress = client_->Poll() != 0;
  const int64_t now_ns = store_.clock().NowNs();
  worked_ns_ += progress ? now_ns - before_ns : 0;
  const ClientStats& stats = client_->stats();
  // The client finds the dead by itself, in a moment.
  const bool all_found = !sweeps_ || stats.dead_clients_found >= dead_ || now_ns - begun_ns_ > look_every_ns();
  if (client_->spawned() > 0 || !all_found) return progress ? 0 : kPollNs;
  if (!client_->MayEnd()) return kPollNs;
  stats_.chunks_freed += stats.chunks_freed;
  stats_.expired += stats.expired;
  if (sweeps_) {
    EndSweep(now_ns);
  } else {
    EndExpiryPart(now_ns);
  }
  client_.reset();
  return 0;
}

// What it cannot read it skips: the more, the more often it has failed.
void HousekeeperCore::EndExpiryPart(int64_t now_ns) {
  failures_ = expiry_status_.ok() ? 0 : failures_ + 1;
  if (failures_ > 0) {
    const uint64_t skipped = kLeastTable << std::min(failures_ - 1, kMaxDepth - 1);
    expiry_cursor_ = expiry_cursor_ > UINT64_MAX - skipped ? 0 : expiry_cursor_ + skipped;
  }
  const bool ended = expiry_cursor_ == 0;
  expire_at_ns_ = now_ns + std::max(kRestPerWork * (now_ns - begun_ns_), ended ? kExpiryRestNs : 0);
  pending_ |= ended && stats_.expired > expired_seen_;  // what it has removed is to be swept
}

void HousekeeperCore::EndSweep(int64_t now_ns) {
  // With kTimeout a client was expelled meanwhile; with kExists another client gives memory back. (It is not pending if
  // a memory node does not answer: that may last.)
  pending_ = swept_status_ == StatusCode::kTimeout || swept_status_ == StatusCode::kExists;
  left_ = report_.chunks_left > 0;
  rest_until_ns_ = now_ns + kRestPerWork * worked_ns_;
  if (report_.chunks_freed > 0) patience_leases_ = 1;
  try_again_at_ns_ = TryAgainAfter(now_ns);
  patience_leases_ = std::min(2 * patience_leases_, kMostPatienceLeases);
  swept_ = swept_status_.ok();
}

}  // namespace

Result<std::unique_ptr<Housekeeper>> Housekeeper::Create(Store& store) {
  auto survey = Survey::Create(store.node());
  if (!survey.ok()) return survey.status();
  return std::unique_ptr<Housekeeper>(
      std::make_unique<HousekeeperCore>(static_cast<StoreCore&>(store), *std::move(survey)));
}

}  // namespace kvs
