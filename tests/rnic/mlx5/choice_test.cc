// Whether a device has DC, and what is left when a call fails.
#include <cerrno>
#include <cstring>

#include "krcore/rnic/verbs/nic.h"
#include "tests/rnic/mlx5/fixture.h"

namespace krcore::rnic::verbs::testing {
namespace {

using ::testing::Contains;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::Not;

class Mlx5Choice : public Mlx5Test {
 protected:
  // Software's initiator is a UD queue, and its target needs a completion channel. The fake NIC records and refuses
  // both.
  void ExpectSoftwareDc() {
    EXPECT_TRUE(device_->caps().dc);
    EXPECT_TRUE(device_->caps().software_dc);
    nic().calls.clear();
    EXPECT_FALSE(pd_->CreateQp({.type = QpType::kDci, .send_cq = cq_.get()}).ok());
    EXPECT_FALSE(pd_->CreateDct({}).ok());
    EXPECT_THAT(nic().calls, Contains("ibv_create_qp"));
    EXPECT_THAT(nic().calls, Contains("ibv_create_comp_channel"));
    EXPECT_THAT(nic().calls, Each(Not(HasSubstr("DC"))));
  }
};

TEST_F(Mlx5Choice, ADeviceThatMakesATargetAndAnInitiatorHasDcOfItsOwn) {
  device_ = OpenFake().value();
  EXPECT_TRUE(device_->caps().dc);
  EXPECT_FALSE(device_->caps().software_dc);
  EXPECT_THAT(nic().calls, Contains("ibv_modify_qp(DCT RTR)"));
  EXPECT_THAT(nic().calls, Contains("ibv_modify_qp(DCI RTS)"));
  // They were made only to find out.
  EXPECT_TRUE(nic().qps.empty() && nic().cqs.empty() && nic().srqs.empty() && nic().pds.empty());
}

// If a port is down or a device is gone, no peer can be heard of; this process itself lives.
TEST_F(Mlx5Choice, WhatTheDeviceReportsOfItsPortSaysWhetherPeersCanBeReached) {
  auto options = OptionsOfFake();
  const auto peer = OpenDevice(options).value();
  options.node = 2;
  options.create_fabric = false;
  device_ = OpenDevice(options).value();  // the last one opened: the fake NIC reports to it
  const auto becomes = [&](PeerState wanted) {
    const Deadline deadline = Deadline::After(*RealClock(), 60'000'000'000);
    for (uint32_t spins = 0; device_->QueryPeer(peer->address()) != wanted; ++spins) {
      if (deadline.Passed(*RealClock())) return false;
      RealClock()->Relax(spins);
    }
    return device_->QueryPeer(device_->address()) == PeerState::kAlive;
  };
  EXPECT_TRUE(becomes(PeerState::kAlive));
  for (const ibv_event_type down : {IBV_EVENT_PORT_ERR, IBV_EVENT_DEVICE_FATAL}) {
    nic().ReportPort(down);
    EXPECT_TRUE(becomes(PeerState::kUnreachable));
    nic().ReportPort(IBV_EVENT_PORT_ACTIVE);
    EXPECT_TRUE(becomes(PeerState::kAlive));
  }
}

TEST_F(Mlx5Choice, ADeviceOfAnotherKindIsNotAskedAndGetsTheDcOfSoftware) {
  nic().is_mlx5 = false;
  Open();
  EXPECT_THAT(nic().calls, Each(Not(HasSubstr("DC"))));
  ExpectSoftwareDc();
}

TEST_F(Mlx5Choice, WithoutLibmlx5AnyDeviceGetsTheDcOfSoftware) {
  nic().has_libmlx5 = false;
  Open();
  EXPECT_THAT(nic().calls, Each(Not(HasSubstr("DC"))));
  ExpectSoftwareDc();
}

TEST_F(Mlx5Choice, ADeviceThatRefusesAnyStepGetsTheDcOfSoftware) {
  for (const char* call :
       {"mlx5dv_create_qp(DCT)", "ibv_modify_qp(DCT INIT)", "ibv_modify_qp(DCT RTR)", "mlx5dv_create_qp(DCI)",
        "ibv_modify_qp(DCI INIT)", "ibv_modify_qp(DCI RTR)", "ibv_modify_qp(DCI RTS)"}) {
    for (const int error : {EOPNOTSUPP, ENOSYS, EINVAL}) {
      SCOPED_TRACE(std::string(call) + " " + std::to_string(error));
      nic().fail_named = {{call, error}};
      Open();
      ExpectSoftwareDc();
      peer_.reset();
      cq_.reset();
      pd_.reset();
      device_.reset();
      EXPECT_TRUE(nic().Empty());
    }
  }
}

TEST_F(Mlx5Choice, ADriverWithoutExtendedPostsGetsTheDcOfSoftware) {
  nic().dci_is_extended = false;
  Open();
  ExpectSoftwareDc();
}

TEST_F(Mlx5Choice, AnErrorOfAnotherKindIsNotTakenForTheLackOfDc) {
  nic().fail_named = {{"mlx5dv_create_qp(DCI)", ENOMEM}};
  const auto device = OpenFake();
  EXPECT_EQ(device.status(), StatusCode::kOutOfMemory);
  EXPECT_THAT(std::string(device.status().message()), HasSubstr("cannot find out whether fake_mlx5:1 has DC"));
  EXPECT_THAT(std::string(device.status().message()), HasSubstr("create a DC initiator"));
}

TEST_F(Mlx5Choice, APeerWithDcOfAnotherKindIsRefusedAndTheErrorSaysWhy) {
  const struct {
    uint32_t part;
    DcKind kind;
    const char* name;
  } parts[] = {{0x1011, DcKind::kMlx5V1, "ConnectX-4"},
               {0x1016, DcKind::kMlx5V1, "ConnectX-4"},
               {0x1017, DcKind::kMlx5V2, "ConnectX-5"}};
  for (const auto& part : parts) {
    nic().part_id = part.part;
    const auto device = OpenFake().value();
    EXPECT_EQ(PortOf(device->address()).dc, part.kind);
    for (const DcKind theirs : {DcKind::kSoftware, DcKind::kMlx5V1, DcKind::kMlx5V2}) {
      DeviceAddress peer = PeerOf(*device, 7);
      PortAddress port = PortOf(peer);
      port.dc = theirs;
      std::memcpy(peer.bytes, &port, sizeof(port));
      const auto handle = device->CreateAddressHandle(peer);
      EXPECT_EQ(handle.ok(), theirs == part.kind);
      if (handle.ok()) continue;
      EXPECT_EQ(handle.status(), StatusCode::kUnsupported);
      EXPECT_THAT(std::string(handle.status().message()), HasSubstr(part.name));
      EXPECT_THAT(std::string(handle.status().message()), HasSubstr(DcKindName(theirs)));
    }
  }
}

TEST_F(Mlx5Choice, ASmallerMtuIsUsedWhereItIsAskedForAndALargerOneRefused) {
  auto options = OptionsOfFake();
  const std::string port = "fake_mlx5:1:" + std::to_string(kGidIndex) + ":";
  options.port = port + "512";
  device_ = OpenDevice(options).value();
  EXPECT_EQ(device_->caps().ud_mtu_bytes, 512U);
  device_.reset();
  options.port = port + "2048";
  const auto refused = OpenDevice(options);
  EXPECT_EQ(refused.status(), StatusCode::kUnavailable);
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("of MTU 2048 or more; it has:"));
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("\n  fake_mlx5:1: a state, MTU 1024"));
}

// RC queues would agree on the smaller MTU. Larger datagrams of DC and UD would be lost, and nobody would be told why.
TEST_F(Mlx5Choice, APeerWithAnotherMtuIsRefusedWhereItsAddressIsUsedFirst) {
  for (const bool is_mlx5 : {true, false}) {
    nic().is_mlx5 = is_mlx5;
    const auto device = OpenFake().value();
    for (const int theirs : {0, IBV_MTU_512 + 0, kMtu + 0, IBV_MTU_4096 + 0}) {
      DeviceAddress peer = PeerOf(*device, 7);
      PortAddress port = PortOf(peer);
      port.mtu = static_cast<uint8_t>(theirs);
      std::memcpy(peer.bytes, &port, sizeof(port));
      const auto handle = device->CreateAddressHandle(peer);
      EXPECT_EQ(handle.ok(), theirs == kMtu);
      if (handle.ok()) continue;
      EXPECT_EQ(handle.status(), StatusCode::kUnsupported);
      EXPECT_THAT(std::string(handle.status().message()), HasSubstr("1024 bytes"));
      EXPECT_THAT(std::string(handle.status().message()), HasSubstr(theirs == 0             ? "not known"
                                                                    : theirs == IBV_MTU_512 ? "512 bytes"
                                                                                            : "4096 bytes"));
    }
  }
}

// Does everything that DC needs of a device, from its opening on. Each of its calls that can fail is made to fail once.
Status UseDc() {
  auto device = OpenFake();
  if (!device.ok()) return device.status();
  auto pd = (*device)->CreatePd();
  if (!pd.ok()) return pd.status();
  auto cq = (*device)->CreateCq(1);
  if (!cq.ok()) return cq.status();
  auto peer = (*device)->CreateAddressHandle(PeerOf(**device, 7));
  if (!peer.ok()) return peer.status();
  auto target = (*pd)->CreateDct({.dc_key = kKey});
  if (!target.ok()) return target.status();
  auto receiver = (*pd)->CreateDct({.dc_key = kKey, .recv_cq = cq->get(), .rq_depth = 8});
  if (!receiver.ok()) return receiver.status();
  const RecvWr recv{.wr_id = 1};
  KRCORE_RETURN_IF_ERROR((*receiver)->PostRecv({&recv, 1}, nullptr));
  auto initiator = (*pd)->CreateQp({.type = QpType::kDci, .send_cq = cq->get(), .sq_depth = 8});
  if (!initiator.ok()) return initiator.status();
  KRCORE_RETURN_IF_ERROR((*initiator)->ToInit(0, 0));
  KRCORE_RETURN_IF_ERROR((*initiator)->ToRtr({}));
  KRCORE_RETURN_IF_ERROR((*initiator)->ToRts());
  SendWr wr;
  wr.ah = peer->get();
  wr.flags = kSignaled;
  KRCORE_RETURN_IF_ERROR((*initiator)->PostSend({&wr, 1}, nullptr));
  FakeNic::Get().Succeed(FakeNic::Get().Dci());
  Completion completion;
  if ((*cq)->Poll({&completion, 1}) != 1) return {StatusCode::kInternal, "no completion"};
  KRCORE_RETURN_IF_ERROR((*initiator)->ToErr());
  return (*initiator)->ToReset();
}

TEST_F(Mlx5Choice, WhicheverCallFailsNothingIsLeftAndTheErrorSaysWhatFailed) {
  KRCORE_EXPECT_OK(UseDc());
  const std::vector<std::string> calls = nic().calls;
  EXPECT_TRUE(nic().Empty());
  int failed = 0;
  for (size_t i = 0; i < calls.size(); ++i) {
    FakeNic::Reset();
    nic().fail_call = static_cast<int>(i);
    nic().fail_error = ENOMEM;
    SCOPED_TRACE(std::to_string(i) + ": " + calls[i]);
    const Status used = UseDc();
    EXPECT_TRUE(nic().Empty());
    EXPECT_THAT(nic().misuses, ::testing::IsEmpty());
    ASSERT_EQ(nic().calls[i], calls[i]);
    if (calls[i].starts_with("ibv_destroy")) {
      KRCORE_EXPECT_OK(used);
      continue;
    }
    ++failed;
    EXPECT_FALSE(used.ok());
    EXPECT_GT(used.message().size(), 0U);
  }
  // There are so many calls in two rounds: one finds out whether there is DC, and one uses it.
  EXPECT_GE(failed, 30);
}

}  // namespace
}  // namespace krcore::rnic::verbs::testing
