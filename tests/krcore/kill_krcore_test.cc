// kill -9 at every store of krcore to shared memory, over the software RNIC: metadata servers, what nodes publish
// there, ports, messages, RC connections. Behind each death the living go on without waiting, somebody else does the
// very same to its end, in places of which there would soon be none left if the dead kept theirs, and the fabric holds
// no more than before.
#include <sched.h>

#include <ctime>
#include <functional>
#include <optional>

#include "tests/krcore/kill_each_store.h"
#include "tests/krcore/message_scenario.h"
#include "tests/krcore/rc_fixture.h"

namespace krcore::test {
namespace {

constexpr NodeId kVictim = 7;
constexpr Port kPort = 5;
constexpr uint32_t kMetaCapacity = 1;  // the smallest table: 24 places for nodes

// Time that passes where somebody waits, and gives others time to run: for victims, whose partner is another process.
class VictimsClock final : public Clock {
 public:
  int64_t NowNs() override { return now_ns_; }
  void Relax(uint32_t) override {
    now_ns_ += 100'000;
    const timespec nap{0, 20'000};
    nanosleep(&nap, nullptr);
  }

 private:
  int64_t now_ns_ = 1;
};

class KillNode : public ::testing::Test {
 protected:
  // Time of the living, who wait for nobody but the dead.
  FakeClock clock_;
  VictimsClock victims_clock_;
  const std::string fabric_ = UniqueFabric(false);

