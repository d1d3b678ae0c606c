// Draining a memory node: it is emptied while other clients go on, and then it can be stopped.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <map>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "kvs/client.h"
#include "kvs/layout/pool.h"
#include "tests/kvs/child.h"
#include "tests/kvs/given_back.h"
#include "tests/kvs/manual_clock.h"
#include "tests/kvs/pool_check.h"
#include "tests/kvs/test_store.h"

namespace surgekv_test {
namespace {

using ::testing::HasSubstr;

// Clients may be changing the word.
kvs::ChunkWord ChunkWordOf(std::span<const std::byte> pool, uint64_t chunk) {
  const std::byte* const word = &pool[kvs::ChunkWordOffset(chunk)];
  return kvs::ChunkWord(__atomic_load_n(reinterpret_cast<const uint64_t*>(word), __ATOMIC_ACQUIRE));
}

uint64_t CountTaken(const TestStore& store, krcore::NodeId node) {
  const std::span<const std::byte> pool = store.memory_of(node);
  uint64_t taken = 0;
  for (uint64_t chunk = 0; chunk < pool.size() / kSmallChunk; ++chunk) {
    const kvs::ChunkWord word = ChunkWordOf(pool, chunk);
    taken += word.kind() != kvs::ChunkKind::kFree && word.kind() != kvs::ChunkKind::kReserved;
  }
  return taken;
}

kvs::MemberState MemberStateOf(const TestStore& store, krcore::NodeId node) {
  const std::byte* const word =
      &store.memory()[kvs::kHomeAreaOffset + offsetof(kvs::HomeArea, members) + node * sizeof(uint64_t)];
  // Pairs with the NIC's CAS.
  return kvs::MemberWord(__atomic_load_n(reinterpret_cast<const uint64_t*>(word), __ATOMIC_ACQUIRE)).state();
}

void CheckAll(kvs::Client& client, uint32_t count) {
  std::string value;
  for (uint32_t i = 0; i < count; ++i) {
    const kvs::Status got = client.Get(Key(i), &value);
    ASSERT_TRUE(got.ok()) << Key(i) << ": " << got.ToString();
    ASSERT_EQ(value, Value(i)) << Key(i);
  }
}

kvs::Task<void> DrainOnce(kvs::Client& client, krcore::NodeId node, int64_t timeout_ms, kvs::Status* result,
                          kvs::DrainReport* report) {
  *result = co_await client.DrainNodeAsync(node, {.timeout_ms = timeout_ms}, report);
}

// A client that changes keys of its own until it is told to stop, and checks their values.
class Worker {
 public:
  Worker(TestStore& store, uint32_t number) : client_(store.NewClient()), number_(number), random_(number) {}

  void Start() {
    thread_ = std::thread([this] {
      while (!stop_.load(std::memory_order_relaxed)) Step();  // no data is passed through the flag
    });
  }
  void Stop() {
    stop_.store(true, std::memory_order_relaxed);
    thread_.join();
  }
  uint64_t steps() const { return steps_.load(std::memory_order_relaxed); }
  void CheckWith(kvs::Client& client) const {
    std::string value;
    for (const auto& [key, expected] : contents_) {
      const kvs::Status got = client.Get(key, &value);
      if (expected.empty()) {
        EXPECT_EQ(got, kvs::StatusCode::kNotFound) << key << ": " << got.ToString();
      } else {
        ASSERT_TRUE(got.ok()) << key << ": " << got.ToString();
        ASSERT_EQ(value, expected) << key;
      }
    }
  }

 private:
  static constexpr uint32_t kKeys = 1'500;

