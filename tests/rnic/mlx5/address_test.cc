// Address handles: one for each peer's port and PD. The fake NIC makes them, with DC of mlx5; any other NIC would do.
#include <algorithm>
#include <cerrno>
#include <thread>

#include "krcore/rnic/verbs/nic.h"
#include "tests/rnic/mlx5/fixture.h"

namespace krcore::rnic::verbs::testing {
namespace {

class Addresses : public Mlx5Test {
 protected:
  Addresses() { Open(); }
  DeviceAddress Peer(size_t number) {
    DeviceAddress address = PeerOf(*device_, 0);
    address.bytes[14] = static_cast<uint8_t>(number >> 8);
    address.bytes[15] = static_cast<uint8_t>(number);
    return address;
  }
};

TEST_F(Addresses, PortsThatNobodyUsesMakeRoom) {
  auto kept = device_->CreateAddressHandle(Peer(1)).value();
  for (size_t i = 1; i <= kMaxPorts + 100; ++i) {
    const auto made = device_->CreateAddressHandle(Peer(i));
    ASSERT_TRUE(made.ok()) << i << ": " << made.status().message();
  }
  EXPECT_LE(nic().ahs.size(), kMaxPorts);
  nic().calls.clear();
  EXPECT_TRUE(device_->CreateAddressHandle(Peer(1)).ok());
  EXPECT_TRUE(nic().calls.empty());  // it is in use, so it stayed
}

TEST_F(Addresses, MorePortsThanThereIsRoomForAreRefusedWhileAllAreUsed) {
  std::vector<std::unique_ptr<AddressHandle>> used;
  for (size_t i = 8; used.size() + 1 < kMaxPorts; ++i) used.push_back(device_->CreateAddressHandle(Peer(i)).value());
  EXPECT_EQ(device_->CreateAddressHandle(Peer(5000)).status(), StatusCode::kOutOfMemory);
  used.pop_back();
  EXPECT_TRUE(device_->CreateAddressHandle(Peer(5000)).ok());
}

TEST_F(Addresses, WhatWasMadeBeforeAFailureGoesWithItsPd) {
  auto second = device_->CreatePd().value();
  nic().calls.clear();
  nic().fail_call = 1;  // the one for the second PD
  nic().fail_error = ETIMEDOUT;
  EXPECT_EQ(device_->CreateAddressHandle(Peer(9)).status(), StatusCode::kUnavailable);
  nic().fail_call = -1;
  EXPECT_EQ(nic().calls, (std::vector<std::string>{"ibv_create_ah", "ibv_create_ah"}));
  second.reset();
  pd_.reset();
  EXPECT_TRUE(nic().pds.empty());
}

// The network is asked where one port is; requests to another port go on.
TEST_F(Addresses, WhoWaitsForTheNetworkKeepsNobodyElseWaiting) {
  auto other = device_->CreateAddressHandle(Peer(8)).value();
  auto second = device_->CreatePd().value();  // created after that handle
  nic().create_ah_blocks = true;
  std::thread waiting([&] { EXPECT_TRUE(device_->CreateAddressHandle(Peer(9)).ok()); });
  nic().AwaitBlocked();
  const auto& handle = static_cast<const VerbsAddressHandle&>(*other);
  EXPECT_NE(handle.For(1), nullptr);
  nic().Unblock();
  waiting.join();
}

// For UD queues and for DC's initiators, the NIC's and software's.
TEST(AddressesOfYoungerPds, APostToAPeerThatTheNetworkDoesNotKnowIsRefused) {
  for (const bool is_mlx5 : {true, false}) {
    FakeNic::Reset();
    FakeNic& nic = FakeNic::Get();
    nic.is_mlx5 = is_mlx5;
    nic.has_plain = true;
    const auto device = OpenFake().value();
    const auto peer = device->CreateAddressHandle(PeerOf(*device, 7)).value();
    const auto stranger = device->CreateAddressHandle(PeerOf(*device, 8)).value();
    const auto cq = device->CreateCq(64).value();
    for (const QpType type : {QpType::kUd, QpType::kDci}) {
      SCOPED_TRACE(type == QpType::kUd ? "UD" : "DCI");
      const auto pd = device->CreatePd().value();
      const auto qp = pd->CreateQp({.type = type, .send_cq = cq.get(), .sq_depth = 8}).value();
      KRCORE_EXPECT_OK(qp->ToInit(0, 1));
      KRCORE_EXPECT_OK(qp->ToRtr({}));
      KRCORE_EXPECT_OK(qp->ToRts());
      nic.fail_named = {{"ibv_create_ah", EHOSTUNREACH}};
      SendWr wr;
      wr.opcode = Opcode::kSend;
      wr.flags = kSignaled;
      wr.ah = peer.get();
      size_t bad = 9;
      EXPECT_EQ(qp->PostSend({&wr, 1}, &bad), StatusCode::kUnavailable);
      EXPECT_EQ(bad, 0U);
      EXPECT_TRUE(Poll(*cq).empty());
      nic.fail_named.clear();
      nic.calls.clear();
      KRCORE_EXPECT_OK(qp->PostSend({&wr, 1}, nullptr));
      KRCORE_EXPECT_OK(qp->PostSend({&wr, 1}, nullptr));
      EXPECT_EQ(std::count(nic.calls.begin(), nic.calls.end(), "ibv_create_ah"), 1);
      // The peer that is reached is not to blame, and its WR is not refused.
      nic.fail_named = {{"ibv_create_ah", EHOSTUNREACH}};
      SendWr batch[] = {wr, wr};
      batch[1].ah = stranger.get();
      EXPECT_EQ(qp->PostSend(batch, &bad), StatusCode::kUnavailable);
      EXPECT_EQ(bad, 1U);
      nic.fail_named.clear();
      EXPECT_THAT(nic.misuses, ::testing::IsEmpty());
    }
  }
}

}  // namespace
}  // namespace krcore::rnic::verbs::testing
