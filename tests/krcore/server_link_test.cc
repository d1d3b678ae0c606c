// The RC connection to the metadata server: when there is one, what goes over it, and how it ends.
#include <thread>

#include "krcore/messages/wire.h"
#include "tests/krcore/meta_fixture.h"
#include "tests/krcore/rc_fixture.h"

namespace krcore::test {
namespace {

class ServerLinkTest : public ::testing::Test {
 protected:
  static constexpr int kLookups = 8;  // after which a client wants a connection

  Clock& clock() { return kSimulated ? ClockOf(fabric_) : fake_clock_; }
  void Pass(int64_t ns) { PassTime(fabric_, fake_clock_, ns); }
  void AddServer(uint32_t rc_peers) {
    servers_.push_back(OpenNode(fabric_, static_cast<NodeId>(10 + servers_.size()), &clock(), rc_peers));
    ASSERT_OK(servers_.back()->HostMetaServer(64));
  }
  Deadline Soon() { return Deadline::After(clock(), 10 * kSecondNs); }
  Party Join() { return Party::Join(fabric_, clock()); }
  // Returns a party that has published `dc_key`.
  Party Publish(uint64_t dc_key) {
    Party party = Join();
    const Status published = party.PublishNode({.dc_key = dc_key}, Soon());
    EXPECT_TRUE(published.ok()) << published.ToString();
    return party;
  }
  // Returns the DC key in the record of `of`, or 0.
  uint64_t LookUp(Party& party, const Party& of) { return LookUp(party, of, Soon()); }
  uint64_t LookUp(Party& party, const Party& of, Deadline deadline) {
    const auto record = party.client->Lookup(Key::Node(of.published_as), deadline);
    EXPECT_TRUE(record.ok()) << record.status().ToString();
    return record.ok() ? record->node().dc_key : 0;
  }
  void LookUpOften(Party& party, const Party& of) {
    for (int i = 0; i < kLookups; ++i) (void)LookUp(party, of);
  }
  bool Work(Party& party, bool may_take_a_while = true) {
    const auto new_owner = [&] {
      return peers::PlaceOwner(party.published_as, ++owners_, party.device->address().incarnation);
    };
    return party.client->WorkOnLink(new_owner, may_take_a_while);
  }
  // Lets every server answer.
  void Answer() {
    for (size_t i = 0; i < servers_.size(); ++i) changed_.at(i) += servers_[i] ? servers_[i]->PollConnections() : 0;
  }
  // Works until there is nothing to do.
  void Settle(Party& party) {
    int left = kOnVerbs ? 40'000 : 10'000;
    while (Work(party) && --left > 0) {
      Pass(100'000);
      Answer();
    }
    EXPECT_GT(left, 0);
  }
  // Returns whether lookups go over the connection.
  bool UsesLink(Party& party, const Party& of) {
    const uint64_t before = party.client->stats().link_reads;
    (void)LookUp(party, of);
    return party.client->stats().link_reads == before + 1;
  }

  const std::string fabric_ = UniqueFabric(true);
  FakeClock fake_clock_;
  std::vector<std::unique_ptr<Node>> servers_;
  uint32_t owners_ = 0;
  std::array<size_t, 4> changed_{};  // connections that were taken or closed, by server
};

TEST_F(ServerLinkTest, WhoLooksUpOftenDoesSoOverAConnection) {
  AddServer(8);
  Party publisher = Publish(5), party = Join();
  for (int i = 1; i < kLookups; ++i) EXPECT_EQ(LookUp(party, publisher), 5u);
  EXPECT_FALSE(Work(party)) << "a worker that comes and goes takes no place";
  EXPECT_FALSE(UsesLink(party, publisher));
  EXPECT_TRUE(Work(party));
  Settle(party);
  EXPECT_TRUE(UsesLink(party, publisher));
  const peers::MetaStats before = party.client->stats();
  EXPECT_EQ(LookUp(party, publisher), 5u);
  EXPECT_EQ(party.client->stats().reads, before.reads + 1);
  // What is published now is found, and what is gone is not found.
  ASSERT_OK(publisher.PublishNode({.dc_key = 6}, Soon()));
  EXPECT_EQ(LookUp(party, publisher), 6u);
  publisher.client->RemoveAll(Soon());
  EXPECT_EQ(party.client->Lookup(Key::Node(publisher.published_as), Soon()).status(), StatusCode::kNotFound);
  EXPECT_EQ(party.client->stats().failovers, 0u);
}

TEST_F(ServerLinkTest, NothingThatTakesAWhileIsDoneWhereItMayNot) {
  AddServer(8);
  Party publisher = Publish(5), party = Join();
  LookUpOften(party, publisher);
  for (int i = 0; i < 200; ++i) {
    EXPECT_TRUE(Work(party, false));
    Pass(100'000);
    Answer();
  }
  EXPECT_EQ(changed_[0], 0u);
  Settle(party);
  EXPECT_TRUE(UsesLink(party, publisher));
  EXPECT_FALSE(Work(party, false));
}

TEST_F(ServerLinkTest, AServerThatTakesNoConnectionsIsAskedByDc) {
  AddServer(0);
  Party publisher = Publish(5), party = Join();
  LookUpOften(party, publisher);
  EXPECT_FALSE(Work(party));
  EXPECT_FALSE(UsesLink(party, publisher));
}

TEST_F(ServerLinkTest, ANodeMakesNoneToItself) {
  AddServer(8);
  Party publisher = Publish(5);
  Party party = Join();
  party.Rename(servers_[0]->id());
  LookUpOften(party, publisher);
  EXPECT_FALSE(Work(party));
}

TEST_F(ServerLinkTest, WhereThereIsNoPlaceItIsAskedAgainLater) {
  AddServer(1);
  Party publisher = Publish(5), second = Join();
  {
    Party first = Join();
    LookUpOften(first, publisher);
    Settle(first);
    EXPECT_TRUE(UsesLink(first, publisher));
    LookUpOften(second, publisher);
    Settle(second);
    EXPECT_FALSE(UsesLink(second, publisher));
    EXPECT_EQ(LookUp(second, publisher), 5u);
  }
  for (int i = 0; i < 3; ++i) {
    Pass(kSecondNs);
    Answer();  // the place is free again
  }
  EXPECT_FALSE(Work(second));
  Pass(10 * kSecondNs);
  Settle(second);
  EXPECT_TRUE(UsesLink(second, publisher));
}

TEST_F(ServerLinkTest, AServerThatDoesNotAnswerIsGivenUp) {
  AddServer(8);
  Party publisher = Publish(5), party = Join();
  LookUpOften(party, publisher);
  int left = 100'000;
  while (Work(party) && --left > 0) Pass(1'000'000);
  EXPECT_GT(left, 0);
  EXPECT_FALSE(UsesLink(party, publisher));
  // Neither side kept anything of it.
  Pass(20 * kSecondNs);
  Answer();
  Settle(party);
  EXPECT_TRUE(UsesLink(party, publisher));
}

TEST_F(ServerLinkTest, OneThatBreaksIsMadeAnew) {
  AddServer(8);
  Party publisher = Publish(5), party = Join();
  LookUpOften(party, publisher);
  Settle(party);
  ASSERT_TRUE(UsesLink(party, publisher));
  // As if the client had closed it: the server, which is in this process, destroys its half.
  const auto announced = peers::ReadServerList(*party.device, {}).value().all.at(0)->info;
  const std::span desk(reinterpret_cast<peers::DeskPlace*>(announced.desk_addr), announced.desk_places);
  for (peers::DeskPlace& place : desk) place.closing = place.owner;
  Answer();
  EXPECT_EQ(changed_[0], 2u);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(LookUp(party, publisher), 5u);
  EXPECT_FALSE(UsesLink(party, publisher));
  EXPECT_TRUE(Work(party));
  Settle(party);
  EXPECT_TRUE(UsesLink(party, publisher));
}

TEST_F(ServerLinkTest, WhenTheServerDiesAnotherOneIsAskedAndLinked) {
  for (int i = 0; i < 2; ++i) AddServer(8);
  Party publisher = Publish(5), party = Join();
  LookUpOften(party, publisher);
  const auto list = peers::ReadServerList(*party.device, {}).value();
  const uint32_t nearest = list.NearestFirst(party.published_as)[0]->id();
  Settle(party);
  ASSERT_TRUE(UsesLink(party, publisher));
  for (auto& server : servers_)
    if (server->incarnation() == nearest) server.reset();
  for (int i = 0; i < 3; ++i) EXPECT_EQ(LookUp(party, publisher), 5u);
  EXPECT_FALSE(UsesLink(party, publisher));
  Pass(20 * kSecondNs);
  Settle(party);
  EXPECT_TRUE(UsesLink(party, publisher));
  EXPECT_EQ(LookUp(party, publisher), 5u);
}

TEST_F(ServerLinkTest, AServerThatComesNearerGetsTheConnection) {
  AddServer(8);
  Party publisher = Publish(5), party = Join();
  LookUpOften(party, publisher);
  Settle(party);
  ASSERT_TRUE(UsesLink(party, publisher));
  AddServer(8);
  AddServer(8);
  Pass(2 * kSecondNs);  // after this the announcements are read again
  (void)LookUp(party, publisher);
  const auto list = peers::ReadServerList(*party.device, {}).value();
  if (list.NearestFirst(party.published_as)[0]->id() == servers_[0]->incarnation()) {
    EXPECT_FALSE(Work(party));
    EXPECT_EQ(changed_[0], 1u);
    return;
  }
  EXPECT_FALSE(UsesLink(party, publisher));
  EXPECT_TRUE(Work(party));
  Settle(party);
  EXPECT_TRUE(UsesLink(party, publisher));
  EXPECT_EQ(changed_[0], 2u) << "it has its place back";
}

TEST_F(ServerLinkTest, ThreadsLookUpWhileItIsMadeAndLost) {
  SKIP_IF_SIMULATED("one thread");
  SKIP_ON_VERBS("the same code; time is the test's");
  for (int i = 0; i < 2; ++i) AddServer(8);
  Party publisher = Publish(5), party = Join();
  LookUpOften(party, publisher);
  std::atomic<bool> stop = false;
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&] {
      // No deadline: the clock goes on by 20 s while this thread may not run.
      while (!stop.load()) EXPECT_EQ(LookUp(party, publisher, Deadline::Never()), 5u);
    });
  }
  const auto link = [&] {
    const uint64_t before = party.client->stats().link_reads;
    for (int i = 0; party.client->stats().link_reads == before && i < 1'000'000; ++i) {
      (void)Work(party);
      Answer();
      Pass(1'000'000);
      std::this_thread::yield();
    }
    EXPECT_GT(party.client->stats().link_reads, before);
  };
  const auto list = peers::ReadServerList(*party.device, {}).value();
  const uint32_t nearest = list.NearestFirst(party.published_as)[0]->id();
  link();
  for (auto& server : servers_)
    if (server->incarnation() == nearest) server.reset();
  Pass(20 * kSecondNs);
  link();
  stop.store(true);
  for (std::thread& thread : threads) thread.join();
}

// Pools make the connection, on devices whose DC is software.
TEST(ServerLinkOfANode, IsMadeByItsPools) {
  const std::string fabric = UniqueFabric(true);
  MemoryNode peer = MemoryNode::Start(fabric, 1, 4096, true, nullptr, 8);
  Worker worker;
  worker.node = OpenNode(fabric, kNoNode);
  worker.Prepare({.rc_hot_wrs = UINT32_MAX}, 1 << 12);
  peers::MetaClient* const meta = ImplOf(*worker.pool).context().meta;
  if (meta == nullptr) GTEST_SKIP() << kRnic << ": DC is the device's own";
  auto queue = worker.Connect(1);
  const Sge sge = worker.Word(0);
  const Deadline deadline = Deadline::After(*RealClock(), 30 * kSecondNs);
  while (meta->stats().link_reads == 0 && !deadline.Passed(*RealClock())) {
    ASSERT_OK(queue->Connect(1, deadline));  // looks up
    EXPECT_EQ(Execute(*worker.pool, *queue, OnWord(*queue, Opcode::kRead, &sge, 0)).status, WcStatus::kSuccess);
    for (int polls = 0; polls < 20; ++polls) {
      worker.pool->Poll();
      usleep(1000);  // the device's own agent makes it in real time, which no test can advance
      (void)peer.node->PollConnections();
    }
  }
  EXPECT_GT(meta->stats().link_reads, 0u);
  EXPECT_EQ(worker.pool->stats().rc_connects, 0u) << "that is of peers";
}

}  // namespace
}  // namespace krcore::test
