// Leases on remote regions. The test moves the time.
#include <functional>

#include "tests/krcore/meta_fixture.h"

namespace krcore::test {
namespace {

// The fabric's clock, with a hook that runs whenever somebody waits.
class HookedClock final : public Clock {
 public:
  explicit HookedClock(Clock& base) : base_(base) {}
  int64_t NowNs() override { return base_.NowNs(); }
  void Relax(uint32_t spins) override {
    base_.Relax(spins);
    if (hook && !inside_) {
      inside_ = true;
      hook();
      inside_ = false;
    }
  }
  std::function<void()> hook;

 private:
  Clock& base_;
  bool inside_ = false;
};

constexpr int64_t kLeaseNs = kSecondNs;

class Lease : public ::testing::Test {
 protected:
  void SetUp() override {
    owner_ = OpenNode(fabric_, 1, &clock_);
    ASSERT_OK(owner_->HostMetaServer(64));
    ASSERT_OK(Expose(&kept_));
    ASSERT_OK(Expose(&region_));
    ASSERT_OK(owner_->Publish(Soon()));
    worker_.node = OpenNode(fabric_, kNoNode, &clock_);
    worker_.Prepare({}, 1 << 16);
  }
  void TearDown() override { clock_.hook = nullptr; }
  Status Expose(std::unique_ptr<Region>* region) {
    auto made = owner_->CreateRegion({.length = 4096, .remote_rights = kAllRights});
    if (!made.ok()) return made.status();
    *region = *std::move(made);
    return {};
  }
  Deadline Soon() { return Deadline::After(clock_, 20 * kSecondNs); }
  void Sleep(int64_t ns) {
    if (kSimulated) {
      Worlds().at(fabric_)->RunUntil(clock_.NowNs() + ns);
    } else {
      fake_clock_.Advance(ns);
    }
  }
  WorkRequest ReadOf(const Region& region, const Sge* sge) {
    WorkRequest wr;
    wr.sg_list = sge;
    wr.num_sge = 1;
    wr.opcode = Opcode::kRead;
    wr.remote_addr = reinterpret_cast<uint64_t>(region.bytes().data());
    wr.rkey = region.rkey();
    return wr;
  }
  // Returns kOk if the request was executed.
  StatusCode Use(VirtualQueue& queue, const Region& region) {
    const Sge sge = worker_.Word(0);
    const WorkRequest wr = ReadOf(region, &sge);
    if (const Status pushed = queue.Push({&wr, 1}); !pushed.ok()) return pushed.code();
    const auto done = Await(*worker_.pool, queue, 1);
    return done.size() == 1 && done[0].status == WcStatus::kSuccess ? StatusCode::kOk : StatusCode::kInternal;
  }

