// A word that one process changes by CAS while another one READs it is never seen torn. Needs an RDMA device, so it
// runs in tests/vm.
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <set>
#include <string>

#include "tests/rnic/harness.h"
#include "tests/rnic/two_processes.h"

namespace krcore::rnic::testing {
namespace {

constexpr uint64_t kRounds = 5000;
constexpr uint64_t kEightEqualBytes = 0x0101'0101'0101'0101;

uint64_t ValueOf(uint64_t round) { return round % 256 * kEightEqualBytes; }

// Nobody else changes the word, so each CAS must find what the one before has left. Tells the number that did not.
[[noreturn]] void RunWriter(int fd, const Provider& provider, const std::string& fabric) {
  const auto told = Hear<Introduction>(fd);
  uint64_t surprises = 0;
  {
    Endpoint endpoint(provider, fabric, 3, false);
    auto qp = endpoint.MakeQp({.type = QpType::kRc});
    Tell(fd, Introduction{.device = endpoint.device->address(), .qpn = qp->num()});
    (void)Hear<char>(fd);
    KRCORE_EXPECT_OK(qp->ToInit(0, 0));
    KRCORE_EXPECT_OK(qp->ToRtr({.device = told.device, .qpn = told.qpn}));
    KRCORE_EXPECT_OK(qp->ToRts());
    const Sge sge = endpoint.Local(0, 8);
    SendWr wr;
    wr.opcode = Opcode::kCompareSwap;
    wr.sg_list = &sge;
    wr.num_sge = 1;
    wr.flags = kSignaled;
    wr.remote_addr = told.word;
    wr.rkey = told.rkey;
    for (uint64_t round = 0; round < kRounds; ++round) {
      wr.compare_add = ValueOf(round);
      wr.swap = ValueOf(round + 1);
      KRCORE_EXPECT_OK(qp->PostSend({&wr, 1}, nullptr));
      if (endpoint.Next().status != WcStatus::kSuccess || endpoint.Word() != ValueOf(round)) ++surprises;
    }
  }
  Tell(fd, surprises);
  _exit(::testing::Test::HasFailure() ? 1 : 0);
}

void ExpectWholeWords(Transport transport) {
  const Provider provider = Providers().front();
  if (provider.provider != "verbs") GTEST_SKIP() << "needs an RDMA device";
  const std::string fabric = UniqueFabric("");
  (void)AddressOf(provider, fabric);  // so that it is the same in the child
  int fds[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
  const pid_t writer = fork();
  if (writer == 0) RunWriter(fds[1], provider, fabric);
  ASSERT_GT(writer, 0);
  Endpoint owner(provider, fabric, 1, true), reader(provider, fabric, 2, false);
  auto qp = owner.MakeQp({.type = QpType::kRc});
  Tell(fds[0],
       Introduction{
           .device = owner.device->address(), .qpn = qp->num(), .rkey = owner.mr->rkey(), .word = owner.Addr()});
  const auto peer = Hear<Introduction>(fds[0]);
  KRCORE_EXPECT_OK(qp->ToInit(kRemoteAtomic, 0));
  KRCORE_EXPECT_OK(qp->ToRtr({.device = peer.device, .qpn = peer.qpn}));
  Link link(&reader, &owner, transport);
  const Sge sge = reader.Local(0, 8);
  const SendWr read = link.Wr(Opcode::kRead, &sge, 0);
  uint64_t reads = 0, torn = 0;
  std::set<uint64_t> seen;
  Tell(fds[0], 'x');
  uint64_t surprises = 0;
  while (recv(fds[0], &surprises, sizeof(surprises), MSG_DONTWAIT) != sizeof(surprises)) {
    ASSERT_EQ(link.Run(read).status, WcStatus::kSuccess);
    torn += reader.Word() != (reader.Word() & 0xff) * kEightEqualBytes;
    seen.insert(reader.Word());
    ++reads;
  }
  int status = -1;
  ASSERT_EQ(waitpid(writer, &status, 0), writer);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(surprises, 0U);
  EXPECT_EQ(torn, 0U);
  EXPECT_GT(seen.size(), 2U) << "they were at it at the same time";
  std::printf("%lu READs of %zu values beside %lu CASes: none torn\n", reads, seen.size(), kRounds);
  close(fds[0]);
  close(fds[1]);
}

TEST(VerbsWords, ACasOfOneProcessAndAReadOfAnotherShowNoTornWordOnRc) { ExpectWholeWords(Transport::kRc); }
TEST(VerbsWords, ACasOfOneProcessAndAReadOfAnotherShowNoTornWordOnDc) { ExpectWholeWords(Transport::kDc); }

}  // namespace
}  // namespace krcore::rnic::testing
