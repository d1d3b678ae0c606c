// Crashes (kill -9) and what comes after them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "krcore/clock.h"
#include "krcore/node.h"
#include "krcore/queue_pool.h"
#include "krcore/virtual_queue.h"
#include "kvs/client.h"
#include "kvs/layout/pool.h"
#include "tests/support/program.h"

namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using testing_support::Finished;
using testing_support::Program;
using testing_support::RunProgram;
using testing_support::TestFabric;

class Restart : public ::testing::Test {
 protected:
  std::vector<std::string> Args(int node, const char* memory = "--memory=64M") const {
    std::vector<std::string> args = {fabric_.flag(), "--node=" + std::to_string(node), memory, "--hugepages=off",
                                     "--wait_ms=20000"};
    if (node == 1) args.push_back("--metaserver");
    return args;
  }
  std::unique_ptr<Program> StartNode(int node) {
    auto program = std::make_unique<Program>("memnode", Args(node));
    ready_ = program->WaitForLine("ready");
    EXPECT_NE(ready_, "") << program->Output();
    return program;
  }

  TestFabric fabric_;
  std::string ready_;  // the line of the last StartNode
};

// Posts one 8-byte verb on the first chunk of a memory node's pool, by a client of its own. Returns the word found
// there.
uint64_t VerbOnPool(const std::string& fabric, krcore::NodeId target, krcore::Opcode opcode, uint64_t word) {
  krcore::NodeOptions options;
  options.fabric = fabric;
  auto node = krcore::Node::Open(options).value();
  auto pool = node->CreateQueuePool({}).value();
  auto queue = pool->CreateQueue(4).value();
  const krcore::Deadline deadline = krcore::Deadline::After(node->clock(), 20'000'000'000);
  const krcore::Status connected = queue->Connect(target, deadline);
  EXPECT_TRUE(connected.ok()) << connected.ToString();
  if (!connected.ok() || queue->regions().empty()) return 0;
  auto local = node->RegisterLocal(&word, sizeof(word)).value();
  const krcore::Sge sge{reinterpret_cast<uint64_t>(&word), sizeof(word), local->lkey()};
  krcore::WorkRequest wr;
  wr.sg_list = &sge;
  wr.num_sge = 1;
  wr.opcode = opcode;
  wr.remote_addr = queue->regions()[0].addr + kvs::kMinPoolBytes - sizeof(word);
  wr.rkey = queue->regions()[0].rkey;
  EXPECT_TRUE(queue->Push({&wr, 1}).ok());
  krcore::Completion done;
  for (uint32_t spins = 0; queue->Pop({&done, 1}) == 0; ++spins) {
    if (pool->Poll() == 0) node->clock().Relax(spins);
  }
  EXPECT_EQ(done.status, krcore::WcStatus::kSuccess) << krcore::WcStatusName(done.status);
  return word;
}

TEST_F(Restart, AKilledNodesMemoryIsAdoptedWithItsData) {
  auto node = StartNode(1);
  EXPECT_THAT(ready_, HasSubstr("adopted=no"));
  VerbOnPool(fabric_.name(), 1, krcore::Opcode::kWrite, 0x1234567890abcdef);
  node->Kill();
  EXPECT_THAT(fabric_.Files(), Not(IsEmpty()));
  node = StartNode(1);
  EXPECT_THAT(ready_, AllOf(HasSubstr("adopted=yes"), HasSubstr("home=yes")));
  EXPECT_EQ(VerbOnPool(fabric_.name(), 1, krcore::Opcode::kRead, 0), 0x1234567890abcdefu);
  EXPECT_EQ(node->Stop(), 0) << node->Output();
}

TEST_F(Restart, AKilledMemberComesBackToALivingFabric) {
  auto home = StartNode(1);
  auto member = StartNode(2);
  VerbOnPool(fabric_.name(), 2, krcore::Opcode::kWrite, 42);
  member->Kill();
  member = StartNode(2);
  EXPECT_THAT(ready_, AllOf(HasSubstr("adopted=yes"), HasSubstr("home=no")));
  EXPECT_EQ(VerbOnPool(fabric_.name(), 2, krcore::Opcode::kRead, 0), 42u);
  EXPECT_EQ(member->Stop(), 0) << member->Output();
  EXPECT_EQ(home->Stop(), 0) << home->Output();
}

// Pointers into its lost memory still exist: something else would be read there.
TEST_F(Restart, AMemberWhoseMemoryIsGoneIsRefusedUnlessItWasDrained) {
  auto home = StartNode(1);
  auto member = StartNode(2);
  EXPECT_EQ(member->Stop(), 0) << member->Output();
  std::vector<std::string> keeping = Args(2);
  keeping.push_back("--keep_memory");
  const Finished kept = RunProgram("memnode", keeping);
  EXPECT_EQ(kept.status, 1) << kept.err;
  EXPECT_THAT(kept.err, HasSubstr("may have keys at memory node 2"));
  // The second try is refused, too: it does not take what the first try created for the node's memory.
  const Finished refused = RunProgram("memnode", keeping);
  EXPECT_EQ(refused.status, 1) << refused.err;
  EXPECT_THAT(refused.err, AllOf(HasSubstr("may have keys at memory node 2"), HasSubstr("--node that"),
                                 HasSubstr("--clean"), Not(HasSubstr("ready"))));
  // With another id it is welcome; and a drained node is welcome under its own id.
  member = StartNode(3);
  EXPECT_THAT(ready_, AllOf(HasSubstr("adopted=no"), HasSubstr("home=no")));
  const Finished drained = RunProgram("memnode", {fabric_.flag(), "--drain=3"});
  EXPECT_EQ(drained.status, 0) << drained.err;
  EXPECT_EQ(member->Stop(), 0) << member->Output();
  member = StartNode(3);
  EXPECT_THAT(ready_, HasSubstr("adopted=no"));
  EXPECT_EQ(member->Stop(), 0) << member->Output();
  EXPECT_EQ(home->Stop(), 0) << home->Output();
}

// No living node knows of a home that died with the only metadata server; but its memory is there.
TEST_F(Restart, WhereTheMemoryOfADeadHomeIsNobodyBeginsAnotherStore) {
  auto home = StartNode(1);
  VerbOnPool(fabric_.name(), 1, krcore::Opcode::kWrite, 42);
  home->Kill();
  std::vector<std::string> args = {fabric_.flag(), "--node=3",      "--memory=64M", "--hugepages=off",
                                   "--metaserver", "--keep_memory", "--wait_ms=100"};
  const Finished refused = RunProgram("memnode", args);
  EXPECT_EQ(refused.status, 1) << refused.out;
  EXPECT_THAT(refused.err, AllOf(HasSubstr("memory of node 1"), HasSubstr("start it again"),
                                 HasSubstr("--wait_ms=100."), HasSubstr("--clean")));
  EXPECT_THAT(fabric_.Files(), Not(Contains(HasSubstr("k3-pool"))));
  args.back() = "--wait_ms=60000";
  Program waiting("memnode", args);
  EXPECT_NE(waiting.WaitForLogLine("waiting: the memory of node 1"), "") << waiting.Output();
  home = StartNode(1);
  EXPECT_THAT(ready_, AllOf(HasSubstr("adopted=yes"), HasSubstr("home=yes")));
  EXPECT_THAT(waiting.WaitForLine("ready"), AllOf(HasSubstr("adopted=no"), HasSubstr("home=no"))) << waiting.Output();
  EXPECT_EQ(VerbOnPool(fabric_.name(), 1, krcore::Opcode::kRead, 0), 42u);
  EXPECT_EQ(waiting.Stop(), 0) << waiting.Output();
  EXPECT_EQ(home->Stop(), 0) << home->Output();
  EXPECT_EQ(RunProgram("memnode", {"--clean", fabric_.flag()}).status, 0);
}

// The clients of the store before know its hash and its tables. They must not use them on the next store.
TEST_F(Restart, ClientsOfAStoreThatIsGoneAreRefusedByTheNext) {
  auto home = StartNode(1);
  auto member = StartNode(2);
  const auto before = kvs::Store::Open({.fabric = fabric_.name()}).value();
  const auto idle = before->NewClient().value(), busy = before->NewClient().value();
  for (int i = 0; i < 1000; ++i) ASSERT_TRUE(busy->Put(std::to_string(i), "before").ok());
  std::string value;
  ASSERT_TRUE(idle->Get("1", &value).ok());
  EXPECT_EQ(member->Stop(), 0);
  EXPECT_EQ(home->Stop(), 0);
  home = StartNode(1);
  EXPECT_THAT(ready_, AllOf(HasSubstr("adopted=no"), HasSubstr("home=yes")));
  member = StartNode(2);
  const auto after = kvs::Store::Open({.fabric = fabric_.name()}).value();
  const auto client = after->NewClient().value();
  for (int i = 0; i < 1000; i += 2) ASSERT_TRUE(client->Put(std::to_string(i), "after").ok());
  for (kvs::Client* const old : {idle.get(), busy.get()}) {
    // At first it learns that its connections are broken, and it does not try again at once.
    kvs::Status status;
    const auto deadline = krcore::Deadline::After(*krcore::RealClock(), 20'000'000'000);
    while (!(status == kvs::StatusCode::kBadState) && !deadline.Passed(*krcore::RealClock())) {
      status = old->Get("1", &value);
      ASSERT_FALSE(status.ok()) << value;
    }
    EXPECT_EQ(status, kvs::StatusCode::kBadState) << status.ToString();
    for (int i = 0; i < 100; ++i) {
      ASSERT_EQ(old->Put(std::to_string(i), "late"), kvs::StatusCode::kBadState);
      ASSERT_EQ(old->Get(std::to_string(i), &value), kvs::StatusCode::kBadState);
      ASSERT_EQ(old->Delete(std::to_string(i)), kvs::StatusCode::kBadState);
    }
    EXPECT_EQ(old->ReadTableStats().status(), kvs::StatusCode::kBadState);
  }
  EXPECT_EQ(before->NewClient().status(), kvs::StatusCode::kBadState);
  for (int i = 0; i < 1000; ++i) {
    const kvs::Status got = client->Get(std::to_string(i), &value);
    ASSERT_EQ(got, i % 2 == 0 ? kvs::StatusCode::kOk : kvs::StatusCode::kNotFound) << i;
    if (i % 2 == 0) {
      ASSERT_EQ(value, "after");
    }
  }
  EXPECT_EQ(member->Stop(), 0) << member->Output();
  EXPECT_EQ(home->Stop(), 0) << home->Output();
}

// The metadata server that the node itself brings knows nothing yet.
TEST_F(Restart, ANewNodeWithTheOnlyMetaServerFindsTheHomeThatWentOn) {
  Program meta("memnode", {fabric_.flag(), "--memory=0", "--metaserver"});
  ASSERT_NE(meta.WaitForLine("ready"), "") << meta.Output();
  Program home("memnode", {fabric_.flag(), "--node=2", "--memory=64M", "--hugepages=off"});
  EXPECT_THAT(home.WaitForLine("ready"), HasSubstr("home=yes")) << home.Output();
  meta.Kill();
  auto another = StartNode(1);
  EXPECT_THAT(ready_, HasSubstr("home=no"));
  EXPECT_EQ(another->Stop(), 0) << another->Output();
  EXPECT_EQ(home.Stop(), 0) << home.Output();
}

// A member does not make a home of memory in which a store has keys.
TEST_F(Restart, AMemberThatComesBackBeforeItsHomeWaitsForThat) {
  auto home = StartNode(1);
  auto member = StartNode(2);
  VerbOnPool(fabric_.name(), 2, krcore::Opcode::kWrite, 42);
  member->Kill();
  home->Kill();
  const Finished alone = RunProgram(
      "memnode", {fabric_.flag(), "--node=2", "--memory=64M", "--hugepages=off", "--wait_ms=300", "--metaserver"});
  EXPECT_EQ(alone.status, 1) << alone.out;
  EXPECT_THAT(alone.err, HasSubstr("whose home has not appeared"));
  home = StartNode(1);
  EXPECT_THAT(ready_, AllOf(HasSubstr("adopted=yes"), HasSubstr("home=yes")));
  member = StartNode(2);
  EXPECT_THAT(ready_, AllOf(HasSubstr("adopted=yes"), HasSubstr("home=no")));
  EXPECT_EQ(VerbOnPool(fabric_.name(), 2, krcore::Opcode::kRead, 0), 42u);
  EXPECT_EQ(member->Stop(), 0) << member->Output();
  EXPECT_EQ(home->Stop(), 0) << home->Output();
}

TEST_F(Restart, AMetaServerThatComesBackLearnsOfTheNodesThatWentOn) {
  const std::vector<std::string> meta_args = {fabric_.flag(), "--memory=0", "--metaserver"};
  Program meta("memnode", meta_args);
  ASSERT_NE(meta.WaitForLine("ready"), "") << meta.Output();
  Program one("memnode", {fabric_.flag(), "--node=1", "--memory=64M", "--hugepages=off"});
  ASSERT_NE(one.WaitForLine("ready"), "") << one.Output();
  auto two = StartNode(2);
  VerbOnPool(fabric_.name(), 2, krcore::Opcode::kWrite, 5);
  meta.Kill();
  // Both have seen that the server is gone, so what they publish afterwards is new.
  EXPECT_NE(one.WaitForLogLine("not published"), "") << one.Output();
  EXPECT_NE(two->WaitForLogLine("not published"), "") << two->Output();
  Program again("memnode", meta_args);
  ASSERT_NE(again.WaitForLine("ready"), "") << again.Output();
  EXPECT_NE(one.WaitForLogLine("published at the metadata server again"), "") << one.Output();
  EXPECT_NE(two->WaitForLogLine("published at the metadata server again"), "") << two->Output();
  EXPECT_EQ(VerbOnPool(fabric_.name(), 2, krcore::Opcode::kRead, 0), 5u);
  // The home's claim is back too: otherwise a third node would not find whom to join, or would make itself the home.
  Program three("memnode", {fabric_.flag(), "--node=3", "--memory=64M", "--hugepages=off"});
  EXPECT_THAT(three.WaitForLine("ready"), HasSubstr("home=no")) << three.Output();
  EXPECT_EQ(three.Stop(), 0) << three.Output();
  EXPECT_EQ(two->Stop(), 0) << two->Output();
  EXPECT_EQ(one.Stop(), 0) << one.Output();
  EXPECT_EQ(again.Stop(), 0) << again.Output();
}

TEST_F(Restart, WithTwoMetaServersTheDeathOfEitherIsNotNoticed) {
  const std::vector<std::string> meta_args = {fabric_.flag(), "--memory=0", "--metaserver"};
  auto first = std::make_unique<Program>("memnode", meta_args);
  ASSERT_NE(first->WaitForLine("ready"), "") << first->Output();
  Program one("memnode", {fabric_.flag(), "--node=1", "--memory=64M", "--hugepages=off"});
  ASSERT_NE(one.WaitForLine("ready"), "") << one.Output();
  // This one comes later, so it learns of the node from the other one.
  auto second = std::make_unique<Program>("memnode", meta_args);
  ASSERT_NE(second->WaitForLine("ready"), "") << second->Output();
  int newcomer = 2;
  for (std::unique_ptr<Program>* server : {&first, &second}) {
    (*server)->Kill();
    VerbOnPool(fabric_.name(), 1, krcore::Opcode::kWrite, 6);
    EXPECT_EQ(VerbOnPool(fabric_.name(), 1, krcore::Opcode::kRead, 0), 6u);
    auto member = StartNode(newcomer++);
    EXPECT_THAT(ready_, HasSubstr("home=no")) << "the home's claim survives";
    EXPECT_EQ(member->Stop(), 0) << member->Output();
    *server = std::make_unique<Program>("memnode", meta_args);
    ASSERT_NE((*server)->WaitForLine("ready"), "") << (*server)->Output();
  }
  EXPECT_EQ(one.Stop(), 0) << one.Output();
  EXPECT_EQ(first->Stop(), 0) << first->Output();
  EXPECT_EQ(second->Stop(), 0) << second->Output();
}

TEST_F(Restart, AnotherMemorySizeIsRefusedAndTheDataStays) {
  StartNode(1)->Kill();
  const Finished wrong = RunProgram("memnode", Args(1, "--memory=128M"));
  EXPECT_EQ(wrong.status, 2);
  EXPECT_THAT(wrong.err, AllOf(HasSubstr("--memory"), HasSubstr("--clean"), HasSubstr("67108864")));
  auto node = StartNode(1);
  EXPECT_THAT(ready_, HasSubstr("adopted=yes"));
  EXPECT_EQ(node->Stop(), 0) << node->Output();
}

TEST_F(Restart, AFailedStartLeavesAdoptedMemoryAsItWas) {
  StartNode(1)->Kill();
  // Without --metaserver nobody hosts one: the start fails, and must not take the data with it.
  const Finished failed = RunProgram("memnode", {fabric_.flag(), "--node=1", "--memory=64M", "--wait_ms=10"});
  EXPECT_EQ(failed.status, 1) << failed.err;
  EXPECT_THAT(failed.err, HasSubstr("--metaserver"));
  auto node = StartNode(1);
  EXPECT_THAT(ready_, HasSubstr("adopted=yes"));
  EXPECT_EQ(node->Stop(), 0) << node->Output();
}

TEST_F(Restart, CleanRemovesWhatAKilledNodeLeft) {
  StartNode(1)->Kill();
  EXPECT_THAT(fabric_.Files(), Not(IsEmpty()));
  const Finished clean = RunProgram("memnode", {"--clean", fabric_.flag()});
  EXPECT_EQ(clean.status, 0) << clean.err;
  EXPECT_THAT(clean.out, HasSubstr("removed what was left of fabric " + fabric_.name()));
  EXPECT_THAT(fabric_.Files(), IsEmpty());
}

TEST_F(Restart, CleanOfNothingSaysSo) {
  const Finished clean = RunProgram("memnode", {"--clean", fabric_.flag()});
  EXPECT_EQ(clean.status, 0) << clean.err;
  EXPECT_THAT(clean.out, HasSubstr("nothing to clean"));
}

TEST_F(Restart, CleanLeavesAFabricInUseAlone) {
  auto node = StartNode(1);
  const Finished clean = RunProgram("memnode", {"--clean", fabric_.flag()});
  EXPECT_EQ(clean.status, 1);
  EXPECT_THAT(clean.err, HasSubstr("in use"));
  VerbOnPool(fabric_.name(), 1, krcore::Opcode::kWrite, 7);
  EXPECT_EQ(VerbOnPool(fabric_.name(), 1, krcore::Opcode::kRead, 0), 7u);
  EXPECT_EQ(node->Stop(), 0) << node->Output();
}

}  // namespace
