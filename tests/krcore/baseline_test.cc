// The control planes behind krcore's interface, "krcore" itself included where all must do the same: data path, errors,
// closing, and which one makes how many connections.
#include <algorithm>
#include <atomic>
#include <mutex>
#include <thread>

#include "krcore/control_plane.h"
#include "tests/krcore/fixture.h"

namespace krcore::test {
namespace {

// While a client waits for an answer, its peer's CPU answers: one CPU, whichever of the client's threads waits.
class ServingClock final : public Clock {
 public:
  explicit ServingClock(Clock& inner) : inner_(inner) {}
  int64_t NowNs() override { return inner_.NowNs(); }
  void Relax(uint32_t spins) override {
    if (acceptor != nullptr && NowNs() >= serve_from_ns) {
      if (const std::unique_lock serving(serving_, std::try_to_lock); serving.owns_lock()) acceptor->Serve();
    }
    inner_.Relax(spins);
  }
  std::unique_ptr<Acceptor> acceptor;
  int64_t serve_from_ns = 0;

 private:
  std::mutex serving_;
  Clock& inner_;
};

class Baseline : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    auto acceptor = Acceptor::Create(*memory_.node);
    ASSERT_OK(acceptor.status());
    clock_.acceptor = *std::move(acceptor);
  }
  Worker StartWorker(const std::string& plane = GetParam()) {
    Worker worker;
    auto node = krcore::OpenNode(plane, {.rnic = kRnic, .fabric = fabric_, .clock = &clock_});
    EXPECT_TRUE(node.ok()) << node.status().ToString();
    worker.node = *std::move(node);
    worker.Prepare({}, 1 << 16);
    return worker;
  }
  // Returns how many connections the peer holds, after it has heard which ones were closed.
  size_t Connections() {
    for (uint32_t spins = 0; spins < 200; ++spins) clock_.Relax(spins);
    return clock_.acceptor->connections();
  }
  bool IsKrcore() const { return GetParam() == "krcore"; }
  bool IsVerbs() const { return GetParam() == "verbs"; }

  const std::string fabric_ = UniqueFabric(true);
  MemoryNode memory_ = MemoryNode::Start(fabric_, 1, 1 << 16, true);
  ServingClock clock_{ClockOf(fabric_)};
};

TEST_P(Baseline, ReadWriteAndAtomicsReachThePeersMemory) {
  Worker worker = StartWorker();
  auto queue = worker.Connect(1);
  EXPECT_EQ(queue->peer_incarnation(), memory_.node->incarnation());
  ASSERT_EQ(queue->regions().size(), 1u);
  const Sge sge = worker.Word(0);
  worker.words()[0] = 1234;
  EXPECT_EQ(Execute(*worker.pool, *queue, OnWord(*queue, Opcode::kWrite, &sge, 5)).status, WcStatus::kSuccess);
  EXPECT_EQ(memory_.words()[5], 1234u);
  memory_.words()[6] = 77;
  EXPECT_EQ(Execute(*worker.pool, *queue, OnWord(*queue, Opcode::kRead, &sge, 6)).status, WcStatus::kSuccess);
  EXPECT_EQ(worker.words()[0], 77u);
  WorkRequest cas = OnWord(*queue, Opcode::kCompareSwap, &sge, 6, 99);
  cas.compare_add = 77;
  cas.swap = 78;
  const Completion done = Execute(*worker.pool, *queue, cas);
  EXPECT_EQ(done.status, WcStatus::kSuccess);
  EXPECT_EQ(done.wr_id, 99u);
  EXPECT_EQ(done.opcode, Opcode::kCompareSwap);
  EXPECT_EQ(memory_.words()[6], 78u);
  WorkRequest add = OnWord(*queue, Opcode::kFetchAdd, &sge, 6);
  add.compare_add = 10;
  EXPECT_EQ(Execute(*worker.pool, *queue, add).status, WcStatus::kSuccess);
  EXPECT_EQ(worker.words()[0], 78u);
  EXPECT_EQ(memory_.words()[6], 88u);
}

