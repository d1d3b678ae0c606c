// Leases, expulsion and fencing on a clock that the test moves. A client that pauses for longer than its lease is
// expelled. What it may know is not reused until it has noticed, and its operations go on as if nothing had happened.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <iterator>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "kvs/client/store_core.h"
#include "kvs/epochs/memory_state.h"
#include "kvs/layout/block.h"
#include "kvs/layout/directory.h"
#include "kvs/layout/pool.h"
#include "tests/kvs/manual_clock.h"
#include "tests/kvs/pool_check.h"
#include "tests/kvs/test_store.h"

namespace surgekv_test {
namespace {

constexpr int64_t kLeaseNs = 1'000'000'000;

kvs::Task<void> PutOne(kvs::Client& client, std::string key, std::string value, kvs::Status* result) {
  *result = co_await client.PutAsync(key, value);
}
kvs::Task<void> InsertOne(kvs::Client& client, std::string key, std::string value, kvs::Status* result) {
  *result = co_await client.InsertAsync(key, value);
}
kvs::Task<void> DeleteOne(kvs::Client& client, std::string key, kvs::Status* result) {
  *result = co_await client.DeleteAsync(key);
}
kvs::Task<void> GetOne(kvs::Client& client, std::string key, std::string* value, kvs::Status* result) {
  *result = co_await client.GetAsync(key, value);
}

class Leases : public ::testing::TestWithParam<std::string> {
 protected:
  Leases()
      : store_({.groups = 16,
                .memory_bytes = size_t{16} << 20,
                .clock = &clock_,
                .lease_ns = kLeaseNs,
                .control_plane = GetParam()}) {}

