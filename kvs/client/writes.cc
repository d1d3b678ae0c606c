// Blocking writes, and MultiWrite. Both take the steps of a write (kvs/table/writer.h).
//
// Many writes take their round trips together. Each has an operation and its place among the writes of its key, but one
// batch asks for all, in the same steps. A write that the steps have not ended is then settled by itself. If it may
// begin again, it does so as a coroutine of its own.
#include <algorithm>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "kvs/client/client_core.h"

namespace kvs {
namespace {

std::string_view ValueOf(const WriteRequest& request) {
  const bool has_value = request.kind != WriteKind::kDelete && request.kind != WriteKind::kModify;
  return has_value ? request.value : std::string_view();
}

bool LacksFunction(WriteKind kind, const ModifyFunction* modify) {
  return kind == WriteKind::kModify && (modify == nullptr || *modify == nullptr);
}

}  // namespace

Task<Status> ClientCore::Write(WriteKind kind, std::string_view key, std::string_view value, uint64_t expires_at_ms,
                               const ModifyFunction* modify) {
  if (!IsRecord(key, value)) [[unlikely]]
    return Ended(LengthStatus(key, value));
  if (LacksFunction(kind, modify)) [[unlikely]]
    return Ended({StatusCode::kInvalidArgument, "a Modify has no function"});
  return table_.writer.Write(kind, key, value, expires_at_ms, kind == WriteKind::kModify ? modify : nullptr);
}

Task<Status> ClientCore::PutAsync(std::string_view key, std::string_view value, uint64_t expires_at_ms) {
  return Write(WriteKind::kPut, key, value, expires_at_ms);
}
Task<Status> ClientCore::InsertAsync(std::string_view key, std::string_view value, uint64_t expires_at_ms) {
  return Write(WriteKind::kInsert, key, value, expires_at_ms);
}
Task<Status> ClientCore::UpdateAsync(std::string_view key, std::string_view value, uint64_t expires_at_ms) {
  return Write(WriteKind::kUpdate, key, value, expires_at_ms);
}
Task<Status> ClientCore::DeleteAsync(std::string_view key) { return Write(WriteKind::kDelete, key, {}, 0); }
Task<Status> ClientCore::ModifyAsync(std::string_view key, const ModifyFunction* function) {
  return Write(WriteKind::kModify, key, {}, 0, function);
}

// ---- one write that blocks

// Like ReadAlone. If an operation is free, it takes no turn among its client's writes of the key: it has begun by the
// time they go on, and they may run meanwhile.
Status ClientCore::WriteAlone(WriteKind kind, std::string_view key, std::string_view value, uint64_t expires_at_ms) {
  Operation* const free = IsRecord(key, value) && !forked() ? epochs_.operations.FreeOperation() : nullptr;
  if (free == nullptr) [[unlikely]]
    return Wait(Write(kind, key, value, expires_at_ms));
  Operation& op = epochs_.operations.Take(*free, key, common_.shape.hasher(key), /*of_user=*/true);
  const OperationLease lease(epochs_.operations, op);
  PendingWrite write(op, kind, value, expires_at_ms);
  const auto poll = [this, idle = 0u]() mutable { PollAlone(&idle); };
  op.batch.HintEvery(1);
  do {
    write.step = table_.writer.GoOnWriting(write, op.batch);
    write.outcome = op.batch.RunBlocking(poll);
  } while (GoesOn(write.step, write.outcome, op.batch));
  if (write.step != Step::kOk) [[unlikely]]
    Wait(table_.writer.FinishWrite(write));
  table_.writer.EndWrite(write);
  return std::move(write.result);
}

Status ClientCore::Put(std::string_view key, std::string_view value, uint64_t expires_at_ms) {
  return WriteAlone(WriteKind::kPut, key, value, expires_at_ms);
}
Status ClientCore::Insert(std::string_view key, std::string_view value, uint64_t expires_at_ms) {
  return WriteAlone(WriteKind::kInsert, key, value, expires_at_ms);
}
Status ClientCore::Update(std::string_view key, std::string_view value, uint64_t expires_at_ms) {
  return WriteAlone(WriteKind::kUpdate, key, value, expires_at_ms);
}
Status ClientCore::Delete(std::string_view key) { return WriteAlone(WriteKind::kDelete, key, {}); }

// ---- many writes

// One of the writes that are done together.
struct ClientCore::Member {
  ClientCore* client = nullptr;
  WriteRequest* request = nullptr;
  std::optional<Turn> turn;
  std::optional<PendingWrite> write;

