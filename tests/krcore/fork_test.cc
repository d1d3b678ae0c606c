// Nodes, regions, pools and queues that are open when their process forks. In the child each call reports the fork,
// whatever the child does with them and however it ends. The parent goes on.
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <functional>

#include "krcore/krcore.h"
#include "tests/krcore/fixture.h"

namespace krcore::test {
namespace {

// A global, so that a child's exit() finds it.
Worker the_worker;
std::unique_ptr<VirtualQueue> the_queue;

void CloseAll() {
  the_queue.reset();
  the_worker.pool.reset();
  the_worker.local.reset();
  the_worker.node.reset();
}

// Runs `body` in a child and returns the child's wait status.
int InChild(const std::function<void()>& body) {
  const pid_t child = fork();
  if (child == 0) {
    body();
    _exit(::testing::Test::HasFailure() ? 1 : 0);
  }
  int status = -1;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  return status;
}

void ExpectRefused(const Status& status, const char* call) {
  EXPECT_EQ(status.code(), StatusCode::kBadState) << call;
  EXPECT_NE(status.message().find("after fork"), std::string_view::npos) << call << ": " << status.ToString();
}

void ExpectRefused(int error, const char* call) {
  EXPECT_EQ(error, KRCORE_EBADSTATE) << call;
  EXPECT_NE(std::string_view(krcore_last_error()).find("after fork"), std::string_view::npos) << call;
}

class Fork : public ::testing::Test {
 protected:
  void SetUp() override {
    the_worker = Worker::Start(fabric_);
    ASSERT_OK(the_worker.node->Publish(the_worker.Soon()));
    the_queue = the_worker.Connect(1);
    ExpectWorks();
  }
  ~Fork() override { CloseAll(); }
  // Expects that the parent's queue, memory and record work.
  void ExpectWorks() {
    const Sge sge = the_worker.Word(0);
    WorkRequest add = OnWord(*the_queue, Opcode::kFetchAdd, &sge, 0);
    add.compare_add = 1;
    EXPECT_EQ(Execute(*the_worker.pool, *the_queue, add).status, WcStatus::kSuccess);
    EXPECT_EQ(the_worker.words()[0], adds_++);
    EXPECT_EQ(memory_.words()[0], adds_);
    Worker other = Worker::Start(fabric_);
    auto queue = other.Connect(1);
    const Sge word = other.Word(0);
    EXPECT_EQ(Execute(*other.pool, *queue, OnWord(*queue, Opcode::kRead, &word, 0)).status, WcStatus::kSuccess);
    EXPECT_EQ(other.words()[0], adds_);
    (void)other.Connect(the_worker.node->id());
  }

