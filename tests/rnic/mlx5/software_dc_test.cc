// Parts of the software DC's target that need no network: the queue of its atomics, and the address handles of its
// answers.
#include <algorithm>
#include <cerrno>
#include <cstring>

#include "krcore/rnic/verbs/software_dct.h"
#include "krcore/rnic/verbs/ud_port.h"
#include "tests/rnic/mlx5/fixture.h"
#include "tests/support/fake_clock.h"

namespace krcore::rnic::verbs::testing {
namespace {

using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr uint32_t kDepth = 4;

class SoftwareDcParts : public ::testing::Test {
 protected:
  SoftwareDcParts() {
    FakeNic::Reset();
    nic().has_plain = true;
    KRCORE_EXPECT_OK(LoadLibibverbs());
    context_ = Context::Open({}, 0).value();
    pd_ = ibv_alloc_pd(context_->get());
    cq_ = ibv_create_cq(context_->get(), kDepth, nullptr, nullptr, 0);
  }
  ~SoftwareDcParts() override {
    ibv_destroy_cq(cq_);
    ibv_dealloc_pd(pd_);
    context_.reset();
    EXPECT_TRUE(nic().Empty());
    EXPECT_THAT(nic().misuses, IsEmpty());
  }
  static FakeNic& nic() { return FakeNic::Get(); }
  ibv_wc Polled() {
    ibv_wc wc{};
    EXPECT_EQ(ibv_poll_cq(cq_, 1, &wc), 1);
    return wc;
  }

  std::unique_ptr<Context> context_;
  ibv_pd* pd_ = nullptr;
  ibv_cq* cq_ = nullptr;
};

class AtomicsQueue : public SoftwareDcParts {
 protected:
  ~AtomicsQueue() override { atomics_.reset(); }
  // The request's token tells it from others.
  bool Post(uint32_t number) {
    sdc_atomic_request request{};
    request.opcode = SDC_OP_FETCH_ADD;
    std::memcpy(&request.token, &number, sizeof(number));
    return atomics_->Post(request);
  }
  static uint32_t NumberOf(const Atomics::Result& result) {
    uint32_t number = 0;
    std::memcpy(&number, &result.token, sizeof(number));
    return number;
  }

  std::unique_ptr<Atomics> atomics_ = Atomics::Create(context_.get(), pd_, cq_, kDepth).value();
};

TEST_F(AtomicsQueue, TellsResultsInOrderAndTakesNoMoreThanItHasRoomFor) {
  for (uint32_t i = 0; i < kDepth; ++i) EXPECT_TRUE(Post(i));
  EXPECT_FALSE(Post(kDepth));
  for (uint32_t i = 0; i < kDepth; ++i) {
    nic().Succeed(nic().Plain());
    const auto result = atomics_->Completed(Polled());
    ASSERT_TRUE(result);
    EXPECT_EQ(NumberOf(*result), i);
    EXPECT_EQ(result->status, SDC_SUCCESS);
    EXPECT_EQ(atomics_->done(), i + 1);
  }
  EXPECT_TRUE(Post(kDepth));
  EXPECT_THAT(atomics_->Repair(), IsEmpty());  // nothing broke
}

TEST_F(AtomicsQueue, WhatTheDeviceRefusedIsAnotherFailureThanWhatItMayHaveExecuted) {
  const struct {
    ibv_wc_status failed;
    sdc_status told;
  } cases[] = {{IBV_WC_REM_ACCESS_ERR, SDC_REMOTE_OPERATION_ERROR},
               {IBV_WC_REM_INV_REQ_ERR, SDC_REMOTE_OPERATION_ERROR},
               {IBV_WC_RETRY_EXC_ERR, SDC_RETRY_EXCEEDED},
               {IBV_WC_LOC_PROT_ERR, SDC_RETRY_EXCEEDED}};
  for (const auto& one : cases) {
    SCOPED_TRACE(one.failed);
    const uint32_t before = nic().Plain().ex.qp_base.qp_num;
    EXPECT_TRUE(Post(1) && Post(2) && Post(3));
    nic().Succeed(nic().Plain());
    EXPECT_TRUE(atomics_->Completed(Polled()));
    nic().Fail(nic().Plain(), one.failed);
    EXPECT_FALSE(atomics_->Completed(Polled()));
    EXPECT_TRUE(atomics_->broken());
    EXPECT_FALSE(Post(4));
    const auto results = atomics_->Repair();
    ASSERT_THAT(results, SizeIs(2));
    EXPECT_EQ(NumberOf(results[0]), 2U);
    EXPECT_EQ(NumberOf(results[1]), 3U);
    for (const auto& result : results) EXPECT_EQ(result.status, one.told);
    EXPECT_FALSE(atomics_->broken());
    EXPECT_NE(nic().Plain().ex.qp_base.qp_num, before);
    EXPECT_EQ(atomics_->done(), atomics_->posted());
    EXPECT_TRUE(Post(5));
    EXPECT_FALSE(atomics_->Completed(Polled())) << "that was a flush of the queue that is gone";
    nic().Succeed(nic().Plain());
    const auto after = atomics_->Completed(Polled());
    ASSERT_TRUE(after);
    EXPECT_EQ(NumberOf(*after), 5U);
  }
}

TEST_F(AtomicsQueue, SaysNothingOfRequestsWhileTheirQueueIsThere) {
  EXPECT_TRUE(Post(1));
  nic().Fail(nic().Plain(), IBV_WC_RETRY_EXC_ERR);
  EXPECT_FALSE(atomics_->Completed(Polled()));
  nic().fail_named = {{"ibv_destroy_qp(plain)", EBUSY}};
  EXPECT_THAT(atomics_->Repair(), IsEmpty());
  EXPECT_TRUE(atomics_->broken());
  nic().fail_named.clear();
  EXPECT_THAT(atomics_->Repair(), SizeIs(1));
  EXPECT_FALSE(atomics_->broken());
}

TEST_F(AtomicsQueue, IsMadeLaterWhereTheDeviceMakesNoneNow) {
  for (const char* const call : {"ibv_create_qp", "ibv_modify_qp(plain RTS)"}) {
    SCOPED_TRACE(call);
    EXPECT_TRUE(Post(1));
    nic().Fail(nic().Plain(), IBV_WC_RETRY_EXC_ERR);
    EXPECT_FALSE(atomics_->Completed(Polled()));
    nic().fail_named = {{call, ENOMEM}};
    EXPECT_THAT(atomics_->Repair(), SizeIs(1));
    EXPECT_TRUE(atomics_->broken());
    EXPECT_FALSE(Post(2));
    EXPECT_THAT(nic().qps, IsEmpty());
    nic().fail_named.clear();
    EXPECT_THAT(atomics_->Repair(), IsEmpty());  // it was reported once
    EXPECT_FALSE(atomics_->broken());
    EXPECT_TRUE(Post(3));
    nic().Succeed(nic().Plain());
    EXPECT_TRUE(atomics_->Completed(Polled()));
  }
}

class Replies : public SoftwareDcParts {
 protected:
  static constexpr uint32_t kLimit = 3, kSends = 16;
  ~Replies() override {
    handles_.reset();
    port_.reset();
  }
  ibv_ah* Get(uint8_t sender) {
    sdc_address address{};
    address.bytes[15] = sender;
    return handles_->Get(address, *port_);
  }
  // Sends as many datagrams as it has buffers for.
  void Send(ibv_ah* ah) {
    for (uint32_t i = 0; i < kSends; ++i) {
      ASSERT_NE(port_->Buffer(), nullptr);
      port_->Send(ah, 1, 8);
    }
    port_->Flush();
  }
  void FinishSends() {
    while (!nic().Plain().outstanding.empty()) nic().Succeed(nic().Plain());
    ASSERT_NE(port_->Buffer(), nullptr);
  }
  static bool HasHandleFor(uint8_t sender) {
    return std::ranges::any_of(nic().ahs, [&](const auto& entry) { return entry.second.grh.dgid.raw[15] == sender; });
  }
  static int64_t Asked() { return std::count(nic().calls.begin(), nic().calls.end(), "ibv_create_ah"); }