TEST_P(Baseline, OnlyKrcoreHasRecordsOfTheFabric) {
  Worker worker = StartWorker();
  const Status set = worker.node->CompareAndSetRecord("kvs-configuration", 0, std::as_bytes(std::span("one", 3)));
  const auto read = worker.node->ReadRecord("kvs-configuration");
  const auto of_krcore = memory_.node->ReadRecord("kvs-configuration");
  ASSERT_OK(of_krcore.status());
  if (!IsKrcore()) {
    for (const Status& status : {set, read.status()}) {
      EXPECT_EQ(status.code(), StatusCode::kUnsupported);
      EXPECT_NE(status.message().find("krcore does"), std::string_view::npos) << status.ToString();
    }
    EXPECT_EQ(of_krcore->version, 0u);
    return;
  }
  ASSERT_OK(set);
  for (const auto* record : {&read, &of_krcore}) {
    ASSERT_OK(record->status());
    EXPECT_EQ((*record)->version, 1u);
    EXPECT_EQ((*record)->value.size(), 3u);
  }
  EXPECT_EQ(worker.node->CompareAndSetRecord("kvs-configuration", 0, {}).code(), StatusCode::kExists);
}

TEST_P(Baseline, CompletionsComeInOrderForTheSignaledOnly) {
  Worker worker = StartWorker();
  auto queue = worker.Connect(1, 48);
  const Sge sge = worker.Word(0);
  std::vector<WorkRequest> wrs;
  for (uint64_t i = 0; i < 48; ++i) {
    wrs.push_back(OnWord(*queue, i % 2 == 0 ? Opcode::kWrite : Opcode::kRead, &sge, i, i));
    wrs.back().flags = i % 3 == 0 ? kSignaled : 0;
  }
  for (int round = 0; round < 20; ++round) {
    for (size_t at = 0; at < wrs.size(); at += 12) ASSERT_OK(queue->Stage(std::span(wrs).subspan(at, 12)));
    EXPECT_EQ(queue->outstanding(), 48u);
    size_t bad_index = 0;
    EXPECT_EQ(queue->Stage(wrs, &bad_index).code(), StatusCode::kQueueFull);
    const std::vector<Completion> done = Await(*worker.pool, *queue, 16);
    for (size_t i = 0; i < done.size(); ++i) {
      EXPECT_EQ(done[i].wr_id, 3 * i);
      EXPECT_EQ(done[i].status, WcStatus::kSuccess);
    }
    while (queue->outstanding() != 0) {  // the last two are silent
      worker.pool->Poll();
      clock_.Relax(0);
    }
  }
}

TEST_P(Baseline, MoreThanAConnectionHoldsWaitsForRoom) {
  Worker worker = StartWorker();
  auto first = worker.Connect(1, 400);
  auto second = worker.Connect(1, 400);  // "lite": 512 together
  const Sge sge = worker.Word(0);
  WorkRequest add = OnWord(*first, Opcode::kFetchAdd, &sge, 0);
  add.compare_add = 1;
  const std::vector<WorkRequest> wrs(400, add);
  for (int round = 0; round < 5; ++round) {
    ASSERT_OK(first->Push(wrs));
    ASSERT_OK(second->Push(wrs));
    Await(*worker.pool, *first, 400);
    Await(*worker.pool, *second, 400);
  }
  EXPECT_EQ(memory_.words()[0], 4000u);
}

TEST_P(Baseline, InlinePayloadMayBeReusedAsSoonAsItIsStaged) {
  Worker worker = StartWorker();
  auto queue = worker.Connect(1);
  uint64_t payload = 5;  // not registered
  const Sge sge{reinterpret_cast<uint64_t>(&payload), 8, 0};
  for (uint64_t i = 0; i < 8; ++i) {
    payload = 100 + i;
    WorkRequest wr = OnWord(*queue, Opcode::kWrite, &sge, i);
    wr.flags = kSignaled | kInline;
    ASSERT_OK(queue->Stage({&wr, 1}));
  }
  payload = 0;
  Await(*worker.pool, *queue, 8);
  for (uint64_t i = 0; i < 8; ++i) EXPECT_EQ(memory_.words()[i], 100 + i);
}

