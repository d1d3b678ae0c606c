// Put, Insert, Update and Delete, and MultiWrite. A write goes by the steps of its usual case (write_steps.cc). What
// these leave is settled there too, and if the write is undone then it begins again, in a loop that knows everything.
// The step numbers are those of docs/protocol.md.
//
// Many writes take their round trips together. Each has an operation and its place among the writes of its key; but one
// batch asks for all, in the same steps. A write that these leave undone is then settled by itself, and if it may begin
// again it does so as a coroutine of its own. A write that blocks is tried so first.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "kvs/src/client_core.h"
#include "kvs/src/mutation.h"
#include "kvs/src/operation.h"

namespace kvs {
namespace {

// Restarts that a writer without a free slot waits before it kills somebody else's tentative slot: its owner, if it
// is alive, needs one round trip more.
constexpr uint32_t kStarvedAttempts = 8;

// Beginning again after progress is no reason to back off, nor a sign of starvation.
void Progressed(Operation& op) {
  if (op.attempt > 0) --op.attempt;
  op.again = Again::kAtOnce;
  op.room_wait.begun = false;
}

OpKind KindOf(WriteKind kind) {
  switch (kind) {
    case WriteKind::kPut: return OpKind::kPut;
    case WriteKind::kInsert: return OpKind::kInsert;
    case WriteKind::kUpdate: return OpKind::kUpdate;
    case WriteKind::kDelete: break;
  }
  return OpKind::kDelete;
}

std::string_view ValueOf(const WriteRequest& request) {
  return request.kind == WriteKind::kDelete ? std::string_view() : request.value;
}

}  // namespace

// ---- one write

Task<Status> ClientCore::PutAsync(std::string_view key, std::string_view value) {
  return Write(OpKind::kPut, key, value);
}
Task<Status> ClientCore::InsertAsync(std::string_view key, std::string_view value) {
  return Write(OpKind::kInsert, key, value);
}
Task<Status> ClientCore::UpdateAsync(std::string_view key, std::string_view value) {
  return Write(OpKind::kUpdate, key, value);
}
Task<Status> ClientCore::DeleteAsync(std::string_view key) { return Write(OpKind::kDelete, key, {}); }

// Of lengths that are none.
Status ClientCore::LengthStatus(std::string_view key, std::string_view value) {
  if (!IsKey(key)) {
    return {StatusCode::kInvalidArgument, "a key has 1 to 65535 bytes, not " + std::to_string(key.size())};
  }
  return {StatusCode::kInvalidArgument, "a value has at most 16777216 bytes, not " + std::to_string(value.size())};
}

// A step of the write in its operation's own batch. Whether there is to be a further one.
auto ClientCore::TakeStep(PendingWrite& write) {
  Batch& batch = write.op->batch;
  struct Awaiter : decltype(batch.Run()) {
    PendingWrite& write;
    bool await_resume() {
      write.outcome = decltype(batch.Run())::await_resume();
      return GoesOn(write.step, write.outcome, write.op->batch);
    }
  };
  write.step = GoOnWriting(write, batch);
  return Awaiter{batch.Run(), write};
}

Task<Status> ClientCore::Write(OpKind kind, std::string_view key, std::string_view value) {
  if (forked()) [[unlikely]]
    co_return OpenedBeforeFork();
  if (!IsRecord(key, value)) [[unlikely]]
    co_return LengthStatus(key, value);
  const KeyHash hash = hasher_(key);
  Turn turn(combiner_, hash, key, kind, value);
  if (!turn.leads()) co_await turn.Wait(DeadlineFromNow());
  if (!turn.leads()) co_return turn.TakeResult();
  Operation& op = co_await LeaseOperation(key, hash);
  const Lease lease(*this, op);
  op.deadline_ns = turn.deadline_ns();
  turn.Gather();
  PendingWrite write(op, turn.kind(), turn.in());
  while (co_await TakeStep(write)) {
  }
  if (write.step != Step::kOk) [[unlikely]]
    co_await FinishWrite(write);
  EndWrite(write);
  co_return turn.Share(std::move(write.result), write.existed);
}

// What is left of a write that the steps have not ended.
Task<void> ClientCore::FinishWrite(PendingWrite& write) {
  const Step settled = co_await SettleWrite(write);
  write.op->own_ins = 0;
  if (settled == Step::kOk) co_return;
  if (Failed(*write.op, settled)) {
    write.result = UnavailableStatus("scanning a subtable");
    co_return;
  }
  co_await WriteAfterAll(write);
}

// Of one that has ended.
void ClientCore::EndWrite(const PendingWrite& write) {
  if (write.result.ok()) ++stats_.writes_done;
  GiveBackUnused(write);
}

// The steps of Publish in a coroutine of their own, and what they leave. As SettleWrite; kFull: no slot is free.
Task<Step> ClientCore::PublishAlone(PendingWrite& write) {
  Operation& op = *write.op;
  if (op.batch.Stale()) co_return Step::kRestart;
  write.phase = PendingWrite::Phase::kScanned;
  while (co_await TakeStep(write)) {
  }
  Step step = write.step;
  if (step != Step::kOk && step != Step::kFull) step = co_await SettleWrite(write);
  op.own_ins = 0;
  co_return step;
}

// The whole of it, for what the steps could not do. Ends with write.result.
Task<void> ClientCore::WriteAfterAll(PendingWrite& write) {
  Operation& op = *write.op;
  NewBlock& block = write.block;
  Status& result = write.result;
  const bool has_block = write.kind != OpKind::kDelete;
  const auto fails = [this, &op, &result](Step step, const char* what) {
    if (!Failed(op, step)) [[likely]]
      return false;
    result = UnavailableStatus(what);
    return true;
  };
  bool backs_off = !write.unpublished();  // it is in somebody's way
  // The steps have not got so far as to use it, or it was wrong.
  Slot guess = backs_off ? Slot::Free() : address_cache_.Lookup(op.hash.h1);
  for (;; backs_off = true) {
    if (backs_off) co_await BackOff(op);
    if (op.attempt > 0 && OutOfTime(op)) {
      result = TimeoutCode(op);
      break;
    }
    if (op.batch.Stale()) [[unlikely]] {
      BeginAgain(op);
      block = {};  // not this registration's to use
    } else if (block.address.valid() && memory_->IsEvacuating(block.address)) [[unlikely]] {
      block = {};  // its chunk is being emptied, and who waited does not hold that up any more
    }
    if (has_block && !block.address.valid()) {
      Step prepared = PlaceBlock(write);
      if (prepared == Step::kRun) prepared = co_await Allocate(op, block.bytes, block.preferred, &block.address);
      if (prepared == Step::kOk) prepared = BuildNewBlock(write);
      if (fails(prepared, "allocating memory")) break;
      if (prepared == Step::kFull) {
        result = Status(StatusCode::kOutOfMemory, "the memory nodes have no room for a block of " +
                                                      std::to_string(block.bytes) +
                                                      " bytes (start another memory node, or larger ones)");
        break;
      }
      if (prepared != Step::kOk) continue;
      op.attempt = op.waits = 0;  // waiting for memory is no sign of contention
      op.room_wait.begun = false;
    }
    TableRef table;
    op.merge.record = {};
    if (!directory_.Lookup(op.hash, &table)) {
      const Step resolved = co_await Resolve(op, &table);
      if (fails(resolved, "finding the subtable")) break;
      if (resolved != Step::kOk) continue;
    }

    // (1) The block travels beside the scan.
    if (block.address.valid() && !block.written && !SendBlock(op, &block)) {
      result = UnavailableStatus("writing a block");
      break;
    }
    const Step scanned = co_await ScanTable(op, table, kReaderStates, std::exchange(guess, Slot::Free()));
    if (fails(scanned, "scanning a subtable")) break;
    block.written = true;
    block.in_doubt = false;
    if (scanned == Step::kFull) {
      result = StatusCode::kOutOfMemory;
      break;
    }
    if (scanned != Step::kOk) {
      if (op.torn) directory_.Forget(table);  // one out of use may name blocks that are used again
      continue;
    }

    if (op.scan.frz >= 0 && Mutated(Mutation::kUpdateOfFrz)) op.scan.val = op.scan.frz;
    if (op.scan.val < 0) {
      // (3) It may have moved to a child, or with all others to another table.
      if (!op.scan.headers_fit || op.scan.frz >= 0) {
        const Step left = co_await LeaveTable(op);
        if (fails(left, "finding the subtable")) break;
        if (left == Step::kFull) {
          result =
              Status(StatusCode::kOutOfMemory, "a merge of subtables is to be finished, and there is no room for it");
          break;
        }
        if (left == Step::kOk) Progressed(op);
        continue;
      }
      // (4) Nothing is absent, and nothing may be inserted, before all candidates are decided.
      if (op.scan.any_pending && !Mutated(Mutation::kWriteAtChildUnhelped)) {
        const Step helped = co_await HelpMigrate(op);
        if (fails(helped, "helping a split")) break;
        if (helped == Step::kOk) Progressed(op);
        continue;
      }
      // (5)
      if (!write.inserts() && !Mutated(Mutation::kWriteMissUnchecked)) {
        const Step checked = co_await CheckHeaders(op);
        if (fails(checked, "scanning a subtable")) break;
        if (checked != Step::kOk) {
          op.again = Again::kAtOnce;
          continue;
        }
      }
    }
    // (2), (5), (6)
    const Step published = co_await PublishAlone(write);
    if (published == Step::kOk) break;
    if (fails(published, "writing")) break;
    if (published != Step::kFull) continue;
    Status why_not;
    const Step room = co_await MakeRoom(op, &why_not);
    if (fails(room, "splitting a subtable")) break;
    if (room == Step::kFull) {
      result = std::move(why_not);
      break;
    }
    if (room == Step::kOk) Progressed(op);
  }
}

// (3) The table of the last scan may not be the key's any more. kOk: another one is; what is known of it is in the
// cache.
Task<Step> ClientCore::LeaveTable(Operation& op) {
  const TableRef table = op.scan.table;
  if (op.scan.closed && op.merge.known()) co_return co_await HelpMerge(op);
  ++stats_.stale_directory_hits;
  directory_.Forget(table);
  TableRef fresh;
  const Step resolved = co_await Resolve(op, &fresh);
  if (resolved != Step::kOk) co_return resolved;
  co_return fresh.address == table.address ? Step::kRestart : Step::kOk;
}

// No candidate is FREE: split the table, or, having waited long enough, kill a tentative slot whose owner may be dead.
// kFull: *why_not.
Task<Step> ClientCore::MakeRoom(Operation& op, Status* why_not) {
  uint32_t count = 0;
  std::array<uint8_t, kCandidates> victims;
  for (uint32_t c = 0; c < kCandidates; ++c) {
    if (op.Candidate(c).state() == SlotState::kIns) victims[count++] = static_cast<uint8_t>(c);
  }
  if (op.attempt >= kStarvedAttempts && count > 0) {
    const uint32_t victim = victims[random_() % count];
    op.batch.CompareSwap(op.SlotAddress(victim), op.Candidate(victim).word(), Slot::Free().word(), &op.buffers->cas[0]);
    const Outcome killed = co_await op.batch.Run();
    co_return killed == Outcome::kOk ? Step::kRestart : Step::kUnavailable;
  }
  if (splitting_) co_return Step::kRestart;  // as Split would say, so there is no need to read
  const Step splittable = co_await CanBeSplit(op, why_not);
  // Where splitting does not help, a tentative slot that is given up, or killed, does.
  if (splittable == Step::kFull && count > 0) co_return Step::kRestart;
  if (splittable != Step::kOk) co_return splittable;
  const Step split = co_await Split(op, op.scan.table);
  if (split == Step::kFull) {
    *why_not = Status(StatusCode::kOutOfMemory, "the table is full and the memory nodes have no room for it to grow");
  }
  co_return split;
}

// Whether splits can take any of the candidates, which are all in use, away from the key. kFull: they cannot. A split
// in vain would only be the first of many, up to the largest depth.
Task<Step> ClientCore::CanBeSplit(Operation& op, Status* why_not) {
  auto* const blocks = reinterpret_cast<BlockHeader*>(op.buffers->match.data());
  for (uint32_t c = 0; c < kCandidates; ++c) {
    if (!op.Candidate(c).has_block()) co_return Step::kOk;
  }
  for (uint32_t c = 0; c < kCandidates; ++c) op.batch.Read(op.Candidate(c).block(), &blocks[c], sizeof(BlockHeader));
  const Outcome read = co_await op.batch.Run();
  if (read != Outcome::kOk) co_return Step::kUnavailable;
  uint64_t differ = 0;
  for (uint32_t c = 0; c < kCandidates; ++c) differ |= blocks[c].hash ^ op.hash.h1;
  constexpr uint64_t kSuffixes = (uint64_t{1} << kMaxDepth) - 1;
  if ((differ & kSuffixes) != 0) co_return Step::kOk;
  const bool deepest = op.buffers->candidates().front().header.depth() >= kMaxDepth;
  *why_not = deepest && differ != 0
                 ? Status(StatusCode::kOutOfMemory, "the table has its largest size, and no slot for the key is free")
                 : Status(StatusCode::kInvalidArgument,
                          "the key collides: 28 keys with a hash like its own have all slots that it could have, and "
                          "neither splits nor memory help (delete one of them)");
  co_return Step::kFull;
}

// ---- one that blocks

// As ReadAlone. It takes no turns with others of its client, if an operation is free: it has begun when they go on, and
// they may run meanwhile.
Status ClientCore::WriteAlone(OpKind kind, std::string_view key, std::string_view value) {
  Operation* const free = IsRecord(key, value) && !forked() ? FreeOperation() : nullptr;
  if (free == nullptr) [[unlikely]]
    return Wait(Write(kind, key, value));
  Operation& op = Take(*free, key, hasher_(key), /*of_user=*/true);
  const Lease lease(*this, op);
  PendingWrite write(op, kind, value);
  const auto poll = [this, idle = 0u]() mutable { PollAlone(&idle); };
  op.batch.HintEvery(1);
  do {
    write.step = GoOnWriting(write, op.batch);
    write.outcome = op.batch.RunBlocking(poll);
  } while (GoesOn(write.step, write.outcome, op.batch));
  if (write.step != Step::kOk) [[unlikely]]
    Wait(FinishWrite(write));
  EndWrite(write);
  return std::move(write.result);
}

Status ClientCore::Put(std::string_view key, std::string_view value) { return WriteAlone(OpKind::kPut, key, value); }
Status ClientCore::Insert(std::string_view key, std::string_view value) {
  return WriteAlone(OpKind::kInsert, key, value);
}
Status ClientCore::Update(std::string_view key, std::string_view value) {
  return WriteAlone(OpKind::kUpdate, key, value);
}
Status ClientCore::Delete(std::string_view key) { return WriteAlone(OpKind::kDelete, key, {}); }

// ---- many writes

// One of those that are written together.
struct ClientCore::Member {
  ClientCore* client = nullptr;
  WriteRequest* request = nullptr;
  std::optional<Turn> turn;
  std::optional<PendingWrite> write;