  // Polls `polls` rounds, with a moment of time between them.
  void Poll(kvs::Client& client, int polls, int64_t ns = 600'000) {
    for (int i = 0; i < polls; ++i) {
      clock_.Advance(ns);
      for (int j = 0; j < 64; ++j) client.Poll();  // one of these polls looks at the clock
    }
  }
  // Lets `other`, which goes on, expel every client that does not.
  void Expel(kvs::Client& other) {
    const uint64_t before = other.stats().expulsions;
    for (int i = 0; i < 100 && other.stats().expulsions == before; ++i) Poll(other, 1, kLeaseNs / 20);
    EXPECT_EQ(other.stats().expulsions, before + 1);
  }
  void Finish(kvs::Client& client) { FinishAll(client, clock_, 100'000); }
  std::string MustGet(kvs::Client& client, const std::string& key) {
    std::string value;
    const kvs::Status got = client.Get(key, &value);
    EXPECT_TRUE(got.ok()) << key << ": " << got.ToString();
    return value;
  }
  kvs::HomeArea& Home() { return *reinterpret_cast<kvs::HomeArea*>(store_.memory().data() + kvs::kHomeAreaOffset); }
  // Returns the block with the key's value.
  std::span<const std::byte> BlockOf(const std::string& key) {
    const std::byte* const pool = store_.memory().data();
    for (uint32_t index = 0; index < 64; ++index) {
      uint64_t word;
      std::memcpy(&word, pool + kvs::kDirectoryOffset + index * 8, 8);
      const kvs::DirectoryEntry entry(word);
      if (!entry.present()) continue;
      for (uint32_t s = 0; s < kvs::SubtableGeometry{16}.slots(); ++s) {
        std::memcpy(&word, pool + entry.subtable().offset + kvs::SlotOffset(s), 8);
        const kvs::Slot slot(word);
        if (slot.state() != kvs::SlotState::kVal) continue;
        const kvs::BlockView block(pool + slot.block().offset);
        if (block.key() == key) return {pool + slot.block().offset, block.bytes()};
      }
    }
    ADD_FAILURE() << "no block of " << key;
    return {};
  }
  uint64_t Epoch() { return std::atomic_ref(Home().epoch).load(); }
  void CheckPool() {
    const PoolImage image{1, store_.memory()};
    const PoolReport report = CheckPools({&image, 1});
    EXPECT_TRUE(report.ok()) << report.ToString();
  }

  ManualClock clock_;
  TestStore store_;
};

TEST_P(Leases, AnIdleClientWhomNobodyExpelledRenewsItsLeaseAndGoesOn) {
  auto client = store_.NewClient();
  ASSERT_TRUE(client->Put("k", "v").ok());
  const uint64_t beats = client->stats().heartbeats;
  clock_.Advance(100 * kLeaseNs);
  EXPECT_EQ(MustGet(*client, "k"), "v");
  EXPECT_GT(client->stats().heartbeats, beats);
  EXPECT_EQ(client->stats().fenced, 0u);
  EXPECT_EQ(client->stats().fenced_restarts, 0u);
}

TEST_P(Leases, AClientThatIsPolledKeepsItsLeaseWhateverTheOthersDo) {
  auto idle = store_.NewClient(), busy = store_.NewClient();
  for (int i = 0; i < 400; ++i) {
    ASSERT_TRUE(busy->Put("k", std::to_string(i)).ok());
    Poll(*busy, 1, kLeaseNs / 40);
    for (int j = 0; j < 128; ++j) idle->Poll();
  }
  EXPECT_EQ(busy->stats().expulsions, 0u);
  EXPECT_EQ(idle->stats().fenced, 0u);
}

// The client behaves like an idle worker.
TEST_P(Leases, AClientThatIsLeftAloneForAsLongAsItSaysSleepsAndHoldsNobodyUp) {
  auto idle = store_.NewClient();
  ASSERT_TRUE(idle->Put("k", "v").ok());
  const uint64_t beats = idle->stats().heartbeats, epoch = Epoch();
  const int64_t end_ns = clock_.NowNs() + kLeaseNs;
  int sleeps = 0;
  for (int polls = 0; clock_.NowNs() < end_ns && polls < 100'000; ++polls) {
    if (idle->Poll() != 0) continue;
    const int64_t until_ns = idle->IdleUntil();
    if (until_ns <= clock_.NowNs()) continue;
    clock_.Advance(until_ns - clock_.NowNs());
    ++sleeps;
  }
  EXPECT_GE(clock_.NowNs(), end_ns) << "it did not sleep";
  EXPECT_LE(sleeps, 250);
  EXPECT_GE(idle->stats().heartbeats - beats, 100u);
  EXPECT_GE(Epoch() - epoch, 100u) << "others wait for it before they use memory again";
  EXPECT_EQ(idle->stats().fenced, 0u);

  kvs::Status put = kvs::StatusCode::kInternal;
  idle->Spawn(PutOne(*idle, "k", "w", &put));
  EXPECT_LE(idle->IdleUntil(), clock_.NowNs()) << "an operation is under way";
  Finish(*idle);
  EXPECT_TRUE(put.ok());
}

// At every place at which an operation can be interrupted, the client is expelled and wakes up.
TEST_P(Leases, TheOperationsOfAnExpelledClientGoOnAndNothingIsLostOrDoneTwice) {
  auto other = store_.NewClient();
  std::map<std::string, std::string> expected;
  for (int pause = 0; pause < 10; ++pause) {
    SCOPED_TRACE(testing::Message() << "expelled behind " << pause << " rounds");
    auto client = store_.NewClient();
    const std::string n = std::to_string(pause);
    ASSERT_TRUE(other->Put("updated" + n, "old").ok());
    ASSERT_TRUE(other->Put("deleted" + n, "old").ok());
    ASSERT_TRUE(other->Put("read" + n, "there").ok());
    ASSERT_TRUE(client->Put("warm" + n, "x").ok());
    kvs::Status put, insert, update, erase, get;
    std::string value;
    client->Spawn(PutOne(*client, "put" + n, "put", &put));
    client->Spawn(InsertOne(*client, "inserted" + n, "inserted", &insert));
    client->Spawn(PutOne(*client, "updated" + n, "updated", &update));
    client->Spawn(DeleteOne(*client, "deleted" + n, &erase));
    client->Spawn(GetOne(*client, "read" + n, &value, &get));
    for (int i = 0; i < pause; ++i) client->Poll();
    Expel(*other);
    Finish(*client);
    EXPECT_TRUE(put.ok()) << put.ToString();
    EXPECT_TRUE(insert.ok()) << insert.ToString();
    EXPECT_TRUE(update.ok()) << update.ToString();
    EXPECT_TRUE(erase.ok()) << erase.ToString();
    EXPECT_TRUE(get.ok()) << get.ToString();
    EXPECT_EQ(value, "there");
    Poll(*client, 4);
    EXPECT_EQ(client->stats().fenced, 1u);
    EXPECT_EQ(client->stats().fenced_restarts > 0, pause < 3) << client->stats().fenced_restarts;
    expected["put" + n] = "put";
    expected["inserted" + n] = "inserted";
    expected["updated" + n] = "updated";
    for (const auto& [key, content] : expected) ASSERT_EQ(MustGet(*other, key), content) << key;
    EXPECT_EQ(other->Get("deleted" + n, &value), kvs::StatusCode::kNotFound);
    // The new registration works like any other.
    ASSERT_TRUE(client->Put("put" + n, "again").ok());
    EXPECT_EQ(MustGet(*other, "put" + n), "again");
    expected["put" + n] = "again";
  }
  CheckPool();
}

TEST_P(Leases, WhatAnExpelledClientMayKnowIsNotReusedUntilItHasNoticedAndYoungerMemoryIs) {
  auto zombie = store_.NewClient(), other = store_.NewClient();
  ASSERT_TRUE(other->Put("k", "the first value").ok());
  ASSERT_TRUE(zombie->Put("warm", "x").ok());
  const std::span<const std::byte> block = BlockOf("k");
  const std::vector<std::byte> content(block.begin(), block.end());
  std::string value;
  kvs::Status got;
  zombie->Spawn(GetOne(*zombie, "k", &value, &got));
  zombie->Poll();  // it has read the slot
  ASSERT_EQ(zombie->spawned(), 1u);
  const auto update = [&](int count) {
    for (int i = 0; i < count; ++i) {
      ASSERT_TRUE(other->Put("k", "another value " + std::to_string(i % 10)).ok());
      if (i % 8 == 0) Poll(*other, 1);
    }
  };
  update(1);
  Expel(*other);
  const uint64_t epoch = Epoch(), reused = other->stats().blocks_reused;
  update(4'000);
  EXPECT_GT(Epoch(), epoch + 100) << "an expelled client holds the epoch back";
  EXPECT_GT(other->stats().blocks_reused, reused + 3'000);
  EXPECT_EQ(std::memcmp(block.data(), content.data(), content.size()), 0) << "a block that a zombie knows was reused";

  Finish(*zombie);
  EXPECT_TRUE(got.ok()) << got.ToString();
  EXPECT_EQ(value, MustGet(*other, "k")) << "it began again under a new registration";
  EXPECT_EQ(zombie->stats().fenced, 1u);
  for (int i = 0; i < 20; ++i) {
    Poll(*zombie, 1);
    Poll(*other, 1);
  }
  for (int i = 1000; i < 6000 && std::memcmp(block.data(), content.data(), content.size()) == 0; ++i) {
    ASSERT_TRUE(other->Put(std::to_string(i), "123456789012").ok());  // a block of the same size
  }
  EXPECT_NE(std::memcmp(block.data(), content.data(), content.size()), 0) << "pinned for ever";
}

TEST_P(Leases, AClientThatWakesUpPostsNothingBeforeItKnowsWhereItStands) {
  auto zombie = store_.NewClient(), other = store_.NewClient();
  ASSERT_TRUE(zombie->Put("warm", "x").ok());
  Expel(*other);
  Poll(*other, 20);
  ASSERT_TRUE(other->Put("k", "the value").ok());  // younger than anything that is pinned for the zombie
  std::string value;
  kvs::Status got;
  zombie->Spawn(GetOne(*zombie, "k", &value, &got));
  zombie->Poll();  // if this posted a READ, it would know a block that nobody pins for it
  // The block is replaced, and its memory used for other keys.
  ASSERT_TRUE(other->Put("k", "a longer value than before, of another size class").ok());
  Poll(*other, 20);
  for (int i = 1000; i < 1400; ++i) ASSERT_TRUE(other->Put(std::to_string(i), "12345").ok());
  Finish(*zombie);
  EXPECT_TRUE(got.ok()) << got.ToString();
  EXPECT_EQ(value, "a longer value than before, of another size class");
  EXPECT_EQ(zombie->stats().fenced, 1u);
}

// What is pinned for an expelled client is what was made up to one epoch after the one that it announced. So the epoch
// must not be further ahead when its first operation begins, however long the acknowledgement took.
TEST_P(Leases, AClientThatRegistersAnewHoldsTheEpochBackBeforeItsOperationsGoOn) {
  auto zombie = store_.NewClient(), other = store_.NewClient();
  ASSERT_TRUE(zombie->Put("warm", "x").ok());
  Expel(*other);
  const auto is_expelled = [](const kvs::ClientEntry& entry) {
    return kvs::OwnerWord(entry.owner).held() && kvs::ClientWord(entry.word).state() == kvs::ClientState::kExpelled;
  };
  const kvs::ClientEntry* const entry = std::find_if(std::begin(Home().clients), std::end(Home().clients), is_expelled);
  ASSERT_NE(entry, std::end(Home().clients));
  std::string value;
  kvs::Status got;
  zombie->Spawn(GetOne(*zombie, "warm", &value, &got));
  const uint64_t epoch = Epoch(), beats = zombie->stats().heartbeats;
  for (int i = 0; i < 1'000 && zombie->stats().heartbeats == beats; ++i) {
    Poll(*other, 4);
    zombie->Poll();
  }
  ASSERT_GT(zombie->stats().heartbeats, beats);
  EXPECT_GT(Epoch(), epoch + 8) << "an expelled client holds the epoch back";
  const kvs::ClientWord word(entry->word);
  EXPECT_EQ(word.state(), kvs::ClientState::kAlive);
  EXPECT_LE(Epoch(), word.epoch() + 1);
  Finish(*zombie);
  EXPECT_TRUE(got.ok()) << got.ToString();
}

TEST_P(Leases, AClientThatEndsAfterItWasExpelledLeavesItsEntryFree) {
  auto other = store_.NewClient();
  auto client = store_.NewClient();
  ASSERT_TRUE(client->Put("k", "v").ok());
  Expel(*other);
  client.reset();
  uint32_t used = 0;
  for (const kvs::ClientEntry& entry : Home().clients) used += kvs::OwnerWord(entry.owner).held() ? 1 : 0;
  EXPECT_EQ(used, 1u);
}

TEST_P(Leases, AnAnnouncementThatWasLostIsMadeAgain) {
  auto client = store_.NewClient(), other = store_.NewClient();
  ASSERT_TRUE(client->Put("k", "v").ok());
  for (int round = 0; round < 10; ++round) {
    Poll(*client, 2);
    Poll(*other, 2);
    // Make it look as if the latest heartbeats had never arrived.
    for (kvs::ClientEntry& entry : Home().clients) {
      if (!kvs::OwnerWord(entry.owner).held()) continue;
      const kvs::ClientWord word(entry.word);
      entry.word = kvs::ClientWord::Make(word.state(), word.heartbeats() - 1, word.epoch() - 1).word();
    }
    const uint64_t epoch = Epoch();
    for (int i = 0; i < 10; ++i) {
      Poll(*client, 1);
      Poll(*other, 1);
    }
    EXPECT_GT(Epoch(), epoch + 2) << "round " << round;
  }
}

// Time passes while nobody polls. If a pause comes right after a round that looked at the clock, the next doorbell must
// not rely on that look.
TEST_P(Leases, AGetBehindAPauseIsNotPosted) {
  auto other = store_.NewClient();
  ASSERT_TRUE(other->Put("k", "v").ok());
  for (int polls = 0; polls < 130; ++polls) {
    auto client = store_.NewClient();
    for (int i = 0; i < 2; ++i) MustGet(*client, "k");
    for (int i = 0; i < polls; ++i) client->Poll();
    Expel(*other);
    MustGet(*client, "k");
    EXPECT_NE(client->stats().fenced, 0u) << "it went through behind " << polls << " polls";
  }
}

// Only the Gets poll, and only as long as they wait.
TEST_P(Leases, GetsThatBlockAreEnoughToStayRegisteredAndNotToHoldTheEpochBack) {
  auto client = store_.NewClient();
  ASSERT_TRUE(client->Put("k", "v").ok());
  const uint64_t epoch = Epoch();
  // This takes half a lease in all, so the lease is not what makes them poll.
  for (int i = 0; i < 20'000; ++i) {
    ASSERT_EQ(MustGet(*client, "k"), "v");
    clock_.Advance(kLeaseNs / 40'000);
  }
  EXPECT_GT(Epoch(), epoch + 3);
}

TEST_P(Leases, PutsBehindAPauseChangeNothingBeforeThePollThatTellsOfIt) {
  for (int polls = 0; polls < 66; ++polls) {
    TestStore store({.groups = 16,
                     .memory_bytes = size_t{16} << 20,
                     .clock = &clock_,
                     .lease_ns = kLeaseNs,
                     .control_plane = GetParam()});
    auto other = store.NewClient(), client = store.NewClient(64);
    ASSERT_TRUE(client->Put("k", "v").ok()) << polls;
    for (int i = 0; i < polls; ++i) client->Poll();
    Expel(*other);
    const std::vector<std::byte> before(store.memory().begin(), store.memory().end());
    constexpr size_t kPuts = 24;  // more than an outbox holds
    std::array<kvs::Status, kPuts> results;
    for (size_t i = 0; i < kPuts; ++i) client->Spawn(PutOne(*client, "k" + std::to_string(i), "w", &results[i]));
    EXPECT_EQ(std::memcmp(before.data(), store.memory().data(), before.size()), 0) << "behind " << polls << " polls";
    Finish(*client);
  }
}

INSTANTIATE_TEST_SUITE_P(ControlPlanes, Leases, ::testing::Values("krcore", "verbs", "lite"),
                         [](const auto& info) { return info.param; });

// ---- the rule itself

// One trip for the home, its members and the first entries; one each for the claim, the epoch and the first heartbeat.
TEST(Registration, ANewClientTakesFourRoundTrips) {
  TestStore store({.groups = 16});
  const auto first = store.NewClient();  // the part of the client table that is in use begins to grow
  for (int i = 0; i < 3; ++i) EXPECT_EQ(store.NewClient()->stats().round_trips, 4u);
}

// A glance shows only the table's first entries, and another client may have claimed those that it showed as free.
TEST(Registration, BeyondTheFirstEntriesEachClientGetsOneOfItsOwn) {
  TestStore store({.groups = 16});
  std::vector<std::unique_ptr<kvs::Client>> clients;
  for (int i = 0; i < 100; ++i) clients.push_back(store.NewClient());
  const auto& home = *reinterpret_cast<const kvs::HomeArea*>(store.memory().data() + kvs::kHomeAreaOffset);
  const auto registered = [&home] {
    return std::count_if(std::begin(home.clients), std::end(home.clients),
                         [](const kvs::ClientEntry& entry) { return kvs::OwnerWord(entry.owner).held(); });
  };
  EXPECT_EQ(registered(), 100);
  clients.clear();
  EXPECT_EQ(registered(), 0);
}

// An entry that could not be given back may be free all the same, and may be seen as free.
TEST(Registration, EntriesThatWereAbandonedAreTakenByNobodyOfTheProcessBeforeTheyAreKnownToBeFree) {
  ManualClock clock;
  TestStore store({.clock = &clock});
  auto& core = static_cast<kvs::StoreCore&>(store.store());
  const kvs::OwnerWord owner = kvs::OwnerWord().ClaimedBy(core.node().id(), core.node().incarnation());
  auto* const entries = reinterpret_cast<kvs::HomeArea*>(store.memory().data() + kvs::kHomeAreaOffset)->clients;
  const auto mine = [&] {
    std::vector<uint32_t> indexes;
    for (uint32_t i = 0; i < kvs::kMaxClients; ++i) {
      if (entries[i].owner == owner.word()) indexes.push_back(i);
    }
    return indexes;
  };
  constexpr uint32_t kAbandoned = 16;
  for (uint32_t i = 0; i < kAbandoned; ++i) {
    ASSERT_TRUE(core.state().held_entries.Hold(i));
    core.state().held_entries.Abandon({i, owner});
    if (i % 2 == 0) entries[i].owner = owner.word();
  }
  auto client = store.NewClient();
  ASSERT_EQ(mine().size(), kAbandoned / 2 + 1);
  const uint32_t taken = mine().back();
  EXPECT_GE(taken, kAbandoned);
  for (uint32_t i = 0; i < 20 * kAbandoned; ++i) {
    clock.Advance(600'000);
    for (int j = 0; j < 64; ++j) client->Poll();
  }
  EXPECT_EQ(mine(), std::vector{taken});
  std::vector<uint32_t> free(kAbandoned);
  std::iota(free.begin(), free.end(), 0u);
  core.state().held_entries.RemoveFrom(&free);
  EXPECT_EQ(free.size(), kAbandoned) << "they were not given back";
  EXPECT_FALSE(core.state().held_entries.Hold(taken));
  client.reset();
  EXPECT_EQ(mine().size(), 0u);
  EXPECT_TRUE(core.state().held_entries.Hold(taken));
  core.state().held_entries.LetGo(taken);
}

// ... and a client that ends checks once more whether another one, which ended earlier, left its entry.
TEST(Registration, TheLastOfAProcessGivesBackWhatAnotherOneCouldNot) {
  TestStore store({});
  auto& core = static_cast<kvs::StoreCore&>(store.store());
  auto client = store.NewClient();
  auto* const entries = reinterpret_cast<kvs::HomeArea*>(store.memory().data() + kvs::kHomeAreaOffset)->clients;
  constexpr uint32_t kOther = kvs::kMaxClients - 1;  // beyond those that anybody looks at
  ASSERT_TRUE(core.state().held_entries.Hold(kOther));
  const kvs::OwnerWord owner = kvs::OwnerWord().ClaimedBy(core.node().id(), core.node().incarnation());
  entries[kOther].owner = owner.word();
  core.state().held_entries.Abandon({kOther, owner});
  client.reset();
  EXPECT_EQ(entries[kOther].owner, owner.Released().word());
}

TEST(Pins, AnExpelledClientPinsWhatItMayHaveSeenAndNothingElse) {
  kvs::MemoryState memory(kvs::kDefaultChunkBytes);
  const auto retire = [&memory](uint64_t offset, uint64_t birth, uint64_t stamp) {
    memory.Retire({.address = {1, offset}, .bytes = 64, .birth = birth});
    memory.Stamp(1, stamp);
  };
  const auto is_free = [&memory](uint64_t expected) {
    kvs::GlobalAddress block;
    bool reused = false;
    if (!memory.Allocate(1, 64, &block, &reused)) return expected == 0;
    return block.offset == expected && reused;
  };
  const uint64_t z[] = {10};
  retire(64, 3, 9);     // unlinked before the zombie's oldest operation began
  retire(128, 11, 20);  // made while the epoch may have been what the zombie saw
  retire(192, 12, 20);  // made later
  memory.Reclaim(15, z);
  EXPECT_TRUE(is_free(64));
  EXPECT_TRUE(is_free(0));
  memory.Reclaim(21, z);
  EXPECT_TRUE(is_free(192));
  EXPECT_TRUE(is_free(0));
  EXPECT_EQ(memory.pinned(), 1u);
  memory.Reclaim(100, z);
  EXPECT_TRUE(is_free(0));
  memory.Reclaim(100, {});
  EXPECT_TRUE(is_free(128));
  EXPECT_EQ(memory.pinned(), 0u);
  // A subtable is held back, whoever made it and whenever.
  memory.Retire({.address = {1, 4096}, .bytes = 448, .is_table = true});
  memory.Stamp(1, 20);
  memory.Reclaim(100, z);
  kvs::GlobalAddress table;
  EXPECT_FALSE(memory.AllocateTable(1, &table));
  memory.Reclaim(100, {});
  EXPECT_TRUE(memory.AllocateTable(1, &table));
}

}  // namespace
}  // namespace surgekv_test