TEST_P(Baseline, AWrongKeyBreaksOnlyAConnectionOfOnesOwn) {
  Worker worker = StartWorker();
  auto queue = worker.Connect(1);
  auto other = worker.Connect(1);
  const Sge sge = worker.Word(0);
  const WorkRequest good = OnWord(*queue, Opcode::kRead, &sge, 0, 1);
  WorkRequest bad = OnWord(*queue, Opcode::kRead, &sge, 0, 2);
  bad.rkey += 1;
  const WorkRequest batch[3] = {good, bad, good};
  size_t bad_index = 0;
  if (IsVerbs()) {
    ASSERT_OK(queue->Push(batch));
    const std::vector<Completion> done = Await(*worker.pool, *queue, 3);
    ASSERT_EQ(done.size(), 3u);
    EXPECT_EQ(done[0].status, WcStatus::kSuccess);
    EXPECT_EQ(done[1].status, WcStatus::kRemoteAccessError);
    EXPECT_EQ(done[1].wr_id, 2u);
    EXPECT_EQ(done[2].status, WcStatus::kFlushed);
    EXPECT_EQ(queue->Push({&good, 1}).code(), StatusCode::kUnavailable);
    ASSERT_OK(queue->Connect(1, worker.Soon()));
  } else {
    EXPECT_EQ(queue->Push(batch, &bad_index).code(), StatusCode::kPermissionDenied);
    EXPECT_EQ(bad_index, 1u);
    EXPECT_EQ(queue->outstanding(), 0u);
  }
  EXPECT_EQ(Execute(*worker.pool, *queue, good).status, WcStatus::kSuccess);
  EXPECT_EQ(Execute(*worker.pool, *other, good).status, WcStatus::kSuccess);
}

