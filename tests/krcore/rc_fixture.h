// What the tests of RC queues share.
#ifndef TESTS_KRCORE_RC_FIXTURE_H_
#define TESTS_KRCORE_RC_FIXTURE_H_

#include "krcore/queue/queue_pool_impl.h"
#include "tests/krcore/fixture.h"

namespace krcore::test {

inline queue::QueuePoolImpl& ImplOf(QueuePool& pool) { return static_cast<queue::QueuePoolImpl&>(pool); }
inline queue::RcQueues& RcOf(QueuePool& pool) { return *ImplOf(pool).rc(); }

// The node's metadata as the pool's node has cached it.
inline std::shared_ptr<const peers::Peer> CachedPeer(QueuePool& pool, NodeId node) {
  return ImplOf(pool).peers().Cached(node);
}
inline bool IsOnRc(QueuePool& pool, NodeId node) {
  const auto peer = CachedPeer(pool, node);
  return peer != nullptr && RcOf(pool).Find(peer->target) != nullptr;
}

// The test moves the time on sw and verbs; on sim the time is virtual.
class RcQueuesTest : public ::testing::Test {
 protected:
  static constexpr uint32_t kHotWrs = 100;
  // On verbs a request to a dead peer fails after its retransmissions, seconds later.
  static constexpr int kPatientPolls = kOnVerbs ? 40'000 : 1000;

  Clock* clock() { return kSimulated ? &ClockOf(fabric_) : static_cast<Clock*>(&fake_clock_); }
  void Pass(int64_t ns) { PassTime(fabric_, fake_clock_, ns); }
  void StartPeers(NodeId count, uint32_t rc_peers = 8) {
    for (NodeId id = 1; id <= count; ++id)
      peers_.push_back(MemoryNode::Start(fabric_, id, 4096, id == 1, clock(), rc_peers));
  }
  Worker StartWorker(uint32_t max_rc_queues, uint32_t hot_wrs = kHotWrs) {
    Worker worker;
    worker.node = OpenNode(fabric_, kNoNode, clock());
    worker.Prepare({.max_rc_queues = max_rc_queues, .rc_hot_wrs = hot_wrs}, 1 << 16);
    return worker;
  }
  // Pushes more WRs than make a peer hot in an interval.
  void Use(Worker& worker, VirtualQueue& queue) {
    const Sge sge = worker.Word(0);
    std::vector<WorkRequest> wrs(64, OnWord(queue, Opcode::kRead, &sge, 0));
    for (int i = 0; i < (kOnVerbs ? 2 : 4); ++i) {
      ASSERT_OK(queue.Push(wrs));
      Await(*worker.pool, queue, wrs.size());
    }
  }
  // Polls only while completions are missing. Returns whether all were there when Push returned.
  bool PushAndPop(Worker& worker, VirtualQueue& queue) {
    const Sge sge = worker.Word(0);
    const std::vector<WorkRequest> wrs(64, OnWord(queue, Opcode::kRead, &sge, 0));
    EXPECT_TRUE(queue.Push(wrs).ok());
    std::vector<Completion> done(wrs.size());
    const size_t missing = done.size() - queue.Pop(done);
    Await(*worker.pool, queue, missing);
    return missing == 0;
  }
  // Uses the queues for `intervals` intervals. Everybody polls.
  void Heat(Worker& worker, std::initializer_list<VirtualQueue*> queues, int intervals = 12, bool answer = true) {
    for (int i = 0; i < intervals; ++i) {
      for (VirtualQueue* queue : queues) Use(worker, *queue);
      for (int polls = 0; polls < 8; ++polls) {
        worker.pool->Poll();
        Pass(queue::kHeatIntervalNs / 8);
        if (answer)
          for (MemoryNode& peer : peers_) peer.node->PollConnections();
      }
      if (kOnVerbs && answer) Settle(worker);  // what was begun takes real time there
    }
  }
  // Like Heat, until the peer is reached by RC or would have been long ago.
  bool HeatToRc(Worker& worker, VirtualQueue& queue, NodeId peer) {
    for (int times = 0; times < 10 && !IsOnRc(*worker.pool, peer); ++times) Heat(worker, {&queue});
    return IsOnRc(*worker.pool, peer);
  }
  size_t Answer() {
    size_t changed = 0;
    for (MemoryNode& peer : peers_) changed += peer.node->PollConnections();
    return changed;
  }
  // Polls until no connection is being made or given up.
  void Settle(Worker& worker) {
    for (int i = 0; i < kPatientPolls && RcOf(*worker.pool).busy(); ++i) {
      worker.pool->Poll();
      Answer();
      Pass(100'000);
    }
    EXPECT_FALSE(RcOf(*worker.pool).busy());
  }

  const std::string fabric_ = UniqueFabric(true);
  FakeClock fake_clock_;
  std::vector<MemoryNode> peers_;
};

}  // namespace krcore::test

#endif  // TESTS_KRCORE_RC_FIXTURE_H_
