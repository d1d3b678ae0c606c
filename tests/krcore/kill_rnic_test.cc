// kill -9 at every store of the software RNIC to shared memory: joining and leaving, memory, queues, records, messages,
// one-sided requests. After each death another device does the same to its end, the living go on, and the fabric holds
// no more than before.
#include <sched.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <functional>
#include <optional>

#include "tests/krcore/kill_each_store.h"
#include "tests/rnic/harness.h"

namespace krcore::test {
namespace {

using rnic::Device;
using rnic::DeviceAddress;
using rnic::PeerState;
using rnic::Qp;
using rnic::RecvWr;
using rnic::SendWr;
using rnic::testing::ConnectRc;
using rnic::testing::Endpoint;
using rnic::testing::kDcKey;
using rnic::testing::Link;
using rnic::testing::Transport;

const rnic::testing::Provider kShm{"SwShm", "sw", ""};
constexpr NodeId kVictim = 7;
// Limit for polls that wait for another process. They end with the victim at the latest, which has a deadline.
constexpr int kPolls = 100'000'000;

std::unique_ptr<Device> Open(const std::string& fabric, NodeId node, bool create) {
  auto device = rnic::OpenDevice({.provider = "sw", .fabric = fabric, .node = node, .create_fabric = create});
  EXPECT_TRUE(device.ok()) << device.status().ToString();
  return device.ok() ? *std::move(device) : nullptr;
}

template <typename T>
std::span<const std::byte> BytesOf(const T& value) {
  return std::as_bytes(std::span(&value, 1));
}
template <typename T>
bool LookUp(Device& device, const std::string& name, T* out) {
  const auto record = device.LookupRecord(name);
  if (!record.ok() || record->size() != sizeof(T)) return false;
  std::memcpy(static_cast<void*>(out), record->data(), sizeof(T));
  return true;
}

// ---- a fabric

class KillFounder : public ::testing::Test {
 protected:
  // `version`: of the record that the fabric has kept with its memory, if there is any.
  void Live(uint64_t version = 0) {
    const auto device = Open(fabric_, kVictim, true);
    EXPECT_NE(device->address().incarnation, 0u);
    KRCORE_EXPECT_OK(device->PublishRecord("alive", BytesOf(kVictim)));
    NodeId found = kNoNode;
    EXPECT_TRUE(LookUp(*device, "alive", &found));
    EXPECT_EQ(found, kVictim);
    EXPECT_EQ(device->ReadRecord("config").value().version, version);
    KRCORE_EXPECT_OK(device->CompareAndSetRecord("config", version, BytesOf(kVictim)));
    EXPECT_EQ(device->ReadRecord("config").value().version, version + 1);
  }
  // A fabric whose only device is dead, with memory that waits for a successor.
  void LeaveADeadFabric() {
    const pid_t child = fork();
    if (child == 0) {
      const Endpoint dead(kShm, fabric_, kVictim, true);
      KRCORE_EXPECT_OK(dead.device->PublishRecord("dead", {}));
      const auto named = dead.device->AllocMemory(4096, {.name = "named"});
      KRCORE_EXPECT_OK(dead.device->CompareAndSetRecord("config", 0, {}));
      kill(getpid(), SIGKILL);
    }
    waitpid(child, nullptr, 0);
  }
  void DieEverywhereAnd(const std::function<void()>& survivors) {
    KillAtEachStore({.victim =
                         [this] {
                           EnumerateFromHere();
                           Live();
                         },
                     .survivors = survivors});
  }
  const std::string fabric_ = rnic::testing::UniqueFabric("");
};

TEST_F(KillFounder, ItsFabricIsFoundMissingAndThenTakenOver) {
  DieEverywhereAnd([this] {
    EXPECT_EQ(rnic::OpenDevice({.provider = "sw", .fabric = fabric_}).status().code(), StatusCode::kNotFound);
    Live();
    EXPECT_EQ(FabricState::Of(fabric_), FabricState{});
  });
}

TEST_F(KillFounder, ItsFabricCanBeCleaned) {
  DieEverywhereAnd([this] {
    EXPECT_TRUE(rnic::CleanStaleFabrics("sw", fabric_, false).ok());
    EXPECT_EQ(FabricState::Of(fabric_), FabricState{});
  });
}

TEST_F(KillFounder, WhoTakesOverAFabricWhoseDevicesAreDead) {
  KillAtEachStore({.victim =
                       [this] {
                         LeaveADeadFabric();
                         EnumerateFromHere();
                         Live(1);
                       },
                   .survivors =
                       [this] {
                         {
                           const auto heir = Open(fabric_, kVictim, true);
                           const auto named = heir->AllocMemory(4096, {.name = "named"});
                           ASSERT_TRUE(named.ok()) << named.status().ToString();
                           EXPECT_TRUE((*named)->adopted()) << "somebody's only data";
                           const uint64_t version = heir->ReadRecord("config").value().version;
                           EXPECT_TRUE(version == 1 || version == 2) << version;
                         }
                         EXPECT_EQ(FabricState::Of(fabric_), FabricState{});
                       }});
}

TEST_F(KillFounder, WhoCleansAFabricWhoseDevicesAreDead) {
  const auto clean = [this] { EXPECT_TRUE(rnic::CleanStaleFabrics("sw", fabric_, true).ok()); };
  KillAtEachStore({.victim =
                       [&] {
                         LeaveADeadFabric();
                         EnumerateFromHere();
                         clean();
                       },
                   .survivors =
                       [&] {
                         clean();
                         EXPECT_EQ(FabricState::Of(fabric_), FabricState{});
                         Live();
                         EXPECT_EQ(FabricState::Of(fabric_), FabricState{});
                       }});
}

// ---- next to living devices

class KillBeside : public ::testing::Test {
 protected:
  KillBeside() { state_ = FabricState::Of(fabric_); }
  // Runs `act` in the victim and, after its death, in a device of the same id. `act` gets that device.
  void DieEverywhere(const std::function<void(Endpoint&)>& act, const std::function<void()>& meanwhile = nullptr,
                     const std::function<void()>& after_death = nullptr,
                     const std::function<void()>& at_last = nullptr) {
    KillAtEachStore({.victim =
                         [&] {
                           Endpoint victim(kShm, fabric_, kVictim, false);
                           EnumerateFromHere();
                           act(victim);
                         },
                     .meanwhile = meanwhile,
                     .survivors =
                         [&] {
                           ExpectTraffic();
                           if (after_death) after_death();
                           {
                             Endpoint heir(kShm, fabric_, kVictim, false);
                             act(heir);
                           }
                           EXPECT_EQ(FabricState::Of(fabric_), state_);
                           ExpectTraffic();
                           if (at_last) at_last();
                         }});
  }
  void ExpectTraffic() {
    const Sge sge = living_.Local(0, 64);
    EXPECT_EQ(link_.Run(link_.Wr(Opcode::kWrite, &sge, 0)).status, WcStatus::kSuccess);
  }

