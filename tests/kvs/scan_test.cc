// Client::Scan: what a call returns, how it ends, and that a scan finds every key that stays, whatever happens to the
// tables between its calls. The simulator (tests/sim) shows the same for what happens within a call.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "kvs/layout/block.h"
#include "tests/kvs/colliding_key.h"
#include "tests/kvs/test_store.h"

namespace surgekv_test {
namespace {

using kvs::Client;
using kvs::ScanOptions;
using kvs::ScanRecord;
using kvs::Status;
using kvs::StatusCode;

class ScanTest : public ::testing::Test {
 protected:
  using Records = std::map<std::string, std::string>;

  static std::string KeyOf(uint32_t i) { return "key-" + std::to_string(i); }
  static void Fill(Client& client, uint32_t begin, uint32_t end, Records* filled = nullptr) {
    for (uint32_t i = begin; i < end; ++i) {
      ASSERT_TRUE(client.Put(KeyOf(i), "value-" + std::to_string(i)).ok()) << i;
      if (filled != nullptr) (*filled)[KeyOf(i)] = "value-" + std::to_string(i);
    }
  }
  // Adds what a call has returned. No key is returned twice.
  static void Add(const std::vector<ScanRecord>& records, Records* all) {
    for (const ScanRecord& record : records) EXPECT_TRUE(all->emplace(record.key, record.value).second) << record.key;
  }
  static Records All(Client& client, const ScanOptions& options, uint32_t* calls = nullptr) {
    Records all;
    uint64_t cursor = 0, before = 0;
    do {
      std::vector<ScanRecord> records;
      before = cursor;
      const Status status = client.Scan(&cursor, &records, options);
      EXPECT_TRUE(status.ok()) << status.ToString();
      EXPECT_TRUE(cursor == 0 || cursor > before);
      if (calls != nullptr) ++*calls;
      Add(records, &all);
      if (!status.ok()) break;
    } while (cursor != 0);
    return all;
  }
};

TEST_F(ScanTest, OfAnEmptyStoreEndsWithTheFirstCall) {
  TestStore store({});
  auto client = store.NewClient();
  uint32_t calls = 0;
  EXPECT_TRUE(All(*client, {}, &calls).empty());
  EXPECT_EQ(calls, 1u);
}

TEST_F(ScanTest, ReturnsEachKeyOnceWithItsValueWhateverTheCount) {
  TestStore store({.memory_nodes = 3});
  auto client = store.NewClient();
  Records filled;
  Fill(*client, 0, 2'000, &filled);
  ASSERT_GT(client->ReadTableStats().value().subtables, 50u);
  for (const uint32_t count : {0u, 1u, 7u, 100'000u}) EXPECT_EQ(All(*client, {.count = count}), filled) << count;
}

TEST_F(ScanTest, ACallReturnsAsManyAsWereAskedForWhereTheTableHasThem) {
  TestStore store({.groups = 64});
  auto client = store.NewClient();
  Records filled;
  Fill(*client, 0, 500, &filled);
  ASSERT_EQ(client->ReadTableStats().value().subtables, 1u);
  uint32_t calls = 0;
  EXPECT_EQ(All(*client, {.count = 100}, &calls), filled);
  EXPECT_EQ(calls, 5u);
}

TEST_F(ScanTest, KeysAloneComeWithoutTheirValues) {
  TestStore store({});
  auto client = store.NewClient();
  Records filled;
  Fill(*client, 0, 100, &filled);
  for (auto& [key, value] : filled) value.clear();
  EXPECT_EQ(All(*client, {.values = false}), filled);
}

TEST_F(ScanTest, LargeKeysAndValuesAreWholeAndEndACallEarly) {
  TestStore store({.groups = 64, .memory_bytes = size_t{128} << 20});
  auto client = store.NewClient();
  Records filled;
  for (uint32_t i = 0; i < 6; ++i) {
    const std::string key(i % 2 == 0 ? kvs::kMaxKeyBytes - i : 1 + i, static_cast<char>('a' + i));
    const std::string value(i == 1 ? kvs::kMaxValueBytes : 1'000'000 * i, static_cast<char>('A' + i));
    ASSERT_TRUE(client->Put(key, value).ok());
    filled[key] = value;
  }
  Fill(*client, 0, 10, &filled);
  uint32_t calls = 0;
  EXPECT_EQ(All(*client, {.max_bytes = 100'000}, &calls), filled);
  EXPECT_GE(calls, 6u);
  for (auto& [key, value] : filled) value.clear();
  EXPECT_EQ(All(*client, {.values = false}), filled);
}

TEST_F(ScanTest, KeysWithEqualHashesAreReturnedByOneCall) {
  TestStore store({});
  auto client = store.NewClient();
  static const kvs::Hasher hasher(kTestSeed);
  Records filled;
  Fill(*client, 0, 30, &filled);
  for (uint64_t n = 0; n < 5; ++n) {
    const std::string key = CollidingKey(hasher.secret().data(), n);
    ASSERT_TRUE(client->Put(key, "equal").ok());
    filled[key] = "equal";
  }
  EXPECT_EQ(All(*client, {.count = 1}), filled);
  EXPECT_EQ(All(*client, {.count = 1, .max_bytes = 0}), filled);
}

// The cursor is held by nobody: it is a number, and means the same to another client.
TEST_F(ScanTest, ACursorIsGoodForAnotherClientAndAnyNumberIsACursor) {
  TestStore store({});
  auto first = store.NewClient(), second = store.NewClient();
  Records filled, found;
  Fill(*first, 0, 500, &filled);
  uint64_t cursor = 0;
  Client* clients[] = {first.get(), second.get()};
  for (uint32_t call = 0; call == 0 || cursor != 0; ++call) {
    std::vector<ScanRecord> records;
    ASSERT_TRUE(clients[call % 2]->Scan(&cursor, &records, {.count = 10}).ok());
    Add(records, &found);
  }
  EXPECT_EQ(found, filled);
  cursor = UINT64_MAX;
  std::vector<ScanRecord> records(1);
  ASSERT_TRUE(first->Scan(&cursor, &records).ok());
  EXPECT_EQ(cursor, 0u);
  EXPECT_TRUE(records.empty());
}

TEST_F(ScanTest, KeysThatStayAreFoundThoughTheTablesSplitAndMergeBetweenTheCalls) {
  TestStore store({});
  auto client = store.NewClient();
  constexpr uint32_t kStaying = 300, kMore = 1'500;
  Records staying;
  Fill(*client, 0, kStaying, &staying);
  for (uint32_t round = 0; round < 4; ++round) {
    Records found;
    uint64_t cursor = 0;
    uint32_t call = 0;
    do {
      std::vector<ScanRecord> records;
      ASSERT_TRUE(client->Scan(&cursor, &records, {.count = 3 + round}).ok());
      Add(records, &found);
      if (call++ % 40 == 20) Fill(*client, kStaying, kStaying + kMore);
      if (call % 40 == 0) {
        for (uint32_t i = kStaying; i < kStaying + kMore; ++i) ASSERT_TRUE(client->Delete(KeyOf(i)).ok());
      }
    } while (cursor != 0);
    for (const auto& [key, value] : staying) EXPECT_EQ(found[key], value) << key;
  }
  EXPECT_GT(client->stats().splits, 100u);
  EXPECT_GT(client->stats().merges, 100u);
}

// Threads insert and delete, so that tables split and merge all the time, and update what stays.
TEST_F(ScanTest, KeysThatStayAreFoundWhileOthersWrite) {
  TestStore store({.memory_nodes = 2});
  constexpr uint32_t kStaying = 400;
  auto client = store.NewClient();
  Fill(*client, 0, kStaying);
  std::atomic<bool> stop = false;
  std::vector<std::thread> writers;
  for (uint32_t w = 0; w < 2; ++w) {
    writers.emplace_back([&, w, writer = store.NewClient()] {
      const uint32_t first = 1'000 + w * 1'000;
      while (!stop.load(std::memory_order_relaxed)) {
        for (uint32_t i = first; i < first + 300; ++i) {
          EXPECT_TRUE(writer->Put(KeyOf(i), "passing").ok());
          EXPECT_TRUE(writer->Update(KeyOf(i % kStaying), "value").ok());
        }
        for (uint32_t i = first; i < first + 300; ++i) EXPECT_TRUE(writer->Delete(KeyOf(i)).ok());
      }
    });
  }
  for (uint32_t round = 0; round < 30; ++round) {
    const Records found = All(*client, {.count = 20});
    for (uint32_t i = 0; i < kStaying; ++i) EXPECT_TRUE(found.contains(KeyOf(i))) << KeyOf(i) << ", round " << round;
  }
  stop = true;
  for (std::thread& writer : writers) writer.join();
}

TEST_F(ScanTest, KeysThatStayAreFoundWhileAMemoryNodeIsDrained) {
  TestStore store({.groups = 4, .memory_bytes = size_t{16} << 20, .memory_nodes = 3});
  auto client = store.NewClient();
  Records staying;
  Fill(*client, 0, 3'000, &staying);
  std::atomic<bool> drained = false;
  std::thread drainer([&drained, other = store.NewClient()] {
    EXPECT_TRUE(other->DrainNode(2).ok());
    drained = true;
  });
  uint32_t rounds = 0;
  for (bool last = false; !last; ++rounds) {
    last = drained;
    EXPECT_EQ(All(*client, {.count = 50}), staying);
  }
  drainer.join();
}

TEST_F(ScanTest, ManyScansAndOtherOperationsOfAClientGoOnAtOnce) {
  TestStore store({});
  auto client = store.NewClient(8);
  Records filled;
  Fill(*client, 0, 500, &filled);
  std::vector<Records> found(20);
  const auto scan = [](Client& by, Records* all) -> kvs::Task<void> {
    uint64_t cursor = 0;
    do {
      std::vector<ScanRecord> records;
      const Status status = co_await by.ScanAsync(&cursor, &records, {.count = 10});
      EXPECT_TRUE(status.ok()) << status.ToString();
      Add(records, all);
      std::string value;
      const Status got = co_await by.GetAsync("key-1", &value);
      EXPECT_TRUE(got.ok());
    } while (cursor != 0);
  };
  for (Records& all : found) client->Spawn(scan(*client, &all));
  client->Drain();
  for (const Records& all : found) EXPECT_EQ(all, filled);
}

TEST_F(ScanTest, ADamagedBlockEndsItAndItsPlaceIsTold) {
  TestStore store({.operation_timeout_ms = 100});
  auto client = store.NewClient();
  Records filled;
  Fill(*client, 0, 10, &filled);
  const std::span<std::byte> memory = store.memory();
  const std::string key = KeyOf(7), damaged = filled[key];
  const auto* found = static_cast<std::byte*>(memmem(memory.data(), memory.size(), damaged.data(), damaged.size()));
  ASSERT_NE(found, nullptr);
  const auto value = static_cast<size_t>(found - memory.data());
  const size_t block = value - key.size() - sizeof(kvs::BlockHeader);
  // In the value, and in the highest byte of its length, which is impossible then.
  for (const size_t at : {value, block + offsetof(kvs::BlockHeader, value_bytes) + 3}) {
    memory[at] ^= std::byte{0x80};
    uint64_t cursor = 0;
    std::vector<ScanRecord> records(1);
    const Status status = client->Scan(&cursor, &records, {.count = 100});
    EXPECT_EQ(status, StatusCode::kCorrupt) << status.ToString();
    EXPECT_THAT(status.ToString(), testing::HasSubstr("block at byte " + std::to_string(block) + " of memory node 1 "));
    EXPECT_EQ(cursor, 0u);
    EXPECT_TRUE(records.empty());
    memory[at] ^= std::byte{0x80};
  }
  EXPECT_EQ(All(*client, {}), filled);
}

TEST_F(ScanTest, WithoutAMemoryNodeItFailsAndTheCursorStays) {
  TestStore store({.operation_timeout_ms = 500, .memory_nodes = 2});
  auto client = store.NewClient();
  Fill(*client, 0, 200);
  store.StopMemoryNode(2);
  uint64_t cursor = 0;
  Status status;
  std::vector<ScanRecord> records;
  do {
    const uint64_t before = cursor;
    status = client->Scan(&cursor, &records, {.count = 5});
    EXPECT_TRUE(status.ok() || cursor == before);
  } while (status.ok() && cursor != 0);
  EXPECT_EQ(status, StatusCode::kUnavailable) << status.ToString();
  EXPECT_TRUE(records.empty());
}

}  // namespace
}  // namespace surgekv_test
