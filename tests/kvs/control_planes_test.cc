// The store over the control planes that krcore is compared with: whose devices clients use, memory nodes that join
// later, clients that come and go, and clients that are killed.
#include <gtest/gtest.h>
#include <poll.h>
#include <unistd.h>

#include <cstring>
#include <set>
#include <string>
#include <vector>

#include "krcore/control_plane.h"
#include "krcore/node.h"
#include "kvs/layout/pool.h"
#include "kvs/memory/join.h"
#include "tests/kvs/child.h"
#include "tests/kvs/stress.h"
#include "tests/kvs/test_store.h"

namespace surgekv_test {
namespace {

class ControlPlane : public ::testing::TestWithParam<std::string> {
 protected:
  ControlPlane() { options_.control_plane = GetParam(); }
  bool IsKrcore() const { return GetParam() == "krcore"; }
  bool IsVerbs() const { return GetParam() == "verbs"; }

  static const kvs::HomeArea& HomeOf(const TestStore& store) {
    return *reinterpret_cast<const kvs::HomeArea*>(store.memory().data() + kvs::kHomeAreaOffset);
  }
  // Returns the owner words of all registered clients.
  static std::vector<uint64_t> Owners(const TestStore& store) {
    std::vector<uint64_t> owners;
    for (const kvs::ClientEntry& entry : HomeOf(store).clients)
      if (kvs::OwnerWord(entry.owner).held()) owners.push_back(entry.owner);
    return owners;
  }
  static bool IsDead(kvs::Store& store, uint64_t owner) {
    return store.node().IsConfirmedDead(kvs::OwnerWord(owner).node(), kvs::OwnerWord(owner).incarnation());
  }
  static uint64_t TakenBytes(kvs::Client& client) {
    uint64_t taken = 0;
    const kvs::TableStats stats = client.ReadTableStats().value();
    for (const auto& node : stats.memory_nodes) taken += node.taken_bytes;
    return taken;
  }

