// Every error status, how it leaves the queue, and that the memory stays as it was.
#include <array>
#include <cstring>
#include <functional>
#include <iterator>
#include <memory>
#include <tuple>
#include <vector>

#include "tests/rnic/harness.h"

namespace krcore::rnic::testing {
namespace {

class Errors : public TransportTest {
 protected:
  // The WR fails with `status`, or with `or_on_nic` on a NIC. The QP is in ERR, and the target's first word is
  // unchanged.
  void ExpectFailure(const SendWr& wr, WcStatus status, WcStatus or_on_nic) {
    const uint64_t before = b_->Word();
    const Completion done = link_->Run(wr);
    ExpectStatus(*a_->device, done.status, status, or_on_nic);
    EXPECT_EQ(done.wr_id, wr.wr_id);
    EXPECT_EQ(link_->qp->state(), QpState::kErr);
    EXPECT_EQ(b_->Word(), before);
    EXPECT_EQ(link_->Run(wr).status, WcStatus::kFlushed);
  }
  void ExpectFailure(const SendWr& wr, WcStatus status) { ExpectFailure(wr, status, status); }
  void ExpectRefused(const SendWr& wr) {
    size_t bad = 99;
    EXPECT_EQ(link_->qp->PostSend({&wr, 1}, &bad).code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(bad, 0U);
    EXPECT_EQ(link_->qp->state(), QpState::kRts);
    EXPECT_TRUE(a_->Idle());
  }
};
INSTANTIATE_TRANSPORT_TESTS(Errors);

TEST_P(Errors, UnknownLkeyIsALocalProtectionError) {
  Sge sge = a_->Local(0, 8);
  sge.lkey ^= 0x10000;
  ExpectFailure(link_->Wr(Opcode::kWrite, &sge, 0), WcStatus::kLocalProtectionError, WcStatus::kLocalQpError);
}

TEST_P(Errors, LkeyZeroIsALocalProtectionError) {
  Sge sge = a_->Local(0, 8);
  sge.lkey = 0;
  ExpectFailure(link_->Wr(Opcode::kWrite, &sge, 0), WcStatus::kLocalProtectionError, WcStatus::kLocalQpError);
}

TEST_P(Errors, LocalBytesOutsideTheMrAreALocalProtectionError) {
  const Sge sge = a_->Local(a_->memory->bytes().size() - 4, 8);
  ExpectFailure(link_->Wr(Opcode::kWrite, &sge, 0), WcStatus::kLocalProtectionError);
}

TEST_P(Errors, ReadIntoMemoryWithoutLocalWriteIsALocalProtectionError) {
  uint64_t word = 0;
  auto mr = a_->pd->RegisterMemory(&word, sizeof(word), 0).value();
  const Sge sge{reinterpret_cast<uint64_t>(&word), 8, mr->lkey()};
  ExpectFailure(link_->Wr(Opcode::kRead, &sge, 0), WcStatus::kLocalProtectionError);
}

TEST_P(Errors, LkeyOfAnotherPdIsALocalProtectionError) {
  auto other = a_->device->CreatePd().value();
  auto mr = other->RegisterMemory(a_->memory->bytes().data(), 64, kLocalWrite).value();
  const Sge sge{a_->Addr(), 8, mr->lkey()};
  ExpectFailure(link_->Wr(Opcode::kWrite, &sge, 0), WcStatus::kLocalProtectionError, WcStatus::kLocalQpError);
}

TEST_P(Errors, UnknownRkeyIsARemoteAccessError) {
  const Sge sge = a_->Local(0, 8);
  SendWr wr = link_->Wr(Opcode::kWrite, &sge, 0);
  for (const uint32_t rkey : {0U, 0xffff'ffffU, wr.rkey ^ 0x10000U, wr.rkey ^ 1U}) {
    if (link_->qp->state() == QpState::kErr) link_ = std::make_unique<Link>(a_.get(), b_.get(), transport());
    wr = link_->Wr(Opcode::kWrite, &sge, 0);
    wr.rkey = rkey;
    ExpectFailure(wr, WcStatus::kRemoteAccessError);
  }
}

TEST_P(Errors, RemoteBytesOutsideTheMrAreARemoteAccessError) {
  const Sge sge = a_->Local(0, 8);
  const size_t size = b_->memory->bytes().size();
  for (const size_t offset : {size - 4, size, size + 4096, size_t{0} - 8, size_t{0} - 4}) {
    link_ = std::make_unique<Link>(a_.get(), b_.get(), transport());
    ExpectFailure(link_->Wr(Opcode::kWrite, &sge, offset), WcStatus::kRemoteAccessError);
  }
  link_ = std::make_unique<Link>(a_.get(), b_.get(), transport());
  EXPECT_EQ(link_->Run(link_->Wr(Opcode::kWrite, &sge, size - 8)).status, WcStatus::kSuccess);
}

TEST_P(Errors, KeyOfADestroyedMrIsRefusedAndNotReused) {
  auto mr = b_->pd->RegisterMemory(b_->memory->bytes().data(), 4096, kAllRights).value();
  const uint32_t rkey = mr->rkey();
  const Sge sge = a_->Local(0, 8);
  SendWr wr = link_->Wr(Opcode::kRead, &sge, 0);
  wr.rkey = rkey;
  EXPECT_EQ(link_->Run(wr).status, WcStatus::kSuccess);
  mr.reset();
  for (int i = 0; i < 255; ++i) {
    mr = b_->pd->RegisterMemory(b_->memory->bytes().data(), 4096, kAllRights).value();
    ASSERT_NE(mr->rkey(), rkey);
  }
  ExpectFailure(wr, WcStatus::kRemoteAccessError);
  // These MRs are for local use only. On some devices such an MR has no rkey that differs from the one before.
  for (int i = 0; i < 2; ++i)
    KRCORE_EXPECT_OK(b_->pd->RegisterMemory(b_->memory->bytes().data(), 4096, kLocalWrite).status());
}

TEST_P(Errors, LocalKeyOfADestroyedMrIsRefused) {
  auto mr = a_->pd->RegisterMemory(a_->memory->bytes().data(), 4096, kLocalWrite).value();
  const Sge sge{a_->Addr(), 8, mr->lkey()};
  const SendWr wr = link_->Wr(Opcode::kRead, &sge, 0);
  EXPECT_EQ(link_->Run(wr).status, WcStatus::kSuccess);
  // Registers until another MR is in its place, as on sw, where the index wraps around.
  constexpr uint32_t kIndex = 0x7ff;
  for (uint32_t i = 0; i <= kIndex; ++i) {
    mr.reset();
    mr = a_->pd->RegisterMemory(a_->memory->bytes().data(), 4096, kLocalWrite).value();
    ASSERT_NE(mr->lkey(), sge.lkey);
    if (((mr->lkey() ^ sge.lkey) & kIndex) == 0) break;
  }
  ExpectFailure(wr, WcStatus::kLocalProtectionError, WcStatus::kLocalQpError);
}

TEST_P(Errors, MissingRightsOfTheMrAreARemoteAccessError) {
  struct Case {
    Opcode opcode;
    uint32_t rights;
  };
  for (const Case& test : {Case{Opcode::kRead, kLocalWrite | kRemoteWrite | kRemoteAtomic},
                           Case{Opcode::kWrite, kLocalWrite | kRemoteRead | kRemoteAtomic},
                           Case{Opcode::kCompareSwap, kLocalWrite | kRemoteRead | kRemoteWrite},
                           Case{Opcode::kFetchAdd, kLocalWrite | kRemoteRead | kRemoteWrite}}) {
    link_ = std::make_unique<Link>(a_.get(), b_.get(), transport());
    auto mr = b_->pd->RegisterMemory(b_->memory->bytes().data(), 4096, test.rights).value();
    const Sge sge = a_->Local(0, 8);
    SendWr wr = link_->Wr(test.opcode, &sge, 0);
    wr.rkey = mr->rkey();
    wr.compare_add = b_->Word();
    wr.swap = 1;
    ExpectFailure(wr, WcStatus::kRemoteAccessError);
  }
}

TEST_P(Errors, MissingRightsOfTheQueueAreARemoteAccessError) {
  link_ = std::make_unique<Link>(a_.get(), b_.get(), transport(), 64, 0, kRemoteRead);
  const Sge sge = a_->Local(0, 8);
  EXPECT_EQ(link_->Run(link_->Wr(Opcode::kRead, &sge, 0)).status, WcStatus::kSuccess);
  ExpectFailure(link_->Wr(Opcode::kWrite, &sge, 0), WcStatus::kRemoteAccessError, WcStatus::kRemoteInvalidRequest);
}

TEST_P(Errors, MrOfAnotherPdIsARemoteAccessError) {
  auto other = b_->device->CreatePd().value();
  auto mr = other->RegisterMemory(b_->memory->bytes().data(), 4096, kAllRights).value();
  const Sge sge = a_->Local(0, 8);
  SendWr wr = link_->Wr(Opcode::kRead, &sge, 0);
  wr.rkey = mr->rkey();
  ExpectFailure(wr, WcStatus::kRemoteAccessError);
}

TEST_P(Errors, MalformedRequestsAreRefusedAtPostAndHarmNothing) {
  const Sge word = a_->Local(0, 8), four = a_->Local(0, 4);
  ExpectRefused(link_->Wr(Opcode::kCompareSwap, &word, 4));
  ExpectRefused(link_->Wr(Opcode::kFetchAdd, &word, 1));
  ExpectRefused(link_->Wr(Opcode::kCompareSwap, &four, 0));
  ExpectRefused(link_->Wr(Opcode::kRecv, &word, 0));
  ExpectRefused(link_->Wr(static_cast<Opcode>(200), &word, 0));
  SendWr inlined = link_->Wr(Opcode::kRead, &word, 0);
  inlined.flags = kInline;
  ExpectRefused(inlined);
  const Sge large = a_->Local(0, a_->device->caps().max_inline_bytes + 1);
  SendWr too_long = link_->Wr(Opcode::kWrite, &large, 0);
  too_long.flags = kInline;
  ExpectRefused(too_long);
  const std::vector<Sge> many(a_->device->caps().max_sge + 1, a_->Local(0, 1));
  SendWr many_sges = link_->Wr(Opcode::kWrite, many.data(), 0);
  many_sges.num_sge = static_cast<uint8_t>(many.size());
  ExpectRefused(many_sges);
  EXPECT_EQ(link_->Run(link_->Wr(Opcode::kRead, &word, 0)).status, WcStatus::kSuccess);
}

TEST_P(Errors, RequestsBeforeAMalformedOneAreExecutedAndNoneAfter) {
  a_->Word() = 1;
  const Sge sge = a_->Local(0, 8), four = a_->Local(0, 4);
  const SendWr wrs[] = {link_->Wr(Opcode::kWrite, &sge, 0, 1), link_->Wr(Opcode::kFetchAdd, &four, 8, 2),
                        link_->Wr(Opcode::kWrite, &sge, 16, 3)};
  size_t bad = 99;
  EXPECT_EQ(link_->qp->PostSend(wrs, &bad).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(bad, 1U);
  EXPECT_EQ(a_->Next().wr_id, 1U);
  EXPECT_TRUE(a_->Idle());
  EXPECT_EQ(b_->Word(0), 1U);
  EXPECT_EQ(b_->Word(16), 0U);
}

TEST_P(Errors, RequestsBehindAFailedOneAreFlushedAndThoseBeforeItHappen) {
  a_->Word() = 1;
  const Sge sge = a_->Local(0, 8);
  std::array<SendWr, 4> wrs;
  for (size_t i = 0; i < wrs.size(); ++i) {
    wrs[i] = link_->Wr(Opcode::kWrite, &sge, 8 * i, i);
    wrs[i].flags = 0;  // unsignaled: failures and flushes are reported all the same
  }
  wrs[2].rkey = 0;
  KRCORE_EXPECT_OK(link_->qp->PostSend(wrs, nullptr));
  const Completion failed = a_->Next(), flushed = a_->Next();
  EXPECT_EQ(failed.wr_id, 2U);
  EXPECT_EQ(failed.status, WcStatus::kRemoteAccessError);
  EXPECT_EQ(flushed.wr_id, 3U);
  EXPECT_EQ(flushed.status, WcStatus::kFlushed);
  EXPECT_TRUE(a_->Idle());
  EXPECT_EQ(b_->Word(0), 1U);
  EXPECT_EQ(b_->Word(8), 1U);
  EXPECT_EQ(b_->Word(16), 0U);
  EXPECT_EQ(b_->Word(24), 0U);
}

// A provider may look less closely at a WR that is like the one before it, of the same doorbell or an earlier one.
TEST_P(Errors, BehindRequestsLikeItAWrongOneFailsAsItDoesAlone) {
  if (a_->device->caps().provider == "verbs") GTEST_SKIP() << "160 queues that break, each for as long as a NIC tries";
  const auto end = reinterpret_cast<uint64_t>(b_->memory->bytes().data()) + b_->memory->bytes().size();
  const auto local_end = a_->Addr() + a_->memory->bytes().size();
  auto foreign = a_->device->CreatePd().value();
  auto foreign_mr = foreign->RegisterMemory(a_->memory->bytes().data(), 4096, kLocalWrite).value();
  auto read_only = b_->pd->RegisterMemory(b_->memory->bytes().data(), 4096, kLocalWrite | kRemoteRead).value();
  const std::function<void(SendWr&, Sge&)> spoils[] = {
      [](SendWr&, Sge&) {},
      [](SendWr&, Sge& sge) { sge.lkey ^= 0x10000; },
      [&](SendWr&, Sge& sge) { sge.lkey = foreign_mr->lkey(); },
      [](SendWr& wr, Sge&) { wr.rkey ^= 0x10000; },
      [&](SendWr& wr, Sge&) { wr.rkey = read_only->rkey(); },
      [&](SendWr&, Sge& sge) { sge.addr = local_end - 4; },
      [&](SendWr&, Sge& sge) { sge.addr = a_->Addr() - 8; },
      [&](SendWr&, Sge& sge) { sge.addr = local_end; },
      [&](SendWr& wr, Sge&) { wr.remote_addr = end - 4; },
      [&](SendWr& wr, Sge&) { wr.remote_addr = end; },
      [&](SendWr& wr, Sge&) { wr.remote_addr -= 64; },
      [&](SendWr&, Sge& sge) { sge.length = static_cast<uint32_t>(a_->memory->bytes().size()) + 8; },
      [](SendWr&, Sge& sge) { sge.length = 4; },
      [](SendWr& wr, Sge&) { wr.remote_addr += 4; },
      [](SendWr& wr, Sge&) { wr.sg_list = nullptr; },
      [](SendWr& wr, Sge&) { wr.flags |= kInline; },
      [](SendWr& wr, Sge&) { wr.opcode = static_cast<Opcode>(200); },
      [](SendWr& wr, Sge&) { wr.ah = nullptr; },
      [](SendWr& wr, Sge&) { wr.remote_qpn ^= 0x400; },
      [](SendWr& wr, Sge&) { wr.dc_key ^= 1; },
  };
  for (const Opcode opcode : {Opcode::kRead, Opcode::kWrite, Opcode::kCompareSwap, Opcode::kFetchAdd}) {
    for (size_t i = 0; i < std::size(spoils); ++i) {
      // Returns the outcome of the last WR of a batch: its status, or the code with which it is refused, and the
      // target's memory.
      const auto outcome = [&](size_t likes, bool apart) {
        link_ = std::make_unique<Link>(a_.get(), b_.get(), transport());
        std::memset(b_->memory->bytes().data(), 0, 64);
        const Sge good = a_->Local(0, 8);
        Sge sge = good;
        std::vector<SendWr> wrs(likes + 1, link_->Wr(opcode, &good, 64));
        for (SendWr& wr : wrs) wr.compare_add = wr.swap = 1;
        SendWr& last = wrs.back();
        last.sg_list = &sge;
        last.remote_addr -= 64;
        spoils[i](last, sge);
        size_t bad = 0;
        const size_t before = apart ? likes : 0;
        if (apart) KRCORE_EXPECT_OK(link_->qp->PostSend(std::span(wrs).first(before), &bad));
        const StatusCode code = link_->qp->PostSend(std::span(wrs).subspan(before), &bad).code();
        EXPECT_EQ(bad, code == StatusCode::kOk ? 0 : likes - before);
        for (size_t k = 0; k < likes; ++k) EXPECT_EQ(a_->Next().status, WcStatus::kSuccess);
        const WcStatus status = code == StatusCode::kOk ? a_->Next().status : WcStatus::kSuccess;
        return std::tuple(code, status, b_->Word(0), b_->Word(8));
      };
      a_->Word(0) = 77;
      const auto alone = outcome(0, false);
      for (const bool apart : {false, true}) {
        a_->Word(0) = 77;
        EXPECT_EQ(outcome(2, apart), alone) << "opcode " << static_cast<int>(opcode) << ", spoil " << i << apart;
      }
    }
  }
}

TEST_P(Errors, AfterResetTheQueueWorksAgain) {
  const Sge sge = a_->Local(0, 8);
  SendWr bad = link_->Wr(Opcode::kRead, &sge, 0);
  bad.rkey = 0;
  ExpectFailure(bad, WcStatus::kRemoteAccessError);
  // Both ends of a connection start anew, and both learn where its next life starts.
  constexpr uint32_t kNextPsn = 1000;
  KRCORE_EXPECT_OK(link_->qp->ToReset());
  KRCORE_EXPECT_OK(link_->qp->ToInit(0, 0));
  QpPeer peer;
  if (transport() == Transport::kRc) {
    peer = {.device = b_->device->address(), .qpn = link_->remote_qp->num(), .psn = kNextPsn};
    Qp& remote = *link_->remote_qp;
    KRCORE_EXPECT_OK(remote.ToReset());
    KRCORE_EXPECT_OK(remote.ToInit(kRemoteRead, 0));
    KRCORE_EXPECT_OK(remote.ToRtr({.device = a_->device->address(), .qpn = link_->qp->num(), .psn = kNextPsn}));
  }
  KRCORE_EXPECT_OK(link_->qp->ToRtr(peer));
  KRCORE_EXPECT_OK(link_->qp->ToRts());
  EXPECT_EQ(link_->Run(link_->Wr(Opcode::kRead, &sge, 0)).status, WcStatus::kSuccess);
}

TEST_P(Errors, TargetGoneIsRetryExceeded) {
  const Sge sge = a_->Local(0, 8);
  const SendWr wr = link_->Wr(Opcode::kRead, &sge, 0);
  EXPECT_EQ(link_->Run(wr).status, WcStatus::kSuccess);
  link_->remote_qp.reset();
  link_->dct.reset();
  EXPECT_EQ(link_->Run(wr).status, WcStatus::kRetryExceeded);
  EXPECT_EQ(link_->qp->state(), QpState::kErr);
}

TEST_P(Errors, ClosedDeviceIsDeadAndRetryExceeded) {
  const Sge sge = a_->Local(0, 8);
  const SendWr wr = link_->Wr(Opcode::kRead, &sge, 0);
  EXPECT_EQ(link_->Run(wr).status, WcStatus::kSuccess);
  const DeviceAddress address = b_->device->address();
  EXPECT_EQ(a_->device->QueryPeer(address), PeerState::kAlive);
  link_->remote_qp.reset();
  link_->dct.reset();
  b_.reset();
  EXPECT_EQ(a_->device->QueryPeer(address), PeerState::kDead);
  EXPECT_EQ(link_->Run(wr).status, WcStatus::kRetryExceeded);
  EXPECT_EQ(a_->device->CreateAddressHandle(address).status().code(), StatusCode::kNotFound);
}

class DcErrors : public RnicTest {};
INSTANTIATE_RNIC_TESTS(DcErrors);

TEST_P(DcErrors, WrongDcKeyIsRefusedAndNothingIsWritten) {
  if (!a_->device->caps().dc) GTEST_SKIP() << "the provider has no DC transport";
  Link link(a_.get(), b_.get(), Transport::kDc);
  a_->Word() = 3;
  const Sge sge = a_->Local(0, 8);
  SendWr wr = link.Wr(Opcode::kWrite, &sge, 0);
  wr.dc_key ^= 1;
  const WcStatus status = link.Run(wr).status;
  // Devices differ in whether the target refuses or stays silent.
  EXPECT_TRUE(status == WcStatus::kRemoteAccessError || status == WcStatus::kRetryExceeded) << WcStatusName(status);
  EXPECT_EQ(b_->Word(), 0U);
}

TEST_P(DcErrors, MissingAddressHandleIsRefusedAtPost) {
  if (!a_->device->caps().dc) GTEST_SKIP() << "the provider has no DC transport";
  Link link(a_.get(), b_.get(), Transport::kDc);
  const Sge sge = a_->Local(0, 8);
  SendWr wr = link.Wr(Opcode::kRead, &sge, 0);
  wr.ah = nullptr;
  EXPECT_EQ(link.Post(wr).code(), StatusCode::kInvalidArgument);
}

class Registration : public RnicTest {};
INSTANTIATE_RNIC_TESTS(Registration);

TEST_P(Registration, RemoteWriteAndAtomicRequireLocalWrite) {
  for (const uint32_t rights : {kRemoteWrite, kRemoteAtomic}) {
    EXPECT_EQ(a_->pd->RegisterMemory(a_->memory->bytes().data(), 64, rights).status().code(),
              StatusCode::kInvalidArgument);
  }
}

TEST_P(Registration, RemoteRightsOnPrivateMemoryAreUnsupportedWherePeersCannotReachIt) {
  if (!a_->device->caps().shared_memory_required) GTEST_SKIP() << "peers of this provider reach any memory";
  std::vector<uint64_t> words(8);
  EXPECT_EQ(a_->pd->RegisterMemory(words.data(), 64, kRemoteRead).status().code(), StatusCode::kUnsupported);
  std::byte* end = a_->memory->bytes().data() + a_->memory->bytes().size();
  EXPECT_EQ(a_->pd->RegisterMemory(end - 8, 64, kRemoteRead).status().code(), StatusCode::kUnsupported);
}

}  // namespace
}  // namespace krcore::rnic::testing
