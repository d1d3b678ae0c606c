// Several metadata servers: which one is asked, which one catches up, and what is lost when one dies.
#include <functional>
#include <thread>

#include "krcore/peers/peer.h"
#include "tests/krcore/meta_fixture.h"

namespace krcore::test {
namespace {

// A device at which something happens after the n-th reading of an announcement.
class HookedDevice final : public rnic::Device {
 public:
  explicit HookedDevice(std::unique_ptr<rnic::Device> device) : device_(std::move(device)) {}
  // One look at all servers takes 2 kMaxServers readings.
  void After(uint32_t readings, std::function<void()> hook) {
    readings_ = readings;
    hook_ = std::move(hook);
  }

  const rnic::Caps& caps() const override { return device_->caps(); }
  const rnic::DeviceAddress& address() const override { return device_->address(); }
  Result<std::unique_ptr<rnic::Pd>> CreatePd() override { return device_->CreatePd(); }
  Result<std::unique_ptr<rnic::Cq>> CreateCq(uint32_t depth) override { return device_->CreateCq(depth); }
  Result<std::unique_ptr<rnic::Memory>> AllocMemory(size_t length, const rnic::AllocOptions& options) override {
    return device_->AllocMemory(length, options);
  }
  Result<std::unique_ptr<rnic::AddressHandle>> CreateAddressHandle(const rnic::DeviceAddress& address) override {
    return device_->CreateAddressHandle(address);
  }
  rnic::PeerState QueryPeer(const rnic::DeviceAddress& address, Deadline deadline) override {
    return device_->QueryPeer(address, deadline);
  }
  // Keeps no list of devices.
  rnic::PeerState QueryIncarnation(uint32_t, Deadline) override { return rnic::PeerState::kUnreachable; }
  Status PublishRecord(const std::string& name, std::span<const std::byte> value, Deadline deadline) override {
    return device_->PublishRecord(name, value, deadline);
  }
  Result<std::vector<std::byte>> LookupRecord(const std::string& name, Deadline deadline) override {
    auto value = device_->LookupRecord(name, deadline);
    if (readings_ != 0 && --readings_ == 0) hook_();
    return value;
  }

