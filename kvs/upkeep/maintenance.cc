// The rounds of maintenance (docs/protocol.md, "Epochs").
#include <algorithm>

#include "kvs/memory/mutation.h"
#include "kvs/upkeep/upkeep.h"

namespace kvs {
namespace {

// The shortest time between two rounds.
constexpr int64_t kMaintenanceNs = 500'000;
// The same while the client does nothing. docs/protocol.md, "Registration", says why it is so long.
constexpr int64_t kIdleMaintenanceNs = 5'000'000;

}  // namespace

Task<Step> FinishOthersWork(Table& table, Operation& op, uint32_t index) {
  TableRef found;
  KVS_CO_RETURN_UNLESS_OK(co_await table.directory.ReadEntry(op.batch, &op.buffers->directory[0], index, &found));
  if (found.entry.splitting()) co_return co_await table.splitter.Split(op, found);
  if (!found.entry.merging()) co_return Step::kOk;
  KVS_CO_RETURN_UNLESS_OK(co_await table.directory.ReadMerge(op.batch, &op.buffers->merge, found.entry, &op.merge));
  co_return co_await table.merger.HelpMerge(op);
}

bool Maintenance::BeginIfDue(int64_t now_ns) {
  if (now_ns < epochs_.own_work.maintain_at_ns || running_ > 0 || awaited_ || epochs_.own_work.closing) return false;
  // Together the clients READ at most about a gigabyte a second of the client table.
  const int64_t clients = epochs_.home.clients_used();
  const int64_t table_ns = clients * clients * static_cast<int64_t>(sizeof(ClientEntry));
  const auto after = [&](int64_t least_ns) {
    return now_ns + std::min(std::max(least_ns, table_ns), common_.shape.lease_ns / 4);
  };
  epochs_.own_work.maintain_at_ns = after(kMaintenanceNs);
  idle_at_ns_ = after(kIdleMaintenanceNs);
  RunDetached(Maintain(), &running_);
  return true;
}

Task<void> Maintenance::MaintainNow() {
  awaited_ = true;  // else one round might follow the other for ever
  while (running_ > 0) co_await epochs_.operations.Pause(kLookNs);
  awaited_ = false;
  ++running_;
  co_await Maintain();
  --running_;
}

// The client that ran a split or merge which this client met may be gone, and where only readers go on nobody else
// finishes it. Begins to look after one, in the background.
void Maintenance::LookAfterOthers() {
  if (table_.workbench.in_background() || epochs_.own_work.closing) return;
  if (const auto index = table_.directory.TakeUnfinished()) table_.workbench.Background(LookAfter(*index));
}

Task<void> Maintenance::LookAfter(uint32_t index) {
  Operation& op = co_await epochs_.operations.LeaseOwnOperation();
  const OperationLease lease(epochs_.operations, op);
  const Step finished = co_await FinishOthersWork(table_, op, index);
  if (finished == Step::kRestart || finished == Step::kFull) table_.directory.NoteUnfinished(index);
}

// One round: reads the epoch and everybody's announcements, stamps what was retired before, frees what is old
// enough, announces, and advances the epoch if all have seen it.
Task<void> Maintenance::Maintain() {
  Batch& batch = epochs_.home.batch();
  batch.Renew();
  LookAfterOthers();
  if (epochs_.memory->has_held()) {
    const Step released = co_await ReleaseHeldBlocks();
    if (released != Step::kOk || batch.Stale()) co_return;
  }
  Home::Registered& words = epochs_.home.words();
  const Step reported = co_await epochs_.retired.Report(batch, &words.cas);
  if (reported != Step::kOk || batch.Stale()) co_return;
  const size_t retired = epochs_.memory->unstamped();  // unlinked before the epoch is read
  const Step read = co_await epochs_.home.Read();
  if (read != Step::kOk || batch.Stale()) co_return;
  (void)co_await epochs_.registrar.GiveBackAbandonedEntry();
  if (batch.Stale()) co_return;
  const uint64_t epoch = words.epoch;
  epochs_.home.set_epoch(epoch);
  epochs_.retired.SawCounter(words.counters.retired_tables);
  epochs_.memory->Stamp(Mutated(Mutation::kEarlyStamp) ? epochs_.memory->unstamped() : retired, epoch);
  epochs_.home.SawFreedChunks(words.counters.freed_chunks);
  epochs_.memory->SetEvacuating(words.evacuation, words.counters.evacuations);

  const uint64_t mine = epochs_.operations.OldestEpochInFlight();
  uint64_t oldest = mine;
  expelled_epochs_.clear();
  for (uint32_t i = 0; i < epochs_.home.clients_used(); ++i) {
    if (i == epochs_.registrar.client_index() || !OwnerWord(words.clients[i].owner).held()) continue;
    const ClientWord other(words.clients[i].word);
    if (other.state() == ClientState::kExpelled) {
      expelled_epochs_.push_back(other.epoch());
    } else {
      oldest = std::min(oldest, other.epoch());
    }
  }
  epochs_.memory->Reclaim(oldest, expelled_epochs_);
  const Step announced = co_await epochs_.registrar.Announce(mine);
  if (announced != Step::kOk || batch.Stale()) co_return;
  announced_by_living_ = oldest;
  // This comes after the announcement, so that the epoch is never more than one beyond the entry of a living client.
  if (oldest >= epoch) {
    batch.CompareSwap({common_.shape.home, kEpochOffset}, epoch, epoch + 1, &words.cas);
    (void)co_await batch.Run();
  }
  if (batch.Stale()) co_return;
  for (const Extent& run : epochs_.memory->TakeFreeRuns()) {
    // Sweeping finds a run whose outcome is unknown.
    (void)co_await epochs_.chunks.GiveBackRun(run);
  }
  co_await epochs_.observer.Observe(oldest, epoch, !expelled_epochs_.empty());
}

// Releases blocks that were unlinked in a child during its split. Once that is finished, no frozen slot names them.
Task<Step> Maintenance::ReleaseHeldBlocks() {
  TableRef table;
  held_cursor_ = epochs_.memory->AnyHeldIndex(held_cursor_);
  const Step read =
      co_await table_.directory.ReadEntry(epochs_.home.batch(), &epochs_.home.words().directory, held_cursor_, &table);
  if (read != Step::kOk) co_return read;
  if (epochs_.home.batch().Stale()) co_return Step::kRestart;
  if (!table.migrating()) {
    epochs_.memory->ReleaseHeld(held_cursor_);
    epochs_.cache.Insert(table);
    co_return Step::kOk;
  }
  // The splitter may be dead, and perhaps nobody else ever comes to finish the split: updates need no free slot.
  epochs_.operations.PinForMaintenance(epochs_.home.epoch());  // for the table that FinishAbandonedSplit reads
  const Step finished = co_await table_.splitter.FinishAbandonedSplit(epochs_.home.batch(), held_cursor_);
  epochs_.operations.PinForMaintenance(Operations::kNoPin);
  if (finished == Step::kUnavailable) co_return finished;
  co_return Step::kOk;
}

}  // namespace kvs
