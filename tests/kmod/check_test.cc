// The form of requests, as the module judges it (kmod/check.c), without the module.
#include <gtest/gtest.h>

#include <cerrno>
#include <functional>
#include <memory>
#include <random>

extern "C" {
#include "kmod/check.h"
}

namespace {

constexpr uint32_t kMaxBytes = 1 << 20;

krc_request Good(uint8_t opcode) {
  krc_request request = {};
  request.opcode = opcode;
  request.flags = KRC_SIGNALED;
  request.num_sge = 1;
  request.sges[0] = {0x1000, 8, 1};
  request.remote_addr = 0x2000;
  return request;
}

int Check(const krc_request& request, __u64* bytes) { return krc_check_form(&request, kMaxBytes, bytes); }

TEST(KmodCheck, TakesTheOneSidedRequestsAndSumsTheirBytes) {
  __u64 bytes = 0;
  for (const uint8_t opcode : {KRC_OP_READ, KRC_OP_WRITE, KRC_OP_COMPARE_SWAP, KRC_OP_FETCH_ADD}) {
    EXPECT_EQ(Check(Good(opcode), &bytes), 0) << int{opcode};
    EXPECT_EQ(bytes, 8u);
  }
  krc_request request = Good(KRC_OP_WRITE);
  request.flags = KRC_SIGNALED | KRC_FENCE | KRC_SOLICITED;
  request.num_sge = KRC_MAX_SGE;
  for (krc_sge& sge : request.sges) sge.length = kMaxBytes / KRC_MAX_SGE;
  EXPECT_EQ(Check(request, &bytes), 0);
  EXPECT_EQ(bytes, kMaxBytes);
}

TEST(KmodCheck, TakesMessagesAlsoEmptyOnes) {
  __u64 bytes = 99;
  for (const uint8_t opcode : {KRC_OP_SEND, KRC_OP_SEND_IMM}) {
    krc_request request = Good(opcode);
    EXPECT_EQ(Check(request, &bytes), 0);
    EXPECT_EQ(bytes, 8u);
    EXPECT_EQ(krc_local_access(opcode), 0u);
    request.num_sge = 0;
    EXPECT_EQ(Check(request, &bytes), 0);
    EXPECT_EQ(bytes, 0u);
  }
}

TEST(KmodCheck, EachMalformedRequestHasItsErrno) {
  struct Case {
    const char* name;
    int error;
    std::function<void(krc_request&)> spoil;
  };
  const Case cases[] = {
      {"unknown opcode", -EINVAL, [](krc_request& r) { r.opcode = KRC_OP_FETCH_ADD + 1; }},
      {"WRITE_IMM", -EOPNOTSUPP, [](krc_request& r) { r.opcode = KRC_OP_WRITE_IMM; }},
      {"a SEND of more SGEs than there are", -EINVAL,
       [](krc_request& r) {
         r.opcode = KRC_OP_SEND;
         r.num_sge = KRC_MAX_SGE + 1;
       }},
      {"a SEND of an empty SGE", -EINVAL,
       [](krc_request& r) {
         r.opcode = KRC_OP_SEND_IMM;
         r.sges[0].length = 0;
       }},
      {"unknown flag", -EINVAL, [](krc_request& r) { r.flags |= 16; }},
      {"inline", -EOPNOTSUPP, [](krc_request& r) { r.flags |= KRC_INLINE; }},
      {"reserved", -EINVAL, [](krc_request& r) { r.reserved = 1; }},
      {"no SGE", -EINVAL, [](krc_request& r) { r.num_sge = 0; }},
      {"more SGEs than there are", -EINVAL, [](krc_request& r) { r.num_sge = KRC_MAX_SGE + 1; }},
      {"all SGEs that a byte counts", -EINVAL, [](krc_request& r) { r.num_sge = 255; }},
      {"an empty SGE", -EINVAL, [](krc_request& r) { r.sges[0].length = 0; }},
      {"an empty SGE behind another", -EINVAL,
       [](krc_request& r) {
         r.num_sge = 2;
         r.sges[1].length = 0;
       }},
      {"a byte too long", -EMSGSIZE, [](krc_request& r) { r.sges[0].length = kMaxBytes + 1; }},
      {"a sum beyond 32 bits", -EMSGSIZE,
       [](krc_request& r) {
         r.num_sge = 2;
         r.sges[0].length = 0xFFFFFFFF;
         r.sges[1].length = 2;
       }},
      {"an atomic of 4 bytes", -EINVAL,
       [](krc_request& r) {
         r.opcode = KRC_OP_FETCH_ADD;
         r.sges[0].length = 4;
       }},
      {"an atomic of two SGEs", -EINVAL,
       [](krc_request& r) {
         r.opcode = KRC_OP_COMPARE_SWAP;
         r.num_sge = 2;
         r.sges[0].length = r.sges[1].length = 4;
       }},
      {"an unaligned atomic", -EINVAL,
       [](krc_request& r) {
         r.opcode = KRC_OP_FETCH_ADD;
         r.remote_addr += 4;
       }},
  };
  for (const Case& one : cases) {
    krc_request request = Good(KRC_OP_READ);
    one.spoil(request);
    __u64 bytes = 0;
    EXPECT_EQ(Check(request, &bytes), one.error) << one.name;
  }
}

// Whatever the bytes, nothing is read beyond the request (ASan), and an accepted request has the form that is promised.
TEST(KmodCheck, RandomRequestsThatItTakesHaveTheForm) {
  std::mt19937_64 random(1);
  int taken = 0;
  for (int i = 0; i < 200'000; ++i) {
    auto request = std::make_unique<krc_request>(Good(static_cast<uint8_t>(random() % 8)));
    for (uint64_t spoilt = random() % 4; spoilt != 0; --spoilt)
      reinterpret_cast<uint8_t*>(request.get())[random() % sizeof(krc_request)] = static_cast<uint8_t>(random());
    __u64 bytes = 0;
    if (Check(*request, &bytes) != 0) continue;
    ++taken;
    const int least = krc_is_send(request->opcode) ? 0 : 1;
    ASSERT_TRUE(request->num_sge >= least && request->num_sge <= KRC_MAX_SGE);
    uint64_t sum = 0;
    for (int s = 0; s < request->num_sge; ++s) sum += request->sges[s].length;
    ASSERT_TRUE(sum == bytes && sum >= static_cast<uint64_t>(least) && sum <= kMaxBytes);
    if (request->opcode >= KRC_OP_COMPARE_SWAP) {
      ASSERT_TRUE(bytes == 8 && request->remote_addr % 8 == 0);
    }
  }
  EXPECT_GT(taken, 10'000);
}

TEST(KmodCheck, RightsOfARegionAreTheOnesOfVerbs) {
  for (uint32_t access = 0; access < 64; ++access) {
    const bool changed_by_others = (access & (KRC_REMOTE_WRITE | KRC_REMOTE_ATOMIC)) != 0;
    const bool good = access < 16 && (!changed_by_others || (access & KRC_LOCAL_WRITE) != 0);
    EXPECT_EQ(krc_check_access(access), good ? 0 : -EINVAL) << access;
  }
  EXPECT_EQ(krc_check_access(0x80000000u), -EINVAL);
}

TEST(KmodCheck, EachOpcodeNeedsItsRights) {
  EXPECT_EQ(krc_local_access(KRC_OP_READ), uint32_t{KRC_LOCAL_WRITE});
  EXPECT_EQ(krc_local_access(KRC_OP_WRITE), 0u);
  EXPECT_EQ(krc_local_access(KRC_OP_COMPARE_SWAP), uint32_t{KRC_LOCAL_WRITE});
  EXPECT_EQ(krc_local_access(KRC_OP_FETCH_ADD), uint32_t{KRC_LOCAL_WRITE});
  EXPECT_EQ(krc_remote_access(KRC_OP_READ), uint32_t{KRC_REMOTE_READ});
  EXPECT_EQ(krc_remote_access(KRC_OP_WRITE), uint32_t{KRC_REMOTE_WRITE});
  EXPECT_EQ(krc_remote_access(KRC_OP_COMPARE_SWAP), uint32_t{KRC_REMOTE_ATOMIC});
  EXPECT_EQ(krc_remote_access(KRC_OP_FETCH_ADD), uint32_t{KRC_REMOTE_ATOMIC});
}

}  // namespace
