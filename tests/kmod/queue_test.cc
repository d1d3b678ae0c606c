// What a queue of /dev/krcore does: requests, completions, its ring, its places.
#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <thread>

#include "tests/kmod/fixture.h"

namespace kmod_test {
namespace {

TEST(KmodQueue, TellsWhatItCanDo) {
  Queue queue;
  ASSERT_EQ(queue.Open(), 0);
  krc_query query;
  ASSERT_EQ(queue.Query(&query), 0);
  EXPECT_EQ(query.abi_version, uint32_t{KRC_ABI_VERSION});
  EXPECT_EQ(query.devices, 1u);
  EXPECT_GE(query.max_message_bytes, 1u << 20);
}

TEST(KmodQueue, ReadsAndWritesAndIsAtomic) {
  Side side;
  uint64_t* const words = side.memory.words();
  words[100] = 7;
  EXPECT_EQ(side.StatusOf(side.Request(KRC_OP_READ, 0, 100)), KRC_SUCCESS);
  EXPECT_EQ(words[0], 7u);
  words[0] = 8;
  EXPECT_EQ(side.StatusOf(side.Request(KRC_OP_WRITE, 0, 100)), KRC_SUCCESS);
  EXPECT_EQ(words[100], 8u);

  krc_request request = side.Request(KRC_OP_COMPARE_SWAP, 1, 100);
  request.compare_add = 8;
  request.swap = 9;
  EXPECT_EQ(side.StatusOf(request), KRC_SUCCESS);
  EXPECT_EQ(words[1], 8u);
  EXPECT_EQ(words[100], 9u);
  EXPECT_EQ(side.StatusOf(request), KRC_SUCCESS);  // finds another word, and leaves it unchanged
  EXPECT_EQ(words[1], 9u);
  EXPECT_EQ(words[100], 9u);

  request = side.Request(KRC_OP_FETCH_ADD, 2, 100);
  request.compare_add = 33;
  EXPECT_EQ(side.StatusOf(request), KRC_SUCCESS);
  EXPECT_EQ(words[2], 9u);
  EXPECT_EQ(words[100], 42u);
}

TEST(KmodQueue, GathersAndScattersSeveralSgesAcrossPages) {
  Side side;
  uint8_t* const bytes = side.memory.bytes();
  for (size_t i = 0; i < 6000; ++i) bytes[i] = static_cast<uint8_t>(i * 7);
  krc_request request =
      Side::Between(KRC_OP_WRITE, side.key, bytes, side.key, reinterpret_cast<uint64_t>(bytes + 8001), 2500);
  request.num_sge = 3;
  request.sges[1] = {reinterpret_cast<uint64_t>(bytes + 2500), 1, side.key};
  request.sges[2] = {reinterpret_cast<uint64_t>(bytes + 2501), 3499, side.key};
  EXPECT_EQ(side.StatusOf(request), KRC_SUCCESS);
  EXPECT_EQ(std::memcmp(bytes, bytes + 8001, 6000), 0);
  std::memset(bytes, 0, 6000);
  request.opcode = KRC_OP_READ;
  EXPECT_EQ(side.StatusOf(request), KRC_SUCCESS);
  EXPECT_EQ(bytes[2500], static_cast<uint8_t>(2500 * 7));
  EXPECT_EQ(std::memcmp(bytes, bytes + 8001, 6000), 0);
}

TEST(KmodQueue, CompletesInPostingOrderAndOnlyWhatIsSignaled) {
  Side side(64);
  for (uint64_t round = 0; round < 40; ++round) {
    std::vector<krc_request> batch;
    for (uint64_t i = 0; i < 16; ++i) {
      batch.push_back(side.Request(i % 2 == 0 ? KRC_OP_READ : KRC_OP_FETCH_ADD, i, 100 + i, round * 16 + i));
      if (i % 4 != 3) batch.back().flags = 0;
    }
    ASSERT_EQ(side.queue.Push(batch), 0);
    const std::vector<krc_completion> found = side.Await(4);
    for (uint64_t i = 0; i < found.size(); ++i) {
      EXPECT_EQ(found[i].wr_id, round * 16 + i * 4 + 3);
      EXPECT_EQ(found[i].status, KRC_SUCCESS);
      EXPECT_EQ(found[i].opcode, KRC_OP_FETCH_ADD);
    }
  }
  krc_completion none;
  EXPECT_EQ(side.queue.Pop({&none, 1}), 0u);
}

// Each WRITE sends on what the READ before it fetched. Without a fence it would send what was there before.
TEST(KmodQueue, AFencedRequestIsPostedBehindTheReadsBeforeIt) {
  constexpr uint64_t kPairs = 20;
  Side side;
  uint64_t* const words = side.memory.words();
  words[100] = 7;
  std::vector<krc_request> batch;
  for (uint64_t i = 0; i < kPairs; ++i) {
    batch.push_back(side.Request(KRC_OP_READ, i, 100 + i, 2 * i));
    batch.push_back(side.Request(KRC_OP_WRITE, i, 101 + i, 2 * i + 1));
    batch.back().flags |= KRC_FENCE;
  }
  const int64_t doorbells = Counter("doorbells");
  ASSERT_EQ(side.queue.Push(batch), 0);
  const std::vector<krc_completion> found = side.Await(batch.size());
  for (uint64_t i = 0; i < found.size(); ++i) {
    EXPECT_EQ(found[i].wr_id, i);
    EXPECT_EQ(found[i].status, KRC_SUCCESS);
  }
  EXPECT_EQ(words[100 + kPairs], 7u);
  // The fence is not left to the device: rxe forgets the fence of a request that it has to send again.
  EXPECT_GE(Counter("doorbells"), doorbells + int64_t{kPairs} + 1);
}

// A fence with nothing to wait for holds nothing back.
TEST(KmodQueue, AFenceWithNothingBeforeItIsPostedAtOnce) {
  Side side;
  const int64_t doorbells = Counter("doorbells");
  std::vector<krc_request> batch(8, side.Request(KRC_OP_WRITE, 0, 100));
  for (krc_request& request : batch) request.flags |= KRC_FENCE;
  ASSERT_EQ(side.queue.Push(batch), 0);
  for (const krc_completion& one : side.Await(batch.size())) EXPECT_EQ(one.status, KRC_SUCCESS);
  EXPECT_EQ(Counter("doorbells"), doorbells + 1);
}

TEST(KmodQueue, TakesMoreThanAPhysicalQueueHolds) {
  Side side(KRC_MAX_DEPTH);
  std::vector<krc_request> batch;
  for (uint64_t i = 0; i < KRC_MAX_DEPTH; ++i) {
    batch.push_back(side.Request(KRC_OP_FETCH_ADD, 1, 100, i));
    batch.back().compare_add = 1;
  }
  ASSERT_EQ(side.queue.Push(batch), 0);
  const std::vector<krc_completion> found = side.Await(KRC_MAX_DEPTH);
  for (uint64_t i = 0; i < found.size(); ++i) ASSERT_EQ(found[i].wr_id, i);
  EXPECT_EQ(side.memory.words()[100], uint64_t{KRC_MAX_DEPTH});
}

// The others find the counter where the greedy queue's requests had brought it when it was their turn.
TEST(KmodQueue, AGreedyOneDoesNotMakeOthersWaitForAllOfIts) {
  Side greedy(KRC_MAX_DEPTH, 16 * kPage);
  Side first(8), second(8);  // at least one of them goes through the same connection, of two
  std::vector<krc_request> batch;
  for (uint64_t i = 0; i < KRC_MAX_DEPTH; ++i) {
    batch.push_back(greedy.Request(i % 2 == 0 ? KRC_OP_FETCH_ADD : KRC_OP_READ, 1, 0, i));
    batch.back().compare_add = 1;
    if (i % 2 != 0) batch.back().sges[0].length = 8 * kPage;
  }
  ASSERT_EQ(greedy.queue.Push(batch), 0);
  for (Side* const other : {&first, &second}) {
    EXPECT_EQ(other->StatusOf(Side::Between(KRC_OP_READ, other->key, other->memory.bytes(), greedy.key,
                                            reinterpret_cast<uint64_t>(greedy.memory.words()))),
              KRC_SUCCESS);
    EXPECT_LT(other->memory.words()[0], KRC_MAX_DEPTH / 2 - 1);
  }
}

TEST(KmodQueue, RefusesWhatItsDepthDoesNotHoldUntilCompletionsArePopped) {
  Side side(4);
  std::vector<krc_request> five(5, side.Request(KRC_OP_READ, 0, 100));
  EXPECT_EQ(side.queue.Push(five), E2BIG);  // popping does not help
  const std::vector<krc_request> four(4, five[0]);
  ASSERT_EQ(side.queue.Push(four), 0);
  while (__atomic_load_n(&side.queue.ring()->head, __ATOMIC_ACQUIRE) != 4) {
    ASSERT_EQ(side.queue.Wait(kPatienceMs), 0);
  }
  // All are done, and none is popped: a fifth might find no place in the ring.
  EXPECT_EQ(side.Push(five[0]), EAGAIN);
  krc_completion one;
  EXPECT_EQ(side.queue.Pop({&one, 1}), 1u);
  EXPECT_EQ(side.Push(five[0]), 0);
  EXPECT_EQ(side.Push(five[0]), EAGAIN);
  side.Await(4);
}

TEST(KmodQueue, ATailThatMakesNoSenseCostsOnlyItsWriter) {
  Side side(8), other;
  for (const uint32_t tail : {1u, 9u, 0x80000000u, 0xFFFFFFF0u}) {
    side.queue.ring()->tail = tail;
    EXPECT_EQ(side.Push(side.Request(KRC_OP_READ, 0, 100)), EINVAL) << tail;
  }
  side.queue.ring()->tail = 0;
  side.queue.ring()->head = 12345;  // the module does not read it
  EXPECT_EQ(side.Push(side.Request(KRC_OP_READ, 0, 100)), 0);
  EXPECT_EQ(other.StatusOf(other.Request(KRC_OP_READ, 0, 100)), KRC_SUCCESS);
  // The ring is overwritten while the module writes: at worst the process that does it loses completions.
  for (int round = 0; round < 200; ++round) {
    std::memset(static_cast<void*>(side.queue.ring()), round, kPage / 16);
    (void)side.Push(side.Request(KRC_OP_READ, 0, 100));
  }
  EXPECT_EQ(other.StatusOf(other.Request(KRC_OP_READ, 0, 100)), KRC_SUCCESS);
}

TEST(KmodQueue, WaitSleepsUntilACompletionCame) {
  Side side;
  EXPECT_EQ(side.queue.Wait(0), ETIMEDOUT);
  std::thread pusher([&] { EXPECT_EQ(side.Push(side.Request(KRC_OP_READ, 0, 100)), 0); });
  EXPECT_EQ(side.queue.Wait(kPatienceMs), 0);
  pusher.join();
  side.Await(1);
  EXPECT_EQ(side.queue.Wait(0), ETIMEDOUT);
}

TEST(KmodQueue, CallsOutOfOrderAreRefused) {
  Queue queue;
  ASSERT_EQ(queue.Open(), 0);
  Pages memory(kPage);
  uint32_t key;
  const krc_request request = {};
  EXPECT_EQ(queue.Register(memory.bytes(), kPage, kAllRights, &key), EBADFD);
  EXPECT_EQ(queue.ConnectDevice({}), EBADFD);
  EXPECT_EQ(queue.Push({&request, 1}), EBADFD);
  EXPECT_EQ(queue.Deregister(1), EBADFD);
  EXPECT_EQ(mmap(nullptr, kPage, PROT_READ | PROT_WRITE, MAP_SHARED, queue.fd(), 0), MAP_FAILED);
  EXPECT_EQ(errno, EBADFD);
  EXPECT_EQ(queue.Attach("no_such_device", 8), ENODEV);
  EXPECT_EQ(queue.Attach("", 0), EINVAL);
  EXPECT_EQ(queue.Attach("", KRC_MAX_DEPTH + 1), EINVAL);
  ASSERT_EQ(queue.Attach("rxe0", 8), 0);
  EXPECT_EQ(queue.Attach("rxe0", 8), EBADFD);
  EXPECT_EQ(queue.Push({&request, 1}), ENOTCONN);
  EXPECT_EQ(queue.ConnectDevice({}), EHOSTUNREACH);
  // The ring is mapped whole, shared, from its start.
  EXPECT_EQ(mmap(nullptr, 2 * kPage, PROT_READ | PROT_WRITE, MAP_SHARED, queue.fd(), 0), MAP_FAILED);
  EXPECT_EQ(mmap(nullptr, kPage, PROT_READ | PROT_WRITE, MAP_SHARED, queue.fd(), kPage), MAP_FAILED);
  EXPECT_EQ(mmap(nullptr, kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE, queue.fd(), 0), MAP_FAILED);
}

TEST(KmodQueue, DeregisteringWaitsForRequestsAndRefusesNewOnes) {
  Side side(64, 8 * kPage);
  Pages target(8 * kPage);
  for (int round = 0; round < 3; ++round) {
    uint32_t key;
    ASSERT_EQ(side.queue.Register(target.bytes(), target.size(), kAllRights, &key), 0);
    const std::vector<krc_request> batch(
        32, Side::Between(KRC_OP_READ, side.key, side.memory.bytes(), key, reinterpret_cast<uint64_t>(target.bytes()),
                          static_cast<uint32_t>(target.size())));
    ASSERT_EQ(side.queue.Push(batch), 0);
    ASSERT_EQ(side.queue.Deregister(key), 0);
    EXPECT_EQ(side.queue.Push({batch.data(), 1}), EACCES);
    EXPECT_EQ(side.queue.Deregister(key), ENOENT);
    for (const krc_completion& one : side.Await(batch.size())) ASSERT_EQ(one.status, KRC_SUCCESS);
  }
}

TEST(KmodQueue, PinnedPagesOutliveTheirMapping) {
  Side side;
  side.memory.words()[100] = 5;
  side.memory.words()[0] = 0;
  const krc_request request = side.Request(KRC_OP_READ, 0, 100);
  side.memory.Unmap();
  EXPECT_EQ(side.StatusOf(request), KRC_SUCCESS);
}

}  // namespace
}  // namespace kmod_test
