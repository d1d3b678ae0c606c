// What the processes of a host share: metadata, so that a new process finds its peers known, and DC initiators. A fault
// of an initiator is felt by all of them and harms none. On sw. Nodes of one process stand for processes where that
// makes no difference.
#include <algorithm>
#include <array>
#include <atomic>
#include <random>
#include <thread>
#include <vector>

#include "krcore/peers/peer_directory.h"
#include "tests/krcore/fixture.h"
#include "tests/rnic/sw_child.h"

namespace krcore::test {
namespace {

// ---- the cache itself

class Cache : public ::testing::Test {
 protected:
  static constexpr size_t kEntryBytes = 192;
  static peers::HostRecord Record(NodeId node, uint64_t stamp) {
    peers::HostRecord record;
    record.address.node = node;
    record.address.incarnation = static_cast<uint32_t>(stamp);
    record.dc_key = stamp * 3;
    record.dct_num = static_cast<uint32_t>(stamp * 5);
    record.sequence = static_cast<uint32_t>(stamp * 7);
    record.lease_until_ns = static_cast<int64_t>(stamp + 1'000'000);
    record.region_count = kMaxRegionsPerNode;
    for (RemoteRegion& region : record.regions) region = {stamp, stamp + 1, static_cast<uint32_t>(stamp), 9};
    return record;
  }
  static bool Whole(const peers::HostRecord& record) {
    const peers::HostRecord want = Record(record.address.node, record.address.incarnation);
    return std::memcmp(&record, &want, sizeof(want)) == 0;
  }
  struct alignas(64) Memory {
    std::array<uint64_t, 16 * kEntryBytes / 8> words{};
    uint64_t& operator[](size_t i) { return words[i]; }
    uint64_t operator[](size_t i) const { return words[i]; }
  };
  Memory memory_;
  std::span<std::byte> bytes() { return std::as_writable_bytes(std::span(memory_.words)); }
};

TEST_F(Cache, FindsWhatWasPutUntilItsLeaseIsOver) {
  peers::HostCache cache(bytes());
  EXPECT_EQ(cache.capacity(), 16u);
  EXPECT_FALSE(cache.Find(5, 0));
  cache.Put(Record(5, 100));
  ASSERT_TRUE(cache.Find(5, 0));
  EXPECT_TRUE(Whole(*cache.Find(5, 0)));
  EXPECT_TRUE(cache.Find(5, 1'000'099));
  EXPECT_FALSE(cache.Find(5, 1'000'100));
  EXPECT_FALSE(cache.Find(21, 0)) << "the same entry, another node";
  cache.Put(Record(21, 200));
  EXPECT_FALSE(cache.Find(5, 0)) << "displaced";
  cache.Drop(5);
  EXPECT_TRUE(cache.Find(21, 0));
  cache.Drop(21);
  EXPECT_FALSE(cache.Find(21, 0));
}

TEST_F(Cache, WithoutMemoryItIsEmptyForEver) {
  peers::HostCache cache({});
  cache.Put(Record(5, 100));
  cache.Drop(5);
  EXPECT_FALSE(cache.Find(5, 0));
}

// Such as a writer leaves that is killed between two stores, or two writers that meet.
TEST_F(Cache, AnEntryWithAWordOfAnotherRecordIsNone) {
  peers::HostCache cache(bytes());
  cache.Put(Record(5, 200));
  const Memory second = memory_;
  cache.Put(Record(5, 100));
  const Memory first = memory_;
  size_t differing = 0;
  for (size_t word = 5 * kEntryBytes / 8; word < 6 * kEntryBytes / 8; ++word) {
    if (first[word] == second[word]) continue;
    ++differing;
    memory_ = first;
    memory_[word] = second[word];
    EXPECT_FALSE(cache.Find(5, 0)) << "word " << word;
    memory_ = second;
    memory_[word] = first[word];
    EXPECT_FALSE(cache.Find(5, 0)) << "word " << word;
  }
  EXPECT_GT(differing, 15u);
}

TEST_F(Cache, ReadersSeeWholeRecordsWhateverWritersDo) {
  peers::HostCache cache(bytes());
  std::atomic<bool> stop{false};
  std::atomic<uint64_t> found{0};
  std::vector<std::thread> threads;
  for (uint32_t writer = 0; writer < 2; ++writer) {
    threads.emplace_back([&, writer] {
      std::mt19937 random(writer);
      for (int i = 0; i < 200'000 || found.load() == 0; ++i) {  // the reader may begin late
        const NodeId node = 1 + random() % 20;
        if (random() % 16 == 0)
          cache.Drop(node);
        else
          cache.Put(Record(node, 1 + random() % 1000));
      }
      stop.store(true);
    });
  }
  threads.emplace_back([&] {
    for (NodeId node = 1; !stop.load(); node = node % 20 + 1) {
      const auto record = cache.Find(node, 0);
      if (!record) continue;
      ASSERT_EQ(record->address.node, node);
      ASSERT_TRUE(Whole(*record));
      found.fetch_add(1);
    }
  });
  for (std::thread& thread : threads) thread.join();
  EXPECT_GT(found.load(), 0u);
}

// ---- nodes of one host

class HostOfNodes : public ::testing::Test {
 protected:
  Worker Alone() {
    auto node = Node::Open({.rnic = kRnic, .fabric = fabric_, .share_host = false});
    EXPECT_TRUE(node.ok()) << node.status().ToString();
    Worker worker;
    worker.node = *std::move(node);
    worker.Prepare({}, 4096);
    return worker;
  }
  // A request of `queue`, which is connected for it, that only the peer can refuse: it goes to a region that is
  // published but was destroyed without Deregister.
  static WorkRequest Wrong(MemoryNode& memory, Worker& worker, VirtualQueue& queue, const Sge* sge) {
    auto region = memory.node->CreateRegion({.length = 4096, .remote_rights = kAllRights}).value();
    EXPECT_TRUE(memory.node->Publish(worker.Soon()).ok());
    EXPECT_TRUE(queue.Connect(1, worker.Soon()).ok());
    WorkRequest wrong = OnWord(queue, Opcode::kRead, sge, 0);
    wrong.rkey = queue.regions()[1].rkey;
    wrong.remote_addr = queue.regions()[1].addr;
    return wrong;
  }
  const std::string fabric_ = UniqueFabric(true);
};

TEST_F(HostOfNodes, ANewNodeFindsWhatAnotherHasLookedUp) {
  MemoryNode memory = MemoryNode::Start(fabric_, 1, 4096, true);
  Worker first = Worker::Start(fabric_), second = Worker::Start(fabric_), alone = Alone();
  auto a = first.Connect(1), b = second.Connect(1), c = alone.Connect(1);
  EXPECT_EQ(first.pool->stats().metadata_lookups, 1u);
  EXPECT_EQ(second.pool->stats().metadata_lookups, 0u);
  EXPECT_EQ(second.pool->stats().metadata_hits, 1u);
  EXPECT_EQ(alone.pool->stats().metadata_lookups, 1u);
  EXPECT_EQ(second.pool->stats().host_queues, QueuePoolOptions{}.dc_initiators);
  EXPECT_EQ(alone.pool->stats().host_queues, 0u);
  memory.words()[3] = 77;
  for (auto* one : {&second, &alone}) {
    const Sge sge = one->Word(0);
    auto& queue = one == &second ? b : c;
    EXPECT_EQ(Execute(*one->pool, *queue, OnWord(*queue, Opcode::kRead, &sge, 3)).status, WcStatus::kSuccess);
    EXPECT_EQ(one->words()[0], 77u);
  }
}

TEST_F(HostOfNodes, ANodeWithAClockOfItsOwnSharesNothing) {
  MemoryNode memory = MemoryNode::Start(fabric_, 1, 4096, true);
  Worker first = Worker::Start(fabric_);
  auto a = first.Connect(1);
  FakeClock clock;
  Worker other;
  other.node = OpenNode(fabric_, kNoNode, &clock);
  other.Prepare({}, 4096);
  auto b = other.Connect(1);
  EXPECT_EQ(other.pool->stats().metadata_lookups, 1u);
  EXPECT_EQ(other.pool->stats().host_queues, 0u);
}

TEST_F(HostOfNodes, WhatANodePublishesAnewIsFoundAtOnce) {
  MemoryNode memory = MemoryNode::Start(fabric_, 1, 4096, true);
  Worker first = Worker::Start(fabric_);
  EXPECT_EQ(first.Connect(1)->regions().size(), 1u);
  auto more = memory.node->CreateRegion({.length = 4096, .remote_rights = kRemoteRead}).value();
  ASSERT_OK(memory.node->Publish(first.Soon()));
  Worker second = Worker::Start(fabric_);
  EXPECT_EQ(second.Connect(1)->regions().size(), 2u);
}

TEST_F(HostOfNodes, ASuccessorIsFoundAndADeadNodeIsNot) {
  MemoryNode meta = MemoryNode::Start(fabric_, 1, 4096, true);
  uint32_t before = 0;
  Worker first = Worker::Start(fabric_);
  {
    MemoryNode memory = MemoryNode::Start(fabric_, 2, 4096, false);
    before = memory.node->incarnation();
    auto queue = first.Connect(2);
  }
  Worker second = Worker::Start(fabric_);
  auto queue = second.pool->CreateQueue(8).value();
  EXPECT_FALSE(queue->Connect(2, second.Soon()).ok());
  MemoryNode successor = MemoryNode::Start(fabric_, 2, 4096, false);
  EXPECT_NE(successor.node->incarnation(), before);
  ASSERT_OK(queue->Connect(2, second.Soon()));
  const Sge sge = second.Word(0);
  EXPECT_EQ(Execute(*second.pool, *queue, OnWord(*queue, Opcode::kRead, &sge, 0)).status, WcStatus::kSuccess);
}

// The lease that came with the host's metadata began with the lookup that found the metadata.
TEST_F(HostOfNodes, AWithdrawnRegionIsUsedByNobodyAndBreaksNothing) {
  auto meta =
      Node::Open({.rnic = kRnic, .fabric = fabric_, .node = 1, .create_fabric = true, .mr_lease_ns = 20'000'000})
          .value();
  ASSERT_OK(meta->HostMetaServer(64));
  MemoryNode memory = MemoryNode::Start(fabric_, 2, 4096, false);
  Worker first = Worker::Start(fabric_);
  auto a = first.Connect(2);
  Worker second = Worker::Start(fabric_);
  auto b = second.Connect(2);
  const Sge sge = second.Word(0);
  const WorkRequest read = OnWord(*b, Opcode::kRead, &sge, 0);
  EXPECT_EQ(Execute(*second.pool, *b, read).status, WcStatus::kSuccess);
  ASSERT_OK(memory.region->Deregister(second.Soon()));
  const Status pushed = b->Push({&read, 1});
  if (pushed.ok()) {  // staged before the lease was looked at
    EXPECT_EQ(Await(*second.pool, *b, 1)[0].status, WcStatus::kRemoteAccessError);
  } else {
    EXPECT_EQ(pushed, StatusCode::kPermissionDenied);
  }
  EXPECT_EQ(second.pool->stats().broken_queues + first.pool->stats().broken_queues, 0u);
}

TEST_F(HostOfNodes, OneLookupRenewsTheLeaseOfAll) {
  constexpr int64_t kLeaseNs = 20'000'000;
  auto meta =
      Node::Open({.rnic = kRnic, .fabric = fabric_, .node = 1, .create_fabric = true, .mr_lease_ns = kLeaseNs}).value();
  ASSERT_OK(meta->HostMetaServer(64));
  MemoryNode memory = MemoryNode::Start(fabric_, 2, 4096, false);
  std::vector<Worker> workers;
  std::vector<std::unique_ptr<VirtualQueue>> queues;
  for (int i = 0; i < 8; ++i) {
    workers.push_back(Worker::Start(fabric_));
    queues.push_back(workers.back().Connect(2));
  }
  Clock& clock = *RealClock();
  uint64_t renewals = 0;
  const int64_t begin_ns = clock.NowNs();
  const Deadline end = Deadline::After(clock, 20 * kSecondNs);
  while (renewals < 8 && !end.Passed(clock)) {
    renewals = 0;
    for (size_t i = 0; i < workers.size(); ++i) {
      const Sge sge = workers[i].Word(0);
      const Completion done = Execute(*workers[i].pool, *queues[i], OnWord(*queues[i], Opcode::kRead, &sge, 0));
      ASSERT_EQ(done.status, WcStatus::kSuccess);
      renewals += workers[i].pool->stats().lease_renewals;
    }
  }
  EXPECT_GE(renewals, 8u);
  // All use their queues all the time, in one thread. The first to come when a quarter of the lease is left renews it
  // for all.
  EXPECT_LE(renewals, static_cast<uint64_t>((clock.NowNs() - begin_ns) / (kLeaseNs * 3 / 4)) + 1);
}

TEST_F(HostOfNodes, WhoFindsNoPartLeftMakesAnInitiatorOfItsOwn) {
  MemoryNode memory = MemoryNode::Start(fabric_, 1, 4096, true);
  const QueuePoolOptions small{.dc_initiators = 1, .sq_depth = 4, .max_rc_queues = 0};
  std::vector<Worker> workers;
  do {
    workers.push_back(Worker::Start(fabric_, small, 4096));
  } while (workers.back().pool->stats().host_queues == 1 && workers.size() < 100);
  EXPECT_GT(workers.size(), 60u);
  Worker& last = workers.back();
  EXPECT_EQ(last.pool->stats().host_queues, 0u);
  auto queue = last.Connect(1);
  const Sge sge = last.Word(0);
  EXPECT_EQ(Execute(*last.pool, *queue, OnWord(*queue, Opcode::kRead, &sge, 0)).status, WcStatus::kSuccess);
  // A node's next pool takes another initiator of the host.
  EXPECT_EQ(last.node->CreateQueuePool(small).value()->stats().host_queues, 1u);
}

// A request that only the peer can refuse breaks the QP for every node. A node that has nothing in flight loses
// nothing.
TEST_F(HostOfNodes, AFaultOfAnotherNodeCostsWhatIsStagedNothing) {
  MemoryNode memory = MemoryNode::Start(fabric_, 1, 4096, true);
  const QueuePoolOptions one{.dc_initiators = 1, .max_rc_queues = 0};
  Worker culprit = Worker::Start(fabric_, one), innocent = Worker::Start(fabric_, one);
  auto bad = culprit.Connect(1);
  auto good = innocent.Connect(1);
  const Sge sge = innocent.Word(0), bad_sge = culprit.Word(0);
  uint64_t pushed = 0;
  for (uint64_t round = 1; round <= 20; ++round) {
    const WorkRequest wrong = Wrong(memory, culprit, *bad, &bad_sge);
    WorkRequest add = OnWord(*good, Opcode::kFetchAdd, &sge, 0, round);
    add.compare_add = 1;
    std::vector<WorkRequest> adds(10, add);
    for (WorkRequest& wr : adds) wr.flags = kSignaled;
    ASSERT_OK(Post(*innocent.pool, *good, std::span(adds).first(4)));  // executed, but not collected yet
    ASSERT_OK(good->Stage(std::span(adds).subspan(4)));
    ASSERT_OK(bad->Push({&wrong, 1}));           // on sw it has failed by now, and no node has repaired the QP
    if (round % 2 == 0) innocent.pool->Flush();  // this does not post into it either
    for (const Completion& done : Await(*innocent.pool, *good, 10)) EXPECT_EQ(done.status, WcStatus::kSuccess);
    EXPECT_EQ(Await(*culprit.pool, *bad, 1)[0].status, WcStatus::kRemoteAccessError);
    pushed += 10;
  }
  EXPECT_EQ(memory.words()[0], pushed);
  EXPECT_EQ(culprit.pool->stats().broken_queues, 20u);
  EXPECT_EQ(innocent.pool->stats().broken_by_others, 20u);
  EXPECT_EQ(culprit.pool->stats().broken_by_others, 0u);
}

// Where requests are executed when they are pushed, none is ever in flight.
TEST_F(HostOfNodes, AFaultOfAnotherNodeBetweenTwoPushesCostsTheSecondNothing) {
  MemoryNode memory = MemoryNode::Start(fabric_, 1, 4096, true);
  const QueuePoolOptions one{.dc_initiators = 1, .max_rc_queues = 0};
  Worker culprit = Worker::Start(fabric_, one), innocent = Worker::Start(fabric_, one);
  auto bad = culprit.Connect(1), good = innocent.Connect(1);
  const Sge sge = innocent.Word(0), bad_sge = culprit.Word(0);
  WorkRequest add = OnWord(*good, Opcode::kFetchAdd, &sge, 0);
  add.compare_add = 1;
  for (uint64_t round = 1; round <= 20; ++round) {
    const WorkRequest wrong = Wrong(memory, culprit, *bad, &bad_sge);
    EXPECT_EQ(Execute(*innocent.pool, *good, add).status, WcStatus::kSuccess);
    ASSERT_OK(bad->Push({&wrong, 1}));
    EXPECT_EQ(Execute(*innocent.pool, *good, add).status, WcStatus::kSuccess);
    EXPECT_EQ(Await(*culprit.pool, *bad, 1)[0].status, WcStatus::kRemoteAccessError);
    EXPECT_EQ(memory.words()[0], 2 * round);
  }
}

// A node whose peer has died breaks the host's QP. Another node that knows the same peer does not break it again.
TEST_F(HostOfNodes, ADeadPeerBreaksTheQpOnce) {
  MemoryNode steady = MemoryNode::Start(fabric_, 1, 4096, true), doomed = MemoryNode::Start(fabric_, 2, 4096, false);
  const QueuePoolOptions one{.dc_initiators = 1, .max_rc_queues = 0};
  Worker first = Worker::Start(fabric_, one), second = Worker::Start(fabric_, one);
  auto bad = first.Connect(2), also_bad = second.Connect(2), good = second.Connect(1);
  const Sge sge = first.Word(0), other_sge = second.Word(0), good_sge = second.Word(1);
  const WorkRequest read = OnWord(*bad, Opcode::kRead, &sge, 0);
  const WorkRequest also_read = OnWord(*also_bad, Opcode::kRead, &other_sge, 0);
  const WorkRequest good_read = OnWord(*good, Opcode::kRead, &good_sge, 0);
  doomed.region.reset();
  doomed.node.reset();
  ASSERT_OK(also_bad->Stage({&also_read, 1}));
  ASSERT_OK(good->Stage({&good_read, 1}));
  ASSERT_OK(bad->Push({&read, 1}));
  EXPECT_EQ(Await(*second.pool, *good, 1)[0].status, WcStatus::kSuccess);
  EXPECT_EQ(Await(*second.pool, *also_bad, 1)[0].status, WcStatus::kRetryExceeded) << "never posted";
  EXPECT_EQ(also_bad->Push({&also_read, 1}), StatusCode::kUnavailable);
  EXPECT_EQ(second.pool->stats().broken_queues, 1u);
  EXPECT_EQ(second.pool->stats().broken_by_others, 1u);
  EXPECT_EQ(Await(*first.pool, *bad, 1)[0].status, WcStatus::kRetryExceeded);
}

TEST_F(HostOfNodes, DeadPeersOfAllInitiatorsAreStoppedWhenOneBreaks) {
  MemoryNode steady = MemoryNode::Start(fabric_, 1, 4096, true);
  std::vector<MemoryNode> doomed;
  for (const NodeId id : {2, 3}) doomed.push_back(MemoryNode::Start(fabric_, id, 4096, false));
  const QueuePoolOptions two{.dc_initiators = 2, .max_rc_queues = 0};
  Worker first = Worker::Start(fabric_, two), second = Worker::Start(fabric_, two);
  auto breaks = first.Connect(2), even = second.Connect(2), odd = second.Connect(3);
  const Sge sges[] = {first.Word(0), second.Word(0), second.Word(1)};
  const WorkRequest first_read = OnWord(*breaks, Opcode::kRead, &sges[0], 0);
  const WorkRequest even_read = OnWord(*even, Opcode::kRead, &sges[1], 0);
  const WorkRequest odd_read = OnWord(*odd, Opcode::kRead, &sges[2], 0);
  doomed.clear();
  ASSERT_OK(even->Stage({&even_read, 1}));
  ASSERT_OK(odd->Stage({&odd_read, 1}));
  ASSERT_OK(breaks->Push({&first_read, 1}));
  for (auto* queue : {&even, &odd}) EXPECT_EQ(Await(*second.pool, **queue, 1)[0].status, WcStatus::kRetryExceeded);
  EXPECT_EQ(second.pool->stats().broken_queues, 1u) << "the one that was broken";
}

TEST_F(HostOfNodes, OnesOwnFaultIsNotTakenForAnothers) {
  MemoryNode memory = MemoryNode::Start(fabric_, 1, 4096, true);
  auto region = memory.node->CreateRegion({.length = 4096, .remote_rights = kAllRights}).value();
  ASSERT_OK(memory.node->Publish(Deadline::After(*RealClock(), 5 * kSecondNs)));
  Worker worker = Worker::Start(fabric_, {.dc_initiators = 1, .max_rc_queues = 0});
  auto bad = worker.Connect(1), good = worker.Connect(1);
  const Sge sge = worker.Word(0);
  WorkRequest wrong = OnWord(*bad, Opcode::kRead, &sge, 0);
  wrong.rkey = bad->regions()[1].rkey;
  wrong.remote_addr = bad->regions()[1].addr;
  const WorkRequest right = OnWord(*good, Opcode::kRead, &sge, 0);
  region.reset();
  ASSERT_OK(bad->Push({&wrong, 1}));
  ASSERT_OK(good->Push({&right, 1}));
  EXPECT_EQ(Await(*worker.pool, *good, 1)[0].status, WcStatus::kSuccess);
  EXPECT_EQ(worker.pool->stats().broken_by_others, 0u);
  EXPECT_EQ(worker.pool->stats().broken_queues, 1u);
}

// ---- processes

class HostOfProcesses : public ::testing::Test {
 protected:
  void TearDown() override { EXPECT_TRUE(CleanStaleFabrics("sw", fabric_, true).ok()); }
  const std::string fabric_ = UniqueFabric(false);
};

TEST_F(HostOfProcesses, AFreshProcessFindsItsPeersKnown) {
  MemoryNode memory = MemoryNode::Start(fabric_, 1, 4096, true);
  Worker first = Worker::Start(fabric_);
  auto a = first.Connect(1);
  rnic::testing::Child child([&](auto& self) {
    Worker fresh = Worker::Start(fabric_);
    auto queue = fresh.Connect(1);
    EXPECT_EQ(fresh.pool->stats().metadata_lookups, 0u);
    EXPECT_EQ(fresh.pool->stats().metadata_hits, 1u);
    const Sge sge = fresh.Word(0);
    EXPECT_EQ(Execute(*fresh.pool, *queue, OnWord(*queue, Opcode::kRead, &sge, 0)).status, WcStatus::kSuccess);
    self.Ready();
  });
  // A lease is a second. If the machine stops this test for that long, the test looks up again.
  EXPECT_EQ(child.Wait(), 0);
}

TEST_F(HostOfProcesses, TheMetadataOutlivesItsFinder) {
  MemoryNode memory = MemoryNode::Start(fabric_, 1, 4096, true);
  rnic::testing::Child child([&](auto& self) {
    Worker finder = Worker::Start(fabric_);
    auto queue = finder.Connect(1);
    self.Ready();
    self.Sleep();
  });
  ASSERT_TRUE(child.WaitReady());
  child.Kill();
  Worker second = Worker::Start(fabric_);
  auto queue = second.Connect(1);
  EXPECT_EQ(second.pool->stats().metadata_lookups, 0u);
}

TEST_F(HostOfProcesses, AKilledProcessGivesItsPartsBack) {
  MemoryNode memory = MemoryNode::Start(fabric_, 1, 4096, true);
  const QueuePoolOptions small{.dc_initiators = 1, .sq_depth = 4, .max_rc_queues = 0};
  // Starts workers until one finds no part left.
  const auto take_all = [&](std::vector<Worker>* workers) {
    do {
      workers->push_back(Worker::Start(fabric_, small, 4096));
    } while (workers->back().pool->stats().host_queues == 1 && workers->size() < 100);
    return workers->size() - 1;
  };
  size_t all = 0;
  {
    std::vector<Worker> workers;
    all = take_all(&workers);
  }
  EXPECT_GT(all, 60u);
  EXPECT_LT(all, 99u);
  for (int round = 0; round < 3; ++round) {
    rnic::testing::Child child([&](auto& self) {
      std::vector<Worker> taken;
      EXPECT_EQ(take_all(&taken), all);
      if (::testing::Test::HasFailure()) _exit(1);
      self.Ready();
      self.Sleep();
    });
    ASSERT_TRUE(child.WaitReady());
    std::vector<Worker> workers;
    EXPECT_EQ(take_all(&workers), 0u) << "all are taken";
    workers.clear();
    child.Kill();
    EXPECT_EQ(take_all(&workers), all);
  }
}

}  // namespace
}  // namespace krcore::test
