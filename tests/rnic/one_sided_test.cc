// READ, WRITE, CAS and FETCH_ADD: what they do, and in which order.
#include <array>

#include "tests/rnic/path.h"

namespace krcore::rnic::testing {
namespace {

class OneSided : public PathTest {};
INSTANTIATE_TEST_SUITE_P(All, OneSided, Paths(), PathName);

TEST_P(OneSided, ReadFetchesTheTargetsBytes) {
  std::strcpy(path_->RemoteText(100), "remote text");
  const Sge sge = path_->Local(0, 12);
  const Completion done = path_->Run(path_->Wr(Opcode::kRead, &sge, 100, 7));
  EXPECT_EQ(done.status, WcStatus::kSuccess);
  EXPECT_EQ(done.wr_id, 7U);
  EXPECT_EQ(done.opcode, Opcode::kRead);
  EXPECT_STREQ(path_->Text(), "remote text");
}

TEST_P(OneSided, WriteOfEveryLengthAndAlignmentChangesExactlyItsBytes) {
  for (uint32_t length = 1; length <= 80; ++length) {
    for (size_t offset = 0; offset < 17; ++offset) {
      std::memset(path_->RemoteText(), '.', 128);
      std::memset(path_->Text(), 'x', 128);
      const Sge sge = path_->Local(offset % 3, length);
      ASSERT_EQ(path_->Run(path_->Wr(Opcode::kWrite, &sge, offset)).status, WcStatus::kSuccess);
      for (size_t i = 0; i < 128; ++i) {
        ASSERT_EQ(path_->RemoteText()[i], i >= offset && i < offset + length ? 'x' : '.')
            << i << " " << offset << " " << length;
      }
      std::memset(path_->Text(), 0, 128);
      const Sge back = path_->Local(5, length);
      ASSERT_EQ(path_->Run(path_->Wr(Opcode::kRead, &back, offset)).status, WcStatus::kSuccess);
      ASSERT_EQ(path_->Text()[4], 0);
      ASSERT_EQ(path_->Text()[5 + length], 0);
      ASSERT_EQ(std::string(path_->Text(5), length), std::string(length, 'x'));
    }
  }
}

TEST_P(OneSided, CompareSwapReturnsTheOldWordAndSwapsOnlyOnMatch) {
  path_->RemoteWord() = 5;
  const Sge sge = path_->Local(8, 8);
  SendWr wr = path_->Wr(Opcode::kCompareSwap, &sge, 0);
  wr.compare_add = 5;
  wr.swap = 9;
  EXPECT_EQ(path_->Run(wr).status, WcStatus::kSuccess);
  EXPECT_EQ(path_->Word(8), 5U);
  EXPECT_EQ(path_->RemoteWord(), 9U);
  wr.swap = 11;
  EXPECT_EQ(path_->Run(wr).status, WcStatus::kSuccess);
  EXPECT_EQ(path_->Word(8), 9U);
  EXPECT_EQ(path_->RemoteWord(), 9U);
}

TEST_P(OneSided, FetchAddReturnsTheOldWordAndWraps) {
  path_->RemoteWord() = ~uint64_t{0};
  const Sge sge = path_->Local(8, 8);
  SendWr wr = path_->Wr(Opcode::kFetchAdd, &sge, 0);
  wr.compare_add = 3;
  EXPECT_EQ(path_->Run(wr).status, WcStatus::kSuccess);
  EXPECT_EQ(path_->Word(8), ~uint64_t{0});
  EXPECT_EQ(path_->RemoteWord(), 2U);
}

TEST_P(OneSided, SeveralSgesGatherAndScatterInOrder) {
  std::strcpy(path_->Text(0), "one");
  std::strcpy(path_->Text(50), "twenty");
  const std::array<Sge, 2> parts{path_->Local(0, 3), path_->Local(50, 7)};
  SendWr write = path_->Wr(Opcode::kWrite, parts.data(), 1);
  write.num_sge = 2;
  EXPECT_EQ(path_->Run(write).status, WcStatus::kSuccess);
  EXPECT_STREQ(path_->RemoteText(1), "onetwenty");
  const std::array<Sge, 3> back{path_->Local(200, 4), path_->Local(300, 1), path_->Local(400, 5)};
  SendWr read = path_->Wr(Opcode::kRead, back.data(), 1);
  read.num_sge = 3;
  EXPECT_EQ(path_->Run(read).status, WcStatus::kSuccess);
  EXPECT_EQ(std::string(path_->Text(200), 4), "onet");
  EXPECT_EQ(path_->Text(300)[0], 'w');
  EXPECT_STREQ(path_->Text(400), "enty");
}

// A NIC accepts what a VirtualQueue refuses as a mistake.
TEST_P(OneSided, EmptySgesAreSkippedOrRefused) {
  std::strcpy(path_->RemoteText(), "text");
  const std::array<Sge, 3> parts{path_->Local(0, 2), path_->Local(10, 0), path_->Local(20, 3)};
  SendWr read = path_->Wr(Opcode::kRead, parts.data(), 0);
  read.num_sge = 3;
  if (IsVirtual()) {
    EXPECT_EQ(path_->Post(read).code(), StatusCode::kInvalidArgument);
    return;
  }
  EXPECT_EQ(path_->Run(read).status, WcStatus::kSuccess);
  EXPECT_EQ(std::string(path_->Text(), 2), "te");
  EXPECT_STREQ(path_->Text(20), "xt");
}

TEST_P(OneSided, InlineWriteNeedsNoKeyAndItsBufferIsFreeOnReturn) {
  char text[16] = "inline";
  const Sge sge{reinterpret_cast<uint64_t>(text), 7, 0};
  SendWr wr = path_->Wr(Opcode::kWrite, &sge, 0);
  wr.flags = kSignaled | kInline;
  KRCORE_EXPECT_OK(path_->Post(wr));
  std::memset(text, 'z', sizeof(text));
  EXPECT_EQ(path_->Next().status, WcStatus::kSuccess);
  EXPECT_STREQ(path_->RemoteText(), "inline");
}

TEST_P(OneSided, FenceIsAccepted) {
  const Sge sge = path_->Local(0, 8);
  SendWr wr = path_->Wr(Opcode::kWrite, &sge, 0);
  wr.flags = kSignaled | kFence;
  EXPECT_EQ(path_->Run(wr).status, WcStatus::kSuccess);
}

TEST_P(OneSided, ZeroLengthNeedsNoRemoteKeyOrIsRefused) {
  SendWr wr = path_->Wr(Opcode::kWrite, nullptr, 0);
  wr.rkey = 0xdead;
  if (IsVirtual()) {
    EXPECT_EQ(path_->Post(wr).code(), StatusCode::kInvalidArgument);
    return;
  }
  EXPECT_EQ(path_->Run(wr).status, WcStatus::kSuccess);
}

// One doorbell: each WR must see what those before it did.
TEST_P(OneSided, WorkRequestsOfOneBatchExecuteInOrder) {
  path_->RemoteWord(0) = 1;
  path_->Word(0) = 77;
  const Sge cas_result = path_->Local(8, 8), read_cas = path_->Local(16, 8), source = path_->Local(0, 8),
            read_write = path_->Local(24, 8);
  SendWr wrs[] = {path_->Wr(Opcode::kCompareSwap, &cas_result, 0, 1), path_->Wr(Opcode::kRead, &read_cas, 0, 2),
                  path_->Wr(Opcode::kWrite, &source, 0, 3), path_->Wr(Opcode::kRead, &read_write, 0, 4)};
  wrs[0].compare_add = 1;
  wrs[0].swap = 42;
  wrs[2].flags |= kFence;  // otherwise it may overtake the READ before it
  KRCORE_EXPECT_OK(path_->Post(wrs, nullptr));
  for (uint64_t id = 1; id <= 4; ++id) {
    const Completion done = path_->Next();
    EXPECT_EQ(done.wr_id, id);
    EXPECT_EQ(done.status, WcStatus::kSuccess);
  }
  EXPECT_EQ(path_->Word(8), 1U);
  EXPECT_EQ(path_->Word(16), 42U);
  EXPECT_EQ(path_->Word(24), 77U);
}

TEST_P(OneSided, LargeTransfersArriveWhole) {
  const uint32_t half = static_cast<uint32_t>(path_->local().size() / 2);
  for (uint32_t i = 0; i < half; ++i) path_->Text()[i] = static_cast<char>(i * 7);
  const Sge out = path_->Local(0, half - 3), in = path_->Local(half, half - 3);
  EXPECT_EQ(path_->Run(path_->Wr(Opcode::kWrite, &out, 3)).status, WcStatus::kSuccess);
  EXPECT_EQ(path_->Run(path_->Wr(Opcode::kRead, &in, 3)).status, WcStatus::kSuccess);
  EXPECT_EQ(std::memcmp(path_->Text(0), path_->Text(half), half - 3), 0);
}

TEST_P(OneSided, BatchesLongerThanAnyInternalBatchKeepTheirOrder) {
  const auto path = MakePath(200);
  const Sge sge = path->Local(0, 8);
  std::vector<SendWr> wrs;
  for (uint64_t i = 0; i < 200; ++i) {
    wrs.push_back(path->Wr(Opcode::kFetchAdd, &sge, 0, i));
    wrs.back().compare_add = 1;
  }
  KRCORE_EXPECT_OK(path->Post(wrs, nullptr));
  for (uint64_t i = 0; i < 200; ++i) ASSERT_EQ(path->Next().wr_id, i);
  EXPECT_EQ(path->RemoteWord(), 200U);
}

class DcInitiator : public RnicTest {};
INSTANTIATE_RNIC_TESTS(DcInitiator);

TEST_P(DcInitiator, ReachesManyTargetsFromOneQp) {
  if (!a_->device->caps().dc) GTEST_SKIP() << "the provider has no DC transport";
  auto c = Open(3, false);
  Link to_b(a_.get(), b_.get(), Transport::kDc), to_c(a_.get(), c.get(), Transport::kDc);
  b_->Word() = 22;
  c->Word() = 33;
  const Sge first = a_->Local(0, 8), second = a_->Local(8, 8);
  const SendWr wrs[] = {to_b.Wr(Opcode::kRead, &first, 0), to_c.Wr(Opcode::kRead, &second, 0)};
  KRCORE_EXPECT_OK(to_b.qp->PostSend(wrs, nullptr));
  EXPECT_EQ(a_->Next().status, WcStatus::kSuccess);
  EXPECT_EQ(a_->Next().status, WcStatus::kSuccess);
  EXPECT_EQ(a_->Word(0), 22U);
  EXPECT_EQ(a_->Word(8), 33U);
}

TEST_P(DcInitiator, OneDeviceMayBeItsOwnTarget) {
  if (!a_->device->caps().dc) GTEST_SKIP() << "the provider has no DC transport";
  Link self(a_.get(), a_.get(), Transport::kDc);
  a_->Word(64) = 5;
  const Sge sge = a_->Local(0, 8);
  EXPECT_EQ(self.Run(self.Wr(Opcode::kRead, &sge, 64)).status, WcStatus::kSuccess);
  EXPECT_EQ(a_->Word(0), 5U);
}

}  // namespace
}  // namespace krcore::rnic::testing
