// Modify and CompareAndSet: what each decision does, what the function sees, and that nothing comes between what it saw
// and what is published. One thread: a client that is not polled stands still between two round trips. The simulator
// (tests/sim) shows that they are linearizable beside everything else.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tests/kvs/manual_clock.h"
#include "tests/kvs/test_store.h"

namespace surgekv_test {
namespace {

using kvs::Client;
using kvs::Modification;
using kvs::Status;
using kvs::StatusCode;
using kvs::Task;

constexpr const char* kAbsentKey = "(absent)";

// What a Modify's function saw, and how the Modify ended.
struct Seen {
  uint32_t calls = 0;
  std::string last;
  Status result = StatusCode::kInternal;
};

// A function that appends to what it sees, or sets this where the key is absent.
kvs::ModifyFunction Append(std::string text, Seen* seen) {
  return [text = std::move(text), seen](std::optional<std::string_view> value) {
    ++seen->calls;
    seen->last = value ? std::string(*value) : kAbsentKey;
    return Modification::Set(std::string(value.value_or("")) + text);
  };
}

kvs::ModifyFunction Always(Modification wanted) {
  return [wanted = std::move(wanted)](std::optional<std::string_view>) { return wanted; };
}

Task<void> AppendOne(Client& client, std::string key, std::string text, Seen* seen) {
  const kvs::ModifyFunction append = Append(std::move(text), seen);
  seen->result = co_await client.ModifyAsync(key, &append);
}

class Modify : public ::testing::Test {
 protected:
  Modify() : store_(Options(&clock_)), client_(NewClient(0)), other_(NewClient(0)) {
    EXPECT_TRUE(client_->Put("warm", "").ok());
    EXPECT_TRUE(other_->Put("warm", "").ok());
  }
  static TestStoreOptions Options(krcore::Clock* clock) {
    TestStoreOptions options;
    options.memory_bytes = size_t{32} << 20;
    options.operation_timeout_ms = 1'000;
    options.chunk_bytes = size_t{1} << 18;
    options.clock = clock;
    return options;
  }
  std::unique_ptr<Client> NewClient(uint32_t address_cache_entries) {
    return store_.store().NewClient({.address_cache_entries = address_cache_entries}).value();
  }
  std::string Value(const std::string& key = "k") {
    std::string value;
    const Status got = other_->Get(key, &value);
    return got.ok() ? value : got == StatusCode::kNotFound ? kAbsentKey : got.ToString();
  }

