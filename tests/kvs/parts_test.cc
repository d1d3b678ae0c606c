// Each part of a client, made only of the parts that its constructor asks for: what it does without the rest.
#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include "krcore/control_plane.h"
#include "kvs/epochs/epochs.h"
#include "kvs/table/table.h"
#include "kvs/upkeep/upkeep.h"
#include "tests/kvs/given_back.h"
#include "tests/kvs/manual_clock.h"
#include "tests/kvs/test_store.h"

namespace surgekv_test {
namespace {

using kvs::ClientWord;
using kvs::GlobalAddress;
using kvs::Operation;
using kvs::StatusCode;
using kvs::Step;
using kvs::Task;

constexpr int64_t kLeaseNs = 1'000'000'000;
constexpr uint32_t kInFlight = 2;

void RunReady() { kvs::RunQueue::OfThisThread().RunAll(); }

// What all tests of parts share: a store of two memory nodes, whose table has two subtables.
class Parts : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(connections_.Open(512).ok());
    for (const krcore::NodeId memory_node : {1, 2}) ASSERT_TRUE(connections_.Reach(memory_node));
  }
  kvs::ArenaPart arena() { return {arena_->bytes().data(), arena_->lkey()}; }
  kvs::ArenaPart workbench_arena() { return arena().After(kvs::Epochs::ArenaBytes(kInFlight)); }

