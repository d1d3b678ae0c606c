// The software DC of provider verbs, where there is an RDMA device (tests/vm): what the conformance suite cannot see.
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <thread>
#include <utility>

#include "krcore/clock.h"
#include "krcore/rnic/verbs/ud_port.h"
#include "tests/rnic/harness.h"

namespace krcore::rnic::testing {
namespace {

class SoftwareDc : public ::testing::Test {
 protected:
  void SetUp() override {
    const Provider provider = ThreadedProviders().front();
    if (provider.provider != "verbs") GTEST_SKIP() << "needs an RDMA device: tests/vm";
    fabric_ = UniqueFabric("");
    a_ = std::make_unique<Endpoint>(provider, fabric_, 1, true);
    b_ = std::make_unique<Endpoint>(provider, fabric_, 2, false);
    if (!a_->device->caps().software_dc) GTEST_SKIP() << "the device has a DC of its own";
  }
  void TearDown() override { verbs::datagram_faults = nullptr; }

  std::string fabric_;
  std::unique_ptr<Endpoint> a_, b_;
};

// Each thread has its own CQ and queue over RC and DC, to the word at `offset` of `to`.
struct Adder {
  Adder(Endpoint* from, Endpoint* to, Transport transport)
      : cq(from->device->CreateCq(64).value()),
        remote_cq(to->device->CreateCq(64).value()),
        link_cq_of_from(std::exchange(from->cq, std::move(cq))),
        link_cq_of_to(std::exchange(to->cq, std::move(remote_cq))),
        link(from, to, transport) {
    cq = std::exchange(from->cq, std::move(link_cq_of_from));
    remote_cq = std::exchange(to->cq, std::move(link_cq_of_to));
  }
  ~Adder() {
    link.qp.reset();
    link.remote_qp.reset();
    link.dct.reset();
  }
  WcStatus Run(const SendWr& wr) {
    EXPECT_TRUE(link.Post(wr).ok());
    Completion done;
    while (cq->Poll({&done, 1}) == 0) {
    }
    return done.status;
  }

