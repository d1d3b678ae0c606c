#include "kvs/epochs/allocator.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "kvs/memory/mutation.h"

namespace kvs {
namespace {

// The part of a lease for which an operation waits only for what its own client had retired. That takes other clients'
// rounds of maintenance.
constexpr int64_t kOwnPartOfLease = 8;
// How long an operation waits for memory while nothing changes. It is longer than it takes to expel a stopped client
// and to take over from a stopped mover.
constexpr int64_t kPatienceLeases = 4;
// How long it waits in all. Several clients that wait become movers in turn and give room back to each other, which
// looks like progress, while a client that has stopped but lives lets no chunk be freed.
constexpr int64_t kMostLeasesForMemory = 32;

}  // namespace

bool Allocator::AllocateAtOnce(Operation& op, uint64_t bytes, krcore::NodeId node, GlobalAddress* address) {
  if (op.makes_room || op.batch.Stale() || node == krcore::kNoNode || !common_.connections.Reach(node)) return false;
  if (!home_.IsMember(node)) return false;
  bool reused = false;
  if (!memory_->Allocate(node, bytes, address, &reused)) return false;
  common_.stats.blocks_reused += reused ? 1 : 0;
  return true;
}

Task<Step> Allocator::Allocate(Operation& op, uint64_t bytes, krcore::NodeId node, GlobalAddress* address) {
  for (;; co_await operations_.BackOff(op)) {
    if (op.batch.Stale() || (op.attempt > 0 && operations_.OutOfTime(op))) co_return Step::kRestart;
    const Step allocated = co_await AllocateNow(op, bytes, node, address);
    if (allocated == Step::kOk) co_return allocated;
    if (allocated == Step::kRestart) continue;
    const Step sought = SeekRoom(op);
    if (sought != Step::kRestart) co_return allocated;
  }
}

Task<Step> Allocator::AllocateNow(Operation& op, uint64_t bytes, krcore::NodeId node, GlobalAddress* address) {
  const auto preferred = std::find(home_.members().begin(), home_.members().end(), node);
  const size_t first =
      preferred != home_.members().end() ? static_cast<size_t>(preferred - home_.members().begin()) : turn_++;
  bool unreachable = false, unknown = false;
  for (size_t m = 0; m < home_.members().size(); ++m) {
    const krcore::NodeId member = home_.members()[(first + m) % home_.members().size()];
    if (!common_.connections.HasPool(member)) {
      unknown = true;
      continue;
    }
    const Step allocated = co_await AllocateFrom(op, member, bytes, address);
    if (allocated == Step::kOk || allocated == Step::kRestart) co_return allocated;
    unreachable |= allocated == Step::kUnavailable;  // others may have room
  }
  co_return unknown ? Step::kRestart : unreachable ? Step::kUnavailable : Step::kFull;
}

// The operation waits until what its client had retired before is free, a memory node joins, or some client's mover
// frees chunks; this client's is started for that. It gives up when a sweep of the whole store has found nothing to
// gain, or nothing has changed for a while.
Step Allocator::SeekRoom(Operation& op) {
  if (op.makes_room || room_.maker == nullptr || own_work_.closing || operations_.OutOfTime(op)) return Step::kFull;
  if (!common_.connections.Reach(common_.shape.home)) return Step::kFull;  // all reclamation needs the home
  const int64_t now_ns = common_.clock.NowNs(), lease_ns = common_.shape.lease_ns;
  const MemoryState& memory = memory_.Of(op.batch);
  RoomWait& wait = op.room_wait;
  if (!wait.begun) {
    wait = {.begun = true,
            .begun_ns = now_ns,
            .compactions = room_.ended,
            .reclaimed = memory.retired() + memory.held(),
            .changes = 0,
            .changed_ns = now_ns,
            .member_changes = home_.member_changes_seen(),
            .rounds = home_.rounds()};
  }
  const uint64_t changes =
      home_.freed_chunks_seen() + room_.others_turns + std::min(memory.reclaimed(), wait.reclaimed);
  if (changes != wait.changes) {
    wait.changes = changes;
    wait.changed_ns = now_ns;
  }
  if (now_ns - wait.begun_ns > kMostLeasesForMemory * lease_ns) return Step::kFull;
  op.again = Again::kRoom;
  own_work_.maintain_at_ns = 0;  // the next round at once
  const bool comes_back = memory.reclaimed() < wait.reclaimed;
  if (comes_back && now_ns - wait.begun_ns < lease_ns / kOwnPartOfLease) return Step::kRestart;
  if (room_.running > 0) room_.waited_for = true;  // no matter what began the run
  // A memory node that has joined since is known after a round of maintenance that began since.
  const bool joined = std::exchange(wait.member_changes, home_.member_changes_seen()) != home_.member_changes_seen();
  if (joined || room_.running > 0 || home_.read_in_round() <= wait.rounds) return Step::kRestart;
  const bool nothing_to_gain = now_ns < room_.full_until_ns && home_.freed_chunks_seen() == room_.full_freed_chunks &&
                               memory.free_bytes() < room_.full_free_bytes + common_.shape.chunk_bytes;
  const bool unreachable = room_.ended != wait.compactions && room_.last_step == Step::kUnavailable;
  if ((nothing_to_gain && !comes_back) || unreachable) return Step::kFull;
  if (now_ns - wait.changed_ns > kPatienceLeases * lease_ns) return Step::kFull;
  if (!nothing_to_gain && now_ns >= room_.pinned_until_ns) {
    const int64_t left_ms = (op.deadline_ns - now_ns) / 2'000'000;
    room_.maker->BeginRun(std::max<int64_t>(left_ms, 1));
  }
  return Step::kRestart;
}

// kRestart: another operation of this client is taking a chunk there, or used it up.
Task<Step> Allocator::AllocateFrom(Operation& op, krcore::NodeId node, uint64_t bytes, GlobalAddress* address) {
  if (!common_.connections.Reach(node)) co_return Step::kUnavailable;
  bool reused = false;
  const bool allocated = op.makes_room ? memory_.Of(op.batch).AllocateForCopy(node, bytes, address)
                                       : memory_.Of(op.batch).Allocate(node, bytes, address, &reused);
  common_.stats.blocks_reused += reused ? 1 : 0;
  if (allocated) co_return Step::kOk;
  if (home_.IsFull(node) && !op.makes_room) co_return Step::kFull;
  Span taken;
  if (bytes > common_.shape.chunk_bytes) {
    const auto count = static_cast<uint32_t>(bytes / common_.shape.chunk_bytes);
    const Step run = co_await chunks_.TakeChunks(op, node, ChunkKind::kRun, count, count, &taken);
    *address = {node, taken.chunk * common_.shape.chunk_bytes};
    co_return run;
  }
  if (op.makes_room) {
    const Step chunk = co_await chunks_.TakeChunks(op, node, ChunkKind::kBlocks, 1, kUnitsOfCut, &taken);
    if (chunk == Step::kOk) memory_.Of(op.batch).AddChunkForCopies(node, taken.chunk, taken.generation);
    if (chunk == Step::kUnavailable) co_return chunk;
    const bool copied = memory_.Of(op.batch).AllocateForCopy(node, bytes, address) ||
                        memory_.Of(op.batch).Allocate(node, bytes, address, &reused);
    co_return copied ? Step::kOk : Step::kFull;
  }
  if (taking_chunk_[node]) co_return Step::kRestart;
  taking_chunk_[node] = true;
  const Step span = co_await chunks_.TakeSpan(op, node, bytes, &taken);
  taking_chunk_[node] = false;
  if (span == Step::kFull) home_.NoteFull(node);
  if (span != Step::kOk) co_return span;
  memory_.Of(op.batch).AddSpan(node, taken);
  co_return memory_.Of(op.batch).Allocate(node, bytes, address, &reused) ? Step::kOk : Step::kRestart;
}

Task<Step> Allocator::AllocateTable(Operation& op, uint32_t index, GlobalAddress* table) {
  bool unreachable = false, unknown = false;
  for (size_t m = 0; m < home_.members().size(); ++m) {
    const krcore::NodeId node = home_.members()[(index + m) % home_.members().size()];
    if (!common_.connections.HasPool(node)) {
      unknown = true;
      continue;
    }
    if (memory_.Of(op.batch).AllocateTable(node, table)) co_return Step::kOk;
    const Step cut = co_await chunks_.CutTable(op, node, table);
    if (cut == Step::kOk) co_return cut;
    unreachable |= cut == Step::kUnavailable;
  }
  co_return unknown ? Step::kRestart : unreachable ? Step::kUnavailable : Step::kFull;
}

// ---- tables that are out of use

Task<Step> RetiredTables::Report(Batch& batch, uint64_t* scratch) {
  if (tables_.empty()) co_return Step::kOk;
  std::vector<GlobalAddress> tables = std::exchange(tables_, {});
  const Step reported = co_await home_.Count(batch, kRetiredTablesOffset, 1, scratch);
  if (reported != Step::kOk) {
    tables_.insert(tables_.end(), tables.begin(), tables.end());
    co_return Step::kUnavailable;
  }
  if (batch.Stale()) co_return Step::kRestart;
  const uint64_t bytes = common_.shape.geometry.bytes();
  for (const GlobalAddress table : tables) memory_->Retire({.address = table, .bytes = bytes, .is_table = true});
  co_return Step::kOk;
}

void RetiredTables::SawCounter(uint64_t counter) {
  if (counter == seen_) return;
  seen_ = counter;
  if (!Mutated(Mutation::kDirectoryCacheKept)) cache_.Clear();
}

}  // namespace kvs
