// Whoever looks after a store steps several of its parts in one thread, each with a client of its own. A client that
// begins or ends waits for a pending view. So no part may do that in a step: the view may wait for another part's
// client.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <string>

#include "kvs/client/client_core.h"
#include "kvs/client/store_core.h"
#include "kvs/layout/configuration.h"
#include "kvs/memory/views.h"
#include "tests/sim/stage.h"

namespace surgekv_sim {
namespace {

constexpr int64_t kLeaseNs = 1'000'000'000;
constexpr int64_t kShortNs = kLeaseNs / 10;  // of a step that does not wait for a view
constexpr StageOptions kMirrored{.replicas = 2, .breaks = true, .lease_ns = kLeaseNs};

kvs::Views& ViewsOf(Stage& stage, uint32_t c) { return *static_cast<kvs::ClientCore&>(stage.client(c)).views(); }

// The head of the home leaves in a view that stays pending as long as the client is not polled.
void BeginView(Stage& stage, uint32_t c) {
  const auto lose_head = [](kvs::Configuration& next) { return next.Remove(next.Find(next.home)->chain.front()); };
  ASSERT_TRUE(ViewsOf(stage, c).Change(lose_head).ok());
  ASSERT_FALSE(stage.memory_nodes().configuration().active);
}

// Does a step, and returns how long it took.
template <typename Step>
int64_t Time(Stage& stage, Step step) {
  const int64_t begun_ns = stage.world().now_ns();
  step();
  return stage.world().now_ns() - begun_ns;
}

ptrdiff_t Entries(const Stage& stage) {
  const kvs::HomeArea home = stage.Home();
  return std::ranges::count_if(home.clients,
                               [](const kvs::ClientEntry& entry) { return kvs::OwnerWord(entry.owner).held(); });
}

// The housekeeper wants to sweep: a client is dead.
kvs::Housekeeper& AddHousekeeperWithWork(Stage& stage) {
  const uint32_t dead = stage.AddClient();
  (void)stage.Do(dead, OpKind::kInsert, 1);
  stage.Kill(dead);
  return stage.AddHousekeeper();
}

TEST(PendingViews, AreNotWaitedForByAHousekeeperThatWantsToSweep) {
  Stage stage(kMirrored);
  const uint32_t client = stage.AddClient();
  kvs::Housekeeper& housekeeper = AddHousekeeperWithWork(stage);
  BeginView(stage, client);
  for (int i = 0; i < 40; ++i) {
    stage.Wait(kLeaseNs / 20);
    ASSERT_LT(Time(stage, [&] { (void)housekeeper.Step(); }), kShortNs);
  }
  EXPECT_EQ(housekeeper.stats().sweeps, 0u);
  ASSERT_TRUE(stage.PollUntil(
      client, [&] { return stage.memory_nodes().configuration().active; }, /*most=*/1'000'000));
  for (int i = 0; i < 10; ++i) {
    stage.Wait(kLeaseNs / 20);
    (void)housekeeper.Step();
  }
  EXPECT_EQ(housekeeper.stats().sweeps, 1u);
}

// Two clients, and a housekeeper that has begun to sweep.
struct Sweep {
  uint32_t client = 0, silent = 0;
  kvs::Housekeeper* housekeeper = nullptr;
  ptrdiff_t entries = 0;  // while it is a client
};
Sweep BeginSweep(Stage& stage) {
  Sweep sweep{.client = stage.AddClient(), .silent = stage.AddClient()};
  sweep.housekeeper = &AddHousekeeperWithWork(stage);
  for (int i = 0; i < 100 && sweep.housekeeper->stats().sweeps == 0; ++i) {
    stage.Wait(kLeaseNs / 20);
    stage.Poll(sweep.client, 100);
    stage.Poll(sweep.silent, 100);
    (void)sweep.housekeeper->Step();
  }
  sweep.entries = Entries(stage);
  return sweep;
}

// Goes on with the sweep, and so do the clients, until that is true. Returns after how many rounds.
int GoOn(Stage& stage, const Sweep& sweep, const std::function<bool(int)>& until) {
  int rounds = 0;
  for (; rounds < 100'000 && !until(rounds); ++rounds) {
    stage.Poll(sweep.client);
    stage.Poll(sweep.silent);
    (void)sweep.housekeeper->Step();
  }
  return rounds;
}

// Its client finds the dead one, and then ends.
bool HasEnded(const Stage& stage, const Sweep& sweep) { return Entries(stage) <= sweep.entries - 2; }

TEST(PendingViews, AreNotWaitedForByAHousekeeperThatHasSwept) {
  int last = 0;
  {
    Stage stage(kMirrored);
    const Sweep sweep = BeginSweep(stage);
    ASSERT_EQ(sweep.housekeeper->stats().sweeps, 1u);
    last = GoOn(stage, sweep, [&](int) { return HasEnded(stage, sweep); });
    ASSERT_TRUE(HasEnded(stage, sweep));
  }
  for (int before = 1; before <= 2; ++before) {
    Stage stage(kMirrored);
    const Sweep sweep = BeginSweep(stage);
    GoOn(stage, sweep, [&](int rounds) { return rounds == last - before; });
    ASSERT_FALSE(HasEnded(stage, sweep));
    BeginView(stage, sweep.client);
    stage.Poll(sweep.client, 3);  // the home shows the view
    for (int i = 0; i < 40'000 && !HasEnded(stage, sweep); ++i) {
      stage.Poll(sweep.client);
      stage.Wait(kLeaseNs / 10'000);
      ASSERT_LT(Time(stage, [&] { (void)sweep.housekeeper->Step(); }), kShortNs) << "step " << i;
    }
    EXPECT_TRUE(HasEnded(stage, sweep));
  }
}

// A client that could not give its entry back has ended, and the process has another one.
TEST(PendingViews, AreNotHeldUpByAnAbandonedEntry) {
  Stage stage(kMirrored);
  const uint32_t client = stage.AddClient();
  auto& store = static_cast<kvs::StoreCore&>(stage.store(client));
  const kvs::ClaimedEntry entry{7, kvs::OwnerWord().ClaimedBy(store.node().id(), store.node().incarnation())};
  for (const krcore::NodeId node : stage.memory_nodes().ChainOf(1)) {
    std::memcpy(&stage.memory_nodes().BytesOf(node)[kvs::EntryOffset(entry.index)], &entry.owner, sizeof(entry.owner));
  }
  ASSERT_TRUE(store.state().held_entries.Hold(entry.index));
  store.state().held_entries.Abandon(entry);
  BeginView(stage, client);
  const int64_t took_ns = Time(stage, [&] {
    stage.PollUntil(
        client, [&] { return stage.memory_nodes().configuration().active; }, /*most=*/1'000'000);
  });
  EXPECT_TRUE(stage.memory_nodes().configuration().active);
  EXPECT_LT(took_ns, kShortNs);
  ASSERT_TRUE(stage.PollUntil(
      client, [&] { return Entries(stage) == 1; }, /*most=*/1'000'000))
      << "not given back";
}

// Two clients, and a keeper whose replica has just joined, which the keeper does not know.
struct Joined {
  uint32_t client = 0, silent = 0;
};
Joined JoinReplica(Stage& stage) {
  const Joined joined{.client = stage.AddClient(), .silent = stage.AddClient()};
  const auto poll = [&] {
    stage.Poll(joined.client);
    stage.Poll(joined.silent);
  };
  stage.KillMemoryNode(stage.memory_nodes().ChainOf(1).front());
  const uint32_t insert = stage.Begin(joined.client, OpKind::kInsert, 1);
  for (int i = 0; i < 10'000 && !stage.Ended(insert); ++i) poll();
  (void)stage.Join();
  const auto has_joined = [&] {
    const kvs::Configuration now = stage.memory_nodes().configuration();
    return now.active && now.Find(1)->chain.size() == 2;
  };
  for (int i = 0; i < 400'000 && !has_joined(); ++i) {
    poll();
    stage.StepKeeper();
  }
  EXPECT_TRUE(has_joined());
  return joined;
}

bool IsMember(const Stage& stage) { return stage.keeper().state == kvs::ReplicaState::kMember; }

// Returns after how many steps the keeper knows that its replica has joined.
int StepsUntilMember() {
  Stage stage(kMirrored);
  (void)JoinReplica(stage);
  int steps = 0;
  for (; steps < 10'000 && !IsMember(stage); ++steps) stage.StepKeeper();
  EXPECT_TRUE(IsMember(stage));
  return steps;
}

TEST(PendingViews, AreNotWaitedForByAKeeperWhoseReplicaHasJoined) {
  const int last = StepsUntilMember();
  ASSERT_GT(last, 0);
  for (int before = 1; before <= std::min(last, 2); ++before) {
    Stage stage(kMirrored);
    const Joined joined = JoinReplica(stage);
    for (int i = 0; i < last - before; ++i) stage.StepKeeper();
    ASSERT_FALSE(IsMember(stage));
    BeginView(stage, joined.client);
    stage.Poll(joined.client, 3);  // the home shows the view
    stage.set_tempo(kLeaseNs / 10'000);
    for (int i = 0; i < 40'000 && !IsMember(stage); ++i) {
      ASSERT_LT(Time(stage, [&] { stage.StepKeeper(); }), kShortNs) << "step " << i;
    }
    EXPECT_TRUE(IsMember(stage));
    EXPECT_FALSE(stage.keeper().is_client);
  }
}

// The client that has proposed the view dies before any other knows of it. The only one that lives is the keeper's or
// the housekeeper's, which wants to end.
TEST(PendingViews, AreMadeActiveByAKeeperWhoseReplicaHasJoined) {
  const int last = StepsUntilMember();
  Stage stage(kMirrored);
  const Joined joined = JoinReplica(stage);
  for (int i = 0; i < last - 1; ++i) stage.StepKeeper();
  ASSERT_FALSE(IsMember(stage));
  BeginView(stage, joined.client);
  stage.Kill(joined.client);
  stage.Kill(joined.silent);
  stage.set_tempo(kLeaseNs / 10'000);
  for (int i = 0; i < 100'000 && !IsMember(stage); ++i) stage.StepKeeper();
  EXPECT_TRUE(IsMember(stage));
  EXPECT_TRUE(stage.memory_nodes().configuration().active);
}

TEST(PendingViews, AreMadeActiveByAHousekeeperThatHasSwept) {
  Stage stage(kMirrored);
  const Sweep sweep = BeginSweep(stage);
  ASSERT_EQ(sweep.housekeeper->stats().sweeps, 1u);
  BeginView(stage, sweep.client);
  stage.Kill(sweep.client);
  stage.Kill(sweep.silent);
  for (int i = 0; i < 100'000 && !stage.memory_nodes().configuration().active; ++i) {
    stage.Wait(kLeaseNs / 10'000);
    (void)sweep.housekeeper->Step();
  }
  EXPECT_TRUE(stage.memory_nodes().configuration().active);
}

// A client without a lease cannot end its CASes, and acknowledges no view in which a replica joins. If the joiner did
// not wait for its heartbeat, all would wait for 1.5 leases.
TEST(PendingViews, InWhichAReplicaJoinsComeWhenAllClientsHaveTheirLease) {
  for (const bool is_learner : {false, true}) {
    for (const uint32_t polls : {4u, 6u}) {  // until the CAS of the slow client is under way
      SCOPED_TRACE((is_learner ? "as the learner copies, poll " : "before the learner enters, poll ") +
                   std::to_string(polls));
      Stage stage({.replicas = 3, .breaks = true, .lease_ns = kLeaseNs});
      const uint32_t slow = stage.AddClient(), other = stage.AddClient();
      const auto poll = [&](int round) {
        stage.Poll(other);
        if (round % 100 == 0) stage.Poll(slow);
      };
      (void)stage.Do(slow, OpKind::kInsert, 1);
      stage.KillMemoryNode(stage.memory_nodes().ChainOf(1).front());
      (void)stage.Begin(other, OpKind::kUpdate, 1);
      for (int i = 0; i < 100'000 && ViewsOf(stage, slow).used().number == 1; ++i) poll(i);
      ASSERT_EQ(ViewsOf(stage, slow).used(), stage.memory_nodes().configuration());
      stage.Finish(other);

      (void)stage.Join();
      for (int i = 0; is_learner && i < 400'000 && stage.keeper().tables == 0; ++i) {
        stage.StepKeeper();
        poll(i);
      }
      const kvs::Configuration before = stage.memory_nodes().configuration();
      ASSERT_TRUE(before.active);
      ASSERT_EQ(before.Find(1)->learner.exists(), is_learner);
      (void)stage.Begin(slow, OpKind::kUpdate, 1);
      stage.Poll(slow, polls);
      stage.Wait(kLeaseNs * 5 / 4);  // all leases end

      const int64_t begun_ns = stage.world().now_ns();
      for (int i = 0; i < 400'000 && !IsMember(stage); ++i) {
        stage.StepKeeper();
        poll(i);
      }
      ASSERT_TRUE(IsMember(stage));
      EXPECT_EQ(stage.memory_nodes().configuration().number, before.number + (is_learner ? 1 : 2));
      EXPECT_LT(stage.world().now_ns() - begun_ns, kLeaseNs);
    }
  }
}

}  // namespace
}  // namespace surgekv_sim
