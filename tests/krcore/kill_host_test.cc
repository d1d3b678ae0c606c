// kill -9 at every store (kill_each_store.h): what a host's processes share.
#include "tests/krcore/kill_fixture.h"

namespace krcore::test {
namespace {

// The victim takes its part of a DC initiator, looks up a peer for the host's cache, and breaks and repairs the QP.
TEST(KillHost, WhoTakesPartInWhatAHostShares) {
  const std::string fabric = UniqueFabric(false);
  const QueuePoolOptions one{.dc_initiators = 1, .sq_depth = 8, .max_rc_queues = 0};
  MemoryNode peer = MemoryNode::Start(fabric, 1, 4096, true);
  auto gone = peer.node->CreateRegion({.length = 4096, .remote_rights = kRemoteRead}).value();
  ASSERT_OK(peer.node->Publish(Deadline::After(*RealClock(), 5 * kSecondNs)));
  gone.reset();  // without Deregister: peers believe that it is still there
  Worker living = Worker::Start(fabric, one);
  auto queue = living.Connect(1);
  const Sge sge = living.Word(0);
  WorkRequest add = OnWord(*queue, Opcode::kFetchAdd, &sge, 0);
  add.compare_add = 1;
  // Returns how many parts are left for the living.
  const auto parts = [&] {
    std::vector<Worker> workers;
    do {
      workers.push_back(Worker::Start(fabric, one, 4096));
    } while (workers.back().pool->stats().host_queues == 1 && workers.size() < 100);
    return workers.size() - 1;
  };
  const size_t all = parts();
  EXPECT_GT(all, 50u);
  const FabricState state = FabricState::Of(fabric);
  uint64_t added = 0;
  KillAtEachStore({.victim =
                       [&] {
                         Worker self;
                         self.node = OpenNode(fabric, kNoNode);
                         EnumerateFromHere();
                         self.Prepare(one, 4096);
                         auto own = self.pool->CreateQueue(8).value();
                         // The second time it looks up afresh, which writes to the cache.
                         for (int i = 0; i < 2; ++i) ASSERT_OK(own->Connect(1, self.Soon()));
                         const Sge word = self.Word(0);
                         WorkRequest wrong = OnWord(*own, Opcode::kRead, &word, 0);
                         wrong.remote_addr = own->regions()[1].addr;
                         wrong.rkey = own->regions()[1].rkey;
                         EXPECT_EQ(Execute(*self.pool, *own, wrong).status, WcStatus::kRemoteAccessError);
                         ASSERT_OK(own->Connect(1, self.Soon()));
                         const WorkRequest right = OnWord(*own, Opcode::kRead, &word, 0);
                         EXPECT_EQ(Execute(*self.pool, *own, right).status, WcStatus::kSuccess);
                       },
                   .survivors =
                       [&] {
                         EXPECT_EQ(Execute(*living.pool, *queue, add).status, WcStatus::kSuccess);
                         EXPECT_EQ(peer.words()[0], ++added);
                         {
                           Worker fresh = Worker::Start(fabric, one);
                           auto own = fresh.Connect(1);
                           EXPECT_EQ(own->regions().size(), 2u);
                           const Sge word = fresh.Word(0);
                           const WorkRequest read = OnWord(*own, Opcode::kRead, &word, 0);
                           EXPECT_EQ(Execute(*fresh.pool, *own, read).status, WcStatus::kSuccess);
                           EXPECT_EQ(fresh.words()[0], added);
                         }
                         EXPECT_EQ(parts(), all) << "of the host's initiator";
                         EXPECT_EQ(FabricState::Of(fabric), state);
                       }});
}

}  // namespace
}  // namespace krcore::test
