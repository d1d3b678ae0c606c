// Several processes on one fabric of the software RNIC, and what kill -9 leaves of it.
#include <sys/mman.h>

#include <atomic>
#include <new>
#include <thread>

#include "krcore/rnic/sw/fabric.h"
#include "krcore/rnic/sw/inbox.h"
#include "krcore/rnic/sw/shm_file.h"
#include "tests/rnic/harness.h"
#include "tests/rnic/sw_child.h"
#include "tests/support/kill_process.h"

namespace krcore::rnic::testing {
namespace {

const Provider kShm{"SwShm", "sw", ""};

// What an initiator needs of a target, published as a record.
struct TargetInfo {
  DeviceAddress device;
  uint64_t addr;
  uint32_t rkey;
  uint32_t dct;
};

struct Target {
  Target(const std::string& fabric, NodeId node, bool create, uint32_t rq_depth = 0)
      : endpoint(kShm, fabric, node, create), dct(endpoint.MakeDct(rq_depth)) {
    const TargetInfo info{endpoint.device->address(), endpoint.Addr(), endpoint.mr->rkey(), dct->num()};
    KRCORE_EXPECT_OK(endpoint.device->PublishRecord("target", std::as_bytes(std::span(&info, 1))));
  }
  Endpoint endpoint;
  std::unique_ptr<Dct> dct;
};

struct Initiator {
  Initiator(const std::string& fabric, NodeId node) : endpoint(kShm, fabric, node, false), qp(endpoint.MakeReadyDci()) {
    const std::vector<std::byte> record = endpoint.device->LookupRecord("target").value();
    std::memcpy(&info, record.data(), sizeof(info));
    address = endpoint.device->CreateAddressHandle(info.device).value();
  }
  SendWr Wr(Opcode opcode, const Sge* sge, size_t offset) const {
    SendWr wr;
    wr.sg_list = sge;
    wr.num_sge = 1;
    wr.opcode = opcode;
    wr.remote_addr = info.addr + offset;
    wr.rkey = info.rkey;
    wr.ah = address.get();
    wr.remote_qpn = info.dct;
    wr.dc_key = kDcKey;
    return wr;
  }
  WcStatus Run(const SendWr& wr) {
    KRCORE_EXPECT_OK(qp->PostSend({&wr, 1}, nullptr));
    return endpoint.Next().status;
  }
  Endpoint endpoint;
  TargetInfo info{};
  std::unique_ptr<AddressHandle> address;
  std::unique_ptr<Qp> qp;
};

size_t FilesOf(const std::string& fabric) { return sw::ListShm(sw::FabricPrefix(fabric)).value().size(); }

TEST(SwProcesses, FetchAddsOfTwoProcessesSumUpWithoutTheTargetsCpu) {
  constexpr int kAdds = 20000;
  const std::string fabric = UniqueFabric("");
  Target target(fabric, 1, true);
  const auto add = [&](Child::Self&) {
    Initiator initiator(fabric, kNoNode);
    const Sge sge = initiator.endpoint.Local(0, 8);
    SendWr wr = initiator.Wr(Opcode::kFetchAdd, &sge, 0);
    wr.compare_add = 1;
    for (int i = 0; i < kAdds; ++i) EXPECT_EQ(initiator.Run(wr), WcStatus::kSuccess);
  };
  Child first(add), second(add);
  EXPECT_EQ(first.Wait(), 0);
  EXPECT_EQ(second.Wait(), 0);
  EXPECT_EQ(target.endpoint.Word(), 2U * kAdds);
}

TEST(SwProcesses, KilledTargetIsReportedDeadAndItsInitiatorsGetRetryExceeded) {
  const std::string fabric = UniqueFabric("");
  Child child([&](Child::Self& self) {
    Target target(fabric, 1, true);
    self.Ready();
    self.Sleep();
  });
  ASSERT_TRUE(child.WaitReady());
  Initiator initiator(fabric, 2);
  const Sge sge = initiator.endpoint.Local(0, 8);
  const SendWr wr = initiator.Wr(Opcode::kRead, &sge, 0);
  EXPECT_EQ(initiator.Run(wr), WcStatus::kSuccess);
  EXPECT_EQ(initiator.endpoint.device->QueryPeer(initiator.info.device), PeerState::kAlive);
  child.Kill();
  EXPECT_EQ(initiator.endpoint.device->LookupRecord("target").status().code(), StatusCode::kNotFound);
  EXPECT_EQ(initiator.endpoint.device->QueryPeer(initiator.info.device), PeerState::kDead);
  EXPECT_EQ(initiator.Run(wr), WcStatus::kRetryExceeded);
}

TEST(SwProcesses, TheDataPathNoticesADeathByItself) {
  const std::string fabric = UniqueFabric("");
  Child child([&](Child::Self& self) {
    Target target(fabric, 1, true);
    self.Ready();
    self.Sleep();
  });
  ASSERT_TRUE(child.WaitReady());
  Initiator initiator(fabric, 2);
  const Sge sge = initiator.endpoint.Local(0, 8);
  const SendWr wr = initiator.Wr(Opcode::kRead, &sge, 0);
  EXPECT_EQ(initiator.Run(wr), WcStatus::kSuccess);
  child.Kill();
  WcStatus status = WcStatus::kSuccess;
  for (int i = 0; i < 100'000'000 && status == WcStatus::kSuccess; ++i) status = initiator.Run(wr);
  EXPECT_EQ(status, WcStatus::kRetryExceeded);
}

TEST(SwProcesses, InitiatorsKilledInTrafficLeaveAllUsableAndNothingBehind) {
  const std::string fabric = UniqueFabric("");
  {
    Target target(fabric, 1, true, 64);
    Endpoint& endpoint = target.endpoint;
    const Sge in = endpoint.Local(1024, 64);
    for (uint64_t i = 0; i < 64; ++i) {
      const RecvWr recv{i, &in, 1};
      KRCORE_EXPECT_OK(target.dct->PostRecv({&recv, 1}, nullptr));
    }
    const size_t files = FilesOf(fabric);
    const auto drain = [&] {
      size_t count = 0;
      Completion done;
      while (endpoint.cq->Poll({&done, 1}) == 1) {
        const RecvWr recv{done.wr_id, &in, 1};
        KRCORE_EXPECT_OK(target.dct->PostRecv({&recv, 1}, nullptr));
        ++count;
      }
      return count;
    };
    for (int round = 0; round < 20; ++round) {
      Child child([&](Child::Self& self) {
        Initiator initiator(fabric, kNoNode);
        const Sge sge = initiator.endpoint.Local(0, 64), word = initiator.endpoint.Local(0, 8);
        SendWr wrs[] = {initiator.Wr(Opcode::kWrite, &sge, 64), initiator.Wr(Opcode::kFetchAdd, &word, 0),
                        initiator.Wr(Opcode::kSend, &sge, 0)};
        wrs[1].compare_add = 1;
        self.Ready();
        for (;;) {
          (void)initiator.qp->PostSend(wrs, nullptr);
          Completion done[8];
          initiator.endpoint.cq->Poll(done);
          if (initiator.qp->state() != QpState::kErr) continue;
          (void)initiator.qp->ToReset();
          ConnectRc(*initiator.qp, *initiator.qp, *initiator.endpoint.device, 0);
        }
      });
      ASSERT_TRUE(child.WaitReady());
      // Kills in some rounds later than in others, so that the kill falls anywhere.
      for (size_t received = 0; received < static_cast<size_t>(round) * 50;) received += drain();
      child.Kill();
    }
    Child last([&](Child::Self&) {
      Initiator initiator(fabric, 77);
      const Sge sge = initiator.endpoint.Local(0, 64);
      EXPECT_EQ(initiator.Run(initiator.Wr(Opcode::kWrite, &sge, 64)), WcStatus::kSuccess);
    });
    EXPECT_EQ(last.Wait(), 0);
    EXPECT_EQ(FilesOf(fabric), files);  // the last one reclaimed what the killed ones had held
    for (int i = 0; i < 100'000; ++i) drain();
    for (uint64_t i = 0; i < 64; ++i) {
      Initiator initiator(fabric, kNoNode);
      const Sge sge = initiator.endpoint.Local(0, 8);
      ASSERT_EQ(initiator.Run(initiator.Wr(Opcode::kSend, &sge, 0)), WcStatus::kSuccess)
          << "receive lost, message " << i;
      ASSERT_EQ(endpoint.Next().status, WcStatus::kSuccess);
    }
  }
  EXPECT_EQ(FilesOf(fabric), 0U);
}

TEST(SwProcesses, SenderThatDiesBetweenClaimAndPublishDoesNotBlockTheQueue) {
  const std::string fabric = UniqueFabric("");
  Target target(fabric, 1, true, 4);
  const Sge in = target.endpoint.Local(0, 64);
  for (uint64_t i = 0; i < 2; ++i) {
    const RecvWr recv{i, &in, 1};
    KRCORE_EXPECT_OK(target.dct->PostRecv({&recv, 1}, nullptr));
  }
  const DeviceAddress address = target.endpoint.device->address();
  const uint32_t number = target.dct->num();
  Child child([&](Child::Self& self) {
    auto joined = sw::Fabric::Join({.fabric = fabric}).value();
    sw::PeerCache peers(joined.get());
    auto peer = peers.Get(address).value();
    const sw::QpEntry& entry = peer->tables().qps[sw::QpIndex(number)];
    auto mapping = peer->MapSegment(entry.inbox_segment, entry.inbox_serial);
    auto& inbox = *reinterpret_cast<sw::InboxHeader*>(mapping->addr());
    if (sw::ClaimSlot(inbox, joined->incarnation()).slot != nullptr) self.Ready();
    self.Sleep();
  });
  ASSERT_TRUE(child.WaitReady());
  Initiator initiator(fabric, 2);
  initiator.endpoint.Word() = 4711;
  const Sge out = initiator.endpoint.Local(0, 8);
  EXPECT_EQ(initiator.Run(initiator.Wr(Opcode::kSend, &out, 0)), WcStatus::kSuccess);
  Completion none;
  for (int i = 0; i < 10'000; ++i) ASSERT_EQ(target.endpoint.cq->Poll({&none, 1}), 0U) << "overtook a living sender";
  child.Kill();
  const Completion got = target.endpoint.Next();
  EXPECT_EQ(got.status, WcStatus::kSuccess);
  EXPECT_EQ(got.wr_id, 1U);
  EXPECT_EQ(target.endpoint.Word(), 4711U);
  // The receive that the dead one had claimed serves the next message.
  EXPECT_EQ(initiator.Run(initiator.Wr(Opcode::kSend, &out, 0)), WcStatus::kSuccess);
  EXPECT_EQ(target.endpoint.Next().wr_id, 0U);
}

// ---- a record of the fabric, counted up by processes

// What they know of their tries, in memory that all of them share.
struct Counts {
  std::atomic<uint64_t> tried, won;
};

// Each value has its version and who wrote it in every word, and its size depends on both.
std::vector<std::byte> ValueOf(uint64_t version, uint64_t writer) {
  const std::vector<uint64_t> words(2 + (version * 31 + writer * 7) % 2000, version << 16 | writer);
  std::vector<std::byte> value(words.size() * 8);
  std::memcpy(value.data(), words.data(), value.size());
  return value;
}

// Returns the version, after checking that somebody has written just this.
uint64_t ReadCount(Device& device) {
  const auto record = device.ReadRecord("count");
  EXPECT_TRUE(record.ok()) << record.status().ToString();
  if (!record.ok() || record->version == 0) return 0;
  uint64_t first = 0;
  EXPECT_GE(record->value.size(), sizeof(first));
  if (record->value.size() >= sizeof(first)) std::memcpy(&first, record->value.data(), sizeof(first));
  EXPECT_EQ(record->value, ValueOf(record->version, first & 0xffff)) << record->version;
  return record->version;
}

void CountOnce(Device& device, uint64_t writer, Counts& counts) {
  for (;;) {
    const uint64_t version = ReadCount(device);
    ++counts.tried;
    const Status set = device.CompareAndSetRecord("count", version, ValueOf(version + 1, writer));
    if (set.ok()) ++counts.won;
    if (set.ok()) return;
    --counts.tried;
    EXPECT_EQ(set.code(), StatusCode::kExists) << set.ToString();
    if (!(set == StatusCode::kExists)) return;
  }
}

class SwCounting : public ::testing::Test {
 protected:
  SwCounting()
      : counts_(new (mmap(nullptr, sizeof(Counts), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0))
                    Counts{}) {}
  ~SwCounting() override { munmap(counts_, sizeof(Counts)); }
  std::unique_ptr<Device> OpenOne(bool create) {
    return OpenDevice({.fabric = fabric_, .node = kNoNode, .create_fabric = create}).value();
  }

  const std::string fabric_ = UniqueFabric("");
  Counts* const counts_;
};

TEST_F(SwCounting, ProcessesLoseNothing) {
  constexpr int kEach = 400;
  {
    const auto device = OpenOne(true);
    const auto count = [&](uint64_t writer) {
      return [this, writer](Child::Self&) {
        const auto own = OpenOne(false);
        for (int i = 0; i < kEach; ++i) CountOnce(*own, writer, *counts_);
      };
    };
    Child first(count(1)), second(count(2)), third(count(3));
    uint64_t last = 0;
    for (int i = 0; i < 3 * kEach; ++i) {  // whoever reads meanwhile sees it grow, and nothing else
      const uint64_t version = ReadCount(*device);
      EXPECT_GE(version, last);
      last = version;
    }
    EXPECT_EQ(first.Wait(), 0);
    EXPECT_EQ(second.Wait(), 0);
    EXPECT_EQ(third.Wait(), 0);
    EXPECT_EQ(ReadCount(*device), 3U * kEach);
  }
  EXPECT_EQ(FilesOf(fabric_), 0U);
}

// At each kill one try at most is under way, which has counted or has not.
TEST_F(SwCounting, ProcessesThatAreKilledLoseNothingTearNothingAndHinderNobody) {
  constexpr int kRounds = 60;
  {
    const auto device = OpenOne(true);
    const auto count_for_ever = [&](uint64_t writer) {
      return [this, writer](Child::Self& self) {
        const auto own = OpenOne(false);
        self.Ready();
        while (!::testing::Test::HasFailure()) CountOnce(*own, writer, *counts_);
      };
    };
    std::atomic<bool> done{false};
    const auto survive = [&] {
      const auto own = OpenOne(false);
      while (!done) CountOnce(*own, 1, *counts_);
    };
    {
      Child first(count_for_ever(2)), second(count_for_ever(3));
      ASSERT_TRUE(first.WaitReady() && second.WaitReady());
      std::thread survivor(survive);
      for (int round = 0; round < kRounds; ++round) {
        Child victim(count_for_ever(4 + round));
        if (!victim.WaitReady()) ADD_FAILURE() << "a victim ended by itself";
        const uint64_t begin = ReadCount(*device);
        while (ReadCount(*device) < begin + round % 7 && !HasFailure()) continue;
        victim.Kill();
        CountOnce(*device, 0, *counts_);
      }
      done = true;
      survivor.join();
      first.Kill();
      second.Kill();
    }
    (void)OpenOne(false);
    EXPECT_EQ(FilesOf(fabric_), 3U) << "the control file, the first segment of the device, and the record";
    EXPECT_GE(ReadCount(*device), counts_->won);
    EXPECT_LE(ReadCount(*device), counts_->tried);
    EXPECT_LE(counts_->tried - counts_->won, kRounds + 2U);
  }
  EXPECT_EQ(FilesOf(fabric_), 0U);
}

TEST(SwProcesses, AForkedChildDoesNotKeepItsDeadParentAlive) {
  const std::string fabric = UniqueFabric("");
  Endpoint observer(kShm, fabric, 1, true);
  int pipe_fds[2];
  ASSERT_EQ(pipe(pipe_fds), 0);
  pid_t grandchild = 0;
  {
    Child child([&](Child::Self& self) {
      Target target(fabric, 2, false);
      const pid_t forked = fork();
      if (forked == 0) {
        // The grandchild reports itself, so that what its fork does to locks is over.
        const pid_t own = getpid();
        if (write(pipe_fds[1], &own, sizeof(own)) != sizeof(own)) _exit(2);
        self.Ready();
      }
      self.Sleep();
    });
    ASSERT_TRUE(child.WaitReady());
    ASSERT_EQ(read(pipe_fds[0], &grandchild, sizeof(grandchild)), static_cast<ssize_t>(sizeof(grandchild)));
    TargetInfo info;
    std::memcpy(&info, observer.device->LookupRecord("target").value().data(), sizeof(info));
    EXPECT_EQ(observer.device->QueryPeer(info.device), PeerState::kAlive);
    child.Kill();
    EXPECT_EQ(observer.device->QueryPeer(info.device), PeerState::kDead);
  }
  (void)testing_support::KillProcess(grandchild);
  close(pipe_fds[0]);
  close(pipe_fds[1]);
}

TEST(SwProcesses, AForkedChildsDestructorsLeaveTheParentsDeviceAlone) {
  const std::string fabric = UniqueFabric("");
  auto target = std::make_unique<Target>(fabric, 1, true);
  Child child([&](Child::Self&) { target.reset(); });
  EXPECT_EQ(child.Wait(), 0);
  Initiator initiator(fabric, 2);
  const Sge sge = initiator.endpoint.Local(0, 8);
  EXPECT_EQ(initiator.Run(initiator.Wr(Opcode::kRead, &sge, 0)), WcStatus::kSuccess);
}

}  // namespace
}  // namespace krcore::rnic::testing