  // Polls until `ended()`, with `round` before each poll. If that never comes, the exception fails the test at once.
  template <typename Ended, typename Round = void (*)()>
  void PollUntil(Ended ended, Round round = RunReady) {
    for (int rounds = 0; !ended(); ++rounds) {
      if (rounds == 100'000) throw std::runtime_error("what the test waits for does not happen");
      round();
      connections_.Poll();
      RunReady();
    }
  }
  // Runs the task to its end.
  template <typename T>
  T Run(Task<T> task) {
    task.Start();
    PollUntil([&] { return task.done(); });
    return task.Take();
  }

  // Memory of the memory nodes; the home area is the first one's.
  uint64_t& PoolWord(GlobalAddress at) { return *reinterpret_cast<uint64_t*>(&store_.memory_of(at.node)[at.offset]); }
  kvs::ChunkWord Chunk(uint64_t chunk) { return kvs::ChunkWord(PoolWord({2, kvs::ChunkWordOffset(chunk)})); }
  kvs::HomeArea& Home() { return *reinterpret_cast<kvs::HomeArea*>(&store_.memory()[kvs::kHomeAreaOffset]); }
  kvs::OwnerWord Owner(uint32_t index) { return kvs::OwnerWord(Home().clients[index].owner); }
  ClientWord Word(uint32_t index) { return ClientWord(Home().clients[index].word); }
  kvs::MemberState StateOfTwo() { return kvs::MemberWord(Home().members[2]).state(); }

  // Another client, which has all parts, puts keys and gets them.
  void PutKeys(uint32_t count) {
    other_ = store_.NewClient();
    for (; keys_ < count; ++keys_) ASSERT_TRUE(other_->Put(Key(keys_), Value(keys_)).ok());
  }
  void CheckKeys() {
    std::string value;
    for (uint32_t i = 0; i < keys_; ++i) {
      EXPECT_TRUE(other_->Get(Key(i), &value).ok() && value == Value(i)) << Key(i);
    }
    CheckPools(store_);
  }

  ManualClock clock_;
  TestStore store_{{.groups = 2, .initial_depth = 1, .clock = &clock_, .memory_nodes = 2, .lease_ns = kLeaseNs}};
  std::unique_ptr<krcore::Node> node_ =
      krcore::OpenNode("krcore", {.rnic = "sw", .fabric = store_.fabric(), .clock = &clock_}).value();
  kvs::ClientStats stats_;
  std::minstd_rand random_{2};  // then the entries before and after this client's are in the part in use
  const kvs::StoreShape shape_{1, {2}, kvs::kDefaultChunkBytes, kLeaseNs, kvs::Hasher(kTestSeed), kLeaseNs};
  kvs::StoreState store_state_;
  kvs::Connections connections_{*node_, kLeaseNs, stats_};
  const size_t arena_bytes_ = kvs::Epochs::ArenaBytes(kInFlight) + kvs::Workbench::ArenaBytes(shape_.geometry);
  std::unique_ptr<krcore::Region> arena_ = node_->CreateRegion({.length = arena_bytes_}).value();
  kvs::Nonces nonces_{node_->id(), node_->incarnation(), 0};
  const kvs::Common common_{*node_, clock_, connections_, stats_, random_, shape_, store_state_, nonces_};
  std::unique_ptr<kvs::Client> other_;
  uint32_t keys_ = 0;
};

// ---- epochs

// What most parts of epochs are made of.
class EpochParts : public Parts {
 protected:
  EpochParts() { memory_.Renew(); }
  Operation& Take() { return operations_.Take(*operations_.FreeOperation(), "key", {}, true); }
  kvs::Home home_{common_, arena().After(kvs::Operations::ArenaBytes(kInFlight))};
  kvs::Registration registration_{clock_, kLeaseNs};
  kvs::Operations operations_{common_, home_, registration_, kInFlight, arena()};
  kvs::ClientMemory memory_{shape_.chunk_bytes};
};

TEST_F(EpochParts, HomeKnowsMembersAndClientsAsItLastReadThem) {
  Home().counters.clients_used = 16;
  EXPECT_EQ(Run(home_.Glance()), Step::kOk);
  EXPECT_TRUE(home_.words().hash_seed == kTestSeed);
  EXPECT_EQ(home_.members(), (std::vector<krcore::NodeId>{1, 2}));
  EXPECT_EQ(home_.TakeGlanced(), 16u);
  Home().counters.clients_used = 99;
  Home().counters.member_changes = 9;
  Home().clients[98].owner = 7;
  Home().members[2] = kvs::MemberWord(Home().members[2]).Become(kvs::MemberState::kDraining).word();
  EXPECT_EQ(Run(home_.Read()), Step::kOk);
  EXPECT_EQ(home_.read_in_round(), 1u);
  EXPECT_EQ(home_.member_changes_seen(), 9u);
  EXPECT_EQ(home_.words().epoch, Home().epoch);
  EXPECT_EQ(home_.clients_used(), 99u);
  EXPECT_EQ(home_.words().clients[98].owner, 7u);
  EXPECT_EQ(home_.members(), (std::vector<krcore::NodeId>{1}));
  EXPECT_TRUE(home_.IsDraining(2));
  EXPECT_FALSE(home_.IsDraining(1));
}

TEST_F(EpochParts, HomeForgetsWhoIsFullWhenChunksWereFreed) {
  home_.SawFreedChunks(1);
  home_.NoteFull(2);
  home_.SawFreedChunks(1);
  EXPECT_TRUE(home_.IsFull(2));
  home_.SawFreedChunks(2);
  EXPECT_FALSE(home_.IsFull(2));
}

TEST_F(EpochParts, HomeCountsInOneRoundTripUnlessOthersHaveCounted) {
  Home().counters.clients_used = 16;
  ASSERT_EQ(Run(home_.Glance()), Step::kOk);
  uint64_t& old = home_.words().cas;
  const auto count = [&](uint64_t offset, uint64_t by) {
    const uint64_t before = stats_.round_trips;
    EXPECT_EQ(Run(home_.Count(home_.batch(), offset, by, &old)), Step::kOk);
    return stats_.round_trips - before;
  };
  for (int i = 0; i < 3; ++i) EXPECT_EQ(count(kvs::kFreedChunksOffset, 7), 1u);
  EXPECT_EQ(Home().counters.freed_chunks, 21u);
  Home().counters.freed_chunks += 100;
  EXPECT_EQ(count(kvs::kFreedChunksOffset, 1), 2u);
  EXPECT_EQ(count(kvs::kFreedChunksOffset, 1), 1u);
  EXPECT_EQ(Home().counters.freed_chunks, 123u);
  Home().counters.freed_chunks += 100;
  ASSERT_EQ(Run(home_.Read()), Step::kOk);
  EXPECT_EQ(count(kvs::kFreedChunksOffset, 1), 1u);
  EXPECT_EQ(Home().counters.freed_chunks, 224u);
  EXPECT_EQ(count(kvs::kEvacuationsOffset, 1), 1u);
  EXPECT_EQ(Home().counters.evacuations, 1u);
}

TEST_F(EpochParts, CountersOfManyClientsLoseNothing) {
  constexpr uint64_t kEach = 50;
  kvs::Home other{common_, arena().After(kvs::Operations::ArenaBytes(kInFlight))};  // the same buffers, another batch
  const auto count = [](kvs::Home& home, uint64_t* old) -> Task<void> {
    for (uint64_t i = 0; i < kEach; ++i) {
      const Step counted = co_await home.Count(home.batch(), kvs::kRetiredTablesOffset, 1, old);
      EXPECT_EQ(counted, Step::kOk);
    }
  };
  Task<void> one = count(home_, &home_.words().old[0]), two = count(other, &home_.words().old[1]);
  for (Task<void>* task : {&one, &two}) task->Start();
  PollUntil([&] { return one.done() && two.done(); });
  EXPECT_EQ(Home().counters.retired_tables, 2 * kEach);
}

TEST_F(EpochParts, NoncesOfClientsDiffer) {
  std::set<uint64_t> words;
  for (uint64_t client = 0; client < 4; ++client) {
    for (const uint32_t incarnation : {1u, 2u}) {
      kvs::Nonces nonces(300, incarnation, client);
      for (int i = 0; i < 1'000; ++i) words.insert(kvs::Slot::Free(nonces.Next()).word());
    }
  }
  EXPECT_EQ(words.size(), 8'000u);
}

TEST_F(EpochParts, OperationsAreHandedToWhoeverHasWaitedLongest) {
  Operation &one = Take(), &two = Take();
  EXPECT_NE(one.buffers, two.buffers);
  EXPECT_EQ(operations_.FreeOperation(), nullptr);
  std::array<Operation*, 2> leased{};
  auto lease = [&](size_t i) -> Task<void> { leased[i] = &co_await operations_.LeaseOwnOperation(); };
  std::array<Task<void>, 2> waiting = {lease(0), lease(1)};
  for (Task<void>& task : waiting) task.Start();
  for (Operation* released : {&two, &one}) {
    operations_.Release(*released);
    RunReady();
    EXPECT_EQ(leased[0], &two);
    EXPECT_EQ(leased[1], released == &one ? &one : nullptr);
  }
  for (Operation* operation : leased) {
    EXPECT_FALSE(operations_.all_free());
    operations_.Release(*operation);
  }
  EXPECT_TRUE(operations_.all_free());
  EXPECT_EQ(stats_.operations, 2u);  // those of the client's own do not count
}

TEST_F(EpochParts, OperationsPinTheEpochInWhichTheOldestBegan) {
  home_.set_epoch(4);
  operations_.TakeMover(/*drains=*/false);
  home_.set_epoch(5);
  Operation& old = Take();
  home_.set_epoch(6);
  Operation& young = Take();
  home_.set_epoch(8);
  operations_.PinForMaintenance(3);
  EXPECT_EQ(operations_.OldestEpochInFlight(), 3u);
  operations_.PinForMaintenance(kvs::Operations::kNoPin);
  EXPECT_EQ(operations_.OldestEpochInFlight(), 4u);
  operations_.ReleaseMover();
  EXPECT_EQ(operations_.OldestEpochInFlight(), 5u);
  operations_.Release(old);
  EXPECT_EQ(operations_.OldestEpochInFlight(), 6u);
  operations_.Release(young);
  EXPECT_EQ(operations_.OldestEpochInFlight(), 8u);
}

TEST_F(EpochParts, OperationsThatWaitGoOnWhenTheTimeIsOver) {
  Operation& op = Take();
  op.again = kvs::Again::kRoom;
  home_.set_epoch(6);
  auto pause = [&]() -> Task<void> { co_await operations_.Pause(1'000); };
  auto back_off = [&]() -> Task<void> { co_await operations_.BackOff(op); };
  Task<void> pausing = pause(), backing_off = back_off();
  pausing.Start();
  backing_off.Start();
  for (const int64_t ns : {999, 1, 1'000'000}) {
    clock_.Advance(ns);
    registration_.ForgetNow();
    operations_.RunDelayed();
    RunReady();
    EXPECT_EQ(pausing.done(), ns != 999);
    EXPECT_EQ(backing_off.done(), ns == 1'000'000);
    EXPECT_EQ(op.epoch, ns == 1'000'000 ? 6u : 0u);  // in the end it holds nothing any more
  }
  EXPECT_EQ(stats_.restarts, 1u);
}

TEST_F(EpochParts, ClientMemoryKeepsEarlierRegistrationsApart) {
  kvs::Batch batch;
  batch.Attach(&connections_, 0);
  const kvs::Extent extent{.address = {1, shape_.chunk_bytes}, .bytes = 64};
  memory_.Of(batch).Free(extent);
  EXPECT_EQ(memory_->free_bytes(), 64u);
  memory_.RenewAfterExpulsion();
  connections_.Fence();
  memory_.Of(batch).Free(extent);
  EXPECT_EQ(memory_->free_bytes(), 0u);
}

TEST_F(EpochParts, RetiredTablesAreToldBeforeTheyWaitForTheirEpoch) {
  kvs::DirectoryCache cache;
  kvs::RetiredTables retired(common_, home_, cache, memory_);
  const GlobalAddress address{1, 4 * shape_.chunk_bytes};
  kvs::TableRef table{address, 0, kvs::DirectoryEntry::Make(address, 0, kvs::DirectoryState::kNormal, 1), 0};
  cache.Insert(table);
  retired.Add(table);
  EXPECT_FALSE(cache.Lookup({}, &table));
  EXPECT_EQ(memory_->retired(), 0u);
  Task<Step> report = retired.Report(home_.batch(), &home_.words().cas);
  report.Start();
  EXPECT_EQ(memory_->retired(), 0u);  // the counter has not been seen to move
  PollUntil([&] { return report.done(); });
  EXPECT_EQ(report.Take(), Step::kOk);
  EXPECT_EQ(Run(retired.Report(home_.batch(), &home_.words().cas)), Step::kOk);  // there is nothing left to tell
  EXPECT_EQ(Home().counters.retired_tables, 1u);
  ASSERT_EQ(memory_->retired(), 1u);
  memory_->Stamp(1, 1);
  memory_->Reclaim(2, {});
  EXPECT_TRUE(memory_->AllocateTable(1, &table.address));
  for (int i = 0; i < 2; ++i) retired.SawCounter(1);
  EXPECT_EQ(cache.Ticket(), 1u);  // all that the cache named may be used again from now on
}

class RegistrarParts : public EpochParts {
 protected:
  void SetUp() override {
    EpochParts::SetUp();
    connections_.pool().SetGate(&registration_);
    Home().epoch = 5;
    ASSERT_EQ(Run(registrar_.Register()), Step::kOk);
    index_ = registrar_.client_index();
  }
  // Renews the lease, which is over.
  void Renew() {
    EXPECT_FALSE(registrar_.CareForLease());
    size_t completions = 0;
    PollUntil([&] { return !registrar_.renewing(); }, [&] { registrar_.PollRenewal(&completions); });
    EXPECT_TRUE(registrar_.CareForLease());
    EXPECT_EQ(registration_.standing(), kvs::Registration::Standing::kAlive);
    EXPECT_EQ(registration_.word(), Word(index_));
    EXPECT_EQ(stats_.heartbeats, 1u);
  }
  // Looks at the clients that hold back the epoch `epoch`, while the lease lasts.
  void Observe(uint64_t epoch) {
    registration_.Beat(registration_.word(), clock_.NowNs());
    ASSERT_EQ(Run(home_.Read()), Step::kOk);
    Run(observer_.Observe(epoch - 1, epoch, false));
  }
  kvs::DirectoryCache cache_;
  kvs::RetiredTables retired_{common_, home_, cache_, memory_};
  kvs::OwnWork own_work_;
  kvs::Registrar registrar_{common_, home_, operations_, registration_, memory_, retired_, own_work_};
  kvs::Observer observer_{common_, home_, registrar_, own_work_};
  uint32_t index_ = 0;
};

TEST_F(RegistrarParts, RegistrarClaimsAnEntryAnnouncesInItAndGivesItBack) {
  EXPECT_EQ(registration_.standing(), kvs::Registration::Standing::kAlive);
  EXPECT_EQ(registration_.word().epoch(), 5u);
  EXPECT_EQ(Owner(index_), registrar_.entry().owner);
  EXPECT_TRUE(Owner(index_).held());
  EXPECT_EQ(Word(index_), registration_.word());
  EXPECT_FALSE(store_state_.held_entries.Hold(index_));
  ASSERT_EQ(Run(home_.Read()), Step::kOk);
  EXPECT_EQ(Run(registrar_.Announce(6)), Step::kOk);
  EXPECT_EQ(Run(registrar_.Announce(7)), Step::kRestart);  // the word has changed since it was read
  EXPECT_EQ(registration_.word().epoch(), 6u);
  EXPECT_EQ(Word(index_), registration_.word());
  EXPECT_EQ(stats_.heartbeats, 1u);
  EXPECT_EQ(Run(registrar_.Unregister()), Step::kOk);
  EXPECT_EQ(registration_.standing(), kvs::Registration::Standing::kNone);
  EXPECT_EQ(Owner(index_), registrar_.entry().owner.Released());
  EXPECT_TRUE(store_state_.held_entries.Hold(index_));
}

TEST_F(RegistrarParts, NoOwnerWordOfAnEntryComesBack) {
  std::set<uint64_t> words = {0};
  for (int i = 0; i < 100; ++i) {
    const uint32_t index = registrar_.client_index();
    EXPECT_TRUE(Owner(index).held());
    EXPECT_EQ(Owner(index).node(), node_->id());
    EXPECT_EQ(Owner(index).incarnation(), node_->incarnation());
    EXPECT_TRUE(words.insert(uint64_t{index} << 32 ^ Owner(index).word()).second) << i;
    ASSERT_EQ(Run(registrar_.Unregister()), Step::kOk);
    EXPECT_FALSE(Owner(index).held());
    EXPECT_TRUE(words.insert(uint64_t{index} << 32 ^ Owner(index).word()).second) << i;
    ASSERT_EQ(Run(registrar_.Register()), Step::kOk);
  }
}

// It needs no other look at the table then.
TEST_F(RegistrarParts, RegistrarClaimsAnEntryThatOthersHaveHadSinceItLooked) {
  ASSERT_EQ(Run(registrar_.Unregister()), Step::kOk);
  ASSERT_EQ(Run(home_.Glance()), Step::kOk);
  const uint32_t used = home_.clients_used();
  for (uint32_t i = 0; i < used; ++i) Home().clients[i].owner = Owner(i).ClaimedBy(300, 1).Released().word();
  const uint64_t before = stats_.round_trips;
  ASSERT_EQ(Run(registrar_.Register()), Step::kOk);
  EXPECT_EQ(stats_.round_trips - before, 4u);  // two for the claim, and two for the first heartbeat
  const uint32_t index = registrar_.client_index();
  EXPECT_LT(index, used);
  EXPECT_EQ(Owner(index), registrar_.entry().owner);
  EXPECT_EQ(Owner(index).node(), node_->id());
}

TEST_F(RegistrarParts, RegistrarRenewsALeaseThatIsOverAndVerbsWaitForThat) {
  const ClientWord word = registration_.word();
  clock_.Advance(kLeaseNs - 1);
  EXPECT_TRUE(registration_.MayPost());
  clock_.Advance(1);
  Task<Step> read = home_.Read();
  read.Start();
  connections_.Poll();
  Renew();
  EXPECT_EQ(registration_.word(), word.Beat(5));
  EXPECT_FALSE(read.done());
  PollUntil([&] { return read.done(); });
  EXPECT_EQ(read.Take(), Step::kOk);
}

TEST_F(RegistrarParts, RegistrarBeginsAnewAfterAnExpulsion) {
  memory_->Free({.address = {1, shape_.chunk_bytes}, .bytes = 64});
  home_.NoteFull(2);
  Operation& op = Take();
  const ClientWord expelled = registration_.word().Expelled();
  Home().clients[index_].word = expelled.word();
  Home().epoch = 7;
  ASSERT_EQ(Run(home_.Read()), Step::kOk);
  EXPECT_EQ(Run(registrar_.Announce(6)), Step::kRestart);
  EXPECT_EQ(registration_.standing(), kvs::Registration::Standing::kExpelled);
  EXPECT_FALSE(registration_.MayPost());
  EXPECT_EQ(stats_.fenced, 1u);
  EXPECT_TRUE(op.batch.Stale());
  EXPECT_EQ(memory_->free_bytes(), 0u);
  EXPECT_EQ(cache_.Ticket(), 1u);
  EXPECT_FALSE(home_.IsFull(2));
  Renew();
  EXPECT_EQ(registration_.word(), expelled.Beat(7).Beat(7));  // the second one holds the epoch back
  EXPECT_EQ(home_.epoch(), 7u);
  EXPECT_EQ(op.epoch, 7u);
}

TEST_F(RegistrarParts, ObserverExpelsAClientThatHasNotChangedItsEntryForOneAndAHalfLeases) {
  const uint32_t other = index_ + 1;
  Home().clients[other].owner = registrar_.entry().owner.word();
  for (int i = 0; i < 2; ++i) {  // it holds the epoch back, but changes its entry
    Home().clients[other].word = Word(other).Beat(5).word();
    Observe(6);
    clock_.Advance(kLeaseNs * 3 / 2);
    Observe(6);
    EXPECT_EQ(Word(other).state(), kvs::ClientState::kAlive);
  }
  clock_.Advance(1);
  Observe(5);  // it does not hold that one back
  EXPECT_EQ(Word(other).state(), kvs::ClientState::kAlive);
  Observe(6);
  EXPECT_EQ(Word(other).state(), kvs::ClientState::kExpelled);
  EXPECT_EQ(Word(index_).state(), kvs::ClientState::kAlive);
  EXPECT_EQ(stats_.expulsions, 1u);
}

TEST_F(RegistrarParts, ObserverFreesTheEntriesOfTheDead) {
  uint64_t &one = Home().clients[index_ - 1].owner, &two = Home().clients[index_ + 1].owner;
  one = two = registrar_.entry().owner.word() - 1;  // an earlier incarnation of this node
  Observe(1);
  clock_.Advance(kLeaseNs / 64);
  Observe(1);
  for (const uint64_t word : {one, two})
    EXPECT_EQ(word, kvs::OwnerWord(registrar_.entry().owner.word() - 1).Released().word());
  EXPECT_EQ(stats_.dead_clients_found, 2u);
  EXPECT_TRUE(own_work_.compaction_wanted);
}

TEST_F(EpochParts, ChunksAreTakenCutAndGivenBack) {
  kvs::Chunks chunks(common_, home_, memory_);
  Operation& op = Take();
  kvs::Span run, one, two;
  using Kind = kvs::ChunkKind;
  ASSERT_EQ(Run(chunks.TakeChunks(op, 2, Kind::kRun, 3, 3, &run)), Step::kOk);
  EXPECT_EQ(Chunk(run.chunk), kvs::ChunkWord::Make(Kind::kRun, 3, 0));
  EXPECT_EQ(Chunk(run.chunk + 2), kvs::ChunkWord::Make(Kind::kRunRest, 0, 0));
  EXPECT_EQ(stats_.chunks_taken, 3u);
  EXPECT_EQ(Run(chunks.TakeChunks(op, 2, Kind::kRun, 60, 60, &one)), Step::kFull);
  const kvs::Extent extent{.address = {2, run.chunk * shape_.chunk_bytes}, .bytes = 3 * shape_.chunk_bytes};
  EXPECT_EQ(Run(chunks.GiveBackRun(extent)), Step::kOk);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(Chunk(run.chunk + i), kvs::ChunkWord::Make(Kind::kFree, 0, 1));
  EXPECT_EQ(stats_.chunks_freed, 3u);
  EXPECT_EQ(Home().counters.freed_chunks, 3u);

  for (kvs::Span* span : {&one, &two}) ASSERT_EQ(Run(chunks.TakeSpan(op, 2, 64, span)), Step::kOk);
  EXPECT_EQ(two.chunk, one.chunk);
  EXPECT_EQ(two.begin, one.end);
  EXPECT_EQ(Chunk(one.chunk).cut_bytes(shape_.chunk_bytes), two.end);
  GlobalAddress table, next;
  for (GlobalAddress* cut : {&table, &next}) ASSERT_EQ(Run(chunks.CutTable(op, 2, cut)), Step::kOk);
  EXPECT_EQ(next.offset, table.offset + shape_.geometry.bytes());
  EXPECT_EQ(Chunk(table.offset / shape_.chunk_bytes), kvs::ChunkWord::Make(Kind::kTables, 2, 1));
}

TEST_F(EpochParts, AllocatorPrefersTheNodeThatIsAskedForAndAsksForRoomWhereThereIsNone) {
  struct Maker final : kvs::Room::Maker {
    void BeginRun(int64_t) override { ++asked; }
    int asked = 0;
  } maker;
  kvs::Chunks chunks(common_, home_, memory_);
  kvs::Room room{.maker = &maker};
  kvs::OwnWork own_work{.maintain_at_ns = 1};
  kvs::Allocator allocator(common_, home_, memory_, chunks, operations_, room, own_work);
  Home().counters.clients_used = 16;
  ASSERT_EQ(Run(home_.Glance()), Step::kOk);
  Operation& op = Take();
  GlobalAddress one, two;
  for (const krcore::NodeId node : {2, 2, 1}) {  // in the end the second node is full
    if (node == 1) home_.NoteFull(2);
    memory_.Renew();
    ASSERT_EQ(Run(allocator.Allocate(op, 64, 2, &one)), Step::kOk);
    EXPECT_EQ(one.node, node);
  }
  memory_->Free({.address = one, .bytes = 64});
  EXPECT_TRUE(allocator.AllocateAtOnce(op, 64, 1, &two));
  EXPECT_EQ(two, one);
  EXPECT_EQ(stats_.blocks_reused, 1u);

  for (const int asked : {0, 1, 2}) {  // not before the home was read
    EXPECT_EQ(allocator.SeekRoom(op), Step::kRestart);
    EXPECT_EQ(maker.asked, asked);
    ASSERT_EQ(Run(home_.Read()), Step::kOk);
  }
  EXPECT_EQ(own_work.maintain_at_ns, 0);
  room.running = 1;
  EXPECT_EQ(allocator.SeekRoom(op), Step::kRestart);
  EXPECT_EQ(maker.asked, 2);
  EXPECT_TRUE(room.waited_for);
  room = {.maker = &maker, .ended = 1, .last_step = Step::kUnavailable};  // the run has ended like this
  EXPECT_EQ(allocator.SeekRoom(op), Step::kFull);
  room.last_step = Step::kOk;
  room.full_until_ns = clock_.NowNs() + 1;  // it has found nothing to gain
  EXPECT_EQ(allocator.SeekRoom(op), Step::kFull);
}

// ---- table

// The parts of a registered client that lie below the table.
class TableParts : public Parts {
 protected:
  void SetUp() override {
    Parts::SetUp();
    ASSERT_EQ(Run(epochs_.home.Glance()), Step::kOk);
    epochs_.memory.Renew();
    connections_.pool().SetGate(&epochs_.registration);
    ASSERT_EQ(Run(epochs_.registrar.Register()), Step::kOk);
    ASSERT_EQ(epochs_.registration.standing(), kvs::Registration::Standing::kAlive);
    ASSERT_EQ(epochs_.registration.word().epoch(), Home().epoch);
  }
  void TearDown() override {
    if (HasFatalFailure()) return;  // a part that is gone may have stopped in the middle of something
    EXPECT_EQ(Run(epochs_.registrar.Unregister()), Step::kOk);
    EXPECT_TRUE(epochs_.operations.all_free());
  }
  Operation& TakeOperation(std::string_view key) {
    return epochs_.operations.Take(*epochs_.operations.FreeOperation(), key, shape_.hasher(key), true);
  }
  kvs::Epochs epochs_{common_, kInFlight, arena()};
};

TEST_F(TableParts, DirectoryFindsTheTableOfAHash) {
  kvs::Directory directory(common_, epochs_.cache);
  Operation& op = TakeOperation(Key(1));
  ASSERT_EQ(op.hash.Suffix(1), 1u);
  kvs::TableRef table, cached;
  kvs::DirectoryEntry parent;
  ASSERT_EQ(Run(directory.Resolve(op, &table, &parent)), Step::kOk);
  EXPECT_EQ(table.index, 1u);
  EXPECT_EQ(table.entry, store_.DirectoryEntryOf(1));
  EXPECT_EQ(table.address, table.entry.subtable());
  EXPECT_EQ(parent, store_.DirectoryEntryOf(0));
  EXPECT_GT(stats_.directory_reads, 1u);
  ASSERT_TRUE(epochs_.cache.Lookup(op.hash, &cached));
  for (int i = 0; i < 2; ++i) directory.NoteMerge(3);
  EXPECT_EQ(directory.TakeSeenMerge(), 3u);
  EXPECT_EQ(directory.TakeSeenMerge(), std::nullopt);
  epochs_.operations.Release(op);
}

TEST_F(TableParts, FinderFindsAKeyOrSeesThatItIsAbsent) {
  PutKeys(2);  // the first value is a large one
  kvs::AddressCache addresses(stats_);
  kvs::Directory directory(common_, epochs_.cache);
  kvs::Finder finder(common_, epochs_.cache, addresses);
  const auto go_on = [&](Operation& op) -> Task<Step> {
    const kvs::Outcome read = co_await op.batch.Run();
    if (read != kvs::Outcome::kOk) co_return Step::kUnavailable;
    co_return finder.GoOnReading(op, op.batch);
  };
  const std::array<std::string, 3> keys = {Key(0), Key(1), Key(2)};
  for (uint32_t i = 0; i < keys.size(); ++i) {
    Operation& op = TakeOperation(keys[i]);
    epochs_.cache.Clear();
    EXPECT_EQ(finder.BeginRead(op, op.batch), Step::kRestart);  // nothing is known of its table
    ASSERT_EQ(Run(directory.Resolve(op, &op.scan.table)), Step::kOk);
    Step step = finder.BeginRead(op, op.batch);
    while (step == Step::kRun) step = Run(go_on(op));
    EXPECT_EQ(step, Step::kOk);
    ASSERT_EQ(op.scan.val >= 0, i < 2);
    EXPECT_TRUE(i == 2 || op.scan.block.value() == Value(i));
    epochs_.operations.Release(op);
  }
  // A split moves a bucket of the key, which was found not to be there.
  Operation& op = TakeOperation(keys[2]);
  EXPECT_EQ(finder.BeginRead(op, op.batch), Step::kRun);
  EXPECT_EQ(Run(go_on(op)), Step::kRun);
  const uint64_t bucket = kvs::CombinedOffset(op.scan.places.place[1]);
  PoolWord(kvs::At(op.scan.table, bucket)) = kvs::BucketHeader(2, op.hash.Suffix(2) ^ 2, 1).word();
  EXPECT_EQ(Run(go_on(op)), Step::kRestart);
  EXPECT_EQ(finder.BeginRead(op, op.batch), Step::kRun);
  EXPECT_EQ(Run(go_on(op)), Step::kRestart);
  epochs_.operations.Release(op);
}

TEST_F(TableParts, WorkbenchLocksATableForOne) {
  kvs::Workbench workbench(common_, epochs_.registrar, workbench_arena());
  Operation& op = TakeOperation("key");
  workbench.Begin(op.batch);
  EXPECT_TRUE(workbench.busy());
  const GlobalAddress address = store_.DirectoryEntryOf(0).subtable();
  uint64_t takeovers = 0;
  const auto lock = [&](uint64_t token) { return Run(workbench.LockTable({address}, token, &takeovers)); };
  const auto unlock = [&](uint64_t token) { return Run(workbench.UnlockTable({address}, token)); };
  const auto locked_by = [&] { return PoolWord(address); };
  const uint64_t token = workbench.NewToken(), another = token + 1;
  EXPECT_EQ(token >> 32, epochs_.registrar.client_index() + 1);
  EXPECT_EQ(lock(token), Step::kOk);
  EXPECT_EQ(lock(another), Step::kRestart);
  clock_.Advance(99'999'999);
  EXPECT_EQ(lock(another), Step::kRestart);
  EXPECT_EQ(locked_by(), token);
  clock_.Advance(1);  // whoever holds it has stopped
  EXPECT_EQ(lock(another), Step::kOk);
  EXPECT_EQ(takeovers, 1u);
  EXPECT_EQ(unlock(token), Step::kOk);
  EXPECT_EQ(locked_by(), another);
  EXPECT_EQ(unlock(another), Step::kOk);
  EXPECT_EQ(locked_by(), 0u);
  workbench.End();
  EXPECT_FALSE(workbench.busy());
  bool in_background = false;
  auto look = [&]() -> Task<void> { co_return void(in_background = workbench.in_background()); };
  workbench.Background(look());
  EXPECT_TRUE(in_background && !workbench.in_background());
  epochs_.operations.Release(op);
}

TEST_F(TableParts, SplitterAndMergerUndoEachOther) {
  PutKeys(20);
  kvs::Directory directory(common_, epochs_.cache);
  kvs::Workbench workbench(common_, epochs_.registrar, workbench_arena());
  kvs::Merger merger(epochs_, directory, workbench);
  kvs::Splitter splitter(epochs_, directory, workbench, merger);
  Operation& op = TakeOperation("key");
  kvs::TableRef table;
  ASSERT_EQ(Run(directory.ReadEntry(op.batch, &op.buffers->directory[0], 1, &table)), Step::kOk);
  for (int i = 0; i < 2; ++i)
    EXPECT_EQ(Run(splitter.Split(op, table)), Step::kOk);  // the second time, it is split already
  EXPECT_EQ(store_.DirectoryEntryOf(3).subtable().node, 2);
  EXPECT_EQ(stats_.splits, 1u);
  EXPECT_EQ(stats_.slots_migrated, shape_.geometry.slots());
  CheckKeys();
  uint32_t index = 3;
  EXPECT_EQ(Run(merger.TryMerge(op, &index)), Step::kOk);
  EXPECT_EQ(index, 1u);
  EXPECT_FALSE(store_.DirectoryEntryOf(3).present());
  CheckKeys();
  EXPECT_EQ(Run(merger.TryMerge(op, &index)), Step::kRestart);  // the two tables that are left have too many keys
  EXPECT_EQ(stats_.merges, 1u);
  EXPECT_EQ(epochs_.memory->retired(), 3u);  // two tables and a record
  GlobalAddress spare;
  EXPECT_TRUE(epochs_.memory->AllocateTable(2, &spare));            // two were taken for the merge
  EXPECT_EQ(Chunk(spare.offset / shape_.chunk_bytes).count(), 3u);  // one was given back after the second split
  EXPECT_TRUE(kvs::BucketHeader(PoolWord(kvs::At(table, kvs::BucketOffset(0)))).closed());
  EXPECT_EQ(PoolWord(table.address), 0u);  // not locked
  EXPECT_FALSE(workbench.busy());
  epochs_.operations.Release(op);
}

TEST_F(TableParts, ReaderFindsWhatWriterWrote) {
  kvs::Table table(epochs_, workbench_arena());
  table.combiner.SetSize(kInFlight);
  std::string value;
  const auto get = [&] { return Run(table.reader.Get("key", &value)).code(); };
  auto write = [&](kvs::WriteKind kind, std::string_view to) {
    return Run(table.writer.Write(kind, "key", to)).code();
  };
  using enum kvs::WriteKind;
  EXPECT_EQ(get(), StatusCode::kNotFound);
  EXPECT_EQ(write(kUpdate, "none"), StatusCode::kNotFound);
  EXPECT_EQ(write(kDelete, {}), StatusCode::kNotFound);
  for (const std::string& next : {std::string("first"), std::string(100'000, 'x'), std::string("last")}) {
    EXPECT_EQ(write(next == "first" ? kInsert : kUpdate, next), StatusCode::kOk);
    EXPECT_EQ(write(kInsert, "another"), StatusCode::kExists);
    EXPECT_EQ(get(), StatusCode::kOk);
    EXPECT_EQ(value, next);
    CheckPools(store_);
  }
  EXPECT_EQ(write(kDelete, {}), StatusCode::kOk);
  EXPECT_EQ(get(), StatusCode::kNotFound);
  EXPECT_EQ(stats_.writes_done, 4u);
  EXPECT_EQ(stats_.blocks_retired, 3u);
  EXPECT_EQ(stats_.blocks_reused, 3u);
  EXPECT_EQ(epochs_.memory->retired(), 3u);
  PollUntil([&] { return !table.workbench.in_background(); });  // it may merge the tables, which have become empty
}

// What a slot of "key" was, as others see it.
class SlotWords : public TableParts {
 protected:
  void SetUp() override {
    TableParts::SetUp();
    table_.combiner.SetSize(kInFlight);
  }
  // Notes the words of all slots in this state, each as often as it comes. `kills`: it makes them FREE.
  void Look(kvs::SlotState state, bool kills = false) {
    for (uint32_t index = 0; index < 2; ++index) {
      for (uint32_t s = 0; s < shape_.geometry.slots(); ++s) {
        GlobalAddress at = store_.DirectoryEntryOf(index).subtable();
        at.offset += kvs::SlotOffset(s);
        const kvs::Slot slot(PoolWord(at));
        const bool unchanged = std::exchange(last_[at.offset], slot.word()) == slot.word();
        if (slot.state() != state || slot == kvs::Slot::Fresh() || unchanged) continue;
        words_.push_back(slot);
        if (kills) PoolWord(at) = kvs::Slot::Free(nonces_.Next()).word();
      }
    }
  }
  size_t Different() const {
    std::set<uint64_t> words;
    for (const kvs::Slot slot : words_) words.insert(slot.word());
    return words.size();
  }
  StatusCode Write(kvs::WriteKind kind, std::string_view value = {}) {
    return Run(table_.writer.Write(kind, "key", value)).code();
  }
  kvs::Table table_{epochs_, workbench_arena()};
  std::vector<kvs::Slot> words_;
  std::map<uint64_t, uint64_t> last_;  // of slots, by offset
};

TEST_F(SlotWords, OfAFreeOneDifferEachTime) {
  constexpr size_t kRounds = 50;
  PutKeys(20);  // so many that no tables are merged
  for (size_t i = 0; i < kRounds; ++i) {
    ASSERT_EQ(Write(kvs::WriteKind::kInsert, "value"), StatusCode::kOk);
    Look(kvs::SlotState::kFree);
    ASSERT_EQ(Write(kvs::WriteKind::kDelete), StatusCode::kOk);
    Look(kvs::SlotState::kFree);
    PollUntil([&] { return !table_.workbench.in_background(); });
  }
  CheckKeys();
  EXPECT_EQ(words_.size(), kRounds);
  EXPECT_EQ(Different(), kRounds);
}

// A tentative slot that others kill begins again with the same block, under another version, and after eight times with
// another block.
TEST_F(SlotWords, OfATentativeOneDifferEachTimeThatItBeginsAgain) {
  constexpr size_t kKills = 20;
  Task<kvs::Status> insert = table_.writer.Write(kvs::WriteKind::kInsert, "key", "value");
  insert.Start();
  PollUntil([&] { return insert.done(); },
            [&] {
              clock_.Advance(kLeaseNs / 1'000);
              epochs_.registration.ForgetNow();
              epochs_.registration.Beat(epochs_.registration.word(), clock_.NowNs());
              epochs_.operations.RunDelayed();
              Look(kvs::SlotState::kIns, words_.size() < kKills);
            });
  EXPECT_TRUE(insert.Take().ok());
  ASSERT_GT(words_.size(), kKills);
  EXPECT_EQ(Different(), words_.size());
  for (size_t i = 1; i < words_.size(); ++i) {
    EXPECT_EQ(words_[i].version(), i % kvs::kTentativeWords);
    const bool same_block = words_[i].block() == words_[i - 1].block();
    EXPECT_EQ(same_block, i % kvs::kTentativeWords != 0) << i;
  }
  EXPECT_EQ(epochs_.memory->retired(), words_.size() / kvs::kTentativeWords);
  std::string value;
  EXPECT_TRUE(Run(table_.reader.Get("key", &value)).ok());
  EXPECT_EQ(value, "value");
  CheckPools(store_);
}

// ---- upkeep

class UpkeepParts : public TableParts {
 protected:
  // Runs the task to its end, while time passes and this client and the other one do their maintenance.
  template <typename T>
  T RunMaintained(Task<T> task) {
    task.Start();
    PollUntil([&] { return task.done(); }, [&] { Maintain(); });
    PollUntil([&] { return !maintenance_.running(); });
    return task.Take();
  }
  void Maintain() {
    clock_.Advance(100'000);
    epochs_.registration.ForgetNow();
    epochs_.operations.RunDelayed();
    maintenance_.BeginIfDue(clock_.NowNs());
    if (other_) other_->Poll();
  }
  kvs::CompactReport report_;
  kvs::Table table_{epochs_, workbench_arena()};
  kvs::Maintenance maintenance_{epochs_, table_};
  kvs::Compaction compaction_{epochs_, table_, maintenance_};
  kvs::Drainer drainer_{epochs_, table_, maintenance_, compaction_};
};

TEST_F(UpkeepParts, MaintenanceFreesWhatNoClientCanKnowAnyMore) {
  const uint64_t epoch = Home().epoch;
  kvs::ClientEntry& other = Home().clients[epochs_.registrar.client_index() + 1];  // another client's
  other = {epochs_.registrar.entry().owner.word(), ClientWord::Make(kvs::ClientState::kAlive, 1, epoch).word()};
  // A table and a large block of two chunks are retired.
  epochs_.retired.Add({{1, 4 * shape_.chunk_bytes}});
  epochs_.memory->Retire({.address = {2, 8 * shape_.chunk_bytes}, .bytes = 2 * shape_.chunk_bytes, .birth = epoch});
  PoolWord({2, kvs::ChunkWordOffset(8)}) = kvs::ChunkWord::Make(kvs::ChunkKind::kRun, 2, 0).word();
  PoolWord({2, kvs::ChunkWordOffset(9)}) = kvs::ChunkWord::Make(kvs::ChunkKind::kRunRest, 0, 0).word();
  // After a round: the epoch, what this client has announced, what all living ones have, and how many chunks are free.
  const auto round = [&](uint64_t now, uint64_t announced, uint64_t by_living, uint64_t freed) {
    Run(maintenance_.MaintainNow());
    EXPECT_EQ(Home().epoch, now);
    EXPECT_EQ(Word(epochs_.registrar.client_index()).epoch(), announced);
    EXPECT_EQ(maintenance_.announced_by_living(), by_living);
    EXPECT_EQ(Home().counters.freed_chunks, freed);
  };
  round(epoch + 1, epoch, epoch, 0);
  for (int i = 0; i < 3; ++i) round(epoch + 1, epoch + 1, epoch, 0);  // the other one lags behind
  other.word = ClientWord(other.word).Beat(epoch + 1).word();
  round(epoch + 2, epoch + 1, epoch + 1, 2);
  other.word = ClientWord(other.word).Expelled().word();
  round(epoch + 3, epoch + 2, epoch + 2, 2);
  round(epoch + 4, epoch + 3, epoch + 3, 2);
  EXPECT_EQ(maintenance_.expelled_epochs(), (std::vector<uint64_t>{epoch + 1}));
  EXPECT_EQ(epochs_.home.freed_chunks_seen(), 2u);
  EXPECT_EQ(epochs_.cache.Ticket(), 1u);
  GlobalAddress table;
  EXPECT_TRUE(epochs_.memory->AllocateTable(1, &table));
  EXPECT_TRUE(maintenance_.BeginIfDue(clock_.NowNs()));
  EXPECT_FALSE(maintenance_.BeginIfDue(maintenance_.next_ns(false)));  // one at a time
  PollUntil([&] { return !maintenance_.running(); });
  EXPECT_FALSE(maintenance_.BeginIfDue(clock_.NowNs()));
  EXPECT_TRUE(maintenance_.BeginIfDue(maintenance_.next_ns(false)));
  PollUntil([&] { return !maintenance_.running(); });
}

TEST_F(UpkeepParts, CompactionMergesSparseTablesAndFreesSparseChunks) {
  PutKeys(12);
  kvs::CompactReport report;
  EXPECT_TRUE(RunMaintained(compaction_.Compact({.thorough = true}, &report)).ok());
  EXPECT_EQ(report.tables_merged, 1u);
  EXPECT_EQ(store_.DirectoryEntryOf(0).depth(), 0u);
  EXPECT_EQ(report.blocks_moved, keys_);
  EXPECT_GT(report.chunks_freed, 0u);
  EXPECT_EQ(stats_.chunks_freed, report.chunks_freed);
  EXPECT_EQ(Home().counters.freed_chunks, report.chunks_freed);
  EXPECT_GT(Home().counters.evacuations, 0u);
  EXPECT_EQ(stats_.compactions, 1u);
  EXPECT_EQ(epochs_.operations.OldestEpochInFlight(), epochs_.home.epoch());  // the mover pins nothing any more
  EXPECT_EQ(Home().mover, 0u);
  std::set<uint64_t> words;
  for (const uint64_t word : Home().evacuation) {
    EXPECT_TRUE(kvs::EvacuationWord(word).empty());
    EXPECT_TRUE(word == 0 || words.insert(word).second);
  }
  EXPECT_FALSE(words.empty()) << "a slot that was cleared has the word that it had before";
  CheckKeys();
}

// Each round takes slots that the one before has cleared.
TEST_F(UpkeepParts, NoWordOfAnEvacuationSlotComesBack) {
  std::set<uint64_t> words = {0};
  for (int round = 0; round < 3; ++round) {
    for (uint32_t i = 0; i < 8; ++i) PutKeys(keys_ + 4);
    uint64_t last = Home().evacuation[0];
    Task<kvs::Status> compaction = compaction_.Compact({.thorough = true}, &report_);
    const auto round_with_look = [&] {
      Maintain();
      if (std::exchange(last, Home().evacuation[0]) == Home().evacuation[0]) return;
      EXPECT_TRUE(words.insert(last).second) << "round " << round;
    };
    compaction.Start();
    PollUntil([&] { return compaction.done(); }, round_with_look);
    PollUntil([&] { return !maintenance_.running(); });
    EXPECT_TRUE(compaction.Take().ok());
    EXPECT_GT(report_.chunks_freed, 0u);
    EXPECT_TRUE(kvs::EvacuationWord(Home().evacuation[0]).empty());
  }
  EXPECT_GE(words.size(), 7u);
}

TEST_F(UpkeepParts, DrainerEmptiesAMemoryNodeAndTakesItBack) {
  PutKeys(100);  // so many that a table splits
  kvs::DrainReport report;
  const auto drain = [&](krcore::NodeId node) { return RunMaintained(drainer_.Drain(node, {}, &report)).code(); };
  const auto undrain = [&](krcore::NodeId node) { return RunMaintained(drainer_.Undrain(node)).code(); };
  EXPECT_EQ(drain(1), StatusCode::kInvalidArgument);  // the home stays
  EXPECT_EQ(drain(3), StatusCode::kNotFound);
  EXPECT_EQ(undrain(3), StatusCode::kNotFound);
  EXPECT_EQ(drain(2), StatusCode::kOk);
  EXPECT_EQ(StateOfTwo(), kvs::MemberState::kDrained);
  EXPECT_FALSE(epochs_.home.IsMember(2));
  EXPECT_TRUE(report.closed);
  EXPECT_EQ(report.chunks_left + report.tables_left, 0u);
  EXPECT_GT(report.tables_moved, 0u);
  EXPECT_GT(stats_.table_replacements, 0u);
  EXPECT_GT(report.blocks_moved, 0u);
  EXPECT_EQ(Home().mover, 0u);
  CheckKeys();
  EXPECT_EQ(undrain(2), StatusCode::kOk);
  EXPECT_EQ(StateOfTwo(), kvs::MemberState::kInUse);
  Run(maintenance_.MaintainNow());
  EXPECT_TRUE(epochs_.home.IsMember(2));
  CheckKeys();
}

}  // namespace
}  // namespace surgekv_test
