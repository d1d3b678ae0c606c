// The metadata server's table under concurrency, damage and exhaustion.
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <deque>
#include <map>
#include <set>
#include <thread>

#include "tests/krcore/meta_fixture.h"
#include "tests/support/kill_process.h"

namespace krcore::test {
namespace {

TEST_F(MetaTable, HoldsTenThousandNodesInAFewMegabytesAndFindsNearlyAllByOneRead) {
  constexpr NodeId kNodes = kOnVerbs ? 100 : kSimulated ? 1000 : 10'000;
  constexpr NodeId kFirst = 1000, kUnknown = kOnVerbs ? 100 : 1000;
  Host(kNodes);
  Party party = Party::Join(fabric_, ClockOf(fabric_));
  for (NodeId id = kFirst; id < kFirst + kNodes; ++id) {
    party.Rename(id);
    NodePayload payload{.dc_key = id, .dct_num = id + 7, .region_count = kMaxRegionsPerNode};
    for (RemoteRegion& region : payload.regions) region = {.addr = id, .length = 4096, .rkey = id, .tag = 1};
    ASSERT_OK(party.client->Publish(Key::Node(id), std::as_bytes(std::span(&payload, 1)), Soon()));
  }
  EXPECT_LT(Table(*party.device).size_bytes(), kNodes * size_t{400} + (2 << 20));
  std::map<uint64_t, uint32_t> reads_per_lookup;
  for (NodeId id = kFirst; id < kFirst + kNodes; ++id) {
    const uint64_t before = party.client->stats().reads;
    auto record = party.client->Lookup(Key::Node(id), Soon());
    ASSERT_TRUE(record.ok()) << id << ": " << record.status().ToString();
    ++reads_per_lookup[party.client->stats().reads - before];
    ASSERT_EQ(record->node().dc_key, id);
    ASSERT_EQ(record->node().regions[kMaxRegionsPerNode - 1].rkey, id);
  }
  for (const auto& [reads, lookups] : reads_per_lookup) {
    std::printf("%u lookups took %u READs\n", lookups, static_cast<unsigned>(reads));
    RecordProperty("lookups_of_" + std::to_string(reads) + "_reads", static_cast<int>(lookups));
  }
  EXPECT_GT(reads_per_lookup[1], kNodes * 93 / 100);
  EXPECT_GT(reads_per_lookup[1] + reads_per_lookup[2], kNodes * 98 / 100);
  EXPECT_LE(reads_per_lookup.rbegin()->first, peers::kMaxProbes);
  // It is known as quickly that an id is not there.
  const uint64_t before = party.client->stats().reads;
  for (NodeId id = kFirst + kNodes; id < kFirst + kNodes + kUnknown; ++id)
    EXPECT_EQ(party.client->Lookup(Key::Node(id), Soon()).status().code(), StatusCode::kNotFound);
  EXPECT_LT(party.client->stats().reads - before, kUnknown * 13 / 10);
}

TEST_F(MetaTable, FullOfLivingNodesIsOutOfMemoryAndKeepsServing) {
  Host(1);  // the smallest table there is
  Party party = Party::Join(fabric_, ClockOf(fabric_));
  NodeId id = 1000;
  Status status;
  for (;; ++id) {
    party.Rename(id);
    status = party.PublishNode({.dc_key = id}, Soon());
    if (!status.ok()) break;
    ASSERT_LE(id, 1000 + Table(*party.device).size());
  }
  EXPECT_EQ(status.code(), StatusCode::kOutOfMemory) << status.ToString();
  EXPECT_GT(id - 1000, peers::kMaxProbes * peers::kRecordsPerBucket / 2);
  for (NodeId known = 1000; known < id; ++known) EXPECT_TRUE(party.client->Lookup(Key::Node(known), Soon()).ok());
}

// A node that goes, cleanly or not, leaves its record to others, whatever their ids. No id recurs here.
TEST_F(MetaTable, NodesThatComeAndGoForEverDoNotFillIt) {
  Host(8);
  std::deque<Party> living;
  for (NodeId id = 1000; id < 1000 + (kOnVerbs ? 30 : kSimulated ? 300 : 1000); ++id) {
    living.push_back(Party::Join(fabric_, ClockOf(fabric_)));
    living.back().Rename(id);
    ASSERT_OK(living.back().PublishNode({.dc_key = id}, Soon()));
    if (living.size() < 6) continue;
    if (id % 2 == 0) living.front().Close(Soon());  // otherwise as if it crashed
    living.pop_front();
  }
  Party reader = Party::Join(fabric_, ClockOf(fabric_));
  for (const Party& party : living) {
    auto record = reader.client->Lookup(Key::Node(party.published_as), Soon());
    ASSERT_TRUE(record.ok()) << record.status().ToString();
    EXPECT_EQ(record->node().dc_key, party.published_as);
  }
}

TEST_F(MetaTable, PublishingAgainReplacesInPlace) {
  Host(64);
  Party party = Party::Join(fabric_, ClockOf(fabric_));
  const Key key = Key::Service("a");
  ASSERT_OK(party.client->Publish(key, Filled(std::byte{1}), Soon()));
  const uint32_t sequence = party.client->Lookup(key, Soon())->sequence;
  ASSERT_OK(party.client->Publish(key, Filled(std::byte{2}), Soon()));
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
  Clock& clock = kSimulated ? ClockOf(fabric_) : fake_clock_;
  const int64_t patience_ns = kSimulated ? kSecondNs / 1000 : kOnVerbs ? kSecondNs / 10 : kSecondNs;
  Host(64, &clock);
  Party party = Party::Join(fabric_, clock);
  const Key key = Key::Service("a");
  ASSERT_OK(party.client->Publish(key, Filled(std::byte{1}), Deadline::After(clock, kSecondNs)));
  auto* const bytes = reinterpret_cast<std::byte*>(Find(*party.device, key));
  ASSERT_NE(bytes, nullptr);
  // Another binding would make it another key's record.
  for (size_t i = 0; i < sizeof(Record); i += kOnVerbs ? 29 : 1) {  // the patience is real on verbs
    if (i >= offsetof(Record, binding) && i < offsetof(Record, checksum)) continue;
    bytes[i] ^= std::byte{0x10};
    const auto damaged = party.client->Lookup(key, Deadline::After(clock, patience_ns));
    // With another incarnation it is a record that a dead owner has not finished.
    const bool dead_owner = i < sizeof(uint32_t) && damaged.status() == StatusCode::kNotFound;
    EXPECT_TRUE(dead_owner || damaged.status() == StatusCode::kCorrupt) << "byte " << i << damaged.status().ToString();
    bytes[i] ^= std::byte{0x10};
  }
  EXPECT_TRUE(party.client->Lookup(key, Deadline::After(clock, kSecondNs)).ok());
}

TEST_F(MetaTable, AReaderNeverSeesAMixtureOfTwoVersions) {
  SKIP_IF_SIMULATED("one thread");
  Host(64);
  Party writer = Party::Join(fabric_, ClockOf(fabric_));
  Party reader = Party::Join(fabric_, ClockOf(fabric_));
  const Key key = Key::Service("busy");
  ASSERT_OK(writer.client->Publish(key, Filled(std::byte{0}), Soon()));
  std::atomic<bool> stop{false};  // relaxed: nothing else is communicated through it
  std::thread rewriting([&] {
    for (unsigned i = 0; !stop.load(std::memory_order_relaxed); ++i)
      EXPECT_TRUE(writer.client->Publish(key, Filled(std::byte(i & 0xff)), Soon()).ok());
  });
  uint32_t last = 0;
  for (int i = 0; i < (kOnVerbs ? 2000 : 20000); ++i) {
    const auto record = reader.client->Lookup(key, Soon());
    ASSERT_TRUE(record.ok()) << record.status().ToString();
    for (const std::byte b : std::span(record->value).first(kMaxServiceBytes)) ASSERT_EQ(b, record->value[0]);
    ASSERT_GE(record->sequence, last) << "versions go forward";
    last = record->sequence;
  }
  stop.store(true, std::memory_order_relaxed);
  rewriting.join();
}

TEST_F(MetaTable, OfRacingPublishersExactlyOneWins) {
  SKIP_IF_SIMULATED("one thread");
  Host(1024);
  constexpr int kRacers = 4;
  constexpr int kServices = kOnVerbs ? 30 : 100;
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
  Party observer = Party::Join(fabric_, ClockOf(fabric_));
  for (int s = 0; s < kServices; ++s) {
    int winners = 0, winner = -1;
    for (int r = 0; r < kRacers; ++r) {
      EXPECT_TRUE(codes[r][s] == StatusCode::kOk || codes[r][s] == StatusCode::kExists) << StatusCodeName(codes[r][s]);
      if (codes[r][s] == StatusCode::kOk) ++winners, winner = r;
    }
    EXPECT_EQ(winners, 1);
    const std::string name = "service" + std::to_string(s);
    EXPECT_EQ(static_cast<int>(host_->LookupService(name, Soon()).value().at(0)), winner);
    EXPECT_NE(Find(*observer.device, Key::Service(name)), nullptr);
  }
}

TEST_F(MetaTable, OfRacingHeirsOfADeadOwnerExactlyOneWins) {
  SKIP_IF_SIMULATED("one thread");
  Host(1024);
  constexpr int kHeirs = 3;
  for (int round = 0; round < (kOnVerbs ? 4 : 20); ++round) {
    const Key key = Key::Service("estate" + std::to_string(round));
    {
      Party deceased = Party::Join(fabric_, ClockOf(fabric_));
      ASSERT_OK(deceased.PublishNode({}, Soon()));
      ASSERT_OK(deceased.client->Publish(key, Filled(std::byte{99}), Soon()));
    }
    std::vector<Party> heirs;
    for (int h = 0; h < kHeirs; ++h) heirs.push_back(Party::Join(fabric_, ClockOf(fabric_)));
    StatusCode codes[kHeirs];
    std::vector<std::thread> threads;
    std::atomic<int> waiting{0};  // a start line
    for (int h = 0; h < kHeirs; ++h) {
      threads.emplace_back([&, h] {
        EXPECT_TRUE(heirs[h].PublishNode({}, Soon()).ok());
        waiting.fetch_add(1, std::memory_order_acq_rel);
        while (waiting.load(std::memory_order_acquire) < kHeirs) std::this_thread::yield();
        codes[h] = heirs[h].client->Publish(key, Filled(std::byte(h)), Soon()).code();
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
  SKIP_IF_SIMULATED("one thread");
  constexpr int kServices = kOnVerbs ? 15 : 50;
  Host(1024);
  auto node = OpenNode(fabric_, kNoNode);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < kServices; ++i) {
        const std::byte value{static_cast<unsigned char>(t)};
        EXPECT_TRUE(node->PublishService(std::to_string(t) + "/" + std::to_string(i), {&value, 1}, Soon()).ok());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (int t = 0; t < 4; ++t)
    for (int i = 0; i < kServices; ++i)
      EXPECT_EQ(static_cast<int>(host_->LookupService(std::to_string(t) + "/" + std::to_string(i), Soon())->at(0)), t);
}

TEST(MetaTableProcesses, ConcurrentRegistrationsOfSeveralProcessesAllArrive) {
  SKIP_IF_SIMULATED("one process");
  const std::string fabric = UniqueFabric(false);
  constexpr int kProcesses = 4, kServices = kOnVerbs ? 15 : 100;
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
      auto node = OpenNode(fabric, kNoNode);
      if (node == nullptr) _exit(2);
      const Deadline deadline = Deadline::After(*RealClock(), 10 * kSecondNs);
      for (int s = 0; s < kServices; ++s) {
        const std::byte value{static_cast<unsigned char>(p)};
        const std::string name = std::to_string(p) + "." + std::to_string(s);
        if (!node->PublishService(name, {&value, 1}, deadline).ok()) _exit(3);
      }
      if (write(done[1], "x", 1) != 1) _exit(4);
      for (;;) pause();  // a clean close would remove the records
    }
    children.push_back(child);
  }
  close(done[1]);  // the test does not wait for a process that has died
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
      (void)testing_support::KillProcess(child);
      waitpid(child, nullptr, 0);
    }
  }
  for (const int fd : {go[0], go[1], done[0]}) close(fd);
  EXPECT_TRUE(CleanStaleFabrics("sw", fabric, true).ok());
}

}  // namespace
}  // namespace krcore::test
