// Values that expire: what each operation makes of one that has, that it is gone before anybody is told so, and that
// the time of day that a value has stays with it. One thread. The simulator (tests/sim) shows the same beside
// everything else, with clocks that differ.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kvs/housekeeper.h"
#include "tests/kvs/manual_clock.h"
#include "tests/kvs/pool_check.h"
#include "tests/kvs/test_store.h"

namespace surgekv_test {
namespace {

using kvs::Client;
using kvs::Modification;
using kvs::Status;
using kvs::StatusCode;
using kvs::Task;
using testing::ElementsAre;
using testing::IsEmpty;
using testing::Pair;
using testing::SizeIs;

constexpr int64_t kMs = 1'000'000;

// Another host's clock: its time of day differs.
class SkewedClock final : public krcore::Clock {
 public:
  SkewedClock(ManualClock& clock, int64_t ahead_ms) : clock_(clock), ahead_ms_(ahead_ms) {}
  int64_t NowNs() override { return clock_.NowNs(); }
  void Relax(uint32_t spins) override { clock_.Relax(spins); }
  uint64_t UnixMs() override { return clock_.UnixMs() + static_cast<uint64_t>(ahead_ms_); }

 private:
  ManualClock& clock_;
  const int64_t ahead_ms_;
};

std::vector<StatusCode> Codes(const std::vector<Status>& statuses) {
  std::vector<StatusCode> codes;
  for (const Status& status : statuses) codes.push_back(status.code());
  return codes;
}

class Expiry : public ::testing::Test {
 protected:
  Expiry() : store_(Options(&clock_)), client_(store_.NewClient()) { clock_.Advance(10'000 * kMs); }

  static TestStoreOptions Options(krcore::Clock* clock) {
    TestStoreOptions options;
    options.memory_bytes = size_t{32} << 20;
    options.operation_timeout_ms = 1'000;
    options.chunk_bytes = size_t{1} << 15;
    options.clock = clock;
    return options;
  }
  uint64_t In(uint64_t ms) { return clock_.UnixMs() + ms; }
  // Writes a value that has expired since.
  void PutExpired(const std::string& key = "k", const std::string& value = "old") {
    ASSERT_TRUE(client_->Put(key, value, In(5)).ok());
    clock_.Advance(5 * kMs);
    ASSERT_EQ(InMemory().count(key), 1u) << "nobody has looked yet";
  }
  std::string Value(Client& client, const std::string& key = "k") {
    std::string value;
    const Status got = client.Get(key, &value);
    return got.ok() ? value : got == StatusCode::kNotFound ? "(absent)" : got.ToString();
  }
  // Returns the time at which the key's value expires.
  uint64_t ExpiryOf(const std::string& key) {
    uint64_t expires_at_ms = 1;
    const Status read = client_->Modify(key, [&](const std::optional<kvs::Record>& record) {
      expires_at_ms = record ? record->expires_at_ms : 1;
      return Modification::Keep();
    });
    EXPECT_TRUE(read.ok()) << read.ToString();
    return expires_at_ms;
  }
  std::map<std::string, std::string> InMemory() {
    const PoolReport report = CheckPools(store_.images());
    EXPECT_TRUE(report.ok()) << report.ToString();
    return {report.contents.begin(), report.contents.end()};
  }

  ManualClock clock_;
  TestStore store_;
  std::unique_ptr<Client> client_;
};

TEST_F(Expiry, AValueIsThereUntilItsTime) {
  ASSERT_TRUE(client_->Put("k", "v", In(2)).ok());
  EXPECT_EQ(Value(*client_), "v");
  clock_.Advance(1 * kMs);
  EXPECT_EQ(Value(*client_), "v");
  clock_.Advance(1 * kMs);
  EXPECT_EQ(Value(*client_), "(absent)");
  EXPECT_EQ(client_->stats().expired, 1u);
}

TEST_F(Expiry, WhoeverSaysThatAKeyIsAbsentHasRemovedItsValue) {
  client_ = store_.NewClient(/*max_in_flight=*/1);
  std::string value;
  std::vector<std::string> values(2);
  std::vector<Status> statuses(2);
  const std::vector<std::string_view> keys = {"k", "k"};
  ASSERT_NO_FATAL_FAILURE(PutExpired());
  EXPECT_EQ(client_->Get("k", &value), StatusCode::kNotFound);
  EXPECT_THAT(InMemory(), IsEmpty());
  ASSERT_NO_FATAL_FAILURE(PutExpired());
  client_->MultiGet(keys, values, statuses);
  EXPECT_THAT(Codes(statuses), testing::Each(StatusCode::kNotFound));
  EXPECT_THAT(InMemory(), IsEmpty());
  ASSERT_NO_FATAL_FAILURE(PutExpired());
  EXPECT_EQ(client_->Update("k", "new"), StatusCode::kNotFound);
  EXPECT_THAT(InMemory(), IsEmpty());
  ASSERT_NO_FATAL_FAILURE(PutExpired());
  EXPECT_EQ(client_->Delete("k"), StatusCode::kNotFound);
  EXPECT_THAT(InMemory(), IsEmpty());
  ASSERT_NO_FATAL_FAILURE(PutExpired());
  std::vector<kvs::WriteRequest> writes = {{.kind = kvs::WriteKind::kUpdate, .key = "k", .value = "new"}};
  client_->MultiWrite(writes);
  EXPECT_EQ(writes.front().status, StatusCode::kNotFound);
  EXPECT_THAT(InMemory(), IsEmpty());
  ASSERT_NO_FATAL_FAILURE(PutExpired());
  EXPECT_EQ(client_->CompareAndSet("k", "old", "new"), StatusCode::kNotFound);
  EXPECT_THAT(InMemory(), IsEmpty());
  ASSERT_NO_FATAL_FAILURE(PutExpired());
  bool saw = true;
  EXPECT_TRUE(client_
                  ->Modify("k",
                           [&](const std::optional<kvs::Record>& record) {
                             saw = record.has_value();
                             return Modification::Keep();
                           })
                  .ok());
  EXPECT_FALSE(saw);
  EXPECT_THAT(InMemory(), IsEmpty());
  EXPECT_EQ(client_->stats().expired, 7u);
}

TEST_F(Expiry, WritesThatNeedNoValueReplaceOneThatHasExpired) {
  ASSERT_NO_FATAL_FAILURE(PutExpired());
  EXPECT_TRUE(client_->Put("k", "1").ok());
  EXPECT_THAT(InMemory(), ElementsAre(Pair("k", "1")));
  ASSERT_NO_FATAL_FAILURE(PutExpired());
  EXPECT_TRUE(client_->Insert("k", "2").ok());
  EXPECT_EQ(client_->Insert("k", "3"), StatusCode::kExists);
  EXPECT_THAT(InMemory(), ElementsAre(Pair("k", "2")));
  ASSERT_NO_FATAL_FAILURE(PutExpired());
  EXPECT_TRUE(client_->CompareAndSet("k", {}, "4").ok());
  EXPECT_EQ(Value(*client_), "4");
  ASSERT_NO_FATAL_FAILURE(PutExpired());
  std::vector<kvs::WriteRequest> writes = {{.kind = kvs::WriteKind::kInsert, .key = "k", .value = "5"}};
  client_->MultiWrite(writes);
  EXPECT_TRUE(writes.front().status.ok());
  EXPECT_EQ(Value(*client_), "5");
}

TEST_F(Expiry, EachWriteSetsTheTimeAnew) {
  const uint64_t soon = In(100), late = In(100'000);
  ASSERT_TRUE(client_->Insert("k", "v", soon).ok());
  EXPECT_EQ(ExpiryOf("k"), soon);
  ASSERT_TRUE(client_->Update("k", "v", late).ok());
  EXPECT_EQ(ExpiryOf("k"), late);
  ASSERT_TRUE(
      client_->Modify("k", [](const auto& record) { return Modification::Set("w", record->expires_at_ms + 1); }).ok());
  EXPECT_EQ(ExpiryOf("k"), late + 1);
  ASSERT_TRUE(client_->CompareAndSet("k", "w", "x", late).ok());
  EXPECT_EQ(ExpiryOf("k"), late);
  std::vector<kvs::WriteRequest> writes = {{.key = "k", .value = "y", .expires_at_ms = soon}};
  client_->MultiWrite(writes);
  EXPECT_EQ(ExpiryOf("k"), soon);
  ASSERT_TRUE(client_->Put("k", "z").ok());
  EXPECT_EQ(ExpiryOf("k"), 0u);
  clock_.Advance(200'000 * kMs);
  EXPECT_EQ(Value(*client_), "z");
}

TEST_F(Expiry, OfAllLengths) {
  // Around the length from which on a block is large, which depends on the eight bytes of the time.
  for (size_t bytes = 0; bytes < 5'000; bytes += bytes < 3'900 || bytes > 4'200 ? 61 : 1) {
    const std::string value(bytes, static_cast<char>('a' + bytes % 26));
    for (const bool expires : {false, true}) {
      const uint64_t expires_at_ms = expires ? In(1'000'000) : 0;
      ASSERT_TRUE(client_->Put("k", value, expires_at_ms).ok());
      ASSERT_EQ(Value(*client_), value);
      ASSERT_EQ(ExpiryOf("k"), expires_at_ms);
    }
  }
  const std::string large(kvs::kMaxValueBytes, 'x');
  ASSERT_TRUE(client_->Put("k", large, In(1)).ok());
  EXPECT_EQ(Value(*client_), large);
  clock_.Advance(1 * kMs);
  EXPECT_EQ(Value(*client_), "(absent)");
}

TEST_F(Expiry, ClientsWhoseClocksDifferAgree) {
  SkewedClock ahead(clock_, 1'000);
  const auto others_store = TestStore::Attach(store_.fabric(), Options(&ahead));
  const auto other = others_store->NewClient().value();
  ASSERT_TRUE(client_->Put("k", "v", In(500)).ok());
  EXPECT_EQ(Value(*client_), "v");
  EXPECT_EQ(Value(*other), "(absent)");
  EXPECT_EQ(Value(*client_), "(absent)") << "by its own clock it has not expired, but it is gone";
  ASSERT_TRUE(client_->Put("k", "w", In(500)).ok());
  EXPECT_TRUE(other->Insert("k", "x").ok());
  EXPECT_EQ(Value(*client_), "x");
}

Task<void> GetOne(Client& client, Status* result) {
  std::string value;
  *result = co_await client.GetAsync("k", &value);
  if (result->ok()) *result = Status(StatusCode::kExists, value);
}

// A Get has found a value that has expired, and another client replaces that before the Get removes it.
TEST_F(Expiry, WhatReplacedAnExpiredValueStays) {
  uint32_t found = 0, absent = 0;
  for (uint32_t rounds = 0; rounds < 12; ++rounds) {
    ASSERT_NO_FATAL_FAILURE(PutExpired());
    const auto other = store_.NewClient();
    Status result = StatusCode::kInternal;
    client_->Spawn(GetOne(*client_, &result));
    for (uint32_t round = 0; round < rounds; ++round) client_->Poll();
    ASSERT_TRUE(other->Put("k", "new").ok());
    FinishAll(*client_, clock_);
    if (result == StatusCode::kExists) {
      ++found;
      EXPECT_EQ(result.message(), "new");
    } else {
      ++absent;
      EXPECT_EQ(result, StatusCode::kNotFound) << result.ToString();
    }
    EXPECT_EQ(Value(*other), "new");
  }
  EXPECT_GT(found, 0u);
  EXPECT_GT(absent, 0u);
}

Task<void> PutOne(Client& client, std::string value, uint64_t expires_at_ms, Status* result) {
  *result = co_await client.PutAsync("k", value, expires_at_ms);
}

TEST_F(Expiry, OfPutsThatBecomeOneTheLastOneCounts) {
  for (const bool last_expires : {false, true}) {
    const uint64_t at_ms = In(100);
    std::vector<Status> results(3, StatusCode::kInternal);
    const uint64_t combined = client_->stats().combined_operations;
    for (size_t i = 0; i < 3; ++i) {
      const bool expires = (i == 2) == last_expires;
      client_->Spawn(PutOne(*client_, std::to_string(i), expires ? at_ms : 0, &results[i]));
    }
    FinishAll(*client_, clock_);
    EXPECT_THAT(Codes(results), testing::Each(StatusCode::kOk));
    EXPECT_GT(client_->stats().combined_operations, combined);
    EXPECT_EQ(Value(*client_), "2");
    EXPECT_EQ(ExpiryOf("k"), last_expires ? at_ms : 0);
  }
}

Task<void> ModifyOne(Client& client, const kvs::ModifyFunction* function, Status* result) {
  *result = co_await client.ModifyAsync("k", function);
}

TEST_F(Expiry, OfModifiesThatBecomeOneNoneSeesWhatHasExpired) {
  const uint64_t past = In(0) - 1, future = In(100);
  std::vector<std::string> saw;
  const auto setting = [&saw](std::string value, uint64_t expires_at_ms) -> kvs::ModifyFunction {
    return [&saw, value, expires_at_ms](const std::optional<kvs::Record>& record) {
      saw.push_back(record ? std::string(record->value) + "@" + std::to_string(record->expires_at_ms) : "absent");
      return Modification::Set(value, expires_at_ms);
    };
  };
  const std::vector<kvs::ModifyFunction> functions = {setting("0", 0), setting("1", past), setting("2", future),
                                                      setting("3", past)};
  std::vector<Status> results(functions.size(), StatusCode::kInternal);
  for (size_t i = 0; i < functions.size(); ++i) client_->Spawn(ModifyOne(*client_, &functions[i], &results[i]));
  FinishAll(*client_, clock_);
  EXPECT_THAT(Codes(results), testing::Each(StatusCode::kOk));
  ASSERT_GE(saw.size(), 4u);
  const std::vector<std::string> last(saw.end() - 3, saw.end());
  EXPECT_THAT(last, ElementsAre("0@0", "absent", "2@" + std::to_string(future)));
  EXPECT_EQ(Value(*client_), "(absent)");
}

TEST_F(Expiry, StaysWithKeysThatSplitsMergesAndMovesTakeElsewhere) {
  constexpr uint64_t kKeys = 3'000;
  const uint64_t begin = In(1'000'000);
  const auto key = [](uint64_t i) { return "key-" + std::to_string(i); };
  for (uint64_t i = 0; i < kKeys; ++i) ASSERT_TRUE(client_->Insert(key(i), "v", i % 3 == 0 ? 0 : begin + i).ok());
  EXPECT_GT(client_->stats().splits, 10u);
  for (uint64_t i = 0; i < kKeys; ++i) {
    if (i % 16 == 1) continue;
    ASSERT_TRUE(client_->Delete(key(i)).ok());
  }
  kvs::CompactReport report;
  ASSERT_TRUE(client_->Compact({.thorough = true}, &report).ok());
  EXPECT_GT(report.blocks_moved, 0u);
  EXPECT_GT(report.tables_merged, 0u);
  for (uint64_t i = 1; i < kKeys; i += 16) EXPECT_EQ(ExpiryOf(key(i)), i % 3 == 0 ? 0 : begin + i);
}

TEST_F(Expiry, AScanRemovesWhatHasExpiredAndTellsTheTimeOfTheRest) {
  const uint64_t soon = In(5), late = In(500);
  for (const bool values : {true, false}) {
    for (int i = 0; i < 300; ++i) {
      ASSERT_TRUE(client_->Put("key-" + std::to_string(i), "v", i % 3 == 0 ? soon : i % 3 == 1 ? late : 0).ok());
    }
    clock_.Advance(5 * kMs);
    uint64_t cursor = 0, expiring = 0, staying = 0;
    do {
      std::vector<kvs::ScanRecord> records;
      ASSERT_TRUE(client_->Scan(&cursor, &records, {.values = values}).ok());
      for (const kvs::ScanRecord& record : records) {
        expiring += record.expires_at_ms == late;
        staying += record.expires_at_ms == 0;
        EXPECT_EQ(record.value, values ? "v" : "");
      }
    } while (cursor != 0);
    EXPECT_EQ(expiring, 100u);
    EXPECT_EQ(staying, 100u);
    EXPECT_THAT(InMemory(), SizeIs(200));
  }
}

TEST_F(Expiry, AHousekeeperRemovesWhatNobodyAsksFor) {
  const auto housekeeper = kvs::Housekeeper::Create(store_.store()).value();
  int64_t as_client_ns = 0;
  const auto keep_house = [&](int64_t ns) {
    for (const int64_t end_ns = clock_.NowNs() + ns; clock_.NowNs() < end_ns;) {
      const int64_t begin_ns = clock_.NowNs();
      clock_.Advance(std::max<int64_t>(housekeeper->Step(), 1'000));
      client_->Poll();
      if (housekeeper->stats().is_client) as_client_ns += clock_.NowNs() - begin_ns;
    }
  };
  for (int i = 0; i < 1'000; ++i) ASSERT_TRUE(client_->Put("stays-" + std::to_string(i), "v").ok());
  keep_house(60'000 * kMs);
  EXPECT_EQ(as_client_ns, 0) << "there is nothing to look for";
  for (int i = 0; i < 1'000; ++i) ASSERT_TRUE(client_->Put("goes-" + std::to_string(i), "v", In(1'000)).ok());
  keep_house(60'000 * kMs);
  EXPECT_EQ(housekeeper->stats().expired, 1'000u);
  EXPECT_THAT(InMemory(), SizeIs(1'000));
  EXPECT_GT(as_client_ns, 0);
  EXPECT_LT(as_client_ns, 6'000 * kMs);
  EXPECT_GE(housekeeper->stats().sweeps, 1u) << "for what was removed";
}

// The scan goes over the table of the damaged block first.
TEST_F(Expiry, AHousekeeperSkipsWhatItCannotRead) {
  std::vector<std::string> keys;
  for (int i = 0; i < 2'000; ++i) keys.push_back("key-" + std::to_string(i));
  for (const std::string& key : keys) ASSERT_TRUE(client_->Put(key, "v", In(1)).ok());
  const std::string first =
      *std::ranges::find_if(keys, [](const std::string& key) { return HashKey(key).h1 % 256 == 0; });
  std::byte* const begin = store_.memory().data();
  const auto* const needle = reinterpret_cast<const std::byte*>(first.data());
  std::byte* const at = std::search(begin, begin + store_.memory().size(), needle, needle + first.size());
  ASSERT_NE(at, begin + store_.memory().size());
  *at ^= std::byte{1};
  const auto housekeeper = kvs::Housekeeper::Create(store_.store()).value();
  for (int64_t steps = 0; housekeeper->stats().expired < 1'000 && steps < 1'000'000; ++steps) {
    clock_.Advance(std::max<int64_t>(housekeeper->Step(), 1'000));
    client_->Poll();
  }
  EXPECT_GE(housekeeper->stats().expired, 1'000u);
}

}  // namespace
}  // namespace surgekv_test
