// Every request that this node can know to be wrong is refused with its code, and nothing reaches the shared QP.
#include "krcore/queue/request_check.h"

#include <functional>
#include <iterator>
#include <random>
#include <string>

#include "tests/krcore/fixture.h"

namespace krcore::test {
namespace {

constexpr size_t kRemoteBytes = 4096;
constexpr size_t kLocalBytes = 1 << 20;

struct BadRequest {
  std::string name;
  StatusCode code;
  std::function<void(WorkRequest&, Sge&)> spoil;  // of a valid READ of 8 bytes
};

class RefusedRequest : public ::testing::TestWithParam<BadRequest> {};

TEST_P(RefusedRequest, GetsItsCodeAndLeavesTheSharedQueueUsable) {
  const std::string fabric = UniqueFabric(true);
  MemoryNode memory = MemoryNode::Start(fabric, 1, kRemoteBytes, true);
  Worker worker = Worker::Start(fabric, {.dc_initiators = 1}, kLocalBytes);
  auto offender = worker.Connect(1);
  auto other = worker.Connect(1);
  const Sge good_sge = worker.Word(0);
  const WorkRequest good = OnWord(*offender, Opcode::kRead, &good_sge, 0);
  // Requests like these are checked while they are written to the ring.
  const WorkRequest known[2] = {good, good};
  ASSERT_TRUE(offender->Push(known).ok());
  while (offender->outstanding() != 0) worker.pool->Poll();
  Completion done[2];
  ASSERT_EQ(offender->Pop(done), 2u);

  Sge sge = good_sge;
  WorkRequest bad = good;
  bad.sg_list = &sge;
  GetParam().spoil(bad, sge);
  const WorkRequest batch[3] = {good, good, bad};
  size_t bad_index = 99;
  const StatusCode code = GetParam().code;
  EXPECT_EQ(offender->Push(batch, &bad_index).code(), code);
  EXPECT_EQ(bad_index, 2u);
  EXPECT_EQ(offender->outstanding(), 0u) << "all or none";
  EXPECT_EQ(offender->Push({&bad, 1}).code(), code) << "alone, too";

  EXPECT_EQ(Execute(*worker.pool, *other, good).status, WcStatus::kSuccess);
  EXPECT_EQ(Execute(*worker.pool, *offender, good).status, WcStatus::kSuccess);
  EXPECT_EQ(worker.pool->stats().broken_queues, 0u);
  EXPECT_EQ(worker.pool->stats().work_requests, 4u) << "nothing of the refused batch was posted";
}

const BadRequest kBadRequests[] = {
    {"ReceiveOpcode", StatusCode::kInvalidArgument, [](WorkRequest& wr, Sge&) { wr.opcode = Opcode::kRecv; }},
    {"UnknownOpcode", StatusCode::kInvalidArgument,
     [](WorkRequest& wr, Sge&) { wr.opcode = static_cast<Opcode>(200); }},
    {"SendNotConnectedToAPort", StatusCode::kBadState, [](WorkRequest& wr, Sge&) { wr.opcode = Opcode::kSend; }},
    {"WriteWithImmNotConnectedToAPort", StatusCode::kBadState,
     [](WorkRequest& wr, Sge&) { wr.opcode = Opcode::kWriteImm; }},
    {"UnknownFlag", StatusCode::kInvalidArgument, [](WorkRequest& wr, Sge&) { wr.flags = 0x40; }},
    {"NoSge", StatusCode::kInvalidArgument, [](WorkRequest& wr, Sge&) { wr.num_sge = 0; }},
    {"TooManySges", StatusCode::kInvalidArgument, [](WorkRequest& wr, Sge&) { wr.num_sge = 200; }},
    {"NullSgeList", StatusCode::kInvalidArgument, [](WorkRequest& wr, Sge&) { wr.sg_list = nullptr; }},
    {"EmptySge", StatusCode::kInvalidArgument, [](WorkRequest&, Sge& sge) { sge.length = 0; }},
    {"InlineRead", StatusCode::kInvalidArgument, [](WorkRequest& wr, Sge&) { wr.flags = kInline; }},
    {"InlineTooLong", StatusCode::kInvalidArgument,
     [](WorkRequest& wr, Sge& sge) {
       wr.opcode = Opcode::kWrite;
       wr.flags = kInline;
       sge.length = 1 << 18;
     }},
    {"UnknownLkey", StatusCode::kPermissionDenied, [](WorkRequest&, Sge& sge) { sge.lkey ^= 0x5a5a; }},
    {"LocalRangeBeforeTheRegion", StatusCode::kPermissionDenied, [](WorkRequest&, Sge& sge) { sge.addr -= 1; }},
    {"LocalRangeBeyondTheRegion", StatusCode::kPermissionDenied,
     [](WorkRequest&, Sge& sge) { sge.addr += kLocalBytes - 7; }},
    {"LocalRangeThatWrapsAround", StatusCode::kPermissionDenied,
     [](WorkRequest&, Sge& sge) { sge.addr = UINT64_MAX - 3; }},
    {"UnknownRkey", StatusCode::kPermissionDenied, [](WorkRequest& wr, Sge&) { wr.rkey ^= 0x5a5a; }},
    {"RemoteRangeBeforeTheRegion", StatusCode::kPermissionDenied, [](WorkRequest& wr, Sge&) { wr.remote_addr -= 8; }},
    {"RemoteRangeBeyondTheRegion", StatusCode::kPermissionDenied,
     [](WorkRequest& wr, Sge&) { wr.remote_addr += kRemoteBytes - 7; }},
    {"RemoteRangeThatWrapsAround", StatusCode::kPermissionDenied,
     [](WorkRequest& wr, Sge&) { wr.remote_addr = UINT64_MAX - 3; }},
    {"LongerThanTheRemoteRegion", StatusCode::kPermissionDenied,
     [](WorkRequest&, Sge& sge) { sge.length = kRemoteBytes + 1; }},
    {"AtomicOf4Bytes", StatusCode::kInvalidArgument,
     [](WorkRequest& wr, Sge& sge) {
       wr.opcode = Opcode::kCompareSwap;
       sge.length = 4;
     }},
    {"AtomicOf16Bytes", StatusCode::kInvalidArgument,
     [](WorkRequest& wr, Sge& sge) {
       wr.opcode = Opcode::kFetchAdd;
       sge.length = 16;
     }},
    {"UnalignedAtomic", StatusCode::kInvalidArgument,
     [](WorkRequest& wr, Sge&) {
       wr.opcode = Opcode::kFetchAdd;
       wr.remote_addr += 4;
     }},
    {"InlineAtomic", StatusCode::kInvalidArgument,
     [](WorkRequest& wr, Sge&) {
       wr.opcode = Opcode::kFetchAdd;
       wr.flags = kInline;
     }},
};

INSTANTIATE_TEST_SUITE_P(Each, RefusedRequest, ::testing::ValuesIn(kBadRequests),
                         [](const auto& info) { return info.param.name; });

// A check that compares with what it does not know yet may take all zeros for known.
TEST(RequestCheck, ARequestWithoutSgesIsRefusedAndItsListIsNotLookedAt) {
  const std::string fabric = UniqueFabric(true);
  MemoryNode memory = MemoryNode::Start(fabric, 1, kRemoteBytes, true);
  Worker worker = Worker::Start(fabric, {.dc_initiators = 1}, kLocalBytes);
  auto queue = worker.Connect(1);
  const Sge zeros{};
  for (const bool known : {false, true}) {
    for (const Sge* list : {&zeros, reinterpret_cast<const Sge*>(uintptr_t{16})}) {
      WorkRequest none;
      none.sg_list = list;
      const WorkRequest batch[2] = {none, none};
      size_t bad_index = 99;
      EXPECT_EQ(queue->Push(batch, &bad_index).code(), StatusCode::kInvalidArgument) << known;
      EXPECT_EQ(bad_index, 0u);
    }
    const Sge sge = worker.Word(0);
    const WorkRequest good = OnWord(*queue, Opcode::kRead, &sge, 0);
    EXPECT_EQ(Execute(*worker.pool, *queue, good).status, WcStatus::kSuccess);
  }
}

TEST(RequestCheck, KeyOfADestroyedRegionIsRefused) {
  const std::string fabric = UniqueFabric(true);
  MemoryNode memory = MemoryNode::Start(fabric, 1, kRemoteBytes, true);
  Worker worker = Worker::Start(fabric);
  auto queue = worker.Connect(1);
  auto region = worker.node->CreateRegion({.length = 64}).value();
  const Sge sge{reinterpret_cast<uint64_t>(region->bytes().data()), 8, region->lkey()};
  const WorkRequest wr = OnWord(*queue, Opcode::kRead, &sge, 0);
  EXPECT_EQ(Execute(*worker.pool, *queue, wr).status, WcStatus::kSuccess) << "a region made after the pool is known";
  region.reset();
  EXPECT_EQ(queue->Push({&wr, 1}).code(), StatusCode::kPermissionDenied);
}

TEST(RequestCheck, CallersOwnMemoryIsUsableOnceRegistered) {
  const std::string fabric = UniqueFabric(true);
  MemoryNode memory = MemoryNode::Start(fabric, 1, kRemoteBytes, true);
  memory.words()[0] = 11;
  Worker worker = Worker::Start(fabric);
  auto queue = worker.Connect(1);
  alignas(64) uint64_t mine[8] = {};
  auto region = worker.node->RegisterLocal(mine, sizeof(mine)).value();
  const Sge sge{reinterpret_cast<uint64_t>(&mine[3]), 8, region->lkey()};
  EXPECT_EQ(Execute(*worker.pool, *queue, OnWord(*queue, Opcode::kRead, &sge, 0)).status, WcStatus::kSuccess);
  EXPECT_EQ(mine[3], 11u);
}

// What was learned from requests that passed is forgotten when the regions that they named go away.
TEST(RequestCheck, OfRequestsLikeThoseThatPassedKnowsThatTheirRegionsHaveGone) {
  const std::string fabric = UniqueFabric(true);
  MemoryNode large = MemoryNode::Start(fabric, 1, kRemoteBytes, true);
  MemoryNode small = MemoryNode::Start(fabric, 2, kRemoteBytes / 2, true);
  Worker worker = Worker::Start(fabric, {.dc_initiators = 1}, kLocalBytes);
  auto queue = worker.Connect(1);
  auto mine = worker.node->CreateRegion({.length = 4096}).value();
  const Sge sge{reinterpret_cast<uint64_t>(mine->bytes().data()), 8, mine->lkey()};
  const auto push = [&](const Sge& into, size_t remote_word) {
    const WorkRequest wr = OnWord(*queue, Opcode::kRead, &into, remote_word);
    const WorkRequest batch[2] = {wr, wr};
    const StatusCode code = queue->Push(batch).code();
    Completion done[2];
    for (size_t got = 0; got < 2 && code == StatusCode::kOk;) {
      worker.pool->Poll();
      got += queue->Pop(done);
    }
    return code;
  };
  EXPECT_EQ(push(sge, kRemoteBytes / 8 - 1), StatusCode::kOk);
  EXPECT_EQ(push(sge, kRemoteBytes / 8 - 1), StatusCode::kOk);
  mine.reset();
  EXPECT_EQ(push(sge, 0), StatusCode::kPermissionDenied);

  const Sge other = worker.Word(0);
  EXPECT_EQ(push(other, kRemoteBytes / 8 - 1), StatusCode::kOk);
  const RemoteRegion before = queue->regions()[0];
  ASSERT_TRUE(queue->Connect(2, Deadline::Never()).ok());
  EXPECT_EQ(push(other, 0), StatusCode::kOk);
  // The request names a region of the former peer, which is alive.
  WorkRequest wr = OnWord(*queue, Opcode::kRead, &other, 0);
  wr.remote_addr = before.addr;
  wr.rkey = before.rkey;
  const WorkRequest batch[2] = {wr, wr};
  if (before.rkey != queue->regions()[0].rkey || before.addr != queue->regions()[0].addr) {
    EXPECT_EQ(queue->Push(batch).code(), StatusCode::kPermissionDenied);
  }
}

// The checks of a batch look at some requests less closely than CheckRequest does, and must give the same result.
TEST(RequestCheck, OfABatchRefusesTheRequestThatIsRefusedAlone) {
  peers::RegionTable table;
  table.Add({.addr = 4096, .length = 256, .lkey = 1, .rights = kLocalWrite});
  table.Add({.addr = 8192, .length = 64, .lkey = 2, .rights = 0});
  peers::RegionView view(table);
  view.Sync();
  const RemoteRegion remote[] = {{1 << 16, 128, 7, 0}, {1 << 17, 4096, 8, 0}, {~uint64_t{0} - 63, 128, 9, 0}};
  const queue::RequestLimits limits{4, 16, 200};
  std::mt19937 random(1);
  // Picks the first value most of the time.
  const auto pick = [&](auto... values) {
    const uint64_t all[] = {static_cast<uint64_t>(values)...};
    return random() % 8 != 0 ? all[0] : all[random() % std::size(all)];
  };
  int accepted = 0, refused = 0, alone = 0;
  queue::LikeRequest like;
  for (int round = 0; round < 100'000; ++round) {
    Sge sges[4];
    WorkRequest wrs[4];
    for (int i = 0; i < 4; ++i) {
      sges[i] = {pick(4096, 4100, 4344, 8192, 8193, 0), static_cast<uint32_t>(pick(8, 64, 65, 0, 300)),
                 static_cast<uint32_t>(pick(1, 2, 3))};
      wrs[i].sg_list = pick(1, 0) != 0 ? &sges[i] : nullptr;
      wrs[i].num_sge = static_cast<uint8_t>(pick(1, 0));
      wrs[i].opcode = static_cast<Opcode>(random() % 2 == 0 ? pick(0, 1, 7, 40) : pick(5, 6));
      wrs[i].flags = static_cast<uint8_t>(pick(1, 0, 2, 8, 4, 0x40));
      wrs[i].remote_addr = pick(1 << 16, (1 << 16) + 120, 1 << 17, (1 << 17) + 4, ~uint64_t{0} - 31, 0);
      wrs[i].rkey = static_cast<uint32_t>(pick(7, 8, 9, 10));
      if (i != 0 && random() % 2 == 0) {  // like the one before except for its addresses
        const uint64_t addr = wrs[i].remote_addr;
        sges[i].lkey = sges[i - 1].lkey;
        wrs[i] = wrs[i - 1];
        wrs[i].sg_list = &sges[i];
        wrs[i].remote_addr = addr;
      }
    }
    size_t first = 0;
    bool expect_inline = false;
    StatusCode expected = StatusCode::kOk;
    for (uint64_t bytes; first < 4; ++first) {
      expected = queue::CheckRequest(wrs[first], limits, view, remote, &bytes);
      if (expected != StatusCode::kOk) break;
      expect_inline |= (wrs[first].flags & kInline) != 0;
    }
    size_t bad_index = 4;
    bool has_inline = false;
    ASSERT_EQ(queue::CheckRequests(wrs, limits, view, remote, &like, &bad_index, &has_inline), expected) << round;
    ASSERT_EQ(bad_index, first) << round;
    ASSERT_EQ(has_inline, expect_inline) << round;
    for (const WorkRequest& wr : wrs) {
      if (!like.Allows(wr)) continue;
      uint64_t bytes;
      ASSERT_EQ(queue::CheckRequest(wr, limits, view, remote, &bytes), StatusCode::kOk) << round;
      ASSERT_EQ(wr.flags & kInline, 0) << "whose payload has to be copied";
      ++alone;
    }
    ++(first > 1 ? accepted : refused);
  }
  EXPECT_GT(accepted, 10'000) << "of two or more: the shortcut was taken";
  EXPECT_GT(refused, 10'000);
  EXPECT_GT(alone, 10'000);
}

TEST(RegionView, FindsEveryLiveRegionAndNoOther) {
  peers::RegionTable table;
  peers::RegionView view(table);
  EXPECT_EQ(view.Find(0), nullptr);
  for (uint32_t key = 0; key < 500; ++key) table.Add({.addr = key * 100, .length = 100, .lkey = key * 257});
  view.Sync();
  for (uint32_t key = 0; key < 500; ++key) {
    const peers::LocalRegion* found = view.Find(key * 257);
    ASSERT_NE(found, nullptr) << key;
    EXPECT_EQ(found->addr, key * 100);
  }
  for (uint32_t key = 0; key < 500; key += 2) table.Remove(key * 257);
  view.Sync();
  for (uint32_t key = 0; key < 500; ++key) EXPECT_EQ(view.Find(key * 257) != nullptr, key % 2 == 1) << key;
}

}  // namespace
}  // namespace krcore::test
