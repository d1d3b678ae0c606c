// Memory: chunks, blocks on the node of their subtable, what a full store reports and how it recovers.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <map>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "kvs/client.h"
#include "kvs/layout/pool.h"
#include "tests/kvs/child.h"
#include "tests/kvs/given_back.h"
#include "tests/kvs/pool_check.h"
#include "tests/kvs/test_store.h"
#include "tests/support/fake_clock.h"

namespace surgekv_test {
namespace {

uint64_t TakenBytes(kvs::Client& client) {
  uint64_t taken = 0;
  const kvs::TableStats stats = client.ReadTableStats().value();
  for (const auto& node : stats.memory_nodes) taken += node.taken_bytes;
  return taken;
}

void MustPut(kvs::Client& client, const std::string& key, const std::string& value) {
  const kvs::Status put = client.Put(key, value);
  ASSERT_TRUE(put.ok()) << key << ": " << put.ToString();
}

uint64_t FreeChunks(const TestStore& store, uint64_t chunk_bytes) {
  uint64_t free = 0;
  const std::span<const std::byte> pool = store.memory();
  for (uint64_t chunk = 0; chunk < pool.size() / chunk_bytes; ++chunk) {
    kvs::ChunkWord word;
    std::memcpy(&word, &pool[kvs::ChunkWordOffset(chunk)], sizeof(word));
    free += word.kind() == kvs::ChunkKind::kFree;
  }
  return free;
}

// Returns a word of the home. The mover word is 0 while nobody gives memory back.
uint64_t HomeWordOf(const TestStore& store, size_t offset) {
  const std::byte* const word = &store.memory()[kvs::kHomeAreaOffset + offset];
  return __atomic_load_n(reinterpret_cast<const uint64_t*>(word), __ATOMIC_ACQUIRE);  // pairs with the NIC's CAS
}
uint64_t MoverWordOf(const TestStore& store) { return HomeWordOf(store, offsetof(kvs::HomeArea, mover)); }
uint64_t EvacuationsOf(const TestStore& store) {
  return HomeWordOf(store, offsetof(kvs::HomeArea, counters) + offsetof(kvs::HomeCounters, evacuations));
}

// Polls until the client's maintenance has had time for several rounds.
void Settle(kvs::Client& client) {
  const int64_t until = krcore::RealClock()->NowNs() + 30'000'000;
  while (krcore::RealClock()->NowNs() < until) client.Poll();
}

TEST(Chunks, AValueOfManyChunksComesBackAsFreeChunks) {
  TestStore store({.memory_bytes = size_t{64} << 20});
  auto client = store.NewClient();
  MustPut(*client, "small", "v");
  const uint64_t before = TakenBytes(*client);
  const std::string value(size_t{16} << 20, 'x');
  for (int i = 0; i < 20; ++i) {  // 320 MiB through a pool of 64
    MustPut(*client, "large", value);
    std::string read;
    ASSERT_TRUE(client->Get("large", &read).ok());
    ASSERT_EQ(read, value);
    Settle(*client);
  }
  EXPECT_GE(TakenBytes(*client), before + (uint64_t{16} << 20));
  ASSERT_TRUE(client->Delete("large").ok());
  Settle(*client);
  EXPECT_EQ(TakenBytes(*client), before);
  EXPECT_GE(client->stats().chunks_freed, 20u * 17);
}

TEST(Chunks, RunsAreFoundBetweenOthersChunksAndAroundTheEnd) {
  TestStore store({.memory_bytes = size_t{8} << 20, .chunk_bytes = uint64_t{64} << 10});
  auto client = store.NewClient();
  // Values of 1 to 9 chunks, put and deleted in an order that leaves holes everywhere.
  std::vector<std::string> values(24);
  uint32_t state = 7;
  for (int round = 0; round < 400; ++round) {
    state = state * 1664525 + 1013904223;
    const uint32_t key = state / 65536 % values.size();
    const std::string name = "key" + std::to_string(key);
    if (!values[key].empty()) {
      std::string read;
      ASSERT_TRUE(client->Get(name, &read).ok());
      ASSERT_EQ(read, values[key]);
      ASSERT_TRUE(client->Delete(name).ok());
      values[key].clear();
    } else {
      std::string value((state >> 8) % (9 * 65'000) + 1, static_cast<char>('a' + key));
      const kvs::Status put = client->Put(name, value);
      if (put == kvs::StatusCode::kOutOfMemory) continue;
      ASSERT_TRUE(put.ok()) << put.ToString();
      values[key] = value;
    }
  }
  for (uint32_t key = 0; key < values.size(); ++key) {
    std::string read;
    if (values[key].empty()) continue;
    ASSERT_TRUE(client->Get("key" + std::to_string(key), &read).ok());
    EXPECT_EQ(read, values[key]);
  }
}

TEST(Chunks, SubtablesAndBlocksAreSpreadOverAllNodes) {
  TestStore store({.memory_bytes = size_t{16} << 20, .memory_nodes = 3, .chunk_bytes = uint64_t{64} << 10});
  auto client = store.NewClient();
  for (int i = 0; i < 20'000; ++i) MustPut(*client, std::to_string(i), std::string(100, 'v'));
  const kvs::TableStats stats = client->ReadTableStats().value();
  ASSERT_EQ(stats.memory_nodes.size(), 3u);
  std::vector<uint64_t> taken;
  for (const auto& node : stats.memory_nodes) {
    taken.push_back(node.taken_bytes - kvs::ReservedChunks(node.capacity_bytes, 65536) * 65536);
  }
  const auto [least, most] = std::minmax_element(taken.begin(), taken.end());
  EXPECT_LT(*most, *least * 3 / 2) << taken[0] << " " << taken[1] << " " << taken[2];
}

kvs::Task<void> InsertMany(kvs::Client& client, std::string prefix, int count) {
  for (int i = 0; i < count; ++i) {
    const kvs::Status inserted = co_await client.InsertAsync(prefix + std::to_string(i), "value");
    EXPECT_TRUE(inserted.ok()) << inserted.ToString();
  }
}

// Splits come in bursts: all subtables fill up at about the same time, and many find the last chunk for subtables full.
TEST(Chunks, OnlyTheNewestChunkForSubtablesHasRoomForMore) {
  constexpr uint64_t kChunkBytes = uint64_t{64} << 10;
  constexpr uint32_t kGroups = 16;
  TestStore store({.groups = kGroups, .memory_bytes = size_t{32} << 20, .chunk_bytes = kChunkBytes});
  store.store();
  std::vector<std::thread> threads;
  std::array<uint64_t, 2> freed{};
  for (int t = 0; t < 2; ++t) {
    threads.emplace_back([&store, &freed, t] {
      auto client = store.NewClient();
      for (int lane = 0; lane < 32; ++lane) {
        client->Spawn(InsertMany(*client, std::to_string(t) + "/" + std::to_string(lane) + "/", 1'000));
      }
      client->Drain();
      freed[t] = client->stats().chunks_freed;
    });
  }
  for (std::thread& thread : threads) thread.join();
  // A client that found the node full looks again when it learns of a freed chunk.
  const auto* const home = reinterpret_cast<const kvs::HomeArea*>(&store.memory()[kvs::kHomeAreaOffset]);
  EXPECT_EQ(home->counters.freed_chunks, freed[0] + freed[1]);
  const uint32_t per_chunk = kChunkBytes / kvs::SubtableGeometry{kGroups}.bytes();
  uint32_t full = 0, others = 0;
  for (uint64_t chunk = 0; chunk < store.memory().size() / kChunkBytes; ++chunk) {
    kvs::ChunkWord word;
    std::memcpy(&word, &store.memory()[kvs::ChunkWordOffset(chunk)], sizeof(word));
    if (word.kind() != kvs::ChunkKind::kTables) continue;
    ++(word.count() == per_chunk ? full : others);
  }
  EXPECT_GE(full, 10u);
  EXPECT_LE(others, 1u);
}

TEST(Chunks, AFullStoreSaysSoAndGoesOnWhenAMemoryNodeJoins) {
  TestStoreOptions options{.memory_bytes = kvs::kMinPoolBytes};
  TestStore store(options);
  auto client = store.NewClient();
  const std::string value(50'000, 'v');
  int stored = 0;
  kvs::Status put;
  for (; stored < 1'000; ++stored) {
    put = client->Put("key" + std::to_string(stored), value);
    if (!put.ok()) break;
  }
  ASSERT_EQ(put, kvs::StatusCode::kOutOfMemory) << put.ToString();
  EXPECT_GT(stored, 40);
  store.AddMemoryNode();
  const krcore::Deadline soon = krcore::Deadline::After(*krcore::RealClock(), 10'000'000'000);
  while (!put.ok() && !soon.Passed(*krcore::RealClock())) {
    put = client->Put("key" + std::to_string(stored), value);
  }
  EXPECT_TRUE(put.ok()) << put.ToString();
  for (int i = stored + 1; i < stored + 40; ++i) MustPut(*client, "key" + std::to_string(i), value);
}

TEST(Chunks, ACallThatWaitsForMemorySleepsMeanwhile) {
  FakeClock clock;
  TestStore store({.memory_bytes = kvs::kMinPoolBytes, .clock = &clock, .lease_ns = 50'000'000});
  auto stopped = store.NewClient();  // it holds back what is deleted
  auto client = store.NewClient();
  const std::string value(50'000, 'v');
  int stored = 0;
  while (client->Put("key" + std::to_string(stored), value).ok()) ++stored;
  for (int i = 0; i < stored; ++i) ASSERT_TRUE(client->Delete("key" + std::to_string(i)).ok());
  const int64_t begun_ns = clock.NowNs();
  (void)client->Put("another", value);  // in the end it may or may not find room
  EXPECT_GT(clock.NowNs() - begun_ns, 10'000'000) << "it did not wait";
  EXPECT_EQ(clock.longest_wait(), UINT32_MAX) << "it did not sleep";
}

// ---- memory given back

TEST(GivenBack, AfterNinetyPercentWereDeletedMostMemoryIsFreeForOtherSizes) {
  constexpr uint32_t kRecords = 20'000;
  TestStore store({.groups = 32, .memory_bytes = size_t{48} << 20, .memory_nodes = 2, .chunk_bytes = kSmallChunk});
  auto client = store.NewClient();
  const uint64_t empty = TakenBytes(*client);
  InLanes(*client, kRecords, PutRange);
  const uint64_t loaded = TakenBytes(*client) - empty;
  InLanes(*client, kRecords, DeleteRange);
  kvs::CompactReport report;
  const kvs::Status compacted = client->Compact({}, &report);
  ASSERT_TRUE(compacted.ok()) << compacted.ToString();
  EXPECT_GT(client->stats().blocks_moved, 0u);
  const uint64_t left = TakenBytes(*client) - empty;
  RecordProperty("loaded", std::to_string(loaded));
  RecordProperty("left", std::to_string(left));
  EXPECT_LE(left * 10, loaded * 4) << "less than 60% came back: " << left << " of " << loaded;
  CheckTenth(*client, kRecords);
  CheckPools(store);

  // And it is really free for blocks of a size of which there were none, as many as fit.
  const std::string value(20'000, 'z');
  uint64_t stored = 0;
  while (client->Put("other-" + std::to_string(stored), value).ok()) ++stored;
  EXPECT_GT(stored * value.size(), (size_t{96} << 20) * 7 / 10);
  CheckTenth(*client, kRecords);
  CheckPools(store);
}

TEST(GivenBack, WhatAKilledClientHeldComesBack) {
  TestStoreOptions options{
      .fabric = UniqueFabric(), .groups = 16, .memory_bytes = size_t{24} << 20, .chunk_bytes = kSmallChunk};
  TestStore store(options);
  for (int round = 0; round < 6; ++round) {
    int ready[2];
    ASSERT_EQ(pipe(ready), 0);
    Child victim([&] {
      auto attached = TestStore::Attach(options.fabric, options);
      auto client = attached->NewClient().value();
      uint32_t failed = 0;
      // It holds free blocks, the chunks that it fills, and what its operations in flight have allocated.
      for (uint32_t i = 0; i < 8'000; ++i) (void)client->Put(Key(i % 1'000), std::string(500 + i % 300, 'v'));
      for (uint32_t i = 0; i < 1'000; ++i) (void)client->Delete(Key(i));
      for (uint32_t lane = 0; lane < 16; ++lane) client->Spawn(PutRange(*client, lane, 1'000, 16, &failed));
      for (int i = 0; i < 100; ++i) client->Poll();
      if (write(ready[1], "", 1) != 1) _exit(1);
      for (;;) ::pause();
    });
    char byte;
    ASSERT_EQ(read(ready[0], &byte, 1), 1);
    victim.Kill();
    close(ready[0]);
    close(ready[1]);
    auto client = store.NewClient();
    for (uint32_t i = 0; i < 1'000; ++i) (void)client->Delete(Key(i));
    const kvs::Status compacted = client->Compact({.thorough = true});
    ASSERT_TRUE(compacted.ok()) << compacted.ToString();
    EXPECT_EQ(client->stats().dead_clients_found, 1u);
    // What is left is the chunks that it fills now, and a subtable or two.
    EXPECT_LE(TakenBytes(*client), (kvs::ReservedChunks(options.memory_bytes, kSmallChunk) + 8) * kSmallChunk);
    CheckPools(store, true);
  }
  (void)krcore::CleanStaleFabrics("sw", options.fabric, true);
}

TEST(GivenBack, MemoryKeptFromAnEndedClientIsDroppedIfChunksWereEmptiedSince) {
  TestStore store({.groups = 16, .memory_bytes = size_t{24} << 20, .chunk_bytes = kSmallChunk});
  auto first = store.NewClient(), second = store.NewClient();
  for (uint32_t i = 0; i < 600; ++i) MustPut(*first, Key(i), std::string(500, 'a'));
  for (uint32_t i = 0; i < 600; ++i) ASSERT_TRUE(first->Delete(Key(i)).ok());
  Settle(*first);
  first.reset();  // its free blocks are kept for the next client of the process
  kvs::CompactReport report;
  ASSERT_TRUE(second->Compact({.thorough = true}, &report).ok());
  EXPECT_GT(report.chunks_freed, 2u);
  // Others use the chunks now; the next client must not use them as well.
  for (uint32_t i = 0; i < 600; ++i) MustPut(*second, "second-" + Key(i), std::string(500, 'b'));
  auto third = store.NewClient();
  for (uint32_t i = 0; i < 600; ++i) MustPut(*third, "third-" + Key(i), std::string(500, 'c'));
  EXPECT_EQ(third->stats().blocks_reused, 0u);
  std::string value;
  for (uint32_t i = 0; i < 600; ++i) {
    ASSERT_TRUE(third->Get("second-" + Key(i), &value).ok());
    ASSERT_EQ(value, std::string(500, 'b'));
  }
  CheckPools(store);
}

TEST(GivenBack, AFullStoreMakesRoomForOtherSizesByItself) {
  TestStore store({.groups = 16, .memory_bytes = size_t{12} << 20, .chunk_bytes = kSmallChunk});
  auto client = store.NewClient();
  uint32_t stored = 0;
  while (client->Put(Key(stored), std::string(300, 'a')).ok()) ++stored;
  ASSERT_GT(stored, 10'000u);
  for (uint32_t i = 0; i < stored; ++i) {
    if (i % 10 == 0) continue;
    ASSERT_TRUE(client->Delete(Key(i)).ok());
  }
  // All free memory is in blocks of one size.
  uint32_t large = 0;
  while (client->Put("large-" + std::to_string(large), std::string(9'000, 'b')).ok()) ++large;
  EXPECT_GT(uint64_t{large} * 9'000, (uint64_t{12} << 20) / 2);
  EXPECT_GT(client->stats().compactions, 0u);
  std::string value;
  for (uint32_t i = 0; i < stored; i += 10) ASSERT_TRUE(client->Get(Key(i), &value).ok());
  for (uint32_t i = 0; i < large; ++i) ASSERT_TRUE(client->Get("large-" + std::to_string(i), &value).ok());
  CheckPools(store);
}

// Fills the store with values of one size and deletes nine of ten. FillWithOthers then returns how many bytes of
// another size fit.
uint32_t FillAndThin(kvs::Client& client) {
  uint32_t stored = 0;
  while (client.Put(Key(stored), std::string(300, 'a')).ok()) ++stored;
  for (uint32_t i = 0; i < stored; ++i) {
    if (i % 10 != 0) {
      EXPECT_TRUE(client.Delete(Key(i)).ok());
    }
  }
  return stored;
}
uint64_t FillWithOthers(kvs::Client& client) {
  uint64_t bytes = 0;
  for (uint32_t i = 0; client.Put("large-" + std::to_string(i), std::string(9'000, 'b')).ok(); ++i) bytes += 9'000;
  return bytes;
}

kvs::Task<void> CompactOnce(kvs::Client& client) {
  kvs::CompactReport report;
  (void)co_await client.CompactAsync({}, &report);
}
kvs::Task<void> PutRun(kvs::Client& client, kvs::Status* put) {
  *put = co_await client.PutAsync("run", std::string(kSmallChunk, 'r'));
}

// On a slow machine a run of the mover can end early with chunks that are empty and not yet free; the next run frees
// them. But no run gets back what others have filled.
void ExpectFreeAtLast(const TestStore& store, const std::vector<kvs::Client*>& clients, uint64_t chunks) {
  for (int i = 0; i < 10 && FreeChunks(store, kSmallChunk) < chunks; ++i) {
    clients[0]->Spawn(CompactOnce(*clients[0]));
    while (clients[0]->spawned() > 0) {
      for (kvs::Client* client : clients) client->Poll();
    }
  }
  EXPECT_GE(FreeChunks(store, kSmallChunk), chunks);
}

TEST(GivenBack, AFullStoreHasChunksLeftForTheMoverAlone) {
  const TestStoreOptions options{.groups = 16, .memory_bytes = size_t{12} << 20, .chunk_bytes = kSmallChunk};
  TestStore store(options);
  auto client = store.NewClient();
  const uint64_t usable = options.memory_bytes / kSmallChunk - kvs::ReservedChunks(options.memory_bytes, kSmallChunk);
  ASSERT_GT(FillAndThin(*client), 10'000u);
  EXPECT_GE(FreeChunks(store, kSmallChunk), kvs::ChunksKeptForMover(usable));
  EXPECT_GT(FillWithOthers(*client), options.memory_bytes / 2);
  ExpectFreeAtLast(store, {client.get()}, kvs::ChunksKeptForMover(usable));
  // Nor for a value that has chunks of its own, put by a client that does not know that the store is full.
  auto other = store.NewClient();
  kvs::Status put;
  other->Spawn(PutRun(*other, &put));
  while (other->spawned() > 0) {
    other->Poll();
    client->Poll();
  }
  EXPECT_EQ(put, kvs::StatusCode::kOutOfMemory);
  ExpectFreeAtLast(store, {client.get(), other.get()}, kvs::ChunksKeptForMover(usable));
  CheckPools(store);
}

// Only what is kept for the mover is free, and the mover joins tables, for which it needs memory as well.
TEST(GivenBack, TheMoverOfAFullStoreWaitsForNoMemory) {
  const TestStoreOptions options{
      .groups = 16, .initial_depth = 6, .memory_bytes = size_t{12} << 20, .chunk_bytes = kSmallChunk};
  TestStore store(options);
  const uint64_t usable = options.memory_bytes / kSmallChunk - kvs::ReservedChunks(options.memory_bytes, kSmallChunk);
  auto mover = store.NewClient(), client = store.NewClient();
  for (uint32_t i = 0; FreeChunks(store, kSmallChunk) > kvs::ChunksKeptForMover(usable); ++i) {
    MustPut(*client, Key(i), std::string(9'000, 'a'));
    mover->Poll();  // keeps its lease
  }
  client.reset();  // the mover's client, which was there before, has none of its memory
  kvs::CompactReport report;
  const kvs::Status compacted = mover->Compact({.thorough = true, .timeout_ms = 10'000}, &report);
  EXPECT_TRUE(compacted.ok()) << compacted.ToString();
  EXPECT_GT(report.tables_merged, 16u);
  CheckPools(store);
}

kvs::Task<void> PutLarge(kvs::Client& client) {
  const kvs::Status put = co_await client.PutAsync("large", std::string(9'000, 'b'));
  EXPECT_TRUE(put.ok()) << put.ToString();
}
// A run that looks only at sparse chunks, and finds none, tells nothing about chunks that are half full.
TEST(GivenBack, AStoreIsNotFullBecauseACompactionThatWasNotThoroughFoundNothing) {
  const TestStoreOptions options{.groups = 16, .memory_bytes = size_t{12} << 20, .chunk_bytes = kSmallChunk};
  TestStore store(options);
  auto client = store.NewClient();
  uint32_t stored = 0;
  while (client->Put(Key(stored), std::string(300, 'a')).ok()) ++stored;
  for (uint32_t i = 0; i < stored; i += 3) ASSERT_TRUE(client->Delete(Key(i)).ok());
  kvs::CompactReport report;
  do {
    const kvs::Status compacted = client->Compact({}, &report);
    ASSERT_TRUE(compacted.ok()) << compacted.ToString();
  } while (report.chunks_freed > 0);
  EXPECT_GT(FillWithOthers(*client), options.memory_bytes / 8);
  CheckPools(store);
}

kvs::Task<void> CompactForLong(kvs::Client& client, bool* ended) {
  kvs::CompactReport report;
  (void)co_await client.CompactAsync({.timeout_ms = 600'000}, &report);
  *ended = true;
}

// Puts keys until only the chunks kept for the mover are free; then deletes nine of ten. Returns how many keys there
// were.
uint32_t FillAndDelete(const TestStore& store, const TestStoreOptions& options, kvs::Client& client,
                       kvs::Client& other) {
  const uint64_t usable = options.memory_bytes / kSmallChunk - kvs::ReservedChunks(options.memory_bytes, kSmallChunk);
  uint32_t stored = 0;
  for (; FreeChunks(store, kSmallChunk) > kvs::ChunksKeptForMover(usable); ++stored) {
    MustPut(client, Key(stored), std::string(300, 'a'));
    other.Poll();
  }
  for (uint32_t i = 0; i < stored; ++i) {
    if (i % 10 != 0) {
      EXPECT_TRUE(client.Delete(Key(i)).ok());
    }
    other.Poll();
  }
  return stored;
}

// A client that lives but is not polled holds up whoever gives memory back. It must not hold up operations that wait
// for memory, even if their client's user began the compaction.
TEST(GivenBack, WhoWaitsForMemoryDoesNotWaitForAUsersCompactionThatIsHeldUp) {
  const TestStoreOptions options{.groups = 16,
                                 .memory_bytes = size_t{4} << 20,
                                 .operation_timeout_ms = 600'000,
                                 .chunk_bytes = kSmallChunk,
                                 .lease_ns = 250'000'000};
  TestStore store(options);
  auto stopped = store.NewClient(), client = store.NewClient();
  (void)FillAndDelete(store, options, *client, *stopped);
  bool ended = false;
  client->Spawn(CompactForLong(*client, &ended));
  while (MoverWordOf(store) == 0) client->Poll();
  kvs::Status put = kvs::Status::Ok();  // at first its chunks have some room left
  for (int i = 0; put.ok(); ++i) put = client->Put("large-" + std::to_string(i), std::string(9'000, 'b'));
  EXPECT_EQ(put, kvs::StatusCode::kOutOfMemory);
  EXPECT_TRUE(ended);
  // When it is polled again there is room.
  client->Spawn(PutLarge(*client));
  while (client->spawned() > 0) {
    client->Poll();
    stopped->Poll();
  }
  CheckPools(store);
}

// While no chunk is free, copies go into free blocks, and the free blocks in a chunk that is being emptied belong to
// nobody.
TEST(GivenBack, ACompactionThatIsHeldUpLeavesManyOfTheFreeBlocks) {
  const TestStoreOptions options{.groups = 16,
                                 .memory_bytes = size_t{4} << 20,
                                 .operation_timeout_ms = 600'000,
                                 .chunk_bytes = kSmallChunk,
                                 .lease_ns = 250'000'000};
  TestStore store(options);
  auto stopped = store.NewClient(), client = store.NewClient();
  const uint32_t stored = FillAndDelete(store, options, *client, *stopped);
  for (int i = 0; i < 1'000; ++i) {  // until what was deleted is free
    client->Poll();
    stopped->Poll();
  }
  const uint64_t before = EvacuationsOf(store);
  bool ended = false;
  client->Spawn(CompactForLong(*client, &ended));
  while (EvacuationsOf(store) == before) {
    client->Poll();
    stopped->Poll();
  }
  for (int i = 0; i < 100; ++i) client->Poll();  // it has learnt of that
  // Put until one finds no room. By then two compactions were held up, this one and the put's own, and each took half.
  uint32_t put = 0;
  while (put < stored && (put % 10 == 0 || client->Put(Key(put), std::string(300, 'b')).ok())) ++put;
  EXPECT_GT(put, stored / 5);
}

// The mover's lease is so long that only the confirmed death of its process tells that it has stopped.
TEST(GivenBack, WhoWaitsForMemoryTakesOverFromADeadMover) {
  TestStoreOptions options{.fabric = UniqueFabric(),
                           .groups = 16,
                           .memory_bytes = size_t{12} << 20,
                           .operation_timeout_ms = 15'000,
                           .chunk_bytes = kSmallChunk,
                           .lease_ns = 16'000'000'000};
  TestStore store(options);
  int ready[2];
  ASSERT_EQ(pipe(ready), 0);
  Child victim([&] {
    auto attached = TestStore::Attach(options.fabric, options);
    auto client = attached->NewClient().value();
    (void)FillAndThin(*client);
    client->Spawn(CompactOnce(*client));
    while (MoverWordOf(store) == 0) client->Poll();
    if (write(ready[1], "", 1) != 1) _exit(1);
    for (;;) ::pause();
  });
  char byte;
  ASSERT_EQ(read(ready[0], &byte, 1), 1);
  victim.Kill();
  close(ready[0]);
  close(ready[1]);
  const uint64_t left = MoverWordOf(store);
  EXPECT_NE(left, 0u);
  auto client = store.NewClient();
  EXPECT_GT(FillWithOthers(*client), options.memory_bytes / 2);
  EXPECT_NE(MoverWordOf(store), left);
  EXPECT_EQ(client->stats().dead_clients_found, 1u);
  CheckPools(store, true);
  (void)krcore::CleanStaleFabrics("sw", options.fabric, true);
}

TEST(Clients, AThousandOfThemAreRegistered) {
  TestStoreOptions options{.memory_bytes = size_t{16} << 20};
  TestStore store(options);
  std::vector<std::unique_ptr<kvs::Store>> stores;  // one device does not have enough queues
  std::vector<std::unique_ptr<kvs::Client>> clients;
  for (int i = 0; i < 1'000; ++i) {
    if (i % 250 == 0) stores.push_back(TestStore::Attach(store.fabric(), options));
    auto client = stores.back()->NewClient({.max_in_flight = 1});
    ASSERT_TRUE(client.ok()) << i << ": " << client.status().ToString();
    clients.push_back(std::move(*client));
  }
  MustPut(*clients.back(), "k", "v");
  std::string value;
  EXPECT_TRUE(clients.front()->Get("k", &value).ok());
  clients.clear();
}

}  // namespace
}  // namespace surgekv_test
