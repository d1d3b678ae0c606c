// SEND, immediates and datagrams.
#include <array>

#include "tests/rnic/harness.h"

namespace krcore::rnic::testing {
namespace {

class Messages : public TransportTest {};
INSTANTIATE_TRANSPORT_TESTS(Messages);

TEST_P(Messages, SendLandsInTheNextReceive) {
  const Sge first = b_->Local(0, 64), second = b_->Local(64, 64);
  KRCORE_EXPECT_OK(link_->PostRecv(&first, 11));
  KRCORE_EXPECT_OK(link_->PostRecv(&second, 12));
  std::strcpy(a_->Text(), "message");
  const Sge sge = a_->Local(0, 8);
  EXPECT_EQ(link_->Run(link_->Wr(Opcode::kSend, &sge, 0)).status, WcStatus::kSuccess);
  SendWr with_imm = link_->Wr(Opcode::kSendImm, &sge, 0);
  with_imm.imm = 0xabcd;
  EXPECT_EQ(link_->Run(with_imm).status, WcStatus::kSuccess);
  Completion got = b_->Next();
  EXPECT_EQ(got.wr_id, 11U);
  EXPECT_EQ(got.status, WcStatus::kSuccess);
  EXPECT_EQ(got.opcode, Opcode::kRecv);
  EXPECT_EQ(got.byte_len, 8U);
  EXPECT_EQ(got.flags & kWithImm, 0);
  EXPECT_EQ(got.qp_num, transport() == Transport::kRc ? link_->remote_qp->num() : link_->dct->num());
  EXPECT_STREQ(b_->Text(0), "message");
  got = b_->Next();
  EXPECT_EQ(got.wr_id, 12U);
  EXPECT_EQ(got.flags & kWithImm, kWithImm);
  EXPECT_EQ(got.imm, 0xabcdU);
  EXPECT_STREQ(b_->Text(64), "message");
}

TEST_P(Messages, WriteWithImmediateWritesRemoteMemoryAndConsumesAReceive) {
  KRCORE_EXPECT_OK(link_->PostRecv(nullptr, 5));
  std::strcpy(a_->Text(), "written");
  const Sge sge = a_->Local(0, 8);
  SendWr wr = link_->Wr(Opcode::kWriteImm, &sge, 512);
  wr.imm = 99;
  EXPECT_EQ(link_->Run(wr).status, WcStatus::kSuccess);
  const Completion got = b_->Next();
  EXPECT_EQ(got.wr_id, 5U);
  EXPECT_EQ(got.opcode, Opcode::kRecvWithImm);
  EXPECT_EQ(got.imm, 99U);
  EXPECT_EQ(got.byte_len, 8U);
  EXPECT_STREQ(b_->Text(512), "written");
}

TEST_P(Messages, GatherScatterInlineAndEmptyMessages) {
  std::strcpy(a_->Text(), "abcdef");
  const std::array<Sge, 2> out{a_->Local(0, 2), a_->Local(4, 2)};
  const std::array<Sge, 2> in{b_->Local(0, 1), b_->Local(100, 10)};
  const std::array<RecvWr, 2> recvs{RecvWr{1, in.data(), 2}, RecvWr{2, nullptr, 0}};
  if (transport() == Transport::kRc) {
    KRCORE_EXPECT_OK(link_->remote_qp->PostRecv(recvs, nullptr));
  } else {
    KRCORE_EXPECT_OK(link_->dct->PostRecv(recvs, nullptr));
  }
  SendWr wr = link_->Wr(Opcode::kSend, out.data(), 0);
  wr.num_sge = 2;
  wr.flags = kSignaled | kInline;
  EXPECT_EQ(link_->Run(wr).status, WcStatus::kSuccess);
  EXPECT_EQ(link_->Run(link_->Wr(Opcode::kSend, nullptr, 0)).status, WcStatus::kSuccess);
  EXPECT_EQ(b_->Next().byte_len, 4U);
  EXPECT_EQ(b_->Next().byte_len, 0U);
  EXPECT_EQ(b_->Text(0)[0], 'a');
  EXPECT_STREQ(b_->Text(100), "bef");
}

TEST_P(Messages, WithoutAReceiveTheSenderGetsRnr) {
  const Sge sge = a_->Local(0, 8);
  EXPECT_EQ(link_->Run(link_->Wr(Opcode::kSend, &sge, 0)).status, WcStatus::kRnrRetryExceeded);
  EXPECT_EQ(link_->qp->state(), QpState::kErr);
}

TEST_P(Messages, LongerThanTheReceiveFailsAtBothEnds) {
  const Sge small = b_->Local(0, 4);
  KRCORE_EXPECT_OK(link_->PostRecv(&small, 3));
  std::strcpy(a_->Text(), "too long");
  const Sge sge = a_->Local(0, 8);
  ExpectStatus(*a_->device, link_->Run(link_->Wr(Opcode::kSend, &sge, 0)).status, WcStatus::kRemoteInvalidRequest,
               WcStatus::kRemoteOperationError);
  ExpectStatus(*b_->device, b_->Next().status, WcStatus::kLocalLengthError, WcStatus::kLocalQpError);
  EXPECT_EQ(b_->Text()[0], 0);
  if (transport() == Transport::kRc) {
    EXPECT_EQ(link_->remote_qp->state(), QpState::kErr);
  }
}

TEST_P(Messages, ReceiveQueueRunsRoundManyTimes) {
  const Sge in = b_->Local(0, 8), out = a_->Local(0, 8);
  for (uint64_t round = 0; round < 100; ++round) {
    for (uint64_t i = 0; i < 8; ++i) KRCORE_EXPECT_OK(link_->PostRecv(&in, i));
    EXPECT_EQ(link_->PostRecv(&in, 9).code(), StatusCode::kQueueFull);
    for (uint64_t i = 0; i < 8; ++i) {
      a_->Word() = round * 8 + i;
      ASSERT_EQ(link_->Run(link_->Wr(Opcode::kSend, &out, 0)).status, WcStatus::kSuccess);
      ASSERT_EQ(b_->Next().wr_id, i);
      ASSERT_EQ(b_->Word(), round * 8 + i);
    }
  }
}

TEST_P(Messages, BreakingTheReceiverDeliversWhatArrivedAndFlushesTheRest) {
  if (transport() == Transport::kDc) GTEST_SKIP() << "a DC target has no state to break";
  const Sge in = b_->Local(0, 8), out = a_->Local(0, 8);
  for (uint64_t i = 0; i < 3; ++i) KRCORE_EXPECT_OK(link_->PostRecv(&in, i));
  EXPECT_EQ(link_->Run(link_->Wr(Opcode::kSend, &out, 0)).status, WcStatus::kSuccess);
  KRCORE_EXPECT_OK(link_->remote_qp->ToErr());
  EXPECT_EQ(b_->Next().status, WcStatus::kSuccess);
  EXPECT_EQ(b_->Next().status, WcStatus::kFlushed);
  EXPECT_EQ(b_->Next().status, WcStatus::kFlushed);
  EXPECT_EQ(link_->Run(link_->Wr(Opcode::kSend, &out, 0)).status, WcStatus::kRetryExceeded);
}

TEST_P(Messages, ReceiveIntoForeignMemoryFailsAtBothEnds) {
  Sge in = b_->Local(0, 8);
  in.lkey ^= 0x10000;
  KRCORE_EXPECT_OK(link_->PostRecv(&in, 1));
  const Sge out = a_->Local(0, 8);
  EXPECT_EQ(link_->Run(link_->Wr(Opcode::kSend, &out, 0)).status, WcStatus::kRemoteOperationError);
  ExpectStatus(*b_->device, b_->Next().status, WcStatus::kLocalProtectionError, WcStatus::kLocalQpError);
}

class Datagrams : public RnicTest {
 protected:
  Datagrams()
      : address_(a_->device->CreateAddressHandle(b_->device->address()).value()),
        from_(a_->MakeReadyUd(kQkey)),
        to_(b_->MakeReadyUd(kQkey)) {}
  SendWr Wr(const Sge* sge) const {
    SendWr wr;
    wr.opcode = Opcode::kSend;
    wr.sg_list = sge;
    wr.num_sge = 1;
    wr.ah = address_.get();
    wr.remote_qpn = to_->num();
    wr.qkey = kQkey;
    return wr;
  }
  void SendExpectingSilence(const SendWr& wr) {
    KRCORE_EXPECT_OK(from_->PostSend({&wr, 1}, nullptr));
    EXPECT_EQ(a_->Next().status, WcStatus::kSuccess);
    EXPECT_TRUE(b_->Idle());
    EXPECT_EQ(to_->state(), QpState::kRts);
  }
  std::unique_ptr<AddressHandle> address_;
  std::unique_ptr<Qp> from_, to_;
};
INSTANTIATE_RNIC_TESTS(Datagrams);

TEST_P(Datagrams, ArriveBehindAGrhAndNameTheirSender) {
  const Sge in = b_->Local(0, 104), out = a_->Local(0, 64);
  const RecvWr recv{8, &in, 1};
  KRCORE_EXPECT_OK(to_->PostRecv({&recv, 1}, nullptr));
  std::strcpy(a_->Text(), "datagram");
  SendWr wr = Wr(&out);
  wr.opcode = Opcode::kSendImm;
  wr.imm = 4;
  KRCORE_EXPECT_OK(from_->PostSend({&wr, 1}, nullptr));
  EXPECT_EQ(a_->Next().status, WcStatus::kSuccess);
  const Completion got = b_->Next();
  EXPECT_EQ(got.status, WcStatus::kSuccess);
  EXPECT_EQ(got.byte_len, 104U);
  EXPECT_EQ(got.src_qp, from_->num());
  EXPECT_EQ(got.src_node, IsNic(*b_->device) ? kNoNode : a_->device->address().node);
  EXPECT_EQ(got.flags, kWithImm | kWithGrh);
  EXPECT_EQ(got.imm, 4U);
  EXPECT_STREQ(b_->Text(40), "datagram");
}

TEST_P(Datagrams, WithoutReceiveWrongQkeyOrUnknownQpAreDroppedSilently) {
  const Sge in = b_->Local(0, 104), out = a_->Local(0, 64);
  SendExpectingSilence(Wr(&out));
  const RecvWr recv{8, &in, 1};
  KRCORE_EXPECT_OK(to_->PostRecv({&recv, 1}, nullptr));
  SendWr wr = Wr(&out);
  wr.qkey ^= 1;
  SendExpectingSilence(wr);
  wr = Wr(&out);
  wr.remote_qpn ^= 1;
  SendExpectingSilence(wr);
  const Sge longer = a_->Local(0, 65);
  // A NIC may complete the receive with an error, and break the queue.
  if (!IsNic(*b_->device)) SendExpectingSilence(Wr(&longer));
  // The receive is still there for one that fits.
  wr = Wr(&out);
  KRCORE_EXPECT_OK(from_->PostSend({&wr, 1}, nullptr));
  EXPECT_EQ(b_->Next().wr_id, 8U);
}

TEST_P(Datagrams, LongerThanTheMtuIsALocalLengthError) {
  const Sge out = a_->Local(0, a_->device->caps().ud_mtu_bytes + 1);
  const SendWr wr = Wr(&out);
  KRCORE_EXPECT_OK(from_->PostSend({&wr, 1}, nullptr));
  EXPECT_EQ(a_->Next().status, WcStatus::kLocalLengthError);
}

TEST_P(Datagrams, OneSidedOpcodesAreRefusedAtPost) {
  const Sge out = a_->Local(0, 8);
  for (const Opcode opcode :
       {Opcode::kRead, Opcode::kWrite, Opcode::kWriteImm, Opcode::kCompareSwap, Opcode::kFetchAdd}) {
    SendWr wr = Wr(&out);
    wr.opcode = opcode;
    EXPECT_EQ(from_->PostSend({&wr, 1}, nullptr).code(), StatusCode::kInvalidArgument);
  }
}

}  // namespace
}  // namespace krcore::rnic::testing
