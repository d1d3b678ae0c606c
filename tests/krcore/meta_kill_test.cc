// Metadata servers in processes of their own, killed at any moment while other processes register, look up and leave.
#include <random>

#include "tests/krcore/meta_fixture.h"
#include "tests/rnic/sw_child.h"

namespace krcore::test {
namespace {

using rnic::testing::Child;

Deadline Soon() { return Deadline::After(*RealClock(), 10 * kSecondNs); }

std::unique_ptr<Child> StartServer(const std::string& fabric) {
  return std::make_unique<Child>([fabric](Child::Self& self) {
    auto node = OpenNode(fabric, kNoNode);
    const Status hosted = node->HostMetaServer(256);
    if (!hosted.ok()) std::fprintf(stderr, "%s\n", hosted.ToString().c_str());
    if (!hosted.ok()) _exit(9);
    self.Ready();
    self.Sleep();
  });
}

// Registers under ever new ids with ever new versions, checks that others see complete records, and leaves, alternately
// cleanly and not.
void RegisterAndLookUp(const std::string& fabric, int rounds, unsigned seed) {
  std::mt19937 random(seed);
  Party reader = Party::Join(fabric, *RealClock());
  for (int i = 0; i < rounds; ++i) {
    Party party = Party::Join(fabric, *RealClock());
    const NodeId id = party.published_as;
    for (uint64_t version = 1; version <= 1 + random() % 4; ++version) {
      const Status status = party.PublishNode({.dc_key = version}, Soon());
      ASSERT_TRUE(status.ok()) << status.ToString();
      const auto found = reader.client->Lookup(Key::Node(id), Soon());
      ASSERT_TRUE(found.ok()) << "round " << i << ": " << found.status().ToString();
      ASSERT_EQ(found->node().dc_key, version);
      ASSERT_EQ(found->address().incarnation, party.device->address().incarnation);
    }
    const std::string name = "s" + std::to_string(random() % 8);
    const Status claimed = party.client->Publish(Key::Service(name), Filled(std::byte(id & 0xff)), Soon());
    ASSERT_TRUE(claimed.ok() || claimed == StatusCode::kExists) << claimed.ToString();
    if (claimed.ok()) {
      const auto service = reader.client->Lookup(Key::Service(name), Soon());
      ASSERT_TRUE(service.ok()) << service.status().ToString();
      ASSERT_EQ(peers::OwnerNode(service->owner), id) << "a living owner was replaced";
    }
    if (random() % 2 == 0) {
      party.client->RemoveAll(Soon());
      ASSERT_EQ(reader.client->Lookup(Key::Node(id), Soon()).status().code(), StatusCode::kNotFound);
    }
  }
}

TEST(MetaKill, ServersAreKilledAtAnyMomentWhileOneIsLeftAndNothingCompleteIsLost) {
  const std::string fabric = UniqueFabric(false);
  auto anchor = OpenNode(fabric, 1);
  std::vector<std::unique_ptr<Child>> servers;
  for (int i = 0; i < 3; ++i) {
    servers.push_back(StartServer(fabric));
    ASSERT_TRUE(servers.back()->WaitReady());
  }
  std::vector<std::unique_ptr<Child>> users;
  for (unsigned u = 0; u < 3; ++u)
    users.push_back(std::make_unique<Child>([&, u](Child::Self& self) {
      self.Ready();
      RegisterAndLookUp(fabric, 150, 100 + u);
    }));
  std::mt19937 random(7);
  for (int kill = 0; kill < 40; ++kill) {
    servers[random() % servers.size()].swap(servers.back());
    servers.back()->Kill();
    servers.back() = StartServer(fabric);
    // Half of the time it is killed again while it announces itself or catches up.
    if (random() % 2 == 0) {
      usleep(static_cast<useconds_t>(random() % 3000));
      servers.back()->Kill();
      servers.back() = StartServer(fabric);
    }
    ASSERT_TRUE(servers.back()->WaitReady());
  }
  for (auto& user : users) EXPECT_EQ(user->Wait(), 0);
  servers.clear();
  anchor.reset();
  EXPECT_TRUE(CleanStaleFabrics("sw", fabric, true).ok());
}

// What a killed process exposed can be read for a while (sw). It is no longer updated, so it must not be believed.
TEST(MetaKill, WhatAKilledServersMemoryStillSaysIsNotBelieved) {
  const std::string fabric = UniqueFabric(false);
  auto anchor = OpenNode(fabric, 1);
  for (int round = 0; round < 10; ++round) {
    auto first = StartServer(fabric);
    ASSERT_TRUE(first->WaitReady());
    auto second = StartServer(fabric);
    ASSERT_TRUE(second->WaitReady());
    Party party = Party::Join(fabric, *RealClock());
    ASSERT_OK(party.PublishNode({.dc_key = 1}, Soon()));
    std::array<Party, 2> readers{Party::Join(fabric, *RealClock()), Party::Join(fabric, *RealClock())};
    for (Party& reader : readers) ASSERT_TRUE(reader.client->Lookup(Key::Node(party.published_as), Soon()).ok());
    first->Kill();
    ASSERT_OK(party.PublishNode({.dc_key = 2}, Soon()));
    for (Party& reader : readers)  // one of them was nearer to the dead one
      EXPECT_EQ(reader.client->Lookup(Key::Node(party.published_as), Soon())->node().dc_key, 2u);
  }
  anchor.reset();
  EXPECT_TRUE(CleanStaleFabrics("sw", fabric, true).ok());
}

// Registering processes are killed at any moment. What they leave hinders nobody. Their records are known to belong to
// the dead, or are not there.
TEST(MetaKill, RegisteringProcessesAreKilledAtAnyMomentAndHinderNobody) {
  const std::string fabric = UniqueFabric(false);
  auto first = StartServer(fabric);
  ASSERT_TRUE(first->WaitReady());
  auto second = StartServer(fabric);
  ASSERT_TRUE(second->WaitReady());
  std::mt19937 random(11);
  for (int round = 0; round < 60; ++round) {
    constexpr NodeId kId = 200;
    Child victim([&](Child::Self& self) {
      auto node = OpenNode(fabric, kId);
      self.Ready();
      for (;;) (void)node->Publish(Soon());
    });
    ASSERT_TRUE(victim.WaitReady());
    usleep(static_cast<useconds_t>(random() % 300));
    victim.Kill();
    // Its successor can take the id, and lookups find the successor.
    auto heir = OpenNode(fabric, kId);
    ASSERT_NE(heir, nullptr);
    ASSERT_OK(heir->Publish(Soon()));
    for (int r = 0; r < 2; ++r) {
      Party reader = Party::Join(fabric, *RealClock());
      const auto found = reader.client->Lookup(Key::Node(kId), Soon());
      ASSERT_TRUE(found.ok()) << found.status().ToString();
      EXPECT_EQ(found->address().incarnation, heir->incarnation());
    }
  }
  first.reset();
  second.reset();
  EXPECT_TRUE(CleanStaleFabrics("sw", fabric, true).ok());
}

}  // namespace
}  // namespace krcore::test
