// The metadata server's table under concurrency, damage and exhaustion.
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <set>
#include <thread>

#include "krcore/meta/meta_client.h"
#include "krcore/meta/meta_server.h"
#include "krcore/rnic/registry.h"
#include "tests/krcore/fixture.h"

namespace krcore::test {
namespace {

using meta::MetaClient;
using meta::NodeKey;
using meta::Record;
using meta::RecordKind;
using meta::ServiceKey;

// A device with a MetaClient, without a Node around it: closing it leaves its records behind, as a crash does.
struct Party {
  std::unique_ptr<rnic::Device> device;
  std::unique_ptr<rnic::Pd> pd;
  std::unique_ptr<MetaClient> client;

  static Party Join(const std::string& fabric, Clock& clock) {
    Party party;
    party.device =
        rnic::OpenDevice({.provider = "sw", .fabric = fabric, .node = kNoNode, .create_fabric = true}).value();
    party.pd = party.device->CreatePd().value();
    party.client = MetaClient::Create(*party.device, *party.pd, clock).value();
    return party;
  }
  ~Party() {
    client.reset();
    pd.reset();
    device.reset();
  }
  Party() = default;
  Party(Party&&) = default;
};

Record ServiceRecord(std::byte fill) {
  Record record;
  record.kind = RecordKind::kService;
  record.value_length = kMaxServiceBytes;
  std::fill(std::begin(record.value), std::end(record.value), fill);
  return record;
}

class MetaTable : public ::testing::Test {
 protected:
  void Host(uint32_t capacity, Clock* clock = nullptr) {
    host_ = OpenNode(fabric_, 1, clock);
    ASSERT_OK(host_->HostMetaServer(capacity));
  }
  Deadline Soon() { return Deadline::After(*RealClock(), 10 * kSecondNs); }
  // The records as they lie in the memory of this process.
  std::span<Record> Table(rnic::Device& device) {
    meta::Bootstrap bootstrap;
    const auto bytes = device.LookupRecord(meta::kBootstrapName).value();
    std::memcpy(&bootstrap, bytes.data(), sizeof(bootstrap));
    return {reinterpret_cast<Record*>(bootstrap.table_addr), size_t{bootstrap.buckets} * meta::kRecordsPerBucket};
  }
  Record* Find(rnic::Device& device, uint64_t key) {
    Record* found = nullptr;
    for (Record& record : Table(device)) {
      if (record.binding != key) continue;
      EXPECT_EQ(found, nullptr) << "a key is bound twice";
      found = &record;
    }
    return found;
  }

