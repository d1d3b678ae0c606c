// MultiGet: Gets that take their two round trips together. Each key has an operation, which pins what its slots name;
// but one batch reads for all, and no coroutine of a key's own waits for it. A key whose value is not found so, for
// whatever reason, is then read by GetAsync, which begins anew. A Get that blocks is tried so first.
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

// Asks for the buckets: (1) of Get, as BeginScan. False: it is no usual case.
bool ClientCore::AskForBuckets(Operation& op, Batch& batch) {
  address_cache_.Count(clock_);
  op.group_reading = Operation::GroupReading::kBuckets;
  op.scan.states = kReaderStates;
  op.scan.guess = Slot::Free();
  if (!directory_.Lookup(op.hash, &op.scan.table) || !ReadBuckets(op, batch)) return false;
  const Slot guess = UsableGuess(address_cache_.Lookup(op.hash.h1), op.scan.table.address.node);
  if (guess == Slot::Free()) return true;
  op.scan.guess = guess;
  return batch.ReadNow(guess.block(), op.buffers->match.data(), FirstReadBytes(guess));
}

// The buckets are there. The usual case: one candidate matches, a value, and its block is asked for. False: it is
// another case, or there is no room.
inline bool ClientCore::AskForOnlyMatch(Operation& op, Batch& batch) {
  uint32_t c;
  if (!FindOnlyMatch(op, &c)) return false;
  const Slot slot = op.Candidate(c);
  op.scan.val = static_cast<int>(c);
  op.group_reading = Operation::GroupReading::kOnlyBlock;
  return batch.ReadNow(slot.block(), op.buffers->match.data(), slot.length_units() * uint32_t{kUnitBytes});
}

// Whether the block that was asked for is the key's, and whole.
inline bool ClientCore::IsOnlyMatchRight(Operation& op) {
  const BlockView block(op.buffers->match.data());
  const Slot slot = op.Candidate(static_cast<uint32_t>(op.scan.val));
  if (!block.Intact(slot.length_units() * kUnitBytes) && !Mutated(Mutation::kNoChecksum)) return false;
  op.scan.block = block;
  return block.key() == op.key;
}

// As PlanMatches and ReadMatches.
Step ClientCore::AskForMatches(Operation& op, Batch& batch) {
  op.group_reading = Operation::GroupReading::kBlocks;
  Scan& scan = op.scan;
  PlanMatches(op);
  if (scan.guess != Slot::Free() && IsGuessRight(op)) return Step::kOk;
  scan.judged_bytes = 0;
  for (uint32_t used = 0; scan.asked < scan.planned_count; ++scan.asked) {
    const Slot slot = op.Candidate(scan.planned[scan.asked]);
    const uint32_t bytes = FirstReadBytes(slot);
    if (slot.length_units() == kLargeBlock || used + bytes > kMatchBytes) return Step::kRestart;
    if (!batch.ReadNow(slot.block(), op.buffers->match.data() + used, bytes)) return Step::kRestart;
    used += bytes;
  }
  return scan.planned_count == 0 ? AskForHeaders(op, batch) : Step::kRun;
}

// No block is the key's: it is absent, if nothing moves, which the headers tell when they are read again: (2).
Step ClientCore::AskForHeaders(Operation& op, Batch& batch) {
  LookAtBuckets(op);
  const Scan& scan = op.scan;
  if (scan.closed || !scan.headers_fit || scan.frz >= 0 || scan.any_pending) return Step::kRestart;
  if (op.inserts) return Step::kOk;  // it looks again behind its tentative slot
  if (Mutated(Mutation::kMultiGetMissUnchecked) || Mutated(Mutation::kWriteMissUnchecked)) return Step::kOk;
  op.group_reading = Operation::GroupReading::kHeaders;
  bool asked = true;
  ReadHeaders(op,
              [&](GlobalAddress from, void* to, uint32_t bytes) { asked = asked && batch.ReadNow(from, to, bytes); });
  return asked ? Step::kRun : Step::kRestart;
}

// What was asked for is there. kOk: ResultOf; kRun: more has been asked for; kRestart: it is no usual case.
Step ClientCore::GoOnReading(Operation& op, Batch& batch) {
  switch (op.group_reading) {
    case Operation::GroupReading::kBuckets: return AskForOnlyMatch(op, batch) ? Step::kRun : AskForMatches(op, batch);
    case Operation::GroupReading::kOnlyBlock:
      if (IsOnlyMatchRight(op)) [[likely]]
        return Step::kOk;
      // Torn, or another key's: it is what would have been planned.
      PlanMatches(op);
      op.scan.asked = op.scan.planned_count;
      op.scan.judged_bytes = 0;
      [[fallthrough]];
    case Operation::GroupReading::kBlocks: {
      Step step;
      return JudgeRead(op, &step) ? step : AskForHeaders(op, batch);
    }
    case Operation::GroupReading::kHeaders: break;
  }
  return HeadersFit(op) ? Step::kOk : Step::kRestart;
}

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
  batch.Begin(/*hint_every=*/1);
  Step step = AskForBuckets(op, batch) ? Step::kRun : Step::kRestart;
  Outcome read = batch.EndBlocking(poll);
  while (GoesOn(step, read, batch)) {
    batch.Begin(/*hint_every=*/1);
    step = GoOnReading(op, batch);
    read = batch.EndBlocking(poll);
  }
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
    batch.Begin();
    if (!AskForBuckets(leader, batch)) leave(leader);
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
      if (!AskForBuckets(op, batch)) leave(op);
    }
    Outcome read = co_await batch.End();
    for (bool running = true; running && GoesOn(Step::kRun, read, batch);) {
      running = false;
      batch.Begin();
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
      read = co_await batch.End();
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
