// MultiWrite: each write does what the operation of its kind would have done, whatever its neighbours are, and in the
// expected number of round trips. The simulator (tests/sim) shows that the writes are linearizable.
#include <gtest/gtest.h>

#include <cstddef>
#include <map>
#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "tests/kvs/manual_clock.h"
#include "tests/kvs/test_store.h"

namespace surgekv_test {
namespace {

using kvs::Client;
using kvs::Status;
using kvs::StatusCode;
using kvs::Task;
using kvs::WriteKind;
using kvs::WriteRequest;

// Writes, with the keys and values that they refer to.
class Writes {
 public:
  void Add(WriteKind kind, std::string key, std::string value = {}) {
    // A Modify appends its value.
    kvs::ModifyFunction append = [value](std::optional<std::string_view> old) {
      return kvs::Modification::Set(std::string(old.value_or("")) + value);
    };
    entries_.push_back({kind, std::move(key), std::move(value), std::move(append)});
  }
  size_t size() const { return entries_.size(); }
  std::vector<WriteRequest>& requests() {
    requests_.clear();
    for (const Entry& entry : entries_)
      requests_.push_back({entry.kind, entry.key, entry.value, StatusCode::kBadState, &entry.append});
    return requests_;
  }
  const Status& status(size_t i) const { return requests_[i].status; }
  void Run(Client& client) { client.MultiWrite(requests()); }

 private:
  struct Entry {
    WriteKind kind;
    std::string key, value;
    kvs::ModifyFunction append;
  };
  std::vector<Entry> entries_;
  std::vector<WriteRequest> requests_;
};

class MultiWrite : public ::testing::Test {
 protected:
  static TestStoreOptions Options(krcore::Clock* clock, uint32_t memory_nodes, uint32_t groups = 0) {
    TestStoreOptions options;
    options.memory_nodes = memory_nodes;
    options.operation_timeout_ms = 1'000;
    options.clock = clock;
    if (groups != 0) options.groups = groups;
    return options;
  }
  static uint64_t TripsOf(Client& client, Writes& writes) {
    const uint64_t before = client.stats().operation_round_trips;
    writes.Run(client);
    return client.stats().operation_round_trips - before;
  }
  // Checks that the store holds what the model holds.
  void CheckModel(Client& client, int keys) {
    for (int i = 0; i < keys; ++i) {
      const std::string key = "key" + std::to_string(i);
      std::string value;
      const Status got = client.Get(key, &value);
      const auto known = model_.find(key);
      if (known == model_.end()) {
        EXPECT_EQ(got, StatusCode::kNotFound) << key;
      } else {
        ASSERT_TRUE(got.ok()) << key << ": " << got.ToString();
        EXPECT_TRUE(value == known->second) << key;
      }
    }
  }
  StatusCode Apply(WriteKind kind, const std::string& key, const std::string& value) {
    const bool there = model_.contains(key);
    if (kind == WriteKind::kInsert && there) return StatusCode::kExists;
    if ((kind == WriteKind::kUpdate || kind == WriteKind::kDelete) && !there) return StatusCode::kNotFound;
    if (kind == WriteKind::kDelete) {
      model_.erase(key);
    } else if (kind == WriteKind::kModify) {
      model_[key] += value;
    } else {
      model_[key] = value;
    }
    return StatusCode::kOk;
  }