  ManualClock clock_;
  TestStore store_;
  std::unique_ptr<Client> client_, other_;
};

TEST_F(Modify, DoesWhatTheFunctionDecides) {
  const uint64_t done = client_->stats().writes_done;
  EXPECT_TRUE(client_->Modify("k", Always(Modification::Keep())).ok());
  EXPECT_TRUE(client_->Modify("k", Always(Modification::Delete())).ok());
  EXPECT_EQ(Value(), kAbsentKey);
  EXPECT_EQ(client_->stats().writes_done, done) << "nothing was to be changed";
  EXPECT_TRUE(client_->Modify("k", Always(Modification::Set("1"))).ok());
  EXPECT_EQ(Value(), "1");
  EXPECT_TRUE(client_->Modify("k", Always(Modification::Keep())).ok());
  EXPECT_EQ(Value(), "1");
  EXPECT_TRUE(client_->Modify("k", Always(Modification::Set(""))).ok());
  EXPECT_EQ(Value(), "");
  EXPECT_TRUE(client_->Modify("k", Always(Modification::Delete())).ok());
  EXPECT_EQ(Value(), kAbsentKey);
  EXPECT_EQ(client_->stats().writes_done, done + 3);
}

TEST_F(Modify, OfWhatIsNoRecordIsRefused) {
  Seen seen;
  EXPECT_EQ(client_->Modify("", Append("x", &seen)), StatusCode::kInvalidArgument);
  EXPECT_EQ(client_->Modify("k", {}), StatusCode::kInvalidArgument);
  EXPECT_EQ(seen.calls, 0u);
  EXPECT_EQ(client_->Modify("k", Append(std::string(kvs::kMaxValueBytes + 1, 'x'), &seen)),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(Value(), kAbsentKey);
}

TEST_F(Modify, CompareAndSetTellsWhatDidNotMatch) {
  EXPECT_EQ(client_->CompareAndSet("k", "0", "1"), StatusCode::kNotFound);
  EXPECT_EQ(Value(), kAbsentKey);
  EXPECT_TRUE(client_->CompareAndSet("k", {}, {}).ok());
  EXPECT_TRUE(client_->CompareAndSet("k", {}, "1").ok());
  EXPECT_EQ(client_->CompareAndSet("k", {}, "2"), StatusCode::kExists);
  EXPECT_EQ(client_->CompareAndSet("k", "0", "2"), StatusCode::kExists);
  EXPECT_EQ(client_->CompareAndSet("k", "", {}), StatusCode::kExists) << "an empty value is not an absent key";
  EXPECT_EQ(Value(), "1");
  EXPECT_TRUE(client_->CompareAndSet("k", "1", "2").ok());
  EXPECT_EQ(Value(), "2");
  EXPECT_TRUE(client_->CompareAndSet("k", "2", {}).ok());
  EXPECT_EQ(Value(), kAbsentKey);
}

Task<void> Swap(Client& client, Status* result) {
  const std::string one = "1", two = "2";
  *result = co_await client.CompareAndSetAsync("k", one, two);
}

TEST_F(Modify, OfTwoCompareAndSetsAtOnceOneWins) {
  ASSERT_TRUE(other_->Put("k", "1").ok());
  Status results[4];
  for (int i = 0; i < 4; ++i) {
    Client& client = i % 2 == 0 ? *client_ : *other_;
    client.Spawn(Swap(client, &results[i]));
  }
  for (int i = 0; i < 20; ++i) {
    client_->Poll();
    other_->Poll();
  }
  FinishAll(*client_, clock_);
  FinishAll(*other_, clock_);
  int won = 0;
  for (const Status& result : results) {
    won += result.ok() ? 1 : 0;
    EXPECT_TRUE(result.ok() || result == StatusCode::kExists) << result.ToString();
  }
  EXPECT_EQ(won, 1);
}

// The address cache knows the block that the key had. The block is still there, but not in the slot.
TEST_F(Modify, DoesNotBelieveTheAddressCache) {
  auto knowing = NewClient(1'024);
  ASSERT_TRUE(knowing->Put("warm too", "").ok());
  ASSERT_TRUE(other_->Put("k", "old").ok());
  std::string value;
  ASSERT_TRUE(knowing->Get("k", &value).ok());
  ASSERT_TRUE(other_->Update("k", "new").ok());
  Seen seen;
  ASSERT_TRUE(knowing->Modify("k", Append("+", &seen)).ok());
  EXPECT_EQ(knowing->stats().cache_speculations, 1u);
  EXPECT_EQ(knowing->stats().cache_hits, 0u);
  EXPECT_EQ(seen.last, "new");
  EXPECT_EQ(Value(), "new+");
}

// Another client changes the key after each poll of a Modify in turn. What the function saw last is what was replaced.
TEST_F(Modify, NothingComesBetweenWhatTheFunctionSawAndWhatItSet) {
  using Change = std::function<Status(Client&)>;
  const std::vector<std::pair<const char*, Change>> changes = {
      {"update", [](Client& c) { return c.Put("k", "theirs"); }},
      {"delete", [](Client& c) { return c.Delete("k"); }},
      {"delete and insert",
       [](Client& c) {
         (void)c.Delete("k");
         return c.Insert("k", "theirs");
       }},
      {"the same value again", [](Client& c) { return c.Put("k", "mine"); }},
  };
  uint32_t again = 0, before = 0, after = 0;
  for (const bool present : {true, false}) {
    for (const auto& [name, change] : changes) {
      for (uint32_t rounds = 0; rounds < 8; ++rounds) {
        SCOPED_TRACE(testing::Message() << name << " after " << rounds << " rounds, present " << present);
        if (present) {
          ASSERT_TRUE(other_->Put("k", "mine").ok());
        } else {
          (void)other_->Delete("k");
        }
        Seen seen;
        client_->Spawn(AppendOne(*client_, "k", "+", &seen));
        for (uint32_t i = 0; i < rounds; ++i) client_->Poll();
        const bool ended = client_->spawned() == 0;
        (void)change(*other_);
        const std::string theirs = Value();
        FinishAll(*client_, clock_);
        EXPECT_TRUE(seen.result.ok()) << seen.result.ToString();
        const std::string final = Value();
        const std::string appended = (seen.last == kAbsentKey ? "" : seen.last) + "+";
        if (ended) {
          EXPECT_EQ(final, theirs);
          ++after;
        } else if (final == theirs) {
          ++after;  // the Modify was done and had not been told, so its function saw what was there before
          EXPECT_EQ(seen.calls, 1u);
          EXPECT_EQ(seen.last, present ? "mine" : kAbsentKey);
        } else {
          EXPECT_EQ(seen.last, theirs);
          EXPECT_EQ(final, appended);
          ++before;
        }
        again += seen.calls > 1;
      }
    }
  }
  EXPECT_GT(again, 10u);
  EXPECT_GT(before, 10u);
  EXPECT_GT(after, 10u);
}

TEST_F(Modify, IncrementsOfManyCoroutinesOfTwoClientsAreAllCounted) {
  constexpr int kIncrements = 500;
  uint32_t failed = 0;
  const auto increment = [&failed](Client& client) -> Task<void> {
    const kvs::ModifyFunction add_one = [](std::optional<std::string_view> value) {
      return Modification::Set(std::to_string(value ? std::stoi(std::string(*value)) + 1 : 1));
    };
    const Status status = co_await client.ModifyAsync("counter", &add_one);
    failed += status.ok() ? 0 : 1;
  };
  for (int i = 0; i < kIncrements; ++i) {
    for (Client* client : {client_.get(), other_.get()}) {
      client->Spawn(increment(*client));
      client->Poll();
      clock_.Advance(1'000);
    }
  }
  for (int i = 0; client_->spawned() + other_->spawned() > 0 && i < 100'000; ++i) {
    client_->Poll();
    other_->Poll();
    clock_.Advance(1'000);
  }
  EXPECT_EQ(failed, 0u);
  EXPECT_EQ(Value("counter"), std::to_string(2 * kIncrements));
  EXPECT_GT(client_->stats().combined_operations, 0u);
  EXPECT_GT(client_->stats().cas_failures + other_->stats().cas_failures, 0u);
}

// Values that fit an operation's buffer, that do not, and that are longer than a chunk, for whose memory the Modify
// must wait: its function runs again after that. What it lets go of is used again, or the store would be full.
TEST_F(Modify, OfValuesOfEveryLengthAgreesWithAMapAndLosesNoMemory) {
  static constexpr size_t kLengths[] = {0, 10, 200, 4'000, 6'000, 100'000, 400'000, 900'000};
  std::mt19937 random(5);
  std::map<std::string, std::string> model;
  other_.reset();  // it would hold all memory back while a call blocks
  uint32_t calls = 0;
  for (int i = 0; i < 3'000; ++i) {
    const std::string key = "key" + std::to_string(random() % 8);
    const auto known = model.find(key);
    const uint32_t dice = random() % 10;
    const std::string set(kLengths[random() % std::size(kLengths)], static_cast<char>('a' + i % 26));
    const Status status = client_->Modify(key, [&](std::optional<std::string_view> value) {
      ++calls;
      EXPECT_TRUE(known == model.end() ? !value.has_value() : value == known->second) << i;
      return dice == 0 ? Modification::Delete() : dice == 1 ? Modification::Keep() : Modification::Set(set);
    });
    ASSERT_TRUE(status.ok()) << i << ": " << status.ToString();
    if (dice == 0) model.erase(key);
    if (dice > 1) model[key] = set;
  }
  EXPECT_GT(calls, 3'500u) << "hardly any waited for memory";
  other_ = NewClient(0);
  for (const auto& [key, value] : model) EXPECT_TRUE(Value(key) == value) << key;
}

// The first time, the function wants a value longer than a chunk, for whose memory the Modify waits. When it runs
// again, it wants something else, and that memory is too short, too long or of no use.
TEST_F(Modify, TheFunctionMayChangeItsMindWhileTheModifyWaitsForMemory) {
  const std::string first(400'000, 'f'), neighbour(300'000, 'n');
  const std::vector<Modification> wishes = {Modification::Keep(), Modification::Delete(), Modification::Set("short"),
                                            Modification::Set(std::string(900'000, 'l'))};
  other_.reset();  // it would hold all memory back while a call blocks
  for (int i = 0; i < 400; ++i) {
    const Modification& then = wishes[i % wishes.size()];
    ASSERT_TRUE(client_->Put("k", "old").ok()) << i;
    uint32_t calls = 0;
    const Status status = client_->Modify("k", [&](std::optional<std::string_view> value) {
      EXPECT_EQ(value, "old");
      return ++calls == 1 ? Modification::Set(first) : then;
    });
    ASSERT_TRUE(status.ok()) << i << ": " << status.ToString();
    EXPECT_GE(calls, 2u) << i;
    ASSERT_TRUE(client_->Put("neighbour" + std::to_string(i % 10), neighbour).ok()) << i;
    std::string value;
    const Status got = client_->Get("k", &value);
    if (then.action == Modification::Action::kDelete) {
      EXPECT_EQ(got, StatusCode::kNotFound) << i;
    } else {
      EXPECT_TRUE(got.ok() && value == (then.action == Modification::Action::kKeep ? "old" : then.value)) << i;
    }
    for (int n = 0; n < std::min(i, 10); ++n) {
      ASSERT_TRUE(client_->Get("neighbour" + std::to_string(n), &value).ok()) << i;
      ASSERT_TRUE(value == neighbour) << i;
    }
  }
  EXPECT_EQ(client_->stats().compactions, 0u) << "memory that was waited for is lost until the mover finds it";
  other_ = NewClient(0);
}

// The mover gives values other places. So the word that a CompareAndSet expects is gone now and then, though its key
// has the value that it expects.
TEST_F(Modify, ACasThatIsLostToTheMoverIsNoMismatch) {
  constexpr int kKeys = 9'000;
  const std::string old_value(300, 'a'), new_value(300, 'b');
  for (int i = 0; i < kKeys; ++i) ASSERT_TRUE(other_->Put(std::to_string(i), old_value).ok());
  for (int i = 0; i < kKeys; ++i) {
    if (i % 3 == 0) continue;
    ASSERT_TRUE(other_->Delete(std::to_string(i)).ok());
  }
  uint32_t refused = 0;
  const auto swap = [&](std::string key) -> Task<void> {
    const Status status = co_await client_->CompareAndSetAsync(key, old_value, new_value);
    refused += status.ok() ? 0 : 1;
  };
  const auto compact = [this]() -> Task<void> {
    kvs::CompactReport report;
    const Status status = co_await other_->CompactAsync({.thorough = true}, &report);
    EXPECT_TRUE(status.ok()) << status.ToString();
  };
  other_->Spawn(compact());
  int next = 0;
  for (int round = 0; other_->spawned() > 0 && round < 100'000; ++round) {
    if (other_->stats().blocks_moved > 0) {  // from now on, swaps are held while it moves more
      for (int i = 0; i < 24 && next < kKeys; ++i, next += 3) client_->Spawn(swap(std::to_string(next)));
      for (int i = 0; i < 3; ++i) client_->Poll();
      for (int i = 0; i < 16; ++i) other_->Poll();
    }
    client_->Poll();
    other_->Poll();
    clock_.Advance(20'000);
  }
  FinishAll(*client_, clock_);
  FinishAll(*other_, clock_);
  EXPECT_EQ(refused, 0u);
  EXPECT_GT(other_->stats().blocks_moved, 100u);
  EXPECT_GT(client_->stats().cas_failures, 0u) << "no swap met the mover";
}

TEST_F(Modify, WithoutMemoryForItsValueChangesNothing) {
  ASSERT_TRUE(other_->Put("k", "kept").ok());
  ASSERT_TRUE(client_->Put("large", std::string(kvs::kMaxValueBytes, 'y')).ok());
  other_.reset();
  Seen seen;
  const Status status = client_->Modify("k", Append(std::string(kvs::kMaxValueBytes - 4, 'x'), &seen));
  EXPECT_EQ(status, StatusCode::kOutOfMemory) << status.ToString();
  other_ = NewClient(0);
  EXPECT_EQ(Value(), "kept");
  EXPECT_TRUE(client_->Modify("k", Append("+", &seen)).ok());
  EXPECT_EQ(Value(), "kept+");
}

Task<void> ModifyOne(Client& client, kvs::ModifyFunction function, Status* result) {
  *result = co_await client.ModifyAsync("k", &function);
}

// Modifies that become one: the one that wants too much fails, and no other.
TEST_F(Modify, ThatFindsNoMemoryFailsAloneInItsGroup) {
  ASSERT_TRUE(client_->Put("large", std::string(kvs::kMaxValueBytes, 'y')).ok());
  other_.reset();  // it would hold all memory back
  const Modification keep = Modification::Keep();
  const std::vector<Modification> wishes = {Modification::Set("first"), keep, Modification::Set("second"),
                                            Modification::Set(std::string(kvs::kMaxValueBytes, 'x')), keep};
  std::vector<Status> results(wishes.size(), StatusCode::kInternal);
  for (size_t i = 0; i < wishes.size(); ++i) client_->Spawn(ModifyOne(*client_, Always(wishes[i]), &results[i]));
  FinishAll(*client_, clock_, 10'000);
  for (size_t i = 0; i < wishes.size(); ++i) {
    EXPECT_EQ(results[i], i == 3 ? StatusCode::kOutOfMemory : StatusCode::kOk) << i << ": " << results[i].ToString();
  }
  other_ = NewClient(0);
  EXPECT_EQ(Value(), "second");
}

}  // namespace
}  // namespace surgekv_test
