// A DC initiator of mlx5: how it is made and posted to, and what completes.
#include <arpa/inet.h>

#include <cerrno>

#include "krcore/clock.h"
#include "tests/rnic/mlx5/fixture.h"

namespace krcore::rnic::verbs::testing {
namespace {

using ::testing::ElementsAre;

class Mlx5Initiator : public Mlx5Test {
 protected:
  void SetUp() override { Open(); }
  std::vector<uint64_t> Ids(const std::vector<Completion>& completions) {
    std::vector<uint64_t> ids;
    for (const Completion& completion : completions) ids.push_back(completion.wr_id);
    return ids;
  }
};

TEST_F(Mlx5Initiator, IsCreatedWithoutReceivesAndForTheOperationsThatItPosts) {
  const auto qp = MakeDci(33);
  const FakeQp& dci = nic().Dci();
  EXPECT_EQ(dci.init.cap.max_send_wr, 33U);
  EXPECT_EQ(dci.init.cap.max_send_sge, device_->caps().max_sge);
  EXPECT_EQ(dci.init.cap.max_inline_data, device_->caps().max_inline_bytes);
  EXPECT_EQ(dci.init.sq_sig_all, 0);
  EXPECT_EQ(qp->num(), dci.ex.qp_base.qp_num);
  EXPECT_EQ(qp->type(), QpType::kDci);
  EXPECT_EQ(qp->state(), QpState::kReset);
  EXPECT_EQ(pd_->CreateQp({.type = QpType::kDci, .send_cq = cq_.get(), .recv_cq = cq_.get(), .rq_depth = 1}).status(),
            StatusCode::kInvalidArgument);
}

TEST_F(Mlx5Initiator, TakesTheWayToRtsThatTheDriverKnows) {
  const auto qp = MakeDci();
  KRCORE_EXPECT_OK(qp->ToInit(kRemoteRead, 5));  // an initiator serves nobody: no rights go to the device
  KRCORE_EXPECT_OK(qp->ToRtr({}));
  KRCORE_EXPECT_OK(qp->ToRts());
  EXPECT_EQ(qp->state(), QpState::kRts);
  const FakeQp& dci = nic().Dci();
  ASSERT_EQ(dci.modifies.size(), 3U);
  EXPECT_EQ(dci.modifies[0].mask, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT);
  EXPECT_EQ(dci.modifies[0].attr.port_num, kPort);
  EXPECT_EQ(dci.modifies[1].mask, IBV_QP_STATE | IBV_QP_PATH_MTU | IBV_QP_AV);
  EXPECT_EQ(dci.modifies[1].attr.path_mtu, kMtu);
  EXPECT_EQ(dci.modifies[1].attr.ah_attr.grh.sgid_index, kGidIndex);
  EXPECT_EQ(dci.modifies[1].attr.ah_attr.grh.hop_limit, 64);
  const ibv_qp_attr& rts = dci.modifies[2].attr;
  EXPECT_EQ(rts.timeout, 14);
  EXPECT_EQ(rts.retry_cnt, 6);
  EXPECT_EQ(rts.rnr_retry, 6);
  EXPECT_EQ(rts.max_rd_atomic, kReadDepth);
}

TEST_F(Mlx5Initiator, OtherOrdersOfStatesAreRefusedAndChangeNothing) {
  const auto qp = MakeDci();
  EXPECT_EQ(qp->ToRtr({}), StatusCode::kBadState);
  EXPECT_EQ(qp->ToRts(), StatusCode::kBadState);
  KRCORE_EXPECT_OK(qp->ToInit(0, 0));
  EXPECT_EQ(qp->ToInit(0, 0), StatusCode::kBadState);
  EXPECT_EQ(qp->ToRts(), StatusCode::kBadState);
  EXPECT_EQ(Post(*qp, {Wr(Opcode::kRead, 1)}), StatusCode::kBadState);
  EXPECT_EQ(nic().Dci().modifies.size(), 1U);
  EXPECT_EQ(qp->state(), QpState::kInit);
}

TEST_F(Mlx5Initiator, GoesFromResetToErrThoughTheDriverKnowsNoSuchWay) {
  const auto qp = MakeDci();
  KRCORE_EXPECT_OK(qp->ToErr());
  EXPECT_EQ(qp->state(), QpState::kErr);
  KRCORE_EXPECT_OK(qp->ToErr());
  KRCORE_EXPECT_OK(Post(*qp, {Wr(Opcode::kRead, 1)}));
  const auto got = Poll(*cq_);
  ASSERT_EQ(got.size(), 1U);
  EXPECT_EQ(got[0].status, WcStatus::kFlushed);
}

TEST_F(Mlx5Initiator, AnErrorOfATransitionLeavesTheStateAndSaysWhich) {
  const auto qp = MakeDci();
  nic().fail_named = {{"ibv_modify_qp(DCI RTR)", ENOSPC}};
  KRCORE_EXPECT_OK(qp->ToInit(0, 0));
  const Status failed = qp->ToRtr({});
  EXPECT_EQ(failed, StatusCode::kOutOfMemory);
  EXPECT_THAT(std::string(failed.message()), ::testing::HasSubstr("cannot move a QP to RTR"));
  EXPECT_EQ(qp->state(), QpState::kInit);
  nic().fail_named.clear();
  KRCORE_EXPECT_OK(qp->ToRtr({}));
}

TEST_F(Mlx5Initiator, EachWrCarriesAddressHandleTargetNumberAndKey) {
  const auto qp = ReadyDci();
  const auto other = device_->CreateAddressHandle(PeerOf(*device_, 9)).value();
  SendWr second = Wr(Opcode::kWrite, 2);
  second.ah = other.get();
  second.remote_qpn = 0x777;
  second.dc_key = 5;
  KRCORE_EXPECT_OK(Post(*qp, {Wr(Opcode::kRead, 1), second}));
  const FakeQp& dci = nic().Dci();
  ASSERT_EQ(dci.posts.size(), 1U);
  ASSERT_EQ(dci.posts[0].size(), 2U);
  const FakePost& one = dci.posts[0][0];
  EXPECT_EQ(one.dctn, kDctn);
  EXPECT_EQ(one.dc_key, kKey);
  EXPECT_EQ(nic().ahs.at(one.ah).grh.dgid.raw[15], 7);
  const FakePost& two = dci.posts[0][1];
  EXPECT_EQ(two.dctn, 0x777U);
  EXPECT_EQ(two.dc_key, 5U);
  EXPECT_EQ(nic().ahs.at(two.ah).grh.dgid.raw[15], 9);
}

TEST_F(Mlx5Initiator, EachOperationIsPostedWithItsArguments) {
  const auto qp = ReadyDci();
  std::vector<SendWr> wrs;
  for (const Opcode opcode : {Opcode::kRead, Opcode::kWrite, Opcode::kWriteImm, Opcode::kSend, Opcode::kSendImm,
                              Opcode::kCompareSwap, Opcode::kFetchAdd}) {
    wrs.push_back(Wr(opcode, wrs.size()));
    wrs.back().imm = 0x01020304;
    wrs.back().compare_add = 21;
    wrs.back().swap = 22;
  }
  KRCORE_EXPECT_OK(Post(*qp, wrs));
  const std::vector<FakePost>& posts = nic().Dci().posts.at(0);
  std::vector<std::string> ops;
  for (const FakePost& post : posts) {
    ops.push_back(post.op);
    ASSERT_EQ(post.sges.size(), 1U);
    EXPECT_EQ(post.sges[0].addr, sge_.addr);
    EXPECT_EQ(post.sges[0].length, 8U);
    EXPECT_EQ(post.sges[0].lkey, 0x77U);
    const bool sends = post.op.starts_with("send");
    EXPECT_EQ(post.rkey, sends ? 0U : 0x99U);
    EXPECT_EQ(post.remote_addr, sends ? 0U : 0x10000U);
  }
  EXPECT_THAT(ops, ElementsAre("read", "write", "write_imm", "send", "send_imm", "cas", "add"));
  EXPECT_EQ(posts[2].imm, htonl(0x01020304));
  EXPECT_EQ(posts[4].imm, htonl(0x01020304));
  EXPECT_EQ(posts[5].compare_add, 21U);
  EXPECT_EQ(posts[5].swap, 22U);
  EXPECT_EQ(posts[6].compare_add, 21U);
}

TEST_F(Mlx5Initiator, FlagsGatherAndInlineReachTheDevice) {
  const auto qp = ReadyDci();
  data_[0] = 'a';
  data_[100] = 'b';
  const std::array<Sge, 2> sges = {Sge{sge_.addr, 1, 1}, Sge{sge_.addr + 100, 1, 2}};
  SendWr gather = Wr(Opcode::kWrite, 1, kFence | kSolicited), inlined = Wr(Opcode::kWrite, 2, kInline | kSignaled),
         empty = Wr(Opcode::kWrite, 3);
  gather.sg_list = inlined.sg_list = sges.data();
  gather.num_sge = inlined.num_sge = 2;
  empty.sg_list = nullptr;
  empty.num_sge = 0;
  KRCORE_EXPECT_OK(Post(*qp, {gather, inlined, empty}));
  const std::vector<FakePost>& posts = nic().Dci().posts.at(0);
  EXPECT_EQ(posts[0].flags, static_cast<unsigned int>(IBV_SEND_FENCE | IBV_SEND_SOLICITED));
  EXPECT_EQ(posts[0].sges.size(), 2U);
  EXPECT_EQ(posts[1].flags, static_cast<unsigned int>(IBV_SEND_SIGNALED));
  EXPECT_TRUE(posts[1].is_inline);
  EXPECT_EQ(posts[1].inline_data, "ab");
  EXPECT_TRUE(posts[2].sges.empty() && !posts[2].is_inline);
}

TEST_F(Mlx5Initiator, MalformedWrsAreRefusedAndThoseBeforeThemPosted) {
  const auto qp = ReadyDci();
  SendWr no_handle = Wr(Opcode::kRead, 2), unaligned = Wr(Opcode::kCompareSwap, 2),
         inline_read = Wr(Opcode::kRead, 2, kInline), receive = Wr(Opcode::kRecv, 2), many = Wr(Opcode::kRead, 2);
  no_handle.ah = nullptr;
  unaligned.remote_addr += 4;
  many.num_sge = static_cast<uint8_t>(device_->caps().max_sge + 1);
  uint64_t posted = 0;
  for (const SendWr& bad : {no_handle, unaligned, inline_read, receive, many}) {
    size_t index = 99;
    EXPECT_EQ(Post(*qp, {Wr(Opcode::kRead, 1), bad, Wr(Opcode::kRead, 3)}, &index), StatusCode::kInvalidArgument);
    EXPECT_EQ(index, 1U);
    EXPECT_EQ(nic().Dci().outstanding.size(), ++posted);
  }
}

TEST_F(Mlx5Initiator, ManyWrsShareDoorbellsAndTheQueuesDepthIsKept) {
  const auto qp = ReadyDci(40);
  std::vector<SendWr> wrs(50, Wr(Opcode::kRead, 0, 0));
  for (size_t i = 0; i < wrs.size(); ++i) wrs[i].wr_id = i;
  wrs[39].flags = kSignaled;
  size_t bad = 0;
  EXPECT_EQ(Post(*qp, wrs, &bad), StatusCode::kQueueFull);
  EXPECT_EQ(bad, 40U);
  EXPECT_EQ(nic().Dci().posts.size(), 2U);  // of at most 32
  for (int i = 0; i < 40; ++i) nic().Succeed(nic().Dci());
  EXPECT_THAT(Ids(Poll(*cq_)), ElementsAre(39));
  wrs.resize(40);
  KRCORE_EXPECT_OK(Post(*qp, wrs));  // all places are free after the one that was signaled
}

TEST_F(Mlx5Initiator, ADoorbellThatTheDeviceRefusesPostsNoneOfItsWrs) {
  const auto qp = ReadyDci();
  KRCORE_EXPECT_OK(Post(*qp, {Wr(Opcode::kRead, 1)}));
  nic().fail_named = {{"wr_complete", ENOMEM}};
  size_t bad = 99;
  const Status refused = Post(*qp, {Wr(Opcode::kRead, 2), Wr(Opcode::kRead, 3)}, &bad);
  EXPECT_EQ(refused, StatusCode::kOutOfMemory);
  EXPECT_EQ(bad, 0U);
  nic().fail_named.clear();
  KRCORE_EXPECT_OK(Post(*qp, {Wr(Opcode::kRead, 4)}));
  for (int i = 0; i < 2; ++i) nic().Succeed(nic().Dci());
  EXPECT_THAT(Ids(Poll(*cq_)), ElementsAre(1, 4));
}

TEST_F(Mlx5Initiator, CompletionsComeInPostingOrderWithOpcodeAndQueue) {
  const auto qp = ReadyDci();
  KRCORE_EXPECT_OK(Post(*qp, {Wr(Opcode::kWrite, 1, 0), Wr(Opcode::kCompareSwap, 2), Wr(Opcode::kSend, 3)}));
  for (int i = 0; i < 3; ++i) nic().Succeed(nic().Dci());
  const auto got = Poll(*cq_);
  ASSERT_THAT(Ids(got), ElementsAre(2, 3));
  EXPECT_EQ(got[0].opcode, Opcode::kCompareSwap);
  EXPECT_EQ(got[1].opcode, Opcode::kSend);
  EXPECT_EQ(got[0].qp_num, qp->num());
}

TEST_F(Mlx5Initiator, AFailedWrCompletesThoughUnsignaledBreaksTheQueueAndFlushesTheRest) {
  const struct {
    ibv_wc_status nic;
    WcStatus ours;
  } kinds[] = {{IBV_WC_RETRY_EXC_ERR, WcStatus::kRetryExceeded},
               {IBV_WC_REM_ACCESS_ERR, WcStatus::kRemoteAccessError},
               {IBV_WC_RNR_RETRY_EXC_ERR, WcStatus::kRnrRetryExceeded},
               {IBV_WC_LOC_PROT_ERR, WcStatus::kLocalProtectionError},
               {IBV_WC_REM_INV_REQ_ERR, WcStatus::kRemoteInvalidRequest}};
  for (const auto& kind : kinds) {
    const auto qp = ReadyDci();
    KRCORE_EXPECT_OK(Post(*qp, {Wr(Opcode::kRead, 1), Wr(Opcode::kWrite, 2, 0), Wr(Opcode::kWrite, 3, 0)}));
    nic().Succeed(nic().Dci());
    nic().Fail(nic().Dci(), kind.nic);
    KRCORE_EXPECT_OK(Post(*qp, {Wr(Opcode::kRead, 4)}));
    const auto got = Poll(*cq_);
    ASSERT_THAT(Ids(got), ElementsAre(1, 2, 3, 4));
    EXPECT_EQ(got[0].status, WcStatus::kSuccess);
    EXPECT_EQ(got[1].status, kind.ours);
    EXPECT_EQ(got[2].status, WcStatus::kFlushed);
    EXPECT_EQ(got[3].status, WcStatus::kFlushed);
    EXPECT_EQ(qp->state(), QpState::kErr);
  }
}

TEST_F(Mlx5Initiator, AfterAResetTheOldLifesCompletionsAreDroppedAndTheQueueWorksAgain) {
  const auto qp = ReadyDci(4), bystander = ReadyDci(4);
  FakeQp& dci = *nic().qps.begin()->second;
  Qp& first = dci.ex.qp_base.qp_num == qp->num() ? *qp : *bystander;
  KRCORE_EXPECT_OK(Post(first, {Wr(Opcode::kRead, 1), Wr(Opcode::kRead, 2), Wr(Opcode::kRead, 3)}));
  nic().Succeed(dci);
  nic().Fail(dci, IBV_WC_RETRY_EXC_ERR);
  KRCORE_EXPECT_OK(first.ToReset());
  EXPECT_EQ(first.state(), QpState::kReset);
  EXPECT_TRUE(Poll(*cq_).empty());
  KRCORE_EXPECT_OK(first.ToInit(0, 0));
  KRCORE_EXPECT_OK(first.ToRtr({}));
  KRCORE_EXPECT_OK(first.ToRts());
  std::vector<uint32_t> starts;  // of sequence numbers
  for (const FakeModify& modify : dci.modifies)
    if (modify.to == IBV_QPS_RTS) starts.push_back(modify.attr.sq_psn);
  ASSERT_EQ(starts.size(), 2U);
  EXPECT_NE(starts[0], starts[1]);
  EXPECT_LE(starts[1], 0xff'ffffU);
  const std::vector<SendWr> four(4, Wr(Opcode::kRead, 5));
  KRCORE_EXPECT_OK(Post(first, four));  // there is room for all again
  // A completion that the device had not written yet when the queue was reset.
  ibv_wc late{};
  late.wr_id = dci.posts.front().front().wr_id;
  late.status = IBV_WC_WR_FLUSH_ERR;
  nic().cqs.at(dci.init.send_cq)->completions.push_back(late);
  nic().Succeed(dci);
  EXPECT_THAT(Ids(Poll(*cq_)), ElementsAre(5));
  EXPECT_EQ(first.state(), QpState::kRts);
}

TEST_F(Mlx5Initiator, WhatIsDroppedByAResetTakesNoRoomInTheCq) {
  const auto small = device_->CreateCq(2).value();
  const auto qp = pd_->CreateQp({.type = QpType::kDci, .send_cq = small.get(), .sq_depth = 2}).value();
  for (int life = 0; life < 2; ++life) {
    KRCORE_EXPECT_OK(qp->ToInit(0, 0));
    KRCORE_EXPECT_OK(qp->ToRtr({}));
    KRCORE_EXPECT_OK(qp->ToRts());
    KRCORE_EXPECT_OK(Post(*qp, {Wr(Opcode::kRead, 1), Wr(Opcode::kRead, 2)}));
    KRCORE_EXPECT_OK(qp->ToReset());
  }
  EXPECT_FALSE(small->overrun());
}

TEST_F(Mlx5Initiator, IsResetBeforeItIsDestroyedWhileWrsAreUnderWay) {
  auto qp = ReadyDci();
  KRCORE_EXPECT_OK(Post(*qp, {Wr(Opcode::kWrite, 1)}));
  nic().calls.clear();
  qp.reset();
  EXPECT_THAT(nic().calls, ElementsAre("ibv_modify_qp(DCI RESET)", "ibv_destroy_qp(DCI)"));
  EXPECT_TRUE(Poll(*cq_).empty());
}

TEST_F(Mlx5Initiator, ItsStateIsAskedForWhenTheDeviceReportsAnEvent) {
  const auto qp = ReadyDci();
  nic().Break(nic().Dci());
  const Deadline deadline = Deadline::After(*RealClock(), 60'000'000'000);
  for (uint32_t spins = 0; qp->state() != QpState::kErr && !deadline.Passed(*RealClock()); ++spins)
    RealClock()->Relax(spins);
  EXPECT_EQ(qp->state(), QpState::kErr);
}

TEST_F(Mlx5Initiator, AnAddressHandleIsMadeOnceForEachPeerAndPd) {
  const size_t before = nic().ahs.size();
  const auto again = device_->CreateAddressHandle(PeerOf(*device_, 7)).value();
  EXPECT_EQ(nic().ahs.size(), before);
  const auto other_pd = device_->CreatePd().value();
  auto qp =
      other_pd->CreateQp({.type = QpType::kDci, .send_cq = cq_.get(), .recv_cq = cq_.get(), .sq_depth = 4}).value();
  KRCORE_EXPECT_OK(qp->ToInit(0, 0));
  KRCORE_EXPECT_OK(qp->ToRtr({}));
  KRCORE_EXPECT_OK(qp->ToRts());
  // The PD is younger than the handle. Its address handle is made with the first WR, which fails if that fails.
  nic().fail_named = {{"ibv_create_ah", ENETUNREACH}};
  size_t bad = 99;
  EXPECT_FALSE(Post(*qp, {Wr(Opcode::kRead, 1)}, &bad).ok());
  EXPECT_EQ(bad, 0U);
  nic().fail_named.clear();
  KRCORE_EXPECT_OK(Post(*qp, {Wr(Opcode::kRead, 1), Wr(Opcode::kRead, 2)}));
  EXPECT_EQ(nic().ahs.size(), before + 1);
}

TEST_F(Mlx5Initiator, ItsCqHasRoomForAllOfItsWrsAndHasItBackWhenItGoes) {
  const auto small = device_->CreateCq(1).value();
  const auto qp =
      pd_->CreateQp({.type = QpType::kDci, .send_cq = small.get(), .recv_cq = small.get(), .sq_depth = 8}).value();
  EXPECT_GE(nic().Dci().init.send_cq->cqe, 8);
  MakeDci(1000).reset();
  const int room = RoomOfCqs();
  MakeDci(1000).reset();
  EXPECT_EQ(RoomOfCqs(), room);
}

}  // namespace
}  // namespace krcore::rnic::verbs::testing
