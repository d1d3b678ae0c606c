// Operations of one client on one key: which of them wait, which are done along with another, and what each returns.
// One thread, and nothing is random; random mixes are in threads_test.cc.
#include "kvs/table/combiner.h"

#include <gtest/gtest.h>

#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tests/kvs/manual_clock.h"
#include "tests/kvs/test_store.h"

namespace surgekv_test {
namespace {

using kvs::Client;
using kvs::Status;
using kvs::StatusCode;
using kvs::Task;

enum class OpKind : uint8_t { kGet, kPut, kInsert, kUpdate, kDelete, kModify };

struct Call {
  OpKind kind;
  std::string value;  // what it writes, or what Get found
  Status result = StatusCode::kInternal;
  bool ended = false;
  std::string saw{};  // a Modify: what its function was last called with
  uint32_t ran = 0;   // ... and how often it was called
};

Task<void> Drive(Client& client, std::string key, Call* call) {
  switch (call->kind) {
    case OpKind::kGet: call->result = co_await client.GetAsync(key, &call->value); break;
    case OpKind::kPut: call->result = co_await client.PutAsync(key, call->value); break;
    case OpKind::kInsert: call->result = co_await client.InsertAsync(key, call->value); break;
    case OpKind::kUpdate: call->result = co_await client.UpdateAsync(key, call->value); break;
    case OpKind::kDelete: call->result = co_await client.DeleteAsync(key); break;
    case OpKind::kModify: {
      // Appends its value; "-" deletes, "" keeps.
      const kvs::ModifyFunction append = [call](std::optional<std::string_view> old) {
        ++call->ran;
        call->saw = old ? std::string(*old) : "absent";
        if (call->value == "-") return kvs::Modification::Delete();
        if (call->value.empty()) return kvs::Modification::Keep();
        return kvs::Modification::Set((old ? std::string(*old) : std::string()) + call->value);
      };
      call->result = co_await client.ModifyAsync(key, &append);
      break;
    }
  }
  call->ended = true;
}

class Combining : public ::testing::Test {
 protected:
  static constexpr int64_t kTimeoutNs = 1'000'000'000;

  Combining() : store_(Options(&clock_)), client_(NewClient(64)), other_(NewClient(64)) {
    EXPECT_TRUE(client_->Put("warm", "").ok());
    EXPECT_TRUE(other_->Put("warm", "").ok());
    before_ = client_->stats();
  }
  static TestStoreOptions Options(krcore::Clock* clock) {
    TestStoreOptions options;
    options.memory_bytes = size_t{16} << 20;
    options.operation_timeout_ms = kTimeoutNs / 1'000'000;
    options.clock = clock;
    return options;
  }

  // The address cache is off, so that every operation takes its full number of round trips.
  std::unique_ptr<Client> NewClient(uint32_t max_in_flight) {
    return store_.store().NewClient({.max_in_flight = max_in_flight, .address_cache_entries = 0}).value();
  }
  Call& Start(OpKind kind, std::string value = "") {
    calls_.push_back({kind, std::move(value)});
    client_->Spawn(Drive(*client_, "k", &calls_.back()));
    return calls_.back();
  }
  void Poll(uint32_t rounds) {
    for (uint32_t i = 0; i < rounds; ++i) client_->Poll();
  }
  void Finish() { FinishAll(*client_, clock_); }
  std::string Value() {
    std::string value;
    const Status got = other_->Get("k", &value);
    return got.ok() ? value : got.ToString();
  }
  uint64_t Since(uint64_t kvs::ClientStats::*count) { return client_->stats().*count - before_.*count; }