  surgekv_test::FakeClock clock_;
  std::unique_ptr<UdPort> port_ = UdPort::Open(context_.get(), pd_, cq_, {256, kSends, kDepth}).value();
  std::unique_ptr<ReplyHandles> handles_ = std::make_unique<ReplyHandles>(context_.get(), pd_, kLimit, &clock_);
};

TEST_F(Replies, OneHandleForEachSender) {
  ibv_ah* const first = Get(1);
  EXPECT_NE(first, nullptr);
  EXPECT_NE(Get(2), first);
  EXPECT_EQ(Get(1), first);
  EXPECT_EQ(Asked(), 2);
}

TEST_F(Replies, WhoWasAnsweredLeastRecentlyGivesWayOnceNothingIsUnderWayToIt) {
  ibv_ah* const first = Get(1);
  Get(2);
  Get(3);
  EXPECT_EQ(Get(1), first);
  Send(Get(2));
  Get(1);
  Get(3);
  Get(4);  // so the second gives way
  EXPECT_THAT(nic().ahs, SizeIs(kLimit + 1));
  EXPECT_TRUE(HasHandleFor(2)) << "datagrams to it are under way";
  FinishSends();
  Get(5);
  EXPECT_FALSE(HasHandleFor(2));
  EXPECT_NE(Get(2), nullptr);
}

TEST_F(Replies, ASenderThatTheNetworkDoesNotKnowIsNotAskedForAgainForASecond) {
  nic().fail_named = {{"ibv_create_ah", ETIMEDOUT}};
  EXPECT_EQ(Get(1), nullptr);
  EXPECT_EQ(Asked(), 1);
  nic().fail_named.clear();
  clock_.Advance(900'000'000);
  EXPECT_EQ(Get(1), nullptr);
  EXPECT_EQ(Asked(), 1);
  EXPECT_NE(Get(2), nullptr);
  clock_.Advance(100'000'000);
  EXPECT_NE(Get(1), nullptr);
  EXPECT_EQ(Asked(), 3);
}

TEST_F(Replies, ThoseWhoCannotBeAnsweredTakeNoMoreRoomThanOthers) {
  nic().fail_named = {{"ibv_create_ah", ETIMEDOUT}};
  for (uint8_t sender = 1; sender < 100; ++sender) EXPECT_EQ(Get(sender), nullptr);
  const int64_t asked = Asked();
  EXPECT_EQ(Get(99), nullptr);
  EXPECT_EQ(Asked(), asked);
  EXPECT_EQ(Get(1), nullptr);
  EXPECT_EQ(Asked(), asked + 1) << "of so many none remembers the first";
}

}  // namespace
}  // namespace krcore::rnic::verbs::testing
