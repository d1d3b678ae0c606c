// What the tests of krcore share: nodes on a fabric of their own, and queues that wait for their completions.
// The suites are compiled four times: as they are, for sw; with KRCORE_TEST_SIM, for sim (all in one executable); with
// KRCORE_TEST_VERBS, for verbs, where there is an RDMA device (tests/vm); and with KRCORE_TEST_KERNEL, for control
// plane "kernel", where there is also the kernel module.
#ifndef TESTS_KRCORE_FIXTURE_H_
#define TESTS_KRCORE_FIXTURE_H_

#include <gtest/gtest.h>
#include <sched.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "krcore/clock.h"
#include "krcore/control_plane.h"
#include "krcore/node.h"
#include "krcore/queue_pool.h"
#include "krcore/rnic.h"
#include "krcore/rnic/sim/world.h"
#include "krcore/virtual_queue.h"
#include "tests/support/free_port.h"

namespace krcore::test {

inline constexpr int64_t kSecondNs = 1'000'000'000;
inline constexpr uint32_t kAllRights = kRemoteRead | kRemoteWrite | kRemoteAtomic;

#define ASSERT_OK(expr)                              \
  do {                                               \
    const ::krcore::Status status_ = (expr);         \
    ASSERT_TRUE(status_.ok()) << status_.ToString(); \
  } while (false)

#ifdef KRCORE_TEST_SIM
inline constexpr char kRnic[] = "sim";
inline constexpr bool kSimulated = true;
#elif defined(KRCORE_TEST_VERBS)
inline constexpr char kRnic[] = "verbs";
inline constexpr bool kSimulated = false;
#else
inline constexpr char kRnic[] = "sw";
inline constexpr bool kSimulated = false;
#endif
inline constexpr bool kOnVerbs = std::string_view(kRnic) == "verbs";
#ifdef KRCORE_TEST_KERNEL
inline constexpr char kControlPlane[] = "kernel";
#else
inline constexpr char kControlPlane[] = "krcore";
#endif
inline constexpr bool kOnKernel = std::string_view(kControlPlane) == "kernel";
#define SKIP_ON_KERNEL(reason) \
  if (kOnKernel) GTEST_SKIP() << "kernel: " reason
#define SKIP_IF_SIMULATED(reason) \
  if (kSimulated) GTEST_SKIP() << "simulated: " reason
#define SKIP_ON_VERBS(reason) \
  if (kOnVerbs) GTEST_SKIP() << "verbs: " reason

// Lets time pass in which posted requests are executed. On sw they are executed when they are posted.
inline void LetRequestsRun(Clock& clock) {
  if (kSimulated) clock.Relax(0);
  if (kOnVerbs) usleep(100);
}

// Advances only when somebody waits.
class FakeClock final : public Clock {
 public:
  int64_t NowNs() override { return now_ns_.load(std::memory_order_relaxed); }
  void Relax(uint32_t) override {
    if (kOnVerbs) usleep(1000);                               // what is waited for takes real time
    sched_yield();                                            // and so does other threads' work
    now_ns_.fetch_add(1'000'000, std::memory_order_relaxed);  // pairs with nothing
  }
  void Advance(int64_t ns) { now_ns_.fetch_add(ns, std::memory_order_relaxed); }

 private:
  std::atomic<int64_t> now_ns_{1};
};

// Simulated worlds by fabric, each made by UniqueFabric. They are never destroyed, because what lives in one may be a
// member declared before it.
inline std::map<std::string, std::unique_ptr<rnic::sim::World>>& Worlds() {
  static auto* const worlds = new std::map<std::string, std::unique_ptr<rnic::sim::World>>();
  return *worlds;
}

// Returns where the fabric's membership service is to be: the same at each call, also in forked children. Empty where
// the provider needs none.
inline std::string AddressOf(const std::string& fabric) {
  if (!kOnVerbs) return "";
  static auto* const addresses = new std::map<std::string, std::string>();
  std::string& address = (*addresses)[fabric];
  if (!address.empty()) return address;
  return address = "127.0.0.1:" + std::to_string(testing_support::FreePort());
}

// Devices that keep each fabric's membership service running, whichever nodes come and go, until the test and its
// fixture are gone.
class Founders final : public ::testing::EmptyTestEventListener {
 public:
  std::vector<std::unique_ptr<rnic::Device>> devices;

