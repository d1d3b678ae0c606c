#include "tests/rnic/mlx5/fixture.h"

#include "krcore/rnic.h"

namespace krcore::rnic::verbs::testing {

DeviceOptions OptionsOfFake() {
  const rnic::testing::Provider provider{"Verbs", "verbs", ""};
  const std::string fabric = rnic::testing::UniqueFabric("");
  return {.provider = "verbs",
          .fabric = fabric,
          .node = 1,
          .create_fabric = true,
          .address = rnic::testing::AddressOf(provider, fabric)};
}

Result<std::unique_ptr<Device>> OpenFake() { return OpenDevice(OptionsOfFake()); }

DeviceAddress PeerOf(const Device& device, uint8_t last) {
  DeviceAddress address = device.address();
  address.node = 2;
  ++address.incarnation;
  address.bytes[15] = last;
  return address;
}

std::vector<Completion> Poll(Cq& cq) {
  std::vector<Completion> completions(64);
  completions.resize(cq.Poll(completions));
  return completions;
}

int RoomOfCqs() {
  int room = 0;
  for (const auto& [cq, fake] : FakeNic::Get().cqs) room += cq->cqe;
  return room;
}

Mlx5Test::~Mlx5Test() {
  peer_.reset();
  cq_.reset();
  pd_.reset();
  device_.reset();
  EXPECT_TRUE(nic().Empty());
  EXPECT_THAT(nic().misuses, ::testing::IsEmpty());
}

void Mlx5Test::Open() {
  auto device = OpenFake();
  ASSERT_TRUE(device.ok()) << device.status().message();
  device_ = *std::move(device);
  pd_ = device_->CreatePd().value();
  cq_ = device_->CreateCq(64).value();
  peer_ = device_->CreateAddressHandle(PeerOf(*device_, 7)).value();
  sge_ = {reinterpret_cast<uint64_t>(data_.data()), 8, 0x77};
}

std::unique_ptr<Qp> Mlx5Test::MakeDci(uint32_t sq_depth) {
  return pd_->CreateQp({.type = QpType::kDci, .send_cq = cq_.get(), .recv_cq = cq_.get(), .sq_depth = sq_depth})
      .value();
}

std::unique_ptr<Qp> Mlx5Test::ReadyDci(uint32_t sq_depth) {
  auto qp = MakeDci(sq_depth);
  KRCORE_EXPECT_OK(qp->ToInit(0, 0));
  KRCORE_EXPECT_OK(qp->ToRtr({}));
  KRCORE_EXPECT_OK(qp->ToRts());
  return qp;
}

SendWr Mlx5Test::Wr(Opcode opcode, uint64_t wr_id, uint8_t flags) {
  SendWr wr;
  wr.wr_id = wr_id;
  wr.opcode = opcode;
  wr.flags = flags;
  wr.sg_list = &sge_;
  wr.num_sge = 1;
  wr.remote_addr = 0x10000;
  wr.rkey = 0x99;
  wr.ah = peer_.get();
  wr.remote_qpn = kDctn;
  wr.dc_key = kKey;
  return wr;
}

}  // namespace krcore::rnic::verbs::testing