  void Step() {
    const std::string key = "w" + std::to_string(number_) + "-" + std::to_string(random_() % kKeys);
    std::string& expected = contents_[key];
    std::string value;
    switch (random_() % 4) {
      case 0: {
        const kvs::Status got = client_->Get(key, &value);
        EXPECT_EQ(got.ok(), !expected.empty()) << key << ": " << got.ToString();
        EXPECT_TRUE(!got.ok() || value == expected) << key;
        break;
      }
      case 1: {
        const kvs::Status deleted = client_->Delete(key);
        EXPECT_EQ(deleted, expected.empty() ? kvs::StatusCode::kNotFound : kvs::StatusCode::kOk) << deleted.ToString();
        expected.clear();
        break;
      }
      default: {
        const uint32_t dice = random_() % 1'000;
        const size_t bytes = dice == 0 ? 150'000 : dice < 30 ? 3'000 + dice * 200 : dice / 2;
        value.assign(bytes, static_cast<char>('a' + dice % 26));
        value += std::to_string(random_());
        const kvs::Status put = client_->Put(key, value);
        EXPECT_TRUE(put.ok()) << key << ": " << put.ToString();
        expected = value;
      }
    }
    steps_.fetch_add(1, std::memory_order_relaxed);
  }

  std::unique_ptr<kvs::Client> client_;
  const uint32_t number_;
  std::minstd_rand random_;
  std::map<std::string, std::string> contents_;
  std::atomic<bool> stop_ = false;
  std::atomic<uint64_t> steps_ = 0;
  std::thread thread_;
};

TEST(Drain, ANodeIsEmptiedWhileOthersWriteAndThenStopped) {
  TestStore store({.groups = 8, .memory_bytes = size_t{32} << 20, .memory_nodes = 3, .chunk_bytes = kSmallChunk});
  auto client = store.NewClient();
  InLanes(*client, 4'000, PutRange);
  std::vector<std::unique_ptr<Worker>> workers;
  for (uint32_t w = 0; w < 3; ++w) workers.push_back(std::make_unique<Worker>(store, w));
  for (const auto& worker : workers) worker->Start();
  for (const auto& worker : workers) {
    while (worker->steps() < 500) client->Poll();
  }
  ASSERT_GT(CountTaken(store, 2), 16u);

  kvs::DrainReport report;
  const kvs::Status drained = client->DrainNode(2, {}, &report);
  ASSERT_TRUE(drained.ok()) << drained.ToString();
  EXPECT_EQ(CountTaken(store, 2), 0u);
  EXPECT_EQ(MemberStateOf(store, 2), kvs::MemberState::kDrained);
  EXPECT_EQ(report.chunks_left, 0u);
  EXPECT_EQ(report.tables_left, 0u);
  EXPECT_GT(report.tables_moved, 10u);
  EXPECT_GT(report.blocks_moved, 100u);
  EXPECT_GT(client->stats().table_replacements, 0u);
  EXPECT_TRUE(report.closed);
  store.StopMemoryNode(2);

  const auto wait_for_steps = [&workers, &client] {
    for (const auto& worker : workers) {
      const uint64_t goal = worker->steps() + 2'000;
      while (worker->steps() < goal && !testing::Test::HasFailure()) client->Poll();
    }
  };
  wait_for_steps();
  for (const auto& worker : workers) worker->Stop();
  CheckAll(*client, 4'000);
  auto late = store.NewClient();
  for (const auto& worker : workers) worker->CheckWith(*late);
  const kvs::TableStats stats = late->ReadTableStats().value();
  EXPECT_EQ(stats.memory_nodes.size(), 2u);
  CheckPools(store);
}

// The node comes back with empty memory; clients that knew the old memory connect anew.
TEST(Drain, AStoppedNodeThatComesBackIsInUseAgain) {
  TestStore store({.groups = 8, .memory_bytes = size_t{32} << 20, .memory_nodes = 2, .chunk_bytes = kSmallChunk});
  auto client = store.NewClient(), reader = store.NewClient();
  InLanes(*client, 4'000, PutRange);
  CheckAll(*reader, 4'000);
  std::set<uint32_t> pairs;  // pairs of tables, of which one or both lie at node 2
  for (uint32_t index = 0; index < 1'024; ++index) {
    const kvs::DirectoryEntry entry = store.DirectoryEntryOf(index);
    if (!entry.present() || entry.subtable().node != 2 || entry.depth() == 0) continue;
    const uint32_t sibling = index ^ 1u << (entry.depth() - 1);
    if (store.DirectoryEntryOf(sibling).depth() == entry.depth()) pairs.insert(std::min(index, sibling));
  }
  ASSERT_GT(pairs.size(), 4u);
  kvs::Status result;
  kvs::DrainReport report;
  client->Spawn(DrainOnce(*client, 2, 600'000, &result, &report));
  while (client->spawned() > 0) {
    client->Poll();
    reader->Poll();
  }
  ASSERT_TRUE(result.ok()) << result.ToString();
  EXPECT_LE(client->stats().table_replacements, pairs.size()) << "a pair moves at once";
  store.StopMemoryNode(2);
  CheckAll(*reader, 4'000);
  store.StartMemoryNode(2);
  EXPECT_EQ(MemberStateOf(store, 2), kvs::MemberState::kInUse);
  uint32_t count = 4'000;
  for (; CountTaken(store, 2) < 16; ++count) {
    const kvs::Status put = client->Put(Key(count), Value(count));
    ASSERT_TRUE(put.ok()) << put.ToString();
    reader->Poll();
  }
  CheckAll(*reader, count);
  CheckPools(store);
}

// What a client's address cache knows of the old memory may lie beyond the end of the new one.
TEST(Drain, AStoppedNodeMayComeBackSmaller) {
  TestStore store({.groups = 8, .memory_bytes = size_t{32} << 20, .memory_nodes = 2, .chunk_bytes = kSmallChunk});
  auto client = store.NewClient();
  auto reader = store.store().NewClient({.address_cache_entries = 4'096}).value();  // warming, so that it is on
  uint32_t count = 0;
  const auto highest_chunk = [&store] {
    const std::span<const std::byte> pool = store.memory_of(2);
    uint64_t highest = 0;
    for (uint64_t chunk = 0; chunk < pool.size() / kSmallChunk; ++chunk) {
      if (ChunkWordOf(pool, chunk).kind() != kvs::ChunkKind::kFree) highest = chunk;
    }
    return highest * kSmallChunk;
  };
  while (highest_chunk() < size_t{16} << 20) {
    ASSERT_TRUE(client->Put(Key(count), std::string(3'000, 'v')).ok());
    ++count;
  }
  std::string value;
  const uint32_t known = std::min(count, 1'500u);
  for (uint32_t i = count - known; i < count; ++i) ASSERT_TRUE(reader->Get(Key(i), &value).ok());
  for (uint32_t i = 0; i < count; ++i) {
    if (i % 8 == 0) continue;
    ASSERT_TRUE(client->Put(Key(i), "small").ok());
    reader->Poll();
  }
  kvs::Status result;
  kvs::DrainReport report;
  client->Spawn(DrainOnce(*client, 2, 600'000, &result, &report));
  while (client->spawned() > 0) {
    client->Poll();
    reader->Poll();
  }
  ASSERT_TRUE(result.ok()) << result.ToString();
  store.StopMemoryNode(2);
  store.StartMemoryNode(2, size_t{4} << 20);
  // Make tables lie there again.
  const auto at_two = [&store] {
    uint32_t tables = 0;
    for (uint32_t index = 0; index < 1u << 12; ++index) {
      const kvs::DirectoryEntry entry = store.DirectoryEntryOf(index);
      tables += entry.present() && entry.subtable().node == 2 ? 1 : 0;
    }
    return tables;
  };
  for (uint32_t i = 0; at_two() < 16; ++i) {
    ASSERT_TRUE(client->Put("more" + std::to_string(i), "v").ok());
    reader->Poll();
  }
  const uint64_t speculated = reader->stats().cache_speculations;
  for (uint32_t i = count - known; i < count; ++i) {
    const kvs::Status got = reader->Get(Key(i), &value);
    ASSERT_TRUE(got.ok()) << i << ": " << got.ToString();
    client->Poll();
  }
  EXPECT_GT(reader->stats().cache_speculations, speculated);
}

// The root is at the home at first; a drain puts it, and its next one, elsewhere.
TEST(Drain, ATableWithoutASiblingIsMoved) {
  TestStore store({.groups = 64, .memory_bytes = size_t{16} << 20, .memory_nodes = 3, .chunk_bytes = kSmallChunk});
  auto client = store.NewClient();
  for (uint32_t i = 0; store.DirectoryEntryOf(1).subtable().node != 2; ++i) {
    ASSERT_TRUE(client->Put(Key(i), "v").ok());
  }
  // dir[1] gets a child, so that dir[0] has no sibling of its depth, or the other way round.
  uint32_t count = 0;
  for (; store.DirectoryEntryOf(0).depth() == store.DirectoryEntryOf(1).depth() || !store.DirectoryEntryOf(1).present();
       ++count) {
    ASSERT_TRUE(client->Put("more" + std::to_string(count), "v").ok());
  }
  const auto shallow = store.DirectoryEntryOf(0).depth() < store.DirectoryEntryOf(1).depth() ? 0u : 1u;
  const uint32_t depth = store.DirectoryEntryOf(shallow).depth();
  for (const krcore::NodeId node : {2u, 3u, 2u}) {
    const kvs::Status drained = client->DrainNode(node);
    ASSERT_TRUE(drained.ok()) << drained.ToString();
    for (uint32_t index = 0; index < 8; ++index) {
      const kvs::DirectoryEntry entry = store.DirectoryEntryOf(index);
      EXPECT_TRUE(!entry.present() || entry.subtable().node != node) << index;
    }
    ASSERT_TRUE(client->UndrainNode(node).ok());
    client->Poll();
  }
  EXPECT_EQ(store.DirectoryEntryOf(shallow).depth(), depth);
  EXPECT_GT(client->stats().merges, 0u);
  std::string value;
  for (uint32_t i = 0; i < count; ++i) ASSERT_TRUE(client->Get("more" + std::to_string(i), &value).ok()) << i;
  CheckPools(store);
}

TEST(Drain, WhatCannotBeDrainedIsRefused) {
  TestStore store({.memory_bytes = size_t{8} << 20, .memory_nodes = 2, .chunk_bytes = kSmallChunk});
  auto client = store.NewClient();
  const kvs::Status home = client->DrainNode(1);
  EXPECT_EQ(home, kvs::StatusCode::kInvalidArgument);
  EXPECT_THAT(home.ToString(), HasSubstr("home"));
  const kvs::Status unknown = client->DrainNode(7);
  EXPECT_EQ(unknown, kvs::StatusCode::kNotFound);
  EXPECT_THAT(unknown.ToString(), HasSubstr("7"));
  EXPECT_EQ(client->DrainNode(0), kvs::StatusCode::kInvalidArgument);
  EXPECT_EQ(client->DrainNode(256), kvs::StatusCode::kInvalidArgument);
  EXPECT_EQ(client->UndrainNode(7), kvs::StatusCode::kNotFound);
  EXPECT_EQ(client->UndrainNode(0), kvs::StatusCode::kInvalidArgument);
  EXPECT_TRUE(client->UndrainNode(2).ok());  // it is in use
  EXPECT_EQ(MemberStateOf(store, 1), kvs::MemberState::kInUse);
  EXPECT_EQ(MemberStateOf(store, 2), kvs::MemberState::kInUse);
}

TEST(Drain, WithoutRoomElsewhereTheNodeStaysInUseAndNothingIsLost) {
  TestStore store({.groups = 16, .memory_bytes = size_t{8} << 20, .memory_nodes = 2, .chunk_bytes = kSmallChunk});
  auto client = store.NewClient();
  uint32_t count = 0;
  while (CountTaken(store, 1) + CountTaken(store, 2) < 160) {
    const kvs::Status put = client->Put(Key(count), Value(count));
    ASSERT_TRUE(put.ok()) << put.ToString();
    ++count;
  }
  for (int round = 0; round < 2; ++round) {
    const kvs::Status drained = client->DrainNode(2);
    EXPECT_EQ(drained, kvs::StatusCode::kOutOfMemory) << drained.ToString();
    EXPECT_EQ(MemberStateOf(store, 2), kvs::MemberState::kInUse);
    CheckAll(*client, count);
    CheckPools(store);
  }
  // Its memory can be used again.
  const uint32_t before = count;
  while (client->Put(Key(count), Value(count)).ok()) ++count;
  EXPECT_GT(count, before + 10);
  // Once there is room, it can be drained.
  for (uint32_t i = 0; i < count; ++i) {
    if (i % 10 == 0) continue;
    ASSERT_TRUE(client->Delete(Key(i)).ok());
  }
  const kvs::Status drained = client->DrainNode(2);
  ASSERT_TRUE(drained.ok()) << drained.ToString();
  EXPECT_EQ(CountTaken(store, 2), 0u);
  CheckTenth(*client, count);
  CheckPools(store);
}

// The first client is killed at various steps.
TEST(Drain, AnotherClientGoesOnWithWhatAKilledOneBegan) {
  for (const uint64_t polls : {50u, 400u, 1'500u, 4'000u}) {
    SCOPED_TRACE(polls);
    TestStoreOptions options{.fabric = UniqueFabric(),
                             .groups = 8,
                             .memory_bytes = size_t{16} << 20,
                             .memory_nodes = 3,
                             .chunk_bytes = kSmallChunk,
                             .lease_ns = 250'000'000};
    {
      TestStore store(options);
      int ready[2];
      ASSERT_EQ(pipe(ready), 0);
      Child victim([&] {
        auto attached = TestStore::Attach(options.fabric, options);
        auto client = attached->NewClient().value();
        InLanes(*client, 2'000, PutRange);
        kvs::Status result;
        kvs::DrainReport report;
        client->Spawn(DrainOnce(*client, 3, 600'000, &result, &report));
        while (MemberStateOf(store, 3) == kvs::MemberState::kInUse) client->Poll();
        for (uint64_t poll = 0; poll < polls && client->spawned() > 0; ++poll) client->Poll();
        if (write(ready[1], "", 1) != 1) _exit(1);
        for (;;) ::pause();
      });
      char byte;
      ASSERT_EQ(read(ready[0], &byte, 1), 1);
      victim.Kill();
      close(ready[0]);
      close(ready[1]);
      auto client = store.NewClient();
      const kvs::Status drained = client->DrainNode(3);
      ASSERT_TRUE(drained.ok()) << drained.ToString();
      EXPECT_EQ(CountTaken(store, 3), 0u);
      store.StopMemoryNode(3);
      CheckAll(*client, 2'000);
      CheckPools(store, true);
    }
    (void)krcore::CleanStaleFabrics("sw", options.fabric, true);
  }
}

TEST(Drain, TakenBackIntoUseItEnds) {
  TestStore store({.groups = 8, .memory_bytes = size_t{16} << 20, .memory_nodes = 3, .chunk_bytes = kSmallChunk});
  auto client = store.NewClient(), other = store.NewClient();
  InLanes(*client, 2'000, PutRange);
  kvs::Status result;
  kvs::DrainReport report;
  client->Spawn(DrainOnce(*client, 2, 600'000, &result, &report));
  const kvs::Status second = client->DrainNode(3);  // only one drain at a time
  EXPECT_EQ(second, kvs::StatusCode::kExists) << second.ToString();
  while (MemberStateOf(store, 2) == kvs::MemberState::kInUse) client->Poll();
  ASSERT_TRUE(other->UndrainNode(2).ok());
  while (client->spawned() > 0) {
    client->Poll();
    other->Poll();
  }
  EXPECT_EQ(result, kvs::StatusCode::kBadState) << result.ToString();
  EXPECT_EQ(MemberStateOf(store, 2), kvs::MemberState::kInUse);
  const uint64_t taken = CountTaken(store, 2);
  for (uint32_t i = 2'000; CountTaken(store, 2) <= taken; ++i) ASSERT_TRUE(client->Put(Key(i), Value(i)).ok());
  CheckAll(*client, 2'000);
  CheckPools(store);
}

// While the drain waits for the last announcement the node is empty, but not drained yet.
TEST(Drain, TakenBackAtTheVeryEndItIsNotDrained) {
  ManualClock clock;
  TestStore store({.groups = 8,
                   .memory_bytes = size_t{16} << 20,
                   .operation_timeout_ms = 3'600'000,
                   .clock = &clock,
                   .memory_nodes = 2,
                   .chunk_bytes = kSmallChunk});
  auto client = store.NewClient(), other = store.NewClient(), paused = store.NewClient();
  InLanes(*client, 500, PutRange);
  kvs::Status result;
  kvs::DrainReport report;
  client->Spawn(DrainOnce(*client, 2, 3'600'000, &result, &report));
  const auto poll = [&](bool all) {
    client->Poll();
    other->Poll();
    if (all) paused->Poll();
    clock.Advance(100'000);
  };
  while (MemberStateOf(store, 2) != kvs::MemberState::kDrained) poll(/*all=*/true);
  for (int i = 0; i < 10; ++i) poll(/*all=*/false);
  ASSERT_GT(client->spawned(), 0u) << "one has not announced that it knows";
  ASSERT_TRUE(other->UndrainNode(2).ok());
  for (int i = 0; i < 10; ++i) poll(/*all=*/false);
  while (client->spawned() > 0) poll(/*all=*/true);
  EXPECT_EQ(result, kvs::StatusCode::kBadState) << result.ToString();
  EXPECT_FALSE(report.closed);
  EXPECT_EQ(MemberStateOf(store, 2), kvs::MemberState::kInUse);
}

// A client died while it took a run of chunks, or gave one back.
TEST(Drain, WhatIsLeftOfARunIsFreed) {
  TestStore store({.groups = 8, .memory_bytes = size_t{16} << 20, .memory_nodes = 2, .chunk_bytes = kSmallChunk});
  auto client = store.NewClient();
  InLanes(*client, 500, PutRange);
  const std::span<std::byte> pool = store.memory_of(2);
  uint64_t planted = 0;
  for (uint64_t chunk = pool.size() / kSmallChunk - 1; planted < 3; --chunk) {
    kvs::ChunkWord word = ChunkWordOf(pool, chunk);
    if (word.kind() != kvs::ChunkKind::kFree) continue;
    word = word.As(kvs::ChunkKind::kRunRest, 0);
    std::memcpy(&pool[kvs::ChunkWordOffset(chunk)], &word, sizeof(word));
    ++planted;
  }
  kvs::DrainReport report;
  const kvs::Status drained = client->DrainNode(2, {.timeout_ms = 30'000}, &report);
  ASSERT_TRUE(drained.ok()) << drained.ToString();
  EXPECT_EQ(CountTaken(store, 2), 0u);
  EXPECT_TRUE(report.closed);
  CheckAll(*client, 500);
}

TEST(Drain, WhatIsDeadIsNotTakenBackIntoUse) {
  ManualClock clock;
  TestStore store(
      {.groups = 8, .memory_bytes = size_t{16} << 20, .clock = &clock, .memory_nodes = 2, .chunk_bytes = kSmallChunk});
  auto client = store.NewClient(), paused = store.NewClient();
  kvs::Status result;
  kvs::DrainReport report;
  client->Spawn(DrainOnce(*client, 2, 50, &result, &report));
  while (client->spawned() > 0) {
    client->Poll();
    clock.Advance(100'000);
  }
  ASSERT_EQ(result, kvs::StatusCode::kTimeout) << result.ToString();
  EXPECT_FALSE(report.closed) << "one has not announced that it knows";
  store.StopMemoryNode(2);
  const kvs::Status back = client->UndrainNode(2);
  EXPECT_EQ(back, kvs::StatusCode::kUnavailable) << back.ToString();
  EXPECT_EQ(MemberStateOf(store, 2), kvs::MemberState::kDraining);
}

// A drain that times out is not over: nothing is allocated at the node until it is taken back or drained.
TEST(Drain, OutOfTimeItCanBeRepeated) {
  ManualClock clock;
  TestStore store({.groups = 8,
                   .memory_bytes = size_t{16} << 20,
                   .operation_timeout_ms = 3'600'000,
                   .clock = &clock,
                   .memory_nodes = 2,
                   .chunk_bytes = kSmallChunk});
  auto client = store.NewClient();
  InLanes(*client, 1'000, PutRange);
  kvs::Status result;
  kvs::DrainReport report;
  auto stopped = store.NewClient();  // lives but is not polled: others cannot know that it allocates nothing there
  client->Spawn(DrainOnce(*client, 2, 50, &result, &report));
  while (client->spawned() > 0) {
    client->Poll();
    clock.Advance(100'000);
  }
  EXPECT_EQ(result, kvs::StatusCode::kTimeout) << result.ToString();
  EXPECT_EQ(MemberStateOf(store, 2), kvs::MemberState::kDraining);
  const uint64_t taken = CountTaken(store, 2);
  EXPECT_GT(taken, 0u);
  const kvs::TableStats stats = client->ReadTableStats().value();
  ASSERT_EQ(stats.memory_nodes.size(), 2u);
  EXPECT_FALSE(stats.memory_nodes[0].draining);
  EXPECT_TRUE(stats.memory_nodes[1].draining);
  for (uint32_t i = 1'000; i < 2'000; ++i) {
    ASSERT_TRUE(client->Put(Key(i), Value(i)).ok());
    stopped->Poll();
  }
  EXPECT_LE(CountTaken(store, 2), taken);
  for (int drains = 0; drains < 2; ++drains) {  // the second one finds it drained
    client->Spawn(DrainOnce(*client, 2, 600'000, &result, &report));
    while (client->spawned() > 0) {
      client->Poll();
      stopped->Poll();
      clock.Advance(100'000);
    }
    EXPECT_TRUE(result.ok()) << result.ToString();
    EXPECT_EQ(CountTaken(store, 2), 0u);
  }
  CheckAll(*client, 2'000);
  CheckPools(store);
}

kvs::Task<void> CompactForLong(kvs::Client& client) {
  kvs::CompactReport report;
  (void)co_await client.CompactAsync({.timeout_ms = 3'600'000}, &report);
}

TEST(Drain, AnotherMoverAtWorkIsToldAndNotOverrun) {
  ManualClock clock;
  TestStore store({.memory_bytes = size_t{16} << 20,
                   .operation_timeout_ms = 3'600'000,
                   .clock = &clock,
                   .memory_nodes = 2,
                   .chunk_bytes = kSmallChunk});
  auto client = store.NewClient(), mover = store.NewClient();
  const auto* const home = reinterpret_cast<const kvs::HomeArea*>(store.memory().data() + kvs::kHomeAreaOffset);
  mover->Spawn(CompactForLong(*mover));
  while (home->mover == 0) mover->Poll();
  kvs::Status result;
  kvs::DrainReport report;
  client->Spawn(DrainOnce(*client, 2, 100, &result, &report));
  while (client->spawned() > 0) {  // the mover is slow, but well within its lease
    client->Poll();
    clock.Advance(100'000);
  }
  EXPECT_EQ(result, kvs::StatusCode::kExists) << result.ToString();
  EXPECT_EQ(MemberStateOf(store, 2), kvs::MemberState::kInUse);
  client->Spawn(DrainOnce(*client, 2, 3'600'000, &result, &report));
  while (client->spawned() + mover->spawned() > 0) {
    client->Poll();
    mover->Poll();
    clock.Advance(100'000);
  }
  EXPECT_TRUE(result.ok()) << result.ToString();
}

}  // namespace
}  // namespace surgekv_test
