#include "computenode/elastic/worker_processes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <functional>
#include <memory>
#include <new>

#include "tests/support/kill_process.h"

namespace computenode {
namespace {

using ::krcore::StatusCode;
using ::testing::HasSubstr;

// Serves until it is retired.
int ServeUntilRetired(WorkerSlot& slot) {
  bool woken = false;
  if (!slot.AwaitCall(&woken)) return 0;
  slot.Note(&WorkerTimes::thread_ns, krcore::RealClock()->NowNs());
  slot.Note(&WorkerTimes::lanes_ns, krcore::RealClock()->NowNs());
  while (!slot.retiring.load()) usleep(200);  // the front end only sets it: a worker looks between its operations
  WorkerProgress progress;
  progress.stats.operations = 10 + slot.worker;
  slot.client.Share(progress);
  slot.Note(&WorkerTimes::ended_ns, krcore::RealClock()->NowNs());
  return 0;
}

// Waits for something that a worker is about to do. If it never happens, the test's time limit ends the wait.
void Await(WorkerProcesses& workers, const std::function<bool()>& condition) {
  for (;;) {
    workers.Look();
    if (condition()) return;
    pollfd events{workers.fd(), POLLIN, 0};
    poll(&events, 1, 1);
  }
}

// Whether the worker serves and its pid was reported, which may come later than its own first notes.
bool Serves(const WorkerRecord& record) { return record.lanes_ns != 0 && record.ended_ns == 0 && record.pid > 0; }

TEST(WorkerProcesses, AreAddedAndRetired) {
  auto workers = WorkerProcesses::Start({.main = ServeUntilRetired}).value();
  EXPECT_EQ(workers->active(), 0u);
  ASSERT_TRUE(workers->SetWorkers(3).ok());
  EXPECT_EQ(workers->active(), 3u);
  Await(*workers, [&] { return std::ranges::all_of(workers->Records(), Serves); });
  ASSERT_TRUE(workers->SetWorkers(1).ok());
  EXPECT_EQ(workers->active(), 1u);
  Await(*workers, [&] { return workers->running() == 1; });
  std::vector<WorkerRecord> records = workers->Records();
  ASSERT_EQ(records.size(), 3u);
  EXPECT_EQ(records[0].ended_ns, 0) << "the youngest are retired";
  for (uint32_t worker = 1; worker < 3; ++worker) {
    EXPECT_EQ(records[worker].worker, worker);
    EXPECT_GT(records[worker].pid, 0);
    EXPECT_FALSE(records[worker].died);
    EXPECT_LE(records[worker].wanted_ns, records[worker].thread_ns);
    EXPECT_LE(records[worker].thread_ns, records[worker].lanes_ns);
    EXPECT_LE(records[worker].lanes_ns, records[worker].retired_ns);
    EXPECT_LE(records[worker].retired_ns, records[worker].ended_ns);
    EXPECT_EQ(records[worker].client_stats.operations, 10 + worker);
  }
  EXPECT_TRUE(workers->FirstError().ok());
  ASSERT_TRUE(workers->AddWorkers(2).ok());
  EXPECT_EQ(workers->Records().back().worker, 4u);
  EXPECT_EQ(workers->RetireWorkers(100), 3u);
  EXPECT_TRUE(workers->WaitForAll());
  EXPECT_EQ(workers->running(), 0u);
}

TEST(WorkerProcesses, ADeathIsNoticedAndOthersGoOn) {
  std::vector<WorkerRecord> dead;
  auto workers = WorkerProcesses::Start({.main = ServeUntilRetired,
                                         .on_death = [&](const WorkerRecord& record) { dead.push_back(record); }})
                     .value();
  ASSERT_TRUE(workers->AddWorkers(2).ok());
  Await(*workers, [&] { return std::ranges::all_of(workers->Records(), Serves); });
  ASSERT_TRUE(testing_support::KillProcess(workers->Records()[0].pid));
  Await(*workers, [&] { return workers->active() == 1; });
  ASSERT_EQ(dead.size(), 1u);
  EXPECT_EQ(dead[0].worker, 0u);
  EXPECT_TRUE(dead[0].died);
  EXPECT_GT(dead[0].lanes_ns, 0);
  EXPECT_GT(dead[0].ended_ns, 0);
  EXPECT_THAT(workers->FirstError().ToString(), HasSubstr("signal 9"));
  ASSERT_TRUE(workers->SetWorkers(2).ok());
  Await(*workers, [&] { return Serves(workers->Records()[2]); });
  EXPECT_EQ(workers->active(), 2u);
}

TEST(WorkerProcesses, OneThatFailsSaysWhy) {
  auto workers = WorkerProcesses::Start({.main = [](WorkerSlot& slot) {
                   slot.Fail("no store today" + std::string(1'000, '.'));
                   return 1;
                 }}).value();
  ASSERT_TRUE(workers->AddWorkers(1).ok());
  EXPECT_TRUE(workers->WaitForAll());
  EXPECT_EQ(workers->FirstError(), StatusCode::kUnavailable);
  EXPECT_THAT(workers->FirstError().ToString(), HasSubstr("no store today"));
}

TEST(WorkerProcesses, CanBeFreshPrograms) {
  // A program that takes two more arguments: the descriptor of a board, and a slot of it.
  auto workers = WorkerProcesses::Start({.exec = {"/bin/sh", "-c",
                                                  R"(test -e /proc/self/fd/${1#--worker_board=} && )"
                                                  R"(test "$2" = --worker_slot=0 && exit 7)",
                                                  "sh"}})
                     .value();
  ASSERT_TRUE(workers->AddWorkers(1).ok());
  EXPECT_TRUE(workers->WaitForAll());
  EXPECT_THAT(workers->FirstError().ToString(), HasSubstr("status 7"));

  workers = WorkerProcesses::Start({.exec = {"/nonexistent/program"}}).value();
  ASSERT_TRUE(workers->AddWorkers(1).ok());
  EXPECT_TRUE(workers->WaitForAll());
  EXPECT_THAT(workers->FirstError().ToString(), HasSubstr("cannot execute /nonexistent/program"));
}

// When the template dies, all workers end and no more can be added.
TEST(WorkerProcesses, AllEndWithTheTemplate) {
  auto workers = WorkerProcesses::Start({.main = [](WorkerSlot& slot) {
                   (void)testing_support::KillProcess(getppid());
                   return ServeUntilRetired(slot);
                 }}).value();
  ASSERT_TRUE(workers->AddWorkers(1).ok());
  EXPECT_TRUE(workers->WaitForAll());
  EXPECT_FALSE(workers->FirstError().ok());
  const Status more = workers->AddWorkers(1);
  EXPECT_EQ(more, StatusCode::kUnavailable);
  EXPECT_THAT(more.ToString(), HasSubstr("gone"));
}

// A worker prepares itself, waits for its call, and serves. It records in shared memory what it does.
struct Readiness {
  std::atomic<uint32_t> prepared{0}, dismissed{0};
  std::atomic<int32_t> last_pid{0};
};

class Standby : public ::testing::Test {
 protected:
  std::unique_ptr<WorkerProcesses> Start(uint32_t standby) {
    return WorkerProcesses::Start({.main =
                                       [this](WorkerSlot& slot) {
                                         said_->last_pid = getpid();
                                         ++said_->prepared;
                                         bool woken = false;  // stays false if it was called before it waited
                                         if (!slot.AwaitCall(&woken)) {
                                           ++said_->dismissed;
                                           return 0;
                                         }
                                         return ServeUntilRetired(slot);
                                       },
                                   .standby = standby})
        .value();
  }
  SharedMemory memory_ = SharedMemory::Create("readiness", sizeof(Readiness)).value();
  Readiness* const said_ = new (memory_.data()) Readiness;
};

TEST_F(Standby, WhoIsInReadinessIsWokenAndReplaced) {
  auto workers = Start(2);
  Await(*workers, [&] { return said_->prepared == 2; });
  EXPECT_EQ(workers->standby(), 2u);
  EXPECT_EQ(workers->running(), 0u);
  ASSERT_TRUE(workers->AddWorkers(3).ok());
  EXPECT_EQ(workers->standby(), 0u);
  Await(*workers, [&] { return std::ranges::all_of(workers->Records(), Serves); });
  for (const WorkerRecord& record : workers->Records()) EXPECT_GT(record.pid, 0);
  Await(*workers, [&] { return workers->standby() == 2 && said_->prepared == 5; });
  workers.reset();
  EXPECT_EQ(said_->dismissed, 2u) << "they end by themselves";
}

TEST_F(Standby, WhoDiesInReadinessIsReplacedAndNoWorker) {
  auto workers = Start(1);
  Await(*workers, [&] { return said_->prepared == 1; });
  ASSERT_TRUE(testing_support::KillProcess(said_->last_pid));
  Await(*workers, [&] { return said_->prepared == 2; });
  EXPECT_TRUE(workers->FirstError().ok());
  EXPECT_TRUE(workers->Records().empty());
  ASSERT_TRUE(workers->AddWorkers(1).ok());
  Await(*workers, [&] { return Serves(workers->Records()[0]); });
}

TEST(WorkerProcesses, SlotsAreUsedAgain) {
  auto workers = WorkerProcesses::Start({.main = [](WorkerSlot&) { return 0; }}).value();
  for (uint32_t i = 0; i < WorkerBoard::kSlots + 10; i += 50) {
    ASSERT_TRUE(workers->AddWorkers(50).ok());
    EXPECT_TRUE(workers->WaitForAll());
  }
  EXPECT_TRUE(workers->FirstError().ok()) << workers->FirstError().ToString();
  EXPECT_GT(workers->Records().size(), size_t{WorkerBoard::kSlots});
}

TEST(WorkerBoard, RefusesSomethingElse) {
  EXPECT_EQ(WorkerBoard::Attach(-1).status(), StatusCode::kInvalidArgument);
  const SharedMemory other = SharedMemory::Create("other", 4096).value();
  EXPECT_EQ(WorkerBoard::Attach(other.fd()).status(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace computenode