  Member() = default;
  Member(const Member&) = delete;
  Member& operator=(const Member&) = delete;
  ~Member() { End(); }
  // Gives back the operation and the turn.
  void End() {
    if (write) client->epochs_.operations.Release(*write->op);
    write.reset();
    turn.reset();
  }
};

// Reports the member's write, which has ended.
void ClientCore::Answer(Member& member) {
  PendingWrite& write = *member.write;
  table_.writer.EndWrite(write);
  ++stats_.operations;
  member.request->status = member.turn->Share(std::move(write.result), write.existed);
  member.End();
}

// Settles the member's write, which its steps have not ended.
Task<void> ClientCore::Settle(Member& member, std::vector<WriteRequest*>* undone) {
  const Step settled = co_await table_.writer.SettleWrite(*member.write);
  if (settled == Step::kOk) {
    Answer(member);
    co_return;
  }
  stats_.restarts += member.write->unpublished() ? 0 : 1;
  table_.writer.GiveBackUnused(*member.write);
  undone->push_back(member.request);
  member.End();
}

Task<void> ClientCore::MultiWriteAsync(std::span<WriteRequest> writes) {
  if (forked()) [[unlikely]] {
    for (WriteRequest& write : writes) write.status = OpenedBeforeFork();
    co_return;
  }
  using Alone = std::pair<WriteRequest*, Task<Status>>;
  std::vector<Alone> beside;  // coroutines of their own, which run while the groups do
  const auto start = [this](WriteRequest& request, std::vector<Alone>* alone) {
    alone->emplace_back(&request,
                        Write(request.kind, request.key, ValueOf(request), request.expires_at_ms, request.modify));
    alone->back().second.Start();
  };
  const std::unique_ptr<Member[]> members(new Member[std::min<size_t>(writes.size(), options_.max_in_flight)]);
  for (size_t next = 0; next < writes.size();) {
    // A call that holds some operations must not wait for more.
    Operation* op = &co_await epochs_.operations.LeaseOwnOperation();
    size_t count = 0;
    for (; next < writes.size() && op != nullptr; ++next) {
      WriteRequest& request = writes[next];
      const bool valid = IsRecord(request.key, ValueOf(request)) && !LacksFunction(request.kind, request.modify);
      if (!valid || !table_.writer.IsSmall(request.key, ValueOf(request), request.expires_at_ms)) {
        start(request, &beside);
        continue;
      }
      const KeyHash hash = common_.shape.hasher(request.key);
      if (table_.combiner.IsBeingWritten(hash, request.key)) {
        start(request, &beside);  // it waits, and a write of this group may stand for it
        continue;
      }
      Member& member = members[count++];
      epochs_.operations.Take(*op, request.key, hash, /*of_user=*/false);
      op->batch.CountForOperation(true);
      member.client = this;
      member.request = &request;
      const ModifyFunction* const modify = request.kind == WriteKind::kModify ? request.modify : nullptr;
      member.turn.emplace(table_.combiner, hash, request.key, request.kind,
                          Record{ValueOf(request), request.expires_at_ms}, modify);
      member.write.emplace(*op, *member.turn);
      op = epochs_.operations.FreeOperation();
    }
    if (op != nullptr) epochs_.operations.Release(*op);
    if (count == 0) continue;
    const std::span<Member> group(members.get(), count);

    Batch& batch = group.front().write->op->batch;
    for (Member& member : group) {
      member.turn->Gather();
      member.write->Become(*member.turn);
    }
    Outcome outcome;
    Step step;  // kRun: one of them runs
    do {
      step = Step::kOk;
      for (Member& member : group) {
        PendingWrite& write = *member.write;
        if (write.step != Step::kRun) continue;
        write.step = table_.writer.GoOnWriting(write, batch);
        if (write.step == Step::kRun) step = Step::kRun;
      }
      outcome = co_await batch.Run();
    } while (GoesOn(step, outcome, batch));

    std::vector<WriteRequest*> undone;
    std::vector<Task<void>> settling;
    for (Member& member : group) {
      PendingWrite& write = *member.write;
      if (write.step == Step::kOk) {
        Answer(member);
        continue;
      }
      // A member that does not run any more has seen that its own last round trip went well. For a member that runs,
      // the batch tells whether one of its verbs may have failed.
      const bool failed = write.step == Step::kRun && outcome != Outcome::kOk;
      if (failed && (write.unpublished() || batch.FailedAt(write.at().node))) write.outcome = outcome;
      settling.push_back(Settle(member, &undone));
    }
    // From here on the group's batch is its operation's again.
    for (Task<void>& task : settling) task.Start();
    for (Task<void>& task : settling) co_await std::move(task).Join();
    std::vector<Alone> again;
    for (WriteRequest* const request : undone) start(*request, &again);
    for (auto& [request, task] : again) request->status = co_await std::move(task).Join();
  }
  for (auto& [request, task] : beside) request->status = co_await std::move(task).Join();
}

}  // namespace kvs
