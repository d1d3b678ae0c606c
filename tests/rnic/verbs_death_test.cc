// What the service says of a killed process holds for its NIC: once the process is dead, nothing of it executes any
// more. Needs an RDMA device, so it runs in tests/vm.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

#include "krcore/clock.h"
#include "tests/rnic/harness.h"
#include "tests/rnic/two_processes.h"
#include "tests/support/kill_process.h"

namespace krcore::rnic::testing {
namespace {

constexpr int kRounds = 5;
constexpr int64_t kPatienceNs = 60'000'000'000;

struct Victim : Introduction {
  int child = 0;
  int kept_by_child = 0;  // mappings and descriptors of NICs
};

// Counts this process's mappings and descriptors of NICs.
int CountOfNics() {
  int count = 0;
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) count += line.find("/dev/infiniband/uverbs") != std::string::npos;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    const std::string target = std::filesystem::read_symlink(entry.path(), gone).string();
    count += target.find("uverbs") != std::string::npos || target.find("infiniband") != std::string::npos;
  }
  return count;
}

// Adds to the peer's word until it is killed. Its forked child keeps whatever a child can keep.
[[noreturn]] void RunVictim(int fd, const Provider& provider, const std::string& fabric) {
  const auto told = Hear<Introduction>(fd);
  Endpoint endpoint(provider, fabric, 2, false);
  auto qp = endpoint.MakeQp({.type = QpType::kRc, .sq_depth = 64});
  Victim me;
  me.device = endpoint.device->address();
  me.qpn = qp->num();
  EXPECT_GT(CountOfNics(), 0);
  int report[2];
  EXPECT_EQ(pipe(report), 0);
  me.child = fork();
  if (me.child == 0) {
    const int kept = CountOfNics();
    EXPECT_EQ(write(report[1], &kept, sizeof(kept)), static_cast<ssize_t>(sizeof(kept)));
    for (;;) pause();
  }
  EXPECT_EQ(read(report[0], &me.kept_by_child, sizeof(int)), static_cast<ssize_t>(sizeof(int)));
  Tell(fd, me);
  (void)Hear<char>(fd);
  KRCORE_EXPECT_OK(qp->ToInit(0, 0));
  KRCORE_EXPECT_OK(qp->ToRtr({.device = told.device, .qpn = told.qpn}));
  KRCORE_EXPECT_OK(qp->ToRts());
  const Sge sge = endpoint.Local(0, 8);
  SendWr wr;
  wr.opcode = Opcode::kFetchAdd;
  wr.sg_list = &sge;
  wr.num_sge = 1;
  wr.remote_addr = told.word;
  wr.rkey = told.rkey;
  wr.compare_add = 1;
  for (;;) {
    while (qp->PostSend({&wr, 1}, nullptr).ok()) {
    }
    (void)endpoint.Next();
  }
}

TEST(VerbsDeath, OnceAKilledProcessIsDeadNothingOfItsQueuesExecutesThoughItsForkedChildLives) {
  const Provider provider = Providers().front();
  if (provider.provider != "verbs") GTEST_SKIP() << "needs an RDMA device";
  for (int round = 0; round < kRounds; ++round) {
    const std::string fabric = UniqueFabric("");
    const std::string address = AddressOf(provider, fabric);
    int fds[2];
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
    const pid_t victim = fork();
    if (victim == 0) RunVictim(fds[1], provider, fabric);
    ASSERT_GT(victim, 0);
    Endpoint endpoint(provider, fabric, 1, true);
    auto qp = endpoint.MakeQp({.type = QpType::kRc});
    Tell(fds[0], Introduction{.device = endpoint.device->address(),
                              .qpn = qp->num(),
                              .rkey = endpoint.mr->rkey(),
                              .word = endpoint.Addr()});
    const auto peer = Hear<Victim>(fds[0]);
    ASSERT_GT(peer.child, 0);
    EXPECT_EQ(peer.kept_by_child, 0);
    KRCORE_EXPECT_OK(qp->ToInit(kRemoteAtomic, 0));
    KRCORE_EXPECT_OK(qp->ToRtr({.device = peer.device, .qpn = peer.qpn}));
    Tell(fds[0], 'x');
    // The NIC writes the word, so each look must read memory.
    const auto count = [&] { return std::atomic_ref(endpoint.Word()).load(); };
    const Deadline deadline = Deadline::After(*RealClock(), kPatienceNs);
    for (uint32_t spins = 0; count() < 100 && !deadline.Passed(*RealClock()); ++spins) RealClock()->Relax(spins);
    EXPECT_GE(count(), 100U);
    EXPECT_EQ(endpoint.device->QueryPeer(peer.device), PeerState::kAlive);
    EXPECT_TRUE(testing_support::KillProcess(victim));
    PeerState state = PeerState::kAlive;
    for (uint32_t spins = 0; state != PeerState::kDead && !deadline.Passed(*RealClock()); ++spins) {
      state = endpoint.device->QueryPeer(peer.device);
      RealClock()->Relax(spins);
    }
    EXPECT_EQ(state, PeerState::kDead);
    const uint64_t at_death = count();
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    EXPECT_EQ(count(), at_death);
    (void)testing_support::KillProcess(peer.child);
    waitpid(victim, nullptr, 0);
    close(fds[0]);
    close(fds[1]);
  }
}

// Otherwise the child would keep the NIC's context, and with it what the parent posts later, after the parent's death.
TEST(VerbsDeath, AChildForkedWhileADeviceIsOpenedKeepsNothingOfIt) {
  const Provider provider = Providers().front();
  if (provider.provider != "verbs") GTEST_SKIP() << "needs an RDMA device";
  constexpr int kForks = 200;
  const std::string fabric = UniqueFabric("");
  Endpoint host(provider, fabric, 1, true);
  std::atomic<bool> stop{false};
  std::atomic<int> opened{0};
  std::thread opening([&] {
    while (!stop) {
      const Endpoint endpoint(provider, fabric, 2, false);
      ++opened;
    }
  });
  int kept = 0;
  for (int i = 0; i < kForks; ++i) {
    const pid_t child = fork();
    if (child == 0) _exit(std::min(CountOfNics(), 100));
    int status = -1;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFEXITED(status));
    kept += WEXITSTATUS(status) != 0 ? 1 : 0;
  }
  stop = true;
  opening.join();
  EXPECT_GT(opened, 0);
  EXPECT_EQ(kept, 0) << "of " << kForks << " children";
}

}  // namespace
}  // namespace krcore::rnic::testing
