// Qp::Execute: requests that are executed without the queue's rings. It does what PostSend does, all or none, and
// nothing that PostSend refuses. Prefetch changes nothing.
#include <array>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tests/rnic/harness.h"

namespace krcore::rnic::testing {
namespace {

constexpr std::array kOpcodes = {Opcode::kRead, Opcode::kWrite, Opcode::kCompareSwap, Opcode::kFetchAdd};

class Execution : public TransportTest {
 protected:
  void SetUp() override {
    TransportTest::SetUp();
    if (!a_->device->caps().executes_at_post) GTEST_SKIP() << "requests are executed by others than who posts them";
    local_ = {a_->Addr(), a_->memory->bytes().size(), a_->mr->lkey()};
    remote_ = {b_->Addr(), b_->memory->bytes().size(), b_->mr->rkey()};
  }
  // Only a request like one that was posted before is executed.
  void PostOneOfEach() {
    const Sge sge = a_->Local(kScratch, 8);
    for (const Opcode opcode : kOpcodes) {
      if (link_->Run(link_->Wr(opcode, &sge, kScratch)).status != WcStatus::kSuccess) ADD_FAILURE() << "not posted";
    }
  }
  bool Execute(std::span<const WorkRequest> wrs) {
    if (link_->dct != nullptr || link_->remote_qp != nullptr) {  // otherwise it was destroyed, and is named as before
      const Sge sge = {};
      if (b_->mr != nullptr) like_ = link_->Wr(Opcode::kRead, &sge, 0);
    }
    return link_->qp->Execute(wrs, {like_.ah, like_.remote_qpn, like_.dc_key, local_, remote_});
  }
  WorkRequest Wr(Opcode opcode, const Sge* sge, size_t offset) const { return link_->Wr(opcode, sge, offset); }
  void Relink(uint32_t rights) { link_ = std::make_unique<Link>(a_.get(), b_.get(), transport(), 64, 0, rights); }
  // `bad` after a good WRITE keeps both from being executed.
  void ExpectNothingDone(const WorkRequest& bad, const std::string& why) {
    const Sge good = a_->Local(0, 8);
    a_->Word(0) = 1;
    b_->Word(0) = 2;
    const std::array wrs = {Wr(Opcode::kWrite, &good, 0), bad};
    EXPECT_FALSE(Execute(wrs)) << why;
    EXPECT_FALSE(Execute({&bad, 1})) << why << ", alone";
    EXPECT_EQ(b_->Word(0), 2u) << why;
    EXPECT_EQ(link_->qp->state(), QpState::kRts) << why;
    EXPECT_TRUE(a_->Idle()) << why;
    EXPECT_TRUE(Execute({&wrs[0], 1})) << "the good one, after " << why;
    EXPECT_EQ(b_->Word(0), 1u);
  }