  std::unique_ptr<Cq> cq, remote_cq, link_cq_of_from, link_cq_of_to;
  Link link;
};

// The page that the device has pinned is taken from the CPU, which then finds another page in its place.
TEST_F(SoftwareDc, AtomicsAreTheDevicesAndNotTheCpus) {
  constexpr size_t kPage = 4096;
  auto* const word =
      static_cast<uint64_t*>(mmap(nullptr, kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  *word = 5;
  auto mr = b_->pd->RegisterMemory(word, kPage, kAllRights).value();
  ASSERT_EQ(madvise(word, kPage, MADV_DONTNEED), 0);
  Link link(a_.get(), b_.get(), Transport::kDc);
  const Sge sge = a_->Local(0, 8);
  for (uint64_t before = 5; before < 8; ++before) {
    SendWr wr = link.Wr(Opcode::kFetchAdd, &sge, 0);
    wr.remote_addr = reinterpret_cast<uint64_t>(word);
    wr.rkey = mr->rkey();
    wr.compare_add = 1;
    ASSERT_EQ(link.Run(wr).status, WcStatus::kSuccess);
    EXPECT_EQ(a_->Word(), before);
  }
  EXPECT_EQ(*word, 0U);
  mr.reset();
  munmap(word, kPage);
}

// The device is atomic only against itself. If the agent used the CPU's atomics, it would lose additions of RC queues,
// and they its additions.
TEST_F(SoftwareDc, AtomicsOfDcAndRcQueuesToOneWordAllCount) {
  constexpr uint64_t kAdditions = 1500;
  Adder over_dc(a_.get(), b_.get(), Transport::kDc), over_rc(a_.get(), b_.get(), Transport::kRc);
  std::atomic<bool> go{false};
  std::atomic<uint64_t> over_rc_count{0};
  std::atomic<bool> stop{false};
  const auto add = [&](Adder& adder, size_t local, uint64_t by) {
    const Sge sge = a_->Local(local, 8);
    SendWr wr = adder.link.Wr(Opcode::kFetchAdd, &sge, 0);
    wr.compare_add = by;
    return adder.Run(wr);
  };
  std::thread other([&] {
    while (!go) {
    }
    while (!stop) {
      EXPECT_EQ(add(over_rc, 8, uint64_t{1} << 32), WcStatus::kSuccess);
      ++over_rc_count;
    }
  });
  go = true;
  for (uint64_t i = 0; i < kAdditions && !HasFailure(); ++i) EXPECT_EQ(add(over_dc, 0, 1), WcStatus::kSuccess);
  stop = true;
  other.join();
  EXPECT_EQ(b_->Word() & 0xffff'ffff, kAdditions);
  EXPECT_EQ(b_->Word() >> 32, over_rc_count.load());
}

// A missing page holds the agent up in the middle of a copy. The Mr must not go before the agent has gone on.
TEST_F(SoftwareDc, AnMrGoesOnlyWhenTheAgentIsDoneWithIt) {
  constexpr size_t kPage = 4096;
  void* const page = mmap(nullptr, kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  auto mr = b_->pd->RegisterMemory(page, kPage, kAllRights).value();
  const int faults = static_cast<int>(syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK));
  ASSERT_GE(faults, 0) << strerror(errno);
  uffdio_api api{.api = UFFD_API, .features = 0, .ioctls = 0};
  ASSERT_EQ(ioctl(faults, UFFDIO_API, &api), 0);
  uffdio_register range{};
  range.range = {reinterpret_cast<uint64_t>(page), kPage};
  range.mode = UFFDIO_REGISTER_MODE_MISSING;
  ASSERT_EQ(ioctl(faults, UFFDIO_REGISTER, &range), 0);
  ASSERT_EQ(madvise(page, kPage, MADV_DONTNEED), 0);

  Link link(a_.get(), b_.get(), Transport::kDc);
  const Sge sge = a_->Local(0, 64);
  SendWr wr = link.Wr(Opcode::kWrite, &sge, 0);
  wr.remote_addr = reinterpret_cast<uint64_t>(page);
  wr.rkey = mr->rkey();
  KRCORE_EXPECT_OK(link.Post(wr));
  Completion done;
  pollfd fault{faults, POLLIN, 0};
  while (poll(&fault, 1, 0) == 0) ASSERT_EQ(a_->cq->Poll({&done, 1}), 0U);
  std::atomic<bool> gone{false};
  std::thread destroyer([&] {
    mr.reset();
    gone = true;
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(200));  // nothing can be awaited where nothing shall happen
  EXPECT_FALSE(gone);
  uffdio_zeropage zero{};
  zero.range = range.range;
  EXPECT_EQ(ioctl(faults, UFFDIO_ZEROPAGE, &zero), 0);
  destroyer.join();
  close(faults);
  munmap(page, kPage);
}

// A destroyed Mr is not touched any more, however many requests to it the agent had.
TEST_F(SoftwareDc, NothingTouchesTheMemoryOfAnMrThatIsGone) {
  Adder link(a_.get(), b_.get(), Transport::kDc);
  constexpr size_t kAt = 4096, kLength = 8192;
  std::memset(a_->Text(), 0x5a, kLength);
  std::atomic<uint32_t> rkey{0};
  std::atomic<bool> stop{false};
  std::atomic<uint64_t> written{0};
  std::thread writer([&] {
    const Sge sge = a_->Local(0, kLength);
    while (!stop) {
      SendWr wr = link.link.Wr(Opcode::kWrite, &sge, kAt);
      wr.rkey = rkey;
      const WcStatus status = link.Run(wr);
      if (status == WcStatus::kSuccess) {
        ++written;
      } else {
        EXPECT_EQ(status, WcStatus::kRemoteAccessError);
        EXPECT_TRUE(link.link.qp->ToReset().ok() && link.link.qp->ToInit(0, 0).ok());
        EXPECT_TRUE(link.link.qp->ToRtr({}).ok() && link.link.qp->ToRts().ok());
      }
    }
  });
  for (int round = 0; round < 60 && !HasFailure(); ++round) {
    auto mr = b_->pd->RegisterMemory(b_->memory->bytes().data(), b_->memory->bytes().size(), kAllRights).value();
    const uint64_t before = written;
    rkey = mr->rkey();
    while (written < before + 2) std::this_thread::yield();
    mr.reset();
    std::memset(b_->Text(kAt), 0, kLength);
    const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(2);
    while (std::chrono::steady_clock::now() < until) {
      uint64_t sum = 0;
      for (size_t i = 0; i < kLength; i += 8) sum |= b_->Word(kAt + i);
      EXPECT_EQ(sum, 0U) << "round " << round;
    }
  }
  stop = true;
  writer.join();
}

// The queue that all atomics of a target share does not break when an Mr goes.
TEST_F(SoftwareDc, AtomicsToAnMrThatGoesDoNotFailThoseToOthers) {
  Adder steady(a_.get(), b_.get(), Transport::kDc);
  Link doomed(a_.get(), b_.get(), Transport::kDc);
  doomed.dct.reset();  // both links go to one target
  auto sink = a_->device->CreateCq(256).value();
  doomed.qp = a_->MakeQp({.type = QpType::kDci, .send_cq = sink.get(), .recv_cq = sink.get(), .sq_depth = 64});
  ConnectRc(*doomed.qp, *doomed.qp, *b_->device, 0);
  std::atomic<bool> stop{false};
  std::atomic<uint64_t> rounds{0};
  std::thread other([&] {
    const Sge sge = a_->Local(64, 8);
    while (!stop) {
      EXPECT_EQ(steady.Run(steady.link.Wr(Opcode::kFetchAdd, &sge, 64)), WcStatus::kSuccess);
      ++rounds;
    }
  });
  const Sge sge = a_->Local(0, 8);
  for (int round = 0; round < 40; ++round) {
    auto mr = b_->pd->RegisterMemory(b_->memory->bytes().data(), 4096, kAllRights).value();
    SendWr wr = steady.link.Wr(Opcode::kFetchAdd, &sge, 0);
    wr.ah = doomed.address.get();
    wr.rkey = mr->rkey();
    const std::vector<SendWr> many(32, wr);
    EXPECT_TRUE(doomed.qp->PostSend(many, nullptr).ok());
    Completion done;
    while (sink->Poll({&done, 1}) == 0) {
    }
    EXPECT_EQ(done.status, WcStatus::kSuccess);
    mr.reset();  // while the others are in flight
    for (int left = 31; left > 0; --left) {
      while (sink->Poll({&done, 1}) == 0) {
      }
      EXPECT_TRUE(done.status == WcStatus::kSuccess || done.status == WcStatus::kRemoteAccessError ||
                  done.status == WcStatus::kFlushed)
          << WcStatusName(done.status);
    }
    EXPECT_TRUE(doomed.qp->ToReset().ok() && doomed.qp->ToInit(0, 0).ok());
    EXPECT_TRUE(doomed.qp->ToRtr({}).ok() && doomed.qp->ToRts().ok());
  }
  stop = true;
  other.join();
  EXPECT_EQ(b_->device->DcStats().atomic_repairs, 0U);
  doomed.qp.reset();
}

// On a network that loses, duplicates and reorders, everything is executed once and in order, and the counts show it.
TEST_F(SoftwareDc, WhatTheNetworkDoesToDatagramsChangesNothing) {
  static constexpr verbs::DatagramFaults kFaults{.lost = 20, .doubled = 20, .late = 20, .seed = 7};
  verbs::datagram_faults = &kFaults;
  Adder link(a_.get(), b_.get(), Transport::kDc);
  constexpr uint64_t kRounds = 150;
  constexpr size_t kLength = 4000;
  const Sge word = a_->Local(0, 8), out = a_->Local(8192, kLength), in = a_->Local(16384, kLength);
  for (uint64_t round = 0; round < kRounds; ++round) {
    std::memset(a_->Text(8192), static_cast<int>(round), kLength);
    std::memset(a_->Text(16384), 0xff, kLength);
    SendWr wrs[3] = {link.link.Wr(Opcode::kWrite, &out, 8192), link.link.Wr(Opcode::kFetchAdd, &word, 0),
                     link.link.Wr(Opcode::kRead, &in, 8192)};
    wrs[0].flags = wrs[1].flags = 0;
    wrs[1].compare_add = 1;
    ASSERT_TRUE(link.link.qp->PostSend(wrs, nullptr).ok());
    Completion done;
    while (link.cq->Poll({&done, 1}) == 0) {
    }
    ASSERT_EQ(done.status, WcStatus::kSuccess);
    ASSERT_EQ(a_->Word(), round) << "an addition was lost or came twice";
    for (size_t i = 0; i < kLength; ++i) ASSERT_EQ(static_cast<uint8_t>(a_->Text(16384)[i]), round & 0xff);
  }
  EXPECT_EQ(b_->Word(), kRounds);
  const SoftwareDcStats from = a_->device->DcStats(), to = b_->device->DcStats();
  EXPECT_GT(from.sent_again, 0U);
  EXPECT_GT(from.timeouts, 0U);
  EXPECT_GT(to.served_again, 0U);
  EXPECT_GT(to.early, 0U);
  std::printf("%lu requests, %lu of them again, %lu timeouts; %lu served, %lu came again, %lu early\n", from.sent,
              from.sent_again, from.timeouts, to.served, to.served_again, to.early);
}

TEST_F(SoftwareDc, TheAgentSleepsWhileNothingComes) {
  Link link(a_.get(), b_.get(), Transport::kDc);
  const Sge sge = a_->Local(0, 8);
  for (int i = 0; i < 50; ++i) ASSERT_EQ(link.Run(link.Wr(Opcode::kRead, &sge, 0)).status, WcStatus::kSuccess);
  a_->Settle();
  const int64_t before = b_->device->DcStats().agent_cpu_ns;
  EXPECT_GT(before, 0);
  EXPECT_EQ(a_->device->DcStats().agent_cpu_ns, 0) << "it has no target, so no agent";
  std::this_thread::sleep_for(std::chrono::milliseconds(500));  // nothing can be awaited where nothing shall happen
  const int64_t idle = b_->device->DcStats().agent_cpu_ns - before;
  EXPECT_LT(idle, 50'000'000) << "a spinning thread would have taken most of half a second";
}

}  // namespace
}  // namespace krcore::rnic::testing
