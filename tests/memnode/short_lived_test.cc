// Clients that live for a moment: a process starts, writes a little, and ends, is killed, or is stopped. The store
// holds what the keys need, and a little more (docs/protocol.md, "Housekeeping"), and tells no process that it is full.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>

#include "krcore/node.h"
#include "kvs/client.h"
#include "kvs/memory/survey.h"
#include "tests/support/program.h"

namespace {

using testing_support::Program;
using testing_support::TestFabric;

enum class End : uint8_t { kClean, kKilled, kStopped };

// The exit status of a short-lived process.
constexpr int kWaitedForRoom = 10, kOutOfMemory = 11, kFailed = 12;

class ShortLived : public ::testing::Test {
 protected:
  void StartNode(const std::string& memory) {
    node_ = std::make_unique<Program>(
        "memnode",
        std::vector<std::string>{fabric_.flag(), "--node=1", "--memory=" + memory, "--metaserver", "--hugepages=off"});
    ASSERT_NE(node_->WaitForLine("ready"), "") << node_->Output();
  }
  void TearDown() override {
    if (stopped_ > 0) {  // the test has failed
      (void)kill(stopped_, SIGKILL);
      (void)waitpid(stopped_, nullptr, 0);
    }
    if (node_) {
      EXPECT_EQ(node_->Stop(), 0) << node_->Output();
      std::printf("%s\n", node_->out().c_str());
    }
  }

  // Starts a process that puts `count` keys of `keys`, each of `bytes`.
  pid_t Start(uint32_t number, uint32_t count, uint32_t keys, size_t bytes, End end) const {
    std::fflush(nullptr);
    const pid_t pid = fork();
    if (pid == 0) {
      auto store = kvs::Store::Open({.fabric = fabric_.name()});
      if (!store.ok()) _exit(kFailed);
      auto client = (*store)->NewClient();
      if (!client.ok()) _exit(kFailed);
      for (uint32_t i = 0; i < count; ++i) {
        const kvs::Status put =
            (*client)->Put("key-" + std::to_string((number * count + i) % keys), std::string(bytes, 'v'));
        if (put == kvs::StatusCode::kOutOfMemory) _exit(kOutOfMemory);
        if (!put.ok()) _exit(kFailed);
      }
      if (end == End::kKilled) (void)kill(getpid(), SIGKILL);
      if (end == End::kStopped) (void)kill(getpid(), SIGSTOP);
      const bool waited = (*client)->stats().compactions > 0;
      client->reset();
      store->reset();
      _exit(waited ? kWaitedForRoom : 0);
    }
    return pid;
  }
  static int StatusOf(pid_t pid) {
    int status = 0;
    EXPECT_EQ(waitpid(pid, &status, WUNTRACED), pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }
  // Returns how many of the usable chunks are taken.
  uint64_t Used() const {
    auto node = krcore::Node::Open({.fabric = fabric_.name()}).value();
    auto survey = kvs::Survey::Create(*node).value();
    const kvs::PoolUse use =
        survey->ReadPool(1, krcore::Deadline::After(node->clock(), int64_t{10'000'000'000})).value();
    return use.used_bytes() / use.chunk_bytes;
  }
  uint64_t Expelled() const {
    auto node = krcore::Node::Open({.fabric = fabric_.name()}).value();
    auto survey = kvs::Survey::Create(*node).value();
    const auto home = survey->ReadHome(krcore::Deadline::After(node->clock(), int64_t{10'000'000'000})).value();
    return static_cast<uint64_t>(std::count_if(home.entries.begin(), home.entries.end(), [](const auto& entry) {
      return kvs::ClientWord(entry.second.word).state() == kvs::ClientState::kExpelled;
    }));
  }
  uint64_t UsedAtLast(uint64_t most) const {
    const krcore::Deadline patience = krcore::Deadline::After(*krcore::RealClock(), int64_t{30'000'000'000});
    while (Used() > most && !patience.Passed(*krcore::RealClock())) krcore::RealClock()->Relax(1'000'000);
    return Used();
  }

  TestFabric fabric_;
  std::unique_ptr<Program> node_;
  pid_t stopped_ = 0;
};

TEST_F(ShortLived, OnesThatEndLeaveWhatTheirKeysNeed) {
  StartNode("64M");
  for (uint32_t i = 0; i < 150; ++i) ASSERT_EQ(StatusOf(Start(i, 1, 1'000, 100, End::kClean)), 0) << i;
  EXPECT_LE(Used(), 6u) << "a 32nd part of a chunk each, and the table";
}

TEST_F(ShortLived, KilledOnesDoNotFillTheStore) {
  StartNode("64M");
  for (uint32_t i = 0; i < 1'000; ++i) ASSERT_EQ(StatusOf(Start(i, 10, 500, 8'000, End::kKilled)), -1) << i;
  for (uint32_t i = 0; i < 40; ++i) ASSERT_LE(StatusOf(Start(i, 1, 500, 8'000, End::kClean)), kWaitedForRoom) << i;
  EXPECT_LE(UsedAtLast(16), 16u);
}

// Nobody else lives long enough to expel the stopped process, and until it is expelled no memory comes back. After that
// it pins what was in use, and what is free is written more than once.
TEST_F(ShortLived, OnesNextToAStoppedOneFindRoom) {
  StartNode("96M");
  constexpr size_t kValueBytes = 8'000;  // of 500 keys: 4 MB
  stopped_ = Start(0, 10, 500, kValueBytes, End::kStopped);
  ASSERT_EQ(StatusOf(stopped_), -1);
  bool expelled = false;
  for (uint32_t i = 1, after = 0; after < 3'000; ++i) {
    ASSERT_LT(i, 50'000u) << "nobody expels it";
    if (!expelled && i % 16 == 0) expelled = Expelled() > 0;
    after += expelled;
    const int status = StatusOf(Start(i, 3, 500, kValueBytes, i % 4 == 0 ? End::kKilled : End::kClean));
    ASSERT_LE(status, kWaitedForRoom) << i << ": " << status;
  }
  (void)kill(stopped_, SIGCONT);
  EXPECT_LE(StatusOf(std::exchange(stopped_, 0)), kWaitedForRoom);
  EXPECT_LE(UsedAtLast(16), 16u);
}

}  // namespace