  static constexpr size_t kScratch = 2048;
  KeyedRange local_, remote_;
  SendWr like_;
};
INSTANTIATE_TRANSPORT_TESTS(Execution);

TEST_P(Execution, IsInOrderAndHasNoCompletions) {
  PostOneOfEach();
  const std::array sges = {a_->Local(0, 8), a_->Local(8, 8), a_->Local(16, 8), a_->Local(24, 8)};
  a_->Word(0) = 5;
  std::array wrs = {Wr(Opcode::kWrite, &sges[0], 64), Wr(Opcode::kCompareSwap, &sges[1], 64),
                    Wr(Opcode::kFetchAdd, &sges[2], 64), Wr(Opcode::kRead, &sges[3], 64)};
  wrs[1].compare_add = 5;
  wrs[1].swap = 7;
  wrs[2].compare_add = 10;
  ASSERT_TRUE(Execute(wrs));
  EXPECT_EQ(a_->Word(8), 5u) << "the CAS sees the WRITE";
  EXPECT_EQ(a_->Word(16), 7u) << "the FETCH_ADD the CAS";
  EXPECT_EQ(a_->Word(24), 17u) << "the READ all of them";
  EXPECT_EQ(b_->Word(64), 17u);
  EXPECT_TRUE(a_->Idle()) << "signaled or not";
}

TEST_P(Execution, CopiesAnyLengthFromAndToAnyAddress) {
  PostOneOfEach();
  for (size_t i = 0; i < 4096; ++i) b_->Text()[i] = static_cast<char>(i * 7 + i / 256);
  for (const uint32_t length : {1u, 7u, 8u, 15u, 16u, 17u, 31u, 32u, 48u, 63u, 64u, 100u, 128u, 160u, 200u, 1000u}) {
    for (const size_t offset : {0, 1, 8, 24}) {
      std::memset(a_->Text(), 0, 4096);
      const Sge sge = a_->Local(offset, length);
      ASSERT_TRUE(Execute({std::array{Wr(Opcode::kRead, &sge, 2 * offset)}}));
      EXPECT_EQ(std::memcmp(a_->Text(offset), b_->Text(2 * offset), length), 0) << length << " from " << 2 * offset;
      EXPECT_EQ(a_->Text()[offset + length], 0) << length << " and no more";
      ASSERT_TRUE(Execute({std::array{Wr(Opcode::kWrite, &sge, 3000 - offset)}}));
      EXPECT_EQ(std::memcmp(a_->Text(offset), b_->Text(3000 - offset), length), 0) << length << " to " << 3000 - offset;
      for (size_t i = 3000 - offset; i < 4096; ++i) b_->Text()[i] = static_cast<char>(i * 7 + i / 256);
    }
  }
}

TEST_P(Execution, KnowsOnlyWhatIsLikeSomethingPosted) {
  const Sge sge = a_->Local(0, 8);
  const WorkRequest wr = Wr(Opcode::kRead, &sge, 0);
  EXPECT_FALSE(Execute({&wr, 1}));
  PostOneOfEach();
  EXPECT_TRUE(Execute({&wr, 1}));
}

TEST_P(Execution, TakesNoPlaceInTheSendQueue) {
  PostOneOfEach();
  const Sge sge = a_->Local(0, 8);
  const WorkRequest wr = Wr(Opcode::kRead, &sge, 0);
  for (int i = 0; i < 1000; ++i) ASSERT_TRUE(Execute({&wr, 1}));
  EXPECT_EQ(link_->Run(link_->Wr(Opcode::kRead, &sge, 0, 9)).wr_id, 9u);
}

TEST_P(Execution, IsAllOrNone) {
  PostOneOfEach();
  const size_t end = a_->memory->bytes().size();
  const Sge word = a_->Local(64, 8), pair = a_->Local(64, 16), nothing = a_->Local(64, 0),
            beyond = a_->Local(end - 4, 8), before = {a_->Addr() - 8, 8, a_->mr->lkey()},
            other = {a_->Addr(), 8, a_->mr->lkey() ^ 0x10000}, all = a_->Local(0, static_cast<uint32_t>(end));
  const auto with = [&](Opcode opcode, const Sge* sge, size_t offset, const std::function<void(WorkRequest&)>& change) {
    WorkRequest wr = Wr(opcode, sge, offset);
    change(wr);
    return wr;
  };
  const auto same = [](WorkRequest&) {};
  for (const Opcode opcode : {Opcode::kRead, Opcode::kWrite}) {
    const std::string name(OpcodeName(opcode));
    ExpectNothingDone(with(opcode, &nothing, 0, same), name + " of nothing");
    ExpectNothingDone(with(opcode, &beyond, 0, same), name + " beyond local memory");
    ExpectNothingDone(with(opcode, &before, 0, same), name + " before local memory");
    ExpectNothingDone(with(opcode, &other, 0, same), name + " of another lkey");
    ExpectNothingDone(with(opcode, &word, end - 4, same), name + " beyond remote memory");
    ExpectNothingDone(with(opcode, &all, 8, same), name + " longer than what is left");
    ExpectNothingDone(with(opcode, &word, 0, [&](WorkRequest& wr) { wr.remote_addr = b_->Addr() - 8; }),
                      name + " before remote memory");
    ExpectNothingDone(with(opcode, &word, 0, [](WorkRequest& wr) { wr.rkey ^= 0x10000; }), name + " of another rkey");
    ExpectNothingDone(with(opcode, &word, 0, [](WorkRequest& wr) { wr.num_sge = 0; }), name + " without SGEs");
    ExpectNothingDone(with(opcode, &word, 0, [](WorkRequest& wr) { wr.num_sge = 2; }), name + " of two SGEs");
    ExpectNothingDone(with(opcode, &word, 0, [](WorkRequest& wr) { wr.sg_list = nullptr; }), name + ", no SGE there");
    ExpectNothingDone(with(opcode, &word, 0, [](WorkRequest& wr) { wr.flags |= kInline; }), name + " inline");
  }
  for (const Opcode opcode : {Opcode::kCompareSwap, Opcode::kFetchAdd}) {
    const std::string name(OpcodeName(opcode));
    ExpectNothingDone(with(opcode, &word, 4, same), name + " of no aligned word");
    ExpectNothingDone(with(opcode, &pair, 0, same), name + " of 16 bytes");
    ExpectNothingDone(with(opcode, &word, end, same), name + " beyond remote memory");
  }
  for (const Opcode opcode :
       {Opcode::kSend, Opcode::kSendImm, Opcode::kWriteImm, Opcode::kRecv, static_cast<Opcode>(200)}) {
    ExpectNothingDone(with(opcode, &word, 0, same), "opcode " + std::to_string(static_cast<int>(opcode)));
  }
}

TEST_P(Execution, NamesNoMemoryBeyondItsReach) {
  PostOneOfEach();
  local_ = {a_->Addr(64), 64, a_->mr->lkey()};
  remote_ = {b_->Addr(128), 64, b_->mr->rkey()};
  const auto executes = [&](size_t local, size_t remote, uint32_t length) {
    const Sge sge = a_->Local(local, length);
    const std::array wrs = {Wr(Opcode::kRead, &sge, remote), Wr(Opcode::kRead, &sge, remote)};
    const bool alone = Execute({&wrs[0], 1});
    EXPECT_EQ(Execute(wrs), alone) << length << " bytes from " << remote << " to " << local;
    return alone;
  };
  EXPECT_TRUE(executes(64, 128, 64));
  EXPECT_TRUE(executes(120, 184, 8));
  EXPECT_FALSE(executes(56, 128, 8));
  EXPECT_FALSE(executes(128, 128, 8));
  EXPECT_FALSE(executes(124, 128, 8));
  EXPECT_FALSE(executes(64, 120, 8));
  EXPECT_FALSE(executes(64, 192, 8));
  EXPECT_FALSE(executes(64, 188, 8));
  // A range that reaches beyond the memory gives no access beyond it.
  const size_t end = a_->memory->bytes().size();
  local_ = {a_->Addr() - 64, end + 128, a_->mr->lkey()};
  remote_ = {b_->Addr() - 64, end + 128, b_->mr->rkey()};
  EXPECT_TRUE(executes(0, end - 8, 8));
  EXPECT_FALSE(executes(0, end, 8));
  EXPECT_FALSE(executes(end, 0, 8));
}

TEST_P(Execution, NeedsTheRights) {
  const Sge sge = a_->Local(0, 8);
  for (const auto& [rights, allowed] : std::vector<std::pair<uint32_t, std::vector<Opcode>>>{
           {kRemoteRead, {Opcode::kRead}},
           {kRemoteRead | kRemoteWrite, {Opcode::kRead, Opcode::kWrite}},
           {kRemoteRead | kRemoteAtomic, {Opcode::kRead, Opcode::kCompareSwap, Opcode::kFetchAdd}}}) {
    // A READ comes first, so that the target is known; then come the verbs that are not allowed.
    auto mr = b_->pd
                  ->RegisterMemory(b_->memory->bytes().data(), b_->memory->bytes().size(),
                                   rights | (rights == kRemoteRead ? 0u : uint32_t{kLocalWrite}))
                  .value();
    Relink(kRemoteRead | kRemoteWrite | kRemoteAtomic);
    remote_.key = mr->rkey();
    SendWr read = link_->Wr(Opcode::kRead, &sge, 0);
    read.rkey = mr->rkey();
    ASSERT_EQ(link_->Run(read).status, WcStatus::kSuccess);
    for (const Opcode opcode : kOpcodes) {
      WorkRequest wr = Wr(opcode, &sge, 0);
      wr.rkey = mr->rkey();
      const bool may = std::find(allowed.begin(), allowed.end(), opcode) != allowed.end();
      EXPECT_EQ(Execute({std::array<WorkRequest, 2>{read, wr}}), may) << OpcodeName(opcode) << " with " << rights;
    }
  }
}

TEST_P(Execution, NeedsTheRightsThatThePeersQueueGrantsNow) {
  if (transport() == Transport::kDc) GTEST_SKIP() << "a DCT's rights are for ever";
  PostOneOfEach();
  const Sge sge = a_->Local(0, 8);
  const WorkRequest read = Wr(Opcode::kRead, &sge, 0), write = Wr(Opcode::kWrite, &sge, 0);
  ASSERT_TRUE(Execute({&write, 1}));
  KRCORE_EXPECT_OK(link_->remote_qp->ToReset());
  ConnectRc(*link_->remote_qp, *link_->qp, *a_->device, kRemoteRead);
  EXPECT_TRUE(Execute({&read, 1}));
  EXPECT_FALSE(Execute({&write, 1}));
  EXPECT_FALSE(Execute({std::array{read, write}}));
}

TEST_P(Execution, ReadsOnlyIntoMemoryThatMayBeWritten) {
  PostOneOfEach();
  auto mr = a_->pd->RegisterMemory(a_->memory->bytes().data(), 64, 0).value();
  const Sge sge{a_->Addr(), 8, mr->lkey()};
  SendWr write = link_->Wr(Opcode::kWrite, &sge, 0);
  ASSERT_EQ(link_->Run(write).status, WcStatus::kSuccess);
  local_ = {a_->Addr(), 64, mr->lkey()};
  const std::array wrs = {static_cast<const WorkRequest&>(write), Wr(Opcode::kRead, &sge, 0)};
  EXPECT_TRUE(Execute({&wrs[0], 1}));
  EXPECT_FALSE(Execute(wrs));
}

TEST_P(Execution, EndsWithWhatItReached) {
  const Sge sge = a_->Local(0, 8);
  const WorkRequest read = Wr(Opcode::kRead, &sge, 0);
  const auto executes = [&] { return Execute({&read, 1}); };
  PostOneOfEach();
  ASSERT_TRUE(executes());
  KRCORE_EXPECT_OK(link_->qp->ToErr());
  EXPECT_FALSE(executes()) << "in ERR";
  Relink(kAllRights & ~uint32_t{kLocalWrite});
  PostOneOfEach();
  ASSERT_TRUE(executes());
  if (transport() == Transport::kDc) {
    link_->dct.reset();
  } else {
    link_->remote_qp.reset();
  }
  EXPECT_FALSE(executes()) << "its target was destroyed";
  Relink(kAllRights & ~uint32_t{kLocalWrite});
  PostOneOfEach();
  ASSERT_TRUE(executes());
  a_->mr.reset();
  EXPECT_FALSE(executes()) << "its own MR was destroyed";
  a_->mr = a_->pd->RegisterMemory(a_->memory->bytes().data(), a_->memory->bytes().size(), kAllRights).value();
  Relink(kAllRights & ~uint32_t{kLocalWrite});
  const Sge anew = a_->Local(0, 8);
  ASSERT_EQ(link_->Run(link_->Wr(Opcode::kRead, &anew, 0)).status, WcStatus::kSuccess);
  local_.key = a_->mr->lkey();
  const WorkRequest wr = Wr(Opcode::kRead, &anew, 0);
  ASSERT_TRUE(Execute({&wr, 1}));
  b_->mr.reset();
  EXPECT_FALSE(Execute({&wr, 1})) << "the peer's MR was destroyed";
}

TEST_P(Execution, PrefetchChangesNothing) {
  const Sge sge = a_->Local(0, 8), none = a_->Local(0, 0);
  const SendWr like = link_->Wr(Opcode::kRead, &sge, 0);
  std::array<WorkRequest, 3> wrs = {like, like, like};
  wrs[1].sg_list = &none;
  wrs[2].sg_list = nullptr;
  const auto hint = [&] { link_->qp->Prefetch(wrs, like.ah, like.rkey); };
  a_->Word(0) = 1;
  b_->Word(0) = 2;
  hint();
  PostOneOfEach();
  hint();
  wrs[0].remote_addr += uint64_t{1} << 46;  // nothing is there
  hint();
  EXPECT_EQ(a_->Word(0), 1u);
  EXPECT_EQ(b_->Word(0), 2u);
  EXPECT_TRUE(a_->Idle());
  const WorkRequest write = Wr(Opcode::kWrite, &sge, 0);
  EXPECT_TRUE(Execute({&write, 1}));
  EXPECT_EQ(b_->Word(0), 1u);
}

// What a provider that does not execute requests promises: that these calls do nothing.
class NoExecution : public TransportTest {};
INSTANTIATE_TRANSPORT_TESTS(NoExecution);

TEST_P(NoExecution, WhereOthersExecuteRequests) {
  if (a_->device->caps().executes_at_post) GTEST_SKIP() << "they do not";
  const KeyedRange local{a_->Addr(), a_->memory->bytes().size(), a_->mr->lkey()};
  const KeyedRange remote{b_->Addr(), b_->memory->bytes().size(), b_->mr->rkey()};
  const Sge sge = a_->Local(0, 8);
  const SendWr like = link_->Wr(Opcode::kWrite, &sge, 0);
  const WorkRequest wr = like;
  a_->Word(0) = 1;
  b_->Word(0) = 2;
  EXPECT_EQ(link_->Run(link_->Wr(Opcode::kRead, &sge, 64)).status, WcStatus::kSuccess);
  link_->qp->Prefetch({&wr, 1}, like.ah, like.rkey);
  EXPECT_FALSE(link_->qp->Execute({&wr, 1}, {like.ah, like.remote_qpn, like.dc_key, local, remote}));
  a_->Settle();
  EXPECT_EQ(b_->Word(0), 2u);
}

}  // namespace
}  // namespace krcore::rnic::testing
