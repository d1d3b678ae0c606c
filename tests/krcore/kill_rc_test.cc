// kill -9 at every store (kill_each_store.h): RC connections.
#include "tests/krcore/kill_fixture.h"
#include "tests/krcore/rc_fixture.h"

namespace krcore::test {
namespace {

class KillRc : public KillNode {
 protected:
  static constexpr uint32_t kHotWrs = 100;

  Worker StartWorker(NodeId id) {
    Worker worker;
    worker.node = Open(id);
    worker.Prepare({.max_rc_queues = 1, .rc_hot_wrs = kHotWrs}, 1 << 16);
    return worker;
  }
  // Uses the queue so much that its peer becomes hot.
  static bool Use(Worker& worker, VirtualQueue& queue) {
    const Sge sge = worker.Word(0);
    const std::vector<WorkRequest> wrs(64, OnWord(queue, Opcode::kRead, &sge, 0));
    if (!queue.Push(wrs).ok()) return false;
    Completion done[64];
    size_t count = 0;
    bool good = true;
    for (int polls = 0; count < wrs.size() && polls < 100'000; ++polls) {
      worker.pool->Poll();
      const size_t found = queue.Pop(done);
      for (size_t i = 0; i < found; ++i) good &= done[i].status == WcStatus::kSuccess;
      count += found;
    }
    EXPECT_EQ(count, wrs.size()) << "completions are missing";
    return good;
  }
};

TEST_F(KillRc, WhoConnectsToANodeWithOnePlaceForIt) {
  auto host = Open(1, 1);
  ASSERT_OK(host->HostMetaServer(kMetaCapacity));
  auto region = host->CreateRegion({.length = 4096, .remote_rights = kAllRights, .tag = 1}).value();
  ASSERT_OK(host->Publish(Soon()));
  const auto live = [&] { host->PollConnections(); };
  const FabricState state = FabricState::Of(fabric_);
  const auto act = [&](Worker& self) {
    auto queue = self.pool->CreateQueue(64).value();
    ASSERT_OK(queue->Connect(1, Soon()));
    for (int i = 0; i < 100'000 && !IsOnRc(*self.pool, 1); ++i) {
      ASSERT_TRUE(Use(self, *queue));
      InVictim() ? clock().Relax(0) : clock_.Advance(queue::kHeatIntervalNs / 8);
      if (!InVictim()) live();
    }
    ASSERT_TRUE(IsOnRc(*self.pool, 1));
    const Sge sges[] = {self.Word(1), {self.Word(0).addr, 64, self.Word(0).lkey}};
    const WorkRequest wrs[] = {OnWord(*queue, Opcode::kWrite, &sges[1], 8, 1),
                               OnWord(*queue, Opcode::kFetchAdd, &sges[0], 0, 2)};
    ASSERT_OK(queue->Push(wrs));
    Await(*self.pool, *queue, 2);
  };
  KillAtEachStore({.victim = Victim([&] { return StartWorker(kNoNode); }, act), .meanwhile = live, .survivors = [&] {
                     // The host looks for dead nodes each second, and after ten seconds for claims without a request.
                     for (int i = 0; i < 3; ++i) {
                       clock_.Advance(11 * kSecondNs);
                       live();
                     }
                     {
                       Worker heir = StartWorker(kNoNode);
                       act(heir);
                     }
                     live();
                     EXPECT_EQ(FabricState::Of(fabric_), state);
                   }});
}

TEST_F(KillRc, WhoAcceptsAConnection) {
  auto meta = Open(1);
  ASSERT_OK(meta->HostMetaServer(kMetaCapacity));
  Worker living = StartWorker(2);
  auto queue = living.pool->CreateQueue(64).value();
  bool connected = false;
  // One step of a node that uses the victim as much as it can.
  const auto use = [&] {
    clock_.Advance(queue::kHeatIntervalNs / 8);
    living.pool->Poll();
    if (!connected) connected = queue->Connect(kVictim, Deadline::After(clock_, 20'000'000)).ok();
    if (connected) connected = Use(living, *queue);
    if (!connected || !IsOnRc(*living.pool, kVictim)) return;
    const Sge sge = living.Word(1);
    WorkRequest wr = OnWord(*queue, Opcode::kFetchAdd, &sge, 0);
    wr.compare_add = 1;
    Completion done;
    if (queue->Push({&wr, 1}).ok()) {
      for (int i = 0; i < 1000 && queue->Pop({&done, 1}) == 0; ++i) living.pool->Poll();
    }
  };
  const auto act = [&](Node& self) {
    auto region = self.CreateRegion({.length = 4096, .remote_rights = kAllRights, .tag = 1}).value();
    ASSERT_OK(self.Publish(Soon()));
    std::atomic_ref word(*reinterpret_cast<uint64_t*>(region->bytes().data()));
    const Deadline deadline = Soon();
    while (word.load() == 0 && !deadline.Passed(clock())) {
      self.PollConnections();
      InVictim() ? clock().Relax(0) : use();
    }
    EXPECT_NE(word.load(), 0u);
  };
  // No victim is there: what is left of the dead one's connection goes away.
  const auto settle = [&] {
    for (int i = 0; i < 400; ++i) {
      use();
      Completion done;
      (void)queue->Pop({&done, 1});
    }
    EXPECT_EQ(queue->outstanding(), 0u);
    EXPECT_FALSE(connected);
  };
  const auto heir = [&] {
    auto self = Open(kVictim, 1);
    act(*self);
  };
  heir();  // creates what is created on first use
  settle();
  const FabricState state = FabricState::Of(fabric_);
  KillAtEachStore({.victim = Victim([&] { return Open(kVictim, 1); }, act), .meanwhile = use, .survivors = [&] {
                     // A pool waits five seconds for an answer, and asks the peer again ten seconds later.
                     for (int i = 0; i < 3; ++i) {
                       settle();
                       clock_.Advance(11 * kSecondNs);
                     }
                     heir();
                     settle();
                     EXPECT_EQ(FabricState::Of(fabric_), state);
                   }});
}

}  // namespace
}  // namespace krcore::test
