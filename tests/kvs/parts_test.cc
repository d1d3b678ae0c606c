// Each part of a client, made only of the parts that its constructor asks for: what it does without the rest.
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "krcore/control_plane.h"
#include "kvs/epochs/epochs.h"
#include "kvs/table/table.h"
#include "kvs/upkeep/upkeep.h"
#include "tests/kvs/manual_clock.h"
#include "tests/kvs/test_store.h"

namespace surgekv_test {
namespace {

using kvs::GlobalAddress;
using kvs::Outcome;
using kvs::Step;
using kvs::Task;

constexpr int64_t kLeaseNs = 1'000'000'000;
constexpr uint32_t kInFlight = 2;

// What all tests of parts share: a store of two memory nodes, whose table has two subtables.
class Parts : public ::testing::Test {
 protected:
  void SetUp() override {
    auto node = krcore::OpenNode("krcore", {.rnic = "sw", .fabric = store_.fabric(), .clock = &clock_});
    ASSERT_TRUE(node.ok()) << node.status().ToString();
    node_ = *std::move(node);
    shape_.home = 1;
    shape_.geometry.groups = 2;
    shape_.lease_ns = kLeaseNs;
    shape_.hasher = kvs::Hasher(kTestSeed);
    shape_.operation_timeout_ns = 1'000'000'000;
    auto arena = node_->CreateRegion(
        {.length = kvs::Epochs::ArenaBytes(kInFlight) + kvs::Workbench::ArenaBytes(shape_.geometry)});
    ASSERT_TRUE(arena.ok()) << arena.status().ToString();
    arena_ = *std::move(arena);
    connections_ = std::make_unique<kvs::Connections>(*node_, 1'000'000'000, stats_);
    ASSERT_TRUE(connections_->Open(512).ok());
    for (const krcore::NodeId memory_node : {1, 2}) ASSERT_TRUE(connections_->Reach(memory_node));
    common_.emplace(kvs::Common{*node_, clock_, *connections_, stats_, random_, shape_, store_state_});
  }
  kvs::ArenaPart arena() { return {arena_->bytes().data(), arena_->lkey()}; }
  kvs::ArenaPart workbench_arena() { return arena().After(kvs::Epochs::ArenaBytes(kInFlight)); }

  // Runs the task to its end; `poll` is called between its round trips.
  template <typename T, typename Poll>
  T Run(Task<T> task, Poll poll) {
    task.Start();
    for (int i = 0; i < 100'000 && !task.done(); ++i) {
      connections_->Poll();
      poll();
      kvs::RunQueue::OfThisThread().RunAll();
    }
    EXPECT_TRUE(task.done());
    return task.Take();
  }
  template <typename T>
  T Run(Task<T> task) {
    return Run(std::move(task), [] {});
  }
  // For parts that wait: time passes between the round trips.
  template <typename T>
  T Run(Task<T> task, kvs::Epochs& epochs) {
    return Run(std::move(task), [&] {
      clock_.Advance(100'000);
      epochs.registration.ForgetNow();
      epochs.operations.RunDelayed();
    });
  }
  uint64_t PoolWord(krcore::NodeId node, uint64_t offset) const {
    uint64_t word;
    std::memcpy(&word, &store_.memory_of(node)[offset], sizeof(word));
    return word;
  }
  kvs::ClientEntry Entry(uint32_t index) const {
    kvs::ClientEntry entry;
    std::memcpy(&entry, &store_.memory_of(1)[kvs::EntryOffset(index)], sizeof(entry));
    return entry;
  }

  TestStore store_{{.groups = 2, .initial_depth = 1, .memory_nodes = 2, .lease_ns = kLeaseNs}};
  ManualClock clock_;
  std::unique_ptr<krcore::Node> node_;
  kvs::ClientStats stats_;
  std::minstd_rand random_;
  kvs::StoreShape shape_;
  kvs::StoreState store_state_;
  std::unique_ptr<kvs::Connections> connections_;
  std::unique_ptr<krcore::Region> arena_;
  std::optional<kvs::Common> common_;
};

// ---- epochs

TEST_F(Parts, HomeKnowsTheMembersAfterAGlance) {
  const auto client = store_.NewClient();  // so that part of the client table is in use
  kvs::Home home(*common_, arena());
  EXPECT_EQ(Run(home.Glance()), Step::kOk);
  EXPECT_EQ(home.members(), (std::vector<krcore::NodeId>{1, 2}));
  EXPECT_TRUE(home.words().hash_seed == kTestSeed);
  EXPECT_EQ(Run(home.Read()), Step::kOk);
  EXPECT_EQ(home.words().epoch, PoolWord(1, kvs::kEpochOffset));
  EXPECT_EQ(home.read_in_round(), home.rounds());
}

TEST_F(Parts, HomeForgetsWhoIsFullWhenChunksWereFreed) {
  kvs::Home home(*common_, arena());
  home.NoteFull(2);
  home.SawFreedChunks(home.freed_chunks_seen());
  EXPECT_TRUE(home.IsFull(2));
  home.SawFreedChunks(home.freed_chunks_seen() + 1);
  EXPECT_FALSE(home.IsFull(2));
}

struct OperationParts {
  kvs::Home home;
  kvs::Registration registration;
  kvs::Operations operations;
  OperationParts(const kvs::Common& common, kvs::ArenaPart arena)
      : home(common, arena.After(kvs::Operations::ArenaBytes(kInFlight))),
        registration(common.clock, kLeaseNs),
        operations(common, home, registration, kInFlight, arena) {}
};

TEST_F(Parts, OperationsAreHandedToWhoeverWaitsForOne) {
  OperationParts parts(*common_, arena());
  kvs::Operations& operations = parts.operations;
  std::vector<kvs::Operation*> free;
  for (uint32_t i = 0; i < kInFlight; ++i) free.push_back(operations.FreeOperation());
  EXPECT_EQ(operations.FreeOperation(), nullptr);
  kvs::Operation* leased = nullptr;
  auto lease = [&]() -> Task<void> { leased = &co_await operations.LeaseOwnOperation(); };
  Task<void> waits = lease();
  waits.Start();
  EXPECT_EQ(leased, nullptr);
  operations.Release(*free.back());
  kvs::RunQueue::OfThisThread().RunAll();
  EXPECT_EQ(leased, free.back());
  EXPECT_TRUE(waits.done());
  operations.Release(*leased);
  operations.Release(*free.front());
  EXPECT_TRUE(operations.all_free());
}

TEST_F(Parts, OperationsPinTheEpochInWhichTheOldestBegan) {
  OperationParts parts(*common_, arena());
  parts.home.set_epoch(5);
  kvs::Operation& old = parts.operations.Take(*parts.operations.FreeOperation(), "key", {}, true);
  parts.home.set_epoch(7);
  EXPECT_EQ(parts.operations.OldestEpochInFlight(), 5u);
  parts.operations.Release(old);
  EXPECT_EQ(parts.operations.OldestEpochInFlight(), 7u);
  parts.operations.PinForMaintenance(6);
  EXPECT_EQ(parts.operations.OldestEpochInFlight(), 6u);
}

TEST_F(Parts, OperationsThatPauseGoOnWhenTheTimeIsOver) {
  OperationParts parts(*common_, arena());
  auto pause = [&]() -> Task<void> { co_await parts.operations.Pause(1'000); };
  Task<void> paused = pause();
  paused.Start();
  const auto round = [&] {
    parts.registration.ForgetNow();
    parts.operations.RunDelayed();
    kvs::RunQueue::OfThisThread().RunAll();
  };
  clock_.Advance(999);
  round();
  EXPECT_FALSE(paused.done());
  clock_.Advance(1);
  round();
  EXPECT_TRUE(paused.done());
}

TEST_F(Parts, ClientMemoryKeepsEarlierRegistrationsApart) {
  kvs::ClientMemory memory(shape_.chunk_bytes);
  memory.RenewAfterExpulsion();
  kvs::Batch batch;
  batch.Attach(connections_.get(), 0);
  EXPECT_EQ(&memory.Of(batch), memory.operator->());
  connections_->Fence();
  EXPECT_NE(&memory.Of(batch), memory.operator->());
  memory.Of(batch).Free({.address = {1, shape_.chunk_bytes}, .bytes = 64});
  EXPECT_EQ(memory->free_bytes(), 0u);
}

TEST_F(Parts, RetiredTablesAreToldBeforeTheyWaitForTheirEpoch) {
  kvs::Home home(*common_, arena());
  kvs::DirectoryCache cache;
  kvs::ClientMemory memory(shape_.chunk_bytes);
  memory.Renew();
  kvs::RetiredTables retired(*common_, cache, memory);
  const kvs::TableRef table{{1, 4 * shape_.chunk_bytes}, 0, kvs::DirectoryEntry(), 0};
  const uint64_t before = PoolWord(1, kvs::kRetiredTablesOffset);
  retired.Add(table);
  EXPECT_EQ(memory->retired(), 0u);
  EXPECT_EQ(Run(retired.Report(home.batch(), &home.words().cas)), Step::kOk);
  EXPECT_EQ(PoolWord(1, kvs::kRetiredTablesOffset), before + 1);
  EXPECT_EQ(memory->retired(), 1u);
  const uint64_t ticket = cache.Ticket();
  retired.SawCounter(before + 1);
  EXPECT_NE(cache.Ticket(), ticket);  // all that the cache named may be used again from now on
}

struct RegistrarParts : OperationParts {
  kvs::DirectoryCache cache;
  kvs::ClientMemory memory;
  kvs::RetiredTables retired;
  kvs::OwnWork own_work;
  kvs::Registrar registrar;
  RegistrarParts(const kvs::Common& common, kvs::ArenaPart arena)
      : OperationParts(common, arena),
        memory(common.shape.chunk_bytes),
        retired(common, cache, memory),
        registrar(common, home, operations, registration, memory, retired, own_work) {
    memory.Renew();
  }
};

TEST_F(Parts, RegistrarClaimsAnEntryAndGivesItBack) {
  RegistrarParts parts(*common_, arena());
  EXPECT_EQ(Run(parts.registrar.Register()), Step::kOk);
  EXPECT_TRUE(parts.registration.MayPost());
  EXPECT_EQ(Entry(parts.registrar.client_index()).owner, parts.registrar.entry().owner);
  EXPECT_EQ(Run(parts.registrar.Unregister()), Step::kOk);
  EXPECT_EQ(Entry(parts.registrar.client_index()).owner, 0u);
}

TEST_F(Parts, RegistrarRenewsALeaseThatIsOver) {
  RegistrarParts parts(*common_, arena());
  ASSERT_EQ(Run(parts.registrar.Register()), Step::kOk);
  clock_.Advance(2 * kLeaseNs);
  EXPECT_FALSE(parts.registration.MayPost());
  EXPECT_FALSE(parts.registrar.CareForLease());
  size_t completions = 0;
  for (int i = 0; i < 1'000 && parts.registrar.renewing(); ++i) {
    parts.registrar.PollRenewal(&completions);
    kvs::RunQueue::OfThisThread().RunAll();
  }
  EXPECT_TRUE(parts.registration.MayPost());
  EXPECT_TRUE(parts.registrar.CareForLease());
  EXPECT_EQ(Run(parts.registrar.Unregister()), Step::kOk);
}

TEST_F(Parts, ObserverExpelsAClientThatHasNotChangedItsEntryForOneAndAHalfLeases) {
  RegistrarParts parts(*common_, arena());
  ASSERT_EQ(Run(parts.registrar.Register()), Step::kOk);
  kvs::Observer observer(*common_, parts.home, parts.registrar, parts.own_work);
  auto client = store_.NewClient();  // which nobody polls from now on
  uint32_t index = 0;
  while (Entry(index).owner == 0 || index == parts.registrar.client_index()) ++index;
  const uint64_t announced = kvs::ClientWord(Entry(index).word).epoch();
  const auto observe = [&] {
    ASSERT_EQ(Run(parts.home.Read()), Step::kOk);
    Run(observer.Observe(announced, announced + 1, false));
  };
  observe();
  clock_.Advance(kLeaseNs);
  observe();
  EXPECT_EQ(kvs::ClientWord(Entry(index).word).state(), kvs::ClientState::kAlive);
  clock_.Advance(kLeaseNs);
  observe();
  EXPECT_EQ(kvs::ClientWord(Entry(index).word).state(), kvs::ClientState::kExpelled);
  EXPECT_EQ(stats_.expulsions, 1u);
  EXPECT_EQ(Run(parts.registrar.Unregister()), Step::kOk);
}

TEST_F(Parts, ChunksAreTakenAndGivenBack) {
  OperationParts parts(*common_, arena());
  kvs::ClientMemory memory(shape_.chunk_bytes);
  memory.Renew();
  kvs::Chunks chunks(*common_, parts.home, memory);
  kvs::Operation& op = parts.operations.Take(*parts.operations.FreeOperation(), "key", {}, true);
  kvs::Span taken;
  ASSERT_EQ(Run(chunks.TakeChunks(op, 2, kvs::ChunkKind::kRun, 3, 3, &taken)), Step::kOk);
  const auto word = [&](uint64_t i) { return kvs::ChunkWord(PoolWord(2, kvs::ChunkWordOffset(taken.chunk + i))); };
  EXPECT_EQ(word(0).kind(), kvs::ChunkKind::kRun);
  EXPECT_EQ(word(2).kind(), kvs::ChunkKind::kRunRest);
  const kvs::Extent run{.address = {2, taken.chunk * shape_.chunk_bytes}, .bytes = 3 * shape_.chunk_bytes};
  EXPECT_EQ(Run(chunks.GiveBackRun(run)), Step::kOk);
  for (uint64_t i = 0; i < 3; ++i) EXPECT_EQ(word(i).kind(), kvs::ChunkKind::kFree);
  parts.operations.Release(op);
}

TEST_F(Parts, AllocatorAsksForRoomWhereThereIsNone) {
  const auto client = store_.NewClient();
  OperationParts parts(*common_, arena());
  struct Maker final : kvs::Room::Maker {
    void BeginRun(int64_t) override { ++asked; }
    int asked = 0;
  } maker;
  kvs::ClientMemory memory(shape_.chunk_bytes);
  memory.Renew();
  kvs::Chunks chunks(*common_, parts.home, memory);
  kvs::Room room;
  room.maker = &maker;
  kvs::OwnWork own_work;
  kvs::Allocator allocator(*common_, parts.home, memory, chunks, parts.operations, room, own_work);
  ASSERT_EQ(Run(parts.home.Glance()), Step::kOk);
  kvs::Operation& op = parts.operations.Take(*parts.operations.FreeOperation(), "key", {}, true);
  GlobalAddress address;
  EXPECT_FALSE(allocator.AllocateAtOnce(op, 64, 2, &address));
  ASSERT_EQ(Run(allocator.Allocate(op, 64, 2, &address)), Step::kOk);
  EXPECT_EQ(address.node, 2);
  EXPECT_TRUE(allocator.AllocateAtOnce(op, 64, 2, &address));  // from the span that was taken
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(allocator.SeekRoom(op), Step::kRestart);
    ASSERT_EQ(Run(parts.home.Read()), Step::kOk);
  }
  EXPECT_GE(maker.asked, 1);
  room.last_step = Step::kUnavailable;  // its run has ended like this
  ++room.ended;
  EXPECT_EQ(allocator.SeekRoom(op), Step::kFull);
  parts.operations.Release(op);
}

// ---- table

// The parts of a registered client that lie below the table.
class TableParts : public Parts {
 protected:
  void SetUp() override {
    Parts::SetUp();
    epochs_.emplace(*common_, kInFlight, arena());
    ASSERT_EQ(Run(epochs_->home.Glance()), Step::kOk);
    epochs_->memory.Renew();
    ASSERT_EQ(Run(epochs_->registrar.Register()), Step::kOk);
  }
  void TearDown() override {
    EXPECT_EQ(Run(epochs_->registrar.Unregister()), Step::kOk);
    EXPECT_TRUE(epochs_->operations.all_free());
  }
  kvs::Operation& TakeOperation(std::string_view key) {
    return epochs_->operations.Take(*epochs_->operations.FreeOperation(), key, shape_.hasher(key), true);
  }
  std::optional<kvs::Epochs> epochs_;
};

TEST_F(TableParts, DirectoryFindsTheTableOfAHash) {
  kvs::Directory directory(*common_, epochs_->cache);
  kvs::Operation& op = TakeOperation("key");
  kvs::TableRef table;
  ASSERT_EQ(Run(directory.Resolve(op, &table)), Step::kOk);
  EXPECT_EQ(table.index, op.hash.Suffix(1));
  EXPECT_EQ(table.entry, store_.DirectoryEntryOf(table.index));
  kvs::TableRef cached;
  ASSERT_TRUE(epochs_->cache.Lookup(op.hash, &cached));
  EXPECT_EQ(cached.address, table.address);
  epochs_->operations.Release(op);
}

TEST_F(TableParts, FinderSeesThatAKeyIsAbsent) {
  kvs::AddressCache addresses(stats_);
  kvs::Directory directory(*common_, epochs_->cache);
  kvs::Finder finder(*common_, epochs_->cache, addresses);
  kvs::Operation& op = TakeOperation("key");
  EXPECT_EQ(finder.BeginRead(op, op.batch), Step::kRestart);  // nothing is known of its table
  ASSERT_EQ(Run(directory.Resolve(op, &op.scan.table)), Step::kOk);
  Step step = finder.BeginRead(op, op.batch);
  const auto run = [&]() -> Task<Outcome> { co_return co_await op.batch.Run(); };
  while (step == Step::kRun) {
    ASSERT_EQ(Run(run()), Outcome::kOk);
    step = finder.GoOnReading(op, op.batch);
  }
  EXPECT_EQ(step, Step::kOk);
  EXPECT_LT(op.scan.val, 0);
  epochs_->operations.Release(op);
}

TEST_F(TableParts, WorkbenchLocksATableForOne) {
  kvs::Workbench workbench(*common_, epochs_->registrar, workbench_arena());
  kvs::Operation& op = TakeOperation("key");
  workbench.Begin(op.batch);
  EXPECT_TRUE(workbench.busy());
  kvs::Directory directory(*common_, epochs_->cache);
  kvs::TableRef table;
  ASSERT_EQ(Run(directory.ReadEntry(op.batch, &op.buffers->directory[0], 0, &table)), Step::kOk);
  uint64_t takeovers = 0;
  const uint64_t token = workbench.NewToken();
  EXPECT_EQ(Run(workbench.LockTable(table, token, &takeovers)), Step::kOk);
  const uint64_t another = token + 1;
  EXPECT_EQ(Run(workbench.LockTable(table, another, &takeovers)), Step::kRestart);
  clock_.Advance(200'000'000);  // whoever holds it has stopped
  EXPECT_EQ(Run(workbench.LockTable(table, another, &takeovers)), Step::kOk);
  EXPECT_EQ(takeovers, 1u);
  EXPECT_EQ(Run(workbench.UnlockTable(table, another)), Step::kOk);
  EXPECT_EQ(PoolWord(table.address.node, table.address.offset), 0u);
  workbench.End();
  epochs_->operations.Release(op);
}

TEST_F(TableParts, SplitterAndMergerUndoEachOther) {
  kvs::Directory directory(*common_, epochs_->cache);
  kvs::Workbench workbench(*common_, epochs_->registrar, workbench_arena());
  kvs::Merger merger(*epochs_, directory, workbench);
  kvs::Splitter splitter(*epochs_, directory, workbench, merger);
  kvs::Operation& op = TakeOperation("key");
  kvs::TableRef table;
  ASSERT_EQ(Run(directory.ReadEntry(op.batch, &op.buffers->directory[0], 1, &table)), Step::kOk);
  EXPECT_EQ(Run(splitter.Split(op, table)), Step::kOk);
  EXPECT_EQ(store_.DirectoryEntryOf(1).depth(), 2u);
  EXPECT_TRUE(store_.DirectoryEntryOf(3).has_subtable());
  uint32_t index = 3;
  EXPECT_EQ(Run(merger.TryMerge(op, &index)), Step::kOk);
  EXPECT_EQ(index, 1u);
  EXPECT_EQ(store_.DirectoryEntryOf(1).depth(), 1u);
  EXPECT_FALSE(store_.DirectoryEntryOf(3).present());
  EXPECT_FALSE(workbench.busy());
  epochs_->operations.Release(op);
}

TEST_F(TableParts, ReaderFindsWhatWriterWrote) {
  kvs::Table table(*epochs_, workbench_arena());
  table.combiner.SetSize(kInFlight);
  std::string value;
  EXPECT_EQ(Run(table.reader.Get("key", &value)), kvs::StatusCode::kNotFound);
  EXPECT_EQ(Run(table.writer.Write(kvs::WriteKind::kUpdate, "key", "none")), kvs::StatusCode::kNotFound);
  EXPECT_TRUE(Run(table.writer.Write(kvs::WriteKind::kInsert, "key", "value")).ok());
  EXPECT_EQ(Run(table.writer.Write(kvs::WriteKind::kInsert, "key", "another")), kvs::StatusCode::kExists);
  EXPECT_TRUE(Run(table.reader.Get("key", &value)).ok());
  EXPECT_EQ(value, "value");
  EXPECT_TRUE(Run(table.writer.Write(kvs::WriteKind::kDelete, "key", {})).ok());
  EXPECT_EQ(Run(table.reader.Get("key", &value)), kvs::StatusCode::kNotFound);
}

// ---- upkeep

TEST_F(TableParts, MaintenanceFreesWhatWasRetiredTwoEpochsAgo) {
  kvs::Table table(*epochs_, workbench_arena());
  kvs::Maintenance maintenance(*epochs_, table);
  const uint64_t epoch = PoolWord(1, kvs::kEpochOffset);
  epochs_->memory->Retire({.address = {2, shape_.chunk_bytes * 8}, .bytes = 64, .birth = epoch});
  EXPECT_EQ(Run(maintenance.MaintainNow(), *epochs_), Step::kOk);
  EXPECT_EQ(PoolWord(1, kvs::kEpochOffset), epoch + 1);
  EXPECT_EQ(epochs_->memory->reclaimed(), 0u);
  for (int i = 0; i < 2; ++i) EXPECT_EQ(Run(maintenance.MaintainNow(), *epochs_), Step::kOk);
  EXPECT_EQ(epochs_->memory->reclaimed(), 1u);
  EXPECT_GT(maintenance.announced_by_living(), epoch);
}

TEST_F(TableParts, CompactionMergesSparseTables) {
  kvs::Table table(*epochs_, workbench_arena());
  kvs::Maintenance maintenance(*epochs_, table);
  kvs::Compaction compaction(*epochs_, table, maintenance);
  kvs::CompactReport report;
  const auto maintain = [&] {
    clock_.Advance(100'000);
    epochs_->registration.ForgetNow();
    epochs_->operations.RunDelayed();
    maintenance.BeginIfDue(clock_.NowNs());
  };
  EXPECT_TRUE(Run(compaction.Compact({.thorough = true}, &report), maintain).ok());
  EXPECT_EQ(report.tables_merged, 1u);
  EXPECT_EQ(store_.DirectoryEntryOf(0).depth(), 0u);
  while (maintenance.running()) connections_->Poll(), kvs::RunQueue::OfThisThread().RunAll();
}

TEST_F(TableParts, DrainerEmptiesAMemoryNode) {
  kvs::Table table(*epochs_, workbench_arena());
  table.combiner.SetSize(kInFlight);
  kvs::Maintenance maintenance(*epochs_, table);
  kvs::Compaction compaction(*epochs_, table, maintenance);
  kvs::Drainer drainer(*epochs_, table, maintenance, compaction);
  const auto maintain = [&] {
    clock_.Advance(100'000);
    epochs_->registration.ForgetNow();
    epochs_->operations.RunDelayed();
    maintenance.BeginIfDue(clock_.NowNs());
  };
  kvs::DrainReport report;
  EXPECT_EQ(Run(drainer.Drain(1, {}, &report), maintain), kvs::StatusCode::kInvalidArgument);  // the home stays
  EXPECT_EQ(Run(drainer.Drain(3, {}, &report), maintain), kvs::StatusCode::kNotFound);
  EXPECT_TRUE(Run(drainer.Drain(2, {}, &report), maintain).ok());
  EXPECT_EQ(report.chunks_left, 0u);
  EXPECT_FALSE(epochs_->home.IsMember(2));
  EXPECT_TRUE(Run(drainer.Undrain(2), maintain).ok());
  while (maintenance.running()) connections_->Poll(), kvs::RunQueue::OfThisThread().RunAll();
}

}  // namespace
}  // namespace surgekv_test