  const std::string fabric_ = UniqueFabric(false);
  MemoryNode memory_ = MemoryNode::Start(fabric_, 1, 1 << 16, true);
  uint64_t adds_ = 0;
};

void ExpectEveryCallRefused(Node& node, Region& region, QueuePool& pool, VirtualQueue& queue) {
  const Deadline never = Deadline::Never();
  ExpectRefused(node.CreateRegion({.length = 4096}).status(), "CreateRegion");
  char bytes[64];
  ExpectRefused(node.RegisterLocal(bytes, sizeof(bytes)).status(), "RegisterLocal");
  ExpectRefused(node.HostMetaServer(16), "HostMetaServer");
  ExpectRefused(node.Publish(never), "Publish");
  ExpectRefused(node.PublishService("service", {}, never), "PublishService");
  ExpectRefused(node.LookupService("service", never).status(), "LookupService");
  ExpectRefused(node.ClaimService("service", {}, never), "ClaimService");
  ExpectRefused(node.LookupClaim("service").status(), "LookupClaim");
  ExpectRefused(node.ReadRecord("record").status(), "ReadRecord");
  ExpectRefused(node.CompareAndSetRecord("record", 0, {}), "CompareAndSetRecord");
  ExpectRefused(node.FindMemory("memory", 8).status(), "FindMemory");
  ExpectRefused(node.CheckName(), "CheckName");
  ExpectRefused(node.CreateQueuePool({}).status(), "CreateQueuePool");
  EXPECT_FALSE(node.IsConfirmedDead(1, 1));
  EXPECT_EQ(node.PollConnections(), 0U);
  EXPECT_FALSE(node.software_dc().has_value());
  EXPECT_NE(node.id(), kNoNode);

  ExpectRefused(region.Deregister(never), "Deregister");
  ExpectRefused(region.CollapseToHugePages(0, region.bytes().size()), "CollapseToHugePages");
  region.DoNotKeep();

  ExpectRefused(pool.CreateQueue(4).status(), "CreateQueue");
  EXPECT_EQ(pool.Poll(), 0U);
  pool.Flush();
  pool.DiscardStaged();
  (void)pool.stats();

  const Sge sge{reinterpret_cast<uint64_t>(region.bytes().data()), 8, region.lkey()};
  const WorkRequest read = OnWord(queue, Opcode::kRead, &sge, 0);
  ExpectRefused(queue.Stage({&read, 1}), "Stage");
  ExpectRefused(queue.Push({&read, 1}), "Push");
  ExpectRefused(queue.Connect(1, never), "Connect");
  ExpectRefused(queue.Connect(1, 7, never), "Connect to a port");
  Sender sender;
  sender.node = 1;
  sender.port = 7;
  ExpectRefused(queue.Connect(sender, never), "Connect to a sender");
  ExpectRefused(queue.Bind(7, {}, never), "Bind");
  const Receive receive{};
  ExpectRefused(queue.PushRecv({&receive, 1}), "PushRecv");
  Completion completion;
  EXPECT_EQ(queue.Pop({&completion, 1}), 0U);
  Message message;
  EXPECT_EQ(queue.PopMessages({&message, 1}), 0U);
  EXPECT_EQ(queue.credits(), 0U);
}

TEST_F(Fork, EveryCallOnWhatWasOpenedBeforeSaysInTheChildThatItMustOpenItsOwn) {
  // A completion that the parent has not taken yet is not the child's to take.
  const Sge sge = the_worker.Word(1);
  const WorkRequest read = OnWord(*the_queue, Opcode::kRead, &sge, 0, 77);
  ASSERT_OK(the_queue->Push({&read, 1}));
  EXPECT_EQ(InChild([] {
              ExpectEveryCallRefused(*the_worker.node, *the_worker.local, *the_worker.pool, *the_queue);
              CloseAll();
            }),
            0);
  EXPECT_EQ(Await(*the_worker.pool, *the_queue, 1).at(0).wr_id, 77U);
  ExpectWorks();
}

TEST_F(Fork, HoweverAChildEndsTheParentGoesOn) {
  EXPECT_EQ(InChild([] { exit(0); }), 0);
  EXPECT_EQ(InChild([] {
              CloseAll();
              exit(0);
            }),
            0);
  EXPECT_EQ(InChild([] { _exit(0); }), 0);
  EXPECT_EQ(InChild([] { raise(SIGKILL); }), SIGKILL);
  ExpectWorks();
}

TEST_F(Fork, AChildOpensItsOwnNodeAndItsDeathIsFound) {
  int told[2];
  ASSERT_EQ(pipe(told), 0);
  struct {
    NodeId node;
    uint32_t incarnation;
  } own{};
  EXPECT_EQ(InChild([&] {
              Worker worker = Worker::Start(fabric_);
              auto queue = worker.Connect(1);
              const Sge word = worker.Word(0);
              EXPECT_EQ(Execute(*worker.pool, *queue, OnWord(*queue, Opcode::kRead, &word, 0)).status,
                        WcStatus::kSuccess);
              EXPECT_EQ(worker.words()[0], adds_);
              ASSERT_OK(worker.node->Publish(worker.Soon()));
              own = {worker.node->id(), worker.node->incarnation()};
              EXPECT_EQ(write(told[1], &own, sizeof(own)), static_cast<ssize_t>(sizeof(own)));
              if (!::testing::Test::HasFailure()) raise(SIGKILL);
            }),
            SIGKILL);
  ASSERT_EQ(read(told[0], &own, sizeof(own)), static_cast<ssize_t>(sizeof(own)));
  close(told[0]);
  close(told[1]);
  EXPECT_NE(own.node, the_worker.node->id());
  const Deadline deadline = Deadline::After(*RealClock(), 60 * kSecondNs);
  for (uint32_t spins = 0; !the_worker.node->IsConfirmedDead(own.node, own.incarnation); ++spins) {
    ASSERT_FALSE(deadline.Passed(*RealClock()));
    RealClock()->Relax(spins);
  }
  ExpectWorks();
}

TEST_F(Fork, RegisteredMemoryTakesNoPageFromAChildAndStaysTheNics) {
  // A registered buffer and what a child needs, on the same page.
  alignas(4096) static std::array<uint64_t, 512> page;
  auto region = the_worker.node->RegisterLocal(page.data(), 64);
  ASSERT_OK(region.status());
  page[100] = 1;
  EXPECT_EQ(InChild([] {
              EXPECT_EQ(page[100], 1U);
              page[0] = page[100] = 2;
              the_worker.words()[0] = 7;
            }),
            0);
  // The parent writes while there is a child. Neither the NIC nor the CPU of one process may see the other's copy.
  int go[2];
  ASSERT_EQ(pipe(go), 0);
  const pid_t child = fork();
  if (child == 0) {
    char byte;
    _exit(read(go[0], &byte, 1) == 1 && page[100] == 1 ? 0 : 1);
  }
  page[100] = 3;
  page[0] = 0;
  memory_.words()[1] = 4711;
  const Sge sge{reinterpret_cast<uint64_t>(page.data()), 8, (*region)->lkey()};
  EXPECT_EQ(Execute(*the_worker.pool, *the_queue, OnWord(*the_queue, Opcode::kRead, &sge, 1)).status,
            WcStatus::kSuccess);
  EXPECT_EQ(page[0], 4711U);
  ASSERT_EQ(write(go[1], "", 1), 1);
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  close(go[0]);
  close(go[1]);
  ExpectWorks();
}

TEST_F(Fork, TheCInterfaceRefusesInAChild) {
  if (kOnKernel) GTEST_SKIP() << "kernel: the C interface has control plane krcore alone";
  const std::string address = AddressOf(fabric_);
  krcore_node_options options{};
  options.rnic = kRnic;
  options.fabric = fabric_.c_str();
  options.fabric_address = kOnVerbs ? address.c_str() : nullptr;
  krcore_node_t* node = nullptr;
  krcore_mr_t* mr = nullptr;
  krcore_pool_t* pool = nullptr;
  krcore_queue_t* queue = nullptr;
  ASSERT_EQ(krcore_open(&options, &node), KRCORE_OK) << krcore_last_error();
  ASSERT_EQ(krcore_qreg_mr(node, nullptr, 4096, 0, &mr), KRCORE_OK);
  ASSERT_EQ(krcore_pool_open(node, nullptr, &pool), KRCORE_OK);
  ASSERT_EQ(krcore_queue(pool, 8, &queue), KRCORE_OK);
  ASSERT_EQ(krcore_qconnect(queue, 1, KRCORE_NO_PORT, 5 * kSecondNs), KRCORE_OK);
  EXPECT_EQ(InChild([&] {
              krcore_mr_t* mr2 = nullptr;
              krcore_pool_t* pool2 = nullptr;
              krcore_queue_t* queue2 = nullptr;
              ExpectRefused(krcore_host_meta(node, 16), "host_meta");
              ExpectRefused(krcore_publish(node, -1), "publish");
              ExpectRefused(krcore_qreg_mr(node, nullptr, 4096, 0, &mr2), "qreg_mr");
              ExpectRefused(krcore_qreg_mr(node, &options, sizeof(options), 0, &mr2), "qreg_mr of the caller's");
              ExpectRefused(krcore_pool_open(node, nullptr, &pool2), "pool_open");
              ExpectRefused(krcore_queue(pool, 8, &queue2), "queue");
              ExpectRefused(krcore_qconnect(queue, 1, KRCORE_NO_PORT, -1), "qconnect");
              ExpectRefused(krcore_qconnect(queue, 1, 7, -1), "qconnect to a port");
              krcore_sender sender{};
              sender.node = 1;
              sender.port = 7;
              ExpectRefused(krcore_qconnect_sender(queue, &sender, -1), "qconnect_sender");
              ExpectRefused(krcore_qbind(queue, 7, nullptr, -1), "qbind");
              const krcore_recv receive{};
              ExpectRefused(krcore_qpush_recv(queue, &receive, 1, nullptr), "qpush_recv");
              const krcore_wr wr{};
              ExpectRefused(krcore_qpush(queue, &wr, 1, nullptr), "qpush");
              krcore_completion completion;
              EXPECT_EQ(krcore_qpop(queue, &completion, 1), 0U);
              krcore_message message;
              EXPECT_EQ(krcore_qpop_msgs(queue, &message, 1), 0U);
              EXPECT_EQ(krcore_qpoll(pool), 0U);
              EXPECT_EQ(krcore_qcredits(queue), 0U);
              EXPECT_NE(krcore_node_id(node), KRCORE_NO_NODE);
              struct krcore_mr_info info;
              krcore_mr_info(mr, &info);
              krcore_region region;
              EXPECT_EQ(krcore_qregions(queue, &region, 1), 1U);
              krcore_qclose(queue);
              krcore_pool_close(pool);
              krcore_qdereg_mr(mr);
              krcore_close(node);
            }),
            0);
  EXPECT_EQ(krcore_publish(node, 5 * kSecondNs), KRCORE_OK) << krcore_last_error();
  krcore_qclose(queue);
  krcore_pool_close(pool);
  krcore_qdereg_mr(mr);
  krcore_close(node);
}

}  // namespace
}  // namespace krcore::test