  Member() = default;
  Member(const Member&) = delete;
  Member& operator=(const Member&) = delete;
  ~Member() { End(); }
  // Gives back what it has.
  void End() {
    if (write) client->Release(*write->op);
    write.reset();
    turn.reset();
  }
};

// The member's write has ended.
void ClientCore::Answer(Member& member) {
  PendingWrite& write = *member.write;
  EndWrite(write);
  ++stats_.operations;
  member.request->status = member.turn->Share(std::move(write.result), write.existed);
  member.End();
}

// The member's steps have ended before its write has.
Task<void> ClientCore::Settle(Member& member, std::vector<WriteRequest*>* undone) {
  const Step settled = co_await SettleWrite(*member.write);
  if (settled == Step::kOk) {
    Answer(member);
    co_return;
  }
  stats_.restarts += member.write->unpublished() ? 0 : 1;
  GiveBackUnused(*member.write);
  undone->push_back(member.request);
  member.End();
}

Task<void> ClientCore::MultiWriteAsync(std::span<WriteRequest> writes) {
  if (forked()) [[unlikely]] {
    for (WriteRequest& write : writes) write.status = OpenedBeforeFork();
    co_return;
  }
  using Alone = std::pair<WriteRequest*, Task<Status>>;
  std::vector<Alone> beside;  // coroutines of their own, which run beside the groups
  const auto start = [this](WriteRequest& request, std::vector<Alone>* alone) {
    alone->emplace_back(&request, Write(KindOf(request.kind), request.key, ValueOf(request)));
    alone->back().second.Start();
  };
  const std::unique_ptr<Member[]> members(new Member[std::min<size_t>(writes.size(), options_.max_in_flight)]);
  for (size_t next = 0; next < writes.size();) {
    // Who holds some operations must not wait for more.
    Operation* op = &co_await LeaseOwnOperation({});
    size_t count = 0;
    for (; next < writes.size() && op != nullptr; ++next) {
      WriteRequest& request = writes[next];
      if (!IsRecord(request.key, ValueOf(request)) || !IsSmall(request.key, ValueOf(request))) {
        start(request, &beside);
        continue;
      }
      const KeyHash hash = hasher_(request.key);
      if (combiner_.IsBeingWritten(hash, request.key)) {
        start(request, &beside);  // it waits, and one of this group's takes it along
        continue;
      }
      Member& member = members[count++];
      Take(*op, request.key, hash, /*of_user=*/false);
      op->batch.CountForOperation(true);
      member.client = this;
      member.request = &request;
      member.turn.emplace(combiner_, hash, request.key, KindOf(request.kind), ValueOf(request));
      member.write.emplace(*op, KindOf(request.kind), ValueOf(request));
      op = FreeOperation();
    }
    if (op != nullptr) Release(*op);
    if (count == 0) continue;
    const std::span<Member> group(members.get(), count);

    Batch& batch = group.front().write->op->batch;
    for (Member& member : group) {
      member.turn->Gather();
      member.write->kind = member.turn->kind();
      member.write->value = member.turn->in();
    }
    Outcome outcome;
    Step step;  // kRun: one of them runs
    do {
      step = Step::kOk;
      for (Member& member : group) {
        PendingWrite& write = *member.write;
        if (write.step != Step::kRun) continue;
        write.step = GoOnWriting(write, batch);
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
      // Who does not run any more has seen that the last round trip of its own was well, and so have those of whose
      // verbs it tells that none has failed.
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
