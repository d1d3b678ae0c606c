// State machine, and accounting of the send queue and completion queue.
#include "tests/rnic/harness.h"

namespace krcore::rnic::testing {
namespace {

class QpStates : public RnicTest {};
INSTANTIATE_RNIC_TESTS(QpStates);

TEST_P(QpStates, FollowTheVerbsOrderAndRefuseAnyOther) {
  auto qp = a_->MakeQp({.type = QpType::kUd});
  EXPECT_EQ(qp->state(), QpState::kReset);
  EXPECT_EQ(qp->ToRtr({}).code(), StatusCode::kBadState);
  EXPECT_EQ(qp->ToRts().code(), StatusCode::kBadState);
  KRCORE_EXPECT_OK(qp->ToInit(0, kQkey));
  EXPECT_EQ(qp->ToInit(0, kQkey).code(), StatusCode::kBadState);
  EXPECT_EQ(qp->ToRts().code(), StatusCode::kBadState);
  EXPECT_EQ(qp->state(), QpState::kInit);
  KRCORE_EXPECT_OK(qp->ToRtr({}));
  EXPECT_EQ(qp->ToRtr({}).code(), StatusCode::kBadState);
  KRCORE_EXPECT_OK(qp->ToRts());
  KRCORE_EXPECT_OK(qp->ToErr());
  EXPECT_EQ(qp->ToRts().code(), StatusCode::kBadState);
  KRCORE_EXPECT_OK(qp->ToReset());
  KRCORE_EXPECT_OK(qp->ToInit(0, kQkey));
}

TEST_P(QpStates, PostsAreLegalOnlyInTheirStates) {
  auto qp = a_->MakeQp({.type = QpType::kUd, .rq_depth = 4});
  auto address = a_->device->CreateAddressHandle(b_->device->address()).value();
  const Sge sge = a_->Local(0, 8);
  const RecvWr recv{1, &sge, 1};
  SendWr send;
  send.opcode = Opcode::kSend;
  send.ah = address.get();
  EXPECT_EQ(qp->PostRecv({&recv, 1}, nullptr).code(), StatusCode::kBadState);
  EXPECT_EQ(qp->PostSend({&send, 1}, nullptr).code(), StatusCode::kBadState);
  KRCORE_EXPECT_OK(qp->ToInit(0, kQkey));
  KRCORE_EXPECT_OK(qp->PostRecv({&recv, 1}, nullptr));
  EXPECT_EQ(qp->PostSend({&send, 1}, nullptr).code(), StatusCode::kBadState);
  KRCORE_EXPECT_OK(qp->ToRtr({}));
  EXPECT_EQ(qp->PostSend({&send, 1}, nullptr).code(), StatusCode::kBadState);
  KRCORE_EXPECT_OK(qp->ToErr());
  EXPECT_EQ(a_->Next().status, WcStatus::kFlushed);
  KRCORE_EXPECT_OK(qp->PostSend({&send, 1}, nullptr));
  EXPECT_EQ(a_->Next().status, WcStatus::kFlushed);
  KRCORE_EXPECT_OK(qp->PostRecv({&recv, 1}, nullptr));
  EXPECT_EQ(a_->Next().status, WcStatus::kFlushed);
}

TEST_P(QpStates, RcToRtrWithoutSuchAPeerIsNotFound) {
  if (!a_->device->caps().finds_missing_peers) GTEST_SKIP() << "a NIC learns of a missing peer by its silence";
  auto qp = a_->MakeQp({.type = QpType::kRc});
  KRCORE_EXPECT_OK(qp->ToInit(0, 0));
  EXPECT_EQ(qp->ToRtr({.device = b_->device->address(), .qpn = 12345}).code(), StatusCode::kNotFound);
  DeviceAddress nobody = b_->device->address();
  ++nobody.incarnation;
  EXPECT_EQ(qp->ToRtr({.device = nobody, .qpn = 1}).code(), StatusCode::kNotFound);
  EXPECT_EQ(qp->state(), QpState::kInit);
}

TEST_P(QpStates, RcPeerThatIsNotReadyOrNotConnectedToUsIsRetryExceeded) {
  const Sge sge = a_->Local(0, 8);
  SendWr wr;
  wr.sg_list = &sge;
  wr.num_sge = 1;
  wr.remote_addr = b_->Addr();
  wr.rkey = b_->mr->rkey();
  auto remote = b_->MakeQp({.type = QpType::kRc});
  auto first = a_->MakeQp({.type = QpType::kRc}), second = a_->MakeQp({.type = QpType::kRc}),
       third = a_->MakeQp({.type = QpType::kRc});
  ConnectRc(*first, *remote, *b_->device, 0);
  KRCORE_EXPECT_OK(first->PostSend({&wr, 1}, nullptr));
  EXPECT_EQ(a_->Next().status, WcStatus::kRetryExceeded);  // the peer is in RESET
  KRCORE_EXPECT_OK(remote->ToInit(kRemoteRead, 0));
  KRCORE_EXPECT_OK(remote->ToRtr({.device = a_->device->address(), .qpn = third->num()}));
  ConnectRc(*second, *remote, *b_->device, 0);
  KRCORE_EXPECT_OK(second->PostSend({&wr, 1}, nullptr));
  EXPECT_EQ(a_->Next().status, WcStatus::kRetryExceeded);  // connected to another
  ConnectRc(*third, *remote, *b_->device, 0);
  KRCORE_EXPECT_OK(third->PostSend({&wr, 1}, nullptr));
  EXPECT_EQ(a_->Next().status, WcStatus::kSuccess);  // RTR is enough to be a target
}

class Queues : public TransportTest {};
INSTANTIATE_TRANSPORT_TESTS(Queues);

TEST_P(Queues, SendQueueIsFullUntilACompletionIsPolled) {
  Link link(a_.get(), b_.get(), transport(), 4);
  const Sge sge = a_->Local(0, 8);
  const std::vector<SendWr> wrs(5, link.Wr(Opcode::kRead, &sge, 0));
  size_t bad = 99;
  EXPECT_EQ(link.qp->PostSend(wrs, &bad).code(), StatusCode::kQueueFull);
  EXPECT_EQ(bad, 4U);
  EXPECT_EQ(link.Post(wrs[0]).code(), StatusCode::kQueueFull);
  EXPECT_EQ(a_->Next().status, WcStatus::kSuccess);
  KRCORE_EXPECT_OK(link.Post(wrs[0]));
  EXPECT_EQ(link.Post(wrs[0]).code(), StatusCode::kQueueFull);
}

TEST_P(Queues, UnsignaledRequestsFreeTheirSlotsWithTheNextSignaledOne) {
  Link link(a_.get(), b_.get(), transport(), 4);
  const Sge sge = a_->Local(0, 8);
  SendWr silent = link.Wr(Opcode::kRead, &sge, 0, 1), loud = link.Wr(Opcode::kRead, &sge, 0, 2);
  silent.flags = 0;
  for (int i = 0; i < 3; ++i) KRCORE_EXPECT_OK(link.Post(silent));
  EXPECT_TRUE(a_->Idle());
  KRCORE_EXPECT_OK(link.Post(loud));
  EXPECT_EQ(link.Post(loud).code(), StatusCode::kQueueFull);
  EXPECT_EQ(a_->Next().wr_id, 2U);
  EXPECT_TRUE(a_->Idle());
  for (int i = 0; i < 4; ++i) KRCORE_EXPECT_OK(link.Post(silent));
  EXPECT_EQ(link.Post(silent).code(), StatusCode::kQueueFull);
}

TEST_P(Queues, CompletionQueueOverrunIsReportedAndSticky) {
  auto small = a_->device->CreateCq(2).value();
  QpAttr attr{.type = transport() == Transport::kRc ? QpType::kRc : QpType::kDci,
              .send_cq = small.get(),
              .recv_cq = small.get()};
  link_->qp = a_->pd->CreateQp(attr).value();
  if (transport() == Transport::kRc) {
    link_->remote_qp = b_->MakeQp({.type = QpType::kRc});
    ConnectRc(*link_->qp, *link_->remote_qp, *b_->device, 0);
    ConnectRc(*link_->remote_qp, *link_->qp, *a_->device, kRemoteRead);
  } else {
    ConnectRc(*link_->qp, *link_->qp, *b_->device, 0);
  }
  const Sge sge = a_->Local(0, 8);
  const SendWr wr = link_->Wr(Opcode::kRead, &sge, 0);
  KRCORE_EXPECT_OK(link_->Post(wr));
  KRCORE_EXPECT_OK(link_->Post(wr));
  a_->Settle();
  EXPECT_FALSE(small->overrun());
  KRCORE_EXPECT_OK(link_->Post(wr));
  a_->Settle();
  EXPECT_TRUE(small->overrun());
  Completion done[4];
  size_t got = 0;
  for (int tries = 0; got < 2 && tries < 1000; ++tries) {  // software that is driven by polls may need some
    got += small->Poll(std::span(done).subspan(got));
    a_->Settle();
  }
  EXPECT_EQ(got, 2U);
  EXPECT_EQ(small->Poll(done), 0U);
  EXPECT_TRUE(small->overrun());
  link_->qp.reset();
}

TEST_P(Queues, DestroyedQpLeavesNoCompletionBehind) {
  const Sge sge = a_->Local(0, 8);
  KRCORE_EXPECT_OK(link_->Post(link_->Wr(Opcode::kRead, &sge, 0)));
  link_->qp.reset();
  EXPECT_TRUE(a_->Idle());
}

TEST_P(Queues, BadAttributesAreRefusedWithAReason) {
  const Caps& caps = a_->device->caps();
  const auto refused = [&](const QpAttr& attr) {
    auto made = a_->pd->CreateQp(attr);
    EXPECT_EQ(made.status().code(), StatusCode::kInvalidArgument);
    EXPECT_FALSE(made.status().message().empty());
  };
  Cq* cq = a_->cq.get();
  refused({.send_cq = nullptr});
  refused({.send_cq = cq, .sq_depth = 0});
  refused({.send_cq = cq, .sq_depth = caps.max_qp_wr + 1});
  refused({.send_cq = cq, .recv_cq = cq, .rq_depth = caps.max_qp_wr + 1});
  refused({.send_cq = cq, .recv_cq = nullptr, .rq_depth = 1});
  EXPECT_EQ(a_->device->CreateCq(0).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(a_->device->CreateCq(caps.max_cqe + 1).status().code(), StatusCode::kInvalidArgument);
}

class Records : public RnicTest {};
INSTANTIATE_RNIC_TESTS(Records);

TEST_P(Records, AreReadByEveryDeviceReplacedByTheirOwnerAndGoWithIt) {
  EXPECT_EQ(a_->device->LookupRecord("meta").status().code(), StatusCode::kNotFound);
  KRCORE_EXPECT_OK(b_->device->PublishRecord("meta", Bytes("first")));
  EXPECT_EQ(a_->device->LookupRecord("meta").value(), Bytes("first"));
  KRCORE_EXPECT_OK(b_->device->PublishRecord("meta", Bytes("")));
  EXPECT_EQ(a_->device->LookupRecord("meta").value(), Bytes(""));
  EXPECT_EQ(a_->device->PublishRecord("meta", Bytes("mine")).code(), StatusCode::kExists);
  b_.reset();
  EXPECT_EQ(a_->device->LookupRecord("meta").status().code(), StatusCode::kNotFound);
  KRCORE_EXPECT_OK(a_->device->PublishRecord("meta", Bytes("mine")));
}

TEST_P(Records, NamesAndLengthsAreChecked) {
  const std::vector<std::byte> longest(112), longer(113);
  KRCORE_EXPECT_OK(a_->device->PublishRecord("fifteen-letters", longest));
  EXPECT_EQ(a_->device->PublishRecord("sixteen-letters-", longest).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(a_->device->PublishRecord("Upper", longest).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(a_->device->PublishRecord("", longest).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(a_->device->PublishRecord("long", longer).code(), StatusCode::kInvalidArgument);
  for (int i = 0; i < 1000; ++i) KRCORE_EXPECT_OK(a_->device->PublishRecord("again", longest));
}

}  // namespace
}  // namespace krcore::rnic::testing