 private:
  std::unique_ptr<rnic::Device> device_;
  uint32_t readings_ = 0;
  std::function<void()> hook_;
};

class MetaServers : public MetaTable {
 protected:
  // Adds one more server, like Host. Numbers count from 0, as announced.
  Node& AddServer(uint32_t capacity = 64) {
    servers_.push_back(OpenNode(fabric_, static_cast<NodeId>(10 + servers_.size())));
    const Status hosted = servers_.back()->HostMetaServer(capacity);
    EXPECT_TRUE(hosted.ok()) << hosted.ToString();
    return *servers_.back();
  }
  Party Join() { return Party::Join(fabric_, ClockOf(fabric_)); }
  Party JoinHooked(HookedDevice** device) {
    Party party = Party::Join(fabric_, kSimulated ? ClockOf(fabric_) : fake_clock_);
    auto hooked = std::make_unique<HookedDevice>(std::move(party.device));
    *device = hooked.get();
    party.device = std::move(hooked);
    party.Rename(party.published_as);
    return party;
  }
  peers::Bootstrap Info(Party& party, uint32_t index) {
    peers::Bootstrap info;
    const auto bytes = party.device->LookupRecord(peers::BootstrapName(index)).value();
    std::memcpy(&info, bytes.data(), sizeof(info));
    return info;
  }
  std::vector<std::unique_ptr<Node>> servers_;
};

TEST_F(MetaServers, APublicationIsAtAllOfThemWhenItReturns) {
  for (int i = 0; i < 3; ++i) AddServer();
  Party party = Join();
  ASSERT_OK(party.PublishNode({.dc_key = 5}, Soon()));
  ASSERT_OK(party.PublishNode({.dc_key = 6}, Soon()));
  for (uint32_t i = 0; i < 3; ++i) {
    const Record* record = Find(*party.device, Key::Node(party.published_as), i);
    ASSERT_NE(record, nullptr) << "server " << i;
    EXPECT_TRUE(peers::ChecksumMatches(*record));
    EXPECT_EQ(record->node().dc_key, 6u);
    EXPECT_EQ(record->sequence, 2u);
  }
  party.client->RemoveAll(Soon());
  for (uint32_t i = 0; i < 3; ++i) EXPECT_EQ(Find(*party.device, Key::Node(party.published_as), i), nullptr);
}

TEST_F(MetaServers, NodesSpreadOverThemAndAskTheirOwnFirst) {
  for (int i = 0; i < 2; ++i) AddServer();
  Party party = Join();
  auto list = peers::ReadServerList(*party.device, {}).value();
  EXPECT_EQ(list.NearestFirst(100)[0]->id(), servers_[0]->incarnation());
  EXPECT_EQ(list.NearestFirst(101)[0]->id(), servers_[1]->incarnation());
  EXPECT_EQ(list.NearestFirst(10)[0]->id(), servers_[0]->incarnation());
  EXPECT_EQ(list.NearestFirst(11)[0]->id(), servers_[1]->incarnation());
}

TEST_F(MetaServers, AnAddedOneHasCaughtUpWhenItServes) {
  AddServer(512);
  Party party = Join();
  std::vector<Party> nodes;
  for (int i = 0; i < 50; ++i) {
    nodes.push_back(Join());
    ASSERT_OK(nodes.back().PublishNode({.dc_key = nodes.back().published_as}, Soon()));
    const Key service = Key::Service("s" + std::to_string(i));
    ASSERT_OK(nodes.back().client->Publish(service, Filled(std::byte(i)), Soon()));
  }
  nodes[7].client->RemoveAll(Soon());
  AddServer(1000);  // of another size, so every record lies elsewhere
  servers_[0].reset();
  Party reader = Join();
  for (int i = 0; i < 50; ++i) {
    const auto node = reader.client->Lookup(Key::Node(nodes[i].published_as), Soon());
    const auto service = reader.client->Lookup(Key::Service("s" + std::to_string(i)), Soon());
    if (i == 7) {
      EXPECT_EQ(node.status().code(), StatusCode::kNotFound);
      EXPECT_EQ(service.status().code(), StatusCode::kNotFound);
      continue;
    }
    ASSERT_TRUE(node.ok()) << node.status().ToString();
    EXPECT_EQ(node->node().dc_key, nodes[i].published_as);
    ASSERT_TRUE(service.ok()) << service.status().ToString();
    EXPECT_EQ(service->value[0], std::byte(i));
  }
  // What is published again goes where the copy is.
  ASSERT_OK(nodes[3].PublishNode({.dc_key = 4711}, Soon()));
  EXPECT_EQ(reader.client->Lookup(Key::Node(nodes[3].published_as), Soon())->node().dc_key, 4711u);
  EXPECT_NE(Find(*reader.device, Key::Node(nodes[3].published_as), 1), nullptr);
}

TEST_F(MetaServers, AnAddedOneThatIsTooSmallIsRefusedAndInNobodysWay) {
  AddServer(256);
  std::vector<Party> nodes;
  for (int i = 0; i < 100; ++i) {
    nodes.push_back(Join());
    ASSERT_OK(nodes.back().PublishNode({}, Soon()));
  }
  auto small = OpenNode(fabric_, 50);
  EXPECT_EQ(small->HostMetaServer(1).code(), StatusCode::kOutOfMemory);
  ASSERT_OK(nodes[0].PublishNode({}, Soon()));
  EXPECT_TRUE(small->HostMetaServer(256).ok()) << "it may be asked again";
}

// While a server catches up, no node is told that its publication is complete, and no node is sent to that server.
TEST_F(MetaServers, WhileOneCatchesUpPublicationsWaitAndLookupsGoElsewhere) {
  AddServer();
  Party reader = Join();
  Party early = Join();
  ASSERT_OK(early.PublishNode({.dc_key = 1}, Soon()));
  // A server as it is in the middle of catching up.
  Party half = Join();
  peers::Bootstrap info = Info(half, 0);
  info.state = peers::ServerState::kCatchingUp;
  info.serial = 2;
  info.address = half.device->address();
  auto memory = half.device->AllocMemory(info.geometry.bytes(), {}).value();
  auto mr = half.pd->RegisterMemory(memory->bytes().data(), memory->bytes().size(), kLocalWrite | kAllRights).value();
  auto target = peers::CreateTarget(*half.pd, info.address.incarnation).value();
  info.table_addr = reinterpret_cast<uint64_t>(memory->bytes().data());
  info.table_rkey = mr->rkey();
  info.dct_num = target->num();
  info.dc_key = target->dc_key();
  ASSERT_OK(half.device->PublishRecord(peers::BootstrapName(1), std::as_bytes(std::span(&info, 1))));
  const Deadline soon = Deadline::After(ClockOf(fabric_), kSecondNs / 100);
  EXPECT_EQ(early.PublishNode({.dc_key = 2}, soon).code(), StatusCode::kTimeout);
  EXPECT_TRUE(reader.client->Lookup(Key::Node(early.published_as), Soon()).ok());
  for (const std::byte b : memory->bytes()) ASSERT_EQ(b, std::byte{0}) << "it copies still";
  // It dies; the nodes that waited go on.
  half.client.reset();
  target.reset();
  mr.reset();
  memory.reset();
  half.pd.reset();
  half.device.reset();
  ASSERT_OK(early.PublishNode({.dc_key = 3}, Soon()));
  EXPECT_EQ(reader.client->Lookup(Key::Node(early.published_as), Soon())->node().dc_key, 3u);
}

TEST_F(MetaServers, ATornRecordIsReadAtAnotherServer) {
  for (int i = 0; i < 2; ++i) AddServer();
  Party party = Join();
  ASSERT_OK(party.PublishNode({.dc_key = 8}, Soon()));
  for (uint32_t torn = 0; torn < 2; ++torn) {
    Record* const record = Find(*party.device, Key::Node(party.published_as), torn);
    ASSERT_NE(record, nullptr);
    record->value[0] ^= std::byte{1};
    for (int i = 0; i < 2; ++i) {  // two readers, each nearer to another one
      Party reader = Join();
      const auto found = reader.client->Lookup(Key::Node(party.published_as), Soon());
      ASSERT_TRUE(found.ok()) << found.status().ToString();
      EXPECT_EQ(found->node().dc_key, 8u);
    }
    record->value[0] ^= std::byte{1};
  }
}

// A node comes back under its id, and its publication has reached one of two servers.
TEST_F(MetaServers, TheRecordOfADeadIncarnationIsNotUsedWhereAnotherServerHasItsSuccessor) {
  for (int i = 0; i < 2; ++i) AddServer();
  auto first = OpenNode(fabric_, 77);
  ASSERT_OK(first->Publish(Soon()));
  Party observer = Join();
  std::vector<Record> old;
  for (uint32_t i = 0; i < 2; ++i) old.push_back(*Find(*observer.device, Key::Node(77), i));
  first.reset();
  auto second = OpenNode(fabric_, 77);
  ASSERT_OK(second->Publish(Soon()));
  for (uint32_t stale = 0; stale < 2; ++stale) {
    Record* const record = Find(*observer.device, Key::Node(77), stale);
    const Record current = *record;
    *record = old[stale];
    for (int i = 0; i < 2; ++i) {
      Party reader = Join();
      const auto found = reader.client->Lookup(Key::Node(77), Soon());
      ASSERT_TRUE(found.ok()) << found.status().ToString();
      EXPECT_EQ(found->address().incarnation, second->incarnation());
    }
    *record = current;
  }
  second.reset();
}

TEST_F(MetaServers, AServicesClaimSurvivesEachServer) {
  AddServer();
  auto owner = OpenNode(fabric_, kNoNode);
  const std::byte value{9};
  ASSERT_OK(owner->PublishService("home", {&value, 1}, Soon()));
  auto rival = OpenNode(fabric_, kNoNode);
  for (int round = 0; round < 5; ++round) {
    AddServer();
    servers_[round].reset();  // in the end, all servers that were there at the claim
    EXPECT_EQ(rival->PublishService("home", {&value, 1}, Soon()).code(), StatusCode::kExists) << round;
    EXPECT_TRUE(rival->LookupService("home", Soon()).ok()) << round;
  }
  owner.reset();
  EXPECT_TRUE(rival->PublishService("home", {&value, 1}, Soon()).ok());
}

TEST_F(MetaServers, AClaimIsKnownWhereAllOfThemWereLost) {
  AddServer();
  auto owner = OpenNode(fabric_, kNoNode), rival = OpenNode(fabric_, kNoNode);
  const std::byte value{9}, other{8};
  EXPECT_EQ(rival->LookupClaim("home").status().code(), StatusCode::kNotFound);
  ASSERT_OK(owner->ClaimService("home", {&value, 1}, Soon()));
  EXPECT_TRUE(rival->LookupService("home", Soon()).ok());
  servers_[0].reset();
  EXPECT_EQ(rival->LookupClaim("home").value(), std::vector{value});
  AddServer();
  EXPECT_EQ(rival->LookupClaim("home").value(), std::vector{value});
  EXPECT_EQ(rival->ClaimService("home", {&other, 1}, Soon()).code(), StatusCode::kExists);
  EXPECT_EQ(rival->LookupService("home", Soon()).status().code(), StatusCode::kNotFound);
  ASSERT_OK(owner->ClaimService("home", {&value, 1}, Soon()));
  EXPECT_EQ(rival->LookupService("home", Soon()).value(), std::vector{value});
  if (kSimulated) {  // a node that is not heard of for long has lost the claim until it claims again
    Worlds().at(fabric_)->ForgetRecords(owner->id());
    EXPECT_EQ(rival->LookupClaim("home").status().code(), StatusCode::kNotFound);
    ASSERT_OK(owner->ClaimService("home", {&value, 1}, Soon()));
    EXPECT_EQ(rival->LookupClaim("home").value(), std::vector{value});
  }
  owner.reset();
  EXPECT_EQ(rival->LookupClaim("home").status().code(), StatusCode::kNotFound);
  EXPECT_TRUE(rival->ClaimService("home", {&other, 1}, Soon()).ok());
}

TEST_F(MetaServers, APublicationThatIsNotAnsweredEndsAtItsDeadline) {
  if (!kSimulated) GTEST_SKIP() << "only the simulated NIC can be made to reset its queues slowly";
  constexpr int64_t kPatienceNs = kSecondNs / 10;
  AddServer();
  Party party = Join();
  ASSERT_OK(party.PublishNode({.dc_key = 5}, Soon()));
  rnic::sim::World& world = *Worlds().at(fabric_);
  world.set_chaos({.break_queue = 1, .reset_ns = 2 * kSecondNs});
  for (uint64_t dc_key : {6, 7}) {  // the second one finds the queue being reset
    const int64_t begin_ns = world.now_ns();
    EXPECT_FALSE(party.PublishNode({.dc_key = dc_key}, Deadline::After(world.clock(), kPatienceNs)).ok());
    EXPECT_LE(world.now_ns() - begin_ns, 2 * kPatienceNs);
  }
  world.set_chaos({});
  ASSERT_OK(party.PublishNode({.dc_key = 8}, Soon()));
  EXPECT_EQ(Find(*party.device, Key::Node(party.published_as), 0)->node().dc_key, 8u);
}

constexpr uint32_t kOneLook = 2 * peers::kMaxServers;

TEST_F(MetaServers, OneThatIsAddedBetweenTheFirstLookAndTheWriteGetsItToo) {
  AddServer();
  HookedDevice* device = nullptr;
  Party party = JoinHooked(&device);
  device->After(kOneLook, [&] { AddServer(); });
  ASSERT_OK(party.PublishNode({.dc_key = 5}, Soon()));
  ASSERT_EQ(servers_.size(), 2u);
  const Record* record = Find(*party.device, Key::Node(party.published_as), 1);
  ASSERT_NE(record, nullptr);
  EXPECT_EQ(record->node().dc_key, 5u);
}

TEST_F(MetaServers, OneThatCopiedARecordJustBeforeItWasRemovedForgetsItToo) {
  AddServer();
  HookedDevice* device = nullptr;
  Party party = JoinHooked(&device);
  ASSERT_OK(party.PublishNode({.dc_key = 5}, Soon()));
  device->After(kOneLook, [&] { AddServer(); });
  party.client->RemoveAll(Soon());
  ASSERT_EQ(servers_.size(), 2u);
  for (uint32_t i = 0; i < 2; ++i) EXPECT_EQ(Find(*party.device, Key::Node(party.published_as), i), nullptr) << i;
}

TEST_F(MetaServers, ALookupGoesOnWhenTheServerThatItFoundDiesAndAnotherHasCome) {
  AddServer();
  HookedDevice* device = nullptr;
  Party party = JoinHooked(&device);
  Party other = Join();
  ASSERT_OK(other.PublishNode({.dc_key = 5}, Soon()));
  const auto lookup = [&] {
    const Deadline soon = Deadline::After(*party.clock, 10 * kSecondNs);
    const auto found = party.client->Lookup(Key::Node(other.published_as), soon);
    EXPECT_TRUE(found.ok()) << found.status().ToString();
  };
  lookup();
  // Later it looks for new servers, sees the one it knows, and that one dies.
  PassTime(fabric_, fake_clock_, 2 * kSecondNs);
  device->After(kOneLook, [&] {
    AddServer();
    servers_[0].reset();
  });
  lookup();
  EXPECT_EQ(servers_.size(), 2u);
}

// Nodes that crashed: their records are still there, or another node's record has replaced them.
TEST_F(MetaServers, DeathsAreKnownByTheListOfDevicesOrByRecords) {
  AddServer();
  HookedDevice* device = nullptr;
  Party with_list = Join(), without = JoinHooked(&device);
  auto crashed = std::make_unique<Party>(Join());
  const NodeId node = crashed->published_as;
  const uint64_t owner = peers::PackOwner(node, crashed->device->address().incarnation);
  ASSERT_OK(crashed->PublishNode({.dc_key = 5}, Soon()));
  const auto is_dead = [&](Party& asker, uint64_t whom) { return asker.client->OwnerIsDead(whom, nullptr, Soon()); };
  EXPECT_FALSE(is_dead(with_list, owner));
  EXPECT_FALSE(is_dead(without, owner));
  crashed.reset();
  EXPECT_TRUE(is_dead(with_list, owner));
  EXPECT_TRUE(is_dead(without, owner)) << "its record is still there, and its device is not";

  // A living node with the id of the dead one has not published yet.
  Party successor = Party::Join(fabric_, ClockOf(fabric_), node);
  EXPECT_FALSE(is_dead(with_list, peers::PackOwner(node, successor.device->address().incarnation)));
  // Its record replaces the dead one's; then it is withdrawn.
  ASSERT_OK(successor.PublishNode({.dc_key = 6}, Soon()));
  EXPECT_TRUE(is_dead(without, owner));
  successor.client->RemoveAll(Soon());
  EXPECT_TRUE(is_dead(with_list, owner));
  EXPECT_FALSE(is_dead(without, owner)) << "nothing is left that could tell";
}

// One server announces itself where the look has already been. The other dies where the look has not been yet.
TEST_F(MetaServers, ALookNeverMissesAllOfThemBecauseTheyChangeMeanwhile) {
  AddServer();
  AddServer();
  HookedDevice* device = nullptr;
  Party party = JoinHooked(&device);
  servers_[0].reset();
  device->After(1, [&] {
    AddServer();
    servers_[1].reset();
  });
  EXPECT_EQ(party.client->Lookup(Key::Node(4711), Soon()).status().code(), StatusCode::kNotFound);
}

// The only server dies, and its successor has no server to learn from. Each node that looks anything up brings its own
// records.
TEST_F(MetaServers, WhereAllWereLostEveryNodeThatLooksBringsItsRecordsBack) {
  AddServer();
  auto node = OpenNode(fabric_, 50);
  ASSERT_OK(node->Publish(Soon()));
  const std::byte value{3};
  ASSERT_OK(node->PublishService("s", {&value, 1}, Soon()));
  servers_[0].reset();
  AddServer();
  Party reader = Join();
  EXPECT_EQ(reader.client->Lookup(Key::Node(50), Soon()).status().code(), StatusCode::kNotFound);
  EXPECT_EQ(node->LookupService("whatever", Soon()).status().code(), StatusCode::kNotFound);
  // A look spends a bounded time on it, which is not enough in an emulated guest; the next look goes on.
  const Deadline deadline = Deadline::After(ClockOf(fabric_), 120 * kSecondNs);
  while (kOnVerbs && !reader.client->Lookup(Key::Service("s"), Soon()).ok() && !deadline.Passed(ClockOf(fabric_)))
    EXPECT_EQ(node->LookupService("whatever", Soon()).status().code(), StatusCode::kNotFound);
  EXPECT_TRUE(reader.client->Lookup(Key::Node(50), Soon()).ok());
  EXPECT_TRUE(reader.client->Lookup(Key::Service("s"), Soon()).ok());
}

TEST_F(MetaServers, ARecordThatASuccessorHadNoPlaceForIsBroughtToTheNextOne) {
  AddServer();
  HookedDevice* device = nullptr;
  Party party = JoinHooked(&device), other = Join();
  ASSERT_OK(party.client->Publish(Key::Service("s"), Filled(std::byte{1}), Deadline::After(*party.clock, kSecondNs)));
  const auto look = [&] {  // later it looks for new ones
    PassTime(fabric_, fake_clock_, 2 * kSecondNs);
    const Deadline soon = Deadline::After(*party.clock, 10 * kSecondNs);
    EXPECT_EQ(party.client->Lookup(Key::Service("t"), soon).status().code(), StatusCode::kNotFound);
  };
  const auto servers_that_have_it = [&] {
    int count = 0;
    for (uint32_t i = 0; i < peers::kMaxServers; ++i)
      count += party.device->LookupRecord(peers::BootstrapName(i)).ok() &&
               Find(*party.device, Key::Service("s"), i) != nullptr;
    return count;
  };
  servers_[0].reset();
  AddServer(1);
  for (int refused = 0, i = 0; refused < 10; ++i)
    refused += !other.client->Publish(Key::Service("f" + std::to_string(i)), Filled(std::byte{2}), Soon()).ok();
  look();
  ASSERT_EQ(servers_that_have_it(), 0) << "there is no place";
  AddServer(64);
  look();
  EXPECT_EQ(servers_that_have_it(), 1);
}

// Servers come and go while others publish, remove and look up. Every complete record is found.
TEST_F(MetaServers, WhatIsCompleteIsFoundWhileServersComeAndGo) {
  SKIP_IF_SIMULATED("one thread");
  AddServer(512);
  std::atomic<bool> stop{false};  // relaxed: nothing else is communicated through it
  constexpr int kWriters = 3;
  std::vector<std::thread> threads;
  std::atomic<int> published{0};
  for (int w = 0; w < kWriters; ++w) {
    threads.emplace_back([&, w] {
      Party reader = Join();
      for (int i = 0; !stop.load(std::memory_order_relaxed); ++i) {
        Party party = Join();
        const NodeId id = party.published_as;
        for (uint64_t version = 1; version <= 3; ++version) {
          const Status status = party.PublishNode({.dc_key = version}, Soon());
          EXPECT_TRUE(status.ok()) << status.ToString();
          const auto found = reader.client->Lookup(Key::Node(id), Soon());
          EXPECT_TRUE(found.ok()) << found.status().ToString() << " in round " << i << " of writer " << w;
          if (found.ok()) {
            EXPECT_EQ(found->node().dc_key, version);
          }
          published.fetch_add(1, std::memory_order_relaxed);
        }
        party.client->RemoveAll(Soon());
        EXPECT_EQ(reader.client->Lookup(Key::Node(id), Soon()).status().code(), StatusCode::kNotFound);
      }
    });
  }
  for (int round = 0; round < (kOnVerbs ? 5 : 60); ++round) {
    AddServer(512 + 16 * round);
    servers_[round].reset();
  }
  stop.store(true, std::memory_order_relaxed);
  for (std::thread& thread : threads) thread.join();
  EXPECT_GT(published.load(), 0);
}

// Two servers begin at the same time: one of them is the first, and the other learns from it.
TEST_F(MetaServers, ThoseThatBeginTogetherAgreeWhoIsFirst) {
  SKIP_IF_SIMULATED("one thread");
  for (int round = 0; round < (kOnVerbs ? 2 : 50); ++round) {
    const std::string fabric = UniqueFabric(true);
    std::vector<std::unique_ptr<Node>> nodes;
    for (NodeId id = 1; id <= 3; ++id) nodes.push_back(OpenNode(fabric, id));
    auto publisher = OpenNode(fabric, kNoNode);
    std::vector<std::thread> threads;
    for (auto& node : nodes) threads.emplace_back([&] { EXPECT_TRUE(node->HostMetaServer(64).ok()); });
    ASSERT_OK(publisher->Publish(Soon()));
    for (std::thread& thread : threads) thread.join();
    for (size_t keep = 0; keep < 2; ++keep) {
      Party reader = Party::Join(fabric, *RealClock());
      EXPECT_TRUE(reader.client->Lookup(Key::Node(publisher->id()), Soon()).ok());
      nodes[(round + keep) % 3].reset();
    }
    Party reader = Party::Join(fabric, *RealClock());
    EXPECT_TRUE(reader.client->Lookup(Key::Node(publisher->id()), Soon()).ok());
  }
}

}  // namespace
}  // namespace krcore::test
