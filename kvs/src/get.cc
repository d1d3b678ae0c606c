// Get and MultiGet. The step numbers are those of docs/protocol.md.
//
// Gets of many keys take their two round trips together. Each key has an operation, which pins what its slots name; but
// one batch reads for all, and no coroutine of a key's own waits for it. A key whose value is not found so, for
// whatever reason, is then read by GetAsync, which begins anew and knows every case. A Get that blocks is tried so
// first.
#include <array>
#include <cassert>
#include <cstdint>
#include <utility>
#include <vector>

#include "kvs/src/client_core.h"
#include "kvs/src/mutation.h"

namespace kvs {
namespace {

constexpr size_t kSettled = SIZE_MAX;  // group_index of an operation that is through

}  // namespace

// ---- one key, in every case

Task<Status> ClientCore::GetAsync(std::string_view key, std::string* value) {
  if (forked()) [[unlikely]]
    co_return OpenedBeforeFork();
  if (!IsKey(key)) [[unlikely]]
    co_return LengthStatus(key, {});
  const KeyHash hash = hasher_(key);
  Turn turn(combiner_, hash, key, value);
  if (!turn.leads()) co_await turn.Wait(DeadlineFromNow());
  if (!turn.leads()) co_return turn.TakeResult();
  Operation& op = co_await LeaseOperation(key, hash);
  const Lease lease(*this, op);
  op.deadline_ns = turn.deadline_ns();
  turn.Gather();
  address_cache_.Count(clock_);
  Slot guess = address_cache_.Lookup(hash.h1);
  for (;; co_await BackOff(op)) {
    if (op.attempt > 0 && OutOfTime(op)) co_return turn.Share(TimeoutCode(op));
    if (op.batch.Stale()) [[unlikely]]
      BeginAgain(op);
    TableRef& table = op.scan.table;
    op.merge.record = {};
    if (!directory_.Lookup(op.hash, &table)) {
      const Step resolved = co_await Resolve(op, &table);
      if (Failed(op, resolved)) co_return turn.Share(UnavailableStatus("Get"));
      if (resolved != Step::kOk) continue;
    }
    const uint32_t ins = Mutated(Mutation::kInsVisible) ? MaskOf(SlotState::kIns) : 0;
    Step scanned = BeginScan(op, op.batch, kReaderStates | ins, std::exchange(guess, Slot::Free()));  // (1)
    for (;;) {
      const Outcome read = co_await op.batch.Run();
      if (scanned != Step::kRun) break;
      scanned = read == Outcome::kOk ? GoOnScan(op, op.batch) : Step::kUnavailable;
    }
    if (Failed(op, scanned)) co_return turn.Share(UnavailableStatus("Get"));
    if (scanned == Step::kFull) co_return turn.Share(StatusCode::kOutOfMemory);
    if (scanned != Step::kOk) {
      if (op.torn) directory_.Forget(table);  // one out of use may name blocks that are used again
      continue;
    }
    if (op.scan.val >= 0) [[likely]] {
      value->assign(op.scan.block.value());
      address_cache_.Learn(hash.h1, op.Candidate(static_cast<uint32_t>(op.scan.val)));
      co_return turn.Share(Status::Ok());
    }
    Step step;
    if (op.scan.closed) {  // (5)
      if (!op.merge.known() && !Mutated(Mutation::kClosedUnchecked)) {
        ++stats_.stale_directory_hits;
        directory_.Forget(table);
        op.again = Again::kAtOnce;
        continue;
      }
      step = co_await GetFromClosed(op, value);
      if (step == Step::kOk) co_return turn.Share(op.scan.val >= 0 ? StatusCode::kOk : StatusCode::kNotFound);
    } else if (op.scan.headers_fit && op.scan.frz < 0 && !op.scan.any_pending) {
      if (Mutated(Mutation::kGetMissUnchecked)) co_return turn.Share(StatusCode::kNotFound);
      step = co_await CheckHeaders(op);  // (2)
      if (step == Step::kOk) co_return turn.Share(StatusCode::kNotFound);
    } else {
      step = co_await GetDuringMigration(op, value);
      if (step == Step::kOk) co_return turn.Share(op.scan.val >= 0 ? StatusCode::kOk : StatusCode::kNotFound);
    }
    if (Failed(op, step)) co_return turn.Share(UnavailableStatus("Get"));
    op.again = Again::kAtOnce;  // the table has moved on
  }
}

// kOk: scan.val tells whether *value was set (>= 0) or the key is absent (< 0).
Task<Step> ClientCore::GetDuringMigration(Operation& op, std::string* value) {
  TableRef parent, child;
  int frozen = -1;
  Slot frozen_slot;
  if (op.scan.any_pending) {  // (4): this is a child whose split is not finished; the parent may hold the key
    child = op.scan.table;
    if (child.index == 0) co_return Step::kRestart;
    // Read behind the PEND: if the split is still going on, this is its parent; if not, the child decides alone.
    const Step found =
        co_await ReadDirectoryEntry(op.batch, &op.buffers->directory[0], ParentIndex(child.index), &parent);
    if (found != Step::kOk) co_return found;
    if (!parent.entry.splitting() || parent.entry.depth() + 1 != BirthDepth(child.index)) co_return Step::kRestart;
    const Step scanned = co_await ScanTable(op, parent, kReaderStates);
    if (scanned != Step::kOk) co_return scanned;
    if (op.scan.val >= 0) {
      value->assign(op.scan.block.value());
      co_return Step::kOk;
    }
  } else {  // (3): the headers moved, or a frozen slot of the key
    ++stats_.stale_directory_hits;
    parent = op.scan.table;
  }
  if (op.scan.frz >= 0) {
    frozen = op.scan.frz;
    frozen_slot = op.Candidate(static_cast<uint32_t>(frozen));
  }
  if (frozen >= 0 && Mutated(Mutation::kFrzWithoutChild)) {
    op.scan.val = frozen;
    co_return co_await ReadFrozenValue(op, frozen_slot, value);
  }
  if (Mutated(Mutation::kNoSecondChildScan) && child.address.valid()) co_return Step::kOk;
  if (!child.address.valid()) {
    DirectoryEntry above;
    directory_.Forget(parent);
    const Step resolved = co_await Resolve(op, &child, &above);
    if (resolved != Step::kOk) co_return resolved;
    // Several splits behind: begin again at the table that the directory names now. The same if the parent, read behind
    // the child, is another table by now: what is frozen in this one says nothing about that child.
    if (child.index == 0 || child.index == parent.index || ParentIndex(child.index) != parent.index) {
      co_return Step::kRestart;
    }
    const bool is_pair = above.has_subtable() && above.subtable() == parent.address;
    if (!is_pair && !Mutated(Mutation::kFrzFromAnyParent)) co_return Step::kRestart;
  }
  const Step scanned = co_await ScanTable(op, child, kReaderStates);
  if (scanned != Step::kOk) co_return scanned;
  if (op.scan.val >= 0) {
    value->assign(op.scan.block.value());
    co_return Step::kOk;
  }
  if (!op.scan.headers_fit || op.scan.frz >= 0) co_return Step::kRestart;  // the child is being split in its turn
  if (frozen >= 0 && op.Candidate(static_cast<uint32_t>(frozen)).state() == SlotState::kPend) {
    const Step read = co_await ReadFrozenValue(op, frozen_slot, value);
    if (read == Step::kOk) op.scan.val = frozen;
    co_return read;
  }
  if (Mutated(Mutation::kChildMissUnchecked)) co_return Step::kOk;
  // Absent, unless the child's own split began meanwhile and took the key away between the words of the scan.
  co_return co_await CheckHeaders(op);
}

// The block of a frozen slot that a scan found to be the key's.
Task<Step> ClientCore::ReadFrozenValue(Operation& op, Slot slot, std::string* value) {
  const uint32_t bytes = FirstReadBytes(slot);
  op.batch.Read(slot.block(), op.buffers->match.data(), bytes);
  const Outcome read = co_await op.batch.Run();
  if (read != Outcome::kOk) co_return Step::kUnavailable;
  BlockView block(op.buffers->match.data());
  if (slot.length_units() == kLargeBlock) {
    const Step large = co_await ReadLargeBlock(op, slot, block.bytes());
    if (large != Step::kOk) co_return large;
    block = op.scan.block;
  } else if (!block.Intact(bytes) && !Mutated(Mutation::kNoChecksum)) {
    ++stats_.checksum_retries;
    op.torn = true;
    co_return Step::kRestart;
  }
  if (block.key() != op.key) co_return Step::kRestart;
  value->assign(block.value());
  co_return Step::kOk;
}

// ---- the usual case, of one key that blocks

Status ClientCore::ResultOf(const Operation& op, std::string* value) {
  ++stats_.operations;
  if (op.scan.val < 0) return StatusCode::kNotFound;
  value->assign(op.scan.block.value());
  address_cache_.Learn(op.hash.h1, op.Candidate(static_cast<uint32_t>(op.scan.val)));
  return Status::Ok();
}

// For something that only Poll brings.
bool ClientCore::OthersWait() const {
  return spawned_ + maintaining_ + renewing_ + restructuring_ + compacting_ != 0 || !delayed_.empty() ||
         combiner_.any_waiting() || connections_.any_stalled();
}

// A round of who blocks, for a batch of its own. Where it is done when it is pushed, and nobody else waits for
// anything, there is nothing to poll for: but for what the client does by itself, when that is due.
void ClientCore::PollAlone(uint32_t* idle) {
  size_t done = OthersWait() ? 0 : connections_.PushAndTake();
  if (RunQueue& run_queue = RunQueue::OfThisThread(); !run_queue.empty()) [[unlikely]]
    run_queue.RunAll();
  if (done == 0 || registration_.Now() >= maintain_at_ns_) [[unlikely]]
    done += Poll();
  if (done != 0) {
    *idle = 0;
  } else {
    clock_.Relax(++*idle);
  }
}

// With nobody else's cache misses to overlap, each READ's begins as early as can be.
Step ClientCore::ReadAlone(Operation& op) {
  const auto poll = [this, idle = 0u]() mutable { PollAlone(&idle); };
  Batch& batch = op.batch;
  batch.CountForOperation(true);
  batch.HintEvery(1);
  Step step = BeginRead(op, batch);
  while (GoesOn(step, batch.RunBlocking(poll), batch)) step = GoOnReading(op, batch);
  return step;
}

Status ClientCore::Get(std::string_view key, std::string* value) {
  Operation* const free = IsKey(key) && !forked() ? FreeOperation() : nullptr;
  if (free != nullptr) {
    Operation& op = Take(*free, key, hasher_(key), /*of_user=*/false);
    const Lease lease(*this, op);
    if (ReadAlone(op) == Step::kOk) return ResultOf(op, value);
  }
  return Client::Get(key, value);
}

// ---- many keys

// The operations of the keys that are read together, in the keys' order. All are in use until it ends: what was asked
// for lands in their buffers.
struct ClientCore::Group {
  ClientCore& client;
  Operation* first;
  Operation* last;
  Group(ClientCore& owner, Operation& leader, size_t index) : client(owner), first(&leader), last(&leader) {
    leader.group_index = index;
    leader.group_next = nullptr;
  }
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;
  ~Group() {
    for (Operation* operation = first; operation != nullptr;) {
      Operation* const next = operation->group_next;
      client.Release(*operation);
      operation = next;
    }
  }
  void Add(Operation& operation, size_t index) {
    operation.group_index = index;
    operation.group_next = nullptr;
    last->group_next = &operation;
    last = &operation;
  }
};

Task<void> ClientCore::MultiGetAsync(std::span<const std::string_view> keys, std::span<std::string> values,
                                     std::span<Status> statuses) {
  assert(keys.size() == values.size() && keys.size() == statuses.size());
  if (forked()) [[unlikely]] {
    for (Status& status : statuses) status = OpenedBeforeFork();
    co_return;
  }
  std::vector<size_t> others;  // keys for GetAsync
  const auto leave = [&others](Operation& op) { others.push_back(std::exchange(op.group_index, kSettled)); };
  for (size_t next = 0; next < keys.size();) {
    if (!IsKey(keys[next])) {
      others.push_back(next++);
      continue;
    }
    const KeyHash hash = hasher_(keys[next]);
    Operation& leader = co_await LeaseOperation(keys[next], hash, /*of_user=*/false);
    Group group(*this, leader, next++);
    Batch& batch = leader.batch;
    batch.CountForOperation(true);
    if (BeginRead(leader, batch) != Step::kRun) leave(leader);
    for (; next < keys.size(); ++next) {
      if (!IsKey(keys[next])) {
        others.push_back(next);
        continue;
      }
      // Who holds some must not wait for more.
      Operation* const free = FreeOperation();
      if (free == nullptr) break;
      Operation& op = TakeToRead(*free, keys[next], hasher_(keys[next]));
      group.Add(op, next);
      if (BeginRead(op, batch) != Step::kRun) leave(op);
    }
    Outcome read = co_await batch.Run();
    for (bool running = true; running && GoesOn(Step::kRun, read, batch);) {
      running = false;
      for (Operation* op = group.first; op != nullptr; op = op->group_next) {
        if (op->group_index == kSettled) continue;
        const Step step = GoOnReading(*op, batch);
        if (step == Step::kOk) {
          const size_t i = std::exchange(op->group_index, kSettled);
          statuses[i] = ResultOf(*op, &values[i]);
        } else if (step == Step::kRun) {
          running = true;
        } else {
          leave(*op);
        }
      }
      read = co_await batch.Run();
    }
    for (Operation* op = group.first; op != nullptr; op = op->group_next) {
      if (op->group_index != kSettled) leave(*op);
    }
  }
  std::vector<Task<Status>> tasks;
  tasks.reserve(others.size());
  for (const size_t i : others) {
    tasks.push_back(GetAsync(keys[i], &values[i]));
    tasks.back().Start();
  }
  for (size_t i = 0; i < others.size(); ++i) statuses[others[i]] = co_await std::move(tasks[i]).Join();
}

}  // namespace kvs