  ManualClock clock_;
  TestStore store_;
  std::unique_ptr<Client> client_, other_;
  kvs::ClientStats before_;
  std::deque<Call> calls_;
};

TEST_F(Combining, GetsThatWaitBecomeOneRead) {
  ASSERT_TRUE(other_->Put("k", "v").ok());
  for (int i = 0; i < 10; ++i) Start(OpKind::kGet);
  Finish();
  for (const Call& call : calls_) {
    EXPECT_TRUE(call.result.ok());
    EXPECT_EQ(call.value, "v");
  }
  EXPECT_EQ(Since(&kvs::ClientStats::operation_round_trips), 4u) << "the first, and then the nine";
  EXPECT_EQ(Since(&kvs::ClientStats::operations), 10u);
  EXPECT_EQ(Since(&kvs::ClientStats::combined_operations), 8u);
}

TEST_F(Combining, GetsOfAnAbsentKeyAreAllToldSo) {
  for (int i = 0; i < 5; ++i) Start(OpKind::kGet, "untouched");
  Finish();
  for (const Call& call : calls_) {
    EXPECT_EQ(call.result, StatusCode::kNotFound);
    EXPECT_EQ(call.value, "untouched");
  }
}

TEST_F(Combining, PutsThatWaitBecomeOneWriteOfTheLastValue) {
  for (int i = 0; i < 10; ++i) Start(OpKind::kPut, std::to_string(i));
  Finish();
  for (const Call& call : calls_) EXPECT_TRUE(call.result.ok());
  EXPECT_EQ(Value(), "9");
  EXPECT_EQ(Since(&kvs::ClientStats::write_attempts), 2u);
  EXPECT_EQ(Since(&kvs::ClientStats::combined_operations), 8u);
}

TEST_F(Combining, AnUpdateBeforeTheFirstPutOfAnAbsentKeyIsNotFound) {
  Start(OpKind::kDelete);
  Start(OpKind::kUpdate, "u1");
  Start(OpKind::kUpdate, "u2");
  Start(OpKind::kPut, "p");
  Start(OpKind::kUpdate, "u3");
  Finish();
  for (int i = 0; i < 3; ++i) EXPECT_EQ(calls_[i].result, StatusCode::kNotFound) << i;
  for (int i = 3; i < 5; ++i) EXPECT_TRUE(calls_[i].result.ok()) << i;
  EXPECT_EQ(Value(), "u3");
  EXPECT_EQ(Since(&kvs::ClientStats::combined_operations), 3u);
}

TEST_F(Combining, UpdatesInFrontOfAPutOfAPresentKeyAreDone) {
  ASSERT_TRUE(other_->Put("k", "old").ok());
  Start(OpKind::kInsert, "refused");
  Start(OpKind::kUpdate, "u1");
  Start(OpKind::kUpdate, "u2");
  Start(OpKind::kPut, "p");
  Finish();
  EXPECT_EQ(calls_[0].result, StatusCode::kExists);
  for (int i = 1; i < 4; ++i) EXPECT_TRUE(calls_[i].result.ok()) << i;
  EXPECT_EQ(Value(), "p");
}

TEST_F(Combining, ModifiesThatWaitBecomeOneWriteAndEachSeesWhatTheOneBeforeLeft) {
  for (const char* value : {"a", "b", "", "c", "d"}) Start(OpKind::kModify, value);
  Finish();
  const std::vector<std::string> saw = {"absent", "a", "ab", "ab", "abc"};
  for (size_t i = 0; i < saw.size(); ++i) {
    EXPECT_TRUE(calls_[i].result.ok()) << i;
    EXPECT_EQ(calls_[i].saw, saw[i]) << i;
    EXPECT_EQ(calls_[i].ran, 1u) << i;
  }
  EXPECT_EQ(Value(), "abcd");
  EXPECT_EQ(Since(&kvs::ClientStats::write_attempts), 2u) << "the first, and then the four";
  EXPECT_EQ(Since(&kvs::ClientStats::combined_operations), 3u);
}

TEST_F(Combining, ModifiesThatUndoEachOtherLeaveTheKeyAsItWas) {
  Start(OpKind::kDelete);  // so that the others wait
  for (const char* value : {"a", "-", "-"}) Start(OpKind::kModify, value);
  Finish();
  EXPECT_EQ(calls_[1].saw, "absent");
  EXPECT_EQ(calls_[2].saw, "a");
  EXPECT_EQ(calls_[3].saw, "absent");
  for (int i = 1; i < 4; ++i) EXPECT_TRUE(calls_[i].result.ok()) << i;
  EXPECT_EQ(Value(), Status(StatusCode::kNotFound).ToString());
  EXPECT_EQ(Since(&kvs::ClientStats::write_attempts), 0u);
}

TEST_F(Combining, AModifyAndAPutAreNotCombined) {
  ASSERT_TRUE(other_->Put("k", "old").ok());
  Start(OpKind::kPut, "1");
  Start(OpKind::kPut, "2");
  Start(OpKind::kModify, "m");
  Start(OpKind::kPut, "3");
  Start(OpKind::kModify, "n");
  Finish();
  for (const Call& call : calls_) EXPECT_TRUE(call.result.ok());
  EXPECT_EQ(calls_[2].saw, "2");
  EXPECT_EQ(calls_[4].saw, "3");
  EXPECT_EQ(Value(), "3n");
  EXPECT_EQ(Since(&kvs::ClientStats::combined_operations), 0u);
}

TEST_F(Combining, AModifyWhoseValueIsTooLongDoesNotHarmTheOthers) {
  Start(OpKind::kDelete);
  for (const std::string& value : {std::string("a"), std::string(kvs::kMaxValueBytes, 'x'), std::string("b")}) {
    Start(OpKind::kModify, value);
  }
  Finish();
  EXPECT_TRUE(calls_[1].result.ok());
  EXPECT_EQ(calls_[2].result, StatusCode::kInvalidArgument);
  EXPECT_EQ(calls_[2].saw, "a");
  EXPECT_TRUE(calls_[3].result.ok());
  EXPECT_EQ(Value(), "ab");
}

TEST_F(Combining, UpdatesAloneOfAnAbsentKeyAreAllNotFound) {
  for (int i = 0; i < 5; ++i) Start(OpKind::kUpdate, "u");
  Finish();
  for (const Call& call : calls_) EXPECT_EQ(call.result, StatusCode::kNotFound);
}

TEST_F(Combining, InsertAndDeleteGoAloneAndInTurn) {
  Start(OpKind::kPut, "a");
  Start(OpKind::kInsert, "b");
  Start(OpKind::kDelete);
  Start(OpKind::kDelete);
  Start(OpKind::kInsert, "c");
  Start(OpKind::kInsert, "d");
  Finish();
  EXPECT_TRUE(calls_[0].result.ok());
  EXPECT_EQ(calls_[1].result, StatusCode::kExists);
  EXPECT_TRUE(calls_[2].result.ok());
  EXPECT_EQ(calls_[3].result, StatusCode::kNotFound);
  EXPECT_TRUE(calls_[4].result.ok());
  EXPECT_EQ(calls_[5].result, StatusCode::kExists);
  EXPECT_EQ(Value(), "c");
  EXPECT_EQ(Since(&kvs::ClientStats::combined_operations), 0u);
}

TEST_F(Combining, ReadsAndWritesDoNotWaitForEachOther) {
  ASSERT_TRUE(other_->Put("k", "v").ok());
  const Call& put = Start(OpKind::kPut, "new");
  const Call& get = Start(OpKind::kGet);
  Poll(3);
  EXPECT_TRUE(put.ended);
  EXPECT_TRUE(get.ended);
}

TEST_F(Combining, AGetDoesNotJoinAReadThatIsPosted) {
  ASSERT_TRUE(other_->Put("k", "old").ok());
  Start(OpKind::kGet);
  Poll(1);  // it has seen the slot, and fetches the block
  ASSERT_TRUE(other_->Put("k", "new").ok());
  const Call& late = Start(OpKind::kGet);
  Finish();
  EXPECT_TRUE(late.result.ok());
  EXPECT_EQ(late.value, "new") << "a Get that began after a Put had ended missed it";
}

TEST_F(Combining, APutDoesNotJoinAWriteThatIsPosted) {
  Start(OpKind::kPut, "first");
  Poll(1);  // its block is written
  const Call& late = Start(OpKind::kPut, "second");
  Finish();
  EXPECT_TRUE(late.result.ok());
  EXPECT_EQ(Value(), "second");
}

// A waiting operation does not wait beyond its deadline, even though the one that it waits for goes on.
TEST_F(Combining, TheDeadlineHoldsForWhoWaits) {
  ASSERT_TRUE(other_->Put("k", "0").ok());
  Call& leader = Start(OpKind::kUpdate, "leader");
  Call& waiter = Start(OpKind::kUpdate, "waiter");
  bool waiter_first = false;
  for (int i = 0; client_->spawned() > 0 && i < 20'000; ++i) {
    client_->Poll();
    waiter_first |= waiter.ended && !leader.ended;
    clock_.Advance(kTimeoutNs / 1'000);
    ASSERT_TRUE(other_->Update("k", "other").ok());  // what the leader saw is stale
  }
  EXPECT_EQ(leader.result, StatusCode::kTimeout) << leader.result.ToString();
  EXPECT_EQ(waiter.result, StatusCode::kTimeout) << waiter.result.ToString();
  EXPECT_EQ(Value(), "other");
  EXPECT_GT(Since(&kvs::ClientStats::cas_failures), 3u);
  EXPECT_TRUE(waiter_first) << "it began before the leader's time began to count";
}

// A leader that runs out of time does not fail the operations that joined it later.
TEST_F(Combining, MembersOfALeaderThatIsOutOfTimeTryAgain) {
  ASSERT_TRUE(other_->Put("k", "0").ok());
  const auto interfere = [&](const Call& until_ended) {
    for (int i = 0; !until_ended.ended && i < 20'000; ++i) {
      client_->Poll();
      clock_.Advance(kTimeoutNs / 1'000);
      ASSERT_TRUE(other_->Update("k", "other").ok());
    }
    ASSERT_TRUE(until_ended.ended);
  };
  Start(OpKind::kDelete);  // goes alone, and to its end
  Call& leader = Start(OpKind::kPut, "leader");
  clock_.Advance(kTimeoutNs * 3 / 4);
  Call& member = Start(OpKind::kPut, "member");
  Poll(3);
  ASSERT_TRUE(calls_[0].ended);
  ASSERT_TRUE(other_->Put("k", "1").ok());
  interfere(leader);
  EXPECT_EQ(leader.result, StatusCode::kTimeout) << leader.result.ToString();
  EXPECT_FALSE(member.ended);
  Finish();
  EXPECT_TRUE(member.result.ok()) << member.result.ToString();
  EXPECT_EQ(Value(), "member");
}

TEST_F(Combining, MoreLanesThanOperationsInFlightAllEnd) {
  client_ = NewClient(1);
  for (int i = 0; i < 300; ++i) Start(static_cast<OpKind>(i % 6), std::to_string(i));
  Finish();
  for (const Call& call : calls_) EXPECT_TRUE(call.ended);
}

// ---- the lines themselves, with outcomes that a healthy store does not have

struct Gate {
  std::coroutine_handle<> waiting;
  bool await_ready() const { return false; }
  void await_suspend(std::coroutine_handle<> handle) { waiting = handle; }
  void await_resume() const {}
};

struct FakeOp {
  kvs::WriteKind kind;
  Status outcome;  // if it leads
  std::string value = {};
  Gate gate = {};  // once posted, it goes on when this opens
  Status result = StatusCode::kInternal;
  bool led = false, ended = false;
};

Task<Status> Body(kvs::Combiner& combiner, FakeOp* op) {
  static const std::string key = "k";
  kvs::Turn turn(combiner, HashKey(key), key, op->kind, kvs::Record{op->value});
  if (!turn.leads()) co_await turn.Wait(1);
  if (!turn.leads()) co_return turn.TakeResult();
  turn.Gather();
  op->led = true;
  co_await op->gate;
  co_return turn.Share(op->outcome);
}

Task<void> Drive(kvs::Combiner& combiner, FakeOp* op) {
  op->result = co_await Body(combiner, op);
  op->ended = true;
}

class Lines : public ::testing::Test {
 protected:
  Lines() { combiner_.SetSize(64); }
  FakeOp& Start(kvs::WriteKind kind, Status outcome) {
    ops_.push_back({kind, std::move(outcome)});
    tasks_.push_back(Drive(combiner_, &ops_.back()));
    tasks_.back().Start();
    return ops_.back();
  }
  void Open(FakeOp& op) {
    op.gate.waiting.resume();
    kvs::RunQueue::OfThisThread().RunAll();
  }

  kvs::ClientStats stats_;
  kvs::Combiner combiner_{stats_};
  std::deque<FakeOp> ops_;
  std::deque<Task<void>> tasks_;
};

TEST_F(Lines, AnUnknownOutcomeIsEveryMembers) {
  FakeOp& first = Start(kvs::WriteKind::kPut, StatusCode::kOk);
  FakeOp& leader = Start(kvs::WriteKind::kPut, StatusCode::kUnknown);
  FakeOp& member = Start(kvs::WriteKind::kUpdate, StatusCode::kOk);
  Open(first);
  FakeOp& late = Start(kvs::WriteKind::kPut, StatusCode::kOk);
  Open(leader);
  EXPECT_EQ(leader.result, StatusCode::kUnknown);
  EXPECT_EQ(member.result, StatusCode::kUnknown);
  EXPECT_TRUE(late.led) << "it was not in the group, so nothing of it is in doubt";
  Open(late);
  EXPECT_TRUE(late.result.ok());
}

TEST_F(Lines, AWriteThatWasNotDoneIsTriedAgainByItsMembers) {
  for (const StatusCode code : {StatusCode::kUnavailable, StatusCode::kOutOfMemory, StatusCode::kTimeout}) {
    FakeOp& first = Start(kvs::WriteKind::kPut, StatusCode::kOk);
    FakeOp& leader = Start(kvs::WriteKind::kPut, code);
    FakeOp& second = Start(kvs::WriteKind::kPut, StatusCode::kOk);
    FakeOp& third = Start(kvs::WriteKind::kPut, StatusCode::kOk);
    Open(first);
    FakeOp& late = Start(kvs::WriteKind::kInsert, StatusCode::kExists);
    Open(leader);
    EXPECT_EQ(leader.result, code);
    ASSERT_TRUE(second.led) << "who has waited longest";
    EXPECT_FALSE(third.ended);
    Open(second);
    EXPECT_TRUE(second.result.ok());
    EXPECT_TRUE(third.result.ok());
    EXPECT_FALSE(third.led);
    Open(late);
    EXPECT_EQ(late.result, StatusCode::kExists);
  }
}

TEST_F(Lines, WhoIsOverdueEndsAndTheOthersGoOn) {
  FakeOp& first = Start(kvs::WriteKind::kPut, StatusCode::kOk);
  FakeOp& overdue = Start(kvs::WriteKind::kPut, StatusCode::kOk);
  EXPECT_TRUE(combiner_.any_waiting());
  combiner_.EndOverdue(1'000'000'000);
  kvs::RunQueue::OfThisThread().RunAll();
  EXPECT_FALSE(combiner_.any_waiting());
  EXPECT_EQ(overdue.result, StatusCode::kTimeout);
  Open(first);
  EXPECT_TRUE(first.result.ok());
}

}  // namespace
}  // namespace surgekv_test