 private:
  void OnTestEnd(const ::testing::TestInfo&) override { devices.clear(); }
};

inline void Found(const std::string& fabric) {
  static Founders* const founders = [] {
    auto* const made = new Founders();
    ::testing::UnitTest::GetInstance()->listeners().Append(made);  // listeners() owns it
    return made;
  }();
  auto founder = rnic::OpenDevice(
      {.provider = kRnic, .fabric = fabric, .node = kNoNode, .create_fabric = true, .address = AddressOf(fabric)});
  EXPECT_TRUE(founder.ok()) << founder.status().ToString();
  if (founder.ok()) founders->devices.push_back(*std::move(founder));
}

// Makes a fabric. `in_process`: all its nodes are in this process. Otherwise, on verbs, the first process to join has
// the membership service.
inline std::string UniqueFabric(bool in_process) {
  static std::atomic<int> count{0};
  const std::string name = "krt-" + std::to_string(getpid()) + "-" + std::to_string(count.fetch_add(1));
  if (kOnVerbs) (void)AddressOf(name);
  if (kOnVerbs && in_process) Found(name);
  if (!kSimulated) return in_process && !kOnVerbs ? "inproc:" + name : name;
  // Everything that the interface permits, but no faults.
  const rnic::sim::Chaos chaos{.tear = 0.3, .delay = 0.2, .max_delay_ns = 20'000};
  Worlds()[name] = std::make_unique<rnic::sim::World>(rnic::sim::WorldOptions{.fabric = name, .chaos = chaos});
  return name;
}

// The clock of the fabric.
inline Clock& ClockOf(const std::string& fabric) { return kSimulated ? Worlds().at(fabric)->clock() : *RealClock(); }

// Advances the fabric's time by `ns` where it is simulated, and `clock` otherwise.
inline void PassTime(const std::string& fabric, FakeClock& clock, int64_t ns) {
  if (kSimulated) {
    rnic::sim::World& world = *Worlds().at(fabric);
    world.RunUntil(world.now_ns() + ns);
  } else {
    clock.Advance(ns);
    LetRequestsRun(clock);
  }
}

inline std::unique_ptr<Node> OpenNode(const std::string& fabric, NodeId id, Clock* clock = nullptr,
                                      uint32_t rc_peers = 0) {
  if (clock == nullptr) clock = &ClockOf(fabric);
  auto node = krcore::OpenNode(kControlPlane, {.rnic = kRnic,
                                               .fabric = fabric,
                                               .fabric_address = AddressOf(fabric),
                                               .node = id,
                                               .create_fabric = true,
                                               .clock = clock,
                                               .rc_peers = rc_peers});
  EXPECT_TRUE(node.ok()) << node.status().ToString();
  return node.ok() ? *std::move(node) : nullptr;
}

// A node that exposes one region.
struct MemoryNode {
  std::unique_ptr<Node> node;
  std::unique_ptr<Region> region;

  static MemoryNode Start(const std::string& fabric, NodeId id, size_t length, bool host_meta, Clock* clock = nullptr,
                          uint32_t rc_peers = 0) {
    MemoryNode memory;
    memory.node = OpenNode(fabric, id, clock, rc_peers);
    if (!memory.node) return memory;
    if (host_meta) {
      const Status hosted = memory.node->HostMetaServer(256);
      EXPECT_TRUE(hosted.ok()) << hosted.ToString();
    }
    auto region = memory.node->CreateRegion({.length = length, .remote_rights = kAllRights, .tag = id});
    EXPECT_TRUE(region.ok()) << region.status().ToString();
    if (!region.ok()) return memory;
    memory.region = *std::move(region);
    const Status published = memory.node->Publish(Deadline::After(memory.node->clock(), 5 * kSecondNs));
    EXPECT_TRUE(published.ok()) << published.ToString();
    return memory;
  }
  uint64_t* words() { return reinterpret_cast<uint64_t*>(region->bytes().data()); }
};

// A fabric with a memory node of 64 KiB, number 1, that hosts the metadata.
class OneMemoryNode : public ::testing::Test {
 protected:
  const std::string fabric_ = UniqueFabric(true);
  MemoryNode memory_ = MemoryNode::Start(fabric_, 1, 1 << 16, true);
};

// A node with a pool and local memory of 8-byte words.
struct Worker {
  std::unique_ptr<Node> node;
  std::unique_ptr<Region> local;
  std::unique_ptr<QueuePool> pool;

  static Worker Start(const std::string& fabric, const QueuePoolOptions& options = {}, size_t length = 1 << 20) {
    Worker worker;
    worker.node = OpenNode(fabric, kNoNode);
    if (worker.node) worker.Prepare(options, length);
    return worker;
  }
  void Prepare(const QueuePoolOptions& options, size_t length) {
    auto region = node->CreateRegion({.length = length});
    EXPECT_TRUE(region.ok()) << region.status().ToString();
    auto made = node->CreateQueuePool(options);
    EXPECT_TRUE(made.ok()) << made.status().ToString();
    local = *std::move(region);
    pool = *std::move(made);
  }
  Deadline Soon() { return Deadline::After(node->clock(), 5 * kSecondNs); }
  uint64_t* words() { return reinterpret_cast<uint64_t*>(local->bytes().data()); }
  Sge Word(size_t index) { return {reinterpret_cast<uint64_t>(words() + index), 8, local->lkey()}; }

  std::unique_ptr<VirtualQueue> Connect(NodeId peer, uint32_t depth = 64) {
    auto queue = pool->CreateQueue(depth);
    EXPECT_TRUE(queue.ok()) << queue.status().ToString();
    const Status connected = (*queue)->Connect(peer, Soon());
    EXPECT_TRUE(connected.ok()) << connected.ToString();
    return *std::move(queue);
  }
};

// A request on 8-byte word `remote_word` of the peer's first region, with `sge` as its only SGE.
inline WorkRequest OnWord(const VirtualQueue& queue, Opcode opcode, const Sge* sge, size_t remote_word,
                          uint64_t wr_id = 0) {
  WorkRequest wr;
  wr.wr_id = wr_id;
  wr.sg_list = sge;
  wr.num_sge = 1;
  wr.opcode = opcode;
  wr.remote_addr = queue.regions()[0].addr + 8 * remote_word;
  wr.rkey = queue.regions()[0].rkey;
  return wr;
}

// Posts the requests and keeps a place for them in the pool's ring until a poll finds them complete, even where the NIC
// executes them when they are posted. (Push may go another way.)
inline Status Post(QueuePool& pool, VirtualQueue& queue, std::span<const WorkRequest> wrs) {
  Status staged = queue.Stage(wrs);
  if (staged.ok()) pool.Flush();
  return staged;
}

// Polls until the queue has delivered `count` completions.
inline std::vector<Completion> Await(QueuePool& pool, VirtualQueue& queue, size_t count) {
  std::vector<Completion> all(count);
  size_t got = 0;
  Clock& clock = pool.node().clock();
  const Deadline deadline = Deadline::After(clock, 20 * kSecondNs);
  for (uint32_t spins = 0; got < count && !deadline.Passed(clock); ++spins) {
    pool.Poll();
    got += queue.Pop(std::span(all).subspan(got));
    clock.Relax(spins);
  }
  EXPECT_EQ(got, count) << "completions missing";
  all.resize(got);
  return all;
}

inline Completion Execute(QueuePool& pool, VirtualQueue& queue, const WorkRequest& wr) {
  const Status pushed = queue.Push({&wr, 1});
  EXPECT_TRUE(pushed.ok()) << pushed.ToString();
  if (!pushed.ok()) return {};
  const std::vector<Completion> completions = Await(pool, queue, 1);
  return completions.empty() ? Completion{} : completions[0];
}

struct Gate final : PostGate {
  bool MayPost() override {
    ++asked;
    return open;
  }
  bool open = true;
  int asked = 0;
};

}  // namespace krcore::test

#endif  // TESTS_KRCORE_FIXTURE_H_
