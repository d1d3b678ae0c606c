// Records of ports: a node's own, whose places others get when the node has withdrawn them or is dead.
#include <optional>
#include <random>
#include <thread>

#include "tests/krcore/message_fixture.h"
#include "tests/krcore/meta_fixture.h"
#include "tests/krcore/rc_fixture.h"
#include "tests/rnic/sw_child.h"

namespace krcore::test {
namespace {

class MetaPorts : public MetaTable {
 protected:
  static Status Publish(Party& party, Port port, uint64_t value, Deadline deadline) {
    return party.client->Publish(Key::Port(party.published_as, port), std::as_bytes(std::span(&value, 1)), deadline);
  }
  // Returns 0 if the port is not there.
  uint64_t ValueOf(Party& reader, NodeId node, Port port) {
    const auto record = reader.client->Lookup(Key::Port(node, port), Soon());
    if (!record.ok()) {
      EXPECT_EQ(record.status().code(), StatusCode::kNotFound) << record.status().ToString();
      return 0;
    }
    EXPECT_EQ(record->value_length, sizeof(uint64_t));
    EXPECT_EQ(peers::OwnerNode(record->owner), node);
    uint64_t value = 0;
    std::memcpy(&value, record->value, sizeof(value));
    return value;
  }
  // Counts the table's records of ports. Vacant places do not count.
  size_t PortsIn(rnic::Device& device) {
    const std::span<Record> table = Table(device);
    return static_cast<size_t>(std::count_if(table.begin(), table.end(), [](const Record& record) {
      return record.kind == peers::RecordKind::kPort && !peers::IsVacant(record.owner);
    }));
  }
};

// No name recurs here: node ids are ever new ones, and so are the ports of a node.
TEST_F(MetaPorts, TwentyThousandThatComeAndGoOneAfterTheOtherDoNotFillIt) {
  Host(8);  // places for 32 ports
  constexpr uint32_t kNames = kOnVerbs ? 128 : kSimulated ? 2'000 : 20'000;
  Party reader = Party::Join(fabric_, ClockOf(fabric_));
  Party steady = Party::Join(fabric_, ClockOf(fabric_));
  ASSERT_OK(Publish(steady, 7, 77, Soon()));
  std::optional<Party> party(Party::Join(fabric_, ClockOf(fabric_)));
  for (uint32_t i = 1; i <= kNames; ++i) {
    if (i % 16 == 0) party->Rename(1000 + i);
    const auto port = static_cast<Port>(i % 50'000 + 1);
    SCOPED_TRACE("name " + std::to_string(i));
    ASSERT_OK(Publish(*party, port, i, Soon()));
    if (i % 64 == 0) {
      ASSERT_EQ(ValueOf(reader, party->published_as, port), i);
    }
    if (i % 16 == 8) {
      const NodeId was = party->published_as;
      party.emplace(Party::Join(fabric_, ClockOf(fabric_), 1000 + i));  // as if the former one had crashed
      if (i % 64 == 8) (void)ValueOf(reader, was, port);                // whatever it is, it is whole
      continue;
    }
    party->client->Remove(Key::Port(party->published_as, port), Soon());
    if (i % 64 == 1) {
      ASSERT_EQ(ValueOf(reader, party->published_as, port), 0u);
    }
  }
  EXPECT_EQ(ValueOf(reader, steady.published_as, 7), 77u);
  EXPECT_LE(PortsIn(*reader.device), 32u);
}

TEST_F(MetaPorts, AsManyAsThereAreLiveAtOnceIsAClearErrorAndTheOthersAreFound) {
  Host(1);
  Party party = Party::Join(fabric_, ClockOf(fabric_)), reader = Party::Join(fabric_, ClockOf(fabric_));
  Port port = 1;
  Status status;
  for (;; ++port) {
    status = Publish(party, port, port, Soon());
    if (!status.ok()) break;
    ASSERT_LT(port, 1000);
  }
  EXPECT_EQ(status.code(), StatusCode::kOutOfMemory) << status.ToString();
  EXPECT_GT(port, 12);
  for (Port known = 1; known < port; ++known) EXPECT_EQ(ValueOf(reader, party.published_as, known), known);
  // A withdrawn record hides nothing that lies after it.
  for (Port known = 1; known < port; known += 2) party.client->Remove(Key::Port(party.published_as, known), Soon());
  for (Port known = 1; known < port; ++known)
    EXPECT_EQ(ValueOf(reader, party.published_as, known), known % 2 == 0 ? known : 0);
  for (Port known = 2; known < port; known += 2) party.client->Remove(Key::Port(party.published_as, known), Soon());
  ASSERT_OK(Publish(party, port, port, Soon()));
  EXPECT_EQ(ValueOf(reader, party.published_as, port), port);
}

TEST_F(MetaPorts, ASuccessorsPortHasOneRecordAndNoRemainsOfItsPredecessors) {
  Host(8);
  Party reader = Party::Join(fabric_, ClockOf(fabric_));
  for (uint64_t life = 1; life <= 20; ++life) {
    Party party = Party::Join(fabric_, ClockOf(fabric_), 500);
    ASSERT_OK(Publish(party, 7, life, Soon()));
    ASSERT_OK(Publish(party, 8, 100 + life, Soon()));
    EXPECT_EQ(ValueOf(reader, 500, 7), life);
    EXPECT_EQ(ValueOf(reader, 500, 8), 100 + life);
    EXPECT_NE(Find(*reader.device, Key::Port(500, 7)), nullptr);  // and only once
    EXPECT_EQ(ValueOf(reader, 501, 7), 0u) << "another node's";
    if (life % 2 == 0) party.Close(Soon());
  }
  EXPECT_EQ(ValueOf(reader, 500, 7), 0u);
}

// Places change their owners and ports all the time. A record that stays is found at each look, unchanged.
TEST_F(MetaPorts, AReaderFindsWhatStaysWhileEverythingAroundItComesAndGoes) {
  SKIP_IF_SIMULATED("one thread");
  Host(8);
  Party steady = Party::Join(fabric_, ClockOf(fabric_)), reader = Party::Join(fabric_, ClockOf(fabric_));
  for (Port port = 1; port <= 4; ++port) ASSERT_OK(Publish(steady, port, port, Soon()));
  std::atomic<bool> stop{false};  // relaxed: nothing else is communicated through it
  std::vector<std::thread> threads;
  for (unsigned seed = 0; seed < 2; ++seed) {
    threads.emplace_back([&, seed] {
      std::mt19937 random(seed);
      std::optional<Party> party(Party::Join(fabric_, ClockOf(fabric_)));
      while (!stop.load(std::memory_order_relaxed)) {
        const auto port = static_cast<Port>(1 + random() % 12);
        const Status published = Publish(*party, port, port, Soon());
        EXPECT_TRUE(published.ok()) << published.ToString();
        if (random() % 4 != 0) party->client->Remove(Key::Port(party->published_as, port), Soon());
        if (random() % 64 == 0) party.emplace(Party::Join(fabric_, ClockOf(fabric_)));  // as if it had crashed
      }
    });
  }
  const NodeId node = steady.published_as;
  for (int i = 0; i < 4000; ++i) {
    const auto port = static_cast<Port>(1 + i % 4);
    ASSERT_EQ(ValueOf(reader, node, port), port);
    ASSERT_EQ(ValueOf(reader, node, 9), 0u);
  }
  stop.store(true, std::memory_order_relaxed);
  for (std::thread& thread : threads) thread.join();
}

// The node's own port, which nobody has written yet, lies where the reader looks for another one.
TEST_F(MetaPorts, AClaimThatWasNotWrittenNamesNothing) {
  Host(8);
  Party reader = Party::Join(fabric_, ClockOf(fabric_)), party = Party::Join(fabric_, ClockOf(fabric_));
  ASSERT_OK(Publish(party, 7, 1, Soon()));
  Record* const record = Find(*reader.device, Key::Port(party.published_as, 7));
  ASSERT_NE(record, nullptr);
  const uint64_t owner = record->owner;
  party.client->Remove(Key::Port(party.published_as, 7), Soon());
  record->owner = owner;  // claimed for some port; nothing is left of the former binding
  EXPECT_EQ(ValueOf(reader, party.published_as, 7), 0u);
  // If a dead predecessor left a binding, it is not copied either: the claimant will write it at every server.
  record->binding = Key::Port(party.published_as, 9).value;
  auto second = OpenNode(fabric_, 2);
  ASSERT_OK(second->HostMetaServer(8));
  for (const Record& copy : Table(*reader.device, 1)) EXPECT_NE(copy.owner, owner);
}

TEST_F(MetaPorts, APlaceThatAnotherHasTakenFromTheDeadIsTheirsNoMore) {
  Host(8);
  Party reader = Party::Join(fabric_, ClockOf(fabric_)), heir = Party::Join(fabric_, ClockOf(fabric_));
  ASSERT_OK(Publish(heir, 1, 1, Soon()));
  const uint64_t heirs = Find(*reader.device, Key::Port(heir.published_as, 1))->owner;
  {
    Party party = Party::Join(fabric_, ClockOf(fabric_), 500);
    ASSERT_OK(Publish(party, 7, 1, Soon()));
  }
  Record* const record = Find(*reader.device, Key::Port(500, 7));
  ASSERT_NE(record, nullptr);
  record->owner = heirs;  // claimed, and not written yet
  EXPECT_EQ(ValueOf(reader, 500, 7), 0u);
  Party successor = Party::Join(fabric_, ClockOf(fabric_), 500);
  ASSERT_OK(Publish(successor, 7, 2, Soon()));
  EXPECT_EQ(record->owner, heirs);
  EXPECT_EQ(ValueOf(reader, 500, 7), 2u);
}

TEST_F(MetaPorts, AServerThatIsAddedHasThem) {
  Host(8);
  Party party = Party::Join(fabric_, ClockOf(fabric_)), reader = Party::Join(fabric_, ClockOf(fabric_));
  for (Port port = 1; port <= 10; ++port) ASSERT_OK(Publish(party, port, port, Soon()));
  auto second = OpenNode(fabric_, 2);
  ASSERT_OK(second->HostMetaServer(64));  // another geometry
  host_.reset();
  for (Port port = 1; port <= 10; ++port) EXPECT_EQ(ValueOf(reader, party.published_as, port), port);
  party.client->Remove(Key::Port(party.published_as, 3), Soon());
  EXPECT_EQ(ValueOf(reader, party.published_as, 3), 0u);
}

// ---- through queues

TEST_F(MetaPorts, ANodeThatBindsOnePortAfterAnotherForEverIsReachedAtEach) {
  Host(8);
  MessagingNode server = MessagingNode::Start(fabric_, 5, false), client = MessagingNode::Start(fabric_, 6, false);
  for (uint32_t i = 0; i < (kOnVerbs ? 50 : kSimulated ? 100 : 500); ++i) {
    const auto port = static_cast<Port>(1 + i);
    auto inbox = server.Bound(port, {.senders = 1, .slots = 1, .copy_bytes = 64});
    auto outbox = client.Queue();
    if (i % 16 == 0) {
      ASSERT_OK(outbox->Connect(5, port, client.Soon()));
    }
    outbox.reset();
    inbox.reset();
    if (i % 16 == 0) {
      EXPECT_EQ(client.Queue()->Connect(5, port, client.Soon()).code(), StatusCode::kNotFound);
    }
  }
}

TEST(MetaPortsOfProcesses, ThatAreKilledGoToOthers) {
  SKIP_IF_SIMULATED("processes");
  const std::string fabric = UniqueFabric(false);
  {
    auto host = OpenNode(fabric, 1);
    ASSERT_OK(host->HostMetaServer(8));  // places for 32 ports
    for (uint32_t i = 0; i < (kOnVerbs ? 7 : 25); ++i) {
      rnic::testing::Child child([&](auto& self) {
        MessagingNode party = MessagingNode::Start(fabric, kNoNode, false, {}, 4, 64);
        std::vector<std::unique_ptr<VirtualQueue>> inboxes;
        for (Port port = 1; port <= 6; ++port) {
          auto inbox = party.Queue();
          const Deadline deadline = Deadline::After(*RealClock(), 20 * kSecondNs);
          // A death is certain at once on sw, and on verbs when nothing that the process has posted can be executed any
          // more.
          while (true) {
            const Status bound =
                inbox->Bind(static_cast<Port>(100 * i + port), {.senders = 1, .slots = 1}, party.Soon());
            if (bound.ok()) break;
            if (!kOnVerbs || bound != StatusCode::kOutOfMemory || deadline.Passed(*RealClock())) _exit(1);
            usleep(100'000);
          }
          inboxes.push_back(std::move(inbox));
        }
        if (::testing::Test::HasFailure()) _exit(1);
        self.Ready();
        self.Sleep();
      });
      ASSERT_TRUE(child.WaitReady()) << "process " << i;
      child.Kill();
    }
  }
  EXPECT_TRUE(CleanStaleFabrics("sw", fabric, true).ok());
}

}  // namespace
}  // namespace krcore::test