  const std::string fabric_ = UniqueFabric(true);
  FakeClock fake_clock_;  // outlives the host, which looks at its clock to the end
  std::unique_ptr<Node> host_;
};

TEST_F(MetaTable, HoldsTheRecordsOfAThousandNodes) {
  Host(1000);
  Party party = Party::Join(fabric_, *RealClock());
  for (NodeId id = 1; id <= 1000; ++id) {
    Record record;
    record.kind = RecordKind::kNode;
    record.set_node({.dc_key = id, .dct_num = id + 7});
    ASSERT_OK(party.client->Publish(NodeKey(id), record, Soon()));
  }
  for (NodeId id = 1; id <= 1000; ++id) {
    auto record = party.client->Lookup(NodeKey(id), Soon());
    ASSERT_TRUE(record.ok()) << id << ": " << record.status().ToString();
    EXPECT_EQ(record->node().dc_key, id);
    EXPECT_EQ(record->node().dct_num, id + 7);
  }
  EXPECT_EQ(party.client->Lookup(NodeKey(1001), Soon()).status().code(), StatusCode::kNotFound);
}

TEST_F(MetaTable, AnAnswerNeedsOneReadForNearlyEveryKey) {
  // At the stated capacity, keys that do not fit their first bucket are the ones that cost a second READ.
  constexpr uint32_t kCapacity = 4096;
  const uint32_t buckets = meta::BucketsFor(kCapacity);
  std::vector<uint32_t> used(buckets);
  uint32_t beyond_first = 0;
  for (NodeId id = 1; id <= kCapacity; ++id) {
    uint32_t probe = 0;
    while (used[meta::BucketOf(NodeKey(id), probe, buckets)] == meta::kRecordsPerBucket) ++probe;
    ASSERT_LT(probe, meta::kMaxProbes);
    ++used[meta::BucketOf(NodeKey(id), probe, buckets)];
    beyond_first += probe != 0;
  }
  EXPECT_LT(beyond_first, kCapacity / 20);
}

TEST_F(MetaTable, FullTableIsOutOfMemoryAndKeepsServing) {
  Host(1);  // the smallest table there is
  Party party = Party::Join(fabric_, *RealClock());
  const size_t records = Table(*party.device).size();
  NodeId id = 1;
  Status status;
  while ((status = party.client->Publish(NodeKey(id), ServiceRecord(std::byte{1}), Soon())).ok()) {
    ASSERT_LE(id, records);
    ++id;
  }
  EXPECT_EQ(status.code(), StatusCode::kOutOfMemory) << status.ToString();
  EXPECT_GT(id, records / 2) << "at least half can be used";
  for (NodeId known = 1; known < id; ++known) EXPECT_TRUE(party.client->Lookup(NodeKey(known), Soon()).ok());
}

TEST_F(MetaTable, PublishingAgainReplacesInPlace) {
  Host(64);
  Party party = Party::Join(fabric_, *RealClock());
  const uint64_t key = ServiceKey("a");
  ASSERT_OK(party.client->Publish(key, ServiceRecord(std::byte{1}), Soon()));
  const uint32_t sequence = party.client->Lookup(key, Soon())->sequence;
  ASSERT_OK(party.client->Publish(key, ServiceRecord(std::byte{2}), Soon()));
  const Record record = party.client->Lookup(key, Soon()).value();
  EXPECT_EQ(record.value[0], std::byte{2});
  EXPECT_EQ(record.sequence, sequence + 1);
  EXPECT_NE(Find(*party.device, key), nullptr);
}

TEST_F(MetaTable, CleanCloseRemovesWhatANodePublished) {
  Host(64);
  auto node = OpenNode(fabric_, 5);
  const std::byte value{7};
  ASSERT_OK(node->PublishService("s", {&value, 1}, Soon()));
  EXPECT_EQ(host_->LookupService("s", Soon())->at(0), value);
  node.reset();
  EXPECT_EQ(host_->LookupService("s", Soon()).status().code(), StatusCode::kNotFound);
  const std::byte other{8};
  ASSERT_OK(host_->PublishService("s", {&other, 1}, Soon()));
  EXPECT_EQ(host_->LookupService("s", Soon())->at(0), other);
}

TEST_F(MetaTable, MalformedServicesAreRefused) {
  Host(64);
  const std::byte long_value[kMaxServiceBytes + 1] = {};
  EXPECT_EQ(host_->PublishService("s", long_value, Soon()).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(host_->PublishService("", {}, Soon()).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(host_->LookupService("s", Soon()).status().code(), StatusCode::kNotFound);
  ASSERT_OK(host_->PublishService("s", {}, Soon()));
  EXPECT_TRUE(host_->LookupService("s", Soon())->empty());
}

TEST_F(MetaTable, ADamagedByteAnywhereInARecordIsDetected) {
  FakeClock& clock = fake_clock_;
  Host(64, &clock);
  Party party = Party::Join(fabric_, clock);
  const uint64_t key = ServiceKey("a");
  ASSERT_OK(party.client->Publish(key, ServiceRecord(std::byte{1}), Deadline::After(clock, kSecondNs)));
  auto* const bytes = reinterpret_cast<std::byte*>(Find(*party.device, key));
  ASSERT_NE(bytes, nullptr);
  // From `owner` on; another binding makes it another key's record.
  for (size_t i = offsetof(Record, owner); i < sizeof(Record); ++i) {
    bytes[i] ^= std::byte{0x10};
    const auto damaged = party.client->Lookup(key, Deadline::After(clock, kSecondNs));
    EXPECT_EQ(damaged.status().code(), StatusCode::kCorrupt) << "byte " << i;
    bytes[i] ^= std::byte{0x10};
  }
  EXPECT_TRUE(party.client->Lookup(key, Deadline::After(clock, kSecondNs)).ok());
}

TEST_F(MetaTable, AReaderNeverSeesAMixtureOfTwoVersions) {
  Host(64);
  Party writer = Party::Join(fabric_, *RealClock());
  Party reader = Party::Join(fabric_, *RealClock());
  const uint64_t key = ServiceKey("busy");
  ASSERT_OK(writer.client->Publish(key, ServiceRecord(std::byte{0}), Soon()));
  std::atomic<bool> stop{false};  // relaxed: nothing else is communicated through it
  std::thread rewriting([&] {
    for (unsigned i = 0; !stop.load(std::memory_order_relaxed); ++i)
      EXPECT_TRUE(writer.client->Publish(key, ServiceRecord(std::byte(i & 0xff)), Soon()).ok());
  });
  uint32_t last = 0;
  for (int i = 0; i < 20000; ++i) {
    const auto record = reader.client->Lookup(key, Soon());
    ASSERT_TRUE(record.ok()) << record.status().ToString();
    for (const std::byte b : record->value) ASSERT_EQ(b, record->value[0]);
    ASSERT_GE(record->sequence, last) << "versions go forward";
    last = record->sequence;
  }
  stop.store(true, std::memory_order_relaxed);
  rewriting.join();
}

TEST_F(MetaTable, OfRacingPublishersExactlyOneWins) {
  Host(1024);
  constexpr int kRacers = 4;
  constexpr int kServices = 100;
  std::vector<std::unique_ptr<Node>> nodes;
  for (int r = 0; r < kRacers; ++r) nodes.push_back(OpenNode(fabric_, kNoNode));
  std::vector<std::array<StatusCode, kServices>> codes(kRacers);
  std::vector<std::thread> threads;
  std::atomic<int> waiting{0};  // a start line: acquire and release, so that all see the nodes
  for (int r = 0; r < kRacers; ++r) {
    threads.emplace_back([&, r] {
      waiting.fetch_add(1, std::memory_order_acq_rel);
      while (waiting.load(std::memory_order_acquire) < kRacers) std::this_thread::yield();
      for (int s = 0; s < kServices; ++s) {
        const std::byte value{static_cast<unsigned char>(r)};
        codes[r][s] = nodes[r]->PublishService("service" + std::to_string(s), {&value, 1}, Soon()).code();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  Party observer = Party::Join(fabric_, *RealClock());
  for (int s = 0; s < kServices; ++s) {
    int winners = 0, winner = -1;
    for (int r = 0; r < kRacers; ++r) {
      EXPECT_TRUE(codes[r][s] == StatusCode::kOk || codes[r][s] == StatusCode::kExists) << StatusCodeName(codes[r][s]);
      if (codes[r][s] == StatusCode::kOk) ++winners, winner = r;
    }
    EXPECT_EQ(winners, 1);
    const std::string name = "service" + std::to_string(s);
    EXPECT_EQ(static_cast<int>(host_->LookupService(name, Soon()).value().at(0)), winner);
    EXPECT_NE(Find(*observer.device, ServiceKey(name)), nullptr);
  }
}

TEST_F(MetaTable, OfRacingHeirsOfADeadOwnerExactlyOneWins) {
  Host(1024);
  constexpr int kHeirs = 3;
  for (int round = 0; round < 20; ++round) {
    const uint64_t key = ServiceKey("estate" + std::to_string(round));
    {
      Party deceased = Party::Join(fabric_, *RealClock());
      Record node;
      node.kind = RecordKind::kNode;
      ASSERT_OK(deceased.client->Publish(NodeKey(deceased.device->address().node), node, Soon()));
      ASSERT_OK(deceased.client->Publish(key, ServiceRecord(std::byte{99}), Soon()));
    }
    std::vector<Party> heirs;
    for (int h = 0; h < kHeirs; ++h) heirs.push_back(Party::Join(fabric_, *RealClock()));
    StatusCode codes[kHeirs];
    std::vector<std::thread> threads;
    std::atomic<int> waiting{0};  // a start line
    for (int h = 0; h < kHeirs; ++h) {
      threads.emplace_back([&, h] {
        Record node;
        node.kind = RecordKind::kNode;
        EXPECT_TRUE(heirs[h].client->Publish(NodeKey(heirs[h].device->address().node), node, Soon()).ok());
        waiting.fetch_add(1, std::memory_order_acq_rel);
        while (waiting.load(std::memory_order_acquire) < kHeirs) std::this_thread::yield();
        codes[h] = heirs[h].client->Publish(key, ServiceRecord(std::byte(h)), Soon()).code();
      });
    }
    for (std::thread& thread : threads) thread.join();
    int winners = 0, winner = -1;
    for (int h = 0; h < kHeirs; ++h)
      if (codes[h] == StatusCode::kOk) ++winners, winner = h;
    ASSERT_EQ(winners, 1);
    EXPECT_EQ(heirs[0].client->Lookup(key, Soon())->value[0], std::byte(winner));
  }
}

TEST_F(MetaTable, ThreadsOfOneNodeMayPublishTogether) {
  Host(1024);
  auto node = OpenNode(fabric_, kNoNode);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 50; ++i) {
        const std::byte value{static_cast<unsigned char>(t)};
        EXPECT_TRUE(node->PublishService(std::to_string(t) + "/" + std::to_string(i), {&value, 1}, Soon()).ok());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (int t = 0; t < 4; ++t)
    for (int i = 0; i < 50; ++i)
      EXPECT_EQ(static_cast<int>(host_->LookupService(std::to_string(t) + "/" + std::to_string(i), Soon())->at(0)), t);
}

TEST(MetaTableProcesses, ConcurrentRegistrationsOfSeveralProcessesAllArrive) {
  const std::string fabric = UniqueFabric(false);
  constexpr int kProcesses = 4, kServices = 100;
  int go[2], done[2];
  ASSERT_EQ(pipe(go), 0);
  ASSERT_EQ(pipe(done), 0);
  std::vector<pid_t> children;
  for (int p = 0; p < kProcesses; ++p) {
    const pid_t child = fork();
    if (child == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);  // a failed test leaves nothing behind
      char byte;
      if (read(go[0], &byte, 1) != 1) _exit(1);
      auto node = Node::Open({.fabric = fabric});
      if (!node.ok()) _exit(2);
      const Deadline deadline = Deadline::After(*RealClock(), 10 * kSecondNs);
      for (int s = 0; s < kServices; ++s) {
        const std::byte value{static_cast<unsigned char>(p)};
        const std::string name = std::to_string(p) + "." + std::to_string(s);
        if (!(*node)->PublishService(name, {&value, 1}, deadline).ok()) _exit(3);
      }
      if (write(done[1], "x", 1) != 1) _exit(4);
      for (;;) pause();  // a clean close would remove the records
    }
    children.push_back(child);
  }
  {
    auto host = OpenNode(fabric, 1);
    ASSERT_OK(host->HostMetaServer(1024));
    ASSERT_EQ(write(go[1], "gggg", kProcesses), kProcesses);
    char byte;
    for (int p = 0; p < kProcesses; ++p) ASSERT_EQ(read(done[0], &byte, 1), 1);
    const Deadline deadline = Deadline::After(*RealClock(), 10 * kSecondNs);
    for (int p = 0; p < kProcesses; ++p) {
      for (int s = 0; s < kServices; ++s) {
        auto value = host->LookupService(std::to_string(p) + "." + std::to_string(s), deadline);
        ASSERT_TRUE(value.ok()) << value.status().ToString();
        EXPECT_EQ(static_cast<int>(value->at(0)), p);
      }
    }
    for (const pid_t child : children) {
      kill(child, SIGKILL);
      waitpid(child, nullptr, 0);
    }
  }
  for (const int fd : {go[0], go[1], done[0], done[1]}) close(fd);
  EXPECT_TRUE(CleanStaleFabrics("sw", fabric, true).ok());
}

}  // namespace
}  // namespace krcore::test
