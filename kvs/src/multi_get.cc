// MultiGet: Gets that take their two round trips together. Each key has an operation, which pins what its slots name;
// but one batch reads for all, and no coroutine of a key's own waits for it. A key whose value is not found so, for
// whatever reason, is then read by GetAsync, which begins anew.
#include <cassert>
#include <cstdint>
#include <utility>
#include <vector>

#include "kvs/src/client_core.h"

namespace kvs {
namespace {

constexpr size_t kSettled = SIZE_MAX;  // group_index of an operation that is through

bool IsKey(std::string_view key) { return !key.empty() && key.size() <= kMaxKeyBytes; }

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

// Step (1) of Get, as BeginScan. False: it is no usual case.
bool ClientCore::AskForBuckets(Operation& op, Batch& batch) {
  address_cache_.Count(clock_);
  op.scan.states = kReaderStates;
  op.scan.guess = Slot::Free();
  if (!directory_.Lookup(op.hash, &op.scan.table)) return false;
  const GlobalAddress table = op.scan.table.address;
  for (uint32_t p = 0; p < 2; ++p) {
    if (!batch.ReadNow({table.node, table.offset + CombinedOffset(op.scan.places.place[p])},
                       op.buffers->buckets.data() + p * kCombinedBytes, kCombinedBytes))
      return false;
  }
  const Slot guess = UsableGuess(address_cache_.Lookup(op.hash.h1), table.node);
  if (guess == Slot::Free()) return true;
  op.scan.guess = guess;
  return batch.ReadNow(guess.block(), op.buffers->match.data(), FirstReadBytes(guess));
}

// The buckets are there. kOk: and so is the value; kRun: its block has been asked for; else it is no usual case.
Step ClientCore::AskForBlock(Operation& op, Batch& batch) {
  if (op.scan.guess != Slot::Free()) {
    PlanMatches(op);
    if (IsGuessRight(op)) return Step::kOk;
    op.scan.guess = Slot::Free();
  }
  Slot slot;
  if (!FindOnlyMatch(op, &slot)) return Step::kRestart;
  return batch.ReadNow(slot.block(), op.buffers->match.data(), FirstReadBytes(slot)) ? Step::kRun : Step::kRestart;
}

Task<void> ClientCore::MultiGetAsync(std::span<const std::string_view> keys, std::span<std::string> values,
                                     std::span<Status> statuses) {
  assert(keys.size() == values.size() && keys.size() == statuses.size());
  std::vector<size_t> others;  // keys for GetAsync
  const auto leave = [&others](Operation& op) { others.push_back(std::exchange(op.group_index, kSettled)); };
  const auto answer = [&](Operation& op) {
    const size_t i = std::exchange(op.group_index, kSettled);
    values[i].assign(op.scan.block.value());
    statuses[i] = Status::Ok();
    address_cache_.Learn(op.hash.h1, op.Candidate(static_cast<uint32_t>(op.scan.val)));
    ++stats_.operations;
  };
  for (size_t next = 0; next < keys.size();) {
    if (!IsKey(keys[next])) {
      others.push_back(next++);
      continue;
    }
    const KeyHash hash = HashKey(keys[next]);
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
      Operation& op = Take(*free, keys[next], HashKey(keys[next]), /*of_user=*/false);
      group.Add(op, next);
      if (!AskForBuckets(op, batch)) leave(op);
    }
    Outcome read = co_await batch.End();
    if (read == Outcome::kOk && !batch.Stale()) {
      batch.Begin();
      for (Operation* op = group.first; op != nullptr; op = op->group_next) {
        if (op->group_index == kSettled) continue;
        const Step asked = AskForBlock(*op, batch);
        if (asked == Step::kOk) {
          answer(*op);
        } else if (asked != Step::kRun) {
          leave(*op);
        }
      }
      read = co_await batch.End();
      for (Operation* op = group.first; op != nullptr && read == Outcome::kOk; op = op->group_next) {
        if (op->group_index != kSettled && JudgeMatches(*op) == Step::kOk && op->scan.val >= 0) answer(*op);
      }
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
