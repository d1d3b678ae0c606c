// What the processes of a host share: DC initiators, and memory. A provider that has none says so.
#include <algorithm>
#include <array>

#include "tests/rnic/harness.h"

namespace krcore::rnic::testing {
namespace {

std::vector<Provider> ProvidersThat(bool share) {
  std::vector<Provider> providers = Providers();
  std::erase_if(providers, [&](const Provider& provider) { return (provider.provider == "sw") != share; });
  return providers;
}
std::string LabelOf(const ::testing::TestParamInfo<Provider>& info) { return info.param.label; }

class HostTest : public RnicTest {
 protected:
  // An endpoint's part of one of the host's initiators, posting to b_.
  struct Holder {
    Endpoint* endpoint;
    std::unique_ptr<Qp> qp;
    std::unique_ptr<AddressHandle> address;
    Sge sge;

    SendWr Wr(Opcode opcode, const Dct& target, Endpoint& peer, size_t offset, uint64_t wr_id) const {
      SendWr wr;
      wr.wr_id = wr_id;
      wr.opcode = opcode;
      wr.flags = kSignaled;
      wr.sg_list = &sge;
      wr.num_sge = 1;
      wr.remote_addr = peer.Addr(offset);
      wr.rkey = peer.mr->rkey();
      wr.compare_add = 1;
      wr.ah = address.get();
      wr.remote_qpn = target.num();
      wr.dc_key = target.dc_key();
      return wr;
    }
  };

  void SetUp() override {
    ASSERT_GT(a_->device->caps().host_qps, 4u);
    dct_ = b_->MakeDct();
    c_ = Open(3, false);
  }
  static void ToRts(Qp& qp) {
    if (qp.state() != QpState::kReset) KRCORE_EXPECT_OK(qp.ToReset());
    KRCORE_EXPECT_OK(qp.ToInit(0, 0));
    KRCORE_EXPECT_OK(qp.ToRtr({}));
    KRCORE_EXPECT_OK(qp.ToRts());
  }
  static Result<std::unique_ptr<Qp>> Claim(Endpoint& endpoint, uint32_t host_qp, QpType type = QpType::kDci) {
    return endpoint.pd->CreateQp(
        {.type = type, .send_cq = endpoint.cq.get(), .recv_cq = endpoint.cq.get(), .sq_depth = 16, .host_qp = host_qp});
  }
  Holder Hold(Endpoint& endpoint, uint32_t host_qp) {
    auto qp = Claim(endpoint, host_qp);
    EXPECT_TRUE(qp.ok()) << qp.status().ToString();
    ToRts(**qp);
    return {&endpoint, *std::move(qp), endpoint.device->CreateAddressHandle(b_->device->address()).value(),
            endpoint.Local(64, 8)};
  }
  WcStatus Add(const Holder& holder, uint64_t wr_id = 1) {
    const SendWr wr = holder.Wr(Opcode::kFetchAdd, *dct_, *b_, 0, wr_id);
    KRCORE_EXPECT_OK(holder.qp->PostSend({&wr, 1}, nullptr));
    const Completion done = holder.endpoint->Next();
    EXPECT_EQ(done.wr_id, wr_id);
    EXPECT_EQ(done.qp_num, holder.qp->num());
    return done.status;
  }
  WcStatus AddWithBadKey(const Holder& holder) {
    SendWr wr = holder.Wr(Opcode::kFetchAdd, *dct_, *b_, 0, 2);
    wr.rkey ^= 0x10000;
    KRCORE_EXPECT_OK(holder.qp->PostSend({&wr, 1}, nullptr));
    return holder.endpoint->Next().status;
  }

