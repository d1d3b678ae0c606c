// The part of rc_test.cc that only a simulated fabric can show: what the calls of a control path cost, and a node that
// dies while its process lives.
#include "tests/krcore/rc_fixture.h"

namespace krcore::test {
namespace {

TEST_F(RcQueuesTest, NoPollMakesMoreThanOneQp) {
  StartPeers(2);
  Worker worker = StartWorker(1, UINT32_MAX);
  auto first = worker.Connect(1), second = worker.Connect(2);
  const rnic::sim::CostModel cost;
  auto& world = *Worlds().at(fabric_);
  int64_t most_ns = 0;
  for (const NodeId id : {1, 2, 1}) {
    ASSERT_TRUE(RcOf(*worker.pool).Connect(CachedPeer(*worker.pool, id)));
    for (int i = 0; i < 1000 && RcOf(*worker.pool).busy(); ++i) {
      const int64_t before_ns = world.control_ns(worker.node->id());
      worker.pool->Poll();
      most_ns = std::max(most_ns, world.control_ns(worker.node->id()) - before_ns);
      Answer();
      Pass(100'000);
    }
    ASSERT_TRUE(IsOnRc(*worker.pool, id));
    RcOf(*worker.pool).Leave(id);
    Settle(worker);
  }
  EXPECT_GE(most_ns, cost.create_qp_ns);
  EXPECT_LT(most_ns, 2 * cost.create_qp_ns + cost.create_cq_ns);
}

TEST_F(RcQueuesTest, ThePeersHalfGoesWithAKilledNode) {
  StartPeers(1);
  Worker worker = StartWorker(4);
  auto queue = worker.Connect(1);
  Heat(worker, {queue.get()});
  ASSERT_TRUE(IsOnRc(*worker.pool, 1));
  Worlds().at(fabric_)->Kill(worker.node->id(), 1'000'000);
  Pass(3 * kSecondNs);
  EXPECT_EQ(Answer(), 1u);
}

}  // namespace
}  // namespace krcore::test