  const std::string fabric_ = rnic::testing::UniqueFabric("");
  Endpoint living_{kShm, fabric_, 1, true};
  Endpoint other_{kShm, fabric_, 2, false};
  Link link_{&living_, &other_, Transport::kDc};
  FabricState state_;
};

TEST_F(KillBeside, WhoJoinsAndLeaves) {
  KillAtEachStore({.victim =
                       [this] {
                         EnumerateFromHere();
                         (void)Open(fabric_, kVictim, false);
                       },
                   .survivors =
                       [this] {
                         ExpectTraffic();
                         (void)Open(fabric_, kVictim, false);  // its id is free, too
                         EXPECT_EQ(FabricState::Of(fabric_), state_);
                       }});
}

// The victim dies while it clears away what another dead device left.
TEST_F(KillBeside, WhoJoinsBehindADeadOne) {
  KillAtEachStore({.victim =
                       [this] {
                         if (fork() == 0) {
                           const Endpoint dead(kShm, fabric_, 8, false);
                           KRCORE_EXPECT_OK(dead.device->PublishRecord("dead", {}));
                           kill(getpid(), SIGKILL);
                         }
                         wait(nullptr);
                         EnumerateFromHere();
                         (void)Open(fabric_, kVictim, false);
                       },
                   .survivors =
                       [this] {
                         ExpectTraffic();
                         (void)Open(fabric_, 8, false);
                         (void)Open(fabric_, kVictim, false);
                         EXPECT_EQ(FabricState::Of(fabric_), state_);
                       }});
}

// ---- memory

TEST_F(KillBeside, WhoAllocatesNamedAndUnnamedMemory) {
  constexpr uint64_t kMark = 0x1122334455667788;
  const auto marked = [&](rnic::Memory& memory) {
    auto* const words = reinterpret_cast<uint64_t*>(memory.bytes().data());
    // Each word is whole: zero, or what a predecessor wrote, in its order.
    EXPECT_TRUE(words[0] == 0 || (memory.adopted() && words[0] == kMark));
    EXPECT_TRUE(words[1] == 0 || (words[1] == kMark && words[0] == kMark));
    std::atomic_ref(words[0]).store(kMark, std::memory_order_release);
    std::atomic_ref(words[1]).store(kMark, std::memory_order_release);
  };
  DieEverywhere([&](Endpoint& self) {
    const auto unnamed = self.device->AllocMemory(8192, {});
    ASSERT_TRUE(unnamed.ok());
    for (const bool keep : {false, true, true, false}) {  // the last one frees what was kept
      auto named = self.device->AllocMemory(4096, {.name = "store", .keep_on_close = keep});
      ASSERT_TRUE(named.ok()) << named.status().ToString();
      marked(**named);
      auto mr = self.pd->RegisterMemory((*named)->bytes().data(), 4096, rnic::testing::kAllRights);
      ASSERT_TRUE(mr.ok());
    }
  });
}

// ---- queues

TEST_F(KillBeside, WhoMakesQueuesAndTargetsAndConnectsThem) {
  DieEverywhere([&](Endpoint& self) {
    auto dct = self.MakeDct(2);
    auto ud = self.MakeReadyUd(1, 2, 64);
    auto dci = self.MakeReadyDci();
    const rnic::QpAttr attr{
        .send_cq = self.cq.get(), .recv_cq = self.cq.get(), .sq_depth = 4, .rq_depth = 2, .max_recv_bytes = 64};
    auto one = self.MakeQp(attr), two = self.MakeQp(attr);
    ConnectRc(*one, *two, *self.device, kRemoteWrite);
    ConnectRc(*two, *one, *self.device, kRemoteWrite);
    const Sge in = self.Local(0, 64);
    const RecvWr recv{1, &in, 1};
    KRCORE_EXPECT_OK(one->PostRecv({&recv, 1}, nullptr));
    KRCORE_EXPECT_OK(one->ToErr());
    KRCORE_EXPECT_OK(one->ToReset());
    ConnectRc(*one, *two, *self.device, kRemoteWrite);
  });
}

struct RcEnd {
  DeviceAddress device;
  uint32_t qpn = 0;
  uint32_t rkey = 0;
  uint64_t addr = 0;  // of a word that the other end writes after it has connected
};

// The two ends publish their addresses in records.
TEST_F(KillBeside, WhoConnectsToALivingDevicesQueue) {
  std::unique_ptr<Qp> mine = living_.MakeQp({.send_cq = living_.cq.get(), .recv_cq = living_.cq.get()});
  KRCORE_EXPECT_OK(
      living_.device->PublishRecord("a", BytesOf(RcEnd{.device = living_.device->address(), .qpn = mine->num()})));
  state_ = FabricState::Of(fabric_);
  std::optional<RcEnd> connected;
  const auto write_there = [&] {
    living_.Word() = 1;
    const Sge sge = living_.Local(0, 8);
    SendWr wr;
    wr.sg_list = &sge;
    wr.num_sge = 1;
    wr.opcode = Opcode::kWrite;
    wr.remote_addr = connected->addr;
    wr.rkey = connected->rkey;
    KRCORE_EXPECT_OK(mine->PostSend({&wr, 1}, nullptr));
    return living_.Next().status;
  };
  const auto answer = [&] {
    RcEnd end;
    if (!LookUp(*living_.device, "b", &end)) return;
    if (connected && end.device.incarnation == connected->device.incarnation) return;
    connected.reset();
    KRCORE_EXPECT_OK(mine->ToReset());
    KRCORE_EXPECT_OK(mine->ToInit(kRemoteWrite, 0));
    if (!mine->ToRtr({.device = end.device, .qpn = end.qpn}).ok()) return;  // it has died in the meantime
    KRCORE_EXPECT_OK(mine->ToRts());
    connected = end;
    (void)write_there();
  };
  const auto act = [&](Endpoint& self) {
    auto qp = self.MakeQp({.send_cq = self.cq.get(), .recv_cq = self.cq.get(), .sq_depth = 4});
    RcEnd end;
    ASSERT_TRUE(LookUp(*self.device, "a", &end));
    KRCORE_EXPECT_OK(qp->ToInit(kRemoteWrite, 0));
    KRCORE_EXPECT_OK(qp->ToRtr({.device = end.device, .qpn = end.qpn}));
    KRCORE_EXPECT_OK(qp->ToRts());
    KRCORE_EXPECT_OK(self.device->PublishRecord(
        "b", BytesOf(RcEnd{
                 .device = self.device->address(), .qpn = qp->num(), .rkey = self.mr->rkey(), .addr = self.Addr()})));
    const std::atomic_ref word(self.Word());
    for (int i = 0; i < kPolls && word.load(std::memory_order_acquire) == 0; ++i) {
      InVictim() ? (void)sched_yield() : answer();
    }
    const Sge sge = self.Local(0, 8);
    SendWr wr;
    wr.sg_list = &sge;
    wr.num_sge = 1;
    wr.opcode = Opcode::kWrite;
    wr.remote_addr = living_.Addr(4096);
    wr.rkey = living_.mr->rkey();
    KRCORE_EXPECT_OK(qp->PostSend({&wr, 1}, nullptr));
    EXPECT_EQ(self.Next().status, WcStatus::kSuccess);
  };
  DieEverywhere(act, answer, [&] {
    if (!connected) return;
    EXPECT_EQ(living_.device->QueryPeer(connected->device), PeerState::kDead);
    const WcStatus status = write_there();
    EXPECT_TRUE(status == WcStatus::kRetryExceeded || status == WcStatus::kFlushed) << WcStatusName(status);
  });
}

// ---- records

// Living devices' records hold what they published last, whatever slots the dead device had begun to write. One of
// those slots holds an old value of a living device's record.
TEST_F(KillBeside, WhoPublishesAndReplacesRecords) {
  const auto text = [](const char* value) { return std::as_bytes(std::span(value, std::strlen(value))); };
  const auto value_of = [](Device& device, const char* name) {
    const auto value = device.LookupRecord(name);
    if (!value.ok()) return value.status().ToString();
    return std::string(reinterpret_cast<const char*>(value->data()), value->size());
  };
  const auto again = [&] {
    KRCORE_EXPECT_OK(living_.device->PublishRecord("living", text("old")));
    KRCORE_EXPECT_OK(living_.device->PublishRecord("living", text("new")));
  };
  again();
  state_ = FabricState::Of(fabric_);
  DieEverywhere(
      [&](Endpoint& self) {
        for (const char* value : {"1", "a longer value of it", "", "4"}) {
          KRCORE_EXPECT_OK(self.device->PublishRecord("dying", text(value)));
          KRCORE_EXPECT_OK(self.device->PublishRecord("another", text(value)));
          EXPECT_EQ(value_of(*self.device, "dying"), value);
        }
        EXPECT_EQ(self.device->PublishRecord("living", text("stolen")).code(), StatusCode::kExists);
      },
      nullptr,
      [&] {
        EXPECT_EQ(value_of(*living_.device, "living"), "new");
        EXPECT_EQ(living_.device->LookupRecord("dying").status().code(), StatusCode::kNotFound);
      },
      again);  // so that the old value lies in the first free slot
}

// The record is the last one that was set, whole, and the next to set it is not hindered.
TEST_F(KillBeside, WhoSetsRecordsOfTheFabric) {
  const auto value_of = [](uint64_t version) {
    return std::vector<std::byte>(version * 41 % 300, static_cast<std::byte>(version));
  };
  const auto read = [&](Device& device) {
    const auto record = device.ReadRecord("config");
    EXPECT_TRUE(record.ok()) << record.status().ToString();
    if (!record.ok()) return uint64_t{0};
    EXPECT_EQ(record->value, value_of(record->version));
    return record->version;
  };
  const auto set = [&](Device& device) {
    const uint64_t version = read(device);
    KRCORE_EXPECT_OK(device.CompareAndSetRecord("config", version, value_of(version + 1)));
    EXPECT_EQ(read(device), version + 1);
  };
  set(*living_.device);
  state_ = FabricState::Of(fabric_);
  constexpr uint64_t kSets = 3;
  uint64_t version = 1, versions_seen = 0;
  DieEverywhere(
      [&](Endpoint& self) {
        for (uint64_t i = 0; i < kSets; ++i) set(*self.device);
        EXPECT_EQ(self.device->CompareAndSetRecord("config", 0, {}).code(), StatusCode::kExists);
      },
      nullptr,
      [&] {
        const uint64_t now = read(*living_.device);
        EXPECT_TRUE(now >= version && now <= version + kSets) << version << " to " << now;
        versions_seen |= uint64_t{1} << (now - version);
        set(*living_.device);
      },
      [&] { version = read(*living_.device); });
  EXPECT_EQ(versions_seen, (uint64_t{1} << (kSets + 1)) - 1) << "deaths before, between and after";
}

// ---- messages

TEST_F(KillBeside, WhoSendsIntoALivingDevicesReceives) {
  constexpr uint32_t kReceives = 8;
  Endpoint receiver(kShm, fabric_, 3, false);
  auto dct = receiver.MakeDct(kReceives);
  const Sge in = receiver.Local(1024, 1024);
  const auto post = [&](uint64_t id) {
    const RecvWr recv{id, &in, 1};
    KRCORE_EXPECT_OK(dct->PostRecv({&recv, 1}, nullptr));
  };
  for (uint64_t i = 0; i < kReceives; ++i) post(i);
  state_ = FabricState::Of(fabric_);
  // Polls often enough for the receiver to ask which device a message that does not arrive is from.
  const auto drain = [&] {
    size_t count = 0;
    Completion done[kReceives];
    for (int i = 0; i < 2000; ++i) {
      const size_t found = receiver.cq->Poll(done);
      for (size_t j = 0; j < found; ++j) {
        EXPECT_EQ(done[j].status, WcStatus::kSuccess);
        if (done[j].opcode == Opcode::kRecv) {
          EXPECT_EQ(receiver.Text(1024)[0], 'm');
        }
        post(done[j].wr_id);
      }
      count += found;
    }
    return count;
  };
  const auto send = [&](Endpoint& self) {
    auto qp = self.MakeReadyDci();
    auto address = self.device->CreateAddressHandle(receiver.device->address()).value();
    std::memset(self.Text(), 'm', 256);
    const Sge sges[] = {self.Local(0, 8), self.Local(0, 200), self.Local(0, 13)};
    SendWr wrs[4];
    for (size_t i = 0; i < 4; ++i) {
      wrs[i].sg_list = &sges[i % 3];
      wrs[i].num_sge = 1;
      wrs[i].opcode = i == 0 ? Opcode::kSend : i == 1 ? Opcode::kSendImm : i == 2 ? Opcode::kWriteImm : Opcode::kSend;
      wrs[i].remote_addr = receiver.Addr();
      wrs[i].rkey = receiver.mr->rkey();
      wrs[i].ah = address.get();
      wrs[i].remote_qpn = dct->num();
      wrs[i].dc_key = kDcKey;
      wrs[i].flags = kSignaled;
    }
    KRCORE_EXPECT_OK(qp->PostSend(wrs, nullptr));
    for (size_t i = 0; i < 4; ++i) EXPECT_EQ(self.Next().status, WcStatus::kSuccess);
  };
  const auto act = [&](Endpoint& self) {
    send(self);
    if (!InVictim()) {
      EXPECT_EQ(drain(), 4u);
    }
  };
  DieEverywhere(act, nullptr, [&] {
    EXPECT_LE(drain(), 4u);
    Endpoint heir(kShm, fabric_, kVictim, false);
    send(heir);
    send(heir);
    EXPECT_EQ(drain(), kReceives) << "receives were lost";
  });
}

// Where `Target` receives.
struct TargetInfo {
  DeviceAddress device;
  uint32_t dct = 0;
};

TEST_F(KillBeside, WhoReceivesWhatALivingDeviceSends) {
  auto qp = living_.MakeReadyDci();
  state_ = FabricState::Of(fabric_);
  TargetInfo target;
  std::unique_ptr<rnic::AddressHandle> address;
  size_t sent = 0;
  // Sends the remaining messages to the target that has announced itself.
  const auto send = [&] {
    TargetInfo info;
    if (!LookUp(*living_.device, "target", &info)) return;
    if (info.device.incarnation != target.device.incarnation) {
      auto made = living_.device->CreateAddressHandle(info.device);
      if (!made.ok()) return;  // it has just died
      address = *std::move(made);
      target = info;
      sent = 0;
    }
    if (sent == 5) return;
    const Sge sge = living_.Local(0, 40);
    SendWr wr;
    wr.sg_list = &sge;
    wr.num_sge = 1;
    wr.opcode = Opcode::kSend;
    wr.ah = address.get();
    wr.remote_qpn = target.dct;
    wr.dc_key = kDcKey;
    KRCORE_EXPECT_OK(qp->PostSend({&wr, 1}, nullptr));
    const WcStatus status = living_.Next().status;
    if (status == WcStatus::kSuccess) {
      ++sent;
      return;
    }
    EXPECT_TRUE(status == WcStatus::kRetryExceeded || status == WcStatus::kRnrRetryExceeded) << WcStatusName(status);
    KRCORE_EXPECT_OK(qp->ToReset());
    ConnectRc(*qp, *qp, *living_.device, 0);
  };
  const auto act = [&](Endpoint& self) {
    auto dct = self.MakeDct(2);
    const Sge in = self.Local(0, 64);
    const auto post = [&](uint64_t id) {
      const RecvWr recv{id, &in, 1};
      KRCORE_EXPECT_OK(dct->PostRecv({&recv, 1}, nullptr));
    };
    post(0);
    post(1);
    KRCORE_EXPECT_OK(self.device->PublishRecord("target", BytesOf(TargetInfo{self.device->address(), dct->num()})));
    size_t received = 0;
    for (int i = 0; i < kPolls && received < 5; ++i) {
      if (!InVictim()) send();
      Completion done;
      if (self.cq->Poll({&done, 1}) == 0) {
        sched_yield();
        continue;
      }
      EXPECT_EQ(done.status, WcStatus::kSuccess);
      ++received;
      post(done.wr_id);
    }
    EXPECT_EQ(received, 5u);
  };
  DieEverywhere(act, send, [&] {
    for (int i = 0; i < 8; ++i) send();  // to nobody
  });
}

// ---- one-sided requests

// Words are whole and in the order of the batch, as far as the words tell. What lies next to them is untouched.
TEST_F(KillBeside, WhoWritesAndChangesWords) {
  struct Words {
    uint64_t before, written[16], swapped, added, odd[2], after;
  };
  Words& words = *reinterpret_cast<Words*>(living_.memory->bytes().data() + 8192);
  auto dct = living_.MakeDct();
  state_ = FabricState::Of(fabric_);
  const DeviceAddress target = living_.device->address();
  const uint64_t at = living_.Addr(8192);
  const auto act = [&](Endpoint& self) {
    auto qp = self.MakeReadyDci();
    auto address = self.device->CreateAddressHandle(target).value();
    auto* const local = reinterpret_cast<uint64_t*>(self.Text());
    std::fill_n(local, 20, ~uint64_t{0});
    const Sge block = self.Local(0, 128), word = self.Local(1024, 8), odd[] = {self.Local(0, 3), self.Local(0, 8)};
    const auto wr_on = [&](Opcode opcode, const Sge* sges, uint8_t count, size_t offset) {
      SendWr wr;
      wr.opcode = opcode;
      wr.sg_list = sges;
      wr.num_sge = count;
      wr.remote_addr = at + offset;
      wr.rkey = living_.mr->rkey();
      wr.ah = address.get();
      wr.remote_qpn = dct->num();
      wr.dc_key = kDcKey;
      return wr;
    };
    SendWr wrs[] = {wr_on(Opcode::kWrite, &block, 1, offsetof(Words, written)),
                    wr_on(Opcode::kCompareSwap, &word, 1, offsetof(Words, swapped)),
                    wr_on(Opcode::kFetchAdd, &word, 1, offsetof(Words, added)),
                    wr_on(Opcode::kWrite, odd, 2, offsetof(Words, odd) + 1)};
    wrs[1].swap = ~uint64_t{0};
    wrs[2].compare_add = 1;
    KRCORE_EXPECT_OK(qp->PostSend(wrs, nullptr));
    for (size_t i = 0; i < std::size(wrs); ++i) EXPECT_EQ(self.Next().status, WcStatus::kSuccess);
  };
  uint64_t states_seen = 0;
  DieEverywhere(
      [&](Endpoint& self) {
        if (!InVictim()) words = {};
        act(self);
        if (!InVictim()) {
          EXPECT_EQ(words.odd[1], 0xffff'ffffu);  // 1 + 3 + 8 bytes
          words = {};
        }
      },
      nullptr,
      [&] {
        EXPECT_EQ(words.before, 0u);
        EXPECT_EQ(words.after, 0u);
        const auto whole = [](uint64_t word) { return word == 0 || word == ~uint64_t{0}; };
        for (const uint64_t word : words.written) EXPECT_TRUE(whole(word));
        EXPECT_TRUE(whole(words.swapped));
        EXPECT_LE(words.added, 1u);
        EXPECT_TRUE(words.swapped != 0 || words.added == 0);
        EXPECT_TRUE(words.written[15] != 0 || words.swapped == 0);
        states_seen |= uint64_t{1} << std::count(std::begin(words.written), std::end(words.written), ~uint64_t{0});
        words = {};
      });
  EXPECT_GT(std::popcount(states_seen), 8) << "deaths in the middle of a WRITE";
}

}  // namespace
}  // namespace krcore::test