  std::unique_ptr<Dct> dct_;
  std::unique_ptr<Endpoint> c_;
};

TEST_P(HostTest, AFaultOfOneHolderStopsAllAndAnyOfThemBringsTheQpBack) {
  Holder first = Hold(*a_, 3), second = Hold(*c_, 3), third = Hold(*a_, 3), elsewhere = Hold(*c_, 4);
  EXPECT_EQ(Add(first), WcStatus::kSuccess);
  EXPECT_EQ(Add(second), WcStatus::kSuccess);
  EXPECT_EQ(AddWithBadKey(first), WcStatus::kRemoteAccessError);
  for (const Holder* holder : {&first, &second, &third}) EXPECT_EQ(holder->qp->state(), QpState::kErr);
  EXPECT_EQ(Add(second), WcStatus::kFlushed);
  EXPECT_EQ(elsewhere.qp->state(), QpState::kRts) << "another of the host's initiators";
  EXPECT_EQ(Add(elsewhere), WcStatus::kSuccess);

  ToRts(*second.qp);
  EXPECT_EQ(Add(second), WcStatus::kSuccess);
  EXPECT_EQ(Add(third), WcStatus::kSuccess) << "posted nothing in between, so it lost nothing";
  EXPECT_EQ(first.qp->state(), QpState::kErr) << "its own failure is its own until it resets";
  ToRts(*first.qp);
  EXPECT_EQ(Add(first), WcStatus::kSuccess);
  EXPECT_EQ(second.qp->state(), QpState::kRts) << "a late reset disturbs nobody";
  EXPECT_EQ(b_->Word(), 6u) << "executed: what succeeded";
}

TEST_P(HostTest, NothingIsExecutedOnAQpThatAnotherHolderHasBroken) {
  const Holder mine = Hold(*a_, 0), others = Hold(*c_, 0);
  ASSERT_EQ(Add(mine), WcStatus::kSuccess);
  const KeyedRange local{a_->Addr(), a_->memory->bytes().size(), a_->mr->lkey()};
  const KeyedRange remote{b_->Addr(), b_->memory->bytes().size(), b_->mr->rkey()};
  const WorkRequest add = mine.Wr(Opcode::kFetchAdd, *dct_, *b_, 0, 1);
  const auto executes = [&](std::span<const WorkRequest> wrs) {
    return mine.qp->Execute(wrs, {mine.address.get(), dct_->num(), dct_->dc_key(), local, remote});
  };
  EXPECT_TRUE(executes({&add, 1}));
  EXPECT_TRUE(executes(std::array{add, add}));
  EXPECT_EQ(b_->Word(), 4u);
  EXPECT_NE(AddWithBadKey(others), WcStatus::kSuccess);
  EXPECT_FALSE(executes({&add, 1}));
  EXPECT_FALSE(executes(std::array{add, add}));
  EXPECT_EQ(b_->Word(), 4u);
  ToRts(*mine.qp);
  EXPECT_EQ(Add(mine), WcStatus::kSuccess);
  EXPECT_TRUE(executes({&add, 1}));
  EXPECT_EQ(b_->Word(), 6u);
}

TEST_P(HostTest, AHolderInErrorWhoseQpSomebodyHasBroughtBackStillFlushesUntilItResets) {
  Holder first = Hold(*a_, 0), second = Hold(*c_, 0);
  EXPECT_EQ(AddWithBadKey(first), WcStatus::kRemoteAccessError);
  ToRts(*second.qp);
  EXPECT_EQ(Add(first), WcStatus::kFlushed);
  EXPECT_EQ(second.qp->state(), QpState::kRts) << "and breaks nothing by that";
  EXPECT_EQ(Add(second), WcStatus::kSuccess);
}

TEST_P(HostTest, AHolderThatGoesLeavesTheOthersAtWork) {
  Holder second = Hold(*c_, 1);
  {
    Holder first = Hold(*a_, 1);
    EXPECT_EQ(Add(first), WcStatus::kSuccess);
  }
  EXPECT_EQ(Add(second), WcStatus::kSuccess);
}

TEST_P(HostTest, ANewHolderOfABrokenQpBringsItBack) {
  Holder first = Hold(*a_, 1);
  EXPECT_EQ(AddWithBadKey(first), WcStatus::kRemoteAccessError);
  first.qp.reset();
  Holder second = Hold(*c_, 1);
  EXPECT_EQ(Add(second), WcStatus::kSuccess);
}

TEST_P(HostTest, PartsRunOutAndComeBack) {
  std::vector<std::unique_ptr<Qp>> parts;
  Status refused;
  while (parts.size() < 1000) {
    auto part = Claim(parts.size() % 2 == 0 ? *a_ : *c_, 2);
    if (!part.ok()) {
      refused = part.status();
      break;
    }
    parts.push_back(*std::move(part));
  }
  EXPECT_EQ(refused, StatusCode::kOutOfMemory) << refused.ToString();
  EXPECT_GE(parts.size(), 60u);
  const size_t all = parts.size();
  parts.erase(parts.begin() + 7);
  EXPECT_TRUE(Claim(*c_, 2).ok());
  // A device's parts go away with it.
  parts.clear();
  for (size_t i = 0; i < all; ++i) parts.push_back(Claim(*c_, 2).value());
  EXPECT_FALSE(Claim(*a_, 2).ok());
  parts.clear();
  c_.reset();
  for (size_t i = 0; i < all; ++i) parts.push_back(Claim(*a_, 2).value());
}

TEST_P(HostTest, OnlyInitiatorsThatThereAre) {
  EXPECT_EQ(Claim(*a_, a_->device->caps().host_qps).status(), StatusCode::kInvalidArgument);
  EXPECT_EQ(Claim(*a_, 0, QpType::kRc).status(), StatusCode::kInvalidArgument);
  EXPECT_EQ(Claim(*a_, 0, QpType::kUd).status(), StatusCode::kInvalidArgument);
}

TEST_P(HostTest, MemoryIsCommonAndZeroedWithTheFabric) {
  const std::span<std::byte> mine = a_->device->HostMemory(), yours = c_->device->HostMemory();
  ASSERT_EQ(mine.size(), yours.size());
  ASSERT_GE(mine.size(), 4096u);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(mine.data()) % 64, 0u);
  for (const std::byte byte : mine) ASSERT_EQ(byte, std::byte{0});
  mine[4095] = std::byte{7};
  EXPECT_EQ(yours[4095], std::byte{7});
}
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(HostTest);
INSTANTIATE_TEST_SUITE_P(All, HostTest, ::testing::ValuesIn(ProvidersThat(true)), LabelOf);

class NoHostTest : public RnicTest {};
TEST_P(NoHostTest, AProviderWithoutSharedQpsSaysSo) {
  EXPECT_EQ(a_->device->caps().host_qps, 0u);
  const auto qp =
      a_->pd->CreateQp({.type = QpType::kDci, .send_cq = a_->cq.get(), .recv_cq = a_->cq.get(), .host_qp = 0});
  EXPECT_EQ(qp.status(), StatusCode::kUnsupported);
  EXPECT_TRUE(a_->device->HostMemory().empty());
}
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(NoHostTest);
INSTANTIATE_TEST_SUITE_P(All, NoHostTest, ::testing::ValuesIn(ProvidersThat(false)), LabelOf);

}  // namespace
}  // namespace krcore::rnic::testing
