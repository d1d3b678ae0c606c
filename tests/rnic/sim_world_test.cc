// The World itself: time, determinism, what things cost, how many devices it holds.
#include <unistd.h>

#include <cstdio>
#include <thread>

#include "krcore/node.h"
#include "krcore/queue_pool.h"
#include "krcore/virtual_queue.h"
#include "tests/rnic/sim_fixture.h"

namespace krcore::rnic::testing {
namespace {

TEST(SimWorlds, WithoutAWorldOfThatNameAFabricIsNotFound) {
  const auto opened = OpenDevice({.provider = "sim", .fabric = "nowhere", .create_fabric = true});
  EXPECT_EQ(opened.status().code(), StatusCode::kNotFound);
  EXPECT_NE(opened.status().message().find("nowhere"), std::string_view::npos);
}

TEST(SimWorlds, PollingAloneMovesTheTimeInTheEnd) {
  SimWorld sim(kNone);
  const Sge sge = sim.a->Local(0, 8);
  const int64_t begin_ns = sim.world->now_ns();
  sim.Post({sim.to_b->Wr(Opcode::kRead, &sge, 0)});
  Completion done;
  for (int i = 0; i < 100; ++i) EXPECT_EQ(sim.a->cq->Poll({&done, 1}), 0U);
  EXPECT_EQ(sim.world->now_ns(), begin_ns) << "a poll takes no time by itself";
  int polls = 0;
  while (sim.a->cq->Poll({&done, 1}) == 0) ASSERT_LT(++polls, 1 << 20);
}

TEST(SimWorlds, RelaxGoesToTheNextEventIfItIsNearAndElseALittleFurther) {
  SimWorld sim(kNone);
  const Sge sge = sim.a->Local(0, 8);
  Clock& clock = sim.world->clock();
  const int64_t begin_ns = clock.NowNs();
  sim.Post({sim.to_b->Wr(Opcode::kRead, &sge, 0)});
  clock.Relax(1);
  EXPECT_EQ(clock.NowNs(), begin_ns + sim::CostModel{}.one_way_ns);
  clock.Relax(2);
  EXPECT_TRUE(sim.world->HasCompletions(1));
  EXPECT_EQ(sim.Take().size(), 1U);
  EXPECT_FALSE(sim.world->HasCompletions(1));
  int64_t last_ns = clock.NowNs();
  for (uint32_t spins = 0; spins < 1000; ++spins) {
    clock.Relax(spins);
    ASSERT_GT(clock.NowNs(), last_ns);
    ASSERT_LE(clock.NowNs(), last_ns + 50'000);
    last_ns = clock.NowNs();
  }
}

TEST(SimWorlds, TellWhoHasCompletionsInTheOrderOfTheirArrival) {
  SimWorld sim(kNone);
  Link from_c(sim.c.get(), sim.b.get(), Transport::kDc);
  const Sge sge = sim.a->Local(0, 8), other = sim.c->Local(0, 8);
  EXPECT_EQ(sim.world->TakeReady(), kNoNode);
  KRCORE_EXPECT_OK(from_c.Post(from_c.Wr(Opcode::kRead, &other, 0)));
  sim.Post({sim.to_b->Wr(Opcode::kRead, &sge, 0), sim.to_b->Wr(Opcode::kRead, &sge, 0)});
  sim.b->Settle();
  while (sim.world->Step()) {
  }
  EXPECT_EQ(sim.world->TakeReady(), 3U);
  EXPECT_EQ(sim.world->TakeReady(), 1U);
  EXPECT_EQ(sim.world->TakeReady(), kNoNode) << "once";
}

// ---- determinism

struct Outcome {
  uint64_t hash = 0;
  int64_t end_ns = 0;
  std::vector<uint64_t> completions;
  bool operator==(const Outcome&) const = default;
};

// A busy World with every fault: three devices post at random, one is killed and one broken, queues are reset.
Outcome RunWorld(uint64_t seed) {
  SimWorld sim({.tear = 0.3, .delay = 0.2, .max_delay_ns = 50'000, .break_queue = 0.01}, seed);
  Link links[] = {{sim.a.get(), sim.b.get(), Transport::kDc, 128},
                  {sim.b.get(), sim.c.get(), Transport::kDc, 128},
                  {sim.c.get(), sim.b.get(), Transport::kRc, 128}};
  std::mt19937_64& random = sim.world->random();
  Outcome run;
  std::vector<Sge> sges(64);
  for (int round = 0; round < 3000; ++round) {
    if (round == 2000) sim.world->Kill(1, 100'000);
    Link& link = links[random() % 3];
    switch (random() % 4) {
      case 0:
      case 1: {
        static constexpr Opcode kOpcodes[] = {Opcode::kRead, Opcode::kWrite, Opcode::kFetchAdd, Opcode::kCompareSwap};
        const Opcode opcode = kOpcodes[random() % 4];
        const bool atomic = opcode == Opcode::kFetchAdd || opcode == Opcode::kCompareSwap;
        const uint32_t length = atomic ? 8 : static_cast<uint32_t>(8 + random() % 200);
        const Sge sge = link.a->Local(random() % 100 * 8, length);
        SendWr wr = Adding(link.Wr(opcode, &sge, random() % 50 * 8, run.completions.size()), 1);
        wr.flags = random() % 2 ? kSignaled : kSignaled | kFence;
        (void)link.Post(wr);
        break;
      }
      case 2: sim.world->RunUntil(sim.world->now_ns() + static_cast<int64_t>(random() % 3'000)); break;
      case 3: {
        Completion done;
        while (link.a->cq->Poll({&done, 1}) == 1) {
          run.completions.push_back(done.wr_id << 8 | static_cast<uint64_t>(done.status));
        }
        if (link.qp->state() == QpState::kErr && link.qp->ToReset().ok()) {
          QpPeer peer;
          if (link.transport == Transport::kRc)
            peer = {.device = link.b->device->address(), .qpn = link.remote_qp->num()};
          KRCORE_EXPECT_OK(link.qp->ToInit(0, 0));
          KRCORE_EXPECT_OK(link.qp->ToRtr(peer));
          KRCORE_EXPECT_OK(link.qp->ToRts());
        }
        break;
      }
    }
  }
  while (sim.world->Step()) {
  }
  EXPECT_GT(sim.world->stats().torn, 50U);
  EXPECT_GT(sim.world->stats().delayed, 50U);
  EXPECT_GT(sim.world->stats().broken, 1U);
  run.hash = sim.world->trace_hash();
  run.end_ns = sim.world->now_ns();
  return run;
}

TEST(SimDeterminism, TheSameSeedIsTheSameRunAndAnotherIsAnother) {
  const Outcome first = RunWorld(7);
  // The process's memory lies elsewhere now.
  const auto shift = std::make_unique<char[]>(123'457);
  SimWorld other_world(kNone);
  EXPECT_EQ(RunWorld(7), first);
  EXPECT_NE(RunWorld(8), first);
}

TEST(SimDeterminism, WorldsOfSeveralThreadsDoNotDisturbEachOther) {
  const Outcome alone[] = {RunWorld(1), RunWorld(2), RunWorld(3)};
  Outcome together[3];
  std::vector<std::thread> threads;
  for (uint64_t i = 0; i < 3; ++i) threads.emplace_back([&, i] { together[i] = RunWorld(i + 1); });
  for (std::thread& thread : threads) thread.join();
  for (int i = 0; i < 3; ++i) EXPECT_EQ(together[i], alone[i]);
}

TEST(SimDeterminism, TheTraceListsWhatTheHashCovers) {
  std::FILE* const file = std::tmpfile();
  SimWorld sim({.tear = 1});
  sim.world->set_trace(file);
  const Sge sge = sim.a->Local(0, 64), word = sim.a->Local(0, 8);
  sim.Post({sim.to_b->Wr(Opcode::kWrite, &sge, 128), sim.to_b->Wr(Opcode::kFetchAdd, &word, 8)});
  sim.Finish();
  std::rewind(file);
  std::string text(4096, '\0');
  text.resize(std::fread(text.data(), 1, text.size(), file));
  std::fclose(file);
  EXPECT_NE(text.find("node 1 -> 2 WRITE mr"), std::string::npos) << text;
  EXPECT_NE(text.find("+128 64 B"), std::string::npos) << text;
  EXPECT_NE(text.find("FETCH_AND_ADD"), std::string::npos) << text;
}

// ---- costs

// Returns the nanoseconds from posting until everything has been answered.
int64_t TimeOf(SimWorld& sim, const std::vector<SendWr>& wrs) {
  const int64_t begin_ns = sim.world->now_ns();
  sim.Post(wrs);
  EXPECT_EQ(sim.Finish().size(), wrs.size());
  return sim.world->now_ns() - begin_ns;
}

TEST(SimCost, OfARoundTripABurstABandwidthAndAWordIsThatOfTheModel) {
  const sim::CostModel cost;
  SimWorld sim(kNone);
  const Sge word = sim.a->Local(0, 8), large = sim.a->Local(0, 32 << 10);
  const SendWr read = sim.to_b->Wr(Opcode::kRead, &word, 0);
  const int64_t round_trip_ns = 2 * cost.one_way_ns;
  EXPECT_EQ(TimeOf(sim, {read}), round_trip_ns);
  EXPECT_EQ(TimeOf(sim, std::vector<SendWr>(101, read)), round_trip_ns + 100 * cost.verb_gap_ns);
  const int64_t transfer_ns = 32 * cost.ns_per_kib;
  EXPECT_EQ(TimeOf(sim, {sim.to_b->Wr(Opcode::kRead, &large, 0)}), round_trip_ns + transfer_ns);
  EXPECT_EQ(TimeOf(sim, {sim.to_b->Wr(Opcode::kWrite, &large, 0)}), round_trip_ns + transfer_ns);
  sim.world->RunUntil(sim.world->now_ns() + 1'000'000);
  const SendWr add = sim.to_b->Wr(Opcode::kFetchAdd, &word, 0);
  EXPECT_EQ(TimeOf(sim, std::vector<SendWr>(51, add)), round_trip_ns + 50 * cost.atomic_gap_ns);
}

TEST(SimCost, ATargetServesManyInitiatorsNoFasterThanOneVerbAGap) {
  const sim::CostModel cost;
  SimWorld sim(kNone);
  std::vector<std::unique_ptr<Endpoint>> endpoints;
  std::vector<std::unique_ptr<Link>> links;
  for (NodeId node = 10; node < 30; ++node) {
    endpoints.push_back(std::make_unique<Endpoint>(SimWorld::kProvider, sim.fabric, node, false));
    links.push_back(std::make_unique<Link>(endpoints.back().get(), sim.b.get(), Transport::kDc));
  }
  const int64_t begin_ns = sim.world->now_ns();
  for (auto& link : links) {
    const Sge sge = link->a->Local(0, 8);
    KRCORE_EXPECT_OK(link->qp->PostSend(std::vector<SendWr>(10, link->Wr(Opcode::kRead, &sge, 0)), nullptr));
  }
  while (sim.world->Step()) {
  }
  EXPECT_EQ(sim.world->now_ns() - begin_ns, 2 * cost.one_way_ns + 199 * cost.verb_gap_ns);
}

TEST(SimCost, TheControlPathIsCountedAndTakesNoTimeByItself) {
  sim::CostModel cost;
  cost.create_qp_ns = 1'000'000;
  cost.open_device_ns = 50'000'000;
  SimWorld sim(kNone, 1, cost);
  const int64_t now_ns = sim.world->now_ns(), before_ns = sim.world->control_ns(1);
  EXPECT_GE(before_ns, 50'000'000);
  auto qp = sim.a->MakeQp({.type = QpType::kDci});
  EXPECT_EQ(sim.world->control_ns(1) - before_ns, 1'000'000);
  EXPECT_EQ(sim.world->now_ns(), now_ns);
}

// ---- scale

long ResidentKiB() {
  std::FILE* const file = std::fopen("/proc/self/statm", "r");
  long total = 0, resident = 0;
  EXPECT_EQ(std::fscanf(file, "%ld %ld", &total, &resident), 2);
  std::fclose(file);
  return resident * (sysconf(_SC_PAGESIZE) / 1024);
}

TEST(SimScale, ThreeThousandNodesWithAPoolEachFitIntoOneProcess) {
  constexpr size_t kNodes = 3000;
  const std::string fabric = UniqueFabric("sim-");
  sim::World world({.fabric = fabric});
  const auto open = [&](NodeId id) {
    return Node::Open({.rnic = "sim", .fabric = fabric, .node = id, .clock = &world.clock()}).value();
  };
  auto memory = open(1);
  KRCORE_EXPECT_OK(memory->HostMetaServer(16));
  auto region = memory->CreateRegion({.length = 1 << 20, .remote_rights = kRemoteRead | kRemoteWrite}).value();
  KRCORE_EXPECT_OK(memory->Publish(Deadline::After(world.clock(), 1'000'000'000)));
  struct Client {
    std::unique_ptr<Node> node;
    std::unique_ptr<Region> local;
    std::unique_ptr<QueuePool> pool;
    std::unique_ptr<VirtualQueue> queue;
    Sge sge{};
  };
  const long before_kib = ResidentKiB();
  std::vector<Client> clients(kNodes);
  for (Client& client : clients) {
    client.node = open(kNoNode);
    client.local = client.node->CreateRegion({.length = 4096}).value();
    client.pool = client.node->CreateQueuePool({}).value();
    client.queue = client.pool->CreateQueue(16).value();
    KRCORE_EXPECT_OK(client.queue->Connect(1, Deadline::After(world.clock(), 1'000'000'000)));
    client.sge = {reinterpret_cast<uint64_t>(client.local->bytes().data()), 64, client.local->lkey()};
    WorkRequest wr;
    wr.sg_list = &client.sge;
    wr.num_sge = 1;
    wr.remote_addr = client.queue->regions()[0].addr;
    wr.rkey = client.queue->regions()[0].rkey;
    KRCORE_EXPECT_OK(client.queue->Push({&wr, 1}));
  }
  size_t completed = 0;
  while (world.Step()) {
  }
  for (Client& client : clients) completed += client.pool->Poll();
  EXPECT_EQ(completed, kNodes);
  const double each_kib = static_cast<double>(ResidentKiB() - before_kib) / kNodes;
  RecordProperty("kib_per_node", std::to_string(each_kib));
  std::printf("%.1f KiB a node with a pool\n", each_kib);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  EXPECT_LT(each_kib, 64);
#endif
}

}  // namespace
}  // namespace krcore::rnic::testing