  const std::string fabric_ = UniqueFabric(true);
  FakeClock fake_clock_;
  HookedClock clock_{kSimulated ? ClockOf(fabric_) : fake_clock_};
  std::unique_ptr<Node> owner_;
  std::unique_ptr<Region> kept_, region_;
  Worker worker_;
};

TEST_F(Lease, IsRenewedOnceForTheWholeNodeWithoutItsUsersNoticing) {
  auto queue = worker_.Connect(1);
  auto other_pool = worker_.node->CreateQueuePool({}).value();
  auto other = other_pool->CreateQueue(8).value();
  ASSERT_OK(other->Connect(1, Soon()));
  for (uint64_t lease = 1; lease <= 3; ++lease) {
    for (int i = 0; i < 20; ++i) EXPECT_EQ(Use(*queue, *region_), StatusCode::kOk);
    EXPECT_EQ(worker_.pool->stats().lease_renewals + other_pool->stats().lease_renewals, lease - 1);
    Sleep(kLeaseNs);
    const auto use_other = [&] {
      const Sge sge = worker_.Word(1);
      const WorkRequest wr = ReadOf(*region_, &sge);
      ASSERT_OK(other->Push({&wr, 1}));
      EXPECT_EQ(Await(*other_pool, *other, 1)[0].status, WcStatus::kSuccess);
    };
    if (lease % 2 == 0) use_other();  // the first one renews
    EXPECT_EQ(Use(*queue, *region_), StatusCode::kOk);
    use_other();
    EXPECT_EQ(worker_.pool->stats().lease_renewals + other_pool->stats().lease_renewals, lease);
  }
  EXPECT_EQ(other_pool->stats().lease_renewals, 1u);
  // What the cache holds is no fresher than what a queue holds.
  Sleep(kLeaseNs);
  auto late = worker_.Connect(1);
  EXPECT_EQ(worker_.pool->stats().lease_renewals, 3u);
  EXPECT_EQ(worker_.pool->stats().lease_extensions, 0u);
}

TEST_F(Lease, IsRenewedAheadOfItsEndCountedFromThePostingOfTheLookup) {
  auto queue = worker_.Connect(1);
  const int64_t connected_ns = clock_.NowNs();
  const int64_t renewal_ns = connected_ns + kLeaseNs * 3 / 4;
  Sleep(renewal_ns - clock_.NowNs() - kLeaseNs / 100);
  EXPECT_EQ(Use(*queue, *region_), StatusCode::kOk);
  EXPECT_EQ(worker_.pool->stats().lease_renewals, 0u);
  Sleep(renewal_ns - clock_.NowNs());  // the lookup was posted before Connect returned
  EXPECT_EQ(Use(*queue, *region_), StatusCode::kOk);
  EXPECT_EQ(worker_.pool->stats().lease_renewals, 1u);
  Sleep(connected_ns + kLeaseNs + kLeaseNs / 10 - clock_.NowNs());
  auto late = worker_.Connect(1);
  EXPECT_EQ(worker_.pool->stats().lease_renewals, 1u) << "who connects finds it running";
  EXPECT_EQ(worker_.pool->stats().metadata_lookups, 1u);
}

TEST_F(Lease, ThatNobodyRenewsAheadOfItsEndLastsAndIsAskedForAgainThen) {
  auto second = OpenNode(fabric_, 2, &clock_);
  auto exposed = second->CreateRegion({.length = 4096, .remote_rights = kAllRights}).value();
  ASSERT_OK(second->Publish(Soon()));
  auto queue = worker_.Connect(2);
  const int64_t connected_ns = clock_.NowNs();
  region_.reset();
  kept_.reset();
  owner_.reset();  // the only metadata server
  Sleep(connected_ns + kLeaseNs * 8 / 10 - clock_.NowNs());
  for (int i = 0; i < 3; ++i) EXPECT_EQ(Use(*queue, *exposed), StatusCode::kOk);
  EXPECT_EQ(worker_.pool->stats().lease_renewals, 1u) << "asked once, not for each request";
  EXPECT_EQ(worker_.pool->stats().lease_extensions, 0u);
  Sleep(connected_ns + kLeaseNs - clock_.NowNs());
  EXPECT_EQ(Use(*queue, *exposed), StatusCode::kOk);
  EXPECT_EQ(worker_.pool->stats().lease_renewals, 2u);
  EXPECT_EQ(worker_.pool->stats().lease_extensions, 1u);
}

// A peer uses the region all the time while it is withdrawn. Each request either executes or is refused on the peer's
// own side. None reaches a NIC that no longer knows the key.
TEST_F(Lease, DeregistrationWaitsUntilNoPeerUsesTheRegionAndThenItIsRefusedThere) {
  SKIP_ON_VERBS("deregistering waits for its longest retransmission too, 3 s");
  for (const int64_t phase_ns : {kLeaseNs / 100, kLeaseNs / 2, kLeaseNs * 7 / 10}) {
    auto queue = worker_.Connect(1);
    auto beside = worker_.Connect(1);
    Sleep(phase_ns);
    uint64_t executed = 0, refused = 0;
    int64_t last_use_ns = 0;
    clock_.hook = [&] {
      const StatusCode code = Use(*queue, *region_);
      ASSERT_TRUE(code == StatusCode::kOk || code == StatusCode::kPermissionDenied) << StatusCodeName(code);
      EXPECT_EQ(Use(*beside, *kept_), StatusCode::kOk);
      (code == StatusCode::kOk ? executed : refused) += 1;
      if (code == StatusCode::kOk) {
        EXPECT_EQ(refused, 0u) << "once refused, always";
        last_use_ns = clock_.NowNs();
      }
    };
    const int64_t begin_ns = clock_.NowNs();
    ASSERT_OK(region_->Deregister(Soon()));
    clock_.hook = nullptr;
    EXPECT_GE(clock_.NowNs() - begin_ns, kLeaseNs + kLeaseNs / 10);
    EXPECT_LT(clock_.NowNs() - begin_ns, kLeaseNs + kLeaseNs / 4);
    EXPECT_GT(executed, 0u) << "leases are not revoked, they run out";
    EXPECT_GT(refused, 0u);
    EXPECT_LE(last_use_ns - begin_ns, kLeaseNs);
    EXPECT_EQ(Use(*queue, *region_), StatusCode::kPermissionDenied);
    EXPECT_EQ(worker_.pool->stats().broken_queues, 0u);
    const uint32_t old_key = region_->rkey();
    region_.reset();
    ASSERT_OK(Expose(&region_));
    EXPECT_NE(region_->rkey(), old_key) << "keys carry a generation";
    ASSERT_OK(owner_->Publish(Soon()));
    Sleep(2 * kLeaseNs);
    EXPECT_EQ(Use(*queue, *region_), StatusCode::kOk) << "a renewed lease shows what is new, too";
  }
}

// A region is destroyed without Deregister, as when a node closes. The NIC refuses, which breaks the shared connection
// for a moment.
TEST_F(Lease, AKeyDestroyedWithoutWaitingIsRefusedByTheNic) {
  auto queue = worker_.Connect(1);
  ASSERT_EQ(Use(*queue, *region_), StatusCode::kOk);
  const Sge sge = worker_.Word(0);
  const WorkRequest wr = ReadOf(*region_, &sge);
  region_.reset();
  ASSERT_OK(queue->Push({&wr, 1}));
  const auto done = Await(*worker_.pool, *queue, 1);
  ASSERT_EQ(done.size(), 1u);
  EXPECT_EQ(done[0].status, WcStatus::kRemoteAccessError);
  EXPECT_EQ(worker_.pool->stats().broken_queues, 1u);
}

TEST_F(Lease, ARequestStagedBeforeTheWithdrawalAndPostedAfterItsLeaseIsRefusedUnposted) {
  auto queue = worker_.Connect(1);
  auto beside = worker_.Connect(1);
  const Sge sge = worker_.Word(0);
  const WorkRequest gone = ReadOf(*region_, &sge);
  const WorkRequest stays = ReadOf(*kept_, &sge);
  const WorkRequest both[] = {gone, stays};
  ASSERT_OK(queue->Stage(both));
  ASSERT_OK(beside->Stage({&stays, 1}));
  ASSERT_OK(region_->Deregister(Soon()));
  const auto done = Await(*worker_.pool, *queue, 2);
  ASSERT_EQ(done.size(), 2u);
  EXPECT_EQ(done[0].status, WcStatus::kRemoteAccessError);
  EXPECT_EQ(done[1].status, WcStatus::kSuccess);
  EXPECT_EQ(Await(*worker_.pool, *beside, 1)[0].status, WcStatus::kSuccess);
  EXPECT_EQ(worker_.pool->stats().broken_queues, 0u);
  EXPECT_EQ(queue->Push({&gone, 1}).code(), StatusCode::kPermissionDenied);
}

TEST_F(Lease, OfABatchThatIsAlikeOnlyWhatNamesTheWithdrawnRegionIsRefused) {
  auto queue = worker_.Connect(1);
  const Sge sge = worker_.Word(0);
  std::vector<WorkRequest> wrs;
  for (int i = 0; i < 9; ++i) wrs.push_back(ReadOf(i % 4 == 3 ? *region_ : *kept_, &sge));
  for (size_t i = 0; i < wrs.size(); ++i) wrs[i].wr_id = i;
  ASSERT_OK(queue->Stage(wrs));
  ASSERT_OK(region_->Deregister(Soon()));
  const auto done = Await(*worker_.pool, *queue, wrs.size());
  ASSERT_EQ(done.size(), wrs.size());
  for (size_t i = 0; i < done.size(); ++i) {
    EXPECT_EQ(done[i].wr_id, i);
    EXPECT_EQ(done[i].status, i % 4 == 3 ? WcStatus::kRemoteAccessError : WcStatus::kSuccess) << i;
  }
  EXPECT_EQ(worker_.pool->stats().broken_queues, 0u);
}

// The READ is flushed by another queue's fault, and would be posted again after a repair that comes after the renewal.
TEST_F(Lease, AFlushedReadOfAWithdrawnRegionIsNotPostedAgain) {
  SKIP_ON_VERBS("what nobody polls for during those 3 s is given up as unreachable");
  std::unique_ptr<Region> broken;
  ASSERT_OK(Expose(&broken));
  ASSERT_OK(owner_->Publish(Soon()));
  Worker worker;
  worker.node = OpenNode(fabric_, kNoNode, &clock_);
  worker.Prepare({.dc_initiators = 1, .max_rc_queues = 0}, 1 << 16);
  auto queue = worker.Connect(1), culprit = worker.Connect(1);
  const Sge sge = worker.Word(0);
  const WorkRequest wrong = ReadOf(*broken, &sge), gone = ReadOf(*region_, &sge), stays = ReadOf(*kept_, &sge);
  broken.reset();
  ASSERT_OK(culprit->Stage({&wrong, 1}));
  ASSERT_OK(queue->Stage({&gone, 1}));
  worker.pool->Flush();
  ASSERT_OK(region_->Deregister(Soon()));
  ASSERT_OK(queue->Push({&stays, 1}));  // renews the lease; the repair is still to come
  const auto done = Await(*worker.pool, *queue, 2);
  ASSERT_EQ(done.size(), 2u);
  EXPECT_EQ(done[0].status, WcStatus::kRemoteAccessError);
  EXPECT_EQ(done[1].status, WcStatus::kSuccess);
  EXPECT_EQ(worker.pool->stats().broken_queues, 1u);
}

TEST_F(Lease, WhatWasNeverPublishedIsDeregisteredAtOnce) {
  std::unique_ptr<Region> secret;
  ASSERT_OK(Expose(&secret));
  const int64_t begin_ns = clock_.NowNs();
  ASSERT_OK(secret->Deregister(Soon()));
  auto local = owner_->CreateRegion({.length = 4096}).value();
  ASSERT_OK(local->Deregister(Soon()));
  EXPECT_LT(clock_.NowNs() - begin_ns, kLeaseNs / 100);
  EXPECT_EQ(secret->bytes().size(), 4096u) << "the bytes stay";
  secret->bytes()[0] = std::byte{1};
  ASSERT_OK(secret->Deregister(Soon()));  // the second call does nothing
}

TEST_F(Lease, DeregistrationThatDoesNotFinishInTimeGoesOnWhereItStopped) {
  SKIP_ON_VERBS("deregistering waits for its longest retransmission too, 3 s");
  auto queue = worker_.Connect(1);
  const int64_t begin_ns = clock_.NowNs();
  EXPECT_EQ(region_->Deregister(Deadline::After(clock_, kLeaseNs / 2)).code(), StatusCode::kTimeout);
  EXPECT_EQ(Use(*queue, *region_), StatusCode::kOk) << "the lease still runs";
  ASSERT_OK(region_->Deregister(Soon()));
  EXPECT_LT(clock_.NowNs() - begin_ns, kLeaseNs + kLeaseNs / 4);
  EXPECT_EQ(Use(*queue, *region_), StatusCode::kPermissionDenied);
}

TEST_F(Lease, WithoutAMetadataServerItIsExtendedWhileThePeerLives) {
  auto second = OpenNode(fabric_, 2, &clock_);
  auto exposed = second->CreateRegion({.length = 4096, .remote_rights = kAllRights}).value();
  ASSERT_OK(second->Publish(Soon()));
  auto queue = worker_.Connect(2);
  region_.reset();
  kept_.reset();
  owner_.reset();  // the only metadata server
  Sleep(2 * kLeaseNs);
  EXPECT_EQ(Use(*queue, *exposed), StatusCode::kOk);
  EXPECT_EQ(worker_.pool->stats().lease_extensions, 1u);
  // Lookups fill a new server, and leases are what they were.
  auto third = OpenNode(fabric_, 3, &clock_);
  ASSERT_OK(third->HostMetaServer(64));
  ASSERT_OK(second->Publish(Soon()));
  Sleep(2 * kLeaseNs);
  EXPECT_EQ(Use(*queue, *exposed), StatusCode::kOk);
  EXPECT_EQ(worker_.pool->stats().lease_extensions, 1u);
  exposed.reset();
  second.reset();
  Sleep(2 * kLeaseNs);
  const Sge sge = worker_.Word(0);
  WorkRequest wr;
  wr.sg_list = &sge;
  wr.num_sge = 1;
  EXPECT_EQ(queue->Push({&wr, 1}).code(), StatusCode::kUnavailable) << "a dead peer's lease is not extended";
  queue.reset();
}

TEST_F(Lease, IsTheFabricsWhoeverHostsLater) {
  auto later = Node::Open({.rnic = kRnic,
                           .fabric = fabric_,
                           .fabric_address = AddressOf(fabric_),
                           .node = 9,
                           .clock = &clock_,
                           .mr_lease_ns = 77 * kSecondNs})
                   .value();
  ASSERT_OK(later->HostMetaServer(64));
  Party party = Party::Join(fabric_, clock_);
  const auto list = peers::ReadServerList(*party.device, {}).value();
  ASSERT_EQ(list.all.size(), 2u);
  EXPECT_EQ(list.all[1]->info.mr_lease_ns, kLeaseNs);
  EXPECT_EQ(Node::Open({.rnic = kRnic, .fabric = fabric_, .fabric_address = AddressOf(fabric_), .mr_lease_ns = 1})
                .status()
                .code(),
            StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace krcore::test
