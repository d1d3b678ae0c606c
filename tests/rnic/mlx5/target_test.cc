// A DC target of mlx5: how it is made, and what it receives.
#include <arpa/inet.h>

#include "tests/rnic/mlx5/fixture.h"

namespace krcore::rnic::verbs::testing {
namespace {

class Mlx5Target : public Mlx5Test {
 protected:
  void SetUp() override { Open(); }
  std::unique_ptr<Dct> Make(uint32_t rq_depth) {
    return pd_->CreateDct({.dc_key = kKey, .recv_cq = cq_.get(), .rq_depth = rq_depth}).value();
  }
  Status PostRecv(Dct& dct, uint64_t wr_id) {
    const RecvWr wr{wr_id, &sge_, 1};
    return dct.PostRecv({&wr, 1}, nullptr);
  }
};

TEST_F(Mlx5Target, IsCreatedWithItsKeyAndSrqAndBroughtToRtr) {
  const auto dct =
      pd_->CreateDct(
             {.dc_key = kKey, .access_rights = kRemoteRead | kRemoteAtomic, .recv_cq = cq_.get(), .rq_depth = 8})
          .value();
  const FakeQp& qp = nic().Dct();
  EXPECT_EQ(qp.dc.dc_init_attr.dct_access_key, kKey);
  EXPECT_EQ(qp.init.srq, &nic().Srq().srq);
  EXPECT_EQ(nic().Srq().init.attr.max_wr, 8U);
  EXPECT_EQ(nic().Srq().init.attr.max_sge, 4U);  // the device's limit for SRQs
  EXPECT_EQ(nic().cqs.size(), 1U);               // cq_
  ASSERT_EQ(qp.modifies.size(), 2U);
  EXPECT_EQ(qp.modifies[0].to, IBV_QPS_INIT);
  EXPECT_EQ(qp.modifies[0].attr.port_num, kPort);
  EXPECT_EQ(qp.modifies[0].attr.pkey_index, 0);
  EXPECT_EQ(qp.modifies[0].attr.qp_access_flags, IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC);
  const ibv_qp_attr& rtr = qp.modifies[1].attr;
  EXPECT_EQ(rtr.qp_state, IBV_QPS_RTR);
  EXPECT_EQ(rtr.path_mtu, kMtu);
  EXPECT_EQ(rtr.min_rnr_timer, 12);
  EXPECT_EQ(rtr.ah_attr.is_global, 1);
  EXPECT_EQ(rtr.ah_attr.grh.hop_limit, 64);
  EXPECT_EQ(rtr.ah_attr.grh.sgid_index, kGidIndex);
  EXPECT_EQ(rtr.ah_attr.port_num, kPort);
}

TEST_F(Mlx5Target, HasTheNumberThatItGetsInRtrAndTheKeyThatWasAskedFor) {
  const auto dct = Make(0), other = Make(0);
  EXPECT_NE(dct->num(), 0U);
  EXPECT_NE(dct->num(), other->num());
  for (const auto& [key, qp] : nic().qps) {
    EXPECT_TRUE(key->qp_num == dct->num() || key->qp_num == other->num());
  }
  EXPECT_EQ(dct->dc_key(), kKey);
}

TEST_F(Mlx5Target, WithoutReceivesHasACqAndAnSrqThatGoWithIt) {
  auto dct = pd_->CreateDct({.dc_key = kKey}).value();
  EXPECT_EQ(nic().srqs.size(), 1U);
  EXPECT_EQ(nic().cqs.size(), 2U);
  EXPECT_EQ(PostRecv(*dct, 1), StatusCode::kQueueFull);
  dct.reset();
  EXPECT_TRUE(nic().srqs.empty());
  EXPECT_EQ(nic().cqs.size(), 1U);
}

TEST_F(Mlx5Target, ReceivesCompleteInTheOrderInWhichMessagesComeNotThatOfPosting) {
  const auto dct = Make(3);
  for (const uint64_t wr_id : {10, 11, 12}) KRCORE_EXPECT_OK(PostRecv(*dct, wr_id));
  EXPECT_EQ(PostRecv(*dct, 13), StatusCode::kQueueFull);
  ibv_wc wc{};
  wc.status = IBV_WC_SUCCESS;
  wc.opcode = IBV_WC_RECV;
  wc.byte_len = 5;
  nic().Receive(nic().Dct(), 1, wc);
  wc.opcode = IBV_WC_RECV_RDMA_WITH_IMM;
  wc.wc_flags = IBV_WC_WITH_IMM;
  wc.imm_data = htonl(0xabcd);
  nic().Receive(nic().Dct(), 1, wc);
  const auto got = Poll(*cq_);
  ASSERT_EQ(got.size(), 2U);
  EXPECT_EQ(got[0].wr_id, 11U);
  EXPECT_EQ(got[0].opcode, Opcode::kRecv);
  EXPECT_EQ(got[0].byte_len, 5U);
  EXPECT_EQ(got[0].flags, 0);
  EXPECT_EQ(got[0].qp_num, dct->num());
  EXPECT_EQ(got[1].wr_id, 12U);
  EXPECT_EQ(got[1].opcode, Opcode::kRecvWithImm);
  EXPECT_EQ(got[1].flags, kWithImm);
  EXPECT_EQ(got[1].imm, 0xabcdU);
  // Their places are free; the first one's place is not.
  for (const uint64_t wr_id : {13, 14}) KRCORE_EXPECT_OK(PostRecv(*dct, wr_id));
  EXPECT_EQ(PostRecv(*dct, 15), StatusCode::kQueueFull);
  for (int i = 0; i < 3; ++i) nic().Receive(nic().Dct(), 0, wc);
  std::vector<uint64_t> ids;
  for (const Completion& completion : Poll(*cq_)) ids.push_back(completion.wr_id);
  EXPECT_THAT(ids, ::testing::ElementsAre(10, 13, 14));
}

TEST_F(Mlx5Target, AMessageThatIsTooLongFailsItsReceiveAndNotTheTarget) {
  const auto dct = Make(2);
  for (const uint64_t wr_id : {1, 2}) KRCORE_EXPECT_OK(PostRecv(*dct, wr_id));
  ibv_wc wc{};
  wc.status = IBV_WC_LOC_LEN_ERR;
  nic().Receive(nic().Dct(), 0, wc);
  wc.status = IBV_WC_SUCCESS;
  nic().Receive(nic().Dct(), 0, wc);
  const auto got = Poll(*cq_);
  ASSERT_EQ(got.size(), 2U);
  EXPECT_EQ(got[0].status, WcStatus::kLocalLengthError);
  EXPECT_EQ(got[0].wr_id, 1U);
  EXPECT_EQ(got[1].status, WcStatus::kSuccess);
  KRCORE_EXPECT_OK(PostRecv(*dct, 3));
}

TEST_F(Mlx5Target, RefusesReceivesThatItCannotTakeAndSaysWhich) {
  const auto dct = Make(8);
  const std::array<Sge, 5> sges{};
  const RecvWr wrs[] = {{1, sges.data(), 4}, {2, sges.data(), 5}, {3, sges.data(), 1}};
  size_t bad = 99;
  EXPECT_EQ(dct->PostRecv(wrs, &bad), StatusCode::kInvalidArgument);
  EXPECT_EQ(bad, 1U);
  EXPECT_EQ(nic().Srq().posted.size(), 1U);
  const RecvWr null{4, nullptr, 1};
  EXPECT_EQ(dct->PostRecv({&null, 1}, &bad), StatusCode::kInvalidArgument);
}

TEST_F(Mlx5Target, RefusesMoreReceivesThanTheDeviceHasAndReceivesWithoutACq) {
  EXPECT_EQ(pd_->CreateDct({.recv_cq = cq_.get(), .rq_depth = device_->caps().max_qp_wr + 1}).status(),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(pd_->CreateDct({.rq_depth = 1}).status(), StatusCode::kInvalidArgument);
}

TEST_F(Mlx5Target, ItsRoomInTheCqIsFreeAgainWhenItGoes) {
  Make(1000).reset();
  const int room = RoomOfCqs();
  EXPECT_GE(room, 1000);
  Make(1000).reset();
  EXPECT_EQ(RoomOfCqs(), room);
}

TEST_F(Mlx5Target, WhatItLeavesInTheCqGoesWithItAndOnlyThat) {
  auto first = Make(2);
  FakeQp& first_qp = nic().Dct();
  KRCORE_EXPECT_OK(PostRecv(*first, 1));
  ibv_wc wc{};
  nic().Receive(first_qp, 0, wc);
  auto second = Make(2);
  KRCORE_EXPECT_OK(PostRecv(*second, 2));
  for (const auto& [key, qp] : nic().qps) {
    if (qp.get() != &first_qp) nic().Receive(*qp, 0, wc);
  }
  first.reset();
  const auto third = Make(2);  // where the first was
  KRCORE_EXPECT_OK(PostRecv(*third, 3));
  const auto got = Poll(*cq_);
  ASSERT_EQ(got.size(), 1U);
  EXPECT_EQ(got[0].wr_id, 2U);
}

}  // namespace
}  // namespace krcore::rnic::verbs::testing
