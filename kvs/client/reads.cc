// The blocking Get, and MultiGet. Both first try the steps of the usual case (kvs/table/finder.h). A key whose value is
// not found in this way, for whatever reason, is then read by Reader::Get, which begins anew and handles every case.
//
// Gets of many keys take their two round trips together. Each key has an operation, which pins what its slots name. But
// one batch reads for all, and no key has a coroutine of its own that waits for it.
#include <cassert>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "kvs/client/client_core.h"

namespace kvs {
namespace {

constexpr size_t kSettled = SIZE_MAX;  // group_index of an operation whose key is done

}  // namespace

Task<Status> ClientCore::Ended(Status status) { co_return status; }

Status ClientCore::LengthStatus(std::string_view key, std::string_view value) {
  if (!IsKey(key)) {
    return {StatusCode::kInvalidArgument, "a key has 1 to 65535 bytes, not " + std::to_string(key.size())};
  }
  return ValueTooLong(value.size());
}

Task<Status> ClientCore::GetAsync(std::string_view key, std::string* value) {
  if (!IsKey(key)) [[unlikely]]
    return Ended(LengthStatus(key, {}));
  return table_.reader.Get(key, value);
}

// ---- the usual case of a blocking Get

// Returns whether something else of this client waits for what only Poll brings.
bool ClientCore::OthersWait() const {
  return HasOwnWork() || epochs_.registrar.renewing() || epochs_.operations.any_delayed() ||
         table_.combiner.any_waiting() || connections_.any_stalled();
}

// One round of a blocking call that waits for its own batch. If the batch is done as soon as it is pushed, and nobody
// else waits for anything, there is no need to poll, except for the client's own work when that is due.
void ClientCore::PollAlone(uint32_t* idle) {
  size_t done = OthersWait() ? 0 : connections_.PushAndTake();
  if (RunQueue& run_queue = RunQueue::OfThisThread(); !run_queue.empty()) [[unlikely]]
    run_queue.RunAll();
  if (done == 0 || epochs_.registration.Now() >= epochs_.own_work.maintain_at_ns) [[unlikely]]
    done += Poll();
  if (done != 0) {
    *idle = 0;
  } else {
    common_.clock.Relax(++*idle);
  }
}

// No other operation's cache misses overlap here, so each READ's cache miss begins as early as possible.
Step ClientCore::ReadAlone(Operation& op) {
  const auto poll = [this, idle = 0u]() mutable { PollAlone(&idle); };
  Batch& batch = op.batch;
  batch.CountForOperation(true);
  batch.HintEvery(1);
  Step step = table_.finder.BeginRead(op, batch);
  while (GoesOn(step, batch.RunBlocking(poll), batch)) step = table_.finder.GoOnReading(op, batch);
  return step;
}

// Returns the result of a read that the steps of the usual case have ended with kOk. The value has not expired.
Status ClientCore::ResultOf(const Operation& op, std::string* value) {
  ++stats_.operations;
  if (op.scan.val < 0) return StatusCode::kNotFound;
  value->assign(op.scan.block.value());
  table_.addresses.Learn(op.hash.h1, op.Candidate(static_cast<uint32_t>(op.scan.val)));
  return Status::Ok();
}

Status ClientCore::Get(std::string_view key, std::string* value) {
  Operation* const free = IsKey(key) && !forked() ? epochs_.operations.FreeOperation() : nullptr;
  if (free != nullptr) {
    Operation& op = epochs_.operations.Take(*free, key, common_.shape.hasher(key), /*of_user=*/false);
    OperationLease lease(epochs_.operations, op);
    const Step step = ReadAlone(op);
    if (step == Step::kOk && FoundExpired(op)) [[unlikely]] {
      lease.End();
      return Wait(table_.writer.ReadExpired(key, value));
    }
    if (step == Step::kOk) return ResultOf(op, value);
  }
  return Client::Get(key, value);
}

// ---- many keys

// The operations of the keys that are read together, in the keys' order. All stay in use until the group ends, because
// what was asked for lands in their buffers.
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
      client.epochs_.operations.Release(*operation);
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
    const KeyHash hash = common_.shape.hasher(keys[next]);
    Operation& leader = co_await epochs_.operations.LeaseOperation(keys[next], hash, /*of_user=*/false);
    Group group(*this, leader, next++);
    Batch& batch = leader.batch;
    batch.CountForOperation(true);
    if (table_.finder.BeginRead(leader, batch) != Step::kRun) leave(leader);
    for (; next < keys.size(); ++next) {
      if (!IsKey(keys[next])) {
        others.push_back(next);
        continue;
      }
      // A call that holds some operations must not wait for more.
      Operation* const free = epochs_.operations.FreeOperation();
      if (free == nullptr) break;
      Operation& op = epochs_.operations.TakeToRead(*free, keys[next], common_.shape.hasher(keys[next]));
      group.Add(op, next);
      if (table_.finder.BeginRead(op, batch) != Step::kRun) leave(op);
    }
    Outcome read = co_await batch.Run();
    for (bool running = true; running && GoesOn(Step::kRun, read, batch);) {
      running = false;
      for (Operation* op = group.first; op != nullptr; op = op->group_next) {
        if (op->group_index == kSettled) continue;
        const Step step = table_.finder.GoOnReading(*op, batch);
        if (step == Step::kOk && !FoundExpired(*op)) [[likely]] {
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