  TestStoreOptions options_{.groups = 16};
};

TEST_P(ControlPlane, ClientsMadeInAdvanceTakeNoTimeForQueuesAndMemoryAndServeAsAnyOther) {
  options_.memory_nodes = 2;
  TestStore store(options_);
  const kvs::ClientOptions lanes{.max_in_flight = 4};
  for (int i = 0; i < 2; ++i) ASSERT_TRUE(store.store().PrepareClient(lanes).ok());
  EXPECT_TRUE(Owners(store).empty());
  std::vector<std::unique_ptr<kvs::Client>> clients;
  clients.push_back(store.NewClient(8));  // asks for another kind
  for (int i = 0; i < 3; ++i) clients.push_back(store.NewClient(4));
  for (size_t i = 0; i < clients.size(); ++i) {
    const kvs::ClientTimes& times = clients[i]->times();
    const bool in_advance = !IsVerbs() && (i == 1 || i == 2);
    EXPECT_EQ(times.queues_ns + times.memory_ns == 0, in_advance) << i;
    EXPECT_GT(times.register_ns, 0);
    const std::string key = "key" + std::to_string(i);
    ASSERT_TRUE(clients[i]->Put(key, "value").ok());
    std::string value;
    EXPECT_TRUE(clients[(i + 1) % clients.size()]->Get(key, &value).ok());
  }
  EXPECT_EQ(store.store().PrepareClient({.max_in_flight = 0}).code(),
            IsVerbs() ? kvs::StatusCode::kOk : kvs::StatusCode::kInvalidArgument);
  ASSERT_TRUE(store.store().PrepareClient(lanes).ok());  // it is destroyed with the store, unused
}

TEST_P(ControlPlane, EachClientOfVerbsHasADeviceOfItsOwnAndTheOthersShareTheProcesss) {
  TestStore store(options_);
  auto one = store.NewClient(), two = store.NewClient();
  const std::vector<uint64_t> owners = Owners(store);
  ASSERT_EQ(owners.size(), 2u);
  const krcore::Node& node = store.store().node();
  const uint64_t process = kvs::OwnerWord().ClaimedBy(node.id(), node.incarnation()).word();  // of entries claimed once
  if (!IsVerbs()) {
    EXPECT_EQ(owners, std::vector<uint64_t>(2, process));
    return;
  }
  EXPECT_EQ(std::set<uint64_t>({owners[0], owners[1], process}).size(), 3u);
  for (const uint64_t owner : owners) EXPECT_FALSE(IsDead(store.store(), owner));
  one.reset();
  ASSERT_EQ(Owners(store).size(), 1u);
  const uint64_t left = Owners(store).front();
  EXPECT_FALSE(IsDead(store.store(), left));
  EXPECT_TRUE(IsDead(store.store(), left == owners[0] ? owners[1] : owners[0]));
  EXPECT_TRUE(two->Put("k", "v").ok());
}

TEST_P(ControlPlane, ConnectionsAreThoseOfThePlaneAndGoWithTheirClients) {
  options_.memory_nodes = 2;
  TestStore store(options_);
  auto one = store.NewClient(), two = store.NewClient();
  for (auto* client : {&one, &two}) {
    for (int i = 0; i < 50; ++i) ASSERT_TRUE((*client)->Put("key" + std::to_string(i), "v").ok());
  }
  EXPECT_EQ(store.Connections(), IsKrcore() ? 0u : IsVerbs() ? 4u : 2u);
  one.reset();
  EXPECT_EQ(store.Connections(), IsKrcore() ? 0u : 2u);
  EXPECT_TRUE(two->Put("k", "v").ok());
}

// The CQ of a verbs client was made for fewer memory nodes.
TEST_P(ControlPlane, MemoryNodesThatJoinLaterAreUsed) {
  options_.memory_bytes = size_t{8} << 20;
  TestStore store(options_);
  auto client = store.NewClient(512);
  const std::string value(4'000, 'v');
  for (int i = 0; i < 500; ++i) ASSERT_TRUE(client->Put("key" + std::to_string(i), value).ok()) << i;
  for (int i = 0; i < 4; ++i) store.AddMemoryNode();
  for (int i = 500; i < 6'000; ++i) {
    const kvs::Status put = client->Put("key" + std::to_string(i), value);
    ASSERT_TRUE(put.ok()) << i << ": " << put.ToString();
  }
  int used = 0;
  const kvs::TableStats stats = client->ReadTableStats().value();
  for (const auto& node : stats.memory_nodes) used += node.taken_bytes > (4u << 20) ? 1 : 0;
  EXPECT_GE(used, 4);
  for (int i = 0; i < 6'000; ++i) {
    std::string got;
    ASSERT_TRUE(client->Get("key" + std::to_string(i), &got).ok()) << i;
    ASSERT_TRUE(got == value) << i;
  }
}

TEST_P(ControlPlane, WhatAClientThatEndedHeldIsUsedByTheNext) {
  TestStore store(options_);
  const std::string value(1'000, 'v');
  uint64_t taken = 0;
  for (int round = 0; round < 40; ++round) {
    auto client = store.NewClient();
    for (int i = 0; i < 50; ++i) ASSERT_TRUE(client->Put("key" + std::to_string(i), value).ok());
    if (round == 10) taken = TakenBytes(*client);
    if (round == 39) {
      EXPECT_LE(TakenBytes(*client), taken + kvs::kDefaultChunkBytes);
    }
  }
}

TEST_P(ControlPlane, AnUnknownOneIsRefused) {
  TestStore store(options_);
  kvs::StoreOptions options;
  options.fabric = store.fabric();
  options.control_plane = GetParam() + "s";
  const auto opened = kvs::Store::Open(options);
  EXPECT_EQ(opened.status(), kvs::StatusCode::kInvalidArgument);
  EXPECT_NE(opened.status().message().find(options.control_plane), std::string_view::npos);
}

TEST_P(ControlPlane, AMemoryNodeWithoutAnAcceptorIsAStoreThatCannotBeReached) {
  options_.control_plane = "krcore";
  TestStore store(options_);
  kvs::StoreOptions options;
  options.fabric = store.fabric();
  options.control_plane = GetParam();
  options.open_timeout_ms = 100;
  const auto opened = kvs::Store::Open(options);
  if (IsKrcore()) {
    EXPECT_TRUE(opened.ok());
    return;
  }
  EXPECT_EQ(opened.status(), kvs::StatusCode::kUnavailable);
  EXPECT_NE(opened.status().message().find("does not accept RC connections"), std::string_view::npos);
}

// ---- processes

class KilledClient : public ControlPlane {
 protected:
  KilledClient() {
    options_.fabric = UniqueFabric();
    options_.operation_timeout_ms = 20'000;
  }
  ~KilledClient() override { (void)krcore::CleanStaleFabrics("sw", options_.fabric, true); }
};

TEST_P(KilledClient, IsFoundDeadAndWhatItHeldComesBack) {
  options_.memory_bytes = size_t{16} << 20;
  options_.chunk_bytes = uint64_t{64} << 10;
  TestStore store(options_);
  const std::string value(10'000, 'v');
  int ready[2];
  ASSERT_EQ(pipe(ready), 0);
  Child victim([&] {
    auto attached = TestStore::Attach(options_.fabric, options_);
    auto client = attached->NewClient().value();
    // 10 MB. In the end most of it is free blocks of this client.
    for (int i = 0; i < 1'000; ++i) (void)client->Put("key" + std::to_string(i), value);
    for (int i = 10; i < 1'000; ++i) (void)client->Delete("key" + std::to_string(i));
    if (write(ready[1], "", 1) != 1) _exit(1);
    for (;;) ::pause();
  });
  pollfd event{ready[0], POLLIN, 0};
  while (poll(&event, 1, 0) == 0 && !victim.Ended()) store.ServeConnections();
  ASSERT_FALSE(victim.Ended());
  EXPECT_EQ(store.Connections(), IsKrcore() ? 0u : 1u);
  ASSERT_EQ(Owners(store).size(), 1u);
  const uint64_t owner = Owners(store).front();
  EXPECT_FALSE(IsDead(store.store(), owner));
  victim.Kill();
  EXPECT_TRUE(IsDead(store.store(), owner));
  EXPECT_EQ(store.Connections(), GetParam() == "lite" ? 1u : 0u) << "of this process, if any";

  auto client = store.NewClient();
  const krcore::Deadline end = krcore::Deadline::After(*krcore::RealClock(), 60'000'000'000);
  while (client->stats().dead_clients_found == 0 && !end.Passed(*krcore::RealClock())) {
    ASSERT_TRUE(client->Put("key0", value).ok());
  }
  EXPECT_EQ(client->stats().dead_clients_found, 1u);
  EXPECT_EQ(Owners(store).size(), 1u);
  // Fill the whole memory again, and not only the 6 MB that the victim did not have.
  for (int i = 0; i < 1'000; ++i) {
    const kvs::Status put = client->Put("key" + std::to_string(i), value);
    ASSERT_TRUE(put.ok()) << i << ": " << put.ToString();
  }
  close(ready[0]);
  close(ready[1]);
}

// Each client is killed while it splits, in the middle of its posts, and its connections are removed.
TEST_P(KilledClient, AtWorkHarmsNobody) {
  TestStore store(options_);
  constexpr uint32_t kVictims = 4;
  StressOptions load;
  load.seed = 1;
  load.lanes = 8;
  load.operations = 30'000;
  load.filler_percent = 85;
  load.short_pause_every = 0;
  StressLogs logs(kVictims + 1, load.operations);
  for (uint32_t w = 0; w < kVictims; ++w) {
    Child victim([&] {
      auto attached = TestStore::Attach(options_.fabric, options_);
      (void)RunWorker(*attached, load, logs, w);
    });
    while (logs.log(w).splits.load() < w + 1 && !victim.Ended()) store.ServeConnections();
    victim.Kill();
    EXPECT_EQ(store.Connections(), 0u);
  }
  load.operations = 5'000;
  (void)RunWorker(store.store(), load, logs, kVictims);
  VerifyLogs(store.store(), load, logs);
}

TEST_P(KilledClient, WhileAMemoryNodeIsRestartedItsClientsGoOnAfterwards) {
  options_.groups = 2;  // many tables, so that both nodes have some
  // Node 1, the home, lives in this process. Node 2 lives in one that is killed and comes back with its memory.
  options_.chunk_bytes = uint64_t{64} << 10;
  TestStore store(options_);
  const auto run_second = [&](int ready) {
    krcore::NodeOptions open{.fabric = options_.fabric, .node = 2};
    auto node = krcore::Node::Open(open).value();
    krcore::RegionOptions region = kvs::PoolRegion(size_t{16} << 20);
    region.name = "pool";
    auto pool = node->CreateRegion(region).value();
    auto acceptor = krcore::Acceptor::Create(*node).value();
    (void)kvs::JoinStore(*node, *pool, kvs::HomeOptions{.chunk_bytes = options_.chunk_bytes},
                         krcore::Deadline::After(node->clock(), 10'000'000'000))
        .value();
    if (write(ready, "", 1) != 1) _exit(1);
    for (uint32_t idle = 0;;) {
      idle = acceptor->Serve() == 0 ? idle + 1 : 0;
      krcore::RealClock()->Relax(idle);
    }
  };
  int ready[2];
  char byte;
  ASSERT_EQ(pipe(ready), 0);
  auto second = std::make_unique<Child>([&] { run_second(ready[1]); });
  ASSERT_EQ(read(ready[0], &byte, 1), 1);

  auto client = store.NewClient();
  const auto key = [](int i) { return "key" + std::to_string(i); };
  const auto value_of = [](int i) { return std::to_string(i) + std::string(1'000, 'v'); };
  for (int i = 0; i < 300; ++i) ASSERT_TRUE(client->Put(key(i), value_of(i)).ok());
  second->Kill();
  const krcore::Deadline noticed = krcore::Deadline::After(*krcore::RealClock(), 60'000'000'000);
  int failed = 0;
  std::string value;
  for (int i = 0; failed == 0 && !noticed.Passed(*krcore::RealClock()); i = (i + 1) % 300) {
    failed += client->Get(key(i), &value).ok() ? 0 : 1;
  }
  failed = 0;
  for (int i = 0; i < 300; ++i) failed += client->Get(key(i), &value).ok() ? 0 : 1;
  EXPECT_GT(failed, 0) << "node 2 held something";
  EXPECT_LT(failed, 300) << "and so did node 1";
  second = std::make_unique<Child>([&] { run_second(ready[1]); });
  ASSERT_EQ(read(ready[0], &byte, 1), 1);
  const krcore::Deadline end = krcore::Deadline::After(*krcore::RealClock(), 60'000'000'000);
  for (int i = 0; i < 300; ++i) {
    kvs::Status got;
    while (!(got = client->Get(key(i), &value)).ok() && !end.Passed(*krcore::RealClock())) {
    }
    ASSERT_TRUE(got.ok()) << i << ": " << got.ToString();
    EXPECT_EQ(value, value_of(i));
    ASSERT_TRUE(client->Put(key(i), "new").ok());
  }
  client.reset();
  second->Kill();
  close(ready[0]);
  close(ready[1]);
}

INSTANTIATE_TEST_SUITE_P(ControlPlanes, ControlPlane, ::testing::Values("krcore", "verbs", "lite"),
                         [](const auto& info) { return info.param; });
INSTANTIATE_TEST_SUITE_P(ControlPlanes, KilledClient, ::testing::Values("krcore", "verbs", "lite"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace surgekv_test