  ManualClock clock_;
  TestStore store_{Options(&clock_, 3)};
  std::map<std::string, std::string> model_;
};

TEST_F(MultiWrite, OfNothingDoesNothing) {
  auto client = store_.NewClient();
  Writes none;
  EXPECT_EQ(TripsOf(*client, none), 0u);
}

// Small tables over three memory nodes split and merge all the time. Keys are present or not; some values do not fit an
// operation's buffer; some clients know the tables and some do not.
TEST_F(MultiWrite, DoesWhatTheOperationsOfItsKindsDo) {
  constexpr int kKeys = 800;
  auto knowing = store_.NewClient(8);
  auto other = store_.NewClient();
  std::mt19937_64 random(1);
  uint64_t splits = 0;
  for (int round = 0; round < 60; ++round) {
    auto fresh = store_.NewClient(1 + random() % 70);
    for (Client* client : {fresh.get(), knowing.get(), other.get()}) {
      Writes writes;
      std::vector<StatusCode> expected;
      std::map<std::string, bool> used;
      for (size_t i = random() % 100; i > 0; --i) {
        const std::string key = "key" + std::to_string(random() % kKeys);
        if (used[key]) continue;
        used[key] = true;
        const auto kind = static_cast<WriteKind>(random() % 5);
        const size_t length = random() % 10 == 0 ? 3'000 + random() % 6'000 : random() % 300;
        const std::string value(length, static_cast<char>('a' + random() % 26));
        writes.Add(kind, key, value);
        expected.push_back(Apply(kind, key, value));
      }
      writes.Run(*client);
      for (size_t i = 0; i < writes.size(); ++i) EXPECT_EQ(writes.status(i), expected[i]) << i;
      splits += client == fresh.get() ? client->stats().splits : 0;
    }
  }
  splits += knowing->stats().splits + other->stats().splits;
  EXPECT_GT(splits, 10u);
  CheckModel(*knowing, kKeys);
}

TEST_F(MultiWrite, WhatIsTooLongOrNoKeyIsRefusedAndTheOthersAreDone) {
  auto client = store_.NewClient();
  Writes writes;
  writes.Add(WriteKind::kPut, "", "1");
  writes.Add(WriteKind::kPut, "a", "1");
  writes.Add(WriteKind::kInsert, std::string(kvs::kMaxKeyBytes + 1, 'k'), "1");
  writes.Add(WriteKind::kPut, "b", std::string(kvs::kMaxValueBytes + 1, 'v'));
  writes.Add(WriteKind::kInsert, "c", "3");
  writes.Add(WriteKind::kDelete, "");
  writes.Add(WriteKind::kModify, "");
  writes.Add(WriteKind::kModify, "d", std::string(kvs::kMaxValueBytes + 1, 'v'));
  writes.Run(*client);
  for (const size_t bad : {0, 2, 3, 5, 6, 7}) EXPECT_EQ(writes.status(bad), StatusCode::kInvalidArgument) << bad;
  for (const size_t good : {1, 4}) EXPECT_TRUE(writes.status(good).ok()) << writes.status(good).ToString();
  std::string value;
  EXPECT_TRUE(client->Get("c", &value).ok());
  EXPECT_EQ(value, "3");
  EXPECT_EQ(client->Get("b", &value), StatusCode::kNotFound);
}

TEST_F(MultiWrite, TakesTheRoundTripsOfOneWriteForAsManyAsMayBeInFlight) {
  // The table is so large that no two of them choose the same free slot.
  TestStore store(Options(&clock_, 1, 4'096));
  auto client = store.store().NewClient({.max_in_flight = 50, .address_cache_entries = 0}).value();
  ASSERT_TRUE(client->Put("another", "that the client knows the table").ok());
  Writes inserts, updates, deletes, absent;
  for (int i = 0; i < 50; ++i) {
    const std::string key = "key" + std::to_string(i);
    inserts.Add(WriteKind::kInsert, key, "1");
    updates.Add(i % 2 == 0 ? WriteKind::kUpdate : WriteKind::kPut, key, "22");
    deletes.Add(WriteKind::kDelete, key);
    absent.Add(i % 2 == 0 ? WriteKind::kUpdate : WriteKind::kDelete, key, "1");
  }
  // Where a fingerprint matches another key's, that key's block is read first.
  const uint64_t insert_trips = TripsOf(*client, inserts);
  EXPECT_GE(insert_trips, 3u);
  EXPECT_LE(insert_trips, 4u);
  const uint64_t operations = client->stats().operations, done = client->stats().writes_done;
  EXPECT_EQ(TripsOf(*client, updates), 3u);
  EXPECT_EQ(client->stats().operations, operations + 50);
  EXPECT_EQ(client->stats().writes_done, done + 50);
  EXPECT_EQ(TripsOf(*client, deletes), 3u);
  EXPECT_LE(TripsOf(*client, absent), 3u);
  for (size_t i = 0; i < 50; ++i) {
    EXPECT_TRUE(inserts.status(i).ok() && updates.status(i).ok() && deletes.status(i).ok()) << i;
    EXPECT_EQ(absent.status(i), StatusCode::kNotFound) << i;
  }
}

// The client knows nothing of the table: the writes of the first group begin again by themselves, and the next groups
// use what these have learnt.
TEST_F(MultiWrite, OfManyGroupsTheFirstAloneLearnsTheTable) {
  TestStore store(Options(&clock_, 1, 4'096));
  auto client = store.store().NewClient({.max_in_flight = 20, .address_cache_entries = 0}).value();
  Writes inserts;
  for (int i = 0; i < 100; ++i) inserts.Add(WriteKind::kInsert, "key" + std::to_string(i), "1");
  // At most four for each write of the first group, which are not taken together, and four for each other group.
  EXPECT_LE(TripsOf(*client, inserts), 20u * 4 + 4 * 4);
  for (size_t i = 0; i < inserts.size(); ++i) EXPECT_TRUE(inserts.status(i).ok()) << i;
}

TEST_F(MultiWrite, OneWhoseKeyIsInTheAddressCacheTakesARoundTripLess) {
  TestStore store(Options(&clock_, 1, 256));
  auto client = store.store().NewClient({.address_cache_entries = 65'536}).value();
  Writes writes;
  for (int i = 0; i < 9; ++i) writes.Add(WriteKind::kPut, "key" + std::to_string(i), "1");
  writes.Run(*client);
  EXPECT_EQ(TripsOf(*client, writes), 2u);
}

// They are combined as a client's writes of one key are: one write can serve several.
TEST_F(MultiWrite, SeveralOfOneKeyAreOneWriteAndEachHasItsAnswer) {
  auto client = store_.NewClient();
  ASSERT_TRUE(client->Put("hot", "0").ok());
  Writes writes;
  for (int i = 1; i <= 5; ++i) {
    writes.Add(WriteKind::kUpdate, "hot", std::to_string(i));
    writes.Add(WriteKind::kPut, "cold" + std::to_string(i), "1");
  }
  const kvs::ClientStats before = client->stats();
  writes.Run(*client);
  for (size_t i = 0; i < writes.size(); ++i) EXPECT_TRUE(writes.status(i).ok()) << writes.status(i).ToString();
  EXPECT_EQ(client->stats().operations - before.operations, 10u);
  EXPECT_EQ(client->stats().combined_operations - before.combined_operations, 4u);
  std::string value;
  ASSERT_TRUE(client->Get("hot", &value).ok());
  EXPECT_EQ(value, "5");

  Writes modifies;
  for (int i = 6; i <= 9; ++i) modifies.Add(WriteKind::kModify, "hot", std::to_string(i));
  modifies.Run(*client);
  for (size_t i = 0; i < modifies.size(); ++i) EXPECT_TRUE(modifies.status(i).ok()) << modifies.status(i).ToString();
  ASSERT_TRUE(client->Get("hot", &value).ok());
  EXPECT_EQ(value, "56789");
  EXPECT_EQ(client->stats().combined_operations - before.combined_operations, 7u);

  Writes inserts;  // they go alone, and one of them is the first
  for (int i = 0; i < 4; ++i) inserts.Add(WriteKind::kInsert, "new", std::to_string(i));
  inserts.Run(*client);
  int inserted = 0;
  for (size_t i = 0; i < inserts.size(); ++i) {
    const Status& status = inserts.status(i);
    EXPECT_TRUE(status.ok() || status == StatusCode::kExists) << status.ToString();
    inserted += status.ok() ? 1 : 0;
  }
  EXPECT_EQ(inserted, 1);
}

// When a table is full, a write that was about to insert there begins again by itself after the split. Nothing is
// updated or deleted here, so any block that is used again was given back in this way.
TEST_F(MultiWrite, OneThatBeginsAgainGivesItsBlockBack) {
  auto client = store_.NewClient();
  for (int i = 0; i < 2'000; i += 16) {
    Writes writes;
    for (int k = i; k < i + 16; ++k) writes.Add(WriteKind::kInsert, "key" + std::to_string(k), "value");
    writes.Run(*client);
    for (size_t k = 0; k < writes.size(); ++k) ASSERT_TRUE(writes.status(k).ok()) << writes.status(k).ToString();
  }
  EXPECT_GT(client->stats().splits, 5u);
  EXPECT_GT(client->stats().blocks_reused, 0u);
  EXPECT_EQ(client->stats().writes_done, 2'000u);
}

// No operation that holds a place in flight waits for another place, nor for a turn that another such operation holds.
TEST_F(MultiWrite, ManyAtOnceOfAClientWithFewInFlightAllEnd) {
  auto client = store_.NewClient(5);
  std::vector<Writes> all(12);
  for (size_t w = 0; w < all.size(); ++w) {
    for (int i = 0; i < 40; ++i) {
      const int key = (i + static_cast<int>(w) * 7) % 40;  // in another order each time
      all[w].Add(WriteKind::kPut, "key" + std::to_string(key), std::to_string(w));
    }
  }
  int ended = 0;
  const auto write = [](Client& of, Writes* writes, int* count) -> Task<void> {
    co_await of.MultiWriteAsync(writes->requests());
    ++*count;
  };
  for (Writes& writes : all) client->Spawn(write(*client, &writes, &ended));
  client->Drain();
  EXPECT_EQ(ended, 12);
  for (const Writes& writes : all) {
    for (size_t i = 0; i < writes.size(); ++i) EXPECT_TRUE(writes.status(i).ok()) << writes.status(i).ToString();
  }
}

TEST_F(MultiWrite, KeysOfADeadMemoryNodeAreUnavailableAndTheOthersAreWritten) {
  auto client = store_.NewClient();
  Writes writes;
  for (int i = 0; i < 300; ++i) {
    writes.Add(WriteKind::kPut, "key" + std::to_string(i), "before");
    model_["key" + std::to_string(i)] = "before";
  }
  writes.Run(*client);
  CheckModel(*client, 300);
  store_.StopMemoryNode(3);
  Writes again;
  for (int i = 0; i < 300; ++i) again.Add(WriteKind::kUpdate, "key" + std::to_string(i), "after");
  again.Run(*client);
  int done = 0, unavailable = 0;
  for (int i = 0; i < 300; ++i) {
    const Status& status = again.status(static_cast<size_t>(i));
    if (status.ok()) {
      ++done;
      std::string value;
      EXPECT_TRUE(client->Get("key" + std::to_string(i), &value).ok());
      EXPECT_EQ(value, "after");
    } else {
      EXPECT_TRUE(status == StatusCode::kUnavailable || status == StatusCode::kUnknown) << status.ToString();
      ++unavailable;
    }
  }
  EXPECT_GT(done, 0);
  EXPECT_GT(unavailable, 0);
}

}  // namespace
}  // namespace surgekv_test
