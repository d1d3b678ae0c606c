// What the module refuses, and with which errno; and that a refused call disturbs nobody.
#include <grp.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "tests/kmod/fixture.h"

namespace kmod_test {
namespace {

uint64_t At(const void* pointer) { return reinterpret_cast<uint64_t>(pointer); }

TEST(KmodProtection, EachMalformedRequestHasItsErrno) {
  Side side(64, 8 * kPage);
  struct Case {
    const char* name;
    int error;
    std::function<void(krc_request&)> spoil;
  };
  const auto middle = At(side.memory.bytes());
  const uint64_t size = side.memory.size();
  const std::vector<Case> cases = {
      {"unknown opcode", EINVAL, [](krc_request& r) { r.opcode = 200; }},
      {"a WRITE_IMM", EOPNOTSUPP, [](krc_request& r) { r.opcode = KRC_OP_WRITE_IMM; }},
      {"a SEND to no port", ENOTCONN, [](krc_request& r) { r.opcode = KRC_OP_SEND; }},
      {"unknown flag", EINVAL, [](krc_request& r) { r.flags = 0x80; }},
      {"inline", EOPNOTSUPP, [](krc_request& r) { r.flags |= KRC_INLINE; }},
      {"reserved", EINVAL, [](krc_request& r) { r.reserved = 1; }},
      {"no SGE", EINVAL, [](krc_request& r) { r.num_sge = 0; }},
      {"too many SGEs", EINVAL, [](krc_request& r) { r.num_sge = KRC_MAX_SGE + 1; }},
      {"an empty SGE", EINVAL, [](krc_request& r) { r.sges[0].length = 0; }},
      {"an unknown lkey", EACCES, [](krc_request& r) { r.sges[0].lkey ^= 1; }},
      {"an unknown rkey", EACCES, [](krc_request& r) { r.rkey ^= 1; }},
      {"key 0", EACCES, [](krc_request& r) { r.rkey = 0; }},
      {"local: before its region", EACCES, [=](krc_request& r) { r.sges[0].addr = middle - 1; }},
      {"local: behind its region", EACCES, [=](krc_request& r) { r.sges[0].addr = middle + size - 7; }},
      {"local: an end that wraps", EACCES, [](krc_request& r) { r.sges[0].addr = ~uint64_t{0} - 3; }},
      {"local: longer than its region", EACCES, [=](krc_request& r) { r.sges[0].length = uint32_t(size) + 1; }},
      {"remote: before its region", EACCES, [=](krc_request& r) { r.remote_addr = middle - 8; }},
      {"remote: behind its region", EACCES, [=](krc_request& r) { r.remote_addr = middle + size; }},
      {"remote: an end that wraps", EACCES, [](krc_request& r) { r.remote_addr = ~uint64_t{0} - 3; }},
      {"remote: several SGEs that go beyond it together", EACCES,
       [=](krc_request& r) {
         r.num_sge = 2;
         r.sges[1] = r.sges[0];
         r.remote_addr = middle + size - 8;
       }},
      {"longer than a message", EMSGSIZE, [](krc_request& r) { r.sges[0].length = 0xFFFFFFFF; }},
      {"an atomic of 4 bytes", EINVAL,
       [](krc_request& r) {
         r.opcode = KRC_OP_FETCH_ADD;
         r.sges[0].length = 4;
       }},
      {"an atomic of two SGEs", EINVAL,
       [](krc_request& r) {
         r.opcode = KRC_OP_FETCH_ADD;
         r.num_sge = 2;
         r.sges[0].length = 4;
         r.sges[1] = r.sges[0];
       }},
      {"an unaligned atomic", EINVAL,
       [](krc_request& r) {
         r.opcode = KRC_OP_COMPARE_SWAP;
         r.remote_addr += 4;
       }},
  };
  const int64_t broken = Counter("broken");
  for (const Case& one : cases) {
    SCOPED_TRACE(one.name);
    const krc_request good = side.Request(KRC_OP_READ, 0, 100);
    std::vector<krc_request> batch(3, good);
    one.spoil(batch[1]);
    side.memory.words()[0] = 0;
    side.memory.words()[100] = 1;
    uint32_t bad_index = 77;
    EXPECT_EQ(side.queue.Push(batch, &bad_index), one.error);
    EXPECT_EQ(bad_index, 1u);
    // All or none: the good request before it was not done either, and all places are free again.
    krc_completion completion;
    EXPECT_EQ(side.queue.Pop({&completion, 1}), 0u);
    EXPECT_EQ(side.memory.words()[0], 0u);
    EXPECT_EQ(side.StatusOf(good), KRC_SUCCESS);
  }
  const std::vector<krc_request> all(64, side.Request(KRC_OP_READ, 0, 100));
  EXPECT_EQ(side.queue.Push(all), 0);
  side.Await(all.size());
  EXPECT_EQ(Counter("broken"), broken);
}

TEST(KmodProtection, RightsAreThoseOfTheRegion) {
  Side side;
  Pages memory(kPage);
  struct Case {
    uint32_t access;
    uint8_t opcode;
    int as_local, as_remote;
  };
  const Case cases[] = {
      {0, KRC_OP_READ, EACCES, EACCES},
      {0, KRC_OP_WRITE, 0, EACCES},
      {KRC_LOCAL_WRITE, KRC_OP_READ, 0, EACCES},
      {KRC_LOCAL_WRITE, KRC_OP_FETCH_ADD, 0, EACCES},
      {KRC_REMOTE_READ, KRC_OP_READ, EACCES, 0},
      {KRC_REMOTE_READ, KRC_OP_WRITE, 0, EACCES},
      {KRC_REMOTE_READ, KRC_OP_FETCH_ADD, EACCES, EACCES},
      {KRC_LOCAL_WRITE | KRC_REMOTE_WRITE, KRC_OP_WRITE, 0, 0},
      {KRC_LOCAL_WRITE | KRC_REMOTE_WRITE, KRC_OP_READ, 0, EACCES},
      {KRC_LOCAL_WRITE | KRC_REMOTE_WRITE, KRC_OP_COMPARE_SWAP, 0, EACCES},
      {KRC_LOCAL_WRITE | KRC_REMOTE_ATOMIC, KRC_OP_COMPARE_SWAP, 0, 0},
      {KRC_LOCAL_WRITE | KRC_REMOTE_ATOMIC, KRC_OP_WRITE, 0, EACCES},
  };
  for (const Case& one : cases) {
    SCOPED_TRACE(testing::Message() << "access " << one.access << ", opcode " << int(one.opcode));
    uint32_t key;
    ASSERT_EQ(side.queue.Register(memory.bytes(), kPage, one.access, &key), 0);
    const uint64_t own = At(side.memory.bytes());
    EXPECT_EQ(side.Push(Side::Between(one.opcode, key, memory.bytes(), side.key, own)), one.as_local);
    if (one.as_local == 0) {
      EXPECT_EQ(side.Await(1)[0].status, KRC_SUCCESS);
    }
    EXPECT_EQ(side.Push(Side::Between(one.opcode, side.key, side.memory.bytes(), key, At(memory.bytes()))),
              one.as_remote);
    if (one.as_remote == 0) {
      EXPECT_EQ(side.Await(1)[0].status, KRC_SUCCESS);
    }
    ASSERT_EQ(side.queue.Deregister(key), 0);
  }
  uint32_t key;
  EXPECT_EQ(side.queue.Register(memory.bytes(), kPage, KRC_REMOTE_WRITE, &key), EINVAL);
  EXPECT_EQ(side.queue.Register(memory.bytes(), kPage, KRC_REMOTE_ATOMIC, &key), EINVAL);
  EXPECT_EQ(side.queue.Register(memory.bytes(), kPage, 16, &key), EINVAL);
}

TEST(KmodProtection, MemoryThatIsNotTheProcesssCannotBeRegistered) {
  Side side;
  uint32_t key;
  Pages memory(kPage);
  uint8_t* const gone = memory.bytes();
  memory.Unmap();
  EXPECT_EQ(side.queue.Register(gone, kPage, kAllRights, &key), EFAULT);
  EXPECT_EQ(side.queue.Register(nullptr, kPage, kAllRights, &key), EFAULT);
  EXPECT_EQ(side.queue.Register(gone, 0, kAllRights, &key), EINVAL);
  EXPECT_EQ(side.queue.Register(gone, ~size_t{0}, kAllRights, &key), EINVAL);
  // The kernel's own memory.
  EXPECT_EQ(side.queue.Register(reinterpret_cast<void*>(0xFFFFFFFF81000000u), kPage, kAllRights, &key), EINVAL);
  void* const constant = mmap(nullptr, kPage, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  EXPECT_EQ(side.queue.Register(constant, kPage, kAllRights, &key), EFAULT);
  munmap(constant, kPage);
}

TEST(KmodProtection, AForkedChildDoesNotInheritTheRing) {
  Side side;
  const volatile krc_ring_header* const ring = side.queue.ring();
  EXPECT_EQ(InChild([&] { return static_cast<int>(ring->head); }), -1 - SIGSEGV);
}

// Another process knows all keys and addresses of this one, and even uses the same addresses.
TEST(KmodProtection, AnotherProcesssMemoryIsReachedOnlyAsFarAsItWasOpened) {
  Side side(64, kPage, KRC_LOCAL_WRITE | KRC_REMOTE_READ);
  Pages secret(kPage);
  uint32_t secret_key;
  ASSERT_EQ(side.queue.Register(secret.bytes(), kPage, KRC_LOCAL_WRITE, &secret_key), 0);
  side.memory.words()[0] = 11;
  secret.words()[0] = 12;
  EXPECT_EQ(
      InChild([&] {
        Side child;
        // It tries as with its own memory: to read it, and to write to it.
        if (child.Push(Side::Between(KRC_OP_WRITE, secret_key, secret.bytes(), child.key, At(child.memory.bytes()))) !=
            EACCES)
          return 1;
        if (child.Push(Side::Between(KRC_OP_READ, secret_key, secret.bytes(), child.key, At(child.memory.bytes()))) !=
            EACCES)
          return 2;
        // It tries as with a peer's memory.
        if (child.Push(Side::Between(KRC_OP_READ, child.key, child.memory.bytes(), secret_key, At(secret.bytes()))) !=
            EACCES)
          return 3;
        if (child.Push(Side::Between(KRC_OP_WRITE, child.key, child.memory.bytes(), side.key,
                                     At(side.memory.bytes()))) != EACCES)
          return 4;
        // What was shared can be reached.
        if (child.StatusOf(Side::Between(KRC_OP_READ, child.key, child.memory.bytes(), side.key,
                                         At(side.memory.bytes()))) != KRC_SUCCESS)
          return 5;
        if (child.memory.words()[0] != 11) return 6;
        // It cannot end what is not its own either.
        if (child.queue.Deregister(secret_key) != ENOENT) return 7;
        return testing::Test::HasFailure() ? 8 : 0;
      }),
      0);
  EXPECT_EQ(secret.words()[0], 12u);
}

TEST(KmodProtection, AFileBelongsToTheProcessThatOpenedIt) {
  Side side;
  EXPECT_EQ(InChild([&] {
              krc_query query;
              uint32_t key;
              if (side.queue.Query(&query) != EPERM) return 1;
              if (side.queue.Register(side.memory.bytes(), kPage, kAllRights, &key) != EPERM) return 2;
              if (side.Push(side.Request(KRC_OP_READ, 0, 100)) != EPERM) return 3;
              if (mmap(nullptr, kPage, PROT_READ | PROT_WRITE, MAP_SHARED, side.queue.fd(), 0) != MAP_FAILED) return 4;
              return errno == EPERM ? 0 : 5;
            }),
            0);
  EXPECT_EQ(side.StatusOf(side.Request(KRC_OP_READ, 0, 100)), KRC_SUCCESS);
}

TEST(KmodProtection, TwoFilesOfAProcessShareItsRegions) {
  Side first, second;
  const krc_request request =
      Side::Between(KRC_OP_READ, second.key, second.memory.bytes(), second.key, At(second.memory.words() + 100));
  second.memory.words()[100] = 3;
  EXPECT_EQ(first.StatusOf(request), KRC_SUCCESS);
  EXPECT_EQ(second.memory.words()[0], 3u);
  EXPECT_EQ(first.queue.Deregister(second.key), ENOENT);  // it is the other one's
}

TEST(KmodProtection, PinnedMemoryIsBoundedByTheMemoryLockLimit) {
  EXPECT_EQ(InChild([] {
              const rlimit limit = {64 * kPage, 64 * kPage};
              if (setrlimit(RLIMIT_MEMLOCK, &limit) != 0 || setgroups(0, nullptr) != 0) return 1;
              if (setgid(65534) != 0 || setuid(65534) != 0) return 2;  // root is above limits
              Side side;                                               // 4 pages; also, user nobody may use it
              if (testing::Test::HasFailure()) return 3;
              Pages memory(64 * kPage);
              uint32_t key, other;
              if (side.queue.Register(memory.bytes(), 61 * kPage, kAllRights, &key) != ENOMEM) return 4;
              if (side.queue.Register(memory.bytes(), 60 * kPage, kAllRights, &key) != 0) return 5;
              if (side.queue.Register(memory.bytes() + 60 * kPage, kPage, kAllRights, &other) != ENOMEM) return 6;
              if (side.queue.Deregister(key) != 0) return 7;
              if (side.queue.Register(memory.bytes(), 60 * kPage, kAllRights, &key) != 0) return 8;
              return 0;
            }),
            0);
}

TEST(KmodProtection, AQueueHasSoManyRegionsAndNoMore) {
  Side side;
  krc_query query;
  ASSERT_EQ(side.queue.Query(&query), 0);
  uint32_t key;
  for (uint32_t i = 1; i < query.max_regions; ++i) {
    ASSERT_EQ(side.queue.Register(side.memory.bytes(), 8, 0, &key), 0) << i;
  }
  EXPECT_EQ(side.queue.Register(side.memory.bytes(), 8, 0, &key), ENOSPC);
}

}  // namespace
}  // namespace kmod_test