  Clock& clock() { return InVictim() ? static_cast<Clock&>(victims_clock_) : clock_; }
  // A victim's end is its parent's to give.
  Deadline Soon() { return Deadline::After(clock(), InVictim() ? 3600 * kSecondNs : 5 * kSecondNs); }
  std::unique_ptr<Node> Open(NodeId id, uint32_t rc_peers = 0) {
    auto node = Node::Open({.rnic = kRnic,
                            .fabric = fabric_,
                            .node = id,
                            .create_fabric = true,
                            .clock = &clock(),
                            .mr_lease_ns = 1'000'000,
                            .rc_peers = rc_peers});
    EXPECT_TRUE(node.ok()) << node.status().ToString();
    return node.ok() ? *std::move(node) : nullptr;
  }
  // What the living do must not wait until a deadline for what the dead left.
  Status Promptly(const std::function<Status()>& act) {
    const int64_t before_ns = clock_.NowNs();
    Status status = act();
    EXPECT_LT(clock_.NowNs() - before_ns, kSecondNs) << status.ToString();
    return status;
  }
  static std::span<const std::byte> Text(const char* text) { return std::as_bytes(std::span(text, std::strlen(text))); }
  std::string ValueOf(Node& node, const char* service) {
    std::string value;
    const Status status = Promptly([&]() -> Status {
      auto found = node.LookupService(service, Soon());
      if (!found.ok()) return found.status();
      value.assign(reinterpret_cast<const char*>(found->data()), found->size());
      return {};
    });
    return status.ok() ? value : std::string(StatusCodeName(status.code()));
  }
};

// ---- metadata servers

TEST_F(KillNode, WhoHostsTheOnlyMetadataServer) {
  auto living = Open(1);
  const FabricState state = FabricState::Of(fabric_);
  const auto act = [&](Node& self) {
    ASSERT_OK(self.HostMetaServer(kMetaCapacity));
    ASSERT_OK(self.Publish(Soon()));
    ASSERT_OK(self.PublishService("first", Text("1"), Soon()));
  };
  KillAtEachStore({.victim =
                       [&] {
                         auto self = Open(kVictim);
                         EnumerateFromHere();
                         act(*self);
                       },
                   .survivors =
                       [&] {
                         EXPECT_EQ(living->LookupService("first", Soon()).status().code(), StatusCode::kUnavailable);
                         {
                           auto heir = Open(kVictim);
                           act(*heir);
                           EXPECT_EQ(ValueOf(*living, "first"), "1");
                           EXPECT_TRUE(Promptly([&] { return living->Publish(Soon()); }).ok());
                         }
                         EXPECT_EQ(FabricState::Of(fabric_), state);
                       }});
}

TEST_F(KillNode, WhoHostsAnotherMetadataServer) {
  auto living = Open(1), user = Open(2);
  ASSERT_OK(living->HostMetaServer(kMetaCapacity));
  ASSERT_OK(living->PublishService("living", Text("kept"), Soon()));
  ASSERT_OK(user->Publish(Soon()));
  const FabricState state = FabricState::Of(fabric_);
  const auto act = [&](Node& self) {
    ASSERT_OK(self.HostMetaServer(kMetaCapacity));
    EXPECT_EQ(ValueOf(self, "living"), "kept");
    ASSERT_OK(self.PublishService("second", Text("2"), Soon()));
  };
  KillAtEachStore({.victim =
                       [&] {
                         auto self = Open(kNoNode);
                         EnumerateFromHere();
                         act(*self);
                       },
                   .survivors =
                       [&] {
                         EXPECT_EQ(ValueOf(*user, "living"), "kept");
                         EXPECT_TRUE(Promptly([&] { return user->Publish(Soon()); }).ok());
                         {
                           auto heir = Open(kNoNode);
                           EXPECT_TRUE(Promptly([&]() -> Status {
                                         act(*heir);
                                         return {};
                                       }).ok());
                           EXPECT_EQ(ValueOf(*user, "second"), "2");
                         }
                         EXPECT_EQ(FabricState::Of(fabric_), state);
                       }});
}

// ---- what nodes publish

TEST_F(KillNode, WhoPublishesItselfAndServicesAndWithdrawsRegions) {
  auto living = Open(1), second = Open(2);
  ASSERT_OK(living->HostMetaServer(kMetaCapacity));
  ASSERT_OK(second->HostMetaServer(kMetaCapacity));
  ASSERT_OK(living->PublishService("living", Text("kept"), Soon()));
  auto pool = living->CreateQueuePool({.max_rc_queues = 0}).value();
  auto queue = pool->CreateQueue(4).value();
  NodeId last = kNoNode;
  const auto act = [&](Node& self) {
    auto region = self.CreateRegion({.length = 4096, .remote_rights = kAllRights, .tag = 1}).value();
    ASSERT_OK(self.Publish(Soon()));
    ASSERT_OK(self.PublishService("dying", Text("1"), Soon()));
    ASSERT_OK(self.PublishService("dying", Text("22"), Soon()));
    EXPECT_EQ(self.PublishService("living", Text("stolen"), Soon()).code(), StatusCode::kExists);
    if (!InVictim()) {
      last = self.id();
      EXPECT_TRUE(Promptly([&] { return queue->Connect(last, Soon()); }).ok());
      EXPECT_EQ(ValueOf(*living, "dying"), "22");
      EXPECT_EQ(ValueOf(*second, "dying"), "22");
    }
    ASSERT_OK(region->Deregister(Soon()));
  };
  const FabricState state = FabricState::Of(fabric_);
  KillAtEachStore({.victim =
                       [&] {
                         auto self = Open(kNoNode);  // another id each time: the places of the dead are needed
                         EnumerateFromHere();
                         act(*self);
                       },
                   .survivors =
                       [&] {
                         for (Node* node : {living.get(), second.get()}) {
                           EXPECT_EQ(ValueOf(*node, "living"), "kept");
                           const std::string dying = ValueOf(*node, "dying");
                           EXPECT_TRUE(dying == "1" || dying == "22" || dying == StatusCodeName(StatusCode::kNotFound))
                               << dying;
                           EXPECT_TRUE(Promptly([&] { return node->Publish(Soon()); }).ok());
                         }
                         {
                           auto heir = Open(kNoNode);
                           act(*heir);
                         }
                         EXPECT_EQ(ValueOf(*living, "dying"), StatusCodeName(StatusCode::kNotFound));
                         EXPECT_EQ(queue->Connect(last, Soon()).code(), StatusCode::kNotFound);
                         EXPECT_EQ(FabricState::Of(fabric_), state);
                       }});
}

// Its successor has the same id, as a memory node's has; and there is one server alone, so that nobody else can tell
// what has become of a record that is half written.
TEST_F(KillNode, WhoPublishesItselfAtTheOnlyServerUnderAnIdThatIsTakenOver) {
  auto living = Open(1);
  ASSERT_OK(living->HostMetaServer(kMetaCapacity));
  auto pool = living->CreateQueuePool({.max_rc_queues = 0}).value();
  auto queue = pool->CreateQueue(4).value();
  const FabricState state = FabricState::Of(fabric_);
  const auto act = [&](Node& self) {
    auto region = self.CreateRegion({.length = 4096, .remote_rights = kAllRights, .tag = 1}).value();
    ASSERT_OK(self.Publish(Soon()));
    ASSERT_OK(self.PublishService("dying", Text("1"), Soon()));
    if (!InVictim()) {
      EXPECT_TRUE(Promptly([&] { return queue->Connect(kVictim, Soon()); }).ok());
      EXPECT_EQ(queue->regions().size(), 1u);
      EXPECT_EQ(ValueOf(*living, "dying"), "1");
    }
  };
  KillAtEachStore({.victim =
                       [&] {
                         auto self = Open(kVictim);
                         EnumerateFromHere();
                         act(*self);
                       },
                   .survivors =
                       [&] {
                         const Status connected = Promptly([&] { return queue->Connect(kVictim, Soon()); });
                         EXPECT_TRUE(connected == StatusCode::kNotFound || connected == StatusCode::kUnavailable)
                             << connected.ToString();
                         const std::string dying = ValueOf(*living, "dying");
                         EXPECT_TRUE(dying == "1" || dying == StatusCodeName(StatusCode::kNotFound)) << dying;
                         {
                           auto heir = Open(kVictim);
                           act(*heir);
                         }
                         EXPECT_EQ(FabricState::Of(fabric_), state);
                       }});
}

// ---- messages

constexpr uint64_t kMessages = 6;
constexpr uint32_t kCopyBytes = 64;  // longer ones are READ
constexpr size_t LengthOf(uint64_t number) { return number % 3 == 2 ? 200 : 30 + number; }

class KillMessages : public KillNode {
 protected:
  MessagingNode Start(NodeId id) {
    MessagingNode party;
    party.node = Open(id);
    party.buffer_bytes = 256;
    party.memory = party.node->CreateRegion({.length = 32 * 256, .remote_rights = kRemoteRead}).value();
    party.pool = party.node->CreateQueuePool({.copy_bytes = kCopyBytes, .max_rc_queues = 0}).value();
    return party;
  }
  // One sender at a time.
  static constexpr BindOptions kOneSender{.senders = 1, .slots = 4, .copy_bytes = kCopyBytes};
};

// Pushes kMessages messages of `id` into a connected queue, with as many calls as it takes.
class Sending {
 public:
  Sending(MessagingNode& party, VirtualQueue& queue, uint64_t id) : party_(party), queue_(queue), id_(id) {}
  // False: nothing more will come of it.
  bool Step() {
    while (pushed_ < kMessages && queue_.credits() > 0) {
      const size_t length = LengthOf(pushed_);
      FillMessage(party_.Buffer(pushed_), {id_, pushed_, length});
      const Sge sge = party_.At(pushed_, length);
      const WorkRequest wr = SendOf(&sge, pushed_);
      if (!queue_.Push({&wr, 1}).ok()) break;
      ++pushed_;
    }
    party_.pool->Poll();
    Completion completion;
    while (queue_.Pop({&completion, 1}) == 1) {
      ++completed_;
      failed_ |= completion.status != WcStatus::kSuccess;
    }
    return !done() && !(failed_ && completed_ == pushed_);
  }
  bool done() const { return completed_ == kMessages && !failed_; }

