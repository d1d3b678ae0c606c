// The parts of kvs/epochs, without the rest of a client.
#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <set>
#include <vector>

#include "kvs/epochs/epochs.h"
#include "tests/kvs/parts_testing.h"

namespace surgekv_test {
namespace {

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

}  // namespace
}  // namespace surgekv_test
