// Regions at another host, of which this host's kernel knows what was published: what a request may do there. Two
// guests of tools/vm run this (tests/vm/guest/kmod_*), each its part, which KMOD_OTHER_HOST names: serve, or use.
#include <unistd.h>

#include <cstdlib>
#include <string_view>

#include "tests/kmod/fixture.h"

namespace kmod_test {
namespace {

constexpr char kFabric[] = "other_host";
constexpr krcore::NodeId kNode = 77;
constexpr size_t kBytes = 2 * kPage;
constexpr uint64_t kWord = 1000;  // of every region, at first

bool IsPart(std::string_view part) {
  const char* const said = std::getenv("KMOD_OTHER_HOST");
  return said != nullptr && said == part;
}

// A region that the test names although it was not published.
struct Hidden {
  uint64_t addr, key;
};

TEST(OtherHost, Serves) {
  if (!IsPart("serve")) GTEST_SKIP() << "needs a second host";
  Side side(8, kBytes);  // its own region has all rights, and is not published
  Pages readable(kBytes), writable(kBytes);
  for (Pages* const pages : {&side.memory, &readable, &writable})
    for (size_t i = 0; i < kBytes / sizeof(uint64_t); ++i) pages->words()[i] = kWord + i;
  krc_shared_region regions[2] = {};
  ASSERT_EQ(side.queue.Register(readable.bytes(), kBytes, KRC_LOCAL_WRITE | KRC_REMOTE_READ, &regions[0].key), 0);
  ASSERT_EQ(side.queue.Register(writable.bytes(), kBytes, KRC_LOCAL_WRITE | KRC_REMOTE_WRITE, &regions[1].key), 0);
  ASSERT_EQ(side.queue.Join(kFabric, kNode), 0);
  ASSERT_EQ(side.queue.Publish(regions), 0);
  ASSERT_EQ(side.queue.SetService("hidden key", side.key), 0);
  ASSERT_EQ(side.queue.SetService("hidden addr", reinterpret_cast<uint64_t>(side.memory.bytes())), 0);
  while (access("/common/done", F_OK) != 0) usleep(10'000);
  for (size_t i = 0; i < kBytes / sizeof(uint64_t); ++i) {
    ASSERT_EQ(readable.words()[i], kWord + i);
    ASSERT_EQ(side.memory.words()[i], kWord + i);
    ASSERT_EQ(writable.words()[i], i == 0 ? 5 : kWord + i);
  }
}

TEST(OtherHost, RefusesWhatThePublishedRegionsDoNotAllowBeforeItReachesTheSharedQp) {
  if (!IsPart("use")) GTEST_SKIP() << "needs a second host";
  Side side;
  ASSERT_EQ(side.queue.Join(kFabric), 0);
  krc_connect found;
  for (int error = ENOENT; error == ENOENT;) error = side.queue.Connect(kNode, &found);
  ASSERT_EQ(found.count, 2u);
  uint64_t hidden_key, hidden_addr;
  for (int error = ENOENT; error == ENOENT;) error = side.queue.GetService("hidden addr", &hidden_addr);
  ASSERT_EQ(side.queue.GetService("hidden key", &hidden_key), 0);
  const auto [readable, writable] = std::pair(found.regions[0], found.regions[1]);
  EXPECT_EQ(readable.access, static_cast<uint32_t>(KRC_REMOTE_READ));
  EXPECT_EQ(writable.access, static_cast<uint32_t>(KRC_REMOTE_WRITE));
  const int64_t broken = Counter("broken"), requests = Counter("requests");
  const struct {
    const char* name;
    uint8_t opcode;
    uint32_t key;
    uint64_t addr;
    uint32_t length;
  } kRefused[] = {
      {"a WRITE to what may be read", KRC_OP_WRITE, readable.key, readable.addr, 8},
      {"a CAS on what may be read", KRC_OP_COMPARE_SWAP, readable.key, readable.addr, 8},
      {"a CAS on what may be written", KRC_OP_COMPARE_SWAP, writable.key, writable.addr, 8},
      {"a READ of what may be written", KRC_OP_READ, writable.key, writable.addr, 8},
      {"beyond the end", KRC_OP_READ, readable.key, readable.addr + kBytes - 8, 9},
      {"behind the end", KRC_OP_READ, readable.key, readable.addr + kBytes, 1},
      {"before the begin", KRC_OP_READ, readable.key, readable.addr - 8, 16},
      {"longer than all of it", KRC_OP_READ, readable.key, readable.addr, kBytes + 1},
      {"around the end of addresses", KRC_OP_READ, readable.key, ~uint64_t{0} - 3, 8},
      {"one's key with the other's address", KRC_OP_READ, readable.key, writable.addr, 8},
      {"what was not published", KRC_OP_READ, static_cast<uint32_t>(hidden_key), hidden_addr, 8},
      {"this process's own", KRC_OP_READ, side.key, reinterpret_cast<uint64_t>(side.memory.bytes()), 8},
  };
  for (const auto& refused : kRefused) {
    EXPECT_EQ(side.Push(Side::Between(refused.opcode, side.key, side.memory.bytes(), refused.key, refused.addr,
                                      refused.length)),
              EACCES)
        << refused.name;
  }
  EXPECT_EQ(Counter("requests"), requests);
  // What is allowed goes, to the last byte.
  side.memory.words()[0] = 5;
  EXPECT_EQ(side.StatusOf(Side::Between(KRC_OP_WRITE, side.key, side.memory.words(), writable.key, writable.addr)),
            KRC_SUCCESS);
  EXPECT_EQ(
      side.StatusOf(Side::Between(KRC_OP_READ, side.key, side.memory.words(), readable.key, readable.addr, kBytes)),
      KRC_SUCCESS);
  EXPECT_EQ(side.memory.words()[kBytes / sizeof(uint64_t) - 1], kWord + kBytes / sizeof(uint64_t) - 1);
  EXPECT_EQ(Counter("broken"), broken);
}

}  // namespace
}  // namespace kmod_test