 private:
  MessagingNode& party_;
  VirtualQueue& queue_;
  const uint64_t id_;
  uint64_t pushed_ = 0, completed_ = 0;
  bool failed_ = false;
};

TEST_F(KillMessages, WhoConnectsToAPortAndSends) {
  MessagingNode host = Start(1);
  ASSERT_OK(host.node->HostMetaServer(kMetaCapacity));
  TestReceiver receiver(host, 0, 16, kPort, kOneSender);
  const auto live = [&] {
    receiver.PostReceives(16);
    host.pool->Poll();
    receiver.Pop();
    clock_.Advance(1'000'000);
  };
  uint64_t id = 0;
  const auto act = [&](MessagingNode& self) {
    auto queue = self.Queue(16);
    Status connected;
    const Deadline deadline = Soon();
    do {  // until the place of whoever died is free
      connected = queue->Connect(1, kPort, deadline);
      if (!InVictim()) live();
    } while (connected == StatusCode::kQueueFull && !deadline.Passed(clock()));
    ASSERT_OK(connected);
    Sending sending(self, *queue, id);
    while (sending.Step() && !deadline.Passed(clock())) {
      InVictim() ? clock().Relax(0) : live();
    }
    EXPECT_TRUE(sending.done());
  };
  const auto heir = [&] {
    MessagingNode self = Start(kNoNode);
    act(self);
  };
  heir();  // makes what is made when it is needed first
  ++id;
  const FabricState state = FabricState::Of(fabric_);
  KillAtEachStore({.victim =
                       [&] {
                         MessagingNode self = Start(kNoNode);
                         EnumerateFromHere();
                         act(self);
                       },
                   .meanwhile = live,
                   .survivors =
                       [&] {
                         const uint64_t dead = id++;
                         heir();
                         for (int i = 0; i < 40; ++i) live();
                         EXPECT_EQ(receiver.ReceivedFrom(id).size(), kMessages);
                         const std::vector<uint64_t>& received = receiver.ReceivedFrom(dead);
                         for (size_t i = 0; i < received.size(); ++i) {
                           // Only those that it was to be asked for can be missing, and only at the end.
                           if (received[i] == i) continue;
                           EXPECT_LE(received.size() - i, 3u);
                           break;
                         }
                         ++id;
                         EXPECT_EQ(FabricState::Of(fabric_), state);
                       }});
}

TEST_F(KillMessages, WhoBindsAPortAndReceives) {
  MessagingNode living = Start(1);
  ASSERT_OK(living.node->HostMetaServer(kMetaCapacity));
  ASSERT_OK(living.node->Publish(Soon()));
  std::unique_ptr<VirtualQueue> queue = living.Queue(16);
  std::optional<Sending> sending;
  uint64_t id = 0;
  // One step of somebody who sends to the port whenever it is bound.
  const auto send = [&] {
    clock_.Advance(100'000);
    if (!sending) {
      if (queue->outstanding() == 0 && queue->Connect(kVictim, kPort, Deadline::After(clock_, 20'000'000)).ok())
        sending.emplace(living, *queue, ++id);
      return;
    }
    sending->Step();
  };
  const auto act = [&](MessagingNode& self) {
    auto bound = self.Queue(16);
    ASSERT_OK(bound->Bind(kPort, kOneSender, Soon()));
    ASSERT_OK(self.Receive(*bound, 0, 8));
    uint64_t received = 0;
    const Deadline deadline = Soon();
    while (received < kMessages && !deadline.Passed(clock())) {
      InVictim() ? clock().Relax(0) : send();
      self.pool->Poll();
      Message message;
      while (bound->PopMessages({&message, 1}) == 1) {
        Stamp stamp;
        std::memcpy(&stamp, self.Buffer(message.wr_id), sizeof(stamp));
        EXPECT_EQ(stamp.number, received);
        EXPECT_TRUE(IsMessage(self.Buffer(message.wr_id), stamp));
        ++received;
        ASSERT_OK(self.Receive(*bound, message.wr_id, 1));
      }
    }
    EXPECT_EQ(received, kMessages);
    // Until the sender knows, so that it is not the port's end that fails its last message.
    if (!InVictim()) {
      while (sending->Step() && !deadline.Passed(clock())) self.pool->Poll();
      EXPECT_TRUE(sending->done());
    }
  };
  const auto heir = [&] {
    {
      MessagingNode self = Start(kVictim);
      act(self);
    }
    sending.reset();
  };
  heir();  // makes what is made when it is needed first
  const FabricState state = FabricState::Of(fabric_);
  KillAtEachStore({.victim =
                       [&] {
                         MessagingNode self = Start(kVictim);
                         EnumerateFromHere();
                         act(self);
                       },
                   .meanwhile = send,
                   .survivors =
                       [&] {
                         // Everything completes, whoever was to receive it.
                         const Deadline deadline = Soon();
                         while (sending && sending->Step() && !deadline.Passed(clock_)) clock_.Advance(100'000);
                         EXPECT_EQ(queue->outstanding(), 0u);
                         sending.reset();
                         heir();
                         EXPECT_EQ(FabricState::Of(fabric_), state);
                       }});
}

// ---- RC connections

class KillRc : public KillNode {
 protected:
  static constexpr uint32_t kHotWrs = 100;

  Worker StartWorker(NodeId id) {
    Worker worker;
    worker.node = Open(id);
    worker.Prepare({.max_rc_queues = 1, .rc_hot_wrs = kHotWrs}, 1 << 16);
    return worker;
  }
  // So much that its peer becomes hot.
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
      InVictim() ? clock().Relax(0) : clock_.Advance(pool::kHeatIntervalNs / 8);
      if (!InVictim()) live();
    }
    ASSERT_TRUE(IsOnRc(*self.pool, 1));
    const Sge sges[] = {self.Word(1), {self.Word(0).addr, 64, self.Word(0).lkey}};
    const WorkRequest wrs[] = {OnWord(*queue, Opcode::kWrite, &sges[1], 8, 1),
                               OnWord(*queue, Opcode::kFetchAdd, &sges[0], 0, 2)};
    ASSERT_OK(queue->Push(wrs));
    Await(*self.pool, *queue, 2);
  };
  KillAtEachStore({.victim =
                       [&] {
                         Worker self = StartWorker(kNoNode);
                         EnumerateFromHere();
                         act(self);
                       },
                   .meanwhile = live,
                   .survivors =
                       [&] {
                         // The host looks for the dead each second, and for claims without a request after ten.
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
  // One step of somebody who uses the victim as much as it can.
  const auto use = [&] {
    clock_.Advance(pool::kHeatIntervalNs / 8);
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
  // Nobody is there: the last of the dead one's connection goes.
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
  heir();  // makes what is made when it is needed first
  settle();
  const FabricState state = FabricState::Of(fabric_);
  KillAtEachStore({.victim =
                       [&] {
                         auto self = Open(kVictim, 1);
                         EnumerateFromHere();
                         act(*self);
                       },
                   .meanwhile = use,
                   .survivors =
                       [&] {
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

// ---- what a host's processes share

// The victim takes its part of a DC initiator, looks a peer up into the host's cache, and breaks and repairs the QP.
TEST(KillHost, WhoTakesPartInWhatAHostShares) {
  const std::string fabric = UniqueFabric(false);
  const QueuePoolOptions one{.dc_initiators = 1, .sq_depth = 8, .max_rc_queues = 0};
  MemoryNode peer = MemoryNode::Start(fabric, 1, 4096, true);
  auto gone = peer.node->CreateRegion({.length = 4096, .remote_rights = kRemoteRead}).value();
  ASSERT_OK(peer.node->Publish(Deadline::After(*RealClock(), 5 * kSecondNs)));
  gone.reset();  // without Deregister: peers believe that it is there
  Worker living = Worker::Start(fabric, one);
  auto queue = living.Connect(1);
  const Sge sge = living.Word(0);
  WorkRequest add = OnWord(*queue, Opcode::kFetchAdd, &sge, 0);
  add.compare_add = 1;
  // How many parts there are for the living.
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
                         // The second time afresh, which writes to the cache.
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