TEST_P(Baseline, MalformedRequestsAreRefusedAllOrNone) {
  Worker worker = StartWorker();
  auto queue = worker.Connect(1);
  const Sge sge = worker.Word(0);
  const WorkRequest good = OnWord(*queue, Opcode::kRead, &sge, 0);
  std::vector<WorkRequest> malformed(5, good);
  malformed[0].opcode = static_cast<Opcode>(77);
  malformed[1].num_sge = 0;
  malformed[2].opcode = Opcode::kCompareSwap;
  malformed[2].remote_addr += 4;
  malformed[3].flags = kInline;
  malformed[4].flags = 0x40;
  for (const WorkRequest& bad : malformed) {
    const WorkRequest batch[2] = {good, bad};
    size_t bad_index = 0;
    EXPECT_EQ(queue->Push(batch, &bad_index).code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(bad_index, 1u);
  }
  EXPECT_EQ(queue->outstanding(), 0u);
  EXPECT_EQ(Execute(*worker.pool, *queue, good).status, WcStatus::kSuccess);
}

struct ShutGate final : PostGate {
  bool MayPost() override { return false; }
};

TEST_P(Baseline, DiscardedRequestsCompleteBehindThoseThatWerePosted) {
  Worker worker = StartWorker();
  auto queue = worker.Connect(1);
  worker.words()[0] = 7;
  const Sge sge = worker.Word(0);
  const WorkRequest posted = OnWord(*queue, Opcode::kWrite, &sge, 1, 1);
  const WorkRequest staged = OnWord(*queue, Opcode::kWrite, &sge, 2, 2);
  ASSERT_OK(queue->Push({&posted, 1}));
  ShutGate gate;
  worker.pool->SetGate(&gate);
  ASSERT_OK(queue->Push({&staged, 1}));
  worker.pool->DiscardStaged();
  worker.pool->SetGate(nullptr);
  const std::vector<Completion> done = Await(*worker.pool, *queue, 2);
  ASSERT_EQ(done.size(), 2u);
  EXPECT_EQ(done[0].status, WcStatus::kSuccess);
  EXPECT_EQ(done[1].wr_id, 2u);
  EXPECT_EQ(done[1].status, WcStatus::kDiscarded);
  EXPECT_EQ(memory_.words()[1], 7u);
  EXPECT_EQ(memory_.words()[2], 0u);
  EXPECT_TRUE(worker.pool->NothingPosted());
}

TEST_P(Baseline, AQueueMayBeDestroyedWithRequestsUnderWay) {
  Worker worker = StartWorker();
  const Sge sge = worker.Word(0);
  auto survivor = worker.Connect(1);
  for (int i = 0; i < 5; ++i) {
    auto queue = worker.Connect(1);
    const std::vector<WorkRequest> wrs(64, OnWord(*queue, Opcode::kRead, &sge, 0));
    ASSERT_OK(queue->Push(wrs));
  }
  EXPECT_EQ(Execute(*worker.pool, *survivor, OnWord(*survivor, Opcode::kRead, &sge, 0)).status, WcStatus::kSuccess);
}

TEST_P(Baseline, AClosedPeerIsReportedAndCannotBeConnectedAgain) {
  Worker worker = StartWorker();
  auto queue = worker.Connect(1);
  const Sge sge = worker.Word(0);
  const WorkRequest wr = OnWord(*queue, Opcode::kRead, &sge, 0);
  clock_.acceptor.reset();
  memory_.region.reset();
  memory_.node.reset();
  const WcStatus status = Execute(*worker.pool, *queue, wr).status;
  EXPECT_TRUE(status == WcStatus::kRetryExceeded || status == WcStatus::kRemoteAccessError) << WcStatusName(status);
  EXPECT_EQ(queue->Push({&wr, 1}).code(), StatusCode::kUnavailable);
  EXPECT_FALSE(queue->Connect(1, worker.Soon()).ok());
}

INSTANTIATE_TEST_SUITE_P(ControlPlanes, Baseline, ::testing::Values("krcore", "verbs", "lite"),
                         [](const auto& info) { return info.param; });

// What only RC connections do.
class RcConnection : public Baseline {};

TEST_P(RcConnection, VerbsMakesOneForEachQueueAndLiteOneForEachPeer) {
  Worker first = StartWorker();
  auto pool = first.node->CreateQueuePool({}).value();
  {
    auto a = first.Connect(1);
    auto b = first.Connect(1);
    auto c = pool->CreateQueue(8).value();
    ASSERT_OK(c->Connect(1, first.Soon()));
    EXPECT_EQ(Connections(), IsVerbs() ? 3u : 1u);
    EXPECT_EQ(pool->stats().metadata_hits, IsVerbs() ? 0u : 1u);
  }
  EXPECT_EQ(Connections(), IsVerbs() ? 0u : 1u) << "a shared one stays with the node";
  pool.reset();
  first.pool.reset();
  first.local.reset();
  first.node.reset();
  EXPECT_EQ(Connections(), 0u);
}

TEST_P(RcConnection, AnAnswerThatComesLateIsForOneConnection) {
  Worker worker = StartWorker();
  clock_.serve_from_ns = clock_.NowNs() + 70'000'000;  // the request is sent again and again
  auto queue = worker.Connect(1);
  EXPECT_EQ(Connections(), 1u);
  clock_.serve_from_ns = 0;
  auto other = worker.pool->CreateQueue(8).value();  // it finds the answers that are left over, and ignores them
  ASSERT_OK(other->Connect(1, worker.Soon()));
  const Sge sge = worker.Word(0);
  for (VirtualQueue* each : {queue.get(), other.get()})
    EXPECT_EQ(Execute(*worker.pool, *each, OnWord(*each, Opcode::kRead, &sge, 0)).status, WcStatus::kSuccess);
}

TEST_P(RcConnection, WithoutAnAcceptorThereIsNone) {
  Worker worker = StartWorker();
  auto queue = worker.pool->CreateQueue(8).value();
  EXPECT_EQ(queue->Connect(9, worker.Soon()).code(), StatusCode::kNotFound);
  clock_.serve_from_ns = INT64_MAX;
  EXPECT_EQ(queue->Connect(1, Deadline::After(clock_, 1'000'000)).code(), StatusCode::kTimeout);
  clock_.acceptor.reset();
  EXPECT_EQ(queue->Connect(1, worker.Soon()).code(), StatusCode::kNotFound);
  const WorkRequest wr;
  EXPECT_EQ(queue->Push({&wr, 1}).code(), StatusCode::kBadState);
}

#ifdef KRCORE_TEST_SIM
TEST_P(RcConnection, AnAcceptorThatTheFabricHasForgottenIsFoundOnceItHasRenewedItself) {
  Worker worker = StartWorker();
  ASSERT_OK(clock_.acceptor->Renew());  // there is nothing to do
  Worlds().at(fabric_)->ForgetRecords(1);
  auto queue = worker.pool->CreateQueue(8).value();
  EXPECT_EQ(queue->Connect(1, worker.Soon()).code(), StatusCode::kNotFound);
  ASSERT_OK(clock_.acceptor->Renew());
  ASSERT_OK(queue->Connect(1, worker.Soon()));
  const Sge sge = worker.Word(0);
  EXPECT_EQ(Execute(*worker.pool, *queue, OnWord(*queue, Opcode::kRead, &sge, 0)).status, WcStatus::kSuccess);
}
#endif

TEST_P(RcConnection, ARegionThatThePeerDestroyedBreaksAllWhoShareTheConnection) {
  Worker worker = StartWorker();
  auto queue = worker.Connect(1);
  auto other = worker.Connect(1);
  const Sge sge = worker.Word(0);
  const WorkRequest wr = OnWord(*queue, Opcode::kRead, &sge, 0);
  memory_.region.reset();
  EXPECT_EQ(Execute(*worker.pool, *queue, wr).status, WcStatus::kRemoteAccessError);
  EXPECT_EQ(queue->Push({&wr, 1}).code(), StatusCode::kUnavailable);
  if (!IsVerbs()) {
    EXPECT_EQ(other->Push({&wr, 1}).code(), StatusCode::kUnavailable);
  }
  auto region = memory_.node->CreateRegion({.length = 4096, .remote_rights = kAllRights}).value();
  ASSERT_OK(queue->Connect(1, worker.Soon()));
  EXPECT_TRUE(queue->regions().empty()) << "what is not published is not told";
  ASSERT_OK(memory_.node->Publish(worker.Soon()));
  for (VirtualQueue* each : {queue.get(), other.get()}) {
    ASSERT_OK(each->Connect(1, worker.Soon()));
    EXPECT_EQ(Execute(*worker.pool, *each, OnWord(*each, Opcode::kRead, &sge, 0)).status, WcStatus::kSuccess);
  }
}

TEST_P(RcConnection, ServicesAreFoundAndAnnouncedAsByNodesOfKrcore) {
  Worker worker = StartWorker();
  const std::byte value[3] = {std::byte{1}, std::byte{2}, std::byte{3}};
  ASSERT_OK(memory_.node->PublishService("table", value, worker.Soon()));
  EXPECT_EQ(worker.node->LookupService("table", worker.Soon()).value().size(), 3u);
  ASSERT_OK(worker.node->PublishService("mine", value, worker.Soon()));
  EXPECT_TRUE(memory_.node->LookupService("mine", worker.Soon()).ok());
  const NodeId id = worker.node->id();
  const uint32_t incarnation = worker.node->incarnation();
  EXPECT_FALSE(memory_.node->IsConfirmedDead(id, incarnation));
  EXPECT_EQ(worker.node->CreateRegion({.length = 64, .remote_rights = kRemoteRead}).status().code(),
            StatusCode::kUnsupported);
  EXPECT_EQ(worker.Connect(1)->Bind(5, {}, worker.Soon()).code(), StatusCode::kUnsupported);
}

TEST_P(RcConnection, MoreQueuesThanTheCqHasRoomForGetAnotherOne) {
  Worker worker = StartWorker();
  auto pool = worker.node->CreateQueuePool({.dc_initiators = 1, .sq_depth = 16}).value();
  const Sge sge = worker.Word(0);
  std::vector<std::unique_ptr<VirtualQueue>> queues;
  for (int i = 0; i < 5; ++i) {
    queues.push_back(pool->CreateQueue(64).value());
    ASSERT_OK(queues.back()->Connect(1, worker.Soon()));
    WorkRequest add = OnWord(*queues.back(), Opcode::kFetchAdd, &sge, 0);
    add.compare_add = 1;
    ASSERT_OK(queues.back()->Push(std::vector<WorkRequest>(64, add)));  // more than its QP holds
  }
  for (auto& queue : queues) Await(*pool, *queue, 64);
  EXPECT_EQ(memory_.words()[0], 5u * 64);
}

#ifdef KRCORE_TEST_SIM  // sw executes a WR when it is posted, or never
// On sim only.
void BreakQueues(const std::string& fabric, double probability) {
  Worlds().at(fabric)->set_chaos({.tear = 0.3, .delay = 0.2, .max_delay_ns = 20'000, .break_queue = probability});
}

// A WR that completed as flushed may still execute later, until its QP is reset. The reset must come before anybody
// hears of the failure.
TEST_P(RcConnection, WhenAFailureIsReportedNothingThatWasPostedExecutesAnyMore) {
  Worker worker = StartWorker();
  const Sge sge = worker.Word(0);
  int failures = 0;
  for (int round = 0; round < 300; ++round) {
    auto queue = worker.Connect(1);
    auto other = worker.Connect(1);  // "lite": on the same connection
    const auto adds = [&](VirtualQueue& to, size_t word) {
      WorkRequest add = OnWord(to, Opcode::kFetchAdd, &sge, word);
      add.compare_add = 1;
      return std::vector<WorkRequest>(16, add);
    };
    BreakQueues(fabric_, 0.1);
    ASSERT_OK(queue->Push(adds(*queue, 0)));
    ASSERT_OK(other->Push(adds(*other, 1)));
    bool failed = false;
    for (const Completion& done : Await(*worker.pool, *queue, 16)) failed |= done.status != WcStatus::kSuccess;
    BreakQueues(fabric_, 0);
    failures += failed ? 1 : 0;
    const uint64_t mine = memory_.words()[0], others = memory_.words()[1];
    for (uint32_t spins = 0; spins < 1'000; ++spins) clock_.Relax(spins);
    EXPECT_EQ(memory_.words()[0], mine) << "round " << round;
    if (failed && !IsVerbs()) {
      EXPECT_EQ(memory_.words()[1], others) << "round " << round;
    }
    Await(*worker.pool, *other, 16);
  }
  EXPECT_GT(failures, 100);
}
#endif

INSTANTIATE_TEST_SUITE_P(ControlPlanes, RcConnection, ::testing::Values("verbs", "lite"),
                         [](const auto& info) { return info.param; });

class SharedConnection : public Baseline {};

TEST_P(SharedConnection, IsUsedByThreadsAtTheSameTime) {
  SKIP_IF_SIMULATED("one thread only");
  Worker worker = StartWorker();
  auto warm = worker.Connect(1);  // so that no thread has to be answered
  constexpr int kRounds = 2000;
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&, t] {
      auto pool = worker.node->CreateQueuePool({}).value();
      auto queue = pool->CreateQueue(16).value();
      ASSERT_OK(queue->Connect(1, Deadline::Never()));
      const Sge sge = worker.Word(static_cast<size_t>(t));
      WorkRequest add = OnWord(*queue, Opcode::kFetchAdd, &sge, 0);
      add.compare_add = 1;
      const std::vector<WorkRequest> wrs(4, add);
      for (int i = 0; i < kRounds; ++i) {
        ASSERT_OK(queue->Push(wrs));
        ASSERT_EQ(Await(*pool, *queue, 4).size(), 4u);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(memory_.words()[0], 3u * 4 * kRounds);
}

// Counts waits.
class WaitingClock final : public Clock {
 public:
  int64_t NowNs() override { return RealClock()->NowNs(); }
  void Relax(uint32_t spins) override {
    waits.fetch_add(1, std::memory_order_relaxed);
    RealClock()->Relax(spins);
  }
  std::atomic<uint64_t> waits{0};  // relaxed: pairs with nothing
};

TEST_P(SharedConnection, APeerThatDoesNotAnswerHoldsUpNoConnectToAnother) {
  SKIP_IF_SIMULATED("one thread only");
  MemoryNode second = MemoryNode::Start(fabric_, 2, 4096, false);
  auto answering = Acceptor::Create(*second.node).value();
  WaitingClock clock;
  auto node = krcore::OpenNode(GetParam(), {.rnic = kRnic, .fabric = fabric_, .clock = &clock}).value();
  std::atomic<bool> stop{false}, answer_all{false}, first_is_connected{false};  // relaxed: they publish nothing else
  std::thread serving([&] {
    while (!stop.load(std::memory_order_relaxed)) {
      answering->Serve();
      if (answer_all.load(std::memory_order_relaxed)) clock_.acceptor->Serve();
      std::this_thread::yield();
    }
  });
  std::thread connecting([&] {
    auto pool = node->CreateQueuePool({}).value();
    auto queue = pool->CreateQueue(4).value();
    const Status connected = queue->Connect(1, Deadline::After(clock, 20 * kSecondNs));
    EXPECT_TRUE(connected.ok()) << connected.ToString();
    first_is_connected.store(true, std::memory_order_relaxed);
  });
  while (clock.waits.load(std::memory_order_relaxed) == 0) std::this_thread::yield();  // for the first one's answer
  auto pool = node->CreateQueuePool({}).value();
  auto queue = pool->CreateQueue(4).value();
  const Status connected = queue->Connect(2, Deadline::After(clock, 10 * kSecondNs));
  EXPECT_TRUE(connected.ok()) << connected.ToString();
  EXPECT_FALSE(first_is_connected.load(std::memory_order_relaxed));
  answer_all.store(true, std::memory_order_relaxed);
  connecting.join();
  queue.reset();
  stop.store(true, std::memory_order_relaxed);
  serving.join();
}

// A thread that waits until another one has connected does not wait beyond its own deadline.
TEST_P(SharedConnection, WhoWaitsForAnotherThreadToConnectKeepsItsDeadline) {
  SKIP_IF_SIMULATED("one thread only");
  WaitingClock clock;
  auto node = krcore::OpenNode(GetParam(), {.rnic = kRnic, .fabric = fabric_, .clock = &clock}).value();
  const auto connect = [&](int64_t patience_ns) {
    auto pool = node->CreateQueuePool({}).value();
    auto queue = pool->CreateQueue(4).value();
    EXPECT_EQ(queue->Connect(1, Deadline::After(clock, patience_ns)).code(), StatusCode::kTimeout);
  };
  std::atomic<bool> gave_up{false};  // relaxed: it publishes nothing else
  std::thread other([&] {
    connect(3 * kSecondNs);
    gave_up.store(true, std::memory_order_relaxed);
  });
  while (clock.waits.load(std::memory_order_relaxed) == 0) std::this_thread::yield();
  connect(kSecondNs / 10);
  EXPECT_FALSE(gave_up.load(std::memory_order_relaxed));
  other.join();
}

INSTANTIATE_TEST_SUITE_P(ControlPlanes, SharedConnection, ::testing::Values("lite"),
                         [](const auto& info) { return info.param; });

TEST(ControlPlanesByName, AnUnknownOneIsRefused) {
  EXPECT_EQ(krcore::OpenNode("tcp", {}).status().code(), StatusCode::kInvalidArgument);
  for (const std::string& name : ControlPlanes())
    EXPECT_NE(krcore::OpenNode(name, {.fabric = "nowhere"}).status().code(), StatusCode::kInvalidArgument) << name;
}

}  // namespace
}  // namespace krcore::test
